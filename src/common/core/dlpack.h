// The DLPack ABI (version 1) and its C exchange API, as far as fastact reads and makes them.
//
// Written from the specification: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

#include "common/core/operand.h"

namespace fastact {

enum : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLExtDev = 12, kDLCUDAManaged = 13 };
enum : uint8_t { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLBool = 6 };
constexpr uint64_t kDLReadOnly = 1;

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

// A dtype, and -1: a byte.
inline DLDataType dlpack_dtype(int dtype) {
#define FASTACT_TYPE(number, name, bytes, code) {code, 8 * bytes, 1},
  constexpr DLDataType types[] = {FASTACT_DTYPES(FASTACT_TYPE)};
#undef FASTACT_TYPE
  return dtype < 0 ? DLDataType{kDLUInt, 8, 1} : types[dtype];
}

// -1: of none that a kernel reads.
inline int dtype_of_dlpack(DLDataType type) {
  for (int dtype = 0; dtype < kViewDTypes; ++dtype) {
    const DLDataType one = dlpack_dtype(dtype);
    if (type.code == one.code && type.bits == one.bits && type.lanes == one.lanes) return dtype;
  }
  return -1;
}

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: C-contiguous
  uint64_t byte_offset;
};

struct DLManagedTensor {  // capsules named "dltensor"
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLManagedTensorVersioned {  // capsules named "dltensor_versioned"
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};

// A capsule "dlpack_exchange_api" on a type's __dlpack_c_exchange_api__ points to it. Each
// function returns 0, or -1 with a Python error set.
struct DLPackExchangeAPI {
  DLPackVersion version;
  void* previous;
  int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error,
                  void (*set_error)(void* error, const char* kind, const char* message));
  int (*managed_from_object)(void* object, DLManagedTensorVersioned** out);
  int (*object_from_managed)(DLManagedTensorVersioned* tensor, void** object);
  int (*borrow)(void* object, DLTensor* out);  // valid while `object` lives; may be null
  int (*current_stream)(int32_t device_type, int32_t device_id, void** stream);
};

// Says in words why nobody can read a tensor; null: it can be read. Lengths, strides and
// offset are taken for what they say only where all of the memory that they reach has an address.
inline const char* problem_of(const DLTensor& t) {
  constexpr int64_t kEnd = int64_t{1} << 62;  // no sum of two such summands overflows
  if (t.ndim < 0) return "it has a negative number of axes";
  if (t.ndim > kMaxAxes) return "it has more than 64 axes";
  if (t.ndim > 0 && !t.shape) return "it has axes, but no shape";
  const int64_t item = (int64_t{t.dtype.bits} * t.dtype.lanes + 7) / 8;
  if (item == 0) return "its elements have no bytes";
  int64_t bytes = item, low = 0, high = 0;
  bool is_empty = false;
  for (int i = t.ndim; i-- > 0;) {
    const int64_t length = t.shape[i];
    if (length < 0) return "it has an axis of negative length";
    int64_t reach = 0;
    if (t.strides && length > 1 &&
        (__builtin_mul_overflow(t.strides[i], item, &reach) ||
         __builtin_mul_overflow(reach, length - 1, &reach) || reach >= kEnd || reach <= -kEnd))
      return "its strides reach past all memory";
    (reach < 0 ? low : high) += reach;
    if (low <= -kEnd || high >= kEnd) return "its strides reach past all memory";
    is_empty |= length == 0;
    // With an axis of length 0, too: the others' product is a stride.
    if (length > 0 && (__builtin_mul_overflow(bytes, length, &bytes) || bytes >= kEnd))
      return "it has more bytes than there are addresses";
  }
  if (is_empty) return nullptr;
  if (!t.data) return "it has elements, but no data";
  if (!t.strides) high = bytes - item;
  const auto base = reinterpret_cast<uintptr_t>(t.data);
  uintptr_t first;
  if (__builtin_add_overflow(base, uintptr_t(t.byte_offset), &first) || first < uintptr_t(-low) ||
      first > UINTPTR_MAX - uintptr_t(high + item))
    return "its offset and strides reach past all memory";
  return nullptr;
}

}  // namespace fastact
