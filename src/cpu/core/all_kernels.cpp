// The table of all kernels of one instruction set (FASTACT_ISA). Each part stands in its family's
// kernels.cpp.
#include "common/core/macros.h"
#include "cpu/core/kernel_table.h"

#define FASTACT_QUOTE_(text) #text
#define FASTACT_QUOTE(text) FASTACT_QUOTE_(text)

FASTACT_BEGIN_NAMESPACE

extern const ElementwiseTable elementwise_table;
extern const BiasKernels bias_kernels;
extern const ReduceTable reduce_table;
extern const NormTable norm_table;
extern const ChannelsLastTable channels_last_table;
extern const BatchNormTable batch_norm_table;
extern const GateTable gate_table;
extern const GatedKernels gated_kernels;
extern const SoftmaxTable softmax_table;
extern const ConvertKernels convert_kernels;
extern const CompareKernels compare_kernels;
extern const KernelTable table;
const KernelTable table = {
    FASTACT_QUOTE(FASTACT_ISA), &elementwise_table, &bias_kernels, &reduce_table,  &norm_table,
    &channels_last_table,       &batch_norm_table,  &gate_table,   &gated_kernels, &softmax_table,
    &convert_kernels,           &compare_kernels,
};

FASTACT_END_NAMESPACE
