// SoftmaxLoops of tiles (softmax/kernels.h): loops over the rows of a tile, for one element of each
// row after the other.
#include <type_traits>

#include "cpu/reductions/kernels.h"
#include "cpu/softmax/loops.h"

FASTACT_BEGIN_NAMESPACE

extern const ReduceTable reduce_table;

namespace {

static_assert(kSoftmaxLanes == kLanes);

// The elements of a tile of T, in the compute type: element i of each of its rows, where they lie
// or converted.
template <class T>
struct TileIn {
  const BlockRows rows;
  const int64_t width;
  Wide<T, kTileWidth> wide;
  TileIn(const BlockRows& r, int64_t w) : rows(r), width(w) {}
  FASTACT_HD const Compute<T>* read(int64_t i) {
    return wide.read(pointer<T>(rows.at + i * rows.stride), width);
  }
};
template <class T>
struct TileOut {
  const BlockRows rows;
  const int64_t width;
  Wide<T, kTileWidth> wide;
  TileOut(const BlockRows& r, int64_t w) : rows(r), width(w) {}
  FASTACT_HD Compute<T>* at(int64_t i) { return wide.to(pointer<T>(rows.at + i * rows.stride)); }
  FASTACT_HD void finish(int64_t i) { wide.finish(pointer<T>(rows.at + i * rows.stride), width); }
};

// The lanes of a tile: kSoftmaxLanes of each of its rows.
struct TileLanes {
  alignas(64) double lanes[kSoftmaxLanes * kTileWidth];
  int64_t used, width;

  TileLanes(int64_t n, int64_t w) : used(n < kSoftmaxLanes ? n : kSoftmaxLanes), width(w) {
    for (int64_t i = 0; i < used * width; ++i) lanes[i] = 0.0;
  }
  double* of(int64_t i) { return lanes + i % kSoftmaxLanes * width; }
  // Lanes from `used` on are zero, which changes nothing that it is added to.
  const double* fold() {
    reduce_table.fold(lanes, used, width);
    return lanes;
  }
};

// The references of the exponentials of a tile's rows.
template <class T>
struct TileReferences {
  alignas(64) T max[kTileWidth], limit[kTileWidth], magic[kTileWidth];
  alignas(64) T down[kTileWidth];  // as of ExponentialFactor
  bool are_near = true;

  // of(row): its ExponentialFactor.
  template <class Of>
  FASTACT_HD void set(int64_t width, Of of) {
    for (int64_t j = 0; j < width; ++j) {
      if (!(magnitude(max[j]) < T(kInfinity))) max[j] = 0;
      const ExponentialFactor<T> by = of(j);
      const SoftmaxReference<T> reference =
          reference_of(is_near(max[j]) ? max[j] : T(0), by.zero_at);
      limit[j] = reference.limit, magic[j] = reference.magic, down[j] = by.down;
      are_near &= is_near(max[j]);
    }
  }
  // y OUT (width) = finish(exponential, z, row) of z IN, one of each row.
  template <class F>
  FASTACT_HD void map(const T* z, int64_t width, T* y, F finish) const {
    if (are_near) {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j)
        y[j] = finish(exp_near(z[j], SoftmaxReference<T>{limit[j], magic[j]}), z[j], j);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) {
        const T near = exp_near(z[j], SoftmaxReference<T>{limit[j], magic[j]});
        const T far = exp_far(z[j], max[j]) * down[j];
        y[j] = finish(magnitude(max[j]) <= T(kNearMaximum) ? near : far, z[j], j);
      }
    }
  }
};

template <class T, bool apart>
void tile_block(BlockRows z_, int64_t width, int64_t n, const NextRows&, BlockRows exponentials,
                TileStats* stats) {
  using C = Compute<T>;
  TileIn<T> z(z_, width);
  TileReferences<C> references;
  C* max = references.max;
  for (int64_t j = 0; j < width; ++j) max[j] = C(-kInfinity);
  for (int64_t i = 0; i < n; ++i) {
    const C* at = z.read(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) max[j] = at[j] > max[j] ? at[j] : max[j];
  }
  alignas(64) C ones[kTileWidth] = {};
  for (int64_t i = 0; apart && i < n; ++i) {
    const C* at = z.read(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) ones[j] += at[j] == max[j] ? C(1) : C(0);
  }
  bool are_finite = true;
  for (int64_t j = 0; j < width; ++j) {
    stats->max[j] = double(max[j]), stats->ones[j] = double(ones[j]);
    are_finite &= magnitude(max[j]) < C(kInfinity);
  }
  if (!are_finite) {  // before z may be written
    for (int64_t j = 0; j < width; ++j) stats->rest[j] = 0.0;
    for (int64_t i = 0; i < n; ++i) {
      const C* at = z.read(i);
      for (int64_t j = 0; j < width; ++j)
        if (at[j] != at[j]) stats->rest[j] = __builtin_nan("");
    }
  }
  references.set(width,
                 [](int64_t) FASTACT_INLINED { return ExponentialFactor<C>{1, kZeroAt<C>, 1}; });
  TileLanes sums(n, width);
  alignas(64) C unkept[2][kTileWidth];
  const auto terms = [&](int64_t i, int buffer) FASTACT_INLINED {
    C* const e = exponentials.stride == 0 ? unkept[buffer]
                                          : pointer<C>(exponentials.at + i * exponentials.stride);
    references.map(z.read(i), width, e, [=](C value, C of, int64_t j) FASTACT_INLINED {
      return apart && of == max[j] ? C(0) : value;
    });
    return e;
  };
  const auto add = [&](int64_t i, auto term) FASTACT_INLINED {
    double* lane = sums.of(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) lane[j] += double(term(j));
  };
  // Terms are added in the order of LaneSum.
  constexpr int64_t kAtOnce = LaneSum<C>::kAtOnce;
  const int64_t in_pairs = kAddsPairs<C> ? n / kAtOnce * kAtOnce : 0;
  for (int64_t first = 0; first < in_pairs; first += kAtOnce)
    for (int64_t i = first; i < first + kSoftmaxLanes; ++i) {
      const C *const a = terms(i, 0), *const b = terms(i + kSoftmaxLanes, 1);
      add(i, [=](int64_t j) FASTACT_INLINED { return a[j] + b[j]; });
    }
  for (int64_t i = in_pairs; i < n; ++i) {
    const C* const e = terms(i, 0);
    add(i, [=](int64_t j) FASTACT_INLINED { return e[j]; });
  }
  const double* sum = sums.fold();
  for (int64_t j = 0; j < width; ++j)
    if (are_finite || is_finite(stats->max[j]))
      stats->rest[j] = sum[j];
    else
      stats->ones[j] = apart;
}

// Numbers of the rows of a tile, in the type that is computed in.
template <class C>
struct TileNumbers {
  alignas(64) C of[kTileWidth];
  FASTACT_HD TileNumbers(const double* numbers, int64_t width) {
    for (int64_t j = 0; j < width; ++j) of[j] = C(numbers[j]);
  }
};

template <class T, class Kind>
void tile_apply(BlockRows from, int64_t width, int64_t n, const double* first, const double* second,
                BlockRows y) {
  using C = Compute<T>;
  using From = std::conditional_t<Kind::kTakesTerms, C, T>;
  const TileNumbers<C> a(first, width), b(Kind::kTakesTerms ? first : second, width);
  TileIn<From> in(from, width);
  TileOut<T> out(y, width);
  for (int64_t i = 0; i < n; ++i) {
    const C* const of = in.read(i);
    C* const made = out.at(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) made[j] = Kind::y_of(of[j], a.of[j], b.of[j]);
    out.finish(i);
  }
}

template <class T>
void tile_exponentials(BlockRows z, int64_t width, int64_t n, const double* maxima,
                       const double* factors, BlockRows y) {
  using C = Compute<T>;
  TileReferences<C> references;
  alignas(64) C factor[kTileWidth];
  for (int64_t j = 0; j < width; ++j) {
    references.max[j] = C(maxima[j]);
    factor[j] = ExponentialFactor<C>::of(factors[j]).factor;
  }
  references.set(width,
                 [=](int64_t j) FASTACT_INLINED { return ExponentialFactor<C>::of(factors[j]); });
  TileIn<T> from(z, width);
  TileOut<T> to(y, width);
  for (int64_t i = 0; i < n; ++i) {
    references.map(from.read(i), width, to.at(i),
                   [&](C value, C, int64_t j) FASTACT_INLINED { return value * factor[j]; });
    to.finish(i);
  }
}

template <class T, class Kind>
void tile_sum(BlockRows dy_, BlockRows y_, int64_t width, int64_t n, double* sums) {
  TileIn<T> dy(dy_, width), y(y_, width);
  TileLanes lanes(n, width);
  for (int64_t i = 0; i < n; ++i) {
    double* lane = lanes.of(i);
    const Compute<T>* const a = dy.read(i);
    if constexpr (Kind::kSumsProducts) {
      const Compute<T>* const b = y.read(i);
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) lane[j] = madd(double(a[j]), double(b[j]), lane[j]);
    } else {
#pragma omp simd
      for (int64_t j = 0; j < width; ++j) lane[j] += double(a[j]);
    }
  }
  const double* sum = lanes.fold();
  for (int64_t j = 0; j < width; ++j) {
    const bool takes_parts = Kind::kSumsProducts && sum[j] != sum[j];
    double parts = 0.0;
    for (int64_t i = 0; takes_parts && i < n; ++i)
      parts += sum_of_parts(dy.read(i) + j, y.read(i) + j, 1);
    sums[j] += takes_parts ? parts : sum[j];
  }
}

template <class T, class Kind>
void tile_gradient(BlockRows of_dy, BlockRows of_y, int64_t width, int64_t n, const double* sums,
                   double scale_, const NextRows&, BlockRows of_dx) {
  using C = Compute<T>;
  const C scale = C(scale_);
  alignas(64) C first[kTileWidth], second[kTileWidth], finite[kTileWidth];
  for (int64_t j = 0; j < width; ++j) {
    const GradientSum<C> sum = GradientSum<C>::of(sums[j]);
    first[j] = sum.first, second[j] = sum.second, finite[j] = sum.finite;
  }
  TileIn<T> dy(of_dy, width), y(of_y, width);
  TileOut<T> dx(of_dx, width);
  for (int64_t i = 0; i < n; ++i) {
    const C *a = dy.read(i), *b = y.read(i);
    C* const to = dx.at(i);
#pragma omp simd
    for (int64_t j = 0; j < width; ++j) {
      const GradientSum<C> sum{first[j], second[j], finite[j]};
      to[j] = gradient_of<Kind>(a[j], b[j], sum, scale);
    }
    dx.finish(i);
  }
}

template <class T>
constexpr SoftmaxLoops tiles_of() {
  SoftmaxLoops made{};
  made.block[false] = tile_block<T, false>, made.block[true] = tile_block<T, true>;
  made.exponentials = tile_exponentials<T>;
#define FASTACT_ENTRY(number, Kind, name)                                         \
  made.apply[number] = tile_apply<T, Kind>, made.sum[number] = tile_sum<T, Kind>; \
  made.gradient[number] = tile_gradient<T, Kind>;
  FASTACT_SOFTMAX_MAPS(FASTACT_ENTRY)
#undef FASTACT_ENTRY
  return made;
}

}  // namespace

const SoftmaxLoops softmax_tiles[] = {tiles_of<f16>(), tiles_of<bf16>(), tiles_of<float>(),
                                      tiles_of<double>()};

FASTACT_END_NAMESPACE
