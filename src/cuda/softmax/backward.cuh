// The backward kernels of softmax, log_softmax and logsumexp; softmax.cu explains them.
//
// softmax: dz_j / dz_i of y gives y_j (delta_ij - y_i), so dx = scale y (dy - sum(dy y)).
// log_softmax: dy_j / dz_i is delta_ij - exp(y_i), so dx = scale (dy - exp(y) sum(dy)).
// logsumexp: its derivative by z_i is exp(z_i - lse).
#pragma once

#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Vectors of a lane where one is read and written: eight lanes of 16 bits take many registers.
template <class T>
constexpr int kGradientsInFlight = sizeof(T) == 2 ? 2 : kLoadsInFlight;

// exp(z - m), 0 where it would be subnormal.
template <class T>
FASTACT_DEVICE Compute<T> exp_of(Compute<T> z, Compute<T> m) {
  return term_of<T>(difference<T>(z, m)) * Tail<Compute<T>>::kDown;
}

template <class T, class Rows>
FASTACT_DEVICE void put_gradient(const Rows& rows, const Part& part, int i, int valid, Wide<T> dx) {
  if (rows.accumulate) accumulate_onto(read_vec<T>(rows, kY, part, i, valid), dx);
  write_vec(rows, kY, part, i, valid, narrow_vec<T>(dx));
}

// Pass 1: dy and y are read and cached, in slots 2 i and 2 i + 1; sum(dy y), or sum(dy).
template <class T, class Rows, class Cache, int n>
FASTACT_DEVICE void add_gradients(const Rows& rows, const Part& part, const Cache& cache,
                                  double (&sum)[n]) {
  const int mine = int(threadIdx.x);
  const auto add = [&](int i, const Vec<T>& out, const Vec<T>& in) {
    Wide<T> dy = widen_vec(out);
    if (rows.kind == kSoftmax) {
      const Wide<T> y = widen_vec(in);
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j)
        dy.lane[j] = y.lane[j] == 0 ? Compute<T>(0) : dy.lane[j] * y.lane[j];
    }
    add_lanes<T>(dy, sum);
    if (i >= rows.resident) return;
    cache.put(2 * i, mine, out);
    cache.put(2 * i + 1, mine, in);
  };
  int i = 0;
  if constexpr (Rows::kDense) {
    if (rows.fast[kX] && rows.fast[kDy] && part.count > 0) {
      const int whole = whole_vecs<T>(rows, part);
#pragma unroll 1
      for (; i + 2 <= whole; i += 2) {
        const Vec<T> dy0 = load_vec(vec_at<T>(rows, kDy, part, i));
        const Vec<T> y0 = load_vec(vec_at<T>(rows, kX, part, i));
        const Vec<T> dy1 = load_vec(vec_at<T>(rows, kDy, part, i + 1));
        const Vec<T> y1 = load_vec(vec_at<T>(rows, kX, part, i + 1));
        add(i, dy0, y0);
        add(i + 1, dy1, y1);
      }
    }
  }
#pragma unroll 1
  for (; i < part.count; ++i) {
    const int valid = lanes_there<T>(rows, part, i);
    const Vec<T> dy = read_vec<T>(rows, kDy, part, i, valid);
    add(i, dy, read_vec<T>(rows, kX, part, i, valid));
  }
}

// Pass 2: dx.
template <class T, class Rows, class Cache, int n>
FASTACT_DEVICE void put_gradients(const Rows& rows, const Part& part, const Cache& cache,
                                  const Compute<T> (&sum)[n]) {
  using C = Compute<T>;
  const int mine = int(threadIdx.x);
  const C scale = C(rows.scale);
#pragma unroll 1
  for (int i = 0; i < part.count; ++i) {
    const int valid = lanes_there<T>(rows, part, i);
    const bool cached = i < rows.resident;
    const Wide<T> dy =
        widen_vec(cached ? cache.vec(2 * i, mine) : read_vec<T>(rows, kDy, part, i, valid));
    const Wide<T> y =
        widen_vec(cached ? cache.vec(2 * i + 1, mine) : read_vec<T>(rows, kX, part, i, valid));
    Wide<T> dx;
    if (rows.kind == kSoftmax) {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const C g = scale * (y.lane[j] * (dy.lane[j] - sum[row_in_vec<Rows>(j)]));
        dx.lane[j] = y.lane[j] == 0 ? C(0) : g;  // takes no part, at any dy
      }
    } else {
#pragma unroll
      for (int j = 0; j < Vec<T>::kSize; ++j) {
        const C p = exp_of<T>(y.lane[j], C(0));
        const C g = scale * madd(-p, sum[row_in_vec<Rows>(j)], dy.lane[j]);
        dx.lane[j] = y.lane[j] == -infinity<C>() ? C(0) : g;  // took no part
      }
    }
    put_gradient<T>(rows, part, i, valid, dx);
  }
}

template <class T, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows>))
void softmax_backward_rows(FASTACT_GRID_CONSTANT const Rows rows) {
  constexpr int n = kRowsOfVec<T, Rows>;
  const auto memory = dynamic_shared<Quad>();
  const RowCache<T, std::decay_t<decltype(memory)>> cache{memory};
  int fold_index = 0;
  for_each_part<T>(rows, [&](const Part& part, bool idle) {
    double sum[n] = {};
    add_gradients<T>(rows, part, cache, sum);
    fold_sums(rows, sum, fold_index);
    if (idle) return;
    Compute<T> rounded[n];
#pragma unroll
    for (int s = 0; s < n; ++s) rounded[s] = Compute<T>(sum[s]);
    put_gradients<T>(rows, part, cache, rounded);
  });
}

// Rows of several blocks each. sums OUT of the first kernel: rows x count; the second adds them up
// in each block, which has them all from the second-level cache.
struct GradientChunks : RowChunks {
  double* sums;
};

template <class T, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kSoftmaxBlocks<T, Rows>))
void softmax_gradient_sums(FASTACT_GRID_CONSTANT const Rows rows, const GradientChunks chunks) {
  const auto memory = dynamic_shared<Quad>();  // nothing is in it: rows.resident is 0
  const RowCache<T, std::decay_t<decltype(memory)>> cache{memory};
  int fold_index = 0;
  for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t task) {
    double sum[1] = {};
    add_gradients<T>(rows, Part{partition, 0, 0, 1}, cache, sum);
    fold_sums(rows, sum, fold_index);
    if (partition.lane == 0) store(chunks.sums + task, sum[0]);
  });
}

template <class T, class Rows>
FASTACT_KERNEL_OF(kRowThreads, (kSoftmaxBlocks<T, Rows>))
void softmax_gradients(FASTACT_GRID_CONSTANT const Rows rows, const GradientChunks chunks) {
  using C = Compute<T>;
  const auto memory = dynamic_shared<Quad>();  // nothing is in it: rows.resident is 0
  const RowCache<T, std::decay_t<decltype(memory)>> cache{memory};
  for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t) {
    const double* sums = chunks.sums + partition.row * chunks.count;
    const C sum[1] = {C(sum_of_partials(sums, chunks.count))};
    put_gradients<T>(rows, Part{partition, 0, 0, 1}, cache, sum);
  });
}

// dx = scale dy exp(z - lse), element by element; dy and lse are a row's.
template <class T, bool masked, class Rows>
FASTACT_DEVICE void put_logsumexp_gradient(const Rows& rows, const Part& part) {
  using C = Compute<T>;
  constexpr int n = kRowsOfVec<T, Rows>;
  C factor[n], lse[n];
  if (part.count == 0) return;
#pragma unroll
  for (int s = 0; s < n; ++s) {
    factor[s] = lse[s] = 0;
    if (s >= part.columns) continue;
    const int64_t row = part.row + s;
    lse[s] = load(reinterpret_cast<const C*>(number_address(rows, kLse, row)));
    factor[s] =
        C(rows.scale) * load_parameter<T>(number_address(rows, kNumber, row), rows.number_dtype);
    if (masked && lse[s] == -infinity<C>()) factor[s] = lse[s] = 0;  // nothing takes part
  }
  for_vecs<T, kGradientsInFlight<T>>(rows, kX, part, [&](int i, int valid, const Vec<T>& x) {
    Wide<T> dx = scores_of<T, masked>(rows, part, i, valid, x);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const int s = row_in_vec<Rows>(j);
      dx.lane[j] = factor[s] * exp_of<T>(dx.lane[j], lse[s]);
    }
    leave_out<T, masked>(rows, part, i, valid, C(0), &dx);
    put_gradient<T>(rows, part, i, valid, dx);
  });
}

template <class T, bool masked, class Rows>
FASTACT_KERNEL_OF(kSoftmaxThreads<Rows>, (kSoftmaxBlocks<T, Rows, masked>))
void logsumexp_gradient_rows(FASTACT_GRID_CONSTANT const Rows rows, const RowChunks chunks) {
  if constexpr (!Rows::kColumns) {
    if (chunks.count > 1)
      return for_each_chunk<T>(rows, chunks, [&](const Partition& partition, int64_t) {
        put_logsumexp_gradient<T, masked>(rows, Part{partition, 0, 0, 1});
      });
  }
  for_each_part<T>(rows,
                   [&](const Part& part, bool) { put_logsumexp_gradient<T, masked>(rows, part); });
}

}  // namespace
FASTACT_END_NAMESPACE
