// The table of all kernels of one instruction set (FASTACT_ISA). Each part stands in its family's
// kernels.cpp.
#include "common/core/macros.h"
#include "cpu/core/kernel_table.h"

#define FASTACT_QUOTE_(text) #text
#define FASTACT_QUOTE(text) FASTACT_QUOTE_(text)

FASTACT_BEGIN_NAMESPACE

#define FASTACT_DECLARE(member, Table, object) extern const Table object;
#define FASTACT_ADDRESS(member, Table, object) &object,
FASTACT_KERNEL_TABLES(FASTACT_DECLARE)
extern const KernelTable table;
const KernelTable table = {FASTACT_QUOTE(FASTACT_ISA), FASTACT_KERNEL_TABLES(FASTACT_ADDRESS)};

FASTACT_END_NAMESPACE
