// The forward kernels of norms with channels; strips.cuh has the threads, strip_moments.cuh the
// moments.
//
//   strip_moments   the mean and m2 of each chunk of a channel
//   merge_apart     merges groups that have too many parts for each block to merge them itself
//   strip_forward   each block merges the parts of its own channels, or takes given statistics,
//                   makes the coefficients of its tile, and then y = f(z)
//   whole_forward   all of it at once, of channels that threads hold in registers
#pragma once

#include "common/norms/batch_norm.h"
#include "cuda/activations/fixed.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/norms/channels/strip_moments.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Two arrays of numbers by group, or by channel, any strides; without data there are none.
struct Pair {
  char *a, *b;
  int a_dtype, b_dtype;
  RowTable<2> table;

  FASTACT_DEVICE Offset locate(int64_t index) const {
    int64_t at[2] = {};
    offset_all(table, index, 0, table.count, at);
    return {at[0], at[1]};
  }
  FASTACT_DEVICE void get(int64_t index, double& first, double& second) const {
    const Offset at = locate(index);
    first = number_or(a, at.x, a_dtype, first);
    second = number_or(b, at.y, b_dtype, second);
  }
  // One of the two, or what stands for it.
  FASTACT_DEVICE double get(bool of_b, int64_t index, double otherwise) const {
    const Offset at = locate(index);
    return number_or(of_b ? b : a, of_b ? at.y : at.x, of_b ? b_dtype : a_dtype, otherwise);
  }
  FASTACT_DEVICE void put(int64_t index, double first, double second, bool accumulate) const {
    const Offset at = locate(index);
    if (a) put_by_call(a + at.x, a_dtype, first, accumulate);
    if (b) put_by_call(b + at.y, b_dtype, second, accumulate);
  }
};

struct ForwardCall {
  Groups groups;
  Parts parts;                     // by_moments, unless a block has all of them
  Pair saved;                      // OUT: mean and rstd by group
  Pair parameters;                 // IN: weight and bias by channel
  NumberVector running;            // IN: the mean by channel, or IN/OUT: moved towards the batch's
  NumberVector spread;             // the same: a variance, or where is_rstd says so, an rstd
  bool by_moments, is_rstd;        // by_moments: the batch's own
  double eps, momentum, unbiased;  // unbiased: by which the variance grows

  // The mean and m2 of a group, from its parts' moments.
  template <class T>
  FASTACT_DEVICE void merge(int64_t group, int width, bool idle, double (&moments)[2]) const {
    merge_moments<T>(parts, group, width, idle, groups.count, moments);
  }
};

enum ForwardNumber { kHigh, kLow, kScale, kOffset, kForwardNumbers };
template <class T, Way way, class Activation>
using ForwardNumbers =
    UnitNumbers<T, way, kForwardNumbers, kIsFixed<Activation> ? (1 << kForwardNumbers) - 1 : 0>;

// Sets the numbers of forward for one channel of a tile; a thread does it for its own channel.
template <class T, int numbers>
FASTACT_DEVICE void put_forward_numbers(int channel, double mean, double rstd, double weight,
                                        double bias) {
  using C = Compute<T>;
  const auto all = tile_numbers<T, numbers>();
  const Centre<C> centre = centre_of<C>(mean);
  all[kHigh * kTileChannels + channel] = centre.high;
  all[kLow * kTileChannels + channel] = is_finite(double(centre.high)) ? centre.low : C(0);
  all[kScale * kTileChannels + channel] = C(weight * rstd);
  all[kOffset * kTileChannels + channel] = C(bias);
}

enum ForwardArgument { kMeanBefore, kSpreadBefore, kWeight, kBias };

// Reads what a tile needs beside x. Running statistics that move are read by the block that moves
// them.
template <class T, Way way>
FASTACT_DEVICE void read_forward_arguments(const Walk<T, way>& walk, const ForwardCall& call) {
  const bool of_statistics = !call.by_moments || walk.tile.chunk == 0;
  read_arguments(walk, [&](int k, int i) {
    const int64_t channel = walk.tile.channel + i;
    if (k >= kWeight) return call.parameters.get(k == kBias, channel, k == kBias ? 0.0 : 1.0);
    const NumberVector& of = k == kMeanBefore ? call.running : call.spread;
    const double otherwise = k == kMeanBefore || call.by_moments ? 0.0 : 1.0;
    return of_statistics ? number_at(of, channel, otherwise) : otherwise;
  });
}

// Sets the numbers of a tile from its arguments and its statistics. tile_pairs() has mean and m2 of
// the groups from `first` on, or nothing where statistics are given. The block that has the first
// chunk of a group's first channel saves the group's statistics.
template <class T, Way way>
FASTACT_DEVICE void make_forward_numbers(const Walk<T, way>& walk, const ForwardCall& call,
                                         int64_t first) {
  const auto pairs = tile_pairs();
  const auto arguments = tile_arguments();
  const int mine = int(threadIdx.x);
  if (mine < walk.tile.channels) {
    const auto argument = [&](int k) { return double(arguments[k * kTileChannels + mine]); };
    const int64_t coef = walk.coef() + mine, channel = walk.tile.channel + mine;
    const int64_t group = call.groups.of(coef);
    const bool notes = walk.tile.chunk == 0 && group * call.groups.size.by == coef;
    double mean = 0, rstd = 1;
    if (call.by_moments) {
      const int at = int(group - first);
      mean = pairs[at];
      const double m2 = pairs[kTileChannels + at], n = call.groups.count;
      const bool is_root = sizeof(T) == sizeof(double) && m2 < 0;
      const double var = is_root ? square_of(m2 / __builtin_sqrt(n)) : m2 / n;
      rstd = is_root ? rstd_of_variance(m2 / __builtin_sqrt(n), call.eps)
                     : 1.0 / __builtin_sqrt(var + call.eps);
      const auto move = [&](const NumberVector& to, double before, double now) {
        put_number(to, channel, (1 - call.momentum) * before + call.momentum * now);
      };
      if (notes) {
        move(call.running, argument(kMeanBefore), mean);
        move(call.spread, argument(kSpreadBefore), var * call.unbiased);
      }
    } else {
      mean = argument(kMeanBefore);
      rstd = argument(kSpreadBefore);
      if (!call.is_rstd) rstd = 1.0 / __builtin_sqrt(rstd + call.eps);
    }
    if (notes) call.saved.put(group, mean, rstd, false);
    put_forward_numbers<T, kForwardNumbers>(mine, mean, rstd, argument(kWeight), argument(kBias));
  }
  __syncthreads();
}

// Writes y of a thread's vectors, from the first-th on.
template <class T, Way way, class Activation, class Numbers>
FASTACT_DEVICE void write_forward(const Walk<T, way>& walk, const Activation& activation, int first,
                                  const Held<T, way> (&vecs)[Walk<T, way>::kVecs],
                                  const Numbers& numbers) {
#pragma unroll
  for (int u = 0; u < walk.kVecs; ++u) {
    if (walk.elements(first + u) == 0) continue;
    Wide<T> z = widen_held<T>(vecs[u]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      z.lane[j] = batch_normalised(z.lane[j], numbers(kHigh, j), numbers(kLow, j),
                                   numbers(kScale, j), numbers(kOffset, j));
    walk.template write<false>(first + u, activation.value(z));
  }
}

// Blocks on a multiprocessor, at least. Registers go to the call of an activation, to columns of
// eight lanes, and to elements that are gathered.
template <class T, Way way, class Activation>
constexpr int kStripBlocks = way == kLines || (sizeof(T) > 2 && way == kColumns)
                                 ? 2 + kIsFixed<Activation>
                                 : (sizeof(T) > 2 ? 2 : 1 + kIsFixed<Activation>);

template <class T, Way way>
FASTACT_KERNEL_OF(kStripThreads, (way == kLines || (sizeof(T) > 2 && way == kColumns) ? 3 : 2))
void strip_moments(FASTACT_GRID_CONSTANT const StripsOf<way> s, const double eps, double* parts) {
  constexpr int kVecs = Walk<T, way>::kVecs;
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    const int rounds = walk.rounds(kVecs);
    find_moments(walk, eps, [&](const auto& add) {
      for (int i = 0; i < rounds; ++i) {
        Held<T, way> vecs[kVecs];
        walk.read(kStripX, i * kVecs, vecs);
        add(i * kVecs, vecs);
      }
    });
    store_parts(walk, parts);
    __syncthreads();
  });
}

template <class T, Way way, class Activation>
FASTACT_KERNEL_OF(kStripThreads, (kStripBlocks<T, way, Activation>))
void strip_forward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                   FASTACT_GRID_CONSTANT const ForwardCall call,
                   FASTACT_GRID_CONSTANT const Activation activation) {
  constexpr int kVecs = Walk<T, way>::kVecs;
  for_each_tile<T, way>(s, true, [&](const Walk<T, way>& walk) {
    Held<T, way> vecs[kVecs];  // they are read while the statistics are made
    walk.read(kStripX, 0, vecs);
    read_forward_arguments(walk, call);
    const int64_t first = call.groups.of(walk.coef());
    if (call.by_moments)
      merge_groups(walk, call, first);
    else
      __syncthreads();
    make_forward_numbers(walk, call, first);
    const ForwardNumbers<T, way, Activation> numbers(walk);
    const int rounds = walk.rounds(kVecs);
    for (int i = 0; i < rounds; ++i) {
      if (i > 0) walk.read(kStripX, i * kVecs, vecs);
      write_forward(walk, activation, i * kVecs, vecs, numbers);
    }
    __syncthreads();
  });
}

// Blocks of forward's kernels of whole channels.
template <class T, Way way, class Activation>
constexpr int kWholeForwardBlocks = way == kLines && sizeof(T) == 4 && kIsFixed<Activation> ? 2 : 1;

template <class T, Way way, class Activation>
FASTACT_KERNEL_OF((kThreadsOfWhole<T, way>), (kWholeForwardBlocks<T, way, Activation>))
void whole_forward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                   FASTACT_GRID_CONSTANT const ForwardCall call,
                   FASTACT_GRID_CONSTANT const Activation activation) {
  constexpr int kVecs = Walk<T, way>::kVecs;
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    Held<T, way> vecs[kVecs];
    walk.read(kStripX, 0, vecs);
    read_forward_arguments(walk, call);
    find_moments(walk, call.eps, [&](const auto& add) { add(0, vecs); });
    merge_tile_moments(walk, int(call.groups.size.by));
    make_forward_numbers(walk, call, call.groups.of(walk.coef()));
    const ForwardNumbers<T, way, Activation> numbers(walk);
    write_forward(walk, activation, 0, vecs, numbers);
    __syncthreads();
  });
}

// ---- on the host

// Runs visit(activation): identity is compiled in, any other is called. For double all are called:
// its memory traffic leaves the time.
template <class T, class Visit>
void with_norm_activation(int which, const double* parameters, const Visit& visit) {
  if constexpr (sizeof(T) < sizeof(double))
    if (which == k_identity) return visit(FixedActivation<Unchanged, T>(parameters));
  visit(chosen_activation(which, parameters));
}

// Queues y, by the batch's own moments or by given ones. workspace: of part_bytes.
template <class T, Way way, class Activation>
void queue_strips(const StripsOf<way>& s, ForwardCall call, const Activation& activation,
                  double* workspace, cudaStream_t stream) {
  if (call.by_moments && s.block.has_groups(call.groups.size.by))
    return launch_whole(whole_forward<T, way, Activation>, s, stream, call, activation);
  if (call.by_moments) {
    launch_rounds(strip_moments<T, way>, s, stream, call.eps, workspace);
    give_parts<T>(s, workspace, &call, stream);
  }
  launch_rounds(strip_forward<T, way, Activation>, s, stream, call, activation);
}

}  // namespace
FASTACT_END_NAMESPACE
