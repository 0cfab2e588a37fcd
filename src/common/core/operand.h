// An array as native code sees it, whichever device it lies on.
#pragma once

#include <cstdint>

namespace fastact {

// The kDTypes dtypes that are computed, and after them the dtypes of masks and of indices.
enum DType : int { kF16, kBF16, kF32, kF64, kDTypes, kBool = kDTypes, kI32, kI64, kViewDTypes };

inline int64_t item_size(int dtype) {
  constexpr int64_t sizes[kViewDTypes] = {2, 2, 4, 8, 1, 4, 8};
  return sizes[dtype];
}

constexpr int kMaxAxes = 64;  // NumPy's limit

// One array as its framework describes it.
struct Operand {
  char* data;
  int ndim;
  const int64_t* shape;
  const int64_t* strides;  // null: C-contiguous
  int64_t stride_unit;     // bytes that one step of `strides` stands for
};

inline bool is_empty(const Operand& a) {
  for (int i = 0; i < a.ndim; ++i)
    if (a.shape[i] == 0) return true;
  return false;
}

// Bytes from one element to the next along an axis.
inline int64_t byte_stride(const Operand& a, int axis, int64_t item) {
  if (a.strides) return a.strides[axis] * a.stride_unit;
  int64_t stride = item;
  for (int inner = axis + 1; inner < a.ndim; ++inner) stride *= a.shape[inner];
  return stride;
}

}  // namespace fastact
