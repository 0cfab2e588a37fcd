// The small kernels of norms whose channels come last, between the sums of channels and the
// statistics of groups of them.
//
// Coefficients are indexed example by example and, inside an example, channel by channel, so that
// those of a group are neighbours.
#pragma once

#include "cuda/norms/channels/coefficients.cuh"
#include "cuda/reductions/shifted_moments.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kGroupThreads = 256;

// Two arrays: mean and rstd by group, weight and bias (or their gradients) by channel. Their
// stride is a byte: axes give offsets, x of a and y of b.
struct Pair {
  NumberVector a, b;
  Axes axes;
};

struct Groups {
  int64_t count, group_size;  // groups, and channels of each
  int64_t channels;           // of an example: those of some groups
  int64_t pixels;             // of an example
  double eps;
};

// Forward: a group's mean and rstd from the moments of its channels, merged in a fixed order, and
// the coefficients of its channels. One warp per group.
template <class T>
FASTACT_KERNEL(kGroupThreads)
void group_statistics(const Coefficients<T> coefs, const double* means, const double* m2s,
                      const Groups groups, FASTACT_GRID_CONSTANT const Pair statistics,
                      FASTACT_GRID_CONSTANT const Pair parameters) {
  const int64_t group = int64_t(blockIdx.x) * (kGroupThreads / kWarp) + int(threadIdx.x) / kWarp;
  if (group >= groups.count) return;  // a whole warp
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t first = group * groups.group_size;
  Growing all{};
  for (int64_t i = lane; i < groups.group_size; i += kWarp)
    absorb(all, Part{load(means + first + i), load(m2s + first + i), double(groups.pixels)});
  all = warp_merge(all);
  double mean = all.of.mean + all.of.mean_low;
  double rstd = rstd_of(all.of.m2 + all.of.m2_low, all.count, groups.eps);
  if (lane == 0) {
    const Offset at = locate(statistics.axes, group);
    put_number(statistics.a, at.x, mean);
    put_number(statistics.b, at.y, rstd);
  }
  mean = __shfl_sync(kAllLanes, mean, 0, kWarp);
  rstd = __shfl_sync(kAllLanes, rstd, 0, kWarp);
  for (int64_t i = lane; i < groups.group_size; i += kWarp) {
    const Offset at = locate(parameters.axes, (first + i) % groups.channels);
    set_forward_coefs(coefs, first + i, mean, rstd, number_at(parameters.a, at.x, 1.0),
                      number_at(parameters.b, at.y, 0.0));
  }
}

// Backward: coefficients from the statistics that forward saved; one thread per coefficient index.
template <class T>
FASTACT_KERNEL(kGroupThreads)
void read_statistics(const Coefficients<T> coefs, const Groups groups,
                     FASTACT_GRID_CONSTANT const Pair statistics,
                     FASTACT_GRID_CONSTANT const Pair parameters) {
  using C = Compute<T>;
  const int64_t coef = int64_t(blockIdx.x) * kGroupThreads + threadIdx.x;
  if (coef >= groups.count * groups.group_size) return;
  const Offset at = locate(statistics.axes, coef / groups.group_size);
  const Offset of_channel = locate(parameters.axes, coef % groups.channels);
  const double rstd = number_at(statistics.b, at.y, 1.0);
  const double weight = number_at(parameters.a, of_channel.x, 1.0);
  set_forward_coefs(coefs, coef, number_at(statistics.a, at.x, 0.0), rstd, weight,
                    number_at(parameters.b, of_channel.y, 0.0));
  store(coefs.at(kRstd, coef), C(rstd));
  store(coefs.at(kWeight, coef), C(weight));
}

// The sums of p and p (x - mean) of each channel of each example ([2][coefs]) become those of p and
// p xhat in `totals`, which may be the same memory, and, by the weights, a group's means of g and
// g xhat. One warp per group, one lane per channel.
template <class T>
FASTACT_KERNEL(kGroupThreads)
void finish_groups(const Coefficients<T> coefs, const double* sums, double* totals,
                   const Groups groups) {
  using C = Compute<T>;
  const int64_t group = int64_t(blockIdx.x) * (kGroupThreads / kWarp) + int(threadIdx.x) / kWarp;
  if (group >= groups.count) return;  // a whole warp
  const int lane = int(threadIdx.x) % kWarp;
  const int64_t first = group * groups.group_size, all = groups.count * groups.group_size;
  const double rstd = double(load(coefs.at(kRstd, first)));
  double g = 0, g_xhat = 0;
  for (int64_t i = lane; i < groups.group_size; i += kWarp) {
    const int64_t coef = first + i;
    const double p = load(sums + coef), p_xhat = load(sums + all + coef) * rstd;
    store(totals + coef, p);
    store(totals + all + coef, p_xhat);
    const double weight = double(load(coefs.at(kWeight, coef)));
    g += weight * p;
    g_xhat += weight * p_xhat;
  }
  const double n = double(groups.pixels * groups.group_size);
  g = warp_sum(g) / n;
  g_xhat = warp_sum(g_xhat) / n;
  for (int64_t i = lane; i < groups.group_size; i += kWarp) {
    store(coefs.at(kMean, first + i), C(g));
    store(coefs.at(kSlope, first + i), C(g_xhat * rstd));
  }
}

// dbias and dweight from the sums of p and p xhat of each channel ([2][channels]); one thread per
// channel.
template <class T>
FASTACT_KERNEL(kGroupThreads)
void put_parameters(const double* sums, const int64_t channels,
                    FASTACT_GRID_CONSTANT const Pair gradients, const bool accumulate) {
  const int64_t channel = int64_t(blockIdx.x) * kGroupThreads + threadIdx.x;
  if (channel >= channels) return;
  const Offset at = locate(gradients.axes, channel);
  put_number(gradients.a, at.x, load(sums + channels + channel), accumulate);
  put_number(gradients.b, at.y, load(sums + channel), accumulate);
}

}  // namespace
FASTACT_END_NAMESPACE
