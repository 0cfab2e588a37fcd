// Which instruction sets were built, and which of them this processor has.
//
// FASTACT_ISAS is given by the build as a list of FASTACT_ISA_ENTRY(name), from the least to the
// most capable: v2, v3 and v4 are the x86-64 micro-architecture levels; on other architectures
// there is the compiler's baseline alone.
#include <cstring>

#include "blocks.h"

namespace fastact {

#define FASTACT_ISA_ENTRY(name)  \
  namespace name {               \
  extern const BlockTable table; \
  }
FASTACT_ISAS
#undef FASTACT_ISA_ENTRY

const IsaList& built_isas() {
#define FASTACT_ISA_ENTRY(name) &name::table,
  static const BlockTable* const all[] = {FASTACT_ISAS};
#undef FASTACT_ISA_ENTRY
  static const IsaList list = [] {
    IsaList made{};
    for (const BlockTable* table : all) made.tables[made.count++] = table;
    return made;
  }();
  return list;
}

bool cpu_supports(const char* isa) {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
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

const BlockTable* best_supported_isa() {
  const IsaList& isas = built_isas();
  for (int i = isas.count; i-- > 0;)
    if (cpu_supports(isas.tables[i]->isa)) return isas.tables[i];
  return nullptr;
}

}  // namespace fastact
