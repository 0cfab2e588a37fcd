// batch_norm: z = (x - mean) rstd w + b per channel and f(z) on top, and the way back.
//
// The statistics are moments (moments.h) over every axis but the channels'. What follows goes chunk
// by chunk in the compute type (core/chunk_reader.h), with the activation's block function on a
// chunk that lies in the first-level cache; of each channel there are a few coefficients, made once
// a call. Where the channel is a line (NCHW) they are one number a line, or spread over a chunk of
// short lines; where it is the columns (channels last) they are a row, repeated for short lines.
//
// Backward takes two passes over dy and x: the sums of p and p (x - mean), then dx. A lane of the
// compute type takes 8 terms (norms/channels/batch_norm_kernels.h), everything after that is
// double, in pieces and chunks whose cut depends on the shape alone: the bits know nothing of
// threads. With m the largest |p| and |p xhat| in a group of lanes, the sums err by 8 u sum|term|
// (u = 2^-24; double: 2^-53).
//
// Lines of 16 elements and more, side by side, are calls of many lines with a coefficient a line;
// their sums stay on lanes in registers while line after line of a channel goes by, and fold once a
// chunk. Where several channels fit into a cache at once, backward takes both passes over some
// channels at a time.
//
// float32 in training on two AVX-512 threads, as a ratio to a copy of x, and torch's time to ours:
//                        forward           backward
//   (32, 64, 56, 56)     1.7, torch 3.5    2.7, torch 1.2
//   (8, 256, 14, 14)     3.8, torch 5.6    4.6, torch 1.1    in the caches
//   (128, 6, 24, 24)     3.7, torch 6.1    3.9, torch 1.6
//   the same, channels last: 1.8, 4.6, 4.5 (torch 1.1, 1.1, 22), and 3.4, 5.0, 7.3 (1.0, 1.3, 11)
//   (2, 2048, 7, 7)      8.0, torch 2.7    7.0, torch 0.9    lines of 49
// Line by line, each with a call and a fold of its own, and lines below 64 elements with their
// coefficients spread over a chunk: (8, 256, 14, 14) backward 7.8, norm_apply 2.3 for 1.4;
// (2, 2048, 7, 7) 20 and 25, norm_apply 15 for 2.4. Tried and rejected there: both passes channel
// by channel where a channel is more than some lines, or forward: each line is elsewhere in memory,
// and the hardware's prefetcher starts anew ((128, 6, 24, 24) forward 6.6 copies for 3.9, backward
// 7.2 for 4.1; (32, 64, 56, 56) forward 2.3 for 2.1, backward no difference).
//
// Eight rows at a time, whose coefficients stay in registers, take 0.74 times as long in the caches
// ((14, 14, 256), backward), but beyond them (32, 56, 56, 64) takes 1.5 times as long: the
// hardware's prefetcher does not follow eight rows. There eight rows are one chunk, but go by one
// after the other (one thread's time, backward: (32, 56, 56, 64) 0.8, (16, 28, 28, 128) 0.79 to
// 0.9). Tried and rejected there: asking for the next eight rows (1.0), coefficients repeated over
// 1024 elements (1.2), and going through the data of pass 2 from its end, as the last of it might
// still be in the cache (1.0).
#pragma once

#include "cpu/core/chunk_reader.h"
#include "cpu/reductions/moments.h"

namespace fastact {

constexpr int64_t kShortRow = 64;  // below, lines share a chunk

// One number a channel.
struct ChannelArray {
  char* data;  // null: not there
  int64_t stride;
  int dtype;
};

struct BatchNorm {
  enum { kDy, kX, kOut };  // the operands; those without data are not there

  StridedOperands operands;
  const KernelTable* table;
  const BatchNormKernels* kernels;
  ElementwiseKernel activation;  // of the compute type, forward or backward
  const double* parameters;
  bool is_identity;
  bool accumulate;
  bool is_training;  // backward: the statistics depend on x

  int64_t channels, count;  // values a channel
  // Scratch of `batch_scratch` bytes, by the walk's order of channels:
  double *mean, *rstd, *weight, *bias, *sums;  // sums: [2][channels] of p and p xhat
  double* partial;                             // [chunks][2][channels]
  char* coefficients;                          // [kCoefficients][pitch] of the compute type
  int64_t pitch;
  // Backward: how the terms are cut.
  int64_t cuts;    // pieces of a line, where the channel is the line
  int64_t chunks;  // of all pieces, or of all lines
};

// size: elements of x.
int64_t batch_scratch(int64_t channels, int64_t size);

// arrays: kDy to kOut, of one shape and dtype. Leaves mean and rstd to be set.
void prepare(BatchNorm* norm, const KernelTable* table, int dtype, const Operand* arrays, int axis,
             char* scratch, const ChannelArray& weight, const ChannelArray& bias);

// mean and rstd: of the moments that lie in `mean` and, as variances, in `sums`, by the array's
// order of channels; or given, with variances or rstd.
void take_moments(BatchNorm* norm, double eps);
void take_statistics(BatchNorm* norm, const ChannelArray& mean, const ChannelArray& spread,
                     bool is_rstd, double eps);

// Of a batch without elements: mean and rstd OUT, from the running statistics.
void save_running(const KernelTable* table, int64_t channels, char* scratch,
                  const ChannelArray& running_mean, const ChannelArray& running_var, double eps,
                  const ChannelArray& mean, const ChannelArray& rstd);

// After take_moments: running = (1 - momentum) running + momentum (mean, unbiased variance).
void update_running(const BatchNorm& norm, double momentum, const ChannelArray& mean,
                    const ChannelArray& var);

// Between an array and numbers in the walk's order; `read` of none fills in `neutral`.
void read_channels(const BatchNorm& norm, const ChannelArray& from, double neutral, double* to);
void write_channels(const BatchNorm& norm, const double* from, const ChannelArray& to,
                    bool accumulate);

// The coefficients of all channels, once mean and rstd are set; in training, back, once `sums` of n
// channels are, the two that come of them.
void make_coefficients(const BatchNorm& norm);
void make_slopes(const BatchNorm& norm, int64_t first, int64_t n);

// The index-th of `partitions` parts of: y; the partial sums; dx.
void batch_norm_forward_partition(const BatchNorm* norm, int64_t index, int64_t partitions);
void batch_norm_sums_partition(const BatchNorm* norm, int64_t index, int64_t partitions);
void batch_norm_gradient_partition(const BatchNorm* norm, int64_t index, int64_t partitions);

// After all of batch_norm_sums_partition: `sums`, of n channels.
void merge_batch_sums(const BatchNorm& norm, int64_t first, int64_t n);

// Where channels are lines, and several of them fit into a cache, backward takes the sums of some
// and then their dx: shares of both passes in one.
bool goes_by_channels(const BatchNorm& norm, int64_t partitions);
void batch_norm_backward_partition(const BatchNorm* norm, int64_t index, int64_t partitions);

}  // namespace fastact
