// Second derivatives of rows: gradients of what norms, softmax and its logarithm give backward, in
// one pass.
//
// u comes back to dx, which `backward` made of dy and of what was saved. Here are the gradients of
// <u, dx>, by dy and by what was saved: x of a norm, else y. Sums and means are over a row.
//
// Norms (common/norms/norms.h). With g = dy w,
//
//   dx = P g      P v = rstd (v - mean(v) - xhat mean(xhat v))
//
// P is its own transpose, so <u, dx> = <P u, g> and
//
//   ddy = w P u      dw = sum dy P u, over every element that the weight meets.
//
// A change of x along v moves xhat by P v and rstd by -rstd^2 mean(xhat v), so P itself by
//
//   P' g = -rstd (mean(xhat v) P g + mean(xhat g) P v + xhat mean(g P v)).
//
// It is symmetric in u and v as well: the gradient of <u, P g> by x is P' g along u, where
//
//   mean(g P u) = rstd (mean(g u) - mean(g) mean(u) - mean(xhat g) mean(xhat u))
//
// takes no pass of its own. (rms_norm: the same with 0 for mean(u) and mean(g).)
//
// Softmax: dx = scale y (dy - sum(dy y)). It is symmetric in u and dy but for what follows from y:
//
//   ddy = scale y (u - sum(u y))      by y: scale (u (dy - sum(dy y)) - dy sum(u y))
//
// Log-softmax: dx = scale (dy - p sum(dy)) with p = exp(y), which changes by p with y. So <u, dx> =
// scale (sum(u dy) - sum(u p) sum(dy)), and
//
//   ddy = scale (u - sum(u p))        by y: -scale u p sum(dy)
//
// Error. Terms are rounded to the compute type, a few are added in it and these sums in double, as
// the norms backward do. With u = 2^-24 (2^-53 for double) ddy is as accurate as dx of `backward`,
// and the other gradient within 16 u of the sum of its parts' magnitudes.
#pragma once

#include "common/core/call.h"
#include "common/norms/norms.h"

namespace fastact {

// The function that gave dx: a norm with a mean or without one, softmax or its logarithm.
enum SecondKind : int {
  kSecondOfCentred,
  kSecondOfRms,
  kSecondOfSoftmax,
  kSecondOfLogSoftmax,
  kSecondKinds
};
constexpr const char* kSecondKindNames[] = {"CentredNorm", "RmsNorm", "softmax", "log_softmax"};
FASTACT_HD constexpr bool is_norm(int kind) { return kind < kSecondOfSoftmax; }

struct SecondCall {
  enum Data : int { kSaved, kU, kDy, kWeight, kMean, kRstd, kDDy, kDSaved, kTerms, kArrays };

  ArrayArgument data[kArrays];  // with the axes of what was saved
  AxisFlags reduced;
  int kind;
  double scale;          // of softmax and its logarithm
  double weight_offset;  // what is added to each weight
  bool accumulate;       // ddy and dsaved are added to
};

// The numbers that an element needs of its row: the call's and, in the place of sums, what follows
// from them.
struct SecondRow {
  double mean, rstd, weight_offset, scale;
  double sums[5];
};

inline const char* problem_of_second(const void* given) {
  const SecondCall& call = *static_cast<const SecondCall*>(given);
  const bool has_rstd = call.data[SecondCall::kRstd].shape;
  return has_rstd == is_norm(call.kind) ? nullptr : "rstd must be an array, of norms alone";
}

// ddy OUT, dsaved OUT, and terms OUT, whose sum is the weight's gradient, of ddx IN and dy IN; or
// ddy and dsaved IN/OUT += with accumulate. Each output is ddx, dy, saved, or disjoint from all.
constexpr Field kSecondFields[] = {
    fields::in<&SecondCall::data, SecondCall::kSaved>("saved"),
    fields::in<&SecondCall::data, SecondCall::kU>("ddx").like("saved"),
    fields::in<&SecondCall::data, SecondCall::kDy>("dy").like("saved"),
    fields::axes<&SecondCall::reduced>("reduced", "saved"),
    fields::in<&SecondCall::data, SecondCall::kWeight>("weight")
        .beside("saved")
        .wide_enough("saved")
        .optional(),
    fields::in<&SecondCall::data, SecondCall::kMean>("mean")
        .reduced("saved", "reduced")
        .compute_type("saved")
        .optional(),
    fields::in<&SecondCall::data, SecondCall::kRstd>("rstd")
        .reduced("saved", "reduced")
        .compute_type("saved")
        .optional(),
    fields::out<&SecondCall::data, SecondCall::kDDy>("ddy").like("saved").optional(),
    fields::out<&SecondCall::data, SecondCall::kDSaved>("dsaved").like("saved").optional(),
    fields::out<&SecondCall::data, SecondCall::kTerms>("terms").like("saved").optional(),
    fields::in<&SecondCall::kind>("kind").below(kSecondKinds),
    fields::in<&SecondCall::scale>("scale"),
    fields::in<&SecondCall::weight_offset>("weight_offset"),
    fields::in<&SecondCall::accumulate>("accumulate"),
};
constexpr CallTable kSecond =
    table_of_call<SecondCall>("second_rows", kSecondFields, problem_of_second);

}  // namespace fastact

FASTACT_BEGIN_NAMESPACE

// The results of an element.
template <class C>
struct SecondElement {
  C ddy, dsaved, term;
};

// x in the place of `saved`.
template <class C>
struct SecondOfNorm {
  static constexpr int kSums = 5;
  static constexpr bool kHasTerms = true;
  static constexpr bool kTakesExp = false;  // of `saved`, in the weight's place
  RowGradient<C> of_u, of_g;
  C offset, mean_g_pu;

  FASTACT_HD explicit SecondOfNorm(const SecondRow& row)
      : of_u{C(row.mean), C(row.rstd), C(row.sums[0]), C(row.sums[1])},
        of_g{C(row.mean), C(row.rstd), C(row.sums[2]), C(row.sums[3])},
        offset(C(row.weight_offset)),
        mean_g_pu(C(row.sums[4])) {}

  // Visits each sum's term: of C, or of vectors of it.
  template <class V, class Add>
  FASTACT_HD void add(V u, V dy, V x, V weight, Add add) const {
    const V xhat = of_u.xhat(x), g = dy * (weight + offset);
    add(0, u), add(1, u * xhat), add(2, g), add(3, g * xhat), add(4, g * u);
  }
  FASTACT_HD SecondElement<C> operator()(C u, C dy, C x, C weight) const {
    const C xhat = of_u.xhat(x), w = weight + offset;
    const C pu = of_u.dx(u, xhat), pg = of_g.dx(dy * w, xhat);
    const C along = madd(of_g.mean_g_xhat, pu, of_u.mean_g_xhat * pg);
    return {w * pu, -of_u.rstd * madd(xhat, mean_g_pu, along), dy * pu};
  }
  static FASTACT_HD void finish(int kind, double count, SecondRow* row) {
    double* const sums = row->sums;
    for (int s = 0; s < kSums; ++s) sums[s] /= count;
    if (kind != kSecondOfCentred) sums[0] = sums[2] = 0;
    sums[4] = row->rstd * (sums[4] - sums[0] * sums[2] - sums[1] * sums[3]);
  }
};

// y in the place of `saved`. An element whose y is 0 takes no part, as in the backward: its u and
// dy may be infinite or NaN.
template <class C>
struct SecondOfSoftmax {
  static constexpr int kSums = 2;
  static constexpr bool kHasTerms = false;
  static constexpr bool kTakesExp = false;
  C scale, of_u, of_dy;

  FASTACT_HD explicit SecondOfSoftmax(const SecondRow& row)
      : scale(C(row.scale)), of_u(C(row.sums[0])), of_dy(C(row.sums[1])) {}

  template <class V, class Add>
  FASTACT_HD void add(V u, V dy, V y, V, Add add) const {
    const V zero{};
    add(0, y == zero ? zero : u * y), add(1, y == zero ? zero : dy * y);
  }
  FASTACT_HD SecondElement<C> operator()(C u, C dy, C y, C) const {
    if (y == C(0)) return {};
    return {scale * (y * (u - of_u)), scale * madd(-dy, of_u, u * (dy - of_dy)), C(0)};
  }
  static FASTACT_HD void finish(int, double, SecondRow*) {}
};

// y in the place of `saved`, and p in the weight's. An element whose y is -inf takes no part, but
// in the sum of dy, as in the backward: its u may be infinite or NaN.
template <class C>
struct SecondOfLogSoftmax {
  static constexpr int kSums = 2;
  static constexpr bool kHasTerms = false;
  static constexpr bool kTakesExp = true;
  static constexpr double kNothing = -__builtin_inf();
  C scale, of_u, of_dy;

  FASTACT_HD explicit SecondOfLogSoftmax(const SecondRow& row)
      : scale(C(row.scale)), of_u(C(row.sums[0])), of_dy(C(row.sums[1])) {}

  template <class V, class Add>
  FASTACT_HD void add(V u, V dy, V y, V p, Add add) const {
    const V zero{};
    add(0, y == zero + C(kNothing) ? zero : u * p), add(1, dy);
  }
  FASTACT_HD SecondElement<C> operator()(C u, C, C y, C p) const {
    u = y == C(kNothing) ? C(0) : u;
    return {scale * (u - of_u), -scale * (u * p * of_dy), C(0)};
  }
  static FASTACT_HD void finish(int, double, SecondRow*) {}
};

FASTACT_END_NAMESPACE
