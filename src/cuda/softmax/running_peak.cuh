// The statistic of a softmax while its elements go by, round by round.
//
// A thread's terms stand beside a reference of its own for each row, a largest z that it has met. A
// larger one takes its place only beyond kTermRoom powers of two, so that hardly a round has to
// look at more than its largest z. References differ by powers of two, by which sums are scaled
// exactly, or, where z moves, by an exponential.
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Powers of two by which a term may be above its reference. For 16 bits it is a part of the
// exponent, as kTermScale.
template <class T>
constexpr double kTermRoom = sizeof(T) == 2 ? 4 : 16;

// By what terms beside the reference of `from` are multiplied to be terms beside the reference of
// `to`, which is no less.
template <class T>
FASTACT_DEVICE_CALL double lowered(Compute<T> from, Compute<T> to, Compute<T> up) {
  using C = Compute<T>;
  if (from == -infinity<C>()) return 1;  // of terms that are all 0
  const Move<C> before = Move<C>::of(from, up), after = Move<C>::of(to, up);
  const double powers =
      double(reference_exponent(before(from))) - double(reference_exponent(after(to)));
  if (before.by == 0 && after.by == 0) return power_of_two(int64_t(powers));
  using D = ExpTraits<double>;
  const double apart = (double(before.by) - double(after.by)) * double(up);
  return exp_of_sum(powers * D::kLn2High, apart, powers * D::kLn2Low);
}

// The peaks of n columns, or of a row, as far as a thread has met them. sorts: as PeakWays; the
// sums lack the tops.
template <class T, bool sorts, int n>
struct RunningPeak {
  using C = Compute<T>;
  const C scale, up, room;
  C top[n], from[n];  // from: of the reference
  TermsAt<T> at[n];
  double sum[n];
  bool moves;

  FASTACT_DEVICE explicit RunningPeak(const SoftmaxRows& rows)
      : scale(C(rows.scale_down)),
        up(C(rows.up)),
        room(C(kTermRoom<T> * 0.69314718055994530942 / rows.up)),
        moves(up != 1) {
#pragma unroll
    for (int s = 0; s < n; ++s)
      top[s] = from[s] = -infinity<C>(), at[s] = TermsAt<T>::of(C(0)), sum[s] = 0;
  }
  FASTACT_DEVICE Move<C> move(int s) const { return Move<C>::of(reference_top(from[s]), up); }
  // Makes the reference of each column good for a z.
  FASTACT_DEVICE void refer(const C (&most)[n]) {
    bool is_good = true;
#pragma unroll
    for (int s = 0; s < n; ++s) is_good &= most[s] <= from[s] + room;
    if (is_good) return;
#pragma unroll
    for (int s = 0; s < n; ++s) {
      if (most[s] <= from[s] + room) continue;
      sum[s] *= lowered<T>(from[s], most[s], up);
      from[s] = most[s];
      at[s] = TermsAt<T>::of(move(s)(from[s]));
      moves |= move(s).by != 0;
    }
  }
  // Makes the sum one of terms beside m, the largest z of all threads' or 0 where there is none.
  FASTACT_DEVICE void refer_to(int s, C m) { sum[s] *= lowered<T>(from[s], m, up); }
  // The term of the top.
  FASTACT_DEVICE double top_beside(int s, C m) const {
    return double(terms_beside<T>(m, up)(Move<C>::of(m, up)(top[s])));
  }
  // Adds the first `count` vectors.
  template <int vecs>
  FASTACT_DEVICE void add(int count, Words (&x)[vecs]) {
    const bool is_plain = count == vecs && scale == 1;
    C most[n];
#pragma unroll
    for (int s = 0; s < n; ++s) most[s] = -infinity<C>();
    is_plain ? find_most<true>(count, x, most) : find_most<false>(count, x, most);
    refer(most);
    forget_row(x);
    is_plain && !moves ? add_terms<true>(count, x) : add_terms<false>(count, x);
    if constexpr (!sorts) {
#pragma unroll
      for (int s = 0; s < n; ++s) top[s] = larger(top[s], most[s]);
    }
  }

 private:
  // plain: all vectors are there, with a scale of 1, and z does not move.
  template <bool plain, int vecs>
  FASTACT_DEVICE void find_most(int count, const Words (&x)[vecs], C (&most)[n]) const {
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (!plain && i >= count) continue;
      const Wide<T> z = widen_words<T>(x[i]);
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j)
        most[j % n] = larger(most[j % n], plain ? z.lane[j] : scale * z.lane[j]);
    }
  }
  template <bool plain, int vecs>
  FASTACT_DEVICE void add_terms(int count, const Words (&x)[vecs]) {
    TreeSum<T, vecs, n> tree;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> term{};
      if (plain || i < count) {
        term = widen_words<T>(x[i]);
#pragma unroll
        for (int j = 0; j < Vec<T>::kSize; ++j) {
          const int s = j % n;
          C& z = term.lane[j];
          if (!plain) z *= scale;
          if (sorts) {
            const C value = z;
            z = smaller_of(top[s], value), top[s] = larger(top[s], value);
          }
          if (!plain) z = move(s)(z);
          z = at[s](z);
        }
      }
      tree.add(i, term);
    }
#pragma unroll
    for (int s = 0; s < n; ++s) sum[s] += tree.total(s);
  }
};

}  // namespace
FASTACT_END_NAMESPACE
