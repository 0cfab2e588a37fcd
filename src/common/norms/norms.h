// The formulas of the norms: what happens to one element, and to the statistics of one row.
//
// A normalization row, row for short, is a set of elements that share a mean and a standard
// deviation: a row of layer_norm and rms_norm, the elements of one (n, g) of group_norm or of one
// (n, c) of instance_norm. In exact arithmetic, over its N elements
//
//   mean = sum(x) / N     rstd = (sum((x - mean)^2) / N + eps)^(-1/2)     xhat = (x - mean) rstd
//   z = xhat w + b        y = f(z)
//
// (rms_norm: the same with 0 for the mean.) J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer
// Normalization", https://arxiv.org/abs/1607.06450; B. Zhang and R. Sennrich, "Root Mean Square
// Layer Normalization", https://arxiv.org/abs/1910.07467; Y. Wu and K. He, "Group Normalization",
// https://arxiv.org/abs/1803.08494.
//
// The gradient. With p = dy f'(z), which is dL/dz, and g = p w, which is dL/dxhat:
//
//   dL/dw = sum p xhat      dL/db = sum p      over every element that the parameter meets.
//
// A change of x_j moves the mean by 1/N, and rstd by -rstd^2 xhat_j / N, as d(rstd) =
// -1/2 rstd^3 d(var) and d(var)/dx_j = 2 (x_j - mean) / N. Therefore
// dxhat_i/dx_j = rstd (delta_ij - 1/N - xhat_i xhat_j / N), and
//
//   dL/dx_j = rstd (g_j - mean(g) - xhat_j mean(g xhat))        (rms_norm: without mean(g)).
//
// Error of z. The mean comes in double and is used as two numbers of the compute type T, high +
// low: x - high is exact where it cancels, so that with u = 2^-24 (2^-53 for double) xhat has a
// relative error of at most 2 u (the differences) + u (rstd) + u (the product), and
//
//   |z - exact| <= 5 u |xhat w| + u |z|                  (v2: 6 u, as its madd rounds twice)
//                  + |w| rstd |error of mean|
//
// where the mean's error is 2^-48 |mean| for float, and for double the moments' error: u |mean|,
// and some u more of the mean distance from it (cpu/reductions/kernels.h); plus rounding to the
// storage type. Backward gets a mean already rounded to T: it makes xhat of that mean, which
// differs from forward's xhat by up to u |mean| rstd.
//
// A gate, of norms without a mean. With A = f(gate), where f stands in the gate and not behind z,
//
//   y = z A             p = dy A    dL/dgate = dy z f'(gate)
//   y = z of u = x A    p = dy      dL/dx = dL/du A      dL/dgate = dL/du x f'(gate)
//
// and all else as above, of u in the place of x. u is of the compute type.
//
// Casts. The published code of Llama (LlamaRMSNorm of Hugging Face's transformers) rounds where a
// tensor of 16 bits is written, and so do the root-mean-square norms where they are told to. With
// r() the rounding to the data's dtype, which changes nothing of float and double,
//
//   h = r(xhat)   z = r(h w)   y = r(f(z))
//   p = r(dy f'(z))   g = r(p w)   dL/dw = sum r(p h)      and dx from g as above.
#pragma once

#include "common/core/macros.h"
#include "common/reductions/range.h"

FASTACT_BEGIN_NAMESPACE

// A mean as two numbers of the compute type.
template <class T>
struct Centre {
  T high, low;
};
template <class T>
FASTACT_HD Centre<T> centre_of(double mean) {
  const T high = T(mean);
  return {high, T(mean - double(high))};
}

template <class T>
FASTACT_HD T normalised(T x, Centre<T> mean, T rstd) {
  return ((x - mean.high) - mean.low) * rstd;
}

template <class T>
FASTACT_HD T affine(T xhat, T weight, T bias) {
  return madd(xhat, weight, bias);
}

// Backward's xhat, by a mean that was rounded. X: of C, a number or a vector of them.
template <class X, class C>
FASTACT_HD X xhat_of(X x, C mean, C rstd) {
  return (x - mean) * rstd;
}

// The gradient of the elements of a row, from the means over it of g and of g xhat; or what is
// subtracted in their place (rows.h).
template <class C>
struct RowGradient {
  C mean, rstd, mean_g, mean_g_xhat;

  template <class X>
  FASTACT_HD X xhat(X x) const {
    return xhat_of(x, mean, rstd);
  }
  FASTACT_HD C dx(C g, C xhat) const { return of_centred(g - mean_g, xhat); }
  // Takes g = p w, which is not rounded by itself: an instruction less an element, where p w goes
  // nowhere else.
  FASTACT_HD C dx_of_product(C p, C w, C xhat) const {
    return of_centred(madd(p, w, -mean_g), xhat);
  }

 private:
  FASTACT_HD C of_centred(C g, C xhat) const { return rstd * madd(-xhat, mean_g_xhat, g); }
};

// A sum of dw and one term more. By value: what a reference names stays in memory in a loop over
// vectors.
template <class C>
FASTACT_HD C weight_sum(C sum, C p, C xhat) {
  return madd(p, xhat, sum);
}

// Whether such squares left the range of double, and it matters beside eps; and rstd where they
// did, of squares of distances over `up`.
FASTACT_HD bool leaves_range(double squares, double count, double eps) {
  const bool is_small = squares < count * Range<double>::kLeast && eps < Range<double>::kLeastEps;
  return is_small || !(squares <= kMostDouble);
}
FASTACT_HD double rstd_of_scaled(double squares, double count, double eps, double up) {
  const double scale = inverse_power(up);
  return scale / __builtin_sqrt(squares / count + eps * scale * scale);
}

// Takes a variance or the negative of its root (common/reductions/range.h).
FASTACT_HD double rstd_of_variance(double variance_or_root, double eps) {
  const double v = variance_or_root;
  if (!(v < 0) || (-v < 1 && eps >= Range<double>::kLeastEps))
    return 1.0 / __builtin_sqrt(square_of(v) + eps);
  const double scale = scale_of(-v);
  return rstd_of_scaled(v * scale * (v * scale), 1, eps, inverse_power(scale));
}

FASTACT_END_NAMESPACE
