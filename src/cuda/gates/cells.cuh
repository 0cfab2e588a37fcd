// The kinds of recurrent cells, for one element: the functors of gates/kernels.cuh.
//
// A kind says how many gates a packed array holds (kGates), how many activated ones are saved for
// backward (kSaved), how many gradients of a recurrent projection differ from those of the gates
// (kAlso), and which gradient each output of backward is: first those of the gates, then of the
// recurrent projection, then of the state.
#pragma once

#include "common/gates/gates.h"
#include "cuda/core/vector_io.cuh"
#include "cuda/gates/gates.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// The pre-activation of a gate. Absent inputs are -0, which changes no sum.
template <class C>
FASTACT_DEVICE C gate_sum(C x, C u, C b) {
  return (x + u) + b;
}

template <class T>
struct Lstm {
  using C = Compute<T>;
  static constexpr bool kFast = kApproximate<T>;
  static constexpr bool kHasCell = true;
  static constexpr int kGates = 4, kSaved = 4, kAlso = 0;
  FASTACT_DEVICE static constexpr int gradient_of(int out) { return out; }

  // saved OUT: the activated gates, of their sums.
  FASTACT_DEVICE static void activate(const C (&x)[kGates], const C (&u)[kGates],
                                      const C (&b)[kSaved], C (&saved)[kSaved]) {
#pragma unroll
    for (int k = 0; k < kGates; ++k) {
      const C a = gate_sum(x[k], u[k], b[k]);
      saved[k] = k == 2 ? gate_tanh<kFast>(a) : gate_sigmoid<kFast>(a);
    }
  }
  // The states after the step.
  FASTACT_DEVICE static C cell(const C (&saved)[kSaved], C before) {
    return lstm_cell(saved[0], saved[1], saved[2], before);
  }
  FASTACT_DEVICE static C hidden(const C (&saved)[kSaved], C, C cell) {
    return lstm_hidden<kFast>(saved[3], cell);
  }
  // d OUT: the gradients of what each of the saved gates added up, and of the state before.
  FASTACT_DEVICE static void back(const C (&saved)[kSaved], C before, C cell, C dh, C dc,
                                  C (&d)[kSaved + 1]) {
    const LstmGradient<C> made =
        lstm_gradient<kFast>(saved[0], saved[1], saved[2], saved[3], before, cell, dh, dc);
    d[0] = made.i, d[1] = made.f, d[2] = made.g, d[3] = made.o;
    d[4] = made.before;
  }
};

// saved: r, z, n, and q, which r scales.
template <class T>
struct Gru {
  using C = Compute<T>;
  static constexpr bool kFast = kApproximate<T>;
  static constexpr bool kHasCell = false;
  static constexpr int kGates = 3, kSaved = 4, kAlso = 3;
  FASTACT_DEVICE static constexpr int gradient_of(int out) {
    return out < 3 ? out : out < 5 ? out - 3 : out - 2;  // r z n, r z q, the state
  }

  FASTACT_DEVICE static void activate(const C (&x)[kGates], const C (&u)[kGates],
                                      const C (&b)[kSaved], C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<kFast>(gate_sum(x[0], u[0], b[0]));
    saved[1] = gate_sigmoid<kFast>(gate_sum(x[1], u[1], b[1]));
    saved[3] = u[2] + b[3];
    saved[2] = gate_tanh<kFast>(gru_candidate(saved[0], x[2] + b[2], saved[3]));
  }
  FASTACT_DEVICE static C cell(const C (&)[kSaved], C) { return C(0); }
  FASTACT_DEVICE static C hidden(const C (&saved)[kSaved], C before, C) {
    return blended(saved[1], saved[2], before);
  }
  FASTACT_DEVICE static void back(const C (&saved)[kSaved], C before, C, C dh, C,
                                  C (&d)[kSaved + 1]) {
    const GruGradient<C> made = gru_gradient(saved[0], saved[1], saved[2], saved[3], before, dh);
    d[0] = made.r, d[1] = made.z, d[2] = made.n, d[3] = made.q;
    d[4] = made.before;
  }
};

template <class T>
struct Reset {
  using C = Compute<T>;
  static constexpr bool kFast = kApproximate<T>;
  static constexpr bool kHasCell = false;
  static constexpr int kGates = 1, kSaved = 1, kAlso = 0;
  FASTACT_DEVICE static constexpr int gradient_of(int out) { return out; }

  FASTACT_DEVICE static void activate(const C (&x)[kGates], const C (&u)[kGates],
                                      const C (&b)[kSaved], C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<kFast>(gate_sum(x[0], u[0], b[0]));
  }
  FASTACT_DEVICE static C cell(const C (&)[kSaved], C) { return C(0); }
  FASTACT_DEVICE static C hidden(const C (&saved)[kSaved], C before, C) {
    return saved[0] * before;
  }
  FASTACT_DEVICE static void back(const C (&saved)[kSaved], C before, C, C dh, C,
                                  C (&d)[kSaved + 1]) {
    const ResetGradient<C> made = reset_gradient(saved[0], before, dh);
    d[0] = made.r;
    d[1] = made.before;
  }
};

template <class T>
struct Blend {
  using C = Compute<T>;
  static constexpr bool kFast = kApproximate<T>;
  static constexpr bool kHasCell = false;
  static constexpr int kGates = 2, kSaved = 2, kAlso = 0;
  FASTACT_DEVICE static constexpr int gradient_of(int out) { return out; }

  FASTACT_DEVICE static void activate(const C (&x)[kGates], const C (&u)[kGates],
                                      const C (&b)[kSaved], C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<kFast>(gate_sum(x[0], u[0], b[0]));
    saved[1] = gate_tanh<kFast>(gate_sum(x[1], u[1], b[1]));
  }
  FASTACT_DEVICE static C cell(const C (&)[kSaved], C) { return C(0); }
  FASTACT_DEVICE static C hidden(const C (&saved)[kSaved], C before, C) {
    return blended(saved[0], saved[1], before);
  }
  FASTACT_DEVICE static void back(const C (&saved)[kSaved], C before, C, C dh, C,
                                  C (&d)[kSaved + 1]) {
    const BlendGradient<C> made = blend_gradient(saved[0], saved[1], before, dh);
    d[0] = made.z, d[1] = made.n;
    d[2] = made.before;
  }
};

// Runs visit(Kind<T>{}) for the kind of a call.
template <class T, class Visit>
auto for_kind(int kind, Visit visit) {
  switch (kind) {
    case kLstm:
      return visit(Lstm<T>{});
    case kGru:
      return visit(Gru<T>{});
    case kReset:
      return visit(Reset<T>{});
    case kBlend:
      return visit(Blend<T>{});
  }
  throw std::invalid_argument("fastact: unknown kind of gates");
}

}  // namespace
FASTACT_END_NAMESPACE
