// The shared-memory cache of a norm's backward kernel, and the arithmetic on one vector.
#pragma once

#include "cuda/core/row_cache.cuh"
#include "cuda/norms/rows/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

enum BackwardRole { kDy, kIn, kDTotal, kDx };

constexpr int kSumRows = 16;  // rows of a column that are added up in the compute type

// A block takes a group of a chunk of the batch, `tile` rows of each team at a time; or several
// groups beside each other, a part of its teams each, where a group has fewer rows than teams.
struct NormBackward {
  int64_t size, count;  // of the batch in a chunk, and how many chunks
  int beside;           // groups of a block
  int64_t blocks;       // of a chunk, for all groups
  int tile;
  bool has_columns;   // sums of the parameters, one per element of a row
  bool has_runs;      // or one a run of elements
  bool is_long;       // rows go in chunks: norms/rows/split_row.cuh
  int sums_resident;  // vectors of a lane whose sums are in shared memory, not in `spilled`
  int run_lanes;      // threads of a run: 1 to 32, or the block
  int64_t padded;     // doubles of a group's sums
  double* partials;   // OUT, [dweight, dbias] x count x groups x padded
  char* spilled;      // SCRATCH, tasks x per_lane x 2 vectors of every thread, in the compute type
};

// Statistics of a row, and the means of g and g xhat.
template <class C>
struct RowStats {
  C mean, rstd, mean_g, mean_g_xhat;
};

// What is in the slots:
//
//   tile x resident x [x, dy: later p]    sums_resident x [dweight, dbias]
//
// and after the slots the statistics of the tile's rows, which the lanes of a row share.
template <class T, bool identity, bool dense, class Shared>
struct SmemCache : RowCache<T, Shared> {
  using Slots = RowCache<T, Shared>;
  using Slots::at, Slots::from, Slots::to, Slots::vec, Slots::put, Slots::wide_from, Slots::wide,
      Slots::put_wide;
  using C = Compute<T>;
  static constexpr int kP = identity ? 1 : kPlanes<T>;  // the identity's p is dy
  static constexpr int kStats = int(4 * sizeof(C)) / kVecBytes;

  const NormRows& rows;
  const NormBackward& plan;
  char* spilled;

  // Arrays of any strides are not cached: their tile is one row of each team.
  FASTACT_DEVICE int tile() const { return dense ? plan.tile : 1; }
  FASTACT_DEVICE int x_slot(int r, int i) const { return (r * rows.resident + i) * (1 + kP); }
  FASTACT_DEVICE int sums_slot(int i) const { return x_slot(tile(), 0) + i * 2 * kPlanes<T>; }
  FASTACT_DEVICE int stats_at(int r, int team) const {
    return at(sums_slot(plan.sums_resident), 0) + (r * rows.teams + team) * kStats;
  }
  struct StatVecs {
    Vec<T> vec[kStats];
  };
  FASTACT_DEVICE RowStats<C> stats_from(int first) const {
    StatVecs vecs;
#pragma unroll
    for (int k = 0; k < kStats; ++k) vecs.vec[k] = from(first + k);
    return bit_cast<RowStats<C>>(vecs);
  }
  FASTACT_DEVICE RowStats<C> stats(int r, int team) const { return stats_from(stats_at(r, team)); }
  FASTACT_DEVICE void put_stats(int r, int team, const RowStats<C>& value) const {
    const StatVecs vecs = bit_cast<StatVecs>(value);
#pragma unroll
    for (int k = 0; k < kStats; ++k) to(stats_at(r, team) + k, vecs.vec[k]);
  }

  FASTACT_DEVICE Wide<T> p_from(int first) const {
    if constexpr (identity)
      return widen_vec(from(first));
    else
      return wide_from(first);
  }
  FASTACT_DEVICE Wide<T> p(int r, int i, int thread) const {
    return p_from(at(x_slot(r, i) + 1, thread));
  }

  // Sums of a lane's i-th vector of columns. which: 0 of dweight, 1 of dbias.
  FASTACT_DEVICE C* spill(int i, int which, int thread) const {
    // Unsigned: signed factors take a register for the upper half of blockDim.x, and float64 with
    // any strides has none left.
    const int64_t slot = int64_t(uint64_t(uint32_t(i * 2 + which)) * blockDim.x) + thread;
    return reinterpret_cast<C*>(spilled) + slot * Vec<T>::kSize;
  }
  FASTACT_DEVICE Wide<T> sums(int i, int which, int thread) const {
    if (i < plan.sums_resident) return wide(sums_slot(i) + which * kPlanes<T>, thread);
    struct {
      Vec<C> vec[kPlanes<T>];
    } vecs;
#pragma unroll
    for (int k = 0; k < kPlanes<T>; ++k)
      vecs.vec[k] = load_vec(spill(i, which, thread) + k * Vec<C>::kSize);
    return bit_cast<Wide<T>>(vecs);
  }
  FASTACT_DEVICE void put_sums(int i, int which, int thread, const Wide<T>& value) const {
    if (i < plan.sums_resident) return put_wide(sums_slot(i) + which * kPlanes<T>, thread, value);
    struct Vecs {
      Vec<C> vec[kPlanes<T>];
    };
    const Vecs vecs = bit_cast<Vecs>(value);
#pragma unroll
    for (int k = 0; k < kPlanes<T>; ++k)
      store_vec(spill(i, which, thread) + k * Vec<C>::kSize, vecs.vec[k]);
  }
};

template <class T>
FASTACT_DEVICE Wide<T> xhat_of(const Vec<T>& x, Compute<T> mean, Compute<T> rstd) {
  Wide<T> xhat = widen_vec(x);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    xhat.lane[j] = normalised(xhat.lane[j], Centre<Compute<T>>{mean, 0}, rstd);
  return xhat;
}

// f'(z) of a vector.
template <class T, class Rows>
FASTACT_DEVICE Wide<T> slope_of(const Rows& rows, const Vec<T>& x, Compute<T> mean, Compute<T> rstd,
                                int64_t row, int64_t q, int valid) {
  Wide<T> z = xhat_of(x, mean, rstd);
  const Wide<T> weight = weight_of<T>(rows, row, q, valid);
  const Wide<T> bias =
      parameters_of<T>(rows, kBiasRole, rows.bias_dtype, Compute<T>(0), row, q, valid);
  z = cast_if<T>(rows.casts, z);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    z.lane[j] = affine(z.lane[j], weight.lane[j], bias.lane[j]);
  z = cast_if<T>(rows.casts, z);
  return slope_at<T>(rows.which, rows.parameters, z);
}

// p = dy f'(z), from f'(z).
template <class T, class Rows>
FASTACT_DEVICE Wide<T> p_of(const Rows& rows, const Vec<T>& dy, const Wide<T>& slope) {
  return cast_if<T>(rows.casts, product_of<T>(widen_vec(dy), slope));
}

// The same of a vector that is not cached.
template <class T, bool identity, class Rows>
FASTACT_DEVICE_CALL Wide<T> recompute_p(const Rows& rows, Compute<T> mean, Compute<T> rstd,
                                        int64_t row, int64_t q, int valid) {
  if constexpr (identity) {
    return widen_vec(read<T>(rows, kDy, row, q, valid));
  } else {
    const Wide<T> slope =
        slope_of<T>(rows, read<T>(rows, kIn, row, q, valid), mean, rstd, row, q, valid);
    return p_of<T>(rows, read<T>(rows, kDy, row, q, valid), slope);
  }
}

// Sets the lanes past the end of a row to zero.
template <class T>
FASTACT_DEVICE void zero_tail(Wide<T>& wide, int valid) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j >= valid) wide.lane[j] = 0;
}

// The sums of a * b and of a over the lanes of a vector, in the compute type: two chains each.
template <class T>
FASTACT_DEVICE double dot(const Wide<T>& a, const Wide<T>& b) {
  Compute<T> sum[2] = {};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) sum[j % 2] = madd(a.lane[j], b.lane[j], sum[j % 2]);
  return double(sum[0] + sum[1]);
}
template <class T>
FASTACT_DEVICE double lanes_of(const Wide<T>& a) {
  Compute<T> sum[2] = {};
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) sum[j % 2] += a.lane[j];
  return double(sum[0] + sum[1]);
}

// Adds a vector to the sums of g = p w and of g xhat of its row.
template <class T>
FASTACT_DEVICE void add_row_sums(const NormRows& rows, const Wide<T>& p, const Wide<T>& xhat,
                                 const Wide<T>& weight, double (&sums)[2], bool casts = false) {
  const Wide<T> g = cast_if<T>(casts, product_of<T>(p, weight));
  if (rows.is_centred) sums[0] += lanes_of<T>(g);
  sums[1] += dot<T>(g, xhat);
}

// And to those of its columns.
template <class T>
FASTACT_DEVICE void add_column_sums(Wide<T> p, Wide<T> xhat, Wide<T>& of_weight, Wide<T>& of_bias,
                                    bool casts = false) {
  if (sizeof(T) == 2 && casts)  // and there is no bias
    p = cast_if<T>(true, product_of<T>(p, cast_if<T>(true, xhat))), xhat = repeat<T>(1);
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    of_weight.lane[j] = madd(p.lane[j], xhat.lane[j], of_weight.lane[j]);
    of_bias.lane[j] += p.lane[j];
  }
}

// dx = rstd (p w - mean(g) - xhat mean(g xhat)) of a vector.
template <class T>
FASTACT_DEVICE Wide<T> gradient_of(const RowStats<Compute<T>>& stats, const Wide<T>& p,
                                   const Wide<T>& xhat, const Wide<T>& weight) {
  Wide<T> dx;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    dx.lane[j] = stats.rstd * madd(-xhat.lane[j], stats.mean_g_xhat,
                                   madd(p.lane[j], weight.lane[j], -stats.mean_g));
  return dx;
}

// The same stored, with what else is added to it. Vectors come by value: what is called by
// reference goes to the stack.
template <class T, class Rows>
FASTACT_DEVICE_CALL void store_gradient(const Rows& rows, const RowStats<Compute<T>> stats,
                                        Wide<T> p, const Wide<T> xhat, Wide<T> weight, int64_t row,
                                        int64_t q, int valid) {
  if (sizeof(T) == 2 && rows.casts)
    p = cast_if<T>(true, product_of<T>(p, weight)), weight = repeat<T>(1);
  Wide<T> dx = gradient_of<T>(stats, p, xhat, weight);
  if (rows.data[kDTotal]) accumulate_onto(read<T>(rows, kDTotal, row, q, valid), dx);
  if (rows.accumulate) accumulate_onto(read<T>(rows, kDx, row, q, valid), dx);
  write(rows, kDx, row, q, valid, narrow_vec<T>(dx));
}

}  // namespace
FASTACT_END_NAMESPACE
