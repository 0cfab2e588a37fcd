// The kernels of gates/kernels.h.
#include "cpu/gates/kernels.h"

#include "common/gates/gates.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
FASTACT_HD T* at(const GateRows& rows, int index, int64_t row) {
  return reinterpret_cast<T*>(rows.data[index]) + row * rows.step[index];
}

// Columns of a strip: what is a chain of two functions, the second of which would wait
// for the first in every vector, becomes two loops over what the first-level cache holds.
constexpr int64_t kStrip = 256;

// The gates of one row: what was saved of them ...
template <class T, int count>
struct Saved {
  const T* saved[count];
  FASTACT_HD Saved(const GateRows& rows, int64_t row) {
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) saved[k] = at<T>(rows, kGateIn + k, row);
  }
  FASTACT_HD T sigmoid(int k, int64_t j) const { return saved[k][j]; }
  FASTACT_HD T tanh(int k, int64_t j) const { return saved[k][j]; }
  // Of gru: what the reset gate scales, and the candidate.
  FASTACT_HD T scaled(int64_t j) const { return saved[3][j]; }
  FASTACT_HD T candidate(T, T, int64_t j) const { return saved[2][j]; }
};

// ... or their sums, activated.
template <class T, int count, bool recurrent>
struct Made {
  const T *x[count], *u[count], *b[count], *scaled_bias;
  FASTACT_HD Made(const GateRows& rows, int64_t row) {
#pragma GCC unroll 4
    for (int k = 0; k < count; ++k) {
      x[k] = at<T>(rows, kGateIn + k, row);
      u[k] = recurrent ? at<T>(rows, kRecurrentIn + k, row) : nullptr;
      b[k] = at<T>(rows, kGateBias + k, row);
    }
    scaled_bias = at<T>(rows, kGateBias + 3, row);
  }
  FASTACT_HD T sum(int k, int64_t j) const {
    return recurrent ? (x[k][j] + u[k][j]) + b[k][j] : x[k][j] + b[k][j];
  }
  FASTACT_HD T sigmoid(int k, int64_t j) const { return gate_sigmoid(sum(k, j)); }
  FASTACT_HD T tanh(int k, int64_t j) const { return gate_tanh(sum(k, j)); }
  FASTACT_HD T scaled(int64_t j) const { return u[2][j] + scaled_bias[j]; }
  FASTACT_HD T sum_of_candidate(T r, T q, int64_t j) const {
    return gru_candidate(r, x[2][j] + b[2][j], q);
  }
  FASTACT_HD T candidate(T r, T q, int64_t j) const { return gate_tanh(sum_of_candidate(r, q, j)); }
};

// A kind of op: what it does with a row of gates. recomputes: backward lacks the cell's state too.
template <class T>
struct Lstm {
  using Type = T;
  static constexpr int kGates = 4, kSaved = 4;

  template <bool saves, class Gates>
  static FASTACT_HD void forward(const Gates& gates, const GateRows& rows, int64_t row,
                                 int64_t columns) {
    const T* before = at<T>(rows, kStateIn, row);
    T *c = at<T>(rows, kCell, row), *h = at<T>(rows, kHidden, row);
    T *i = at<T>(rows, kGateOut, row), *f = at<T>(rows, kGateOut + 1, row);
    T *g = at<T>(rows, kGateOut + 2, row), *o = at<T>(rows, kGateOut + 3, row);
    for (int64_t start = 0; start < columns; start += kStrip) {
      const int64_t end = columns - start < kStrip ? columns : start + kStrip;
#pragma omp simd
      for (int64_t j = start; j < end; ++j) {
        const T ij = gates.sigmoid(0, j), fj = gates.sigmoid(1, j);
        const T gj = gates.tanh(2, j), oj = gates.sigmoid(3, j);
        if (saves) i[j] = ij, f[j] = fj, g[j] = gj, o[j] = oj;
        c[j] = lstm_cell(ij, fj, gj, before[j]);
        h[j] = oj;
      }
#pragma omp simd
      for (int64_t j = start; j < end; ++j) h[j] = lstm_hidden(h[j], c[j]);
    }
  }

  template <bool recomputes, class Gates>
  static FASTACT_HD void backward(const Gates& gates, const GateRows& rows, int64_t row,
                                  int64_t columns) {
    const T *before = at<T>(rows, kStateIn, row), *c = at<T>(rows, kCell, row);
    const T *dh = at<T>(rows, kHidden, row), *dc = at<T>(rows, kCellGradient, row);
    T *i = at<T>(rows, kGateOut, row), *f = at<T>(rows, kGateOut + 1, row);
    T *g = at<T>(rows, kGateOut + 2, row), *o = at<T>(rows, kGateOut + 3, row);
    T* dbefore = at<T>(rows, kStateOut, row);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const T ij = gates.sigmoid(0, j), fj = gates.sigmoid(1, j);
      const T gj = gates.tanh(2, j), oj = gates.sigmoid(3, j);
      const T cell = recomputes ? lstm_cell(ij, fj, gj, before[j]) : c[j];
      const LstmGradient<T> d = lstm_gradient(ij, fj, gj, oj, before[j], cell, dh[j], dc[j]);
      i[j] = d.i, f[j] = d.f, g[j] = d.g, o[j] = d.o;
      dbefore[j] = d.before;
    }
  }
};

template <class T>
struct Gru {
  using Type = T;
  static constexpr int kGates = 3, kSaved = 4;

  template <bool saves, class Gates>
  static FASTACT_HD void forward(const Gates& gates, const GateRows& rows, int64_t row,
                                 int64_t columns) {
    const T* before = at<T>(rows, kStateIn, row);
    T* h = at<T>(rows, kHidden, row);
    T *r = at<T>(rows, kGateOut, row), *z = at<T>(rows, kGateOut + 1, row);
    T *n = at<T>(rows, kGateOut + 2, row), *q = at<T>(rows, kGateOut + 3, row);
    T update[kStrip], candidate[kStrip];
    for (int64_t start = 0; start < columns; start += kStrip) {
      const int64_t count = columns - start < kStrip ? columns - start : kStrip;
#pragma omp simd
      for (int64_t k = 0; k < count; ++k) {
        const int64_t j = start + k;
        const T rj = gates.sigmoid(0, j), zj = gates.sigmoid(1, j), qj = gates.scaled(j);
        candidate[k] = gates.sum_of_candidate(rj, qj, j);
        update[k] = zj;
        if (saves) r[j] = rj, z[j] = zj, q[j] = qj;
      }
#pragma omp simd
      for (int64_t k = 0; k < count; ++k) {
        const int64_t j = start + k;
        const T nj = gate_tanh(candidate[k]);
        if (saves) n[j] = nj;
        h[j] = blended(update[k], nj, before[j]);
      }
    }
  }

  template <bool recomputes, class Gates>
  static FASTACT_HD void backward(const Gates& gates, const GateRows& rows, int64_t row,
                                  int64_t columns) {
    const T *before = at<T>(rows, kStateIn, row), *dh = at<T>(rows, kHidden, row);
    T *r = at<T>(rows, kGateOut, row), *z = at<T>(rows, kGateOut + 1, row);
    T* n = at<T>(rows, kGateOut + 2, row);
    T *ur = at<T>(rows, kRecurrentOut, row), *uz = at<T>(rows, kRecurrentOut + 1, row);
    T *un = at<T>(rows, kRecurrentOut + 2, row), *dbefore = at<T>(rows, kStateOut, row);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const T rj = gates.sigmoid(0, j), zj = gates.sigmoid(1, j), qj = gates.scaled(j);
      const T nj = gates.candidate(rj, qj, j);
      const GruGradient<T> d = gru_gradient(rj, zj, nj, qj, before[j], dh[j]);
      r[j] = d.r, z[j] = d.z, n[j] = d.n;
      ur[j] = d.r, uz[j] = d.z, un[j] = d.q;
      dbefore[j] = d.before;
    }
  }
};

template <class T>
struct Reset {
  using Type = T;
  static constexpr int kGates = 1, kSaved = 1;

  template <bool saves, class Gates>
  static FASTACT_HD void forward(const Gates& gates, const GateRows& rows, int64_t row,
                                 int64_t columns) {
    const T* before = at<T>(rows, kStateIn, row);
    T *y = at<T>(rows, kHidden, row), *r = at<T>(rows, kGateOut, row);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const T rj = gates.sigmoid(0, j), yj = rj * before[j];
      if (saves) r[j] = rj;
      y[j] = yj;
    }
  }

  template <bool recomputes, class Gates>
  static FASTACT_HD void backward(const Gates& gates, const GateRows& rows, int64_t row,
                                  int64_t columns) {
    const T *before = at<T>(rows, kStateIn, row), *dy = at<T>(rows, kHidden, row);
    T *r = at<T>(rows, kGateOut, row), *dbefore = at<T>(rows, kStateOut, row);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const ResetGradient<T> d = reset_gradient(gates.sigmoid(0, j), before[j], dy[j]);
      r[j] = d.r;
      dbefore[j] = d.before;
    }
  }
};

template <class T>
struct Blend {
  using Type = T;
  static constexpr int kGates = 2, kSaved = 2;

  template <bool saves, class Gates>
  static FASTACT_HD void forward(const Gates& gates, const GateRows& rows, int64_t row,
                                 int64_t columns) {
    const T* before = at<T>(rows, kStateIn, row);
    T* h = at<T>(rows, kHidden, row);
    T *z = at<T>(rows, kGateOut, row), *n = at<T>(rows, kGateOut + 1, row);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const T zj = gates.sigmoid(0, j), nj = gates.tanh(1, j), y = blended(zj, nj, before[j]);
      if (saves) z[j] = zj, n[j] = nj;
      h[j] = y;
    }
  }

  template <bool recomputes, class Gates>
  static FASTACT_HD void backward(const Gates& gates, const GateRows& rows, int64_t row,
                                  int64_t columns) {
    const T *before = at<T>(rows, kStateIn, row), *dh = at<T>(rows, kHidden, row);
    T *z = at<T>(rows, kGateOut, row), *n = at<T>(rows, kGateOut + 1, row);
    T* dbefore = at<T>(rows, kStateOut, row);
#pragma omp simd
    for (int64_t j = 0; j < columns; ++j) {
      const T zj = gates.sigmoid(0, j), nj = gates.tanh(1, j);
      const BlendGradient<T> d = blend_gradient(zj, nj, before[j], dh[j]);
      z[j] = d.z, n[j] = d.n;
      dbefore[j] = d.before;
    }
  }
};

template <class Kind, bool recurrent>
using MadeOf = Made<typename Kind::Type, Kind::kGates, recurrent>;

template <class Kind, bool recurrent, bool saves>
void forward(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    Kind::template forward<saves>(MadeOf<Kind, recurrent>(rows, row), rows, row, columns);
}

template <class Kind>
void backward(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    Kind::template backward<false>(Saved<typename Kind::Type, Kind::kSaved>(rows, row), rows, row,
                                   columns);
}

template <class Kind, bool recurrent>
void recompute(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    Kind::template backward<true>(MadeOf<Kind, recurrent>(rows, row), rows, row, columns);
}

#define FASTACT_FORWARD(Kind)                                    \
  {                                                              \
    {forward<Kind, false, false>, forward<Kind, false, true>}, { \
      forward<Kind, true, false>, forward<Kind, true, true>      \
    }                                                            \
  }
#define FASTACT_BOTH(Of, Kind) {Of(Kind<float>), Of(Kind<double>)}
#define FASTACT_BACKWARD(Kind) backward<Kind>
#define FASTACT_RECOMPUTE(Kind) {recompute<Kind, false>, recompute<Kind, true>}
#define FASTACT_KINDS(Of) \
  {FASTACT_BOTH(Of, Lstm), FASTACT_BOTH(Of, Gru), FASTACT_BOTH(Of, Reset), FASTACT_BOTH(Of, Blend)}

}  // namespace

extern const GateTable gate_table;
const GateTable gate_table = {
    FASTACT_KINDS(FASTACT_FORWARD),
    FASTACT_KINDS(FASTACT_BACKWARD),
    FASTACT_KINDS(FASTACT_RECOMPUTE),
};

FASTACT_END_NAMESPACE
