// The kernels of gates/kernels.h: two loops for all kinds of cells (common/gates/cells.h).
//
// GCC vectorises them whole: the arrays of a cell's functor are as many numbers, once it is
// inlined.
#include "cpu/gates/kernels.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
FASTACT_HD T* at(const GateRows& rows, int index, int64_t row) {
  return reinterpret_cast<T*>(rows.data[index]) + row * rows.step[index];
}

// Columns of a strip: what is a chain of two functions, the second of which would wait for the
// first in every vector, becomes two loops over what the first-level cache holds.
constexpr int64_t kStrip = 256;

// Some operands of one row that follow each other, and element j of each.
template <class T, int count>
struct Rows {
  T* row[count];
  FASTACT_HD Rows(const GateRows& rows, int first, int64_t index) {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k) row[k] = at<T>(rows, first + k, index);
  }
  template <class U, int n>
  FASTACT_HD void read(int64_t j, U (&to)[n]) const {
#pragma GCC unroll 8
    for (int k = 0; k < n; ++k) to[k] = row[k][j];
  }
};

// The gates of one row: what was saved of them ...
template <class Kind>
struct Saved {
  using T = typename Kind::Type;
  const Rows<const T, Kind::kSaved> gates;
  FASTACT_HD Saved(const GateRows& rows, int64_t row) : gates(rows, kGateIn, row) {}
  FASTACT_HD void operator()(int64_t j, T (&saved)[Kind::kSaved]) const { gates.read(j, saved); }
};

// ... or their sums, activated.
template <class Kind, bool recurrent>
struct Made {
  using T = typename Kind::Type;
  const Rows<const T, Kind::kGates> x, u;
  const Rows<const T, Kind::kSaved> b;
  FASTACT_HD Made(const GateRows& rows, int64_t row)
      : x(rows, kGateIn, row), u(rows, kRecurrentIn, row), b(rows, kGateBias, row) {}

  FASTACT_HD void activate(int64_t j, T (&saved)[Kind::kSaved]) const {
    T of_x[Kind::kGates], of_u[Kind::kGates], of_b[Kind::kSaved];
    x.read(j, of_x);
    b.read(j, of_b);
    if constexpr (recurrent) {
      u.read(j, of_u);
    } else {
#pragma GCC unroll 8
      for (int k = 0; k < Kind::kGates; ++k) of_u[k] = T(-0.0);
    }
    Kind::activate(of_x, of_u, of_b, saved);
  }
  FASTACT_HD void operator()(int64_t j, T (&saved)[Kind::kSaved]) const {
    activate(j, saved);
    Kind::finish(saved);
  }
};

template <class Kind, bool recurrent, bool saves>
FASTACT_HD void forward_row(const GateRows& rows, int64_t row, int64_t columns) {
  using T = typename Kind::Type;
  constexpr int kSaved = Kind::kSaved, kLate = Kind::kLast - Kind::kFirst;
  const Made<Kind, recurrent> gates(rows, row);
  const T* before = at<T>(rows, kStateIn, row);
  T *c = at<T>(rows, kCell, row), *h = at<T>(rows, kHidden, row);
  const Rows<T, kSaved> out(rows, kGateOut, row);
  T late[kLate + 1][kStrip];
  const int64_t strip = kLate > 0 ? kStrip : columns;
  for (int64_t start = 0; start < columns; start += strip) {
    const int64_t count = columns - start < strip ? columns - start : strip;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const int64_t j = start + i;
      T saved[kSaved];
      gates.activate(j, saved);
      const T state = before[j], cell = Kind::cell(saved, state);
#pragma GCC unroll 8
      for (int k = 0; k < kSaved; ++k)
        if (saves && k != Kind::kLater) out.row[k][j] = saved[k];
      if constexpr (Kind::kHasCell) c[j] = cell;
      if constexpr (kLate == 0) h[j] = Kind::hidden(saved, state, cell);
#pragma GCC unroll 8
      for (int k = 0; k < kLate; ++k) late[k][i] = saved[Kind::kFirst + k];
    }
    if constexpr (kLate > 0) {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const int64_t j = start + i;
        T saved[kSaved];
#pragma GCC unroll 8
        for (int k = 0; k < kLate; ++k) saved[Kind::kFirst + k] = late[k][i];
        Kind::finish(saved);
        if constexpr (saves && Kind::kLater >= 0) out.row[Kind::kLater][j] = saved[Kind::kLater];
        h[j] = Kind::hidden(saved, before[j], Kind::kHasCell ? c[j] : T(0));
      }
    }
  }
}

// recomputes: the cell's state is lacking, as well as the gates.
template <class Kind, bool recomputes, class Gates>
FASTACT_HD void backward_row(const Gates& gates, const GateRows& rows, int64_t row,
                             int64_t columns) {
  using T = typename Kind::Type;
  constexpr int kSaved = Kind::kSaved, kGates = Kind::kGates, kAlso = Kind::kAlso;
  const T *before = at<T>(rows, kStateIn, row), *c = at<T>(rows, kCell, row);
  const T *dh = at<T>(rows, kHidden, row), *dc = at<T>(rows, kCellGradient, row);
  const Rows<T, kGates> dgates(rows, kGateOut, row);
  const Rows<T, kAlso + 1> drecurrent(rows, kRecurrentOut, row);
  T* dbefore = at<T>(rows, kStateOut, row);
#pragma omp simd
  for (int64_t j = 0; j < columns; ++j) {
    T saved[kSaved], d[kSaved + 1];
    gates(j, saved);
    T cell = 0, dcell = 0;
    if constexpr (Kind::kHasCell) {
      cell = recomputes ? Kind::cell(saved, before[j]) : c[j];
      dcell = dc[j];
    }
    Kind::back(saved, before[j], cell, dh[j], dcell, d);
#pragma GCC unroll 8
    for (int k = 0; k < kGates; ++k) dgates.row[k][j] = d[Kind::gradient_of(k)];
#pragma GCC unroll 8
    for (int k = 0; k < kAlso; ++k) drecurrent.row[k][j] = d[Kind::gradient_of(kGates + k)];
    dbefore[j] = d[Kind::gradient_of(kGates + kAlso)];
  }
}

template <class Kind, bool recurrent, bool saves>
void forward(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row) forward_row<Kind, recurrent, saves>(rows, row, columns);
}

template <class Kind>
void backward(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    backward_row<Kind, false>(Saved<Kind>(rows, row), rows, row, columns);
}

template <class Kind, bool recurrent>
void recompute(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    backward_row<Kind, true>(Made<Kind, recurrent>(rows, row), rows, row, columns);
}

#define FASTACT_FORWARD_OF(Kind)                                 \
  {                                                              \
    {forward<Kind, false, false>, forward<Kind, false, true>}, { \
      forward<Kind, true, false>, forward<Kind, true, true>      \
    }                                                            \
  }
#define FASTACT_FORWARD(name, Kind) \
  {FASTACT_FORWARD_OF(Kind<float>), FASTACT_FORWARD_OF(Kind<double>)},
#define FASTACT_BACKWARD(name, Kind) {backward<Kind<float>>, backward<Kind<double>>},
#define FASTACT_RECOMPUTE(name, Kind)                             \
  {{recompute<Kind<float>, false>, recompute<Kind<float>, true>}, \
   {recompute<Kind<double>, false>, recompute<Kind<double>, true>}},

}  // namespace

extern const GateTable gate_table;
const GateTable gate_table = {
    {FASTACT_GATE_KINDS(FASTACT_FORWARD)},
    {FASTACT_GATE_KINDS(FASTACT_BACKWARD)},
    {FASTACT_GATE_KINDS(FASTACT_RECOMPUTE)},
};

FASTACT_END_NAMESPACE
