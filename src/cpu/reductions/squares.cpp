#include "cpu/reductions/squares.h"

#include <algorithm>

namespace fastact {
namespace {

struct Squares : BlockSums {
  const Streams& s;
  const Reducer& r;
  Reader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char grad[kPiece * sizeof(double)];
  alignas(64) double lanes[kLanes];

  explicit Squares(const SquareGrad& a) : s(a.streams), r(a.reducer), reader(a.streams) {}

  const double* sums(int64_t, int64_t, int64_t term, int64_t terms) override {
    std::fill(lanes, lanes + kLanes, -0.0);
    for (int64_t done = 0, n; done < terms; done += n) {
      n = std::min(kPiece, terms - done);
      reader.go(0, term + done, n);
      const char* from = reader.load(SquareGrad::kX, x);
      r.blocks->add_terms(from, n, done % kLanes, lanes);
      char* to = reader.direct(SquareGrad::kGrad);
      s.blocks->twice[s.wide == sizeof(double)](from, to ? to : grad, n);
      if (!to) reader.store(SquareGrad::kGrad, grad, false);
    }
    r.table->fold(lanes, kLanes, 1);
    return lanes;
  }
};

}  // namespace

void prepare(SquareGrad* square, const BlockTable* table, int dtype, const Operand& x,
             const Operand& grad, const Operand& value) {
  const Operand arrays[] = {x, grad};
  plan_streams(&square->streams, table->pipeline, dtype, 2, arrays, SquareGrad::kX, -1, true);
  Reducer* r = &square->reducer;
  r->table = table->reduce;
  r->blocks = &table->reduce->terms[kSquare][square->streams.wide_dtype];
  r->outputs = r->terms = Axes();
  r->terms.size = square->streams.size();
  r->partial = nullptr;
  r->accumulate = false;
  set_output(r, value.data, dtype,
             reinterpret_cast<uintptr_t>(value.data) % uintptr_t(item_size(dtype)) == 0);
  r->walk = Reducer::kRows;
  r->row = r->tile = r->units = 1;
  cut_terms(r);
}

void square_share(const SquareGrad* square, int64_t index, int64_t shares) {
  Squares squares(*square);
  reduce_units(square->reducer, squares, index, shares);
}

}  // namespace fastact
