// The plans of quantize.h, and a thread's partition of them.
#include "cpu/quantize/quantize.h"

#include "cpu/core/scratch.h"

namespace fastact {
namespace {

struct Rows {
  const Quantize& q;
  const StridedOperands& s;
  const bool is_double;
  const int64_t piece;  // elements at a time
  ChunkReader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char codes[kPiece];

  explicit Rows(const Quantize& quantize)
      : q(quantize),
        s(q.operands),
        is_double(s.compute_dtype == kF64),
        piece(s.is_direct[Quantize::kX] && (!q.has_codes || s.has_unit_stride[Quantize::kCodes])
                  ? s.columns.size
                  : kPiece),
        reader(s) {}

  // visit(x, column, how many) for a row's elements, in the compute type.
  template <class Visit>
  void for_pieces(int64_t row, Visit visit) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(piece, s.columns.size - column);
      reader.go(row, column, n);
      visit(reader.load(Quantize::kX, x), n);
    }
  }

  // Of a number in the compute type.
  double scale_of_peak(double peak) const {
    return is_double ? scale_of(peak, q.format) : double(scale_of(float(peak), q.format));
  }

  void row(int64_t index) {
    const bool finds_peak = q.finds_scale || !q.has_codes;
    double scale = q.finds_scale ? 0 : reader.number(Quantize::kScale, index);
    if (finds_peak) {
      for_pieces(index, [&](const char* from, int64_t n) {
        scale = std::max(scale, q.kernels->peak[is_double](from, n));
      });
      if (q.finds_scale) scale = scale_of_peak(scale);
      reader.store_number(Quantize::kScale, index, scale);
    }
    if (!q.has_codes) return;
    for_pieces(index, [&](const char* from, int64_t n) {
      char* const at = reader.stored(Quantize::kCodes);
      q.kernels->encode[is_double](from, n, scale, q.format, at ? at : codes);
      if (!at) reader.scatter(Quantize::kCodes, codes);
    });
  }
};

}  // namespace

void prepare(Quantize* q, const KernelTable* table, const QuantizeCall& call, bool finds_scale) {
  const Operand arrays[] = {call.x, call.scale, call.codes};
  const int dtypes[] = {call.x.dtype, call.scale.dtype, kBool};
  plan_rows(&q->operands, table->convert, Quantize::kOperands, arrays, dtypes, call.reduced, false);
  q->kernels = table->quantize;
  q->format = call.format;
  q->finds_scale = finds_scale, q->has_codes = call.codes.shape;
}

void quantize_partition(const Quantize* q, int64_t index, int64_t partitions) {
  with_frame<Rows>(*q, [&](Rows& rows) {
    for_rows(q->operands, 1, 1, index, partitions, [&](int64_t row, int64_t) { rows.row(row); });
  });
}

void prepare(Widen* w, const KernelTable* table, const WidenCall& call) {
  Operand arrays[WidenCall::kArrays];
  int dtypes[WidenCall::kArrays];
  for (int k = 0; k < WidenCall::kArrays; ++k)
    arrays[k] = call.data[k], dtypes[k] = call.data[k].dtype;
  bool last[kMaxAxes] = {};
  if (const int ndim = call.data[WidenCall::kX].ndim) last[ndim - 1] = true;
  plan_rows(&w->operands, table->convert, WidenCall::kArrays, arrays, dtypes, last, false);
}

namespace {

struct Widened {
  const StridedOperands& s;
  ChunkReader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char residual[kPiece * sizeof(double)];

  explicit Widened(const Widen& widen) : s(widen.operands), reader(s) {}

  void row(int64_t index) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(kPiece, s.columns.size - column);
      reader.go(index, column, n);
      char* const to = reader.target(WidenCall::kY, x, false);
      const char* from = reader.load(WidenCall::kX, to);
      if (s.data[WidenCall::kTotal]) {
        const char* const other = reader.load(WidenCall::kResidual, residual);
        s.kernels->plus[s.compute_item == sizeof(double)](from, other, residual, n);
        reader.store(WidenCall::kTotal, residual, false);
        from = reader.load(WidenCall::kTotal, to);  // what was rounded
      }
      if (from != to || to == x) reader.store(WidenCall::kY, from, false);
    }
  }
};

}  // namespace

void widen_partition(const Widen* widen, int64_t index, int64_t partitions) {
  with_frame<Widened>(*widen, [&](Widened& rows) {
    for_rows(widen->operands, 1, 1, index, partitions,
             [&](int64_t row, int64_t) { rows.row(row); });
  });
}

}  // namespace fastact
