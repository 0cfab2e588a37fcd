// Native functions of the CPU: what a family lists, and what the binding runs
// (binding/native_call.pyx).
//
// A native function is a table of its call (common/core/call.h), the bytes of scratch that a call
// needs, and the function that runs it. Each family lists its own once, in C++; nothing is declared
// again in Cython. A call has been checked against its table before it comes here, and its
// workspace is as large as `workspace` says for one thread at least. What the table can't say, such
// as labels out of range, `run` refuses by std::invalid_argument, before it writes anything.
#pragma once

#include <type_traits>
#include <vector>

#include "common/core/call_check.h"
#include "cpu/core/kernel_table.h"
#include "cpu/core/threads.h"

namespace fastact {

// The means of a run: the kernels that were chosen when the call began, and scratch.
struct Execution {
  const KernelTable* kernels;
  char* workspace = nullptr;
  int64_t bytes = 0;

  // OUT: what the caller is warned of after the call, in this order.
  const char* warnings[2] = {};
  int warning_count = 0;

  void warn(const char* text) { warnings[warning_count++] = text; }
};

struct NativeFunction {
  const CallTable* table;
  // Bytes of scratch; null: none.
  int64_t (*workspace)(const void* call, const KernelTable* kernels);
  void (*run)(const void* call, Execution* execution);
  // Runs a part of larger arrays, which any thread may do beside others: it fails never
  // and needs no scratch. Null where there is none.
  void (*run_part)(const void* call, const KernelTable* kernels);
};

template <class Call, class... Rest>
Call call_of(void (*)(const Call&, Rest...));

// A function run(call, execution) with scratch of workspace(call, kernels) bytes; or a function
// run(call, kernels) noexcept, which any thread may run for parts of arrays.
template <auto run, auto workspace = nullptr>
NativeFunction native_function(const CallTable& table) {
  using Call = decltype(call_of(run));
  NativeFunction made{&table, nullptr, nullptr, nullptr};
  if constexpr (!std::is_null_pointer_v<decltype(workspace)>)
    made.workspace = [](const void* call, const KernelTable* kernels) {
      return int64_t{workspace(*static_cast<const Call*>(call), kernels)};
    };
  if constexpr (std::is_nothrow_invocable_v<decltype(run), const Call&, const KernelTable*>) {
    made.run = [](const void* call, Execution* execution) {
      run(*static_cast<const Call*>(call), execution->kernels);
    };
    made.run_part = [](const void* call, const KernelTable* kernels) {
      run(*static_cast<const Call*>(call), kernels);
    };
  } else {
    made.run = [](const void* call, Execution* execution) {
      run(*static_cast<const Call*>(call), execution);
    };
  }
  return made;
}

// Plans a call over so many elements, unless it is empty, and runs its partitions on the threads
// that it is worth.
template <class Plan, class Call, class... Options>
void run_planned(void (*partition)(const Plan*, int64_t, int64_t), int64_t size, const Call& call,
                 const KernelTable* kernels, Options... options) {
  if (size == 0) return;
  Plan plan;
  prepare(&plan, kernels, call, options...);
  run_partitions(resolve_threads(size), partition, &plan);
}

#define FASTACT_ADD(family, kernels) void add_##family(std::vector<NativeFunction>* functions);
FASTACT_FAMILIES(FASTACT_ADD, )
#undef FASTACT_ADD
void add_quantize(std::vector<NativeFunction>* functions);  // of no family

// The functions of all families, in the order of their families.
inline const std::vector<NativeFunction>& native_functions() {
  static const std::vector<NativeFunction> all = [] {
    std::vector<NativeFunction> functions;
#define FASTACT_ADD(family, kernels) add_##family(&functions);
    FASTACT_FAMILIES(FASTACT_ADD, )
#undef FASTACT_ADD
    add_quantize(&functions);
    return functions;
  }();
  return all;
}

}  // namespace fastact
