// The norms of arrays whose channels come last: group_norm and instance_norm of NHWC.
//
// An example is a matrix of pixels and channels. It is read row by row, as it lies in memory, for
// all groups of channels at once; one normalization row at a time, a few elements here and there
// would have to be gathered. A task is an example and some of its groups (backward: a block of the
// batch, which fills one row of the parameters' sums). Its channels are the columns, in tiles of at
// most kTile, and eight pixels are computed at a time (norms/channels/channels_last_kernels.h):
//
//   forward    the moments of each column (reductions/kernels.h), merged over the columns of
//              a group; then z = xhat w + b, f in place and the store, from the cache where that
//              holds the example
//   backward   p = dy f'(z), and the sums of p and of p xhat of each column, which are the
//   gradients of its parameters and, times its weight, its part of the group's sums of g; then dx.
//   Where
//              p had to be computed it is stored in dx meanwhile, unless that is x.
//
// A pixel of few channels is shorter than a vector: as many pixels as fill some 128 columns are
// then joined to one row, and their sums are added at the end. That depends on the shape alone, and
// the results of a column never depend on the columns beside it. A few examples can therefore be
// divided between groups for the threads without a change of bits. (Where pixels are joined they
// are not divided.)
// Error. The moments are computed as in reductions/kernels.h but for their lanes: one lane takes
// 256 rows, and at most 63 others, of pixels of the same row, are added to it; the next rows are
// merged to those by Chan's formula. With u = 2^-53 and Q as there |m2 - exact| <= 470 u Q, where Q
// <= 2^15 m2 (float64, of two passes: Q ~ m2). The sums of backward are of the compute type over
// eight rows and of double beyond.
//
// Beyond the caches the rows that are mapped go one after the other, because the hardware's
// prefetcher does not follow eight; 16 bits are converted as they go. Measurements, and what was
// tried and rejected: docs/design/norms.md.
#pragma once

#include "cpu/norms/rows/plan.h"

namespace fastact {

// norm_forward_partition and norm_backward_partition come here for Norm::kChannelsLast.
void channels_last_forward_partition(const Norm* norm, int64_t index, int64_t partitions);
void channels_last_backward_partition(const Norm* norm, int64_t index, int64_t partitions);

}  // namespace fastact
