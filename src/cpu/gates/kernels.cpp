// The kernels of gates/kernels.h: two loops for all kinds of cells (common/gates/cells.h).
//
// GCC vectorises them whole: the arrays of a cell's functor are as many numbers, once it is
// inlined. 16-bit operands are converted a step of columns at a time, in registers: where loads and
// stores of buffers stand between the loads and stores of memory, the processor fetches no further
// ahead than one buffer (docs/design/gates.md).
#include "cpu/gates/kernels.h"

#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// Columns of a strip: what is a chain of two functions, the second of which would wait for the
// first in every vector, becomes two loops over what the first-level cache holds.
constexpr int64_t kStrip = 256;

// step(i, m) for n columns: for all at once, or for as many as are converted in registers.
template <class T, class Visit>
FASTACT_HD void for_steps(int64_t n, Visit step) {
  if constexpr (is_half<T>)
    for (int64_t i = 0; i < n; i += kGateStep) step(i, kGateStep);
  else
    step(0, n);
}

template <class T>
FASTACT_HD T* at(const GateRows& rows, int index, int64_t row, int64_t column) {
  return pointer<T>(rows.data[index]) + row * rows.step[index] + column;
}

// Elements that are converted at once, if they have 16 bits.
template <class T>
using Converted = Wide<T, is_half<T> ? kGateStep : 1>;

// Some operands that follow each other: element i of a step, in the type that is computed in.
template <class T, int count>
struct Inputs {
  const Compute<T>* values[count];
  Converted<T> wide[count];

  // n columns of a row, from `column` on.
  FASTACT_HD Inputs(const GateRows& rows, int first, int64_t row, int64_t column, int64_t n) {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k)
      values[k] = wide[k].read(at<const T>(rows, first + k, row, column), n);
  }
  FASTACT_HD void read(int64_t i, Compute<T> (&to)[count]) const {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k) to[k] = values[k][i];
  }
};

// Operands that are written. `finish` stores one of them.
template <class T, int count>
struct Outputs {
  T* stored[count];
  Compute<T>* values[count];
  Converted<T> wide[count];

  FASTACT_HD Outputs(const GateRows& rows, int first, int64_t row, int64_t column) {
#pragma GCC unroll 8
    for (int k = 0; k < count; ++k) {
      stored[k] = at<T>(rows, first + k, row, column);
      values[k] = wide[k].to(stored[k]);
    }
  }
  FASTACT_HD void finish(int k, int64_t n) {
    if constexpr (is_half<T>) chunk_from_float(values[k], stored[k], n);
  }
  // Leaves 16-bit ones where sums read them before they are rounded, if any sum is wanted.
  FASTACT_HD void keep(const GateRows& rows, int first, int64_t at) {
    if constexpr (is_half<T>)
#pragma GCC unroll 8
      for (int k = 0; k < count; ++k)
        values[k] = rows.made[first + k] ? rows.made[first + k] + at : wide[k].buffer;
  }
};

// The gates of a step: what was saved of them ...
template <class Kind, class T>
struct Saved {
  using C = Compute<T>;
  const Inputs<T, Kind::kSaved> gates;
  FASTACT_HD Saved(const GateRows& rows, int64_t row, int64_t column, int64_t n)
      : gates(rows, kGateIn, row, column, n) {}
  FASTACT_HD void operator()(int64_t i, C (&saved)[Kind::kSaved]) const { gates.read(i, saved); }
};

// ... or their sums, activated. Without a recurrent projection, -0 is added.
template <class Kind, class T, bool recurrent>
struct Made {
  using C = Compute<T>;
  const Inputs<T, Kind::kGates> x, u;
  const Inputs<C, Kind::kSaved> b;
  FASTACT_HD Made(const GateRows& rows, int64_t row, int64_t column, int64_t n)
      : x(rows, kGateIn, row, column, n),
        u(rows, recurrent ? kRecurrentIn : kGateIn, row, column, recurrent ? n : 0),
        b(rows, kGateBias, row, column, n) {}

  FASTACT_HD void activate(int64_t i, C (&saved)[Kind::kSaved]) const {
    C of_x[Kind::kGates], of_u[Kind::kGates], of_b[Kind::kSaved];
    x.read(i, of_x);
    b.read(i, of_b);
    if constexpr (recurrent) {
      u.read(i, of_u);
    } else {
#pragma GCC unroll 8
      for (int k = 0; k < Kind::kGates; ++k) of_u[k] = C(-0.0);
    }
    Kind::activate(of_x, of_u, of_b, saved);
  }
  FASTACT_HD void operator()(int64_t i, C (&saved)[Kind::kSaved]) const {
    activate(i, saved);
    Kind::finish(saved);
  }
};

// The arguments of h, for the columns of a strip: the saved gates that it takes, and last the
// cell's state.
template <class Kind>
struct Late {
  static constexpr int kCount = Kind::kLast - Kind::kFirst;
  static constexpr bool kIsNeeded = kCount > 0;
  alignas(64) typename Kind::Type of[kCount + 1][kStrip];
};

// at: where n columns from `column` on lie in their strip.
template <class Kind, class T, bool recurrent, bool saves>
FASTACT_HD void forward_step(const GateRows& rows, int64_t row, int64_t column, int64_t n,
                             Late<Kind>& late, int64_t at) {
  using C = typename Kind::Type;
  constexpr int kSaved = Kind::kSaved;
  constexpr bool kIsLate = Late<Kind>::kIsNeeded;
  const Made<Kind, T, recurrent> gates(rows, row, column, n);
  const Inputs<T, 1> before(rows, kStateIn, row, column, n);
  Outputs<T, 1> c(rows, kCell, row, column), h(rows, kHidden, row, column);
  Outputs<T, kSaved> out(rows, kGateOut, row, column);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    C saved[kSaved];
    gates.activate(i, saved);
    const C state = before.values[0][i], cell = Kind::cell(saved, state);
#pragma GCC unroll 8
    for (int k = 0; k < kSaved; ++k)
      if (saves && k != Kind::kLater) out.values[k][i] = saved[k];
    if constexpr (Kind::kHasCell) c.values[0][i] = cell;
    if constexpr (!kIsLate) h.values[0][i] = Kind::hidden(saved, state, cell);
#pragma GCC unroll 8
    for (int k = 0; k < Late<Kind>::kCount; ++k) late.of[k][at + i] = saved[Kind::kFirst + k];
    if constexpr (kIsLate && Kind::kHasCell) late.of[Late<Kind>::kCount][at + i] = cell;
  }
#pragma GCC unroll 8
  for (int k = 0; k < kSaved; ++k)
    if (saves && k != Kind::kLater) out.finish(k, n);
  if constexpr (Kind::kHasCell) c.finish(0, n);
  if constexpr (!kIsLate) h.finish(0, n);
}

template <class Kind, class T, bool saves>
FASTACT_HD void late_step(const GateRows& rows, int64_t row, int64_t column, int64_t n,
                          const Late<Kind>& late, int64_t at) {
  using C = typename Kind::Type;
  constexpr bool kHasLater = saves && Kind::kLater >= 0;
  const Inputs<T, 1> before(rows, kStateIn, row, column, Kind::kHasCell ? 0 : n);
  Outputs<T, 1> h(rows, kHidden, row, column),
      later(rows, kGateOut + (kHasLater ? Kind::kLater : 0), row, column);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    C saved[Kind::kSaved];
#pragma GCC unroll 8
    for (int k = 0; k < Late<Kind>::kCount; ++k) saved[Kind::kFirst + k] = late.of[k][at + i];
    Kind::finish(saved);
    if constexpr (kHasLater) later.values[0][i] = saved[Kind::kLater];
    if constexpr (Kind::kHasCell)
      h.values[0][i] = Kind::hidden(saved, C(0), late.of[Late<Kind>::kCount][at + i]);
    else
      h.values[0][i] = Kind::hidden(saved, before.values[0][i], C(0));
  }
  h.finish(0, n);
  if constexpr (kHasLater) later.finish(0, n);
}

template <class Kind, class T, bool recurrent, bool saves>
FASTACT_HD void forward_row(const GateRows& rows, int64_t row, int64_t columns) {
  Late<Kind> late;
  const int64_t strip = Late<Kind>::kIsNeeded ? kStrip : columns;
  for (int64_t start = 0; start < columns; start += strip) {
    const int64_t count = columns - start < strip ? columns - start : strip;
    for_steps<T>(count, [&](int64_t i, int64_t n) FASTACT_INLINED {
      forward_step<Kind, T, recurrent, saves>(rows, row, start + i, n, late, i);
    });
    if constexpr (Late<Kind>::kIsNeeded)
      for_steps<T>(count, [&](int64_t i, int64_t n) FASTACT_INLINED {
        late_step<Kind, T, saves>(rows, row, start + i, n, late, i);
      });
  }
}

// recomputes: the cell's state is lacking, as well as the gates.
template <class Kind, class T, bool recomputes, class Gates>
FASTACT_HD void backward_step(const GateRows& rows, int64_t row, int64_t columns, int64_t column,
                              int64_t n) {
  using C = typename Kind::Type;
  constexpr int kSaved = Kind::kSaved, kGates = Kind::kGates, kAlso = Kind::kAlso;
  constexpr bool kHasCell = Kind::kHasCell;
  const Gates gates(rows, row, column, n);
  const Inputs<T, 1> before(rows, kStateIn, row, column, n), dh(rows, kHidden, row, column, n),
      c(rows, kCell, row, column, kHasCell && !recomputes ? n : 0),
      dc(rows, kCellGradient, row, column, kHasCell ? n : 0);
  Outputs<T, kGates> dgates(rows, kGateOut, row, column);
  Outputs<T, kAlso + 1> drecurrent(rows, kRecurrentOut, row, column);
  Outputs<T, 1> dbefore(rows, kStateOut, row, column);
  dgates.keep(rows, kGateOut, row * columns + column);
  if constexpr (kAlso > 0) drecurrent.keep(rows, kRecurrentOut, row * columns + column);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    C saved[kSaved], d[kSaved + 1];
    gates(i, saved);
    const C state = before.values[0][i];
    C cell = 0, dcell = 0;
    if constexpr (kHasCell) {
      cell = recomputes ? Kind::cell(saved, state) : c.values[0][i];
      dcell = dc.values[0][i];
    }
    Kind::back(saved, state, cell, dh.values[0][i], dcell, d);
#pragma GCC unroll 8
    for (int k = 0; k < kGates; ++k) dgates.values[k][i] = d[Kind::gradient_of(k)];
#pragma GCC unroll 8
    for (int k = 0; k < kAlso; ++k) drecurrent.values[k][i] = d[Kind::gradient_of(kGates + k)];
    dbefore.values[0][i] = d[Kind::gradient_of(kGates + kAlso)];
  }
#pragma GCC unroll 8
  for (int k = 0; k < kGates; ++k) dgates.finish(k, n);
#pragma GCC unroll 8
  for (int k = 0; k < kAlso; ++k) drecurrent.finish(k, n);
  dbefore.finish(0, n);
}

template <class Kind, class T, bool recurrent, bool saves>
void forward(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    forward_row<Kind, T, recurrent, saves>(rows, row, columns);
}
template <class Kind, class T, bool recomputes, class Gates>
void backward(const GateRows& rows, int64_t count, int64_t columns) {
  for (int64_t row = 0; row < count; ++row)
    for_steps<T>(columns, [&](int64_t column, int64_t n) FASTACT_INLINED {
      backward_step<Kind, T, recomputes, Gates>(rows, row, columns, column, n);
    });
}

// Kernels of a kind of cell, for a stored type.
#define FASTACT_FORWARD_OF(Kind, T)                                                            \
  {                                                                                            \
      {forward<Kind<Compute<T>>, T, false, false>, forward<Kind<Compute<T>>, T, false, true>}, \
      {forward<Kind<Compute<T>>, T, true, false>, forward<Kind<Compute<T>>, T, true, true>},   \
  }
#define FASTACT_BACKWARD_OF(Kind, T)                                      \
  {backward<Kind<Compute<T>>, T, false, Saved<Kind<Compute<T>>, T>>,      \
   backward<Kind<Compute<T>>, T, true, Made<Kind<Compute<T>>, T, false>>, \
   backward<Kind<Compute<T>>, T, true, Made<Kind<Compute<T>>, T, true>>}
// If nothing converts a vector at once, 16-bit operands are better left to buffers.
#if defined(__F16C__) && defined(__AVX2__)
#define FASTACT_ALL_TYPES(OF, Kind) \
  {OF(Kind, f16), OF(Kind, bf16), OF(Kind, float), OF(Kind, double)},
#else
#define FASTACT_ALL_TYPES(OF, Kind) {{}, {}, OF(Kind, float), OF(Kind, double)},
#endif
#define FASTACT_FORWARD(name, Kind) FASTACT_ALL_TYPES(FASTACT_FORWARD_OF, Kind)
#define FASTACT_BACKWARD(name, Kind) FASTACT_ALL_TYPES(FASTACT_BACKWARD_OF, Kind)

}  // namespace

extern const GateTable gate_table;
const GateTable gate_table = {
    {FASTACT_GATE_KINDS(FASTACT_FORWARD)},
    {FASTACT_GATE_KINDS(FASTACT_BACKWARD)},
};

FASTACT_END_NAMESPACE
