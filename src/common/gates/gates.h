// The formulas of recurrent gates, for one element of a state.
//
// Each gate is s = sigmoid(a) or n = tanh(a) of its pre-activation a, which is added up here:
//
//   a = ((x + u) + b)      x: the input's projection W x_t, u: the recurrent one U h_(t-1), b:
//   biases
//
// lstm          c = f c' + i g                    h = o tanh(c)
//               S. Hochreiter and J. Schmidhuber, "Long Short-Term Memory", Neural Computation 9
//               (1997), https://doi.org/10.1162/neco.1997.9.8.1735; with the forget gate of
//               F. Gers et al., Neural Computation 12 (2000)
// gru           n = tanh(x_n + b_n + r q)         q = u_n + b_q       h = (1 - z) n + z h'
//               K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder ...",
//               https://arxiv.org/abs/1406.1078, with the reset gate behind the matrix product, as
//               cuDNN has it, so that all of U h' is one product
// gru_reset     y = r h'                          the halves of the form with the reset gate before
// gru_blend     h = (1 - z) n + z h'              the product: n's u is then U (r h')
//
// c' and h' are the states before. (1 - z) n + z h' and not n + z (h' - n): where z is 1, the state
// is kept to the last bit.
//
// The gradients. With s' = s (1 - s) and n' = 1 - n^2, and D = dc + dh o (1 - tanh(c)^2) all that
// reaches c,
//
//   lstm    da_i = D g i'    da_f = D c' f'    da_g = D i g'    da_o = dh tanh(c) o'    dc' = D f
//   gru     da_n = dh (1 - z) n'    da_z = dh (h' - n) z'    da_r = da_n q r'    dh' = dh z
//           dq = da_n r: what reaches u_n and b_q; of r and z, u and b have the same gradient
//   reset   da_r = dy h' r'         dh' = dy r
//   blend   as gru, without r
//
// They are made of activated gates, whose rounding they inherit: s' is within 3 ULP of s of its
// value, which is an absolute error. tanh(c) is computed again.
//
// Errors. u = 2^-24 (double: 2^-53), S is the largest sum of the magnitudes that a gate adds up,
// and H the magnitude of the state before. A pre-activation is off by 3 u S, a wider bias being
// rounded too; sigmoid is within 2.5 ULP = 5 u, tanh 5.5 u (math/elementary.h); their slopes are at
// most 1/4 and 1. c has the sigmoids' 3 u S / 4 twice, once times H, and the tanh's error; h has
// also the errors of o and tanh(c):
//
//   |c - exact|, |h - exact|   <= 20 u (1 + 0.15 S) (1 + H)
//   |da|, |dc'|, |dh'|         <= 40 u (1 + 0.15 S) (1 + H)^2 G    G: the magnitudes of what came
//                                                                  back
//
// (kGateUlps, which the tests read, and 0.15 in python/fastact/ops/bounds.py) and the rounding to
// the storage type; 16-bit gradients are computed from the activated gates as they were stored. (c,
// to which tanh is applied, is bounded by 1 + H, whose error meets dh o and another time D's: hence
// the square.) In gru the error of r, of 3 u S / 4, meets q: with Q the magnitudes that q adds up,
// h has 1 + Q times as much, and the gradients, where n's error meets q again, (1 + Q)^2.
#pragma once

#include "common/activations/sigmoid.h"
#include "common/activations/tanh.h"

FASTACT_BEGIN_NAMESPACE

// In units of u, as above: of states, of gradients.
constexpr double kGateUlps[] = {20, 40};

// approximate: by a GPU's estimates, for 16-bit data alone (math/elementary.h).
template <bool approximate = false, class T>
FASTACT_HD T gate_sigmoid(T a) {
  return Sigmoid<T, approximate>(nullptr).forward(a);
}
template <bool approximate = false, class T>
FASTACT_HD T gate_tanh(T a) {
  return Tanh<T, approximate>(nullptr).forward(a);
}
// The derivatives, of what the functions gave.
template <class T>
FASTACT_HD T sigmoid_slope(T s) {
  return s * (T(1) - s);
}
template <class T>
FASTACT_HD T tanh_slope(T n) {
  return madd(-n, n, T(1));
}

// GCC 12 vectorises what takes numbers and gives a struct, not what takes a struct.
template <class T>
FASTACT_HD T lstm_cell(T i, T f, T g, T before) {
  return madd(f, before, i * g);
}
template <bool approximate = false, class T>
FASTACT_HD T lstm_hidden(T o, T cell) {
  return o * gate_tanh<approximate>(cell);
}

template <class T>
struct LstmGradient {
  T i, f, g, o, before;
};
// before, cell: the states; dcell: what reaches the cell's state but through h.
template <bool approximate = false, class T>
FASTACT_HD LstmGradient<T> lstm_gradient(T i, T f, T g, T o, T before, T cell, T dh, T dcell) {
  const T t = gate_tanh<approximate>(cell);
  const T d = madd(dh * o, tanh_slope(t), dcell);
  return {d * g * sigmoid_slope(i), d * before * sigmoid_slope(f), d * i * tanh_slope(g),
          dh * t * sigmoid_slope(o), d * f};
}

template <class T>
FASTACT_HD T blended(T z, T n, T before) {
  return madd(z, before, (T(1) - z) * n);
}
template <class T>
struct BlendGradient {
  T z, n, before;
};
template <class T>
FASTACT_HD BlendGradient<T> blend_gradient(T z, T n, T before, T dh) {
  return {dh * (before - n) * sigmoid_slope(z), dh * (T(1) - z) * tanh_slope(n), dh * z};
}

// The candidate's pre-activation. r: activated; q: what it scales.
template <class T>
FASTACT_HD T gru_candidate(T r, T n, T q) {
  return madd(r, q, n);
}

template <class T>
struct GruGradient {
  T r, z, n, q, before;
};
template <class T>
FASTACT_HD GruGradient<T> gru_gradient(T r, T z, T n, T q, T before, T dh) {
  const BlendGradient<T> d = blend_gradient(z, n, before, dh);
  return {d.n * q * sigmoid_slope(r), d.z, d.n, d.n * r, d.before};
}

template <class T>
struct ResetGradient {
  T r, before;
};
template <class T>
FASTACT_HD ResetGradient<T> reset_gradient(T r, T before, T dy) {
  return {dy * before * sigmoid_slope(r), dy * r};
}

FASTACT_END_NAMESPACE
