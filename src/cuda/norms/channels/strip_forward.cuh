// The forward kernels of norms with channels; strips.cuh has the threads, strip_moments.cuh the
// moments.
//
//   strip_moments   the mean and m2 of each chunk of a channel
//   merge_groups    those of groups of so many parts that no block should merge them for itself
//   strip_forward   each block merges the parts of its own channels, or takes given statistics,
//                   makes the coefficients of its tile, and then y = f(z)
//   whole_forward   all of it at once, of channels that threads hold in registers
#pragma once

#include "common/norms/batch_norm.h"
#include "cuda/activations/activate.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/norms/channels/strip_moments.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Two arrays of numbers by group, or by channel, any strides; without data there are none.
struct Pair {
  char *a, *b;
  int a_dtype, b_dtype;
  RowTable<2> table;

  FASTACT_DEVICE void locate(int64_t index, int64_t (&at)[2]) const {
    at[0] = at[1] = 0;
    offset_all(table, index, 0, table.count, at);
  }
  FASTACT_DEVICE double number(const char* data, int dtype, int64_t at, double neutral) const {
    return data ? number_at(data + at, dtype) : neutral;
  }
  FASTACT_DEVICE void get(int64_t index, double& first, double& second) const {
    int64_t at[2];
    locate(index, at);
    first = number(a, a_dtype, at[0], first);
    second = number(b, b_dtype, at[1], second);
  }
  FASTACT_DEVICE void put(int64_t index, double first, double second, bool accumulate) const {
    int64_t at[2];
    locate(index, at);
    put_number({a ? a + at[0] : nullptr, 0, a_dtype}, 0, first, accumulate);
    put_number({b ? b + at[1] : nullptr, 0, b_dtype}, 0, second, accumulate);
  }
};

// Groups of the coefficients of neighbouring channels, which share their statistics.
struct Groups {
  int64_t size;
  double count;  // elements of one
};

struct ForwardCall {
  Groups groups;
  Parts parts;           // without data, and where no block has the moments: given statistics
  Pair saved;            // OUT: mean and rstd by group
  Pair parameters;       // IN: weight and bias by channel
  NumberVector running;  // IN: the mean by channel, or IN/OUT: moved towards the batch's
  NumberVector spread;   // the same: a variance, or where is_rstd says so, an rstd
  bool is_rstd;
  double eps, momentum, unbiased;  // unbiased: by which the variance grows
  ChosenActivation activation;
};

enum ForwardNumber { kHigh, kLow, kScale, kOffset, kForwardNumbers };
template <class T, Way way, bool is_identity>
using ForwardNumbers = UnitNumbers<T, way, kForwardNumbers, is_identity ? kForwardNumbers : 0>;

// The numbers of forward of one channel of a tile, which is its thread's.
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

// What a call makes of a tile's statistics: tile_pairs() has mean and m2 of the groups from
// `first` on, or nothing where they are given. Who has the first chunk of a group's first channel
// notes its statistics.
template <class T, Way way>
FASTACT_DEVICE void make_forward_numbers(const Walk<T, way>& walk, const ForwardCall& call,
                                         bool by_moments, int64_t first) {
  const auto pairs = tile_pairs();
  const int mine = int(threadIdx.x);
  if (mine < walk.tile.channels) {
    const int64_t coef = walk.coef() + mine, group = quotient(coef, call.groups.size);
    const int64_t channel = walk.tile.channel + mine;
    const bool notes = walk.tile.chunk == 0 && group * call.groups.size == coef;
    double mean = 0, rstd = 1;
    if (by_moments) {
      const int at = int(group - first);
      mean = pairs[at];
      const double var = double(pairs[kTileChannels + at]) / call.groups.count;
      rstd = 1.0 / __builtin_sqrt(var + call.eps);
      const auto move = [&](const NumberVector& to, double now) {
        const double before = number_at(to, channel, 0.0);
        put_number(to, channel, (1 - call.momentum) * before + call.momentum * now);
      };
      if (notes) move(call.running, mean), move(call.spread, var * call.unbiased);
    } else {
      mean = number_at(call.running, channel, 0.0);
      rstd = number_at(call.spread, channel, 1.0);
      if (!call.is_rstd) rstd = 1.0 / __builtin_sqrt(rstd + call.eps);
    }
    if (notes) call.saved.put(group, mean, rstd, false);
    double weight = 1, bias = 0;
    call.parameters.get(channel, weight, bias);
    put_forward_numbers<T, kForwardNumbers>(mine, mean, rstd, weight, bias);
  }
  __syncthreads();
}

// y of vectors that begin with the first-th.
template <class T, bool is_identity, Way way, class Numbers>
FASTACT_DEVICE void write_forward(const Walk<T, way>& walk, const ForwardCall& call, int first,
                                  const Vec<T> (&vecs)[kStripVecs], const Numbers& numbers) {
#pragma unroll
  for (int u = 0; u < kStripVecs; ++u) {
    if (walk.elements(first + u) == 0) continue;
    Wide<T> z = widen_vec(vecs[u]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      z.lane[j] = batch_normalised(z.lane[j], numbers(kHigh, j), numbers(kLow, j),
                                   numbers(kScale, j), numbers(kOffset, j));
    if constexpr (!is_identity) z = call.activation.template value<T>(z);
    walk.template write<false>(first + u, z);
  }
}

// Blocks on a multiprocessor, at least. A call of an activation takes registers, and so do eight
// lanes.
template <class T, bool is_identity>
constexpr int kStripBlocks = sizeof(T) > 2 ? (is_identity ? 3 : 2) : (is_identity ? 2 : 1);

template <class T, Way way>
FASTACT_KERNEL_OF(kStripThreads, (sizeof(T) > 2 || way != kColumns ? 3 : 2))
void strip_moments(FASTACT_GRID_CONSTANT const StripsOf<way> s, const double eps, double* parts) {
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    const int rounds = walk.rounds(kStripVecs);
    find_moments(walk, eps, [&](const auto& add) {
      for (int i = 0; i < rounds; ++i) {
        Vec<T> vecs[kStripVecs];
        walk.read(kStripX, i * kStripVecs, vecs);
        add(i * kStripVecs, vecs);
      }
    });
    store_parts(walk, parts);
    __syncthreads();
  });
}

// merged OUT: mean and m2 of each group; one warp each.
template <class T>
FASTACT_KERNEL(kStripThreads)
void merge_groups(const Parts parts, const int64_t groups, const double count, double* merged) {
  for_each_of_warps(groups, [&](int64_t group, int lane, bool idle) {
    double moments[2];
    merge_moments(parts, group, kWarp, idle, count, moments);
    if (idle || lane > 0) return;
    store(merged + 2 * group, moments[0]);
    store(merged + 2 * group + 1, moments[1]);
  });
}

template <class T, Way way, bool is_identity>
FASTACT_KERNEL_OF(kStripThreads, (kStripBlocks<T, is_identity>))
void strip_forward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                   FASTACT_GRID_CONSTANT const ForwardCall call) {
  for_each_tile<T, way>(s, true, [&](const Walk<T, way>& walk) {
    Vec<T> vecs[kStripVecs];  // on their way while the statistics are made
    walk.read(kStripX, 0, vecs);
    const int64_t first = quotient(walk.coef(), call.groups.size);
    const bool by_moments = call.parts.data;
    if (by_moments)
      for_each_group(walk, call.groups.size, first,
                     [&](int64_t group, int width, bool idle, double (&moments)[2]) {
                       merge_moments(call.parts, group, width, idle, call.groups.count, moments);
                     });
    make_forward_numbers(walk, call, by_moments, first);
    const ForwardNumbers<T, way, is_identity> numbers(walk);
    const int rounds = walk.rounds(kStripVecs);
    for (int i = 0; i < rounds; ++i) {
      if (i > 0) walk.read(kStripX, i * kStripVecs, vecs);
      write_forward<T, is_identity>(walk, call, i * kStripVecs, vecs, numbers);
    }
    __syncthreads();
  });
}

template <class T, Way way, bool is_identity>
FASTACT_KERNEL(kThreadsOfWhole<way>)
void whole_forward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                   FASTACT_GRID_CONSTANT const ForwardCall call) {
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    Vec<T> vecs[kStripVecs];
    walk.read(kStripX, 0, vecs);
    find_moments(walk, call.eps, [&](const auto& add) { add(0, vecs); });
    merge_tile_moments(walk, int(call.groups.size));
    make_forward_numbers(walk, call, true, quotient(walk.coef(), call.groups.size));
    const ForwardNumbers<T, way, is_identity> numbers(walk);
    write_forward<T, is_identity>(walk, call, 0, vecs, numbers);
    __syncthreads();
  });
}

// ---- on the host

// Whether no block merges for itself: a tile of `channels` has groups of `size`, with as many parts
// for each channel as it has chunks.
template <class S>
bool merges_apart(const S& s, int64_t channels, int64_t size) {
  const int64_t groups = std::min(channels, ceil_div(channels, size) + 1);
  return groups * size * s.count > kOwnParts;
}

template <class S>
Parts parts_of(const S& s, int64_t group_size, const double* data) {
  return {data, group_size * s.count, s.count, s.size, s.length, false};
}
// One for each group.
inline Parts merged_parts(const double* data) { return {data, 1, 1, 1, 1, true}; }

// Bytes of workspace for the parts of channels, and for what they are merged to.
template <class T>
int64_t part_bytes(int64_t examples, int64_t channels, int64_t length) {
  const int64_t pairs = examples * channels * (most_chunks<T>(channels, length) + 1);
  return 2 * pairs * int64_t(sizeof(double));
}

// Queues y, by the batch's own moments or by given ones. workspace: of part_bytes.
template <class T, Way way>
void queue_forward(const StripsOf<way>& s, ForwardCall call, bool by_moments, double* workspace,
                   cudaStream_t stream) {
  const auto run = [&](auto identity) {
    constexpr bool kIdentity = decltype(identity)::value;
    if constexpr (way != kAny) {
      if (by_moments && s.has_groups(call.groups.size, kUnitChannels<T, way>))
        return launch_strips(whole_forward<T, way, kIdentity>, s, stream, call);
    }
    if (by_moments) {
      launch_strips(strip_moments<T, way>, s, stream, call.eps, workspace);
      call.parts = parts_of(s, call.groups.size, workspace);
      const int64_t channels = s.tx * kUnitChannels<T, way>;
      if (merges_apart(s, channels, call.groups.size)) {
        double* merged = workspace + 2 * s.coefs() * s.count;
        const int64_t groups = s.coefs() / call.groups.size;
        launch(merge_groups<T>, warps_for(groups, kStripThreads), stream, call.parts, groups,
               call.groups.count, merged);
        call.parts = merged_parts(merged);
      }
    }
    launch_strips(strip_forward<T, way, kIdentity>, s, stream, call);
  };
  call.activation.which == k_identity ? run(std::true_type()) : run(std::false_type());
}

}  // namespace
FASTACT_END_NAMESPACE
