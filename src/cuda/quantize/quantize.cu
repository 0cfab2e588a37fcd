// Codes of 8 bits and their scales (common/quantize/quantize.h), of arrays of any strides; numbers
// of codes; and 16-bit data in float32.
//
// A row, the elements that share a scale, has a warp, or a block where it is long. It is read twice
// where scale and codes are made, the second time from a cache.
#include "common/quantize/quantize.h"
#include "cuda/core/native_function.h"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kQuantizeThreads = 256;
constexpr int64_t kRowOfWarp = 1024;  // elements, at most

enum QuantizeArray : int { kQuantizeX, kQuantizeScale, kQuantizeCodes, kQuantizeArrays };

struct QuantizeMap {
  StridedArrays<kQuantizeArrays> of;  // rows, then a row's elements
  int64_t rows, columns;
  int format;
  bool finds_scale, has_codes;  // neither: peaks
  bool has_bytes;               // as scales
};

// lanes: threads of a row.
template <class T, int lanes>
FASTACT_KERNEL(kQuantizeThreads)
void quantize_rows(FASTACT_GRID_CONSTANT const QuantizeMap map) {
  using C = Compute<T>;
  using Bits = typename BitsOf<C>::type;
  constexpr int kTeams = kQuantizeThreads / lanes;
  const int lane = int(threadIdx.x) % lanes;
  const int64_t row = int64_t(blockIdx.x) * kTeams + int(threadIdx.x) / lanes;
  const bool is_idle = row >= map.rows;
  int64_t base[kQuantizeArrays] = {};
  if (!is_idle) offset_all(map.of, row, 0, map.of.row_axes, base);
  C* const scale_at = reinterpret_cast<C*>(map.of.data[kQuantizeScale] + base[kQuantizeScale]);
  // visit(x, where codes are, from their first byte on) for a thread's elements.
  const auto for_elements = [&](const auto& visit) {
    for (int64_t i = lane; i < map.columns && !is_idle; i += lanes) {
      int64_t at[kQuantizeArrays];
#pragma unroll
      for (int k = 0; k < kQuantizeArrays; ++k) at[k] = base[k];
      offset_all(map.of, i, map.of.row_axes, map.of.count, at);
      visit(C(widen(load(reinterpret_cast<const T*>(map.of.data[kQuantizeX] + at[kQuantizeX])))),
            at[kQuantizeCodes]);
    }
  };
  // One thread reads the peak that it will write.
  const bool reads_scale = !map.finds_scale && !is_idle && (map.has_codes || lane == 0);
  C scale = reads_scale && !map.has_bytes ? load(scale_at) : C(0);
  if (reads_scale && map.has_bytes)
    scale = power_of(uint8_t(load(reinterpret_cast<const int8_t*>(scale_at))));
  if (map.finds_scale || !map.has_codes) {
    Bits most[1] = {finite_magnitude(scale)};
    for_elements([&](C x, int64_t) {
      const Bits magnitude = finite_magnitude(x);
      most[0] = magnitude > most[0] ? magnitude : most[0];
    });
    int fold_index = 0;
    fold_team<lanes == kQuantizeThreads ? kOneBlock : kOneWarp>(
        most, lanes, fold_index, [](Bits a, Bits b) { return a > b ? a : b; }, Bits(0),
        [](Bits all) { return all; });
    scale = bit_cast<C>(most[0]);
    if (map.has_bytes) {
      const int byte = exponent_of(scale, map.format);
      scale = power_of(byte);
      if (lane == 0 && !is_idle) store(reinterpret_cast<int8_t*>(scale_at), int8_t(byte));
    } else {
      if (map.finds_scale) scale = scale_of(scale, map.format);
      if (lane == 0 && !is_idle) store(scale_at, scale);
    }
  }
  if (!map.has_codes) return;
  for_elements([&](C x, int64_t at) {
    const float quotient = quotient_of(x, scale);
    store(reinterpret_cast<int8_t*>(map.of.data[kQuantizeCodes] + at),
          int8_t(with_format(map.format, [=](auto kind) { return kind.code(quotient); })));
  });
}

template <class T>
FASTACT_KERNEL(kQuantizeThreads)
void decode_all(FASTACT_GRID_CONSTANT const StridedArrays<kQuantizeArrays> all, const int64_t count,
                const int format) {
  const int64_t i = int64_t(blockIdx.x) * kQuantizeThreads + threadIdx.x;
  if (i >= count) return;
  int64_t at[kQuantizeArrays] = {};
  offset_all(all, i, 0, all.count, at);
  const int8_t code =
      load(reinterpret_cast<const int8_t*>(all.data[kQuantizeCodes] + at[kQuantizeCodes]));
  using C = Compute<T>;
  const C scale = load(reinterpret_cast<const C*>(all.data[kQuantizeScale] + at[kQuantizeScale]));
  const C number = with_format(format, [=](auto kind) { return C(kind.number(code)); });
  store(reinterpret_cast<T*>(all.data[kQuantizeX] + at[kQuantizeX]), narrow<T>(number * scale));
}

template <class T>
FASTACT_KERNEL(kQuantizeThreads)
void widen_all(FASTACT_GRID_CONSTANT const StridedArrays<WidenCall::kArrays> all,
               const int64_t count) {
  using C = Compute<T>;
  const int64_t i = int64_t(blockIdx.x) * kQuantizeThreads + threadIdx.x;
  if (i >= count) return;
  int64_t at[WidenCall::kArrays] = {};
  offset_all(all, i, 0, all.count, at);
  const auto element = [&](int k) { return reinterpret_cast<T*>(all.data[k] + at[k]); };
  C x = widen(load(element(WidenCall::kX)));
  if (all.data[WidenCall::kTotal]) {
    const T total = narrow<T>(x + widen(load(element(WidenCall::kResidual))));
    store(element(WidenCall::kTotal), total);
    x = widen(total);
  }
  store(reinterpret_cast<C*>(all.data[WidenCall::kY] + at[WidenCall::kY]), x);
}

}  // namespace

// Calls that were checked.
template <class T, bool finds_scale>
void quantize(const QuantizeCall& call, cudaStream_t stream) {
  if (is_empty(call.x)) return;
  QuantizeMap map{};
  map.of = {CallArrays<kQuantizeArrays>({call.x, call.scale, call.codes}), kQuantizeX,
            [&](int i) { return int(call.reduced[i]); }};
  map.rows = map.of.rows(), map.columns = map.of.elements();
  map.format = call.format;
  map.finds_scale = finds_scale, map.has_codes = call.codes.shape;
  map.has_bytes = call.scale.dtype == kBool;
  const bool is_long = map.columns > kRowOfWarp;
  const int64_t teams = is_long ? 1 : kQuantizeThreads / kWarp;
  launch(is_long ? quantize_rows<T, kQuantizeThreads> : quantize_rows<T, kWarp>,
         {ceil_div(map.rows, teams), kQuantizeThreads}, stream, map);
}

template <class T>
void decode(const QuantizeCall& call, cudaStream_t stream) {
  if (is_empty(call.x)) return;
  const StridedArrays<kQuantizeArrays> all(
      CallArrays<kQuantizeArrays>({call.x, call.scale, call.codes}), kQuantizeX,
      [](int) { return 0; });
  launch(decode_all<T>, {ceil_div(all.rows(), kQuantizeThreads), kQuantizeThreads}, stream, all,
         all.rows(), call.format);
}

template <class T>
void widen_to_compute(const WidenCall& call, cudaStream_t stream) {
  if (is_empty(call.data[WidenCall::kX])) return;
  const StridedArrays<WidenCall::kArrays> all(CallArrays(call.data), WidenCall::kX,
                                              [](int) { return 0; });
  const Shape shape{ceil_div(all.rows(), kQuantizeThreads), kQuantizeThreads};
  launch(widen_all<T>, shape, stream, all, all.rows());
}

using Storage = FASTACT_STORAGE;
const NativeFunction<quantize<Storage, true>> quantized_call(kQuantize);
const NativeFunction<quantize<Storage, false>> encoded_call(kEncode);
const NativeFunction<quantize<Storage, false>> peak_call(kPeak);
const NativeFunction<decode<Storage>> decoded_call(kDecode);
const NativeFunction<widen_to_compute<Storage>> widened_call(kWiden);

FASTACT_END_NAMESPACE
