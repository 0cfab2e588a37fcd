// SoftmaxKernels of softmax/kernels.h, and SoftmaxLoops of bands. Each is a loop over the elements
// of a row; sums are a second loop over a block that lies in the first-level cache, for their lanes
// are fixed. Only sums without stored exponentials are added as these are computed.
#include "common/softmax/loss.h"
#include "cpu/simd/map_span.h"
#include "cpu/simd/mixed.h"
#include "cpu/softmax/loops.h"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, int mask_kind>
void prepare(const char* x_, const char* mask, double scale_, char* z, int64_t n) {
  const T* x = pointer<T>(x_);
  const T scale = T(scale_);
  if constexpr (mask_kind == 1) {
    const uint8_t* takes_part = pointer<uint8_t>(mask);
    each(pointer<T>(z), n, [=](int64_t i) FASTACT_INLINED {
      const T value = scale * x[i];
      return takes_part[i] ? value : T(-kInfinity);
    });
  } else {
    const T* added = pointer<T>(mask);
    each(pointer<T>(z), n, [=](int64_t i) FASTACT_INLINED {
      if constexpr (mask_kind == 0) return scale * x[i];
      return masked_score(scale, x[i], added[i]);
    });
  }
}

// The largest of kWidth elements and more. Vectors that overlap cover an incomplete last one.
template <int kWidth, class T>
FASTACT_HD T largest_by(const T* z, int64_t n) {
  alignas(64) T lanes[kWidth];
  each(lanes, kWidth, [](int64_t) FASTACT_INLINED { return T(-kInfinity); });
  const auto take = [&](const T* at) FASTACT_INLINED {
#pragma omp simd
    for (int k = 0; k < kWidth; ++k) lanes[k] = at[k] > lanes[k] ? at[k] : lanes[k];
  };
  for (int64_t i = 0; i + kWidth <= n; i += kWidth) take(z + i);
  if (n % kWidth) take(z + n - kWidth);
#pragma GCC unroll 6
  for (int half = kWidth / 2; half > 0; half /= 2)
#pragma omp simd
    for (int k = 0; k < half; ++k)
      lanes[k] = lanes[half + k] > lanes[k] ? lanes[half + k] : lanes[k];
  return lanes[0];
}

// The largest element, and -inf if there is none but NaNs.
template <class T>
FASTACT_HD T largest(const T* z, int64_t n) {
  if (n >= 64) return largest_by<4 * kStepOf<T>>(z, n);
  if (n >= 16) return largest_by<16>(z, n);
  T max = T(-kInfinity);
  for (int64_t i = 0; i < n; ++i) max = z[i] > max ? z[i] : max;
  return max;
}

// The sum of a row's exponentials, which are not kept, without its maximum, and how often that
// occurs.
template <class T>
struct SumApart {
  static constexpr int kStep = kStepOf<T>, kMixed = LaneSum<T>::kAtOnce;
  LaneSum<T> sum;
  alignas(64) T counts[kStep];
  alignas(64) T terms[kStep + kMixed];  // what is left over, from kStep on

  template <class F>
  FASTACT_HD void begin(const T* z, int64_t n, T max, F term, const NextChunk& next) {
    sum = {};
    T found[kStep] = {};
    const auto take = [&](int64_t from, int counted, T* __restrict to) FASTACT_INLINED {
#pragma omp simd
      for (int k = 0; k < kStep; ++k) {
        const T value = term(z[from + k]);
        to[k] = z[from + k] == max ? T(0) : value;
      }
#pragma omp simd
      for (int k = 0; k < kStep; ++k) found[k] += k >= counted && z[from + k] == max ? T(1) : T(0);
    };
    T* const rest = terms + kStep;
    const int64_t whole = n / kMixed * kMixed, left = n - whole;
    int64_t i = 0;
    for (; i + kStep <= left; i += kStep) take(whole + i, 0, rest + i);
    // The last vector overlaps the one before it.
    if (i < left && n >= kStep) take(n - kStep, int(kStep - left + i), rest + left - kStep);
    for (; i < n && n < kStep; ++i) {
      rest[i] = z[i] == max ? T(0) : term(z[i]);
      found[i] = z[i] == max ? T(1) : T(0);
    }
    T made[kMixed];
    for (i = 0; i < whole; i += kMixed) {
      if (next.at[0]) prefetch<kMixed * sizeof(T)>(next.at[0] + i * next.item, 0);
      if (next.at[1]) prefetch<kMixed * sizeof(T), 2>(next.at[1] + i * next.item, 0);
#pragma GCC unroll 4
      for (int step = 0; step < kMixed; step += kStep) take(i + step, 0, made + step);
      sum.add(made);
    }
    memcpy(counts, found, sizeof found);
  }

  FASTACT_HD void end(int64_t n, TileStats* stats, int64_t j) {
#pragma GCC unroll 4
    for (int half = kStep / 2; half > 0; half /= 2)
#pragma omp simd
      for (int k = 0; k < half; ++k) counts[k] += counts[half + k];
    stats->ones[j] = double(counts[0]);
    stats->rest[j] = sum.end(terms + kStep, 0, n % kMixed, Terms<T>{});
  }
};

// Takes a block of one row, whose maximum is known: infinite, or far.
template <class T, bool apart>
void far_block(const T* z, int64_t n, T* e, TileStats* stats, int64_t j) {
  const T max = T(stats->max[j]);
  if (!(magnitude(max) < T(kInfinity))) {
    stats->rest[j] = 0.0, stats->ones[j] = apart;
    for (int64_t i = 0; i < n; ++i)
      if (z[i] != z[i]) stats->rest[j] = __builtin_nan("");
    if (!apart) each(e, n, [=](int64_t) FASTACT_INLINED { return T(0); });
    return;
  }
  const auto term = [=](T value) FASTACT_INLINED { return exp_far(value, max); };
  if constexpr (apart) {
    SumApart<T> sum;
    sum.begin(z, n, max, term, kNoNext);
    sum.end(n, stats, j);
  } else {
    each(e, n, [=](int64_t i) FASTACT_INLINED { return term(z[i]); });
    stats->rest[j] = sum_of_exponentials(e, n), stats->ones[j] = 0.0;
  }
}

// Each step is a loop over the rows, which then overlap: a row alone is a chain of latencies.
template <class T, bool apart>
FASTACT_MIXED void block(BlockRows z, int64_t m, int64_t n, const NextRows& next,
                         BlockRows exponentials, TileStats* stats) {
  const auto row = [=](int64_t j) FASTACT_INLINED { return pointer<T>(z.at + j * z.stride); };
  const auto made = [=](int64_t j) FASTACT_INLINED {
    return pointer<T>(exponentials.at + j * exponentials.stride);
  };
  T max[kBand];
  SoftmaxReference<T> reference[kBand];
  SumApart<T> sums[apart ? kBand : 1];
  for (int64_t j = 0; j < m; ++j) max[j] = largest(row(j), n);
  for (int64_t j = 0; j < m; ++j) stats->max[j] = double(max[j]);
  for (int64_t j = 0; j < m; ++j) reference[j] = reference_of(max[j]);
  for (int64_t j = 0; j < m; ++j) {
    const T* const at = row(j);
    if (!is_near(max[j])) {
      far_block<T, apart>(at, n, made(j), stats, j);
      continue;
    }
    const SoftmaxReference<T> beside = reference[j];
    const auto term = [=](T value) FASTACT_INLINED { return exp_near(value, beside); };
    if constexpr (apart)
      sums[j].begin(at, n, max[j], term, next.of(j));
    else
      each(made(j), n, [=](int64_t i) FASTACT_INLINED { return term(at[i]); }, next.of(j));
  }
  for (int64_t j = 0; j < m; ++j) {
    if (!is_near(max[j])) continue;
    if constexpr (apart) {
      sums[j].end(n, stats, j);
    } else {
      stats->rest[j] = sum_of_exponentials(made(j), n), stats->ones[j] = 0.0;
    }
  }
}

FASTACT_HD SoftmaxStat stat_of(const TileStats& stats, int64_t j) {
  return {stats.max[j], stats.rest[j], stats.ones[j]};
}

template <class T>
void merge(TileStats* total, const TileStats& block, int64_t n) {
  for (int64_t j = 0; j < n; ++j) {
    const SoftmaxStat sum = merged<T>(stat_of(*total, j), stat_of(block, j));
    total->max[j] = sum.max, total->rest[j] = sum.rest, total->ones[j] = sum.ones;
  }
}

// Called: as a loop over vectors, rare rows would take as much code as all others.
template <class T>
__attribute__((noinline)) SoftmaxLevel<double> level_called(const SoftmaxStat& stat,
                                                            bool has_mask) {
  return level_of<T>(stat, has_mask);
}

// Without branches where all rows are as they mostly are.
template <class T, bool apart>
void finish(const TileStats& stats, int64_t n, bool has_mask, TileRows* rows) {
  bool are_near = true;
  for (int64_t j = 0; j < n; ++j) are_near &= magnitude(stats.max[j]) <= kNearMaximum;
  if (!are_near) {
    for (int64_t j = 0; j < n; ++j) {
      const SoftmaxLevel<double> row = level_called<T>(stat_of(stats, j), has_mask);
      rows->max[j] = row.max, rows->log[j] = row.log;
      rows->lse[j] = row.lse, rows->factor[j] = row.factor;
    }
    return;
  }
  alignas(64) T max[kTileWidth];
  alignas(64) double one[kTileWidth];
  const double *rest = stats.rest, *ones = stats.ones;
  each(max, n, [&](int64_t j) FASTACT_INLINED { return T(stats.max[j]); });
  each(max, n, [&](int64_t j) FASTACT_INLINED { return exp_near(max[j], reference_of(max[j])); });
  each(one, n, [&](int64_t j) FASTACT_INLINED { return double(max[j]); });
  each(rows->max, n, [&](int64_t j) FASTACT_INLINED { return stats.max[j]; });
  each(rows->factor, n,
       [&](int64_t j) FASTACT_INLINED { return 1.0 / sum_of_terms(rest[j], ones[j], one[j]); });
  if (apart) {
    each(rows->log, n, [&](int64_t j) FASTACT_INLINED {
      return log1p_of_sum(sum_beside_one(rest[j], ones[j], one[j]));
    });
    each(rows->lse, n, [&](int64_t j) FASTACT_INLINED { return stats.max[j] + rows->log[j]; });
  }
}

template <class T>
double lower(double block_max, double max) {
  if (block_max == max) return 1.0;
  if (!is_finite(block_max) || !is_near(T(block_max)) || !is_near(T(max))) return 0.0;
  const double factor = lower_by<T>(block_max, max);
  return factor < 0x1p-60 ? 0.0 : factor;
}

template <class T, class Kind>
void apply(BlockRows from, int64_t m, int64_t n, const double* first, const double* second,
           BlockRows y) {
  for (int64_t j = 0; j < m; ++j) {
    const T* of = pointer<T>(from.at + j * from.stride);
    const T a = T(first[j]), b = Kind::kTakesTerms ? T(0) : T(second[j]);
    each(pointer<T>(y.at + j * y.stride), n,
         [=](int64_t i) FASTACT_INLINED { return Kind::y_of(of[i], a, b); });
  }
}

template <class T>
FASTACT_MIXED void exponentials(BlockRows rows, int64_t m, int64_t n, const double* maxima,
                                const double* factors, BlockRows y) {
  for (int64_t j = 0; j < m; ++j) {
    const T* z = pointer<T>(rows.at + j * rows.stride);
    T* const to = pointer<T>(y.at + j * y.stride);
    const ExponentialFactor<T> by = ExponentialFactor<T>::of(factors[j]);
    const T max = is_finite(maxima[j]) ? T(maxima[j]) : T(0), factor = by.factor;
    if (is_near(max)) {
      const SoftmaxReference<T> reference = reference_of(max, by.zero_at);
      each(to, n, [=](int64_t i) FASTACT_INLINED { return exp_near(z[i], reference) * factor; });
    } else {
      const T down = by.down;
      each(to, n, [=](int64_t i) FASTACT_INLINED { return exp_far(z[i], max) * down * factor; });
    }
  }
}

template <class T>
constexpr double kUp = 1 / double(Tail<T>::kDown);  // 2^kScale

// Beside lse, as `exponentials` takes it. The rest is small beside all but a far lse.
template <class T>
double factor_of(double lse, double rest) {
  if (!is_finite(lse)) return __builtin_nan("");
  const double factor = kUp<T> / exp_of_maximum<T>(lse);
  if (magnitude(rest) < 0x1p-12) return factor * madd(-rest, madd(-0.5, rest, 1.0), 1.0);
  return factor * exp_scaled<0>(no_more(no_less(-rest, -700.0), 700.0)).value();
}

double slope_of_target(double distance, double share, double others) {
  const Exp<double> p = exp_scaled<0>(no_less(distance, kExpZero<double>));
  return madd(share, p.minus_one(), others * p.value());
}

// t w of n elements, in double.
template <class T>
FASTACT_HD void weights_of(const SoftmaxTarget& target, int64_t n, double* counts) {
  const T *t = pointer<T>(target.target), *w = pointer<T>(target.weight);
  const double scale = target.scale, floor = target.floor;
  each(counts, n, [=](int64_t) FASTACT_INLINED { return floor; });
  if (t) each(counts, n, [=](int64_t i) FASTACT_INLINED { return scale * double(t[i]) + floor; });
  if (w) each(counts, n, [=](int64_t i) FASTACT_INLINED { return counts[i] * double(w[i]); });
}

template <class T>
void weigh(const char* z_, const SoftmaxTarget& target, int64_t n, double max, double* sums) {
  const T* z = pointer<T>(z_);
  double counts[kSoftmaxBlock], distance[kSoftmaxBlock];
  weights_of<T>(target, n, counts);
  // A class that counts nothing does so at any distance, an infinite one too.
  each(distance, n, [&](int64_t i) FASTACT_INLINED {
    return below_maximum(counts[i], max, [&]() FASTACT_INLINED { return double(z[i]); });
  });
  sums[0] = sum_of(distance, n, Products<double>{counts});
  sums[1] = sum_of(counts, n, Terms<double>{});
}

template <class T>
void subtract(const SoftmaxTarget& target, int64_t n, double factor, char* dz_) {
  T* dz = pointer<T>(dz_);
  double counts[kSoftmaxBlock];
  weights_of<T>(target, n, counts);
  each(dz, n,
       [=, &counts](int64_t i) FASTACT_INLINED { return T(double(dz[i]) - factor * counts[i]); });
}

template <class T, class Kind>
void sum(BlockRows a, BlockRows b, int64_t m, int64_t n, double* sums) {
  for (int64_t j = 0; j < m; ++j) {
    const T* dy = pointer<T>(a.at + j * a.stride);
    if constexpr (Kind::kSumsProducts) {
      const T* y = pointer<T>(b.at + j * b.stride);
      const double found = sum_of(dy, n, Products<T>{y});
      sums[j] += found == found ? found : sum_of_parts(dy, y, n);
    } else {
      sums[j] += sum_of(dy, n, Terms<T>{});
    }
  }
}

template <class T, class Kind>
FASTACT_MIXED void gradient(BlockRows of_dy, BlockRows of_y, int64_t m, int64_t n,
                            const double* sums, double scale_, const NextRows& next,
                            BlockRows of_dx) {
  using C = Compute<T>;
  const C scale = C(scale_);
  for (int64_t j = 0; j < m; ++j) {
    const T *dy = pointer<T>(of_dy.at + j * of_dy.stride),
            *y = pointer<T>(of_y.at + j * of_y.stride);
    T* const dx = pointer<T>(of_dx.at + j * of_dx.stride);
    const GradientSum<C> sum = GradientSum<C>::of(sums[j]);
    const auto of = [=](C v, C w) FASTACT_INLINED { return gradient_of<Kind>(v, w, sum, scale); };
    if constexpr (is_half<T>) {
      if (n >= kInRegisters)
        map_span<kInRegisters>(dy, y, dx, n, of);
      else
        map_indexed<kInRegisters>(dy, y, dx, n,
                                  [=](int64_t, C v, C w) FASTACT_INLINED { return of(v, w); });
    } else {
      each(dx, n, [=](int64_t i) FASTACT_INLINED { return of(dy[i], y[i]); }, next.of(j));
    }
  }
}

template <class T>
constexpr SoftmaxKernels kernels_of() {
  return {
      {prepare<T, 0>, prepare<T, 1>, prepare<T, 2>},
      merge<T>,
      {finish<T, false>, finish<T, true>},
      lower<T>,
      kUp<T>,
      factor_of<T>,
      slope_of_target,
      weigh<T>,
      subtract<T>,
  };
}

template <class T>
constexpr SoftmaxLoops loops_of() {
  SoftmaxLoops made{};
  if constexpr (!is_half<T>) {
    made.block[false] = block<T, false>, made.block[true] = block<T, true>;
    made.exponentials = exponentials<T>;
#define FASTACT_ENTRY(number, Kind, name) made.apply[number] = apply<T, Kind>;
    FASTACT_SOFTMAX_MAPS(FASTACT_ENTRY)
#undef FASTACT_ENTRY
  }
#define FASTACT_ENTRY(number, Kind, name) \
  made.sum[number] = sum<T, Kind>, made.gradient[number] = gradient<T, Kind>;
  FASTACT_SOFTMAX_MAPS(FASTACT_ENTRY)
#undef FASTACT_ENTRY
  return made;
}

constexpr SoftmaxKernels kKernels[] = {kernels_of<float>(), kernels_of<double>()};
constexpr SoftmaxLoops kBands[] = {loops_of<f16>(), loops_of<bf16>(), loops_of<float>(),
                                   loops_of<double>()};

}  // namespace

extern const SoftmaxTable softmax_table;
const SoftmaxTable softmax_table = {kKernels, kBands, softmax_tiles};

FASTACT_END_NAMESPACE
