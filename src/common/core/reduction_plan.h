// A reduction over any axes, brought into the one form that the kernels read.
//
//   y[k] = sum over r of x[k, r]
//
// The axes of x are sorted by their strides, largest first, and merged where neighbours of one
// class (kept or reduced) step as one. Axes along which x repeats itself (stride 0) go outermost.
// Kept axes are reversed where x runs backwards along them. The innermost axis then decides how the
// kernels read:
//
//   inner is reduced   "row sums":    outer axes give the outputs, and pieces of `inner` elements
//   inner is kept      "column sums": each outer reduced index adds a row of `inner` columns
//
// The order in which elements are added is a function of the reduced lengths and of the order of
// the reduced axes (`order_axes`) alone: never of the number of outputs, of an output's position,
// of the base address, of the threads, or of how far and which way the axes step.
#pragma once

#include "common/core/axes.h"

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
  const Operand arrays[] = {x, y};
  const int64_t items[] = {item, item};
  char* data[] = {x.data, y.data};
  Axis<2> axes[kMaxAxes], terms[kMaxAxes];
  int count = find_axes(axes, x, 2, arrays, items, [&](int i) { return int(reduced[i]); });
  int term_axes = 0;
  bool has_repeated_terms = false;
  for (int i = 0; i < count; ++i) {
    Axis<2>& axis = axes[i];
    if (axis.stride[0] < 0 && !(in_order && axis.kind)) reverse_axis(&axis, 2, data);
    has_repeated_terms |= axis.kind && axis.stride[0] == 0;
  }
  plan.x = data[0], plan.y = data[1];

  if (in_order && has_repeated_terms) {
    for (int i = 0; i < count; ++i)
      if (axes[i].kind) terms[term_axes++] = axes[i];
    order_axes(terms, term_axes, 0);
  }
  sort_axes(axes, count, [](const Axis<2>& a, const Axis<2>& b) {
    const int64_t step = std::abs(a.stride[0]), other = std::abs(b.stride[0]);
    return (step == 0) != (other == 0) ? step == 0 : step > other;
  });
  for (int i = 0, next = 0; next < term_axes; ++i)
    if (axes[i].kind) axes[i] = terms[next++];

  count = merge_axes(axes, count);
  if (count == 0) axes[count++] = {1, {item, item}, true};

  const Axis<2>& last = axes[count - 1];
  for (int i = 0; i + 1 < count; ++i)
    (axes[i].kind ? plan.reduced : plan.kept)
        .append(axes[i].length, axes[i].stride[0], axes[i].stride[1]);
  plan.inner_reduced = last.kind;
  plan.inner = last.length;
  plan.inner_x = last.stride[0];
  plan.inner_y = last.stride[1];
  plan.has_unit_inner = last.stride[0] == item;
  plan.has_dense_rows = plan.reduced.count > 0 && plan.has_unit_inner && !last.kind &&
                        std::abs(plan.reduced.x[plan.reduced.count - 1]) == item * last.length;
  return plan;
}

}  // namespace fastact
