// A reduction over any axes, brought into the one form that the kernels read.
//
//   y[k] = sum over r of x[k, r]
//
// The axes of x are sorted by their strides, largest first, and merged where neighbours of one
// class (kept or reduced) step as one. Axes along which x repeats itself (stride 0) go outermost.
// Kept axes are reversed where x runs backwards along them. What is innermost then decides how the
// kernels read:
//
//   inner is reduced   "row sums":    outer axes give the outputs, and pieces of `inner` elements
//   inner is kept      "column sums": each outer reduced index adds a row of `inner` columns
//
// The order in which elements are added is a function of the reduced lengths and of the order of
// the reduced axes (`order_axes`) alone: never of the number of outputs, of an output's position,
// of the base address, of the threads, or of how far and which way the axes step.
#pragma once

#include <cstdlib>
#include <utility>

#include "common/core/operand.h"

namespace fastact {

// Axes outermost first; strides in bytes, of x and of y (0 along a reduced axis).
struct Axes {
  int count = 0;
  int64_t size = 1;  // product of the lengths
  int64_t length[kMaxAxes], x[kMaxAxes], y[kMaxAxes];

  void append(int64_t n, int64_t x_stride, int64_t y_stride) {
    length[count] = n, x[count] = x_stride, y[count] = y_stride;
    ++count;
    size *= n;
  }
};

// The order in which the elements of several axes are added up: that of the caller's axes or, where
// memory holds them in another, memory's. What counts is which of two axes has the longer step.
// Which way it goes does not, so that a reversed array has the bits of its copy, and an axis along
// which the array repeats itself (stride 0), which lies nowhere in memory, keeps its place.
template <class Axis, class Stride>
inline void order_axes(Axis* axes, int count, Stride stride) {
  const auto step = [&](int i) { return std::abs(stride(axes[i])); };
  for (int i = 1; i < count; ++i)
    for (int j = i, k = i - 1; k >= 0 && step(j) != 0; --k) {
      if (step(k) == 0) continue;
      if (step(k) >= step(j)) break;
      std::swap(axes[k], axes[j]);
      j = k;
    }
}

struct Reduction {
  const char* x;
  char* y;
  Axes kept, reduced;   // without the innermost axis
  bool inner_reduced;   // the class of the innermost axis
  int64_t inner;        // its length
  int64_t inner_x;      // its stride in x, bytes; negative only if it is reduced
  int64_t inner_y;      // its stride in y, bytes; if it is kept
  bool has_unit_inner;  // inner_x is the item size
  bool has_dense_rows;  // column sums: the rows of the innermost reduced axis touch, which may
                        // run backwards
  int64_t outputs() const { return kept.size * (inner_reduced ? 1 : inner); }
  int64_t terms() const { return reduced.size * (inner_reduced ? inner : 1); }
};

// x, y: of one rank; y has length 1 along each reduced axis (keepdims). reduced: a flag an axis.
// Neither is empty. in_order: terms are met in the order of `order_axes`; else reduced axes are
// reversed as well, and repeated ones go outermost.
inline Reduction plan_reduction(const Operand& x, const Operand& y, const bool* reduced,
                                int64_t item, bool in_order) {
  Reduction plan{};
  plan.x = x.data;
  plan.y = y.data;

  struct Axis {
    int64_t length, x, y;
    bool reduced;
  } axes[kMaxAxes];
  int count = 0;
  bool has_repeated_terms = false;
  for (int i = 0; i < x.ndim; ++i) {
    if (x.shape[i] == 1) continue;
    Axis axis{x.shape[i], byte_stride(x, i, item), reduced[i] ? 0 : byte_stride(y, i, item),
              reduced[i]};
    if (axis.x < 0 && !(in_order && axis.reduced)) {
      plan.x += (axis.length - 1) * axis.x;
      if (plan.y) plan.y += (axis.length - 1) * axis.y;  // none: y is a shape alone
      axis.x = -axis.x;
      axis.y = -axis.y;
    }
    has_repeated_terms |= axis.reduced && axis.x == 0;
    axes[count++] = axis;
  }

  Axis terms[kMaxAxes];
  int term_axes = 0;
  if (in_order && has_repeated_terms) {
    for (int i = 0; i < count; ++i)
      if (axes[i].reduced) terms[term_axes++] = axes[i];
    order_axes(terms, term_axes, [](const Axis& a) { return a.x; });
  }
  const auto comes_before = [](const Axis& a, const Axis& b) {
    const int64_t step = std::abs(a.x), other = std::abs(b.x);
    return (step == 0) != (other == 0) ? step == 0 : step > other;
  };
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && comes_before(axes[j], axes[j - 1]); --j)
      std::swap(axes[j], axes[j - 1]);
  for (int i = 0, next = 0; next < term_axes; ++i)
    if (axes[i].reduced) axes[i] = terms[next++];

  int merged = 0;
  for (int i = 0; i < count; ++i) {
    const Axis& inner = axes[i];
    if (merged > 0) {
      Axis& outer = axes[merged - 1];
      if (outer.reduced == inner.reduced && outer.x == inner.x * inner.length &&
          outer.y == inner.y * inner.length) {
        outer = {outer.length * inner.length, inner.x, inner.y, inner.reduced};
        continue;
      }
    }
    axes[merged++] = inner;
  }
  if (merged == 0) axes[merged++] = {1, item, item, true};

  const Axis& last = axes[merged - 1];
  for (int i = 0; i + 1 < merged; ++i)
    (axes[i].reduced ? plan.reduced : plan.kept).append(axes[i].length, axes[i].x, axes[i].y);
  plan.inner_reduced = last.reduced;
  plan.inner = last.length;
  plan.inner_x = last.x;
  plan.inner_y = last.y;
  plan.has_unit_inner = last.x == item;
  plan.has_dense_rows = plan.reduced.count > 0 && plan.has_unit_inner && !last.reduced &&
                        std::abs(plan.reduced.x[plan.reduced.count - 1]) == item * last.length;
  return plan;
}

}  // namespace fastact
