// The backward kernels of norms with channels. common/norms/batch_norm.h derives the gradients of
// batch_norm, common/norms/norms.h those that group_norm and instance_norm have. strips.cuh says
// which threads have which elements.
//
//   strip_sums       the sums of p = dy f'(z) and of p (x - mean) of each chunk of a channel, and
//                    where the statistics are given, dx = scale p
//   merge_apart      merges groups that have too many parts for each block to merge them itself
//   strip_backward   each block merges the parts of its own channels and then makes dx
//   FinishChannels   dweight and dbias, where no block of another kernel has all of their parts
//   whole_backward   all of it at once, of channels that threads hold in registers
//
// A round adds up its terms in the compute type, in short chains and a tree, and its sums are added
// in double. Terms have x less the high part of the mean; the low part is taken off in the end.
#pragma once

#include "cuda/core/finish.cuh"
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
  Divisor channels;
  bool of_groups;      // statistics are by groups, whose channels have weights of their own
  bool of_statistics;  // dx includes the gradient through the statistics
  bool accumulates;    // onto the gradients

  // The sums of p and p (x - mean) of a group, from its parts' sums. With of_groups each channel is
  // multiplied by its weight.
  template <class T>
  FASTACT_DEVICE void merge(int64_t group, int width, bool idle, double (&sum)[2]) const {
    const double* data = parts.data + (idle ? 0 : 2 * group * parts.each);
    sum_parts(parts, width, idle, sum, [&](int64_t i, double (&to)[2]) {
      double weight = 1, bias = 0;
      if (of_groups && !parts.is_merged) {
        const int64_t coef = group * groups.size.by + parts.chunks(i);
        parameters.get(coef - channels(coef) * channels.by, weight, bias);
      }
      to[0] = madd(weight, load(data + 2 * i), to[0]);
      to[1] = madd(weight, load(data + 2 * i + 1), to[1]);
    });
  }
};

// These follow forward's numbers: dx = outer (p inner - mean_p - (x - high) slope).
enum BackwardNumber { kOuter = kForwardNumbers, kInner, kMeanP, kSlope, kBackwardNumbers };
constexpr unsigned kOfSums = 1 << kHigh;
constexpr unsigned kOfGradient = kOfSums | 1 << kOuter | 1 << kInner | 1 << kMeanP | 1 << kSlope;
template <class T, Way way, unsigned held, class Activation>
using BackwardNumbers = UnitNumbers<T, way, kBackwardNumbers, kIsFixed<Activation> ? held : 0>;

template <class T>
FASTACT_DEVICE auto backward_numbers() {
  return tile_numbers<T, kBackwardNumbers>();
}

enum BackwardArgument { kSavedMean, kSavedRstd, kWeightAgain, kBiasAgain };

// The numbers of forward, from the arrays that forward saved.
template <class T, Way way>
FASTACT_DEVICE void make_saved_numbers(const Walk<T, way>& walk, const BackwardCall& call) {
  using C = Compute<T>;
  read_arguments(walk, [&](int k, int i) {
    if (k >= kWeightAgain)
      return call.parameters.get(k == kBiasAgain, walk.tile.channel + i,
                                 k == kBiasAgain ? 0.0 : 1.0);
    const int64_t coef = walk.coef() + i;
    return call.statistics.get(k == kSavedRstd, call.groups.of(coef), k == kSavedRstd ? 1.0 : 0.0);
  });
  __syncthreads();
  const auto all = backward_numbers<T>();
  const auto arguments = tile_arguments();
  const int mine = int(threadIdx.x);
  if (mine < walk.tile.channels) {
    const auto argument = [&](int k) { return double(arguments[k * kTileChannels + mine]); };
    const double rstd = argument(kSavedRstd), weight = argument(kWeightAgain);
    put_forward_numbers<T, kBackwardNumbers>(mine, argument(kSavedMean), rstd, weight,
                                             argument(kBiasAgain));
    all[kOuter * kTileChannels + mine] = C(call.of_groups ? rstd : weight * rstd);
    all[kInner * kTileChannels + mine] = C(call.of_groups ? weight : 1.0);
  }
  __syncthreads();
}

// The numbers of dx, from the sums of the groups from `first` on in tile_pairs(), or from given
// sums. Unless of_groups, a block has all parts of a channel, and writes its dweight and dbias.
// takes_given: whether sums may be given.
template <bool takes_given, class T, Way way>
FASTACT_DEVICE void make_gradient_numbers(const Walk<T, way>& walk, const BackwardCall& call,
                                          int64_t first) {
  using C = Compute<T>;
  const auto all = backward_numbers<T>();
  const auto pairs = tile_pairs();
  const int mine = int(threadIdx.x);
  if (mine < walk.tile.channels) {
    const int64_t channel = walk.tile.channel + mine;
    const double rstd = tile_arguments()[kSavedRstd * kTileChannels + mine];
    double mean_p, slope;
    if (takes_given && call.sum_p.data) {
      mean_p = number_at(call.sum_p, channel, 0.0) / call.count;
      slope = number_at(call.sum_p_xhat, channel, 0.0) / call.count * rstd;
    } else {
      const int at = int(call.groups.of(walk.coef() + mine) - first);
      const double p = pairs[at], p_xhat = double(pairs[kTileChannels + at]) * rstd;
      mean_p = p / call.groups.count;
      slope = p_xhat * (rstd / call.groups.count);
      if (!call.of_groups && walk.tile.chunk == 0)
        call.gradients.put(channel, p_xhat, p, call.accumulates);
    }
    const double low = double(C(all[kLow * kTileChannels + mine]));
    all[kMeanP * kTileChannels + mine] = C(madd(-low, slope, mean_p));
    all[kSlope * kTileChannels + mine] = C(slope);
  }
  __syncthreads();
}

template <class T, class Activation, class Vector, class Numbers>
FASTACT_DEVICE Wide<T> p_of(const Activation& activation, const Vector& dy, const Vector& x,
                            const Numbers& numbers) {
  if constexpr (kIsFixed<Activation>) return widen_held<T>(dy);
  Wide<T> p = widen_held<T>(x);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    p.lane[j] = batch_normalised(p.lane[j], numbers(kHigh, j), numbers(kLow, j), numbers(kScale, j),
                                 numbers(kOffset, j));
  p = activation.slope(p);
  const Wide<T> by = widen_held<T>(dy);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) p.lane[j] = by.lane[j] * p.lane[j];
  return p;
}

// dx = outer (p inner - mean(p) - (x - mean) slope). outer and inner are scale and 1; where the
// weights of a group differ, rstd and the weight. With given statistics dx = outer p. In place of
// x - mean stands x - high here: mean_p accounts for the low part.
template <class T, class Vector, class Numbers>
FASTACT_DEVICE Wide<T> gradient_of(Wide<T> p, const Vector& x, bool of_statistics,
                                   const Numbers& numbers) {
  const Wide<T> wide = widen_held<T>(x);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    if (of_statistics)
      p.lane[j] = madd(-(wide.lane[j] - numbers(kHigh, j)), numbers(kSlope, j),
                       madd(p.lane[j], numbers(kInner, j), -numbers(kMeanP, j)));
    p.lane[j] *= numbers(kOuter, j);
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
  FASTACT_DEVICE void add(int valid, const Wide<T>& p, const Held<T, way>& x,
                          const Numbers& numbers) {
    const Wide<T> wide = widen_held<T>(x);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (way == kSingles && j >= valid) continue;
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

// Gathered 16 bits need a few registers more than two blocks leave.
template <class T, Way way, class Activation>
constexpr int kSumBlocks = way == kSingles && sizeof(T) == 2 ? 1 : kStripBlocks<T, way, Activation>;

template <class T, Way way, class Activation>
FASTACT_KERNEL_OF(kStripThreads, (kSumBlocks<T, way, Activation>))
void strip_sums(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                FASTACT_GRID_CONSTANT const BackwardCall call,
                FASTACT_GRID_CONSTANT const Activation activation, double* parts) {
  constexpr int kVecs = Walk<T, way>::kPairVecs;
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    const bool has_dx = s.data[kStripOut], needs_x = parts || !kIsFixed<Activation>;
    Held<T, way> dy[kVecs], x[kVecs] = {};  // they are read while the numbers are made
    const auto read = [&](int first) {
      walk.read(kStripDy, first, dy);
      if (needs_x) walk.read(kStripX, first, x);
    };
    read(0);
    make_saved_numbers(walk, call);
    const BackwardNumbers<T, way, kOfSums | 1 << kOuter, Activation> numbers(walk);
    UnitSums<T, way> sums;
    const int rounds = walk.rounds(kVecs);
    for (int i = 0; i < rounds; ++i) {
      const int first = i * kVecs;
      if (i > 0) read(first);
#pragma unroll
      for (int u = 0; u < kVecs; ++u) {
        const int valid = walk.elements(first + u);
        if (valid == 0) continue;
        const Wide<T> p = p_of<T>(activation, dy[u], x[u], numbers);
        if (parts) sums.add(valid, p, x[u], numbers);
        if (has_dx) walk.template write<true>(first + u, gradient_of<T>(p, x[u], false, numbers));
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

template <class T, Way way, class Activation>
FASTACT_KERNEL_OF(kStripThreads, (kStripBlocks<T, way, Activation>))
void strip_backward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                    FASTACT_GRID_CONSTANT const BackwardCall call,
                    FASTACT_GRID_CONSTANT const Activation activation) {
  constexpr int kVecs = Walk<T, way>::kPairVecs;
  for_each_tile<T, way>(s, true, [&](const Walk<T, way>& walk) {
    Held<T, way> dy[kVecs], x[kVecs];
    const auto read = [&](int from) {
      walk.read(kStripDy, from, dy);
      walk.read(kStripX, from, x);
    };
    read(0);
    const int64_t first = call.groups.of(walk.coef());
    make_saved_numbers(walk, call);
    if (call.parts.data) merge_groups(walk, call, first);
    make_gradient_numbers<true>(walk, call, first);
    const BackwardNumbers<T, way, kOfGradient, Activation> numbers(walk);
    const int rounds = walk.rounds(kVecs);
    for (int i = 0; i < rounds; ++i) {
      const int first_vec = i * kVecs;
      if (i > 0) read(first_vec);
#pragma unroll
      for (int u = 0; u < kVecs; ++u) {
        if (walk.elements(first_vec + u) == 0) continue;
        const Wide<T> p = p_of<T>(activation, dy[u], x[u], numbers);
        walk.template write<true>(first_vec + u, gradient_of<T>(p, x[u], true, numbers));
      }
    }
    __syncthreads();
  });
}

// parts OUT: the sums of each channel of each example, from which the gradients of groups are made.
template <class T, Way way, class Activation>
FASTACT_KERNEL_OF((kThreadsOfWhole<T, way>), 1)
void whole_backward(FASTACT_GRID_CONSTANT const StripsOf<way> s,
                    FASTACT_GRID_CONSTANT const BackwardCall call,
                    FASTACT_GRID_CONSTANT const Activation activation, double* parts) {
  constexpr int kVecs = Walk<T, way>::kVecs;
  for_each_tile<T, way>(s, false, [&](const Walk<T, way>& walk) {
    Held<T, way> dy[kVecs], x[kVecs];
    walk.read(kStripDy, 0, dy);
    walk.read(kStripX, 0, x);
    make_saved_numbers(walk, call);
    {
      UnitSums<T, way> sums;
      const BackwardNumbers<T, way, kOfSums, Activation> numbers(walk);
#pragma unroll
      for (int u = 0; u < kVecs; ++u) {
        const int valid = walk.elements(u);
        if (valid > 0) sums.add(valid, p_of<T>(activation, dy[u], x[u], numbers), x[u], numbers);
      }
      sums.end_round();
      sums.fold(walk);
    }
    if (call.of_groups) {
      store_parts(walk, parts);
      const auto pairs = tile_pairs();
      const auto all = backward_numbers<T>();
      __syncthreads();
      const int mine = int(threadIdx.x);
      if (mine < walk.tile.channels) {
        const double weight = double(Compute<T>(all[kInner * kTileChannels + mine]));
        pairs[mine] = weight * double(pairs[mine]);
        pairs[kTileChannels + mine] = weight * double(pairs[kTileChannels + mine]);
      }
      __syncthreads();
      merge_tile(walk, int(call.groups.size.by), [&](int channel, int, double (&pair)[2]) {
        pair[0] += double(pairs[channel]);
        pair[1] += double(pairs[kTileChannels + channel]);
      });
    }
    make_gradient_numbers<false>(walk, call, call.groups.of(walk.coef()));
    if (s.data[kStripOut]) {
      const BackwardNumbers<T, way, kOfGradient, Activation> numbers(walk);
#pragma unroll
      for (int u = 0; u < kVecs; ++u) {
        if (walk.elements(u) == 0) continue;
        const Wide<T> p = p_of<T>(activation, dy[u], x[u], numbers);
        walk.template write<true>(u, gradient_of<T>(p, x[u], call.of_statistics, numbers));
      }
    }
    __syncthreads();
  });
}

// dweight and dbias of each channel, from its parts in all examples (core/finish.cuh).
template <class T>
struct FinishChannels {
  static constexpr int kSums = 2;
  BackwardCall call;
  int64_t outputs, count;

  FASTACT_DEVICE void add(int64_t channel, int64_t i, double (&sum)[2]) const {
    const Parts& parts = call.parts;
    const int64_t example = parts.chunks(i), coef = example * call.channels.by + channel;
    const double* part = parts.data + 2 * (coef * parts.chunks.by + parts.chunk_of(i, example));
    double mean = 0, rstd = 1;
    call.statistics.get(call.groups.of(coef), mean, rstd);
    sum[0] += load(part);
    sum[1] = madd(rstd, load(part + 1), sum[1]);
  }
  FASTACT_DEVICE void put(int64_t channel, const double (&sum)[2]) const {
    call.gradients.put(channel, sum[1], sum[0], call.accumulates);
  }
};

// Queues dx, where there is one, and the gradients that are wanted. workspace: of part_bytes.
template <class T, Way way, class Activation>
void queue_strips(const StripsOf<way>& s, BackwardCall call, const Activation& activation,
                  double* workspace, cudaStream_t stream) {
  const bool has_gradients = call.gradients.a || call.gradients.b, has_dx = s.data[kStripOut];
  const bool sums_given = call.sum_p.data;
  const auto put_gradients = [&] {
    if (!has_gradients || sums_given) return;
    call.parts = parts_of(s, call.groups.size.by, workspace);
    constexpr int64_t kOfWarp = 1024;  // parts of a channel
    const int64_t count = s.examples * s.count;
    finish(FinishChannels<T>{call, s.channels, count}, stream,
           count > kOfWarp ? kFinishThreads : kWarp);
  };
  if (s.block.has_groups(call.groups.size.by) && !sums_given &&
      (call.of_statistics || has_gradients)) {
    launch_whole(whole_backward<T, way, Activation>, s, stream, call, activation, workspace);
    if (call.of_groups) put_gradients();
    return;
  }
  if (!call.of_statistics) {
    launch_rounds(strip_sums<T, way, Activation>, s, stream, call, activation,
                  has_gradients ? workspace : nullptr);
  } else if (!sums_given) {
    auto without_dx = s;
    without_dx.data[kStripOut] = nullptr;
    launch_rounds(strip_sums<T, way, Activation>, without_dx, stream, call, activation, workspace);
  }
  if (call.of_statistics && has_dx) {
    if (!sums_given) give_parts<T>(s, workspace, &call, stream);
    launch_rounds(strip_backward<T, way, Activation>, s, stream, call, activation);
    if (!call.of_groups) return;
  }
  put_gradients();
}

}  // namespace
FASTACT_END_NAMESPACE
