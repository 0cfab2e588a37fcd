// Maps over arrays of any strides, and sums by channel: what contiguous arrays
// (core/elementwise.cuh) and rows of whole aligned vectors (core/row_map.cuh) leave over.
//
// A thread takes a vector of elements along the innermost axis. Each array is read, or written, in
// the way that its strides allow (ReadBy): the two halves of a packed array by vectors, as they lie
// in rows without gaps; interleaved ones by two vectors that hold both, as a pair; any other
// element by element. Where elements have an index, as their channel, it is found like an address:
// one more "array" stands beside the others, whose address is the index. The functors are those of
// row_map.cuh, with
//
//   keep(const IndexPlace& place)    what a thread keeps of the indices of a vector
//
// Sums: the channels' axis is the innermost one then. A block takes a tile of channels over a chunk
// of the rows; each thread adds, in double, the values that it made before they are rounded, and
// the block adds up its rows in shared memory by a tree. Where another axis is the innermost one in
// memory, a block is as many rows high as it has threads, so that neighbouring threads read
// neighbouring elements. The order of additions depends on the shape, and on which axis is the
// innermost one in memory.
#pragma once

#include "common/core/elementwise_plan.h"
#include "cuda/core/finish.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kStridedThreads = 256;
constexpr int64_t kSumRows = 64;     // of a chunk
constexpr int64_t kSumTasks = 1024;  // tiles by chunks, at most, but for very many channels

enum ReadBy : int {
  kByVector,
  kByPair,  // even and odd elements of one array, whose base is at 16 bytes: the next array too
  kByElement,
  kRepeated,  // one element stands for all along the innermost axis
  kAbsent,
};

// Arrays that are read come first, then the index, then arrays that are written.
template <int inputs, int outputs>
struct StridedMap {
  static constexpr int kInputs = inputs, kOutputs = outputs, kArrays = inputs + 1 + outputs;
  const char* in[inputs + 1];
  char* out[outputs];  // null: not wanted, where there are several
  bool accumulate;
  int64_t tasks;            // vectors
  int64_t columns;          // elements along the innermost axis
  int64_t rows;             // of the other axes
  RowTable<kArrays> table;  // the innermost axis, which counts no rows, by vectors
  int64_t step[kArrays];    // bytes from element to element along the innermost axis; of indices: 1
  ReadBy by[kArrays];
  bool odd_first[2];  // of the pairs that are read, and written: the first array is the odd one
  Divisor vecs;       // of a row
  // At most two axes, and offsets that fit 32 bits. pitch: bytes from row to row; advance: from
  // vector to vector. For the index they count indices.
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
// The indices of a vector's elements: the first one's, and the step to the next element's.
struct IndexPlace {
  int64_t first, step;
  int valid;
};

template <class T, int inputs, int outputs>
FASTACT_DEVICE auto place_at(const StridedMap<inputs, outputs>& map, int64_t row, int64_t vec) {
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
#pragma unroll
  for (int k = 0; k < kArrays; ++k) place.at[k] = vec * map.table.stride[k][map.table.row_axes];
  offset_all(map.table, row, 0, map.table.row_axes, place.at);
  return place;
}

// The place of a task.
template <class T, int inputs, int outputs>
FASTACT_DEVICE auto place_of(const StridedMap<inputs, outputs>& map, int64_t task) {
  if (map.is_near) {
    const uint32_t row = map.vecs.quick(uint32_t(task));
    return place_at<T>(map, row, uint32_t(task) - row * uint32_t(map.vecs.by));
  }
  const int64_t row = quotient(task, map.vecs.by);
  return place_at<T>(map, row, task - row * map.vecs.by);
}

// The numbers of a vector's channels; 0 behind its valid elements.
template <class T>
FASTACT_DEVICE Wide<T> numbers_of(const NumberVector& from, const IndexPlace& place) {
  Wide<T> numbers{};
  with_type<T>(from.data, from.dtype, [&](const auto* typed) {
    const char* p = from.data + place.first * from.stride;
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
  if (map.by[k] == kRepeated) return repeat_element(reinterpret_cast<const T*>(p));
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
FASTACT_DEVICE void load_all(const StridedMap<inputs, outputs>& map, const Place& place,
                             Vec<T> (&in)[inputs]) {
  if (map.is_plain) {
#pragma unroll
    for (int k = 0; k < inputs; ++k)
      in[k] = load_vec(reinterpret_cast<const T*>(map.in[k] + place.at[k]));
    return;
  }
  constexpr int kAlone = inputs > 1 ? inputs - 2 : inputs;
#pragma unroll
  for (int k = 0; k < kAlone; ++k) in[k] = load_one<T>(map, place, k);
  if constexpr (inputs > 1) load_two<T>(map, place, inputs - 2, in[inputs - 2], in[inputs - 1]);
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
using StridedMapOf = StridedMap<F::kInputs, F::kOutputs>;

// Reads a vector of each array, writes the outputs, and gives what was made before it is rounded.
template <class T, class F, class Place>
FASTACT_DEVICE void map_place(const StridedMapOf<F>& map, const F& f, const Place& place,
                              Wide<T> (&made)[F::kMade]) {
  constexpr int kInputs = F::kInputs;
  Vec<T> in[kInputs];
  load_all(map, place, in);
  Wide<T> wide[kInputs];
  bool has[kInputs];
#pragma unroll
  for (int k = 0; k < kInputs; ++k) wide[k] = widen_vec(in[k]), has[k] = map.in[k];
  const int64_t index = int64_t(reinterpret_cast<intptr_t>(map.in[kInputs])) + place.at[kInputs];
  f.vec(wide, has, f.keep(IndexPlace{index, map.step[kInputs], place.valid}), made);
  store_all<T>(map, place, made);
}

template <class T, class F>
FASTACT_KERNEL(kStridedThreads)
void map_strided(FASTACT_GRID_CONSTANT const StridedMapOf<F> map, FASTACT_GRID_CONSTANT const F f) {
  const int64_t task = int64_t(blockIdx.x) * kStridedThreads + threadIdx.x;
  if (task >= map.tasks) return;
  Wide<T> made[F::kMade];
  map_place<T>(map, f, place_of<T>(map, task), made);
}

// Whether a functor asks for the index of each element.
template <class F, class = int>
constexpr bool kIsIndexed = false;
template <class F>
constexpr bool kIsIndexed<F, decltype(F::kIndexed + 0)> = F::kIndexed;

// A functor of core/elementwise.cuh. One that asks for indices is given elements, whose indices may
// lie apart.
template <class F, class T, int inputs>
struct StridedFunctor {
  static constexpr int kInputs = inputs, kOutputs = 1, kMade = 1;
  F f;

  FASTACT_DEVICE IndexPlace keep(const IndexPlace& place) const { return place; }
  FASTACT_DEVICE void vec(const Wide<T> (&in)[inputs], const bool (&)[inputs],
                          const IndexPlace& place, Wide<T> (&made)[1]) const {
    if constexpr (kIsIndexed<F>) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        Compute<T> lane[inputs];
#pragma unroll
        for (int k = 0; k < inputs; ++k) lane[k] = in[k].lane[j];
        made[0].lane[j] = f.at(lane, place.first + j * place.step);
      }
    } else {
      made[0] = f.vec(in, 0);
    }
  }
};

// The partial sums of channels, in tiles of tx vectors of them and chunks of the rows.
struct ChannelSums {
  Chunks chunks;  // of the rows
  int64_t channels, tiles;
  int tx, ty;        // threads of a block
  double* partials;  // OUT, sums x channels x chunks
};

template <class T, class F>
FASTACT_KERNEL_OF(kStridedThreads, 2)
void sum_channels(FASTACT_GRID_CONSTANT const StridedMapOf<F> map, FASTACT_GRID_CONSTANT const F f,
                  FASTACT_GRID_CONSTANT const ChannelSums sums) {
  constexpr int kSize = Vec<T>::kSize;
  FASTACT_SHARED(double, buffer, (kFoldBuffer<kStridedThreads, kSize>));
  const int tx = int(threadIdx.x) % sums.tx, ty = int(threadIdx.x) / sums.tx;
  const int mine = int(threadIdx.x);  // a column
  const int64_t first = int64_t(reinterpret_cast<intptr_t>(map.in[F::kInputs]));
  for (int64_t task = blockIdx.x; task < sums.chunks.count * sums.tiles; task += gridDim.x) {
    const int64_t chunk = task / sums.tiles, here = (task - chunk * sums.tiles) * sums.tx * kSize;
    const int64_t column = here + tx * kSize, begin = chunk * sums.chunks.size;
    const int64_t end = column < map.columns ? smaller(begin + sums.chunks.size, map.rows) : begin;
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
        store(sums.partials + (k * sums.channels + channel) * sums.chunks.count + chunk,
              folded.sum(buffer, mine));
      __syncthreads();
    }
  }
}

// ---- on the host

inline ReadBy way_to_read(const ElementwisePlan& plan, int k) {
  if (!plan.data[k]) return kAbsent;
  const int64_t step = plan.strides[k][plan.ndim - 1];
  if (step == 0) return kRepeated;
  return step == plan.item && rows_aligned(plan, k, kVecBytes) ? kByVector : kByElement;
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

// The map of a plan's operands: the inputs, an index if there is one, and the outputs.
template <class T, int inputs, int outputs>
StridedMap<inputs, outputs> strided_map(const ElementwisePlan& plan, bool accumulate) {
  constexpr int kSize = Vec<T>::kSize, kFirst = inputs + 1;
  const int last = plan.ndim - 1;
  const bool has_index = plan.operands > inputs + outputs;
  if (plan.ndim > kRowAxes)
    throw std::invalid_argument("fastact: the axes of arrays are more than the kernels know");
  StridedMap<inputs, outputs> map{};
  map.table.row_axes = last, map.table.count = plan.ndim;
  map.accumulate = accumulate;
  map.columns = plan.shape[last];
  map.rows = plan.size / plan.shape[last];
  std::copy(plan.shape, plan.shape + last, map.table.length);
  const int64_t vecs = map.table.length[last] = ceil_div(map.columns, kSize);
  map.tasks = map.rows * vecs;
  map.vecs = Divisor(vecs, map.tasks);
  map.is_near = plan.ndim <= 2 && map.vecs.factor != 0;
  const auto near = [&](int64_t stride) {
    map.is_near &= stride >= 0 && stride < int64_t(1) << 31;
    return uint32_t(stride);
  };
  bool by_vectors = map.columns % kSize == 0;
  for (int k = 0; k < map.kArrays; ++k) {
    if (k == inputs && !has_index) continue;
    const int from = k - (k > inputs && !has_index);
    std::copy(plan.strides[from], plan.strides[from] + last, map.table.stride[k]);
    map.step[k] = plan.strides[from][last];
    map.table.stride[k][last] = map.step[k] * kSize;
    map.by[k] = way_to_read(plan, from);
    map.pitch[k] = near(last == 0 ? 0 : plan.strides[from][0]);
    map.advance[k] = near(map.table.stride[k][last]);
    by_vectors &= k == inputs || map.by[k] == kByVector;
    if (k < kFirst)
      map.in[k] = plan.data[from];
    else
      map.out[k - kFirst] = plan.data[from];
  }
  map.is_plain = map.is_near && by_vectors;
  if (inputs > 1 && are_pair(plan, inputs - 2, &map.odd_first[0])) map.by[inputs - 2] = kByPair;
  if (outputs == 2 && are_pair(plan, plan.operands - 2, &map.odd_first[1]))
    map.by[kFirst] = kByPair;
  return map;
}

// Queues the map of a plan's operands.
template <class T, class F>
void run_strided_map(const ElementwisePlan& plan, bool accumulate, const F& f,
                     cudaStream_t stream) {
  const auto map = strided_map<T, F::kInputs, F::kOutputs>(plan, accumulate);
  launch(map_strided<T, F>, {ceil_div(map.tasks, kStridedThreads), kStridedThreads}, stream, map,
         f);
}

// The plan of the sums for so many channels of so many elements each. Where channels do not come
// last, threads lie along the elements of one channel, unless it is too short to fill a block.
template <class T>
ChannelSums plan_sums(int64_t channels, int64_t rows, bool channels_last) {
  const int64_t vecs = ceil_div(channels, Vec<T>::kSize);
  const int beside =
      channels_last ? kWarp : kStridedThreads / power_of_two_from(rows, kStridedThreads);
  ChannelSums sums{};
  sums.channels = channels;
  sums.tx = power_of_two_from(vecs, std::min(beside, kWarp));
  sums.ty = kStridedThreads / sums.tx;
  sums.tiles = ceil_div(vecs, sums.tx);
  const int64_t most = std::max<int64_t>(1, kSumTasks / sums.tiles);
  cut(&sums.chunks, rows, std::max(kSumRows * std::max(1, sums.ty / 8), rows / most));
  return sums;
}
// The most chunks that any layout of so many channels and elements in all has.
template <class T>
int64_t most_chunks(int64_t channels, int64_t elements) {
  const int64_t rows = elements / channels;
  return std::max(plan_sums<T>(channels, rows, true).chunks.count,
                  plan_sums<T>(channels, rows, false).chunks.count);
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
  const auto map = strided_map<T, F::kInputs, F::kOutputs>(*plan, accumulate);
  ChannelSums sums = plan_sums<T>(channels, map.rows, channels_last);
  sums.partials = partials;
  launch(sum_channels<T, F>, {blocks_for(sums.tiles * sums.chunks.count), kStridedThreads}, stream,
         map, f, sums);
  return sums.chunks.count;
}

}  // namespace
FASTACT_END_NAMESPACE
