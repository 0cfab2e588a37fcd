// The plans of quantize.h, and a thread's partition of them.
#include "cpu/quantize/quantize.h"

#include "cpu/core/scratch.h"

namespace fastact {
namespace {

constexpr int64_t kTogether = 4096;  // elements of short rows, which stay in the first-level cache
constexpr int64_t kRows = 32;        // rows, at most

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

  // `count` rows, at most kRows: their peaks, scales, codes. So no row waits for the one before it.
  void rows(int64_t first, int64_t count) {
    double scale[kRows];
    for (int64_t i = 0; i < count; ++i)
      scale[i] = q.finds_scale ? 0 : reader.number(Quantize::kScale, first + i);
    if (q.finds_scale || !q.has_codes) {
      for (int64_t i = 0; i < count; ++i) {
        for_pieces(first + i, [&](const char* from, int64_t n) {
          scale[i] = std::max(scale[i], q.kernels->peak[is_double](from, n));
        });
      }
      for (int64_t i = 0; i < count; ++i) {
        if (q.finds_scale) scale[i] = scale_of_peak(scale[i]);
        reader.store_number(Quantize::kScale, first + i, scale[i]);
      }
    }
    if (!q.has_codes) return;
    for (int64_t i = 0; i < count; ++i) {
      for_pieces(first + i, [&](const char* from, int64_t n) {
        char* const at = reader.stored(Quantize::kCodes);
        q.kernels->encode[is_double](from, n, scale[i], q.format, at ? at : codes);
        if (!at) reader.scatter(Quantize::kCodes, codes);
      });
    }
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
    const int64_t columns = std::max<int64_t>(q->operands.columns.size, 1);
    const int64_t width = std::clamp<int64_t>(kTogether / columns, 1, kRows);
    for_rows(q->operands, width, 1, index, partitions,
             [&](int64_t row, int64_t n) { rows.rows(row, n); });
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
