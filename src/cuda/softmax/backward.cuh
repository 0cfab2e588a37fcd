// The backward kernels of softmax, log_softmax and logsumexp; softmax.cu explains them.
//
// softmax: dz_j / dz_i of y gives y_j (delta_ij - y_i), so dx = scale y (dy - sum(dy y)).
// log_softmax: dy_j / dz_i is delta_ij - exp(y_i), so dx = scale (dy - exp(y) sum(dy)).
// logsumexp: its derivative by z_i is exp(z_i - lse).
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The kinds whose gradient takes a sum over the row: what is added of dy and y, dx / scale, and
// which y took no part: there dx is 0, at any dy.
template <class T>
struct SoftmaxGradient {
  using C = Compute<T>;
  static constexpr C kNoPart = 0;
  static FASTACT_DEVICE C part(C dy, C y) { return dy * y; }
  static FASTACT_DEVICE C slope(C dy, C y, C sum) { return y * (dy - sum); }
  // What is added is a NaN where dy is infinite and y 0: else dx is 0 there by itself.
  static FASTACT_DEVICE bool is_plain(C sum) { return sum - sum == 0; }
};
template <class T>
struct LogSoftmaxGradient {
  using C = Compute<T>;
  static constexpr C kNoPart = C(-__builtin_inf());
  static FASTACT_DEVICE C part(C dy, C) { return dy; }
  static FASTACT_DEVICE C slope(C dy, C y, C sum) {
    return madd(-(TermsAt<T>::of(C(0), Tail<C>::kScale)(y) * Tail<C>::kDown), sum, dy);
  }
  static FASTACT_DEVICE bool is_plain(C) { return false; }
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

// The sums of a thread's part. Where it is not plain, dy of what took no part is 0 from then on.
template <class T, class Kind, int vecs, int n>
FASTACT_DEVICE void add_gradients(Words (&dy)[vecs], const Words (&y)[vecs], double (&sum)[n]) {
  constexpr int kSize = Vec<T>::kSize;
#pragma unroll 1
  for (bool again = false;; again = true) {
    TreeSum<T, vecs, n> tree;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> part = widen_words<T>(dy[i]);
      const Wide<T> at = widen_words<T>(y[i]);
#pragma unroll
      for (int j = 0; j < kSize; ++j) part.lane[j] = Kind::part(part.lane[j], at.lane[j]);
      tree.add(i, part);
    }
    bool is_plain = true;
#pragma unroll
    for (int s = 0; s < n; ++s) {
      sum[s] = tree.total(s);
      is_plain &= sum[s] - sum[s] == 0;
    }
    if (is_plain || again) return;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> given = widen_words<T>(dy[i]);
      const Wide<T> at = widen_words<T>(y[i]);
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (at.lane[j] == Kind::kNoPart) given.lane[j] = 0;
      dy[i] = bit_cast<Words>(narrow_vec<T>(given));
    }
  }
}

template <class T, class Kind, int vecs, class Rows, int n>
FASTACT_DEVICE void put_gradients(const Rows& rows, const RowPart& part, const Words (&dy)[vecs],
                                  const Words (&y)[vecs], const double (&sum)[n],
                                  bool is_plain = true) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  C rounded[n];
#pragma unroll
  for (int s = 0; s < n; ++s) {
    rounded[s] = C(sum[s]);
    is_plain &= Kind::is_plain(rounded[s]);
  }
  const C scale = C(rows.scale);
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    if (i >= part.count) break;
    Wide<T> dx = widen_words<T>(dy[i]);
    const Wide<T> at = widen_words<T>(y[i]);
#pragma unroll
    for (int j = 0; j < kSize; ++j)
      dx.lane[j] = scale * Kind::slope(dx.lane[j], at.lane[j], rounded[row_in_vec<Rows>(j)]);
    if (!is_plain) {
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (at.lane[j] == Kind::kNoPart) dx.lane[j] = 0;
    }
    put_gradient<T>(rows, part, i, dx);
  }
}

// Rows that a block holds, as a whole; of others the sums of chunks, rows x count, and then dx:
// each block adds up the sums, which it has from the second-level cache.
enum GradientPass { kWholeRows, kChunkSums, kChunkGradients };

template <class T, int vecs, class Kind, GradientPass pass, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (kGradientBlocks<T, vecs, Rows>))
void softmax_backward_rows(FASTACT_GRID_CONSTANT const Rows rows, double* of_chunks) {
  constexpr int n = kRowsOfVec<T, Rows>;
  constexpr bool kIsLast = pass == kChunkGradients;
  int fold_index = 0;
  const RowPart part = row_part<T, vecs, pass != kWholeRows, kIsLast>(rows);
  Words dy[vecs], y[vecs];
  take<T>(rows, kDy, part, T{}, dy);
  take<T>(rows, kX, part, T{}, y);
  double sum[n] = {};
  const auto of_row = [&](int s) { return of_chunks + (part.row + s) * rows.chunks.count; };
  if constexpr (kIsLast) {
#pragma unroll
    for (int s = 0; s < n; ++s)
      for (int64_t c = part.lane; s < part.columns && c < rows.chunks.count; c += part.lanes)
        sum[s] += load(of_row(s) + c);
  } else {
    add_gradients<T, Kind>(dy, y, sum);
  }
  forget_row(dy), forget_row(y);
  fold_sums(rows, sum, fold_index);
  if constexpr (pass == kChunkSums) {
#pragma unroll
    for (int s = 0; s < n; ++s)
      if (part.lane == 0 && s < part.columns) store(of_row(s) + part.chunk, sum[s]);
  } else {
    put_gradients<T, Kind>(rows, part, dy, y, sum, !kIsLast);
  }
}

// Queues the kernels of a kind. workspace: of sums.
template <class T, class Kind>
void run_backward(const SoftmaxPlan& plan, void* workspace, cudaStream_t stream) {
  double* const sums = static_cast<double*>(workspace);
  constexpr int most = kMostVecs<T>;
  for_layout<T>(plan, [&](auto rows, const Shape& shape, auto vecs) {
    using Rows = decltype(rows);
    if (rows.chunks.count == 1)
      return launch(softmax_backward_rows<T, decltype(vecs)::value, Kind, kWholeRows, Rows>, shape,
                    stream, rows, sums);
    launch(softmax_backward_rows<T, most, Kind, kChunkSums, Rows>, shape, stream, rows, sums);
    launch(softmax_backward_rows<T, most, Kind, kChunkGradients, Rows>, shape, stream, rows, sums);
  });
}

// exp(z - lse) of a row whose lse was saved: it takes the place of the largest z.
template <class T>
struct Probability {
  using C = Compute<T>;
  C by, inverse;
  TermsAt<T> at;

  FASTACT_DEVICE static Probability of(C lse) {
    const Move<C> move = Move<C>::of(lse, C(1));
    const TermsAt<T> at = TermsAt<T>::of(move.by != 0 ? C(0) : lse, Tail<C>::kScale);
    return {move.by, divide(C(1), at(at.m)), at};
  }
  FASTACT_DEVICE C operator()(C z) const {
    if (by != 0) z -= by;
    return at(z) * inverse;
  }
};

// The vectors x of a part: of quick rows all are read before the first is used, and before what is
// read of the row, of others one by one.
template <class T, int vecs, class Rows>
struct TakenVecs {
  Words x[Rows::kQuick ? vecs : 1];

  FASTACT_DEVICE TakenVecs(const Rows& rows, const RowPart& part) {
    if constexpr (Rows::kQuick) take<T>(rows, kX, part, T{}, x);
  }
  template <class Each>
  FASTACT_DEVICE void for_each(const Rows& rows, const RowPart& part, Each each) const {
    if constexpr (Rows::kQuick) {
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        if (i < part.count) each(i, bit_cast<Vec<T>>(x[i]));
    } else {
#pragma unroll 1
      for (int i = 0; i < part.count; ++i) each(i, read_vec<T>(rows, kX, part, i));
    }
  }
};

// dx = scale dy exp(z - lse), element by element; dy and lse are a row's.
template <class T, int vecs, class Rows>
FASTACT_KERNEL_OF(kThreadsOf<Rows>, (kBlocksOf<T, Rows>))
void logsumexp_gradients(FASTACT_GRID_CONSTANT const Rows rows) {
  using C = Compute<T>;
  constexpr int n = kRowsOfVec<T, Rows>;
  const RowPart part = row_part<T, vecs, true>(rows);
  if (part.count == 0) return;
  const TakenVecs<T, vecs, Rows> x(rows, part);
  Probability<T> p[n];
  C factor[n];
#pragma unroll
  for (int s = 0; s < n; ++s) {
    const int64_t row = part.row + (s < part.columns ? s : 0);
    C lse = load(reinterpret_cast<const C*>(number_address(rows, kLse, row)));
    factor[s] =
        C(rows.scale) * load_parameter<T>(number_address(rows, kNumber, row), rows.number_dtype);
    if (rows.data[kMask] && lse == -infinity<C>()) factor[s] = lse = 0;  // nothing takes part
    p[s] = Probability<T>::of(lse);
  }
  x.for_each(rows, part, [&](int i, const Vec<T>& vec) {
    Wide<T> dx = scores_of<T>(rows, part, i, vec);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const int s = row_in_vec<Rows>(j);
      dx.lane[j] = factor[s] * p[s](dx.lane[j]);
    }
    leave_out<T>(rows, part, i, C(0), &dx);
    put_gradient<T>(rows, part, i, dx);
  });
}

}  // namespace
FASTACT_END_NAMESPACE
