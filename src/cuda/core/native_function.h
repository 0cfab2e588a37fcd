// How a .cu offers its native functions. One line each, behind the functions, in the storage type
// that the file is compiled for:
//
//   using Storage = FASTACT_STORAGE;
//   const NativeFunction<softmax_workspace<Storage>, softmax_forward<Storage>>
//   forward(kSoftmaxForward); const NativeFunction<softmax_sink<Storage>> sink(kSoftmaxSink);
//
// These have one signature in all families, for the struct of the table's calls, which were
// checked; any array may be empty:
//   int64_t workspace(const Call&)                     bytes of scratch, from the whole call
//   void run(const Call&, void* workspace, cudaStream_t)
//   void run(const Call&, cudaStream_t)                where there is no scratch
// They queue their work on a stream of the current device, and check nothing. workspace: aligned to
// 16 bytes, and as large as the first one says.
#pragma once

#include "common/core/call.h"
#include "common/core/device_table.h"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <auto... functions>
struct NativeFunction;

template <class Call, int64_t (*workspace)(const Call&),
          void (*run)(const Call&, void*, cudaStream_t)>
struct NativeFunction<workspace, run> {
  explicit NativeFunction(const CallTable& table) {
    add_device_function(
        table, kDTypeOf<FASTACT_STORAGE>,
        {[](const void* call) { return workspace(*static_cast<const Call*>(call)); },
         [](const void* call, void* scratch, void* stream) {
           run(*static_cast<const Call*>(call), scratch, static_cast<cudaStream_t>(stream));
         }});
  }
};

template <class Call, void (*run)(const Call&, cudaStream_t)>
struct NativeFunction<run> {
  explicit NativeFunction(const CallTable& table) {
    add_device_function(table, kDTypeOf<FASTACT_STORAGE>,
                        {[](const void*) { return int64_t(0); },
                         [](const void* call, void*, void* stream) {
                           run(*static_cast<const Call*>(call), static_cast<cudaStream_t>(stream));
                         }});
  }
};

}  // namespace
FASTACT_END_NAMESPACE
