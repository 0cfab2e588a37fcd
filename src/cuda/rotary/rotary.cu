// Rotary position embedding and its gradient (common/rotary/rotary.h), of arrays of any strides.
//
// A thread has a vector of a and one of b, which are halves of a row, or lie together as
// neighbours; where some array does not allow it, one pair. Cosines and sines are read as vectors
// of their own dtype. A position that the table has not gives NaN, for nobody waits for the answer.
//
// Bytes moved: x and y once; cosines and sines, which rows share, from a cache. No shared memory,
// no barrier.
#include "common/rotary/rotary.h"
#include "cuda/core/native_function.h"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

using Data = RotaryCall;
constexpr int kRotaryThreads = 256;

struct PairMap : StridedArrays<Data::kArrays> {  // a row's pairs are its last axis
  int64_t step[Data::kArrays];                   // bytes from pair to pair
  int64_t tasks;
  Divisor of_row;  // tasks of a row
  int angle_dtype, position_dtype;
  int64_t table_rows, table_step[2];
  bool turns_back, accumulate;
};

enum Lie : int { kHalves, kNeighbours, kAnyhow };

// Cosines or sines of a vector of data, dense and aligned.
template <class T, class A>
FASTACT_DEVICE Wide<T> load_angles(const char* p) {
  constexpr int kSize = Vec<A>::kSize;
  Wide<T> wide;
#pragma unroll
  for (int i = 0; i < Vec<T>::kSize; i += kSize) {
    const Wide<A> part = widen_vec(load_vec(reinterpret_cast<const A*>(p) + i));
#pragma unroll
    for (int j = 0; j < kSize; ++j) wide.lane[i + j] = part.lane[j];
  }
  return wide;
}

// A vector of a and one of b.
template <class T, Lie lie>
FASTACT_DEVICE void load_pairs(const char* a, const char* b, Wide<T> (&to)[2]) {
  constexpr int kHalf = Vec<T>::kSize / 2;
  const T* p = reinterpret_cast<const T*>(a);
  const Wide<T> low = widen_vec(load_vec(p));
  const Wide<T> high =
      widen_vec(load_vec(lie == kHalves ? reinterpret_cast<const T*>(b) : p + Vec<T>::kSize));
  if constexpr (lie == kHalves) {
    to[0] = low, to[1] = high;
  } else {
#pragma unroll
    for (int k = 0; k < 2; ++k)
#pragma unroll
      for (int j = 0; j < kHalf; ++j) {
        to[k].lane[j] = low.lane[2 * j + k];
        to[k].lane[kHalf + j] = high.lane[2 * j + k];
      }
  }
}

template <class T>
FASTACT_DEVICE void put_vec(T* to, Wide<T> values, bool accumulate) {
  if (accumulate) accumulate_onto(load_vec(to), values);
  store_vec(to, narrow_vec<T>(values));
}

template <class T, Lie lie>
FASTACT_DEVICE void store_pairs(char* a, char* b, const Wide<T> (&values)[2], bool accumulate) {
  constexpr int kHalf = Vec<T>::kSize / 2;
  T* const p = reinterpret_cast<T*>(a);
  if constexpr (lie == kHalves) {
    put_vec(p, values[0], accumulate), put_vec(reinterpret_cast<T*>(b), values[1], accumulate);
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Wide<T> mixed;
#pragma unroll
      for (int j = 0; j < kHalf; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k) mixed.lane[2 * j + k] = values[k].lane[half * kHalf + j];
      put_vec(p + half * Vec<T>::kSize, mixed, accumulate);
    }
  }
}

// A: of cosines and sines, where they are vectors.
template <class T, class A, Lie lie>
FASTACT_KERNEL(kRotaryThreads)
void turn_pairs(FASTACT_GRID_CONSTANT const PairMap map) {
  using C = Compute<T>;
  const int64_t task = int64_t(blockIdx.x) * kRotaryThreads + threadIdx.x;
  if (task >= map.tasks) return;
  const int64_t row = map.of_row(task), within = task - row * map.of_row.by;
  int64_t at[Data::kArrays] = {};
  offset_all(map, row, 0, map.row_axes, at);
  bool is_there = true;
  if (map.table_rows) {
    const char* p = map.data[Data::kPositions] + at[Data::kPositions];
    const int64_t position = map.position_dtype == kI32
                                 ? int64_t(load(reinterpret_cast<const int32_t*>(p)))
                                 : load(reinterpret_cast<const int64_t*>(p));
    is_there = position >= 0 && position < map.table_rows;
    at[Data::kCos] = is_there ? position * map.table_step[0] : 0;
    at[Data::kSin] = is_there ? position * map.table_step[1] : 0;
  }
  const auto address = [&](int k) { return map.data[k] + at[k] + within * map.step[k]; };
  const auto sine_of = [&](C sine) {
    return !is_there ? C(__builtin_nan("")) : map.turns_back ? -sine : sine;
  };
  if constexpr (lie == kAnyhow) {
    const C a = widen(load(reinterpret_cast<const T*>(address(Data::kA))));
    const C b = widen(load(reinterpret_cast<const T*>(address(Data::kB))));
    const C cosine = load_parameter<T>(address(Data::kCos), map.angle_dtype);
    const C sine = load_parameter<T>(address(Data::kSin), map.angle_dtype);
    const Turned<C> made = turned(a, b, cosine, sine_of(sine), -sine_of(sine));
    const auto put_one = [&](int k, C value) {
      T* const to = reinterpret_cast<T*>(address(k));
      store(to, narrow<T>(map.accumulate ? widen(load(to)) + value : value));
    };
    put_one(Data::kOutA, made.a), put_one(Data::kOutB, made.b);
  } else {
    Wide<T> x[2];
    load_pairs<T, lie>(address(Data::kA), address(Data::kB), x);
    const Wide<T> cosine = load_angles<T, A>(address(Data::kCos));
    const Wide<T> sine = load_angles<T, A>(address(Data::kSin));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const C turning = sine_of(sine.lane[j]);
      const Turned<C> made = turned(x[0].lane[j], x[1].lane[j], cosine.lane[j], turning, -turning);
      x[0].lane[j] = made.a, x[1].lane[j] = made.b;
    }
    store_pairs<T, lie>(address(Data::kOutA), address(Data::kOutB), x, map.accumulate);
  }
}

// Whether rows of the k-th array are whole vectors, whose pairs are `step` bytes apart.
bool has_vectors(const PairMap& map, int k, int64_t step) {
  auto bits = reinterpret_cast<uintptr_t>(map.data[k]);
  for (int i = 0; i < map.row_axes; ++i) bits |= uintptr_t(map.stride[k][i]);
  if (k == Data::kCos || k == Data::kSin) bits |= uintptr_t(map.table_step[k - Data::kCos]);
  return bits % kVecBytes == 0 && map.step[k] == step;
}

template <class T>
Lie lie_of(const PairMap& map, const int64_t (&items)[Data::kArrays], int64_t pairs) {
  const bool is_of_kernel =
      map.angle_dtype == kDTypeOf<T> || map.angle_dtype == kDTypeOf<Compute<T>>;
  if (pairs % Vec<T>::kSize != 0 || !is_of_kernel) return kAnyhow;
  for (const int k : {Data::kCos, Data::kSin})
    if (!has_vectors(map, k, items[k])) return kAnyhow;
  bool are_halves = true, are_neighbours = true;
  for (const int k : {Data::kA, Data::kOutA}) {
    are_halves &= has_vectors(map, k, sizeof(T)) && has_vectors(map, k + 1, sizeof(T));
    are_neighbours &= has_vectors(map, k, 2 * sizeof(T)) && map.step[k + 1] == map.step[k] &&
                      map.data[k + 1] == map.data[k] + sizeof(T);
    for (int i = 0; i < map.row_axes; ++i)
      are_neighbours &= map.stride[k][i] == map.stride[k + 1][i];
  }
  return are_halves ? kHalves : are_neighbours ? kNeighbours : kAnyhow;
}

template <class T, class A>
auto kernel_of(Lie lie) {
  return lie == kHalves       ? turn_pairs<T, A, kHalves>
         : lie == kNeighbours ? turn_pairs<T, A, kNeighbours>
                              : turn_pairs<T, T, kAnyhow>;
}

}  // namespace

// A call that was checked.
template <class T>
void rotary(const RotaryCall& call, cudaStream_t stream) {
  if (is_empty(call.data[Data::kA])) return;
  const RotaryOperands given(call);
  PairMap map{};
  static_cast<StridedArrays<Data::kArrays>&>(map) = {given, Data::kA,
                                                     [&](int i) { return int(given.pairs[i]); }};
  const int64_t pairs = map.elements();
  for (int k = 0; k < Data::kArrays; ++k)
    map.step[k] = pairs > 1 ? map.stride[k][map.row_axes] : given.items[k];
  map.angle_dtype = given.dtypes[Data::kCos], map.position_dtype = given.dtypes[Data::kPositions];
  map.table_rows = given.table_rows;
  std::copy_n(given.table_step, 2, map.table_step);
  map.turns_back = call.turns_back, map.accumulate = call.accumulate;
  const Lie lie = lie_of<T>(map, given.items, pairs);
  const int64_t of_task = lie == kAnyhow ? 1 : Vec<T>::kSize;
  if (lie != kAnyhow)
    for (int64_t& step : map.step) step *= of_task;
  map.tasks = map.rows() * pairs / of_task;
  map.of_row = Divisor(pairs / of_task, map.tasks);
  const bool is_wide = map.angle_dtype == kDTypeOf<Compute<T>>;
  launch(is_wide ? kernel_of<T, Compute<T>>(lie) : kernel_of<T, T>(lie),
         {ceil_div(map.tasks, kRotaryThreads), kRotaryThreads}, stream, map);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<rotary<Storage>> turned_call(kRotary);

FASTACT_END_NAMESPACE
