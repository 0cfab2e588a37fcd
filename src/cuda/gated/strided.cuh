// Gated activations over arrays of any strides, with biases or without: y, and da and db with the
// sums of both by channel.
//
// A thread takes a vector of elements along the innermost axis. Each array is read, or written, in
// the way that its strides allow (Access): the two halves of a packed array by vectors, as they lie
// in rows without gaps; interleaved ones by two vectors that hold both, as a pair; any other
// element by element. The channel of an element is found as its address is: the arrays have another
// beside them, whose "address" is the channel.
//
// The sums of a backward with biases are those of its own pass. The channels' axis is the innermost
// one then, a block takes a tile of channels over a chunk of the rows, adds what it made before it
// is rounded, in double, and its rows in shared memory by a tree. Where the channels' axis is not
// the innermost one in memory, a block is as many rows high as it has threads: neighbours read
// neighbours.
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/indexing.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/gated/functors.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;

enum Access : int {
  kByVector,
  kByPair,  // even and odd elements of one array, whose base is at 16 bytes: the next array too
  kByElement,
  kAbsent,
};

// Arrays that are read come first, then the channel, then arrays that are written.
template <int inputs, int outputs>
struct GatedMap : StridedMap<inputs + 1, outputs> {
  static constexpr int kArrays = inputs + 1 + outputs;
  int64_t columns;        // elements along the innermost axis, of which a task is a vector
  int64_t rows;           // of the other axes
  int64_t step[kArrays];  // bytes from element to element along the innermost axis; of channels: 1
  Access access[kArrays];
  bool odd_first[2];  // of the pairs that are read, and written: the first array is the odd one
  Divisor vecs;       // of a row
  // No more than two axes, and near enough for offsets of 32 bits: pitch is bytes from row to row,
  // advance from vector to vector; of channels: channels.
  bool is_near;
  uint32_t pitch[kArrays], advance[kArrays];
  // Near, and all by vectors in rows that are whole numbers of them: nothing is asked of each
  // array.
  bool is_plain;
};

// A place in a map: the vector of a row that begins at `column`, of whose elements `valid` exist.
template <int arrays>
struct GatedPlace {
  int64_t at[arrays];
  int valid;
};

template <class T, int inputs, int outputs>
FASTACT_DEVICE auto place_at(const GatedMap<inputs, outputs>& map, int64_t row, int64_t vec) {
  constexpr int kSize = Vec<T>::kSize;
  GatedPlace<inputs + 1 + outputs> place;
  place.valid = int(smaller(map.columns - vec * kSize, kSize));
  if (map.is_near) {
    const auto times = [](int64_t a, uint32_t b) { return int64_t(uint64_t(uint32_t(a)) * b); };
#pragma unroll
    for (int k = 0; k < inputs + 1 + outputs; ++k)
      place.at[k] = times(row, map.pitch[k]) + times(vec, map.advance[k]);
    return place;
  }
  if (row <= int64_t(0xffffffff))
    locate(map, uint32_t(row), place.at, map.ndim - 1);
  else
    locate(map, row, place.at, map.ndim - 1);
#pragma unroll
  for (int k = 0; k < inputs + 1 + outputs; ++k) place.at[k] += vec * map.strides[k][map.ndim - 1];
  place.valid = int(smaller(map.columns - vec * kSize, kSize));
  return place;
}

// The place of a task.
template <class T, int inputs, int outputs>
FASTACT_DEVICE auto place_of(const GatedMap<inputs, outputs>& map, int64_t task) {
  if (map.is_near) {
    const uint32_t row = map.vecs.quick(uint32_t(task));
    return place_at<T>(map, row, uint32_t(task) - row * uint32_t(map.vecs.by));
  }
  const int64_t row = quotient(task, map.vecs.by);
  return place_at<T>(map, row, task - row * map.vecs.by);
}

template <class T>
FASTACT_DEVICE Vec<T> load_by_element(const char* p, int64_t step, int valid) {
  Vec<T> vec{};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < valid) vec.lane[j] = load(reinterpret_cast<const T*>(p + j * step));
  return vec;
}

// The k-th array.
template <class T, class Map, class Place>
FASTACT_DEVICE Vec<T> load_plain(const Map& map, const Place& place, int k) {
  return load_vec(reinterpret_cast<const T*>(map.in[k] + place.at[k]));
}
template <class T, class Map, class Place>
FASTACT_DEVICE Vec<T> load_one(const Map& map, const Place& place, int k) {
  const char* p = map.in[k] + place.at[k];
  if (map.access[k] == kByVector && place.valid == Vec<T>::kSize)
    return load_vec(reinterpret_cast<const T*>(p));
  return load_by_element<T>(p, map.step[k], place.valid);
}

// The k-th array and the next.
template <class T, class Map, class Place>
FASTACT_DEVICE void load_two(const Map& map, const Place& place, int k, Vec<T>& a, Vec<T>& b) {
  constexpr int kHalf = Vec<T>::kSize / 2;
  if (map.access[k] != kByPair || place.valid < Vec<T>::kSize) {
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

// What the k-th array holds, where it is added to.
template <class T>
FASTACT_DEVICE void accumulate_into(Wide<T>& values, const Vec<T>& before) {
  const Wide<T> held = widen_vec(before);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) values.lane[j] = held.lane[j] + values.lane[j];
}

// To the array `p` points into; values are not accumulated yet.
template <class T>
FASTACT_DEVICE void store_one(char* p, Access access, int64_t step, int valid, Wide<T> values,
                              bool accumulate) {
  if (access == kAbsent) return;
  if (access == kByVector && valid == Vec<T>::kSize) {
    T* out = reinterpret_cast<T*>(p);
    if (accumulate) accumulate_into(values, load_vec(out));
    return store_vec(out, narrow_vec<T>(values));
  }
  if (accumulate) accumulate_into(values, load_by_element<T>(p, step, valid));
  const Vec<T> narrow = narrow_vec<T>(values);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < valid) store(reinterpret_cast<T*>(p + j * step), narrow.lane[j]);
}

template <class T, int inputs, class Place>
FASTACT_DEVICE void store_two(const GatedMap<inputs, 2>& map, const Place& place,
                              Results<Wide<T>, 2> values) {
  constexpr int kFirst = inputs + 1, kSize = Vec<T>::kSize, kHalf = kSize / 2;
  if (map.is_plain) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      T* out = reinterpret_cast<T*>(map.out[k] + place.at[kFirst + k]);
      if (map.accumulate) accumulate_into(values.of[k], load_vec(out));
      store_vec(out, narrow_vec<T>(values.of[k]));
    }
    return;
  }
  if (map.access[kFirst] != kByPair || place.valid < kSize) {
#pragma unroll
    for (int k = 0; k < 2; ++k)
      store_one<T>(map.out[k] + place.at[kFirst + k], map.access[kFirst + k], map.step[kFirst + k],
                   place.valid, values.of[k], map.accumulate);
    return;
  }
  const bool odd_first = map.odd_first[1];
  char* even = odd_first ? map.out[1] + place.at[kFirst + 1] : map.out[0] + place.at[kFirst];
  T* out = reinterpret_cast<T*>(even);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    Wide<T> mixed;
#pragma unroll
    for (int j = 0; j < kHalf; ++j) {
      const Compute<T> a = values.of[0].lane[half * kHalf + j];
      const Compute<T> b = values.of[1].lane[half * kHalf + j];
      mixed.lane[2 * j] = odd_first ? b : a;
      mixed.lane[2 * j + 1] = odd_first ? a : b;
    }
    if (map.accumulate) accumulate_into(mixed, load_vec(out + half * kSize));
    store_vec(out + half * kSize, narrow_vec<T>(mixed));
  }
}

// The biases, which may be absent.
struct GatedBiases {
  const char* data[2];  // IN: of a and of b
  int64_t stride[2];    // bytes
  int dtype;
};

template <class T, class B>
FASTACT_DEVICE void add_bias_as(const char* p, int64_t stride, int valid, Wide<T>& z) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j < valid) z.lane[j] += Compute<T>(widen(load(reinterpret_cast<const B*>(p + j * stride))));
}

// Adds the bias of a (0) or b (1) to elements whose channels begin at `channel` and are `step`
// apart.
template <class T>
FASTACT_DEVICE void add_bias(const GatedBiases& biases, int which, int64_t channel, int64_t step,
                             int valid, Wide<T>& z) {
  const int64_t stride = biases.stride[which];
  const char* p = biases.data[which] + channel * stride;
  if (biases.dtype == kF64)
    add_bias_as<T, double>(p, step * stride, valid, z);
  else if (biases.dtype == kF32)
    add_bias_as<T, float>(p, step * stride, valid, z);
  else
    add_bias_as<T, T>(p, step * stride, valid, z);
}

// The arrays that are read, a and b last and without their biases.
template <class T, int inputs, int outputs, class Place>
FASTACT_DEVICE void load_all(const GatedMap<inputs, outputs>& map, const Place& place,
                             Vec<T> (&in)[inputs]) {
  if (map.is_plain) {
#pragma unroll
    for (int k = 0; k < inputs; ++k) in[k] = load_plain<T>(map, place, k);
    return;
  }
  if constexpr (inputs > 2) in[0] = load_one<T>(map, place, 0);
  load_two<T>(map, place, inputs - 2, in[inputs - 2], in[inputs - 1]);
}

// Adds their biases to a and b.
template <class T, int inputs, int outputs, class Place>
FASTACT_DEVICE void add_biases(const GatedMap<inputs, outputs>& map, const GatedBiases& biases,
                               const Place& place, Wide<T>& a, Wide<T>& b) {
  if (!biases.data[0]) return;
  const int64_t channel = int64_t(reinterpret_cast<intptr_t>(map.in[inputs])) + place.at[inputs];
  add_bias(biases, 0, channel, map.step[inputs], place.valid, a);
  add_bias(biases, 1, channel, map.step[inputs], place.valid, b);
}

template <class T>
FASTACT_KERNEL(kThreads)
void gated_forward_strided(FASTACT_GRID_CONSTANT const GatedMap<2, 1> map,
                           FASTACT_GRID_CONSTANT const GatedBiases biases,
                           FASTACT_GRID_CONSTANT const Gated<T> gated) {
  constexpr int kY = 3;
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= map.tasks) return;
  const auto place = place_of<T>(map, index);
  Vec<T> in[2];
  load_all(map, place, in);
  Wide<T> a = widen_vec(in[0]), b = widen_vec(in[1]);
  add_biases(map, biases, place, a, b);
  const Wide<T> y = gated.forward(a, b);
  char* out = map.out[0] + place.at[kY];
  if (map.is_plain)
    store_vec(reinterpret_cast<T*>(out), narrow_vec<T>(y));
  else
    store_one<T>(out, map.access[kY], map.step[kY], place.valid, y, false);
}

// da and db of one vector, written; given as they were before accumulation and rounding.
template <class T, class Place>
FASTACT_DEVICE Results<Wide<T>, 2> gated_gradients(const GatedMap<3, 2>& map,
                                                   const GatedBiases& biases, const Gated<T>& gated,
                                                   const Place& place) {
  Vec<T> in[3];
  load_all(map, place, in);
  Wide<T> a = widen_vec(in[1]), b = widen_vec(in[2]);
  add_biases(map, biases, place, a, b);
  const Results<Wide<T>, 2> gradients = gated.backward(widen_vec(in[0]), a, b);
  store_two<T>(map, place, gradients);
  return gradients;
}

template <class T>
FASTACT_KERNEL(kThreads)
void gated_backward_strided(FASTACT_GRID_CONSTANT const GatedMap<3, 2> map,
                            FASTACT_GRID_CONSTANT const GatedBiases biases,
                            FASTACT_GRID_CONSTANT const Gated<T> gated) {
  const int64_t index = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= map.tasks) return;
  const auto place = place_of<T>(map, index);
  gated_gradients(map, biases, gated, place);
}

// How a backward with sums is divided: tiles of tx vectors of channels, chunks of rows.
struct GatedSums {
  int tx, ty;
  int64_t tiles;
  int64_t size, count;  // of the chunks
  double* partials;     // OUT: for a, then for b, channels x count
};

template <class T>
FASTACT_KERNEL_OF(kThreads, 2)
void gated_backward_sums(FASTACT_GRID_CONSTANT const GatedMap<3, 2> map,
                         FASTACT_GRID_CONSTANT const GatedBiases biases,
                         FASTACT_GRID_CONSTANT const Gated<T> gated, const GatedSums sums) {
  constexpr int kSize = Vec<T>::kSize, kChannel = 3;
  FASTACT_SHARED(double, buffer, kThreads* kSize);
  const int x = int(threadIdx.x) % sums.tx, y = int(threadIdx.x) / sums.tx;
  for (int64_t task = blockIdx.x; task < sums.tiles * sums.count; task += gridDim.x) {
    const int64_t chunk = task / sums.tiles, tile = task - chunk * sums.tiles;
    const int64_t vec = tile * sums.tx + x;
    const int64_t end = smaller((chunk + 1) * sums.size, map.rows);
    double total[2][kSize] = {};
    if (vec * kSize < map.columns && y < sums.ty) {
      for (int64_t row = chunk * sums.size + y; row < end; row += sums.ty) {
        const auto place = place_at<T>(map, row, vec);
        const Results<Wide<T>, 2> gradients = gated_gradients(map, biases, gated, place);
#pragma unroll
        for (int k = 0; k < 2; ++k)
#pragma unroll
          for (int j = 0; j < kSize; ++j) total[k][j] += double(gradients.of[k].lane[j]);
      }
    }
    const int64_t first = tile * sums.tx * kSize;  // column
    const int columns = int(smaller(sums.tx * kSize, map.columns - first));
    const int64_t channel =
        int64_t(reinterpret_cast<intptr_t>(map.in[kChannel])) + first * map.step[kChannel];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      fold_rows(buffer, total[k], x, y, sums.tx, sums.ty);
      for (int c = int(threadIdx.x); c < columns; c += kThreads)
        store(sums.partials + (k * map.columns + channel + c * map.step[kChannel]) * sums.count +
                  chunk,
              double(buffer[c]));
      __syncthreads();
    }
  }
}

}  // namespace
FASTACT_END_NAMESPACE
