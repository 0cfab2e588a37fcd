// The backward kernels of softmax and log_softmax, and the parts that lse_gradients.cuh shares with
// them. common/softmax/kinds.h derives the gradients, softmax.cu explains the kernels.
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// exp(y) of a y up to 0, as s + s t. Of 16 bits it is rough, but near 0, where s is 1.
template <class T>
struct ExpOfLog {
  using C = Compute<T>;
  FASTACT_DEVICE Exp<C> operator()(C y) const {
    const TermsAt<T> at = TermsAt<T>::of(C(0), Tail<C>::kScale);
    if constexpr (kApproximate<T>) {
      const C above = madd(y * madd(y, C(0.25), C(1)), C(1) / 3, C(1));
      if (y > C(-0.125)) return {C(1), madd(C(0.5) * y * y, above, y)};
      return {at(y) * Tail<C>::kDown, C(0)};
    } else {
      const Exp<C> up = at.parts(y);
      return {up.s * Tail<C>::kDown, up.t};
    }
  }
};

// The kinds whose gradient takes a sum over the row: part() is what an element adds to the sum, and
// slope() is dx / scale. An element whose y is no_part() has a dx of 0, whatever its dy; softmax
// leaves it out of the sum too. The kind is a constant in the kernels of quick rows.
template <class T, int fixed>
struct GradientOf {
  using C = Compute<T>;
  const int kind;

  FASTACT_DEVICE explicit GradientOf(const SoftmaxRows& rows)
      : kind(fixed == kAnyKind ? rows.kind : fixed) {}
  template <class Visit>
  FASTACT_DEVICE auto with(Visit visit) const {
    return with_softmax_map(kind, visit);
  }
  FASTACT_DEVICE C no_part() const {
    return with([](auto of) { return C(of.kNothing); });
  }
  FASTACT_DEVICE C part(C dy, C y) const {
    return with([&](auto of) { return of.kSumsProducts ? dy * y : dy; });
  }
  FASTACT_DEVICE C slope(C dy, C y, const GradientSum<C>& sum) const {
    return with([&](auto of) { return of.slope(dy, y, sum, ExpOfLog<T>{}); });
  }
  FASTACT_DEVICE bool sums_products() const {
    return with([](auto of) { return of.kSumsProducts; });
  }
  // Whether dx is 0 by itself where y is 0: an infinite dy times 0 is a NaN, and so is the sum.
  FASTACT_DEVICE bool is_plain(C sum) const { return sums_products() && sum - sum == 0; }
};

// Resident blocks of kRowThreads on a multiprocessor, at least: eight vectors of two arrays take
// more than 64 registers.
template <class T, int vecs, class Rows>
constexpr int kGradientBlocks =
    Rows::kColumns || (Rows::kQuick && sizeof(T) == 4 && vecs <= 4) ? 2 : 1;

template <class T, class Rows>
FASTACT_DEVICE void put_gradient(const Rows& rows, const RowPart& part, int i, Wide<T> dx) {
  if (!Rows::kQuick && rows.accumulate) accumulate_onto(read_vec<T>(rows, kY, part, i), dx);
  write_vec(rows, kY, part, i, narrow_vec<T>(dx));
}

// The sums of a thread's part. Where one of softmax is not finite, dy becomes 0 wherever y is 0,
// and the part is added up again: then it returns false.
template <class T, class Kind, int vecs, int n>
FASTACT_DEVICE bool add_gradients(const Kind& kind, Words (&dy)[vecs], const Words (&y)[vecs],
                                  double (&sum)[n]) {
  constexpr int kSize = Vec<T>::kSize;
#pragma unroll 1
  for (bool again = false;; again = true) {
    TreeSum<T, vecs, n> tree;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> part = widen_words<T>(dy[i]);
      const Wide<T> at = widen_words<T>(y[i]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) part.lane[j] = kind.part(part.lane[j], at.lane[j]);
      tree.add(i, part);
    }
    bool is_plain = true;
#pragma unroll
    for (int s = 0; s < n; ++s) {
      sum[s] = tree.total(s);
      is_plain &= tree.rounded(s) - tree.rounded(s) == 0;
    }
    if (is_plain || again || !kind.sums_products()) return !again;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> given = widen_words<T>(dy[i]);
      const Wide<T> at = widen_words<T>(y[i]);
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (at.lane[j] == kind.no_part()) given.lane[j] = 0;
      dy[i] = bit_cast<Words>(narrow_vec<T>(given));
    }
  }
}

// Makes dx of the first `count` vectors from the rows' sums and gives them to put(i, dx).
template <class T, class Rows, class Kind, int vecs, int n, class Put>
FASTACT_DEVICE void make_gradients(const Kind& kind, Compute<T> scale, int count,
                                   const Words (&dy)[vecs], const Words (&y)[vecs],
                                   const GradientSum<Compute<T>> (&sum)[n], bool is_plain,
                                   Put put) {
  constexpr int kSize = Vec<T>::kSize;
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    if (i >= count) break;
    Wide<T> dx = widen_words<T>(dy[i]);
    const Wide<T> at = widen_words<T>(y[i]);
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      dx.lane[j] = scale * kind.slope(dx.lane[j], at.lane[j], sum[row_in_vec<Rows>(j)]);
    if (!is_plain) {
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (at.lane[j] == kind.no_part()) dx.lane[j] = 0;
    }
    put(i, dx);
  }
}

// sum: of rows; returns whether all of them are plain.
template <class Kind, class C, int n>
FASTACT_DEVICE bool round_sums(const Kind& kind, const double (&sum)[n],
                               GradientSum<C> (&rounded)[n]) {
  bool is_plain = true;
#pragma unroll
  for (int s = 0; s < n; ++s) {
    rounded[s] = GradientSum<C>::of(sum[s]);
    is_plain &= kind.is_plain(rounded[s].first);
  }
  return is_plain;
}

// The gradients of the rows' sinks: a sink's probability p changes each y by -p y.
template <class T, class Rows, int n>
FASTACT_DEVICE void put_sinks(const Rows& rows, const RowPart& part, const double (&sum)[n]) {
#pragma unroll
  for (int s = 0; s < n; ++s) {
    if (s >= part.columns) break;
    const int64_t row = part.row + s;
    const auto* share = reinterpret_cast<const Compute<T>*>(number_address(rows, kShare, row));
    const double p = double(load(share));
    put_number<T>(rows, kNumber, row, kF64, p == 0 ? 0.0 : -p * sum[s]);
  }
}

// A row that a block holds takes one kernel. Others take two: the sums of the chunks, rows x count,
// and then dx, for which each block adds up its row's sums, from the second-level cache.
template <class T, int vecs, RowPhase of, int fixed, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (kGradientBlocks<T, vecs, Rows>))
void softmax_backward_rows(FASTACT_GRID_CONSTANT const Rows rows, double* of_chunks,
                           const RowPhase given) {
  constexpr int n = kRowsOfVec<T, Rows>;
  const RowPhase phase = of == kAnyPhase ? given : of;
  const GradientOf<T, fixed> kind(rows);
  int fold_index = 0;
  const RowPart part = row_part<T, vecs, of != kWholeRows>(rows, phase == kApplyChunks);
  Words dy[vecs], y[vecs];
  take_vecs<T>(rows, kDy, part, T{}, dy);
  take_vecs<T>(rows, kX, part, T{}, y);
  double sum[n] = {};
  const auto of_row = [&](int s) { return of_chunks + (part.row + s) * rows.chunks.count; };
  if (phase == kApplyChunks) {
#pragma unroll
    for (int s = 0; s < n; ++s)
      for (int64_t c = part.lane; s < part.columns && c < rows.chunks.count; c += part.lanes)
        sum[s] += load(of_row(s) + c);
  } else {
    add_gradients<T>(kind, dy, y, sum);
  }
  forget_row(dy), forget_row(y);
  fold_sums(rows, sum, fold_index);
  if (!Rows::kQuick && phase != kFindChunks && rows.data[kNumber] && part.lane == 0 &&
      (phase == kWholeRows || part.chunk == 0))
    put_sinks<T>(rows, part, sum);
  if (phase != kFindChunks) {
    GradientSum<Compute<T>> rounded[n];
    const bool is_plain = round_sums(kind, sum, rounded) && phase == kWholeRows;
    make_gradients<T, Rows>(kind, Compute<T>(rows.scale), part.count, dy, y, rounded, is_plain,
                            [&](int i, Wide<T> dx) {
                              if (!Rows::kQuick && rows.has_cap) {
                                const int64_t first = element_at<T, Rows>(part, i, 0);
                                const int valid = lanes_there<T>(rows, part, i);
                                const Wide<T> x = mask_of<T>(rows, part.row, first, valid);
                                dx = times_slope<T>(cap_of<Compute<T>>(rows), dx, x);
                              }
                              put_gradient<T>(rows, part, i, dx);
                            });
  } else {
#pragma unroll
    for (int s = 0; s < n; ++s)
      if (part.lane == 0 && s < part.columns) store(of_row(s) + part.chunk, sum[s]);
  }
}

// exp(z - lse - rest) of a row. The saved lse takes the place of the largest z; of 16 bits it is a
// part of the exponent, and the caller multiplies by what its rounding there has left.
template <class T>
struct Probability {
  using C = Compute<T>;
  C by, inverse;
  TermsAt<T> at;

  FASTACT_DEVICE static Probability of(C lse, C rest) {
    const Move<C> move = Move<C>::of(lse, C(1));
    const C m = move.by != 0 ? C(0) : lse;
    if constexpr (kApproximate<T>) {
      const double power = (double(m) + double(rest)) * -double(ExpTraits<C>::kLog2E);
      const C left = C(power - double(C(power)));
      return {move.by, madd(left, ExpTraits<C>::kLn2, C(1)), {m, C(0), C(power)}};
    } else {
      const TermsAt<T> at = TermsAt<T>::of(m, Tail<C>::kScale);
      const C down = exp_scaled<0>(smaller_of(larger(-rest, C(-80)), C(80))).value();
      return {move.by, divide(down, at(at.m)), at};
    }
  }
  FASTACT_DEVICE C operator()(C z) const {  // of z - by
    return kApproximate<T> ? at(z) : at(z) * inverse;
  }
};

// The vectors x of a part. For quick rows all of them are read first, before the numbers of the
// row; of columns some at a time, of others each where it is used.
template <class T, int vecs, class Rows>
struct TakenVecs {
  Words x[Rows::kQuick ? vecs : 1];

  FASTACT_DEVICE TakenVecs(const Rows& rows, const RowPart& part) {
    if constexpr (Rows::kQuick) take_vecs<T>(rows, kX, part, T{}, x);
  }
  template <class Each>
  FASTACT_DEVICE void for_each(const Rows& rows, const RowPart& part, Each each) const {
    if constexpr (Rows::kQuick) {
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        if (i < part.count) each(part, i, bit_cast<Vec<T>>(x[i]));
    } else if constexpr (Rows::kColumns && vecs > 0) {
      constexpr int kAhead = 4;
      RowPart some = part;
#pragma unroll 1
      for (int left = part.count; left > 0; left -= kAhead) {
        Words of[kAhead];
        some.count = int(smaller(left, kAhead));
        take_vecs<T>(rows, kX, some, T{}, of);
#pragma unroll
        for (int i = 0; i < kAhead; ++i)
          if (i < some.count) each(some, i, bit_cast<Vec<T>>(of[i]));
        some.first += kAhead * part.lanes;
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < part.count; ++i) each(part, i, read_vec<T>(rows, kX, part, i));
    }
  }
};

}  // namespace
FASTACT_END_NAMESPACE
