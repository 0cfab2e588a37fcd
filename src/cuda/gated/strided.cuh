// Gated activations over arrays of any strides, with biases or without: y, and da and db with the
// sums of both by channel.
//
// A thread takes a vector of elements along the innermost axis. Each array is read, or written, in
// the way that its strides allow (Access): the two halves of a packed array by vectors, as they lie
// in rows without gaps; interleaved ones by two vectors that hold both, as a pair; any other
// element by element. An element's channel is found like an address: one more "array" stands beside
// the others, whose address is the channel.
//
// With biases, backward adds up their gradients in the same pass. The channels' axis is the
// innermost one then. A block takes a tile of channels over a chunk of the rows; each thread adds,
// in double, the values that it made before they are rounded, and the block adds up its rows in
// shared memory by a tree. Where another axis is the innermost one in memory, a block is as many
// rows high as it has threads, so that neighbouring threads read neighbouring elements.
#pragma once

#include "cuda/core/channel_sums.cuh"
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
  int64_t columns;        // elements along the innermost axis; a task is a vector of them
  int64_t rows;           // of the other axes
  int64_t step[kArrays];  // bytes from element to element along the innermost axis; of channels: 1
  Access access[kArrays];
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

// Reads a vector of the k-th array.
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

// Reads a vector of the k-th array and one of the next.
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

// Writes to the array that `p` points into; values are not accumulated yet.
template <class T>
FASTACT_DEVICE void store_one(char* p, Access access, int64_t step, int valid, Wide<T> values,
                              bool accumulate) {
  if (access == kAbsent) return;
  if (access == kByVector && valid == Vec<T>::kSize) {
    T* out = reinterpret_cast<T*>(p);
    if (accumulate) accumulate_onto(load_vec(out), values);
    return store_vec(out, narrow_vec<T>(values));
  }
  if (accumulate) accumulate_onto(load_by_element<T>(p, step, valid), values);
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
      if (map.accumulate) accumulate_onto(load_vec(out), values.of[k]);
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
    if (map.accumulate) accumulate_onto(load_vec(out + half * kSize), mixed);
    store_vec(out + half * kSize, narrow_vec<T>(mixed));
  }
}

// The biases of a and of b, which may be absent.
struct GatedBiases {
  NumberVector of[2];  // IN
};

// Adds a bias to elements whose channels begin at `channel` and are `step` apart.
template <class T>
FASTACT_DEVICE void add_bias(const NumberVector& bias, int64_t channel, int64_t step, int valid,
                             Wide<T>& z) {
  with_type<T>(bias.data, bias.dtype, [&](const auto* typed) {
    const char* p = bias.data + channel * bias.stride;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const auto* at = reinterpret_cast<decltype(typed)>(p + j * (step * bias.stride));
      if (j < valid) z.lane[j] += Compute<T>(widen(load(at)));
    }
  });
}

// Reads the arrays; a and b come last, without their biases.
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
  if (!biases.of[0].data) return;
  const int64_t channel = int64_t(reinterpret_cast<intptr_t>(map.in[inputs])) + place.at[inputs];
  add_bias(biases.of[0], channel, map.step[inputs], place.valid, a);
  add_bias(biases.of[1], channel, map.step[inputs], place.valid, b);
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

// Writes da and db of one vector, and returns them as they were before they were accumulated and
// rounded.
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

// Writes da and db, whose sums are the gradients of the biases. The map has the rows of
// core/channel_sums.cuh.
template <class T>
struct GatedSums {
  static constexpr int kSums = 2, kTogether = 1, kNumbers = 0, kBlocks[] = {2, 1};
  static constexpr bool kByRow = true;
  GatedMap<3, 2> map;
  GatedBiases biases;
  Gated<T> gated;

  template <class Staged>
  FASTACT_DEVICE int64_t of_columns(const Staged&, int64_t column) const {
    return column / Vec<T>::kSize;
  }
  template <class Add>
  FASTACT_DEVICE void vecs(const int64_t (&row)[1], const int (&)[1], int64_t vec,
                           const Add& add) const {
    add(gated_gradients(map, biases, gated, place_at<T>(map, row[0], vec)).of);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
