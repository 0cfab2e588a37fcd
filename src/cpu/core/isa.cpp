// The instruction sets that were built, and those of them that this processor has.
//
// FASTACT_ISAS is given by the build as a list of FASTACT_ISA_ENTRY(name), from the least to the
// most capable: v2, v3 and v4 are the x86-64 micro-architecture levels; on other architectures
// there is the compiler's baseline alone.
#include <cstring>

#include "cpu/core/kernel_table.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define FASTACT_X86 1
#include <cpuid.h>
#endif

namespace fastact {

#define FASTACT_ISA_ENTRY(name)   \
  namespace name {                \
  extern const KernelTable table; \
  }
FASTACT_ISAS
#undef FASTACT_ISA_ENTRY

const IsaList& built_isas() {
#define FASTACT_ISA_ENTRY(name) &name::table,
  static const KernelTable* const all[] = {FASTACT_ISAS};
#undef FASTACT_ISA_ENTRY
  static const IsaList list = [] {
    IsaList made{};
    for (const KernelTable* table : all) made.tables[made.count++] = table;
    return made;
  }();
  return list;
}

namespace {

constexpr uint32_t bit(int n) { return uint32_t{1} << n; }

// The x86-64 psABI's list of each level, in the registers of CPUID.
//                    SSE3     SSSE3    CMPXCHG16B SSE4.1    SSE4.2    POPCNT
constexpr uint32_t kV2 = bit(0) | bit(9) | bit(13) | bit(19) | bit(20) | bit(23);
constexpr uint32_t kV2Extended = bit(0);  // LAHF and SAHF
//                       FMA       MOVBE     OSXSAVE   AVX       F16C
constexpr uint32_t kV3 = bit(12) | bit(22) | bit(27) | bit(28) | bit(29);
constexpr uint32_t kV3Seven = bit(3) | bit(5) | bit(8);  // BMI1, AVX2, BMI2
constexpr uint32_t kV3Extended = bit(5);                 // LZCNT
//                            F         DQ        CD        BW        VL
constexpr uint32_t kV4Seven = bit(16) | bit(17) | bit(28) | bit(30) | bit(31);
// The registers that the operating system saves: SSE's and AVX's; AVX-512's and its masks.
constexpr uint64_t kV3State = 0x6, kV4State = 0xe6;

#ifdef FASTACT_X86
CpuFeatures this_cpu() {
  CpuFeatures found{};
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d)) found.leaf1_ecx = c;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) found.leaf7_ebx = b;
  if (__get_cpuid(0x80000001, &a, &b, &c, &d)) found.extended_ecx = c;
  if (found.leaf1_ecx & bit(27)) {  // else the instruction does not exist
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    found.xcr0 = uint64_t{high} << 32 | low;
  }
  return found;
}
#endif

}  // namespace

int x86_level(const CpuFeatures& cpu) {
  const auto all = [](auto have, auto wanted) { return (have & wanted) == wanted; };
  if (!all(cpu.leaf1_ecx, kV2) || !all(cpu.extended_ecx, kV2Extended)) return 1;
  if (!all(cpu.leaf1_ecx, kV3) || !all(cpu.leaf7_ebx, kV3Seven) ||
      !all(cpu.extended_ecx, kV3Extended) || !all(cpu.xcr0, kV3State))
    return 2;
  return all(cpu.leaf7_ebx, kV4Seven) && all(cpu.xcr0, kV4State) ? 4 : 3;
}

bool cpu_supports(const char* isa) {
#ifdef FASTACT_X86
  static const int level = x86_level(this_cpu());
  if (!strcmp(isa, "v2")) return level >= 2;
  if (!strcmp(isa, "v3")) return level >= 3;
  if (!strcmp(isa, "v4")) return level >= 4;
#endif
  return !strcmp(isa, "baseline");
}

const KernelTable* best_supported_isa() {
  const IsaList& isas = built_isas();
  for (int i = isas.count; i-- > 0;)
    if (cpu_supports(isas.tables[i]->isa)) return isas.tables[i];
  return nullptr;
}

}  // namespace fastact
