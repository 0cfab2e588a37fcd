// The places of an instruction set's kernels, for tests that read their machine code.
#include <map>
#include <string>
#include <utility>

#include "cpu/activations/kernels.h"
#include "cpu/core/kernel_table.h"
#include "cpu/gates/kernels.h"
#include "cpu/reductions/kernels.h"
#include "cpu/reductions/weighted_kernels.h"
#include "cpu/rotary/kernels.h"

namespace fastact {
namespace {

using Found = std::map<std::pair<std::string, int>, uintptr_t>;

// Adds a kernel, or an array of kernels, whose dtype_axis-th index is the dtype.
template <class T>
void add(Found* found, const std::string& name, const T& kernels, int dtype_axis,
         int dtype = kF64) {
  if constexpr (std::is_array_v<T>)
    for (int i = 0; i < int(std::extent_v<T>); ++i)
      add(found, dtype_axis == 0 ? name : name + " " + std::to_string(i), kernels[i],
          dtype_axis - 1, dtype_axis == 0 ? i : dtype);
  else if (kernels)
    (*found)[{name, dtype}] = reinterpret_cast<uintptr_t>(kernels);
}

}  // namespace

// Addresses by name and dtype: "elementwise backward 3 1" is elementwise->backward[3][dtype][1].
// Kernels that know no dtype compute in double.
Found kernel_addresses(const KernelTable& table) {
  Found found;
#define FASTACT_LIST(family, member, dtype_axis) \
  add(&found, #family " " #member, table.family->member, dtype_axis);
  FASTACT_LIST(elementwise, forward, 1)
  FASTACT_LIST(elementwise, backward, 1)
  FASTACT_LIST(elementwise, backward_by_saved, 1)
  FASTACT_LIST(elementwise, second, 1)
  FASTACT_LIST(elementwise, added, 0)
  FASTACT_LIST(elementwise, term_backward, 1)
  FASTACT_LIST(elementwise, moments_backward, 0)
  FASTACT_LIST(gate, forward, 1)
  FASTACT_LIST(gate, backward, 1)
  FASTACT_LIST(gate, recompute, 1)
  FASTACT_LIST(rotary, turn, 0)
  FASTACT_LIST(reduce, weighting->choose, -1)
  FASTACT_LIST(reduce, weighting->mask, -1)
  FASTACT_LIST(reduce, weighting->gradient, -1)
#undef FASTACT_LIST
  for (int i = 0; i < kTerms; ++i)
    for (int dtype = 0; dtype < kDTypes; ++dtype)
      add(&found, "reduce blocks " + std::to_string(i),
          table.reduce->accumulators[i].kernels[dtype].blocks, -1, dtype);
  return found;
}

}  // namespace fastact
