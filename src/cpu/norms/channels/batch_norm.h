// batch_norm: z = (x - mean) rstd w + b for each channel, f(z), and the backward pass.
//
// The statistics are moments (reductions/reduce.h) over every axis but the channels'. Everything
// after them goes chunk by chunk in the compute type (core/chunk_reader.h), with the activation's
// kernel on a chunk that lies in the first-level cache. Contiguous arrays of 16 bits, where there
// is no activation, need no such chunk: the kernels convert as they go, but for short rows. The
// channel coefficients, a few numbers a channel, are computed once a call. Where the channels are
// rows (NCHW) a coefficient is one number a row; where they are the columns (channels last) the
// coefficients are a row themselves, repeated for short rows.
//
// Backward makes two passes over dy and x: the sums of p and of p (x - mean), then dx. A lane of
// the compute type takes 8 terms (norms/channels/kernels.h), and everything after that
// is double, in pieces and chunks whose borders depend on the shape alone: the bits do not depend
// on the threads. With m the largest |p| and |p xhat| in a group of lanes, the sums err by 8 u
// sum|term| (u = 2^-24; double: 2^-53).
//
// Contiguous segments of 16 elements and more are computed many in one call, each with its own
// coefficients. Their sums stay on lanes in registers while segment after segment of a channel goes
// by, and are folded once a chunk. Where several channels fit into a cache at once, backward makes
// both passes over some channels at a time.
//
// Measurements, and what was tried and rejected: docs/design/norms.md.
#pragma once

#include "common/norms/channel_call.h"
#include "cpu/core/fused_pass.h"
#include "cpu/core/kernel_table.h"
#include "cpu/core/native_function.h"
#include "cpu/norms/channels/pass.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

// The numbers of the channels in the plan's order of channels, in the scratch of a call.
struct ChannelNumbers {
  double *mean, *rstd, *weight, *bias, *sums;  // sums: [2][channels] of p and p xhat
  double* partial;                             // [chunks][2][channels]
  Coefficients coefficients;                   // of short rows of channels last, repeated
};

struct BatchNorm : FusedPlan, BatchOptions, ChannelNumbers {
  enum { kDy, kX, kOut };  // the operands; those without data are absent

  const KernelTable* table;
  ElementwiseKernel activation;  // of the compute type, forward or backward
  bool is_identity;
  int64_t count;  // values a channel
  // Backward: how the terms are cut.
  int64_t cuts;    // pieces of a row, where the channel is the row
  int64_t chunks;  // of all pieces, or of all rows
};

// The native functions (common/norms/channel_call.h), and the bytes of their scratch.
template <bool is_rstd>  // what the call has as spread: norm_apply
void batch_norm_forward(const BatchForward& call, Execution* execution);
void batch_norm_backward(const BatchBackward& call, Execution* execution);
int64_t batch_forward_workspace(const BatchForward& call, const KernelTable* kernels);
int64_t batch_backward_workspace(const BatchBackward& call, const KernelTable* kernels);

// Sets, once the sums of n channels are known, the two coefficients of training's gradient that
// come of them.
void make_slopes(const BatchNorm& norm, int64_t first, int64_t n);

// Makes y; or the sums of p and p xhat, where they are asked for, and dx where it is there.
void run_forward(const BatchNorm& norm, int threads);
void run_backward(const BatchNorm& norm, bool needs_sums, int threads);

}  // namespace fastact
