// The forward kernels of the norms; norms.cu explains the passes.
#pragma once

#include <type_traits>

#include "cuda/core/rows.cuh"
#include "cuda/norms/rows/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

enum ForwardRole { kX, kResidual, kTotal, kY };

// The i-th vector of what is normalised: from the cache, or read again.
template <class T, class Rows, class Shared>
FASTACT_DEVICE Vec<T> normalised_input(const Rows& rows, const Partition& partition, Shared&& cache,
                                       int i, int valid) {
  if (i < rows.resident) return cache[i * int(blockDim.x) + int(threadIdx.x)];
  // Written by this very thread, or read by it before.
  if (rows.data[kResidual]) return read<T>(rows, kTotal, partition.row, partition.vec(i), valid);
  return read<T>(rows, kX, partition.row, partition.vec(i), valid);
}

// Caches what is normalised of one vector, and returns its sum, or the sum of its squares where no
// mean is subtracted.
template <class T, bool adds, bool caches, class Rows, class Shared>
FASTACT_DEVICE double take(const Rows& rows, const Partition& partition, Shared&& cache, int i,
                           int valid, Vec<T> vec, const Vec<T>& other) {
  if constexpr (adds) {
    Wide<T> sum = widen_vec(vec);
    const Wide<T> more = widen_vec(other);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) sum.lane[j] += more.lane[j];
    vec = narrow_vec<T>(sum);
    write(rows, kTotal, partition.row, partition.vec(i), valid, vec);
  }
  if (caches || i < rows.resident) cache[i * int(blockDim.x) + int(threadIdx.x)] = vec;
  return rows.is_centred ? sum_of(vec) : squares_of(vec);
}

// Pass 1: x is read, the residual with it, several vectors at a time where they are whole.
template <class T, class Rows, class Shared>
FASTACT_DEVICE double collect(const Rows& rows, const Partition& partition, Shared&& cache) {
  constexpr int kSize = Vec<T>::kSize;
  double total = 0;
  int i = 0;
  if constexpr (Rows::kDense) {
    const bool adds = rows.data[kResidual] != nullptr;
    if (rows.fast[kX] && (!adds || rows.fast[kResidual])) {
      const auto several = [&](auto count, auto with_residual, auto caches, int end) {
        constexpr int kUnroll = decltype(count)::value;
        constexpr bool kAdds = decltype(with_residual)::value;
        const int64_t step = int64_t(partition.lanes) * kSize;
        const T* x = row_of<T>(rows, kX, partition.row) + partition.vec(i) * kSize;
        const T* residual = row_of<T>(rows, kResidual, partition.row) + partition.vec(i) * kSize;
#pragma unroll 1
        for (; i + kUnroll <= end; i += kUnroll, x += kUnroll * step, residual += kUnroll * step) {
          Vec<T> in[kUnroll], other[kUnroll] = {};
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            in[u] = load_vec(x + u * step);
            if constexpr (kAdds) other[u] = load_vec(residual + u * step);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u)
            total += take<T, kAdds, decltype(caches)::value>(rows, partition, cache, i + u, kSize,
                                                             in[u], other[u]);
        }
      };
      using One = std::integral_constant<int, 1>;
      using Two = std::integral_constant<int, kLoadsInFlight / 2>;
      using Four = std::integral_constant<int, kLoadsInFlight>;
      const std::true_type yes;
      const std::false_type no;
      const int whole = whole_of<T>(rows, partition);
      const int cached_whole = int(smaller(whole, rows.resident));
      if (adds) {
        several(Two(), yes, yes, cached_whole);
        several(One(), yes, no, whole);
      } else {
        several(Four(), no, yes, cached_whole);
        several(One(), no, yes, cached_whole);
        several(Four(), no, no, whole);
      }
    }
  }
#pragma unroll 1
  for (; i < partition.count; ++i) {
    const int valid = valid_of<T>(rows, partition, i);
    const int64_t q = partition.vec(i);
    if (rows.data[kResidual]) {
      const Vec<T> other = read<T>(rows, kResidual, partition.row, q, valid);
      total += take<T, true, false>(rows, partition, cache, i, valid,
                                    read<T>(rows, kX, partition.row, q, valid), other);
    } else {
      total += take<T, false, false>(rows, partition, cache, i, valid,
                                     read<T>(rows, kX, partition.row, q, valid), {});
    }
  }
  return total;
}

// Calls add(vec, valid) for each vector of what is normalised.
template <class T, class Rows, class Shared, class Add>
FASTACT_DEVICE void for_cached(const Rows& rows, const Partition& partition, Shared&& cache,
                               Add add) {
  int i = 0;
  const int cached_whole = int(smaller(whole_of<T>(rows, partition), rows.resident));
  int at = int(threadIdx.x);
#pragma unroll 1
  for (; i < cached_whole; ++i, at += int(blockDim.x)) add(cache[at], Vec<T>::kSize);
#pragma unroll 1
  for (; i < partition.count; ++i) {
    const int valid = valid_of<T>(rows, partition, i);
    add(normalised_input<T>(rows, partition, cache, i, valid), valid);
  }
}

// Pass 2: the sums of the distances from the mean, for float64 alone, and of their squares.
template <class T, class Rows, class Shared>
FASTACT_DEVICE void spread(const Rows& rows, const Partition& partition, Shared&& cache,
                           double mean, double (&sums)[2]) {
  sums[0] = sums[1] = 0;
  for_cached<T>(rows, partition, cache, [&](const Vec<T> vec, int valid) {
    double input[Vec<T>::kSize];
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      input[j] = double(widen(vec.lane[j])) - mean;
      if (j >= valid) input[j] = 0;
    }
    double sum = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      if (sizeof(T) == 8) sum += input[j];
      squares = madd(input[j], input[j], squares);
    }
    sums[0] += sum;
    sums[1] += squares;
  });
}

// Pass 2 of 16-bit data: the squared distances from `near`, the mean as a float, in float.
template <class T, class Rows, class Shared>
FASTACT_DEVICE double spread_in_float(const Rows& rows, const Partition& partition, Shared&& cache,
                                      float near) {
  double squares = 0;
  for_cached<T>(rows, partition, cache, [&](const Vec<T> vec, int valid) {
    Wide<T> x = widen_vec(vec);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      x.lane[j] -= near;
      if (j >= valid) x.lane[j] = 0;
    }
    squares += sum_in_float<T>([&](int j, float sum) { return madd(x.lane[j], x.lane[j], sum); });
  });
  return squares;
}

// Whether a sum of squares in float met no overflow, and no underflow that matters: where the mean
// square is 2^-80, what is below 2^-126 is nothing. float16 has no such numbers.
template <class T>
FASTACT_DEVICE bool is_in_range(double squares, double count) {
  return std::is_same_v<T, f16> || (squares >= count * 0x1p-80 && squares <= 0x1p120);
}

// Passes 1 and 2: the mean and the squared distances from it (0 and the sum of squares where none
// is subtracted), of the `count` elements of all lanes.
template <class T, class Rows, class Shared>
FASTACT_DEVICE void find_moments(const Rows& rows, const Partition& partition, Shared&& cache,
                                 double count, int& sum_index, double* mean, double* m2) {
  double total[1] = {collect<T>(rows, partition, cache)};
  team_sum(total, partition.lanes, sum_index);
  *mean = 0;
  *m2 = total[0];
  if (rows.is_centred) *mean = total[0] / (count * kInputScale<T>);
  double sums[2];
  if constexpr (sizeof(T) == 8) {  // of float64 the first mean is off by some ULPs
    if (!rows.is_centred) return;
    // Where the sum overflows, scaled inputs are added again: that does not, unless an infinity is
    // among them. All lanes of a warp take part in the vote.
    if (__any_sync(kAllLanes, !is_finite(total[0]))) {
      double scaled[1] = {0};
      for_cached<T>(rows, partition, cache, [&](const Vec<T> vec, int valid) {
#pragma unroll
        for (int j = 0; j < Vec<T>::kSize; ++j)
          if (j < valid) scaled[0] += double(widen(vec.lane[j])) * 0x1p-64;
      });
      team_sum(scaled, partition.lanes, sum_index);
      if (!is_finite(total[0])) *mean = scaled[0] / count * 0x1p64;
    }
    const double first = *mean;
    spread<T>(rows, partition, cache, first, sums);
    team_sum(sums, partition.lanes, sum_index);
    moments_of_sums(first, sums[0], sums[1], count, mean, m2);
    // Next to an infinite mean, or where the distances from it overflow, there is none to correct.
    if (!is_finite(*mean)) *mean = first;
  } else {
    double squares[1];
    if constexpr (sizeof(T) == 2) {
      if (rows.is_centred) {
        // sum (x - mean)^2 = sum (x - near)^2 - count (mean - near)^2
        const float near = float(*mean);
        const double low = *mean - double(near);
        squares[0] = spread_in_float<T>(rows, partition, cache, near);
        team_sum(squares, partition.lanes, sum_index);
        *m2 = squares[0] - count * (low * low);
        if (*m2 < 0) *m2 = 0;
      }
      // All lanes of a warp take part; those whose squares were in range do not use the result.
      const bool fine = is_in_range<T>(*m2, count);
      if (std::is_same_v<T, f16> || !__any_sync(kAllLanes, !fine)) return;
      spread<T>(rows, partition, cache, *mean, sums);
      squares[0] = sums[1];
      team_sum(squares, partition.lanes, sum_index);
      if (!fine) *m2 = squares[0];
    } else {
      if (!rows.is_centred) return;
      spread<T>(rows, partition, cache, *mean, sums);
      squares[0] = sums[1];
      team_sum(squares, partition.lanes, sum_index);
      *m2 = squares[0];
    }
  }
}

// xhat = (x - high) rstd + shift, where shift = -low rstd is added in the same madd.
template <class C>
struct Normaliser {
  C high, rstd, shift;
  FASTACT_DEVICE C operator()(C x) const { return madd(x - high, rstd, shift); }
};
template <class C>
FASTACT_DEVICE Normaliser<C> normaliser(double mean, C rstd) {
  const Centre<C> centre = centre_of<C>(mean);
  return {centre.high, rstd, -centre.low * rstd};
}

template <class T, bool identity>
FASTACT_DEVICE Vec<T> normalise(const NormRows& rows, const Normaliser<Compute<T>>& transform,
                                const Vec<T>& vec, const Wide<T>& weight, const Wide<T>& bias,
                                bool casts = false) {
  Wide<T> z = widen_vec(vec);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) z.lane[j] = transform(z.lane[j]);
  z = cast_if<T>(casts, z);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    z.lane[j] = affine(z.lane[j], weight.lane[j], bias.lane[j]);
  z = cast_if<T>(casts, z);
  if constexpr (!identity) z = activate<T>(rows.which, rows.parameters, z);
  return narrow_vec<T>(z);
}

// Pass 3: y, of whole vectors of quick rows first. from_memory: nothing is cached.
template <class T, bool identity, bool from_memory, class Rows, class Shared>
FASTACT_DEVICE void finish(const Rows& rows, const Partition& partition, Shared&& cache,
                           double mean, Compute<T> rstd) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  const Normaliser<C> transform = normaliser<C>(mean, rstd);
  int i = 0;
  if constexpr (Rows::kDense) {
    const auto quickly = [&](auto weight_given, auto bias_given) {
      constexpr Given kWeight = decltype(weight_given)::value, kBias = decltype(bias_given)::value;
      int whole = whole_of<T>(rows, partition);
      if (!from_memory) whole = int(smaller(whole, rows.resident));
      const char* const of_weight = parameters_base(rows, kWeightRole, partition.row);
      const char* const of_bias = parameters_base(rows, kBiasRole, partition.row);
      const T* const x = row_of<T>(rows, rows.data[kResidual] ? kTotal : kX, partition.row);
      T* const y = row_of<T>(rows, kY, partition.row);
      int q = int(partition.first), at = int(threadIdx.x);
#pragma unroll 1
      for (; i < whole; ++i, q += partition.lanes, at += int(blockDim.x)) {
        Vec<T> vec;
        if constexpr (from_memory)
          vec = load_vec(x + int64_t(q) * kSize);
        else
          vec = cache[at];
        const Wide<T> weight =
            quick_parameters<T, kWeight>(rows, kWeightRole, of_weight, rows.weight_dtype, C(1), q);
        const Wide<T> bias =
            quick_parameters<T, kBias>(rows, kBiasRole, of_bias, rows.bias_dtype, C(0), q);
        store_vec(y + int64_t(q) * kSize,
                  normalise<T, identity>(rows, transform, vec, weight, bias));
      }
    };
    const std::integral_constant<Given, kVecs> vecs;
    const std::integral_constant<Given, kNothing> nothing;
    const std::integral_constant<Given, kAnything> anything;
    if (rows.quick) {
      const bool own = is_own(rows, kWeightRole, rows.weight_dtype, kDTypeOf<T>);
      if (own && is_own(rows, kBiasRole, rows.bias_dtype, kDTypeOf<T>))
        quickly(vecs, vecs);
      else if constexpr (identity)
        own && !rows.data[kBiasRole] ? quickly(vecs, nothing) : quickly(anything, anything);
    }
  }
#pragma unroll 1
  for (; i < partition.count; ++i) {
    const int valid = valid_of<T>(rows, partition, i);
    const int64_t q = partition.vec(i);
    const Wide<T> weight = weight_of<T>(rows, partition.row, q, valid);
    const Wide<T> bias =
        parameters_of<T>(rows, kBiasRole, rows.bias_dtype, C(0), partition.row, q, valid);
    const Vec<T> vec = normalised_input<T>(rows, partition, cache, i, valid);
    write(rows, kY, partition.row, q, valid,
          normalise<T, identity>(rows, transform, vec, weight, bias, rows.casts));
  }
}

template <class T, class Rows>
FASTACT_DEVICE void store_statistics(const Rows& rows, int64_t row, double mean, double rstd) {
  using C = Compute<T>;
  if (rows.data[kMeanRole]) store(number_of<C>(rows, kMeanRole, row), C(mean));
  if (rows.data[kRstdRole]) store(number_of<C>(rows, kRstdRole, row), C(rstd));
}

// A row belongs to some lanes of a warp, or to a block.
template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kNormBlocks<T, Rows>))
void norm_forward_rows(FASTACT_GRID_CONSTANT const Rows rows) {
  const auto cache = dynamic_shared<Vec<T>>();
  int sum_index = 0;
  for_each_row<T>(rows, [&](const Partition& partition, bool idle) {
    double mean, m2;
    find_moments<T>(rows, partition, cache, double(rows.length), sum_index, &mean, &m2);
    if (idle) return;
    const double rstd = rstd_of(m2, double(rows.length), rows.eps);
    if (partition.lane == 0) store_statistics<T>(rows, partition.row, mean, rstd);
    finish<T, identity, false>(rows, partition, cache, mean, Compute<T>(rstd));
  });
}

// Rows of several blocks each.
struct NormChunks : RowChunks {
  double* moments;     // OUT of the first kernel: rows x count x [mean, m2]
  double* statistics;  // OUT of the second: rows x [mean, rstd]
};

template <class T, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kNormBlocks<T, Rows>))
void norm_moments(FASTACT_GRID_CONSTANT const Rows rows, const NormChunks chunks) {
  const auto cache = dynamic_shared<Vec<T>>();
  int sum_index = 0;
  for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t task) {
    const int64_t begin = (partition.first - partition.lane) * Vec<T>::kSize;
    const int64_t count = smaller(chunks.size * Vec<T>::kSize, rows.length - begin);
    double mean, m2;
    find_moments<T>(rows, partition, cache, double(count), sum_index, &mean, &m2);
    if (partition.lane > 0) return;
    store(chunks.moments + 2 * task, mean);
    store(chunks.moments + 2 * task + 1, m2);
  });
}

// mean = mean_0 + sum n_c (mean_c - mean_0) / N, m2 = sum m2_c + n_c (mean_c - mean)^2: the moments
// of all chunks at once, from a shift amid them, or from 0 where the first mean is infinite.
template <class T, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kNormBlocks<T, Rows>))
void norm_merge(FASTACT_GRID_CONSTANT const Rows rows, const NormChunks chunks) {
  const int64_t size = chunks.size * Vec<T>::kSize;
  for_each_of_warps(rows.count, [&](int64_t row, int lane, bool idle) {
    const double* moments = chunks.moments + 2 * chunks.count * (idle ? 0 : row);
    const double shift = finite_or_zero(load(moments));
    double sum = 0;
    for (int64_t c = lane; c < chunks.count; c += kWarp)
      sum += double(smaller(size, rows.length - c * size)) * (load(moments + 2 * c) - shift);
    const double mean = shift + warp_sum(sum) / double(rows.length);
    double squares = 0;
    for (int64_t c = lane; c < chunks.count; c += kWarp) {
      const double apart = load(moments + 2 * c) - mean;
      squares += madd(double(smaller(size, rows.length - c * size)), apart * apart,
                      load(moments + 2 * c + 1));
    }
    const double rstd = rstd_of(warp_sum(squares), double(rows.length), rows.eps);
    if (idle || lane > 0) return;
    store(chunks.statistics + 2 * row, mean);
    store(chunks.statistics + 2 * row + 1, rstd);
    store_statistics<T>(rows, row, mean, rstd);
  });
}

template <class T, bool identity, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kNormBlocks<T, Rows>))
void norm_apply_chunks(FASTACT_GRID_CONSTANT const Rows rows, const NormChunks chunks) {
  const auto cache = dynamic_shared<Vec<T>>();  // nothing is in it: rows.resident is 0
  for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t) {
    const double mean = load(chunks.statistics + 2 * partition.row);
    const double rstd = load(chunks.statistics + 2 * partition.row + 1);
    finish<T, identity, true>(rows, partition, cache, mean, Compute<T>(rstd));
  });
}

// statistic OUT = NaN.
template <class T>
FASTACT_KERNEL(256)
void fill_nan(FASTACT_GRID_CONSTANT const Axes to, T* statistic) {
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i >= to.size) return;
  char* p = reinterpret_cast<char*>(statistic) + locate(to, i).y;
  store(reinterpret_cast<T*>(p), T(__builtin_nan("")));
}

}  // namespace
FASTACT_END_NAMESPACE
