// The kinds of recurrent cells, for one element: one functor a kind over the formulas of gates.h,
// and the one list from which the kernels of both devices are made.
//
//   kGates, kSaved   how many gates a packed array holds, and how many activated ones are saved for
//                    backward; of gru also q, which r scales
//   kAlso            gradients of a recurrent projection that differ from the gates' gradients
//   kHasCell         whether there is a state beside h
//   kLater           the gate that waits for another one; -1: none does
//   kFirst, kLast    where h is a function of what a function gave: the saved gates that it takes,
//                    from the first to before the last. None: h is computed with the gates.
//
//   activate    saved OUT: the gates of their sums of x, u and b; of the one that waits its own sum
//   finish      saved IN/OUT: that one, activated
//   cell        the state beside h after the step
//   hidden      h after the step
//   back        d OUT: the gradients of what each of the saved gates added up, and of the state
//               before
//   gradient_of the number in d of each output of backward: of the gates, then of the recurrent
//               projection, then of the state
//
// C: the type that it is computed in. approximate: by a GPU's estimates (gates.h).
#pragma once

#include "common/gates/gates.h"

FASTACT_BEGIN_NAMESPACE

// The pre-activation of a gate. Absent inputs are -0, which changes no sum.
template <class C>
FASTACT_HD C gate_sum(C x, C u, C b) {
  return (x + u) + b;
}

template <class C, bool approximate = false>
struct Lstm {
  using Type = C;
  static constexpr int kGates = 4, kSaved = 4, kAlso = 0;
  static constexpr bool kHasCell = true;
  static constexpr int kLater = -1, kFirst = 3, kLast = 4;
  static constexpr FASTACT_HD int gradient_of(int out) { return out; }

  static FASTACT_HD void activate(const C (&x)[kGates], const C (&u)[kGates], const C (&b)[kSaved],
                                  C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<approximate>(gate_sum(x[0], u[0], b[0]));
    saved[1] = gate_sigmoid<approximate>(gate_sum(x[1], u[1], b[1]));
    saved[2] = gate_tanh<approximate>(gate_sum(x[2], u[2], b[2]));
    saved[3] = gate_sigmoid<approximate>(gate_sum(x[3], u[3], b[3]));
  }
  static FASTACT_HD void finish(C (&)[kSaved]) {}
  static FASTACT_HD C cell(const C (&saved)[kSaved], C before) {
    return lstm_cell(saved[0], saved[1], saved[2], before);
  }
  static FASTACT_HD C hidden(const C (&saved)[kSaved], C, C cell) {
    return lstm_hidden<approximate>(saved[3], cell);
  }
  static FASTACT_HD void back(const C (&saved)[kSaved], C before, C cell, C dh, C dc,
                              C (&d)[kSaved + 1]) {
    const LstmGradient<C> made =
        lstm_gradient<approximate>(saved[0], saved[1], saved[2], saved[3], before, cell, dh, dc);
    d[0] = made.i, d[1] = made.f, d[2] = made.g, d[3] = made.o;
    d[4] = made.before;
  }
};

// saved: r, z, n, q.
template <class C, bool approximate = false>
struct Gru {
  using Type = C;
  static constexpr int kGates = 3, kSaved = 4, kAlso = 3;
  static constexpr bool kHasCell = false;
  static constexpr int kLater = 2, kFirst = 1, kLast = 3;
  static constexpr FASTACT_HD int gradient_of(int out) {
    return out < 3 ? out : out < 5 ? out - 3 : out - 2;  // r z n, r z q, the state
  }

  static FASTACT_HD void activate(const C (&x)[kGates], const C (&u)[kGates], const C (&b)[kSaved],
                                  C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<approximate>(gate_sum(x[0], u[0], b[0]));
    saved[1] = gate_sigmoid<approximate>(gate_sum(x[1], u[1], b[1]));
    saved[3] = u[2] + b[3];
    saved[2] = gru_candidate(saved[0], x[2] + b[2], saved[3]);
  }
  static FASTACT_HD void finish(C (&saved)[kSaved]) { saved[2] = gate_tanh<approximate>(saved[2]); }
  static FASTACT_HD C cell(const C (&)[kSaved], C) { return C(0); }
  static FASTACT_HD C hidden(const C (&saved)[kSaved], C before, C) {
    return blended(saved[1], saved[2], before);
  }
  static FASTACT_HD void back(const C (&saved)[kSaved], C before, C, C dh, C, C (&d)[kSaved + 1]) {
    const GruGradient<C> made = gru_gradient(saved[0], saved[1], saved[2], saved[3], before, dh);
    d[0] = made.r, d[1] = made.z, d[2] = made.n, d[3] = made.q;
    d[4] = made.before;
  }
};

template <class C, bool approximate = false>
struct Reset {
  using Type = C;
  static constexpr int kGates = 1, kSaved = 1, kAlso = 0;
  static constexpr bool kHasCell = false;
  static constexpr int kLater = -1, kFirst = 0, kLast = 0;
  static constexpr FASTACT_HD int gradient_of(int out) { return out; }

  static FASTACT_HD void activate(const C (&x)[kGates], const C (&u)[kGates], const C (&b)[kSaved],
                                  C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<approximate>(gate_sum(x[0], u[0], b[0]));
  }
  static FASTACT_HD void finish(C (&)[kSaved]) {}
  static FASTACT_HD C cell(const C (&)[kSaved], C) { return C(0); }
  static FASTACT_HD C hidden(const C (&saved)[kSaved], C before, C) { return saved[0] * before; }
  static FASTACT_HD void back(const C (&saved)[kSaved], C before, C, C dh, C, C (&d)[kSaved + 1]) {
    const ResetGradient<C> made = reset_gradient(saved[0], before, dh);
    d[0] = made.r;
    d[1] = made.before;
  }
};

template <class C, bool approximate = false>
struct Blend {
  using Type = C;
  static constexpr int kGates = 2, kSaved = 2, kAlso = 0;
  static constexpr bool kHasCell = false;
  static constexpr int kLater = -1, kFirst = 0, kLast = 0;
  static constexpr FASTACT_HD int gradient_of(int out) { return out; }

  static FASTACT_HD void activate(const C (&x)[kGates], const C (&u)[kGates], const C (&b)[kSaved],
                                  C (&saved)[kSaved]) {
    saved[0] = gate_sigmoid<approximate>(gate_sum(x[0], u[0], b[0]));
    saved[1] = gate_tanh<approximate>(gate_sum(x[1], u[1], b[1]));
  }
  static FASTACT_HD void finish(C (&)[kSaved]) {}
  static FASTACT_HD C cell(const C (&)[kSaved], C) { return C(0); }
  static FASTACT_HD C hidden(const C (&saved)[kSaved], C before, C) {
    return blended(saved[0], saved[1], before);
  }
  static FASTACT_HD void back(const C (&saved)[kSaved], C before, C, C dh, C, C (&d)[kSaved + 1]) {
    const BlendGradient<C> made = blend_gradient(saved[0], saved[1], before, dh);
    d[0] = made.z, d[1] = made.n;
    d[2] = made.before;
  }
};

// The one list. X(name, Struct): the name is the one by which Python's ops ask for the kind.
#define FASTACT_GATE_KINDS(X) \
  X(lstm, Lstm)               \
  X(gru, Gru)                 \
  X(reset, Reset)             \
  X(blend, Blend)

#define FASTACT_ENUMERATE(name, Struct) k##Struct,
enum GateKind : int { FASTACT_GATE_KINDS(FASTACT_ENUMERATE) kGateKinds };
#undef FASTACT_ENUMERATE

#define FASTACT_NAME(name, Struct) #name,
constexpr const char* kGateKindNames[] = {FASTACT_GATE_KINDS(FASTACT_NAME)};
#undef FASTACT_NAME

#define FASTACT_COUNT(name, Struct) Struct<float>::kGates,
constexpr int kGatesOf[] = {FASTACT_GATE_KINDS(FASTACT_COUNT)};
#undef FASTACT_COUNT
#define FASTACT_COUNT(name, Struct) Struct<float>::kSaved,
constexpr int kSavedOf[] = {FASTACT_GATE_KINDS(FASTACT_COUNT)};
#undef FASTACT_COUNT

FASTACT_END_NAMESPACE
