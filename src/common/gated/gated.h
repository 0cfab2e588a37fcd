// Gated activations: y = act(gate) factor, with gate = min(a, limit) and
// factor = clamp(b, -limit, limit) + offset.
//
// GLU is act = sigmoid (Dauphin et al., arXiv:1612.08083); ReGLU, GEGLU and SwiGLU have others
// (Shazeer, arXiv:2002.05202). limit and offset are gpt-oss's, with 7 and 1; without them limit is
// infinite, and the offset -0, which changes no number: b + 0 would lose the sign of b = -0.
//
// Backward. With g = dy factor where a <= limit, else 0 (to_a),
//     da = g act'(gate), and
//     db = dy act(gate) where |b| <= limit, else 0 (to_b).
// A NaN passes all clamps, as torch's. Products are taken in this order on every device.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

// T: the compute type.
template <class T>
struct Gating {
  T limit, offset;
  FASTACT_HD Gating(double limit_, double offset_)
      : limit(T(limit_)), offset(offset_ == 0 ? T(-0.0) : T(offset_)) {}

  FASTACT_HD T gate(T a) const { return a > limit ? limit : a; }
  FASTACT_HD T factor(T b) const { return (b > limit ? limit : b < -limit ? -limit : b) + offset; }

  FASTACT_HD T to_a(T g, T a) const { return a > limit ? T(0) : g; }
  FASTACT_HD T to_b(T db, T b) const { return b > limit || b < -limit ? T(0) : db; }
};

FASTACT_END_NAMESPACE
