// The DLPack ABI (version 1) and its C exchange API, as far as fastact reads and makes them.
//
// Written from the specification: https://dmlc.github.io/dlpack/latest/c_api.html
#pragma once

#include <cstdint>

namespace fastact {

enum : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLExtDev = 12, kDLCUDAManaged = 13 };
enum : uint8_t { kDLFloat = 2, kDLBfloat = 4 };
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

// What a capsule "dlpack_exchange_api" on a type's __dlpack_c_exchange_api__ points to. Each
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

}  // namespace fastact
