// The norms over rows, and the statistic of a row that is held as a whole.
//
// A norm of rows is a functor: which statistic its rows have, the factor that follows from it, and
// what its gradient subtracts. The passes of both devices (cpu/norms/rows, cuda/norms/rows) ask it
// by its number: a norm more is a struct and its line in FASTACT_ROW_NORMS.
//
// Moments of a held row, in the compute type C (float for 16 bits), twice over the registers:
//
//   near = sum(x) / n        d = x - near        low = sum(d) / n        mean = near + low
//   m2 = sum(d^2) - n low^2
//
// near is rough, and d is exact where the subtraction cancels, so low makes good what near misses:
// eight d are added up in C as a tree, and these sums in double. With u the unit roundoff of C the
// mean is off by 3.5 u mean|d|, and m2 by 6 u of itself. Where squares leave the range of C, the
// row is multiplied by a power of two near the inverse of its largest |x|: exact, and rare, so that
// the lanes of a row vote on it.
#pragma once

#include "common/core/macros.h"
#include "common/norms/norms.h"
#include "common/reductions/moments.h"
#include "common/reductions/range.h"

FASTACT_BEGIN_NAMESPACE

// layer_norm, group_norm and instance_norm.
struct CentredNorm {
  static constexpr bool kIsCentred = true;  // moments are the statistic, else the sum of squares

  // The op's eps as all below have it: what squares over a count are compared with.
  static FASTACT_HD double eps_of(double eps) { return eps; }
  // The square of what divides x - mean, in double, once a row. squares: of the distances from the
  // mean, or from 0. per_count: 1 / count, which every thread of a held row has.
  static FASTACT_HD double variance(double squares, double count, double eps) {
    return squares / count + eps;
  }
  static FASTACT_HD double variance_by(double squares, double per_count, double eps) {
    return madd(squares, per_count, eps);
  }
  // Sets what dx subtracts of g: a number, and another times xhat, in the place of the means over
  // the row of g and of g xhat. rstd: as it was saved.
  template <class T>
  static FASTACT_HD void set_subtracted(T& /*mean_g*/, T& /*mean_g_xhat*/, double /*count*/,
                                        T /*rstd*/, double /*eps*/, double /*rounding*/) {}
};

// rms_norm: no mean was subtracted, so mean(g) is no part of the gradient.
struct RmsNorm : CentredNorm {
  static constexpr bool kIsCentred = false;
  template <class T>
  static FASTACT_HD void set_subtracted(T& mean_g, T&, double, T, double, double) {
    mean_g = 0;
  }
};

// l2_normalize: x / max(|x|, eps), |x| the root of the sum of the squares. Of a change of x_j |x|
// changes by xhat_j, so that dx = rstd (g - xhat sum(g xhat)), and rstd g where eps is rstd's.
struct L2Norm : RmsNorm {
  static FASTACT_HD double eps_of(double eps) { return eps * eps; }
  static FASTACT_HD double variance(double squares, double /*count*/, double eps) {
    return squares < eps ? eps : squares;  // a NaN stays
  }
  static FASTACT_HD double variance_by(double squares, double per_count, double eps) {
    return variance(squares, per_count, eps);
  }
  template <class T>
  static FASTACT_HD void set_subtracted(T& mean_g, T& mean_g_xhat, double count, T rstd, double eps,
                                        double rounding) {
    const bool is_constant = double(rstd) * double(rstd) * eps >= 1 - rounding;
    mean_g = 0;
    mean_g_xhat = is_constant ? T(0) : mean_g_xhat * T(count);
  }
};

// X(Struct): its name is the `kind` of the ops that it serves.
#define FASTACT_ROW_NORMS(X) X(CentredNorm) X(RmsNorm) X(L2Norm)

enum RowNorm : int {
#define FASTACT_NUMBER(Norm) k##Norm,
  FASTACT_ROW_NORMS(FASTACT_NUMBER)
#undef FASTACT_NUMBER
      kRowNorms
};
constexpr const char* kRowNormNames[] = {
#define FASTACT_NAME(Norm) #Norm,
    FASTACT_ROW_NORMS(FASTACT_NAME)
#undef FASTACT_NAME
};

// visit(functor) of a norm.
template <class Visit>
FASTACT_HD auto with_row_norm(int norm, Visit visit) {
#define FASTACT_VISIT(Norm) \
  if (norm == k##Norm) return visit(Norm{});
  FASTACT_ROW_NORMS(FASTACT_VISIT)
#undef FASTACT_VISIT
  return visit(CentredNorm{});
}
FASTACT_HD double eps_of(int norm, double eps) {
  return with_row_norm(norm, [&](auto of) FASTACT_INLINED { return of.eps_of(eps); });
}
FASTACT_HD bool is_centred(int norm) {
  return with_row_norm(norm, [](auto of) FASTACT_INLINED { return decltype(of)::kIsCentred; });
}

// The square of an rstd that was saved in C may lack so much to 1.
template <class C>
constexpr double kRstdRounding = sizeof(C) == sizeof(double) ? 0x1p-50 : 0x1p-21;

// rounding: of the type in which rstd was saved, which may be narrower than T.
template <class T>
FASTACT_HD void set_subtracted(int norm, T& mean_g, T& mean_g_xhat, double count, T rstd,
                               double eps, double rounding) {
  with_row_norm(norm, [&](auto of) FASTACT_INLINED {
    of.set_subtracted(mean_g, mean_g_xhat, count, rstd, eps, rounding);
  });
}

// 1 / sqrt of the variance.
template <class Norm>
FASTACT_HD double rstd_of(double squares, double count, double eps) {
  return 1.0 / __builtin_sqrt(Norm::variance(squares, count, eps));
}

// The rstd of a norm by its number, of squares of distances over `up`.
FASTACT_HD double rstd_of_scaled(int norm, double squares, double count, double eps, double up) {
  const double scale = inverse_power(up);
  return scale / __builtin_sqrt(with_row_norm(norm, [&](auto of) FASTACT_INLINED {
           return of.variance(squares, count, eps * scale * scale);
         }));
}

// The moments of scale x: near + low and m2, which are 0 and the sum of the squares where no mean
// is subtracted.
template <class C>
struct ScaledMoments {
  C scale, near;
  double low, m2;

  FASTACT_HD double inverse_scale() const { return inverse_power(double(scale)); }
  FASTACT_HD double mean() const {
    // Next to an infinite mean there is nothing to correct.
    const double sum = is_finite(double(near)) ? double(near) + low : double(near);
    return sum * inverse_scale();
  }
};

// xhat = (x - near) rstd + shift, where shift = -low rstd.
template <class C>
struct Normaliser {
  C near, rstd, shift;
  FASTACT_HD C operator()(C x) const { return madd(x - near, rstd, shift); }

  // Takes the moments of scale x; rstd OUT: of x. inverse_root(v): 1 / sqrt(v) in double.
  template <class InverseRoot>
  static FASTACT_HD Normaliser of(const ScaledMoments<C>& moments, int norm, double per_count,
                                  double eps, InverseRoot inverse_root, double* rstd) {
    const double scale = double(moments.scale), of_scaled = eps * scale * scale;
    const double found = inverse_root(with_row_norm(norm, [&](auto of) FASTACT_INLINED {
      return of.variance_by(moments.m2, per_count, of_scaled);
    }));
    // For scaled rows that hardly vary it may be beyond float, where xhat is not.
    constexpr double kMost = sizeof(C) == 8 ? 0x1p1023 : 0x1p127;
    const double applied = found > kMost && is_finite(found) ? kMost : found;
    *rstd = found * scale;
    return {moments.near, C(applied), C(-moments.low * applied)};
  }
  // Takes the mean and rstd of x itself.
  static FASTACT_HD Normaliser of(double mean, double rstd) {
    const Centre<C> centre = centre_of<C>(mean);
    return {centre.high, C(rstd), -centre.low * C(rstd)};
  }
};

FASTACT_END_NAMESPACE
