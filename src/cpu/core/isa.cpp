// The instruction sets that were built, and those of them that this processor has.
//
// FASTACT_ISAS is given by the build as a list of FASTACT_ISA_ENTRY(name), from the least to the
// most capable: v2, v3 and v4 are the x86-64 micro-architecture levels; on other architectures
// there is the compiler's baseline alone.
#include <cstring>

#include "cpu/core/kernel_table.h"

namespace fastact {

#define FASTACT_ISA_ENTRY(name)   \
  namespace name {                \
  extern const KernelTable table; \
  }
FASTACT_ISAS
#undef FASTACT_ISA_ENTRY

#define FASTACT_ISA_ENTRY(name) &name::table,
const KernelTable* const kBuiltIsas[] = {FASTACT_ISAS};
#undef FASTACT_ISA_ENTRY
const int kBuiltIsaCount = int(sizeof kBuiltIsas / sizeof *kBuiltIsas);

// The compiler's runtime asks the processor, and the operating system whether it saves the
// registers. Compilers do not know all names of the psABI's list of a level: these stand for the
// others, which every processor with them has too (v3: F16C, LZCNT, MOVBE).
bool cpu_supports(const char* isa) {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  const bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
  const bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  if (!strcmp(isa, "v2")) return v2;
  if (!strcmp(isa, "v3")) return v3;
  if (!strcmp(isa, "v4")) return v4;
#endif
  return !strcmp(isa, "baseline");
}

const KernelTable* best_supported_isa() {
  for (int i = kBuiltIsaCount; i-- > 0;)
    if (cpu_supports(kBuiltIsas[i]->isa)) return kBuiltIsas[i];
  return nullptr;
}

}  // namespace fastact
