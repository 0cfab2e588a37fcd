#include "cpu/reductions/squares.h"

#include <algorithm>

namespace fastact {
namespace {

struct Squares : BlockSource {
  const StridedOperands& s;
  const Reducer& r;
  ChunkReader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char wide[kPiece * sizeof(float)];
  alignas(64) char grad[kPiece * sizeof(double)];
  OpenBlock open;
  double sum;

  explicit Squares(const SquareGrad& a) : s(a.operands), r(a.reducer), reader(a.operands) {}

  Results block(int64_t, int64_t, int64_t term, int64_t terms) override {
    std::fill_n(open.lanes[0], kLanes, -0.0);
    for (int64_t done = 0, n; done < terms; done += n) {
      n = std::min(kPiece, terms - done);
      reader.go(0, term + done, n);
      const char* from = reader.load_stored(SquareGrad::kX, x);
      r.kernels->add_segment(from, n, done, 0, &open, &sum, 1, 1);
      if (s.dtype != s.compute_dtype) {
        reader.to_compute(SquareGrad::kX, from, wide, n);
        from = wide;
      }
      char* to = reader.direct(SquareGrad::kGrad);
      s.kernels->plus[s.compute_item == sizeof(double)](from, from, to ? to : grad, n);
      if (!to) reader.store(SquareGrad::kGrad, grad, false);
    }
    if (terms < kReduceBlock) {
      if (r.kernels->end_segment) r.kernels->end_segment(&open, terms);
      r.table->fold_each(open.lanes[0], 0, 1, &sum);
    }
    return {&sum, nullptr, 1};
  }
};

}  // namespace

void prepare(SquareGrad* square, const KernelTable* table, const SquareCall& call) {
  const int dtype = call.x.dtype;
  const Operand arrays[] = {call.x, call.grad};
  plan_operands(&square->operands, table->convert, dtype, 2, arrays, SquareGrad::kX, -1, true);
  Reducer* r = &square->reducer;
  set_accumulator(r, table->reduce, kSquare, dtype);
  r->outputs = r->terms = Axes();
  r->terms.size = square->operands.size();
  r->accumulate = false;
  set_output(r, call.y.data, dtype,
             reinterpret_cast<uintptr_t>(call.y.data) % uintptr_t(item_size(dtype)) == 0);
  r->layout = Reducer::kRows;
  r->row = r->tile = r->tasks = 1;
  cut_terms(r);
}

void square_partition(const SquareGrad* square, int64_t index, int64_t partitions) {
  Squares squares(*square);
  reduce_tasks(&square->reducer, 1, squares, index, partitions);
}

}  // namespace fastact
