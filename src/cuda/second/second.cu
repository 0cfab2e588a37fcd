// Second derivatives of rows of norms and of softmax (common/second/second.h), of arrays of any
// strides.
//
// A warp has a short row and a block a long one, element by element: the sums first, and then, from
// the second-level cache, what follows. A thread adds a few terms in the compute type and these
// sums in double.
//
// Bytes moved: what was saved, ddx and dy once, ddy and the other gradient once; terms, which the
// weight's gradient is the sum of, once more.
#include "common/second/second.h"
#include "common/softmax/softmax.h"
#include "cuda/core/native_function.h"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

using Data = SecondCall;
constexpr int kSecondThreads = 256;
constexpr int kTermsOfThread = 8;  // that are added before their sum counts in double

struct SecondMap : StridedArrays<Data::kArrays> {
  int64_t step[Data::kArrays];  // bytes from element to element, where a row has one axis
  bool is_linear;
  int64_t row_count, row_length;
  int lanes;  // threads of a row
  int weight_dtype, kind;
  bool accumulate;
  SecondRow row;  // the numbers of the call
};

using Offsets = int64_t[Data::kArrays];

FASTACT_DEVICE void find_element(const SecondMap& map, const Offsets& row, int64_t i, Offsets& at) {
#pragma unroll
  for (int k = 0; k < Data::kArrays; ++k) at[k] = row[k] + (map.is_linear ? i * map.step[k] : 0);
  if (!map.is_linear) offset_all(map, i, map.row_axes, map.count, at);
}

// weight: exp(saved) of a functor that takes that.
template <class T, class Of>
struct SecondOperands {
  using C = Compute<T>;
  C saved, u, dy, weight;

  FASTACT_DEVICE SecondOperands(const SecondMap& map, const Offsets& at) {
    const auto read = [&](int k) {
      return widen(load(reinterpret_cast<const T*>(map.data[k] + at[k])));
    };
    saved = read(Data::kSaved), u = read(Data::kU), dy = read(Data::kDy);
    const char* const p = map.data[Data::kWeight];
    if constexpr (Of::kTakesExp)
      weight = exp_near(saved, reference_of(C(0))) * C(Tail<C>::kDown);
    else
      weight = p ? load_parameter<T>(p + at[Data::kWeight], map.weight_dtype) : C(1);
  }
};

template <class T, class Of>
FASTACT_KERNEL(kSecondThreads)
void second_of_rows(FASTACT_GRID_CONSTANT const SecondMap map) {
  using C = Compute<T>;
  const int lane = int(threadIdx.x) % map.lanes;
  const int64_t index =
      int64_t(blockIdx.x) * (kSecondThreads / map.lanes) + int(threadIdx.x) / map.lanes;
  const int64_t length = index < map.row_count ? map.row_length : 0;  // an idle thread has no row
  Offsets first = {}, at;
  SecondRow row = map.row;
  if (length) {
    offset_all(map, index, 0, map.row_axes, first);
    const auto number = [&](int k) {
      return map.data[k] ? double(load(reinterpret_cast<const C*>(map.data[k] + first[k]))) : 0.0;
    };
    row.mean = number(Data::kMean), row.rstd = number(Data::kRstd);
  }
  double sums[Of::kSums] = {};
  const Of of_sums(row);
  for (int64_t i = lane; i < length;) {
    C part[Of::kSums] = {};
    for (int term = 0; term < kTermsOfThread && i < length; ++term, i += map.lanes) {
      find_element(map, first, i, at);
      const SecondOperands<T, Of> v(map, at);
      of_sums.add(v.u, v.dy, v.saved, v.weight, [&](int s, C value) { part[s] += value; });
    }
#pragma unroll
    for (int s = 0; s < Of::kSums; ++s) sums[s] += double(part[s]);
  }
  int fold_index = 0;
  team_sums(sums, map.lanes, fold_index);
#pragma unroll
  for (int s = 0; s < Of::kSums; ++s) row.sums[s] = sums[s];
  Of::finish(map.kind, double(map.row_length), &row);
  const Of of(row);
  for (int64_t i = lane; i < length; i += map.lanes) {
    find_element(map, first, i, at);
    const SecondOperands<T, Of> v(map, at);
    const SecondElement<C> made = of(v.u, v.dy, v.saved, v.weight);
    const auto put = [&](int k, C value, bool accumulate) {
      if (!map.data[k]) return;
      T* const to = reinterpret_cast<T*>(map.data[k] + at[k]);
      store(to, narrow<T>(accumulate ? widen(load(to)) + value : value));
    };
    put(Data::kDDy, made.ddy, map.accumulate);
    put(Data::kDSaved, made.dsaved, map.accumulate);
    put(Data::kTerms, made.term, false);
  }
}

}  // namespace

// A call that was checked.
template <class T>
void second_rows(const SecondCall& call, cudaStream_t stream) {
  if (is_empty(call.data[Data::kSaved])) return;
  SecondMap map{};
  static_cast<StridedArrays<Data::kArrays>&>(map) = {CallArrays(call.data), Data::kSaved,
                                                     [&](int i) { return int(call.reduced[i]); }};
  map.is_linear = map.count - map.row_axes <= 1;
  for (int k = 0; k < Data::kArrays; ++k)
    map.step[k] = map.count > map.row_axes ? map.stride[k][map.row_axes] : 0;
  map.row_count = map.rows(), map.row_length = map.elements();
  map.lanes = map.row_length > kSecondThreads ? kSecondThreads : kWarp;
  map.weight_dtype = call.data[Data::kWeight].dtype;
  map.kind = call.kind, map.accumulate = call.accumulate;
  map.row = {0, 0, call.weight_offset, call.scale, {}};
  using C = Compute<T>;
  const auto kernel = is_norm(call.kind)              ? second_of_rows<T, SecondOfNorm<C>>
                      : call.kind == kSecondOfSoftmax ? second_of_rows<T, SecondOfSoftmax<C>>
                                                      : second_of_rows<T, SecondOfLogSoftmax<C>>;
  launch(kernel, {ceil_div(map.row_count, kSecondThreads / map.lanes), kSecondThreads}, stream,
         map);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<second_rows<Storage>> second_call(kSecond);

FASTACT_END_NAMESPACE
