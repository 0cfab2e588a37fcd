// The functors of core/row_map.cuh over arrays of any strides, and sums by channel with their last
// step: what the rows of whole aligned vectors there leave over.
//
// A thread takes a vector of elements along the innermost axis. Each array is read, or written, in
// the way that its strides allow (ReadBy): the two halves of a packed array by vectors, as they lie
// in rows without gaps; interleaved ones by two vectors that hold both, as a pair; any other
// element by element. An element's channel is found like an address: one more "array" stands beside
// the others, whose address is the channel. A functor has, besides what row_map.cuh asks for,
//
//   keep(const ChannelPlace& place)    what a thread keeps of the channels of a vector
//
// Sums: the channels' axis is the innermost one then. A block takes a tile of channels over a chunk
// of the rows; each thread adds, in double, the values that it made before they are rounded, and
// the block adds up its rows in shared memory by a tree. Where another axis is the innermost one in
// memory, a block is as many rows high as it has threads, so that neighbouring threads read
// neighbouring elements. The order of additions depends on the shape, and on which axis is the
// innermost one in memory.
#pragma once

#include "cuda/core/elementwise.cuh"
#include "cuda/core/finish.cuh"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kChannelMapThreads = 256;
constexpr int64_t kSumRows = 64;     // of a chunk
constexpr int64_t kSumTasks = 1024;  // tiles by chunks, at most, but for very many channels

enum ReadBy : int {
  kByVector,
  kByPair,  // even and odd elements of one array, whose base is at 16 bytes: the next array too
  kByElement,
  kAbsent,
};

// Arrays that are read come first, then the channel, then arrays that are written.
template <int inputs, int outputs>
struct ChannelMap : StridedMap<inputs + 1, outputs> {
  static constexpr int kInputs = inputs, kOutputs = outputs, kArrays = inputs + 1 + outputs;
  int64_t columns;        // elements along the innermost axis; a task is a vector of them
  int64_t rows;           // of the other axes
  int64_t step[kArrays];  // bytes from element to element along the innermost axis; of channels: 1
  ReadBy by[kArrays];
  bool odd_first[2];  // of the pairs that are read, and written: the first array is the odd one
  Divisor vecs;       // of a row
  // At most two axes, and offsets that fit 32 bits. pitch: bytes from row to row; advance: from
  // vector to vector. For the channels they count channels.
  bool is_near;
  uint32_t pitch[kArrays], advance[kArrays];
  // is_near, and every array goes by whole vectors: no array needs a test of its own.
  bool is_plain;
};

// A place in a map: the vector of a row that begins at `column`; its first `valid` elements exist.
template <int arrays>
struct MapPlace {
  int64_t at[arrays];
  int valid;
};
// The channels of a vector's elements: the first one's, and the step to the next element's.
struct ChannelPlace {
  int64_t channel, step;
  int valid;
};

template <class T, int inputs, int outputs>
FASTACT_DEVICE auto place_at(const ChannelMap<inputs, outputs>& map, int64_t row, int64_t vec) {
  constexpr int kSize = Vec<T>::kSize, kArrays = inputs + 1 + outputs;
  MapPlace<kArrays> place;
  place.valid = int(smaller(map.columns - vec * kSize, kSize));
  if (map.is_near) {
    const auto times = [](int64_t a, uint32_t b) { return int64_t(uint64_t(uint32_t(a)) * b); };
#pragma unroll
    for (int k = 0; k < kArrays; ++k)
      place.at[k] = times(row, map.pitch[k]) + times(vec, map.advance[k]);
    return place;
  }
  locate(map, row, place.at, map.ndim - 1);
#pragma unroll
  for (int k = 0; k < kArrays; ++k) place.at[k] += vec * map.strides[k][map.ndim - 1];
  return place;
}

// The place of a task.
template <class T, int inputs, int outputs>
FASTACT_DEVICE auto place_of(const ChannelMap<inputs, outputs>& map, int64_t task) {
  if (map.is_near) {
    const uint32_t row = map.vecs.quick(uint32_t(task));
    return place_at<T>(map, row, uint32_t(task) - row * uint32_t(map.vecs.by));
  }
  const int64_t row = quotient(task, map.vecs.by);
  return place_at<T>(map, row, task - row * map.vecs.by);
}

// The numbers of a vector's channels; 0 behind its valid elements.
template <class T>
FASTACT_DEVICE Wide<T> numbers_of(const NumberVector& from, const ChannelPlace& place) {
  Wide<T> numbers{};
  with_type<T>(from.data, from.dtype, [&](const auto* typed) {
    const char* p = from.data + place.channel * from.stride;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const auto* at = reinterpret_cast<decltype(typed)>(p + j * (place.step * from.stride));
      if (j < place.valid) numbers.lane[j] = Compute<T>(widen(load(at)));
    }
  });
  return numbers;
}

template <class T>
FASTACT_DEVICE Vec<T> load_by_element(const char* p, int64_t step, int valid) {
  Vec<T> vec{};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < valid) vec.lane[j] = load(reinterpret_cast<const T*>(p + j * step));
  return vec;
}

// Reads a vector of the k-th array; zeros of one that is not there.
template <class T, class Map, class Place>
FASTACT_DEVICE Vec<T> load_one(const Map& map, const Place& place, int k) {
  const char* p = map.in[k] + place.at[k];
  if (map.by[k] == kByVector && place.valid == Vec<T>::kSize)
    return load_vec(reinterpret_cast<const T*>(p));
  return load_by_element<T>(p, map.step[k], map.by[k] == kAbsent ? 0 : place.valid);
}

// Reads a vector of the k-th array and one of the next.
template <class T, class Map, class Place>
FASTACT_DEVICE void load_two(const Map& map, const Place& place, int k, Vec<T>& a, Vec<T>& b) {
  constexpr int kHalf = Vec<T>::kSize / 2;
  if (map.by[k] != kByPair || place.valid < Vec<T>::kSize) {
    a = load_one<T>(map, place, k);
    b = load_one<T>(map, place, k + 1);
    return;
  }
  const bool odd_first = map.odd_first[0];
  const char* even = odd_first ? map.in[k + 1] + place.at[k + 1] : map.in[k] + place.at[k];
  const T* p = reinterpret_cast<const T*>(even);
  const Vec<T> low = load_vec(p), high = load_vec(p + Vec<T>::kSize);
#pragma unroll
  for (int j = 0; j < kHalf; ++j) {
    a.lane[j] = odd_first ? low.lane[2 * j + 1] : low.lane[2 * j];
    b.lane[j] = odd_first ? low.lane[2 * j] : low.lane[2 * j + 1];
    a.lane[kHalf + j] = odd_first ? high.lane[2 * j + 1] : high.lane[2 * j];
    b.lane[kHalf + j] = odd_first ? high.lane[2 * j] : high.lane[2 * j + 1];
  }
}

// Reads the arrays, of which the last two may be a pair.
template <class T, int inputs, int outputs, class Place>
FASTACT_DEVICE void load_all(const ChannelMap<inputs, outputs>& map, const Place& place,
                             Vec<T> (&in)[inputs]) {
  if (map.is_plain) {
#pragma unroll
    for (int k = 0; k < inputs; ++k)
      in[k] = load_vec(reinterpret_cast<const T*>(map.in[k] + place.at[k]));
    return;
  }
  if constexpr (inputs > 2) in[0] = load_one<T>(map, place, 0);
  load_two<T>(map, place, inputs - 2, in[inputs - 2], in[inputs - 1]);
}

template <class T>
FASTACT_DEVICE void store_whole(T* out, Wide<T> values, bool accumulate) {
  if (accumulate) accumulate_onto(load_vec(out), values);
  store_vec(out, narrow_vec<T>(values));
}

// Writes to the k-th output values that are not accumulated yet.
template <class T, class Map, class Place>
FASTACT_DEVICE void store_one(const Map& map, const Place& place, int k, Wide<T> values) {
  const int array = Map::kInputs + 1 + k;
  char* const p = map.out[k] + place.at[array];
  if (map.by[array] == kAbsent) return;
  if (map.by[array] == kByVector && place.valid == Vec<T>::kSize)
    return store_whole(reinterpret_cast<T*>(p), values, map.accumulate);
  const int64_t step = map.step[array];
  if (map.accumulate) accumulate_onto(load_by_element<T>(p, step, place.valid), values);
  const Vec<T> narrow = narrow_vec<T>(values);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < place.valid) store(reinterpret_cast<T*>(p + j * step), narrow.lane[j]);
}

// Writes what was made: the outputs come first.
template <class T, class Map, class Place, int n>
FASTACT_DEVICE void store_all(const Map& map, const Place& place, const Wide<T> (&made)[n]) {
  constexpr int kFirst = Map::kInputs + 1, kSize = Vec<T>::kSize, kHalf = kSize / 2;
  if (map.is_plain) {
#pragma unroll
    for (int k = 0; k < Map::kOutputs; ++k)
      store_whole(reinterpret_cast<T*>(map.out[k] + place.at[kFirst + k]), made[k], map.accumulate);
    return;
  }
  if (map.by[kFirst] != kByPair || place.valid < kSize) {
#pragma unroll
    for (int k = 0; k < Map::kOutputs; ++k) store_one<T>(map, place, k, made[k]);
    return;
  }
  if constexpr (Map::kOutputs == 2) {
    const bool odd_first = map.odd_first[1];
    char* even = odd_first ? map.out[1] + place.at[kFirst + 1] : map.out[0] + place.at[kFirst];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Wide<T> mixed;
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        const Compute<T> a = made[0].lane[half * kHalf + j], b = made[1].lane[half * kHalf + j];
        mixed.lane[2 * j] = odd_first ? b : a;
        mixed.lane[2 * j + 1] = odd_first ? a : b;
      }
      store_whole(reinterpret_cast<T*>(even) + half * kSize, mixed, map.accumulate);
    }
  }
}

template <class F>
using ChannelMapOf = ChannelMap<F::kInputs, F::kOutputs>;

// Reads a vector of each array, writes the outputs, and gives what was made before it is rounded.
template <class T, class F, class Place>
FASTACT_DEVICE void map_place(const ChannelMapOf<F>& map, const F& f, const Place& place,
                              Wide<T> (&made)[F::kMade]) {
  constexpr int kInputs = F::kInputs;
  Vec<T> in[kInputs];
  load_all(map, place, in);
  Wide<T> wide[kInputs];
  bool has[kInputs];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) wide[k] = widen_vec(in[k]), has[k] = map.in[k];
  const int64_t channel = int64_t(reinterpret_cast<intptr_t>(map.in[kInputs])) + place.at[kInputs];
  f.vec(wide, has, f.keep(ChannelPlace{channel, map.step[kInputs], place.valid}), made);
  store_all<T>(map, place, made);
}

template <class T, class F>
FASTACT_KERNEL(kChannelMapThreads)
void map_channels(FASTACT_GRID_CONSTANT const ChannelMapOf<F> map,
                  FASTACT_GRID_CONSTANT const F f) {
  const int64_t task = int64_t(blockIdx.x) * kChannelMapThreads + threadIdx.x;
  if (task >= map.tasks) return;
  Wide<T> made[F::kMade];
  map_place<T>(map, f, place_of<T>(map, task), made);
}

// The partial sums of channels, in tiles of tx vectors of them and chunks of the rows.
struct ChannelSums {
  int64_t size, count;  // of a chunk; chunks
  int64_t channels, tiles;
  int tx, ty;        // threads of a block
  double* partials;  // OUT, sums x channels x chunks
};

template <class T, class F>
FASTACT_KERNEL_OF(kChannelMapThreads, 2)
void sum_channels(FASTACT_GRID_CONSTANT const ChannelMapOf<F> map, FASTACT_GRID_CONSTANT const F f,
                  FASTACT_GRID_CONSTANT const ChannelSums sums) {
  constexpr int kSize = Vec<T>::kSize;
  FASTACT_SHARED(double, buffer, (kFoldBuffer<kChannelMapThreads, kSize>));
  const int tx = int(threadIdx.x) % sums.tx, ty = int(threadIdx.x) / sums.tx;
  const int mine = int(threadIdx.x);  // a column
  const int64_t first = int64_t(reinterpret_cast<intptr_t>(map.in[F::kInputs]));
  for (int64_t task = blockIdx.x; task < sums.count * sums.tiles; task += gridDim.x) {
    const int64_t chunk = task / sums.tiles, here = (task - chunk * sums.tiles) * sums.tx * kSize;
    const int64_t column = here + tx * kSize, begin = chunk * sums.size;
    const int64_t end = column < map.columns ? smaller(begin + sums.size, map.rows) : begin;
    double sum[F::kSums][kSize] = {};
    for (int64_t row = begin + ty; row < end; row += sums.ty) {
      Wide<T> made[F::kMade];
      map_place<T>(map, f, place_at<T>(map, row, column / kSize), made);
#pragma unroll
      for (int k = 0; k < F::kSums; ++k)
#pragma unroll
        for (int j = 0; j < kSize; ++j) sum[k][j] += double(made[F::kMade - F::kSums + k].lane[j]);
    }
    const int columns = int(smaller(sums.tx * kSize, map.columns - here));
#pragma unroll
    for (int k = 0; k < F::kSums; ++k) {
      const auto folded = fold_rows(buffer, sum[k], tx, ty, sums.tx, sums.ty);
      const int64_t channel = first + (here + mine) * map.step[F::kInputs];
      if (mine < columns)
        store(sums.partials + (k * sums.channels + channel) * sums.count + chunk,
              folded.sum(buffer, mine));
      __syncthreads();
    }
  }
}

// ---- on the host

inline ReadBy access_of(const ElementwisePlan& plan, int k) {
  if (!plan.data[k]) return kAbsent;
  const bool dense = plan.strides[k][plan.ndim - 1] == plan.item;
  return dense && rows_aligned(plan, k, kVecBytes) ? kByVector : kByElement;
}

// Whether arrays k and k + 1 are the even and odd elements of one, and in which order.
inline bool are_pair(const ElementwisePlan& plan, int k, bool* odd_first) {
  if (!plan.data[k] || !plan.data[k + 1]) return false;
  bool pair = plan.strides[k][plan.ndim - 1] == 2 * plan.item;
  for (int axis = 0; axis < plan.ndim; ++axis)
    pair &= plan.strides[k][axis] == plan.strides[k + 1][axis];
  const int even = plan.data[k + 1] < plan.data[k] ? k + 1 : k;
  pair &= plan.data[even] + plan.item == plan.data[2 * k + 1 - even] &&
          rows_aligned(plan, even, kVecBytes);
  *odd_first = pair && even != k;
  return pair;
}

// The map of a plan's operands: the inputs, the channel, and the outputs.
template <class T, class F>
ChannelMapOf<F> channel_map_of(const ElementwisePlan& plan, bool accumulate) {
  constexpr int kSize = Vec<T>::kSize, kInputs = F::kInputs, kFirst = kInputs + 1;
  const int last = plan.ndim - 1;
  ChannelMapOf<F> map{};
  map.ndim = plan.ndim;
  map.accumulate = accumulate;
  map.task_size = kSize;
  map.columns = plan.shape[last];
  map.rows = plan.size / plan.shape[last];
  std::copy(plan.shape, plan.shape + plan.ndim, map.shape);
  map.shape[last] = ceil_div(map.columns, kSize);
  map.tasks = map.rows * map.shape[last];
  map.vecs = Divisor(map.shape[last], map.tasks);
  map.is_near = plan.ndim <= 2 && map.vecs.factor != 0;
  const auto near = [&](int64_t stride) {
    map.is_near &= stride >= 0 && stride < int64_t(1) << 31;
    return uint32_t(stride);
  };
  bool by_vectors = map.columns % kSize == 0;
  for (int k = 0; k < map.kArrays; ++k) {
    std::copy(plan.strides[k], plan.strides[k] + plan.ndim, map.strides[k]);
    map.step[k] = plan.strides[k][last];
    map.strides[k][last] *= kSize;
    map.by[k] = access_of(plan, k);
    map.pitch[k] = near(last == 0 ? 0 : plan.strides[k][0]);
    map.advance[k] = near(map.strides[k][last]);
    by_vectors &= k == kInputs || map.by[k] == kByVector;
    if (k < kFirst)
      map.in[k] = plan.data[k];
    else
      map.out[k - kFirst] = plan.data[k];
  }
  map.is_plain = map.is_near && by_vectors;
  if (are_pair(plan, kInputs - 2, &map.odd_first[0])) map.by[kInputs - 2] = kByPair;
  if (F::kOutputs == 2 && are_pair(plan, kFirst, &map.odd_first[1])) map.by[kFirst] = kByPair;
  return map;
}

// Queues the map of a plan's operands.
template <class T, class F>
void run_channel_map(const ElementwisePlan& plan, bool accumulate, const F& f,
                     cudaStream_t stream) {
  const auto map = channel_map_of<T, F>(plan, accumulate);
  launch(map_channels<T, F>, {ceil_div(map.tasks, kChannelMapThreads), kChannelMapThreads}, stream,
         map, f);
}

// The plan of the sums for so many channels of so many elements each. Where channels do not come
// last, threads lie along the elements of one channel, unless it is too short to fill a block.
template <class T>
ChannelSums plan_sums(int64_t channels, int64_t rows, bool channels_last) {
  const int64_t vecs = ceil_div(channels, Vec<T>::kSize);
  const int beside =
      channels_last ? kWarp : kChannelMapThreads / power_of_two_from(rows, kChannelMapThreads);
  ChannelSums sums{};
  sums.channels = channels;
  sums.tx = power_of_two_from(vecs, std::min(beside, kWarp));
  sums.ty = kChannelMapThreads / sums.tx;
  sums.tiles = ceil_div(vecs, sums.tx);
  const int64_t most = std::max<int64_t>(1, kSumTasks / sums.tiles);
  cut(&sums, rows, std::max(kSumRows * std::max(1, sums.ty / 8), rows / most));
  return sums;
}
// The most chunks that any layout of so many channels and elements in all has.
template <class T>
int64_t most_chunks(int64_t channels, int64_t elements) {
  const int64_t rows = elements / channels;
  return std::max(plan_sums<T>(channels, rows, true).count,
                  plan_sums<T>(channels, rows, false).count);
}

// Queues the map with the sums of what it makes, to partials OUT, and returns the chunks of each.
template <class T, class F>
int64_t run_channel_sums(ElementwisePlan* plan, int64_t channels, bool accumulate, const F& f,
                         double* partials, cudaStream_t stream) {
  // The channels' axis, if there are several channels. No other axis counts channels, so it was
  // merged with none. It becomes the innermost one.
  int axis = plan->ndim;
  for (int i = 0; i < plan->ndim; ++i)
    if (channels > 1 && plan->strides[F::kInputs][i] != 0) axis = i;
  const bool channels_last = axis == plan->ndim - 1;
  if (axis == plan->ndim) {
    plan->shape[plan->ndim++] = 1;
    for (int k = 0; k < plan->operands; ++k) plan->strides[k][axis] = 0;
  }
  const auto move_last = [&](int64_t* values) {
    std::rotate(values + axis, values + axis + 1, values + plan->ndim);
  };
  move_last(plan->shape);
  for (int k = 0; k < plan->operands; ++k) move_last(plan->strides[k]);
  const auto map = channel_map_of<T, F>(*plan, accumulate);
  ChannelSums sums = plan_sums<T>(channels, map.rows, channels_last);
  sums.partials = partials;
  launch(sum_channels<T, F>, {blocks_for(sums.tiles * sums.count), kChannelMapThreads}, stream, map,
         f, sums);
  return sums.count;
}

}  // namespace
FASTACT_END_NAMESPACE
