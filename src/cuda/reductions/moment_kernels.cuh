// The kernels of mean and m2: over rows, over columns, and over the parts of chunks. moments.cu
// explains the plan, tile_loader.cuh the reading.
#pragma once

#include "cuda/reductions/kernels.cuh"
#include "cuda/reductions/shifted_moments.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Where mean, what its rounding lost, and m2 / divisor go; null: not wanted. Of one element an
// output each, with the strides of Sums::y; `wide`: of double, else of x's type.
struct MomentResults {
  char *mean, *low, *second;
  double divisor;
  bool wide;
};

template <class Y>
FASTACT_DEVICE void put_as(const MomentResults& to, int64_t at, const Growing& all) {
  const Moments& m = all.of;
  const Y mean = narrow_once<Y>(m.mean + m.mean_low);
  const auto y = [&](char* p) { return reinterpret_cast<Y*>(p + at); };
  if (to.mean) store(y(to.mean), mean);
  if (to.low)
    store(y(to.low), narrow_once<Y>(finite_or_zero((m.mean - double(widen(mean))) + m.mean_low)));
  if (to.second) store(y(to.second), narrow_once<Y>((m.m2 + m.m2_low) / to.divisor));
}

template <class T>
FASTACT_DEVICE void put(const MomentResults& to, int64_t at, const Growing& all) {
  if (to.wide)
    put_as<double>(to, at, all);
  else
    put_as<T>(to, at, all);
}

// The part of one chunk of an output: the result itself where it is the only one.
template <class T>
FASTACT_DEVICE void emit(const Sums& sums, const MomentResults& to, int64_t output, int64_t chunk,
                         int64_t at_y, const Growing& all) {
  if (sums.chunks.count == 1) return put<T>(to, at_y, all);
  double* partial = sums.partials + 3 * (output * sums.chunks.count + chunk);
  store(partial, all.of.mean + all.of.mean_low);
  store(partial + 1, all.of.m2 + all.of.m2_low);
  store(partial + 2, all.count);
}

// A lane's sums of a row.
template <class T>
struct RowLane {
  Shifted sums{};
  int n = 0, rounds = 0;

  template <class Count>
  FASTACT_DEVICE void add(const Count& count, const Vec<T> (&vecs)[kInFlight]) {
    constexpr int kSize = Vec<T>::kSize;
    if (rounds == 0) sums.shift = finite_or_zero(double(widen(vecs[0].lane[0])));
    double sum[kInFlight], squares[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int valid = count.template valid<T>(u);
      n += valid < kSize ? valid : kSize;
      sum[u] = squares[u] = 0;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const double d = double(widen(vecs[u].lane[j])) - sums.shift;
        if (!Count::kIsWhole && j >= valid) continue;
        sum[u] += d;
        squares[u] = madd(d, d, squares[u]);
      }
    }
    sums.sum += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    sums.squares += (squares[0] + squares[1]) + (squares[2] + squares[3]);
    if (is_power_of_two(++rounds)) move_to_mean(sums, 1.0 / n, n);
  }
};

template <Access access, class T>
FASTACT_KERNEL_OF(kThreads, 2)
void moment_rows(FASTACT_GRID_CONSTANT const RowSums sums,
                 FASTACT_GRID_CONSTANT const MomentResults to) {
  FASTACT_SHARED(double, first, 1);
  const int tasks_here = kThreads / sums.team;
  const int lane = int(threadIdx.x) % sums.team;
  for (int64_t begin_task = int64_t(blockIdx.x) * tasks_here; begin_task < sums.tasks;
       begin_task += int64_t(gridDim.x) * tasks_here) {
    const RowTask task = task_of(sums, begin_task);
    const Offset at = locate(sums.kept, task.row);
    RowLane<T> mine;
    visit_row<access, T>(
        sums, sums.x + at.x, task.begin, task.end, lane,
        [&](const auto& count, const Vec<T>(&vecs)[kInFlight]) { mine.add(count, vecs); });
    Part part;
    if (sums.team == kThreads) {
      part = join(
          mine.sums, mine.n,
          [&](double x) {
            x = block_sum<kThreads>(x);
            __syncthreads();
            return x;
          },
          [&](double x) {
            if (threadIdx.x == 0) first[0] = x;
            __syncthreads();
            x = first[0];
            __syncthreads();
            return x;
          });
    } else {
      part = join(
          mine.sums, mine.n, [&](double x) { return warp_sum(x, sums.team); },
          [&](double x) { return __shfl_sync(kAllLanes, x, 0, sums.team); });
    }
    if (lane > 0 || task.idle) continue;
    Growing all{};
    absorb(all, part);
    emit<T>(sums, to, task.row, task.chunk, at.y, all);
  }
}

// A shift need only be near the mean. For 16-bit data it is a float, because eight columns are
// short of registers; it is exact while it is one of the data.
template <class T>
using Shift = Compute<T>;

// A thread's sums of a vector of columns. The last row may have fewer of them.
template <class T>
struct ColumnLane {
  static constexpr int kSize = Vec<T>::kSize;
  Shift<T> shift[kSize] = {};
  double sum[kSize] = {}, squares[kSize] = {};
  int rows = 0, last = kSize;

  FASTACT_DEVICE int count(int j) const { return j < last ? rows : rows - 1; }

  FASTACT_DEVICE void move(int j, double n, Shift<T> to) {
    const Shifted s = about({double(shift[j]), sum[j], squares[j]}, n, double(to));
    shift[j] = to, sum[j] = s.sum, squares[j] = s.squares;
  }

  template <class Count>
  FASTACT_DEVICE void add(const Count& counts, const Vec<T> (&vecs)[kInFlight]) {
    if (rows == 0) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const auto first = widen(vecs[0].lane[j]);
        shift[j] = is_finite(double(first)) ? first : Shift<T>(0);
      }
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int valid = counts.template valid<T>(u);
      if (valid > 0) ++rows, last = valid;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const double d = double(widen(vecs[u].lane[j])) - double(shift[j]);
        if (!Count::kIsWhole && j >= valid) continue;
        sum[j] += d;
        squares[j] = madd(d, d, squares[j]);
      }
    }
    // Rounds so far: only the last has fewer rows.
    if (is_power_of_two((rows + kInFlight - 1) / kInFlight)) {
      const double share = 1.0 / rows;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const auto mean = Shift<T>(double(shift[j]) + sum[j] * share);
        if (is_finite(double(mean))) move(j, count(j), mean);
      }
    }
  }
};

template <Access access, class T>
FASTACT_KERNEL_OF(kThreads, 2)
void moment_columns(FASTACT_GRID_CONSTANT const ColumnSums sums,
                    FASTACT_GRID_CONSTANT const MomentResults to) {
  constexpr int kSize = Vec<T>::kSize;
  static_assert(kWarp * kSize <= kThreads, "a thread for each column of a tile");
  FASTACT_SHARED(double, buffer, kThreads* kSize);
  FASTACT_SHARED(double, centre, kWarp* kSize);
  const int tx = int(threadIdx.x) % sums.tx, ty = int(threadIdx.x) / sums.tx;
  const int mine = int(threadIdx.x);  // a column of the tile

  const int64_t tasks = sums.kept.size * sums.chunks.count * sums.tiles;
  for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
    const int tile = int(task % sums.tiles), chunk = int(task / sums.tiles % sums.chunks.count);
    const int64_t outer = task / sums.tiles / sums.chunks.count;
    const int64_t here = int64_t(tile) * sums.tx * kSize, column = here + tx * kSize;
    const int64_t begin = chunk * sums.chunks.size;
    const int64_t end = smaller(begin + sums.chunks.size, sums.rows);
    const int columns = int(smaller(sums.tx * kSize, sums.width - here));

    ColumnLane<T> lane;
    if (column < sums.width && ty < sums.ty)
      visit_column<access, T>(
          sums, sums.x + locate(sums.kept, outer).x, column, begin + ty, end,
          [&](const auto& count, const Vec<T>(&vecs)[kInFlight]) { lane.add(count, vecs); });

    // The mean of each column, from the shift of its first row's thread.
    if (ty == 0) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) centre[tx * kSize + j] = double(lane.shift[j]);
    }
    __syncthreads();
    double total[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const double n = lane.count(j), start = centre[tx * kSize + j];
      total[j] = lane.rows > 0 ? madd(n, double(lane.shift[j]) - start, lane.sum[j]) : 0.0;
    }
    fold_rows(buffer, total, tx, ty, sums.tx, sums.ty);
    const bool short_one = sums.elements > 0 && end == sums.rows &&
                           (sums.rows - 1) * sums.width + here + mine >= sums.elements;
    const double count = double(int(end - begin) - (short_one ? 1 : 0));
    if (mine < columns && count > 0)
      centre[mine] = double(centre[mine]) + double(buffer[mine]) / count;
    __syncthreads();

    // The sums about it.
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const Shifted before{double(lane.shift[j]), lane.sum[j], lane.squares[j]};
      const Shifted moved = about(before, lane.count(j), centre[tx * kSize + j]);
      total[j] = lane.rows > 0 ? moved.sum : 0.0;
      lane.squares[j] = lane.rows > 0 ? moved.squares : 0.0;
    }
    fold_rows(buffer, total, tx, ty, sums.tx, sums.ty);
    const double sum = mine < columns ? double(buffer[mine]) : 0.0;
    __syncthreads();
    fold_rows(buffer, lane.squares, tx, ty, sums.tx, sums.ty);
    Part part{};
    if (mine < columns && count > 0) part = part_of(centre[mine], sum, buffer[mine], count);

    // Columns of one output lie `inner` apart in a folded row. Anywhere else there is one.
    const int outputs = int(smaller(columns, sums.inner));
    if (outputs < columns) {
      __syncthreads();
      if (mine < columns) {
        buffer[mine] = part.mean;
        buffer[kWarp * kSize + mine] = part.m2;
        centre[mine] = part.count;
      }
      __syncthreads();
    }
    if (mine < outputs) {
      Growing all{};
      absorb(all, part);
      for (int at = mine + outputs; at < columns; at += outputs)
        absorb(all, Part{buffer[at], buffer[kWarp * kSize + at], centre[at]});
      emit<T>(sums, to, outer * sums.inner + here + mine, chunk,
              locate(sums.kept, outer).y + (here + mine) * sums.inner_y, all);
    }
    __syncthreads();
  }
}

// The results from each output's parts; one warp per output.
template <class T>
FASTACT_KERNEL_OF(kThreads, 2)
void finish_moments(FASTACT_GRID_CONSTANT const Sums sums,
                    FASTACT_GRID_CONSTANT const MomentResults to, const int64_t outputs,
                    const int64_t inner) {
  constexpr int kOutputs = kThreads / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  for (int64_t first = int64_t(blockIdx.x) * kOutputs; first < outputs;
       first += int64_t(gridDim.x) * kOutputs) {
    const int64_t output = first + int(threadIdx.x) / kWarp;
    Growing all{};
    if (output < outputs)
      for (int64_t i = lane; i < sums.chunks.count; i += kWarp) {
        const double* partial = sums.partials + 3 * (output * sums.chunks.count + i);
        absorb(all, Part{load(partial), load(partial + 1), load(partial + 2)});
      }
    all = warp_merge(all);
    if (lane > 0 || output >= outputs) continue;
    const int64_t outer = output / inner;
    put<T>(to, locate(sums.kept, outer).y + (output - outer * inner) * sums.inner_y, all);
  }
}

}  // namespace
FASTACT_END_NAMESPACE
