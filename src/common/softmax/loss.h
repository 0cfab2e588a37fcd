// The loss of a row of cross_entropy, and its gradient.
//
// Class c has the share a_c w_c in the loss of a row, a_c = keep p_c + smooth, where p is the
// target (of an index t: 1 at t and 0 elsewhere), keep = 1 - label_smoothing and smooth =
// label_smoothing / classes:
//
//   loss = sum a_c w_c (lse - z_c) = sum a_c w_c (m - z_c) + log(sum(exp(z - m))) sum a_c w_c
//
// All terms of both sums are of one sign: nothing cancels. A term of a_c w_c = 0 is 0, where z_c is
// -infinity too. With d lse / dz_c = exp(z_c - lse)
//
//   dloss / dz_c = exp(z_c - lse) sum a w - a_c w_c
//
// With z_loss > 0 a row's loss has z_loss lse^2 more, whatever its target's weight, unless it is
// ignored: lse_square_scale of Liger, and z_loss of PaLM (https://arxiv.org/abs/2204.02311). Then
//
//   dloss / dz_c = exp(z_c - lse) (sum a w + 2 z_loss lse) - a_c w_c
//
// The mean divides by the sum of w_t of the rows that count; for probabilities, by their number. As
// torch.nn.functional.cross_entropy.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

struct LabelSmoothing {
  double keep, smooth;
  FASTACT_HD static LabelSmoothing of(double label_smoothing, int64_t classes) {
    return {1.0 - label_smoothing, label_smoothing / double(classes)};
  }
};

// The distance of a class of a share from the maximum; z() is asked for only where it counts.
template <class C, class Z>
FASTACT_HD C below_maximum(C share, C max, Z z) {
  return share == C(0) ? C(0) : max - z();
}

// The term of the class that an index names.
template <class C, class Z>
FASTACT_HD C loss_of_index(C share, C max, C log, Z z) {
  return share * (below_maximum(share, max, z) + log);
}

// z_loss lse^2, and its derivative by lse: without a z_loss 0, and no NaN, at any lse.
template <class C>
FASTACT_HD C loss_of_lse(C z_loss, C lse) {
  return z_loss == C(0) ? C(0) : z_loss * lse * lse;
}
template <class C>
FASTACT_HD C slope_of_lse(C z_loss, C lse) {
  return z_loss == C(0) ? C(0) : C(2) * z_loss * lse;
}

// The terms of all classes, from their sums of a w (m - z) and of a w.
FASTACT_HD double loss_of_shares(double apart, double mass, double log) {
  return apart + mass * log;
}

FASTACT_END_NAMESPACE
