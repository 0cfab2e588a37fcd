// The norms of arrays whose channels come last: group_norm and instance_norm of NHWC.
//
// An example is a matrix of pixels and channels, which is walked along its rows for all groups of
// channels at once, as it lies in memory; unit by unit it would be gathered, a few elements here
// and there. A share's unit of work is an example and some of its groups (backward: a block of the
// batch, which fills one row of the parameters' sums). Its channels are the columns, in tiles of
// kTile of them at most, and eight rows go by at a time (norms/channels/channels_last_kernels.h):
//
//   forward    the moments of each column (reductions/moment_kernels.h), merged over the columns of
//   a group;
//              then z = xhat w + b, f in place, stored, from the cache where it holds the example
//   backward   p = dy f'(z), the sums of p and p xhat of each column: those of its parameters, and
//              by its weight the group's part of those of g; then dx. Where p had to be computed
//              it waits in dx, unless that is x.
//
// A pixel of few channels is short of a vector: as many pixels as fill some 128 columns then make
// up one row, and their sums meet at the end. That goes by the shape alone, and a column's numbers
// never depend on those beside it, so that examples of which there are few can be cut between
// groups for the threads without a change of bits. (Where pixels are joined they are not cut.)
//
// Error. The moments are those of reductions/moment_kernels.h but for their lanes: one lane takes
// 256 rows, and at most 63 others of pixels of the same row are added to it; after those rows come
// the next ones, merged by Chan's formula. With u = 2^-53 and Q as there |m2 - exact| <= 470 u Q,
// where Q <= 2^15 m2 (float64, of two passes: Q ~ m2). The sums of backward are of the compute type
// over eight rows and of double beyond.
//
// float32 on two AVX-512 threads, times as ratios to a copy of x; torch's time to ours with x in
// its format channels_last:
//                                       forward           backward
//   (32, 56, 56, 64)  8 groups          1.4, torch 1.3    2.8, torch 1.2
//                     instance_norm     1.3, torch 6.4    3.0, torch 1.9
//                     8 groups, mish    1.4, torch 6.2    3.0, torch 4.1
//   (8, 14, 14, 256)  8 groups          1.3, torch 1.6    1.9, torch 2.5
//                     instance_norm     1.3, torch 7.0    2.8, torch 3.2    in the caches
//   (128, 24, 24, 6)  2 groups          1.7, torch 2.5    3.0, torch 1.6
//
// Beyond the caches rows go one after the other, as the hardware's prefetcher does not follow eight
// ((32, 56, 56, 64), 8 groups: forward 2.1 copies for 2.9, torch's time to ours 0.8 for 0.7;
// backward 2.8 for 4.2, torch 1.0 for 0.9; another day than the table's, when torch was as slow as
// 1.7 copies and 2.8).
//
// Tried and rejected: the moments by the 32 lanes of `moments` ((8, 14, 14, 256) forward 2.0 times
// a copy for 1.6: 196 rows are few beside the folding of 64 rows of sums); units of 32 channels, so
// that all of a unit stays in the second-level cache ((32, 56, 56, 64) 10 to 40 % slower); asking
// for dy and x 16 rows ahead (in the caches 2 % slower, else no difference beyond the noise).
#pragma once

#include "cpu/norms/rows/plan.h"

namespace fastact {

// As norm_forward_partition and norm_backward_partition, which come here for Norm::kChannelsLast.
void channels_last_forward_partition(const Norm* norm, int64_t index, int64_t partitions);
void channels_last_backward_partition(const Norm* norm, int64_t index, int64_t partitions);

}  // namespace fastact
