// The families of ops, from which the CPU's table of kernels is made.
#pragma once

// X(family, kernels): what a family has compiled once per instruction set are K(member of
// KernelTable, its type, the object).
#define FASTACT_FAMILIES(X, K)                                                                    \
  X(activations, K(elementwise, ElementwiseTable, elementwise_table))                             \
  X(bias, K(bias, BiasKernels, bias_kernels))                                                     \
  X(reductions, K(reduce, ReduceTable, reduce_table) K(grouped, GroupedKernels, grouped_kernels)) \
  X(norms, K(norm, NormTable, norm_table) K(channels, ChannelTable, channel_table))               \
  X(gates, K(gate, GateTable, gate_table))                                                        \
  X(gated, K(gated, GatedKernels, gated_kernels))                                                 \
  X(softmax, K(softmax, SoftmaxTable, softmax_table))                                             \
  X(rotary, K(rotary, RotaryKernels, rotary_kernels))                                             \
  X(second, K(second, SecondKernels, second_kernels))
