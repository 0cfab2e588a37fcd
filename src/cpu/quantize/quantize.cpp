// Codes and scales (common/quantize/quantize.h) of rows: the elements that share a scale. A row is
// read twice where both are made, the second time from the cache. Codes become numbers again, and
// 16-bit data becomes float32.
#include "cpu/core/native_function.h"
#include "cpu/core/row_pass.h"
#include "cpu/quantize/kernels.h"

namespace fastact {
namespace {

struct Quantize {
  enum Operand : int { kX, kScale, kCodes, kOperands };

  StridedOperands operands;
  const QuantizeKernels* kernels;
  int format;
  bool finds_scale, has_codes;  // neither: peaks
  bool has_bytes;               // as scales
};

constexpr int64_t kTogether = 4096;  // elements of short rows, which stay in the first-level cache
constexpr int64_t kRows = 32;        // rows, at most

struct Rows : RowPass {
  const Quantize& q;
  const bool is_double;
  const int64_t piece;  // elements at a time
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char codes[kPiece];

  explicit Rows(const Quantize& quantize)
      : RowPass(quantize.operands),
        q(quantize),
        is_double(s.compute_dtype == kF64),
        piece(s.is_direct[Quantize::kX] && (!q.has_codes || s.has_unit_stride[Quantize::kCodes])
                  ? s.columns.size
                  : kPiece) {
    width = std::clamp<int64_t>(kTogether / std::max<int64_t>(s.columns.size, 1), 1, kRows);
  }

  // visit(x, how many) for a row's elements, in the compute type.
  template <class Visit>
  void for_elements(int64_t row, Visit visit) {
    for_pieces(row, [&](int64_t, int64_t n) { visit(reader.load(Quantize::kX, x), n); }, piece);
  }

  double known_scale(int64_t row) const {
    if (q.has_bytes) return power_of(uint8_t(*s.row(Quantize::kScale, row)));
    return reader.number(Quantize::kScale, row);
  }

  // The scale of a peak in the compute type, which is stored.
  double scale_of_peak(int64_t row, double peak) const {
    if (!q.has_bytes) {
      const double scale = is_double ? scale_of(peak, q.format) : scale_of(float(peak), q.format);
      reader.store_number(Quantize::kScale, row, scale);
      return scale;
    }
    const int byte = is_double ? exponent_of(peak, q.format) : exponent_of(float(peak), q.format);
    *s.row(Quantize::kScale, row) = char(byte);
    return power_of(byte);
  }

  // `count` rows: their peaks, scales, codes. So no row waits for the one before it.
  void visit(int64_t first, int64_t count) {
    double scale[kRows];
    for (int64_t i = 0; i < count; ++i) scale[i] = q.finds_scale ? 0 : known_scale(first + i);
    if (q.finds_scale || !q.has_codes) {
      for (int64_t i = 0; i < count; ++i) {
        for_elements(first + i, [&](const char* from, int64_t n) {
          scale[i] = std::max(scale[i], q.kernels->peak[is_double](from, n));
        });
      }
      for (int64_t i = 0; i < count; ++i) {
        if (q.finds_scale)
          scale[i] = scale_of_peak(first + i, scale[i]);
        else
          reader.store_number(Quantize::kScale, first + i, scale[i]);
      }
    }
    if (!q.has_codes) return;
    for (int64_t i = 0; i < count; ++i) {
      for_elements(first + i, [&](const char* from, int64_t n) {
        char* const at = reader.stored_target(Quantize::kCodes, codes);
        q.kernels->encode[is_double](from, n, scale[i], q.format, at);
        reader.finish_stored(Quantize::kCodes, at, codes);
      });
    }
  }
};

void prepare(Quantize* q, const KernelTable* table, const QuantizeCall& call, bool finds_scale) {
  const Operand arrays[] = {call.x, call.scale, call.codes};
  const int dtypes[] = {call.x.dtype, call.scale.dtype, kBool};
  plan_rows(&q->operands, table->convert, Quantize::kOperands, arrays, dtypes, call.reduced, false);
  q->kernels = table->quantize;
  q->format = call.format;
  q->finds_scale = finds_scale, q->has_codes = call.codes.shape;
  q->has_bytes = call.scale.dtype == kBool;
}

struct Decoded : RowPass {
  const Quantize& q;
  alignas(64) char y[kPiece * sizeof(double)];
  alignas(64) char codes[kPiece];

  explicit Decoded(const Quantize& quantize) : RowPass(quantize.operands), q(quantize) {}

  void visit(int64_t row, int64_t) {
    const double scale = reader.number(Quantize::kScale, row);
    for_pieces(row, [&](int64_t, int64_t n) {
      char* const to = reader.target(Quantize::kX, y, false);
      const char* const from = reader.load_stored(Quantize::kCodes, codes);
      q.kernels->decode[s.compute_dtype == kF64](from, n, scale, q.format, to);
      reader.finish(Quantize::kX, to, y, false);
    });
  }
};

struct Widened : RowPass {
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char residual[kPiece * sizeof(double)];

  using RowPass::RowPass;

  void visit(int64_t index, int64_t) {
    for_pieces(index, [&](int64_t, int64_t n) {
      char* const to = reader.target(WidenCall::kY, x, false);
      const char* from = reader.load(WidenCall::kX, to);
      if (s.data[WidenCall::kTotal]) {
        const char* const other = reader.load(WidenCall::kResidual, residual);
        s.kernels->plus[s.compute_item == sizeof(double)](from, other, residual, n);
        reader.store(WidenCall::kTotal, residual, false);
        from = reader.load(WidenCall::kTotal, to);  // what was rounded
      }
      if (from != to || to == x) reader.store(WidenCall::kY, from, false);
    });
  }
};

template <bool finds_scale>
void quantize(const QuantizeCall& call, const KernelTable* kernels) noexcept {
  run_planned(run_rows<Rows, Quantize>, size_of(call.x), call, kernels, finds_scale);
}

void decode(const QuantizeCall& call, const KernelTable* kernels) noexcept {
  run_planned(run_rows<Decoded, Quantize>, size_of(call.x), call, kernels, false);
}

void widen_array(const WidenCall& call, const KernelTable* kernels) noexcept {
  const ArrayArgument& x = call.data[WidenCall::kX];
  const int64_t size = size_of(x);
  if (size == 0) return;
  StridedOperands operands;
  bool last[kMaxAxes] = {};
  if (x.ndim) last[x.ndim - 1] = true;
  plan_rows(&operands, kernels->convert, WidenCall::kArrays, call.data, last);
  run_partitions(resolve_threads(size), run_rows<Widened, StridedOperands>, &operands);
}

}  // namespace

void add_quantize(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<quantize<true>>(kQuantize));
  functions->push_back(native_function<quantize<false>>(kEncode));
  functions->push_back(native_function<quantize<false>>(kPeak));  // without codes it finds peaks
  functions->push_back(native_function<decode>(kDecode));
  functions->push_back(native_function<widen_array>(kWiden));
}

}  // namespace fastact
