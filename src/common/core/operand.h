// An array as native code sees it, whichever device it lies on.
#pragma once

#include <cstdint>

namespace fastact {

// X(number, name, bytes, DLPack's code): the dtypes that are computed, and the dtypes of masks and
// indices.
#define FASTACT_COMPUTED_DTYPES(X)   \
  X(kF16, "float16", 2, kDLFloat)    \
  X(kBF16, "bfloat16", 2, kDLBfloat) \
  X(kF32, "float32", 4, kDLFloat)    \
  X(kF64, "float64", 8, kDLFloat)
#define FASTACT_DTYPES(X)      \
  FASTACT_COMPUTED_DTYPES(X)   \
  X(kBool, "bool", 1, kDLBool) \
  X(kI32, "int32", 4, kDLInt)  \
  X(kI64, "int64", 8, kDLInt)

#define FASTACT_NUMBER(number, name, bytes, code) number,
#define FASTACT_ONE(number, name, bytes, code) +1
#define FASTACT_NAME(number, name, bytes, code) name,
#define FASTACT_BYTES(number, name, bytes, code) bytes,
enum DType : int { FASTACT_DTYPES(FASTACT_NUMBER) kViewDTypes };
constexpr int kDTypes = FASTACT_COMPUTED_DTYPES(FASTACT_ONE);
constexpr const char* kDTypeNames[] = {FASTACT_DTYPES(FASTACT_NAME)};

inline int64_t item_size(int dtype) {
  constexpr int64_t sizes[] = {FASTACT_DTYPES(FASTACT_BYTES)};
  return sizes[dtype];
}
#undef FASTACT_NUMBER
#undef FASTACT_ONE
#undef FASTACT_NAME
#undef FASTACT_BYTES

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

// Elements.
inline int64_t size_of(const Operand& a) {
  int64_t size = 1;
  for (int i = 0; i < a.ndim; ++i) size *= a.shape[i];
  return size;
}

// Bytes from one element to the next along an axis.
inline int64_t byte_stride(const Operand& a, int axis, int64_t item) {
  if (a.strides) return a.strides[axis] * a.stride_unit;
  int64_t stride = item;
  for (int inner = axis + 1; inner < a.ndim; ++inner) stride *= a.shape[inner];
  return stride;
}

}  // namespace fastact
