// The axes of several arrays together: found, reversed, sorted and merged, for every plan that
// reads arrays of any strides.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/core/operand.h"

namespace fastact {

// One axis of some arrays.
template <int arrays>
struct Axis {
  int64_t length;
  int64_t stride[arrays];  // bytes; 0 of arrays that repeat themselves or are not there
  int kind;                // what the plan tells apart: only axes of one kind are merged
};

// axes OUT (kMaxAxes): the axes of `shape` that are longer than 1, as `count` arrays step along
// them. An array that is not there has no shape. items: bytes of an element of each; kind_of(i):
// the kind of the i-th axis. Returns how many axes there are.
template <int most, class Kind>
int find_axes(Axis<most>* axes, const Operand& shape, int count, const Operand* arrays,
              const int64_t* items, Kind kind_of) {
  int found = 0;
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape.shape[i] == 1) continue;
    Axis<most>& axis = axes[found++];
    axis.length = shape.shape[i], axis.kind = kind_of(i);
    for (int k = 0; k < count; ++k) {
      const bool steps = arrays[k].shape && arrays[k].shape[i] != 1;
      axis.stride[k] = steps ? byte_stride(arrays[k], i, items[k]) : 0;
    }
    std::fill(axis.stride + count, axis.stride + most, 0);
  }
  return found;
}

// Walks an axis from its end. data IN/OUT: where `count` arrays begin. One that is not there has
// strides of 0, and its data stays null. (Addresses are counted as numbers: an index has one that
// is no memory's, IndexOperand in cuda/core/indexing.cuh.)
template <int most>
void reverse_axis(Axis<most>* axis, int count, char** data) {
  for (int k = 0; k < count; ++k) {
    data[k] = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(data[k]) +
                                      uintptr_t((axis->length - 1) * axis->stride[k]));
    axis->stride[k] = -axis->stride[k];
  }
}

// Axes keep their order where neither comes before the other.
template <int most, class Before>
void sort_axes(Axis<most>* axes, int count, Before comes_before) {
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && comes_before(axes[j], axes[j - 1]); --j)
      std::swap(axes[j], axes[j - 1]);
}

// The order in which the elements of several axes are added up: the order of the caller's axes or,
// where memory holds them in another, memory's. The length of the steps of array k decides between
// two axes. Their direction does not, so that a reversed array has the bits of its copy, and an
// axis along which the array repeats itself (stride 0), which lies nowhere in memory, keeps its
// place.
template <int most>
void order_axes(Axis<most>* axes, int count, int k) {
  const auto step = [&](int i) {  // a stride may be the least number that there is
    const uint64_t stride = uint64_t(axes[i].stride[k]);
    return axes[i].stride[k] < 0 ? -stride : stride;
  };
  for (int i = 1; i < count; ++i)
    for (int j = i, before = i - 1; before >= 0 && step(j) != 0; --before) {
      if (step(before) == 0) continue;
      if (step(before) >= step(j)) break;
      std::swap(axes[before], axes[j]);
      j = before;
    }
}

// order OUT (ndim): an array's axes, those of length 1 too, as `order_axes` has them.
inline void axes_in_order(const Operand& a, int64_t* order) {
  Axis<1> axes[kMaxAxes];
  for (int i = 0; i < a.ndim; ++i) axes[i] = {a.shape[i], {a.strides[i]}, i};
  order_axes(axes, a.ndim, 0);
  for (int i = 0; i < a.ndim; ++i) order[i] = axes[i].kind;
}

// Neighbours of one kind become one axis where every array steps over both as one. Returns how many
// axes are left.
template <int most>
int merge_axes(Axis<most>* axes, int count) {
  int left = 0;
  for (int i = 0; i < count; ++i) {
    bool merges = left > 0 && axes[left - 1].kind == axes[i].kind;
    for (int k = 0; k < most && merges; ++k)
      merges = axes[left - 1].stride[k] == axes[i].stride[k] * axes[i].length;
    const int64_t outer = merges ? axes[left - 1].length : 1;
    const int at = merges ? left - 1 : left++;
    axes[at] = axes[i];
    axes[at].length *= outer;
  }
  return left;
}

}  // namespace fastact
