// The backward kernels of norms with channels; strips.cuh has the threads.
//
//   strip_sums       the sums of p = dy f'(z) and of p (x - mean) of each chunk of a channel, and
//                    where the statistics are given, dx = scale p
//   merge_sums       those of groups of so many parts that no block should merge them for itself
//   strip_backward   each block merges the parts of its own channels and then makes dx
//   put_gradients    dweight and dbias, where no block of another kernel has all of their parts
//   whole_backward   all of it at once, of channels that threads hold in registers
//
// A round adds up its terms in the compute type, in short chains and a tree, and its sums are added
// in double. What p (x - mean) has by the low part of the mean is made good in the end.
#pragma once

#include "cuda/norms/channels/strip_forward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

struct BackwardCall {
  Groups groups;
  Parts parts;
  Pair statistics;                 // IN: mean and rstd by group
  Pair parameters;                 // IN: weight and bias by channel
  Pair gradients;                  // OUT: dweight and dbias by channel, each or none
  NumberVector sum_p, sum_p_xhat;  // IN, by channel, of `count` elements; or none
  double count;
  bool of_statistics;  // dx accounts for what x does to them
  bool accumulates;    // onto the gradients
  ChosenActivation activation;
};

// Behind those of forward.
enum BackwardNumber { kMeanP = kForwardNumbers, kSlope, kWeight, kRstd, kBackwardNumbers };
template <class T, Way way, int used, bool is_identity>
using BackwardNumbers = UnitNumbers<T, way, kBackwardNumbers, is_identity ? used : 0>;

template <class T>
FASTACT_DEVICE auto backward_numbers() {
  return tile_numbers<T, kBackwardNumbers>();
}

// Vectors of each of two arrays in flight.
constexpr int kPairVecs = kStripVecs / 2;

// The numbers of forward, from what forward saved.
template <class T, Way way>
FASTACT_DEVICE void make_saved_numbers(const Walk<T, way>& walk, const BackwardCall& call) {
  using C = Compute<T>;
  const auto all = backward_numbers<T>();
  const int mine = int(threadIdx.x);
  if (mine < walk.tile.channels) {
    double mean = 0, rstd = 1, weight = 1, bias = 0;
    call.statistics.get(quotient(walk.coef() + mine, call.groups.size), mean, rstd);
    call.parameters.get(walk.tile.channel + mine, weight, bias);
    put_forward_numbers<T, kBackwardNumbers>(mine, mean, rstd, weight, bias);
    all[kWeight * kTileChannels + mine] = C(weight);
    all[kRstd * kTileChannels + mine] = C(rstd);
  }
  __syncthreads();
}

// Those of dx, from the sums over the groups from `first` on in tile_pairs(), or from given ones.
// gives: a block has all of a channel, and so its gradients.
template <class T, Way way>
FASTACT_DEVICE void make_gradient_numbers(const Walk<T, way>& walk, const BackwardCall& call,
                                          bool gives, int64_t first) {
  using C = Compute<T>;
  const auto all = backward_numbers<T>();
  const auto pairs = tile_pairs();
  const int mine = int(threadIdx.x);
  if (mine < walk.tile.channels) {
    const int64_t channel = walk.tile.channel + mine;
    const int64_t group = quotient(walk.coef() + mine, call.groups.size);
    double mean = 0, rstd = 1;
    call.statistics.get(group, mean, rstd);
    double mean_p, slope;
    if (call.sum_p.data) {
      mean_p = number_at(call.sum_p, channel, 0.0) / call.count;
      slope = number_at(call.sum_p_xhat, channel, 0.0) / call.count * rstd;
    } else {
      const int at = int(group - first);
      const double p = pairs[at], p_xhat = double(pairs[kTileChannels + at]) * rstd;
      mean_p = p / call.groups.count;
      slope = p_xhat * (rstd / call.groups.count);
      if (gives && walk.tile.chunk == 0) call.gradients.put(channel, p_xhat, p, call.accumulates);
    }
    const double low = double(C(all[kLow * kTileChannels + mine]));
    all[kMeanP * kTileChannels + mine] = C(madd(-low, slope, mean_p));
    all[kSlope * kTileChannels + mine] = C(slope);
  }
  __syncthreads();
}

template <class T, bool is_identity, class Numbers>
FASTACT_DEVICE Wide<T> p_of(const ChosenActivation& activation, const Vec<T>& dy, const Vec<T>& x,
                            const Numbers& numbers) {
  if constexpr (is_identity) return widen_vec(dy);
  Wide<T> p = widen_vec(x);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    p.lane[j] = batch_normalised(p.lane[j], numbers(kHigh, j), numbers(kLow, j), numbers(kScale, j),
                                 numbers(kOffset, j));
  p = activation.template slope<T>(p);
  const Wide<T> by = widen_vec(dy);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) p.lane[j] = by.lane[j] * p.lane[j];
  return p;
}

// dx = scale (p - mean(p) - (x - mean) slope); of_groups, where weights differ in a group, dx =
// rstd (p weight - mean(p weight) - (x - mean) slope); of given statistics dx = scale p. x - mean
// is x - high here: mean(p) has the rest.
template <class T, bool of_groups, class Numbers>
FASTACT_DEVICE Wide<T> gradient_of(Wide<T> p, const Vec<T>& x, bool of_statistics,
                                   const Numbers& numbers) {
  const Wide<T> wide = widen_vec(x);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    const auto centred_x = wide.lane[j] - numbers(kHigh, j);
    if (!of_statistics)
      p.lane[j] *= numbers(kScale, j);
    else if (of_groups)
      p.lane[j] =
          numbers(kRstd, j) * madd(-centred_x, numbers(kSlope, j),
                                   madd(p.lane[j], numbers(kWeight, j), -numbers(kMeanP, j)));
    else
      p.lane[j] = batch_gradient(p.lane[j], centred_x, numbers(kScale, j), numbers(kMeanP, j),
                                 numbers(kSlope, j));
  }
  return p;
}

// A thread's sums of p and p (x - high).
template <class T, Way way>
struct UnitSums {
  static constexpr int kSize = Vec<T>::kSize, kChannels = kUnitChannels<T, way>;
  using C = Compute<T>;
  static constexpr int kChains = way == kColumns || kSize < 4 ? kSize : 4;
  double sum[2][kChannels] = {};
  C round[2][kChains] = {};

  template <class Numbers>
  FASTACT_DEVICE void add(int valid, const Wide<T>& p, const Vec<T>& x, const Numbers& numbers) {
    const Wide<T> wide = widen_vec(x);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (kGathers<way> && j >= valid) continue;
      C &of_p = round[0][j % kChains], &of_product = round[1][j % kChains];
      of_p += p.lane[j];
      of_product = madd(p.lane[j], wide.lane[j] - numbers(kHigh, j), of_product);
    }
  }
  FASTACT_DEVICE void end_round() {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      if constexpr (way != kColumns) {
#pragma unroll
        for (int half = kChains / 2; half > 0; half /= 2)
#pragma unroll
          for (int j = 0; j < half; ++j) round[k][j] += round[k][j + half];
      }
#pragma unroll
      for (int j = 0; j < kChannels; ++j) sum[k][j] += double(round[k][j]);
#pragma unroll
      for (int j = 0; j < kChains; ++j) round[k][j] = 0;
    }
  }
  // The sums of p and p (x - mean) of each channel, into tile_pairs().
  FASTACT_DEVICE void fold(const Walk<T, way>& walk) const {
    fold_tile(walk, sum[0], sum[1]);
    const auto pairs = tile_pairs();
    const int mine = int(threadIdx.x);
    if (mine < walk.tile.channels) {
      const double low = double(C(backward_numbers<T>()[kLow * kTileChannels + mine]));
      pairs[kTileChannels + mine] =
          madd(-low, double(pairs[mine]), double(pairs[kTileChannels + mine]));
    }
    __syncthreads();
  }
};

template <class T, Way way, bool is_identity>
FASTACT_KERNEL_OF(kStripThreads, (way == kLines && is_identity ? 3 : kStripBlocks<T, is_identity>))
void strip_sums(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                FASTACT_GRID_CONSTANT const BackwardCall call, double* parts) {
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    const bool has_dx = s.data[kStripOut], needs_x = parts || !is_identity;
    Vec<T> dy[kPairVecs], x[kPairVecs] = {};  // on their way while the numbers are made
    const auto read = [&](int first) {
      walk.read(kStripDy, first, dy);
      if (needs_x) walk.read(kStripX, first, x);
    };
    read(0);
    make_saved_numbers(walk, call);
    const BackwardNumbers<T, way, 1, is_identity> numbers(walk);
    UnitSums<T, way> sums;
    const int rounds = walk.rounds(kPairVecs);
    for (int i = 0; i < rounds; ++i) {
      const int first = i * kPairVecs;
      if (i > 0) read(first);
#pragma unroll
      for (int u = 0; u < kPairVecs; ++u) {
        const int valid = walk.elements(first + u);
        if (valid == 0) continue;
        const Wide<T> p = p_of<T, is_identity>(call.activation, dy[u], x[u], numbers);
        if (parts) sums.add(valid, p, x[u], numbers);
        if (has_dx)
          walk.template write<true>(first + u, gradient_of<T, false>(p, x[u], false, numbers));
      }
      sums.end_round();
    }
    if (parts) {
      sums.fold(walk);
      store_parts(walk, parts);
    }
    __syncthreads();
  });
}

// The sums of p and p (x - mean) of a group; of_groups, of p weight and p weight (x - mean).
template <bool of_groups>
FASTACT_DEVICE void merge_sums(const BackwardCall& call, int64_t channels, int64_t group, int width,
                               bool idle, double (&sum)[2]) {
  const Parts& parts = call.parts;
  const double* data = parts.data + (idle ? 0 : 2 * group * parts.each);
  sum_parts(parts, width, idle, sum, [&](int64_t i, double (&to)[2]) {
    double weight = 1, bias = 0;
    if (of_groups && !parts.is_merged) {
      const int64_t coef = group * call.groups.size + quotient(i, parts.chunks);
      call.parameters.get(coef - quotient(coef, channels) * channels, weight, bias);
    }
    to[0] = madd(weight, load(data + 2 * i), to[0]);
    to[1] = madd(weight, load(data + 2 * i + 1), to[1]);
  });
}

// merged OUT: those of each group; one warp each.
template <class T, bool of_groups>
FASTACT_KERNEL(kStripThreads)
void merge_sums_apart(FASTACT_GRID_CONSTANT const BackwardCall call, const int64_t channels,
                      const int64_t groups, double* merged) {
  for_each_of_warps(groups, [&](int64_t group, int lane, bool idle) {
    double sum[2];
    merge_sums<of_groups>(call, channels, group, kWarp, idle, sum);
    if (idle || lane > 0) return;
    store(merged + 2 * group, sum[0]);
    store(merged + 2 * group + 1, sum[1]);
  });
}

template <class T, Way way, bool is_identity, bool of_groups>
FASTACT_KERNEL_OF(kStripThreads, (kStripBlocks<T, is_identity>))
void strip_backward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                    FASTACT_GRID_CONSTANT const BackwardCall call) {
  for_each_tile<T, way>(s, true, [&](const Walk<T, way>& walk) {
    Vec<T> dy[kPairVecs], x[kPairVecs];
    const auto read = [&](int from) {
      walk.read(kStripDy, from, dy);
      walk.read(kStripX, from, x);
    };
    read(0);
    const int64_t first = quotient(walk.coef(), call.groups.size);
    make_saved_numbers(walk, call);
    if (call.parts.data)
      for_each_group(walk, call.groups.size, first,
                     [&](int64_t group, int width, bool idle, double (&sum)[2]) {
                       merge_sums<of_groups>(call, s.channels, group, width, idle, sum);
                     });
    make_gradient_numbers(walk, call, !of_groups, first);
    const BackwardNumbers<T, way, of_groups ? kBackwardNumbers : kWeight, is_identity> numbers(
        walk);
    const int rounds = walk.rounds(kPairVecs);
    for (int i = 0; i < rounds; ++i) {
      const int first_vec = i * kPairVecs;
      if (i > 0) read(first_vec);
#pragma unroll
      for (int u = 0; u < kPairVecs; ++u) {
        if (walk.elements(first_vec + u) == 0) continue;
        const Wide<T> p = p_of<T, is_identity>(call.activation, dy[u], x[u], numbers);
        walk.template write<true>(first_vec + u, gradient_of<T, of_groups>(p, x[u], true, numbers));
      }
    }
    __syncthreads();
  });
}

// parts OUT: where the gradients have parts of several examples.
template <class T, Way way, bool is_identity, bool of_groups>
FASTACT_KERNEL(kThreadsOfWhole<way>)
void whole_backward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                    FASTACT_GRID_CONSTANT const BackwardCall call, double* parts) {
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    Vec<T> dy[kStripVecs], x[kStripVecs];
    walk.read(kStripDy, 0, dy);
    walk.read(kStripX, 0, x);
    make_saved_numbers(walk, call);
    {
      const BackwardNumbers<T, way, 1, is_identity> numbers(walk);
      UnitSums<T, way> sums;
#pragma unroll
      for (int u = 0; u < kStripVecs; ++u) {
        const int valid = walk.elements(u);
        if (valid > 0)
          sums.add(valid, p_of<T, is_identity>(call.activation, dy[u], x[u], numbers), x[u],
                   numbers);
      }
      sums.end_round();
      sums.fold(walk);
    }
    if constexpr (of_groups) {
      store_parts(walk, parts);
      const auto pairs = tile_pairs();
      const auto all = backward_numbers<T>();
      __syncthreads();
      const int mine = int(threadIdx.x);
      if (mine < walk.tile.channels) {
        const double weight = double(Compute<T>(all[kWeight * kTileChannels + mine]));
        pairs[mine] = weight * double(pairs[mine]);
        pairs[kTileChannels + mine] = weight * double(pairs[kTileChannels + mine]);
      }
      __syncthreads();
      merge_tile(walk, int(call.groups.size), [&](int channel, int, double (&pair)[2]) {
        pair[0] += double(pairs[channel]);
        pair[1] += double(pairs[kTileChannels + channel]);
      });
    }
    make_gradient_numbers(walk, call, !of_groups, quotient(walk.coef(), call.groups.size));
    if (s.data[kStripOut]) {
      const BackwardNumbers<T, way, of_groups ? kBackwardNumbers : kWeight, is_identity> numbers(
          walk);
#pragma unroll
      for (int u = 0; u < kStripVecs; ++u) {
        if (walk.elements(u) == 0) continue;
        const Wide<T> p = p_of<T, is_identity>(call.activation, dy[u], x[u], numbers);
        walk.template write<true>(u,
                                  gradient_of<T, of_groups>(p, x[u], call.of_statistics, numbers));
      }
    }
    __syncthreads();
  });
}

// dweight and dbias from the parts of a channel in all examples; a team of a warp or a block each.
template <class T, int team>
FASTACT_KERNEL(kStripThreads)
void put_gradients(FASTACT_GRID_CONSTANT const BackwardCall call, const int64_t examples,
                   const int64_t channels) {
  const Parts& parts = call.parts;
  const int lane = int(threadIdx.x) % team;
  const int64_t channel = int64_t(blockIdx.x) * (kStripThreads / team) + int(threadIdx.x) / team;
  if (channel >= channels) return;  // a whole team
  double p = 0, p_xhat = 0;
  const int64_t all = examples * parts.chunks;
#pragma unroll 4
  for (int64_t i = lane; i < all; i += team) {
    const int64_t coef = quotient(i, parts.chunks) * channels + channel;
    const double* part = parts.data + 2 * (coef * parts.chunks + parts.chunk_of(i));
    double mean = 0, rstd = 1;
    call.statistics.get(quotient(coef, call.groups.size), mean, rstd);
    p += load(part);
    p_xhat = madd(rstd, load(part + 1), p_xhat);
  }
  if constexpr (team == kWarp) {
    p = warp_sum(p), p_xhat = warp_sum(p_xhat);
  } else {
    p = block_sum<kStripThreads>(p);
    __syncthreads();
    p_xhat = block_sum<kStripThreads>(p_xhat);
  }
  if (lane == 0) call.gradients.put(channel, p_xhat, p, call.accumulates);
}

// Queues dx, where there is one, and the gradients that are wanted. workspace: of part_bytes.
template <class T, bool of_groups, Way way>
void queue_backward(StripsOf<way> s, BackwardCall call, double* workspace, cudaStream_t stream) {
  const auto run = [&](auto identity) {
    constexpr bool kIdentity = decltype(identity)::value;
    const bool has_gradients = call.gradients.a || call.gradients.b, has_dx = s.data[kStripOut];
    const bool sums_given = call.sum_p.data;
    const Parts parts = parts_of(s, call.groups.size, workspace);
    const auto finish = [&] {
      if (!has_gradients || sums_given) return;
      call.parts = parts;
      constexpr int64_t kOfWarp = 1024;  // parts of a channel
      if (s.examples * s.count > kOfWarp)
        launch(put_gradients<T, kStripThreads>, {s.channels, kStripThreads}, stream, call,
               s.examples, s.channels);
      else
        launch(put_gradients<T, kWarp>,
               {ceil_div(s.channels, kStripThreads / kWarp), kStripThreads}, stream, call,
               s.examples, s.channels);
    };
    if constexpr (way != kAny) {
      if (s.has_groups(call.groups.size, kUnitChannels<T, way>) && !sums_given &&
          (call.of_statistics || has_gradients)) {
        launch_strips(whole_backward<T, way, kIdentity, of_groups>, s, stream, call, workspace);
        if (of_groups) finish();
        return;
      }
    }
    if (!call.of_statistics) {
      launch_strips(strip_sums<T, way, kIdentity>, s, stream, call,
                    has_gradients ? workspace : nullptr);
    } else if (!sums_given) {
      auto without_dx = s;
      without_dx.data[kStripOut] = nullptr;
      launch_strips(strip_sums<T, way, kIdentity>, without_dx, stream, call, workspace);
    }
    if (call.of_statistics && has_dx) {
      if (!sums_given) {
        call.parts = parts;
        if (merges_apart(s, s.tx * kUnitChannels<T, way>, call.groups.size)) {
          double* merged = workspace + 2 * s.coefs() * s.count;
          const int64_t groups = s.coefs() / call.groups.size;
          launch(merge_sums_apart<T, of_groups>, warps_for(groups, kStripThreads), stream, call,
                 s.channels, groups, merged);
          call.parts = merged_parts(merged);
        }
      }
      launch_strips(strip_backward<T, way, kIdentity, of_groups>, s, stream, call);
      if (!of_groups) return;
    }
    finish();
  };
  call.activation.which == k_identity ? run(std::true_type()) : run(std::false_type());
}

}  // namespace
FASTACT_END_NAMESPACE
