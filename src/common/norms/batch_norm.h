// The formulas of batch_norm, for one element of a channel.
//
// Over the N values of a channel, or by statistics that were gathered before:
//
//   xhat = (x - mean) rstd      z = xhat w + b      y = f(z)      rstd = (var + eps)^(-1/2)
//
// S. Ioffe and C. Szegedy, "Batch Normalization", https://arxiv.org/abs/1502.03167.
//
// The gradient. With p = dy f'(z): db = sum p and dw = sum p xhat. With given statistics dx =
// p w rstd. In training a change of x_j moves the mean by 1/N and rstd by -rstd^2 xhat_j / N, so
// that
//
//   dx = w rstd (p - mean(p) - xhat mean(p xhat))
//
// Per channel there is `scale` = w rstd, and `slope` = rstd mean(p xhat). The mean comes in double
// and is used as two numbers of the compute type, high + low: x - high is exact where it cancels.
// With u = 2^-24 (double: 2^-53)
//
//   |z - exact| <= 4 u |xhat w| + u |z|, and |w| rstd times the error of the mean
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

template <class T>
FASTACT_HD T centred(T x, T high, T low) {
  return (x - high) - low;
}

template <class T>
FASTACT_HD T batch_normalised(T x, T high, T low, T scale, T bias) {
  return madd(centred(x, high, low), scale, bias);
}

template <class T>
FASTACT_HD T batch_gradient(T p, T centred_x, T scale, T mean_p, T slope) {
  return scale * madd(-centred_x, slope, p - mean_p);
}

FASTACT_END_NAMESPACE
