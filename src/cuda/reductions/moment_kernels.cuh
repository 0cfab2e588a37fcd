// The kernels of mean and m2: over rows, over columns, and over the parts of chunks. moments.cu
// explains the plan, tile_loader.cuh the reading.
#pragma once

#include "common/reductions/of_m2.h"
#include "cuda/reductions/kernels.cuh"
#include "cuda/reductions/shifted_moments.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// The places of the results: the mean, its low part (which rounding lost), the second result (what
// `of_m2` makes of m2) and the count; null: not wanted. All go by the strides of Sums::y. wide:
// they are double; other: their dtype, where that is neither double nor x's; -1: it is.
struct MomentResults {
  static constexpr int kNumbers = 3;
  char *mean, *low, *second, *count;
  OfM2 of_m2;
  double correction, initial;
  bool skips, squares, wide;  // squares: m2 is wanted; else sums are about 0, of less than double
  int other;
};

// Whether NaN are skipped and squares wanted: constants of the kernels for whole aligned vectors.
// Kernels of layouts that fewer calls have ask the call.
template <bool skips_nan, bool with_squares>
struct FixedTerms {
  static constexpr bool kAreFixed = true, skips = skips_nan, has_squares = with_squares;
  static constexpr bool kMaySkip = skips_nan;
  static constexpr bool kAreMany = skips_nan && with_squares;  // for three blocks of columns
  FASTACT_DEVICE explicit FixedTerms(const MomentResults&) {}
};
struct AskedTerms {
  static constexpr bool kAreFixed = false, kMaySkip = true, kAreMany = true;
  bool skips, has_squares;
  FASTACT_DEVICE explicit AskedTerms(const MomentResults& to)
      : skips(to.skips), has_squares(to.squares) {}
};

// The numbers of these results, before they are rounded.
struct OfMoments {
  double mean, mean_low, second, count;

  OfMoments() = default;
  FASTACT_DEVICE OfMoments(double mean_of, double low, double second_of, double n)
      : mean(mean_of), mean_low(low), second(second_of), count(n) {}
  // left: divides by the count without the correction, of this result and of others. has_second:
  // whether the second number is wanted.
  FASTACT_DEVICE OfMoments(const MomentResults& to, const Growing& all, Denominator& left,
                           bool has_second)
      : mean(all.of.mean), mean_low(all.of.mean_low), second(0), count(all.count) {
    double m2 = all.of.m2 + all.of.m2_low, up = 1;
    if (m2 < 0) {  // the negative of a root (common/reductions/range.h)
      const double scale = scale_of(-m2);
      up = inverse_power(scale);
      m2 = scaled_square(m2, scale);
    }
    if (to.of_m2 == kTotal)
      mean = (count == 0 ? 0.0 : (mean + mean_low) * count) + to.initial, mean_low = m2 = 0;
    else if (count == 0)
      mean = __builtin_nan(""), mean_low = m2 = 0;
    if (has_second)
      second = second_moment(to.of_m2, m2, count, to.correction, to.skips, up,
                             [&](double a, double by) { return left.set(by), left.under(a); });
    // The slope of an infinite deviation, unlike one of none, is -0 (is_far).
    if (to.of_m2 == kDeviationSlope && second == 0 && m2 > 0) second = -0.0;
  }
  // The k-th number, as Y.
  template <class Y>
  FASTACT_DEVICE Y get(int k) const {
    const Y rounded = narrow_once<Y>(mean + mean_low);
    if (k == 0) return rounded;
    if (k == 1) return narrow_once<Y>(finite_or_zero((mean - double(widen(rounded))) + mean_low));
    return narrow_once<Y>(k == 2 ? second : count);
  }
};

// Calls put_each(p, k) for each result that is wanted, the k-th of OfMoments.
template <class Put>
FASTACT_DEVICE void for_results(const MomentResults& to, int64_t at, const Put& put_each) {
#pragma unroll 1
  for (int k = 0; k < 4; ++k) {
    char* const p = k == 0 ? to.mean : k == 1 ? to.low : k == 2 ? to.second : to.count;
    if (p) put_each(p + at, k);
  }
}

template <class T>
FASTACT_DEVICE void put(const MomentResults& to, int64_t at, const Growing& all) {
  Denominator left;
  const OfMoments of(to, all, left, to.second);
  for_results(to, at, [&](char* p, int k) {
    if (to.wide)
      store(reinterpret_cast<double*>(p), of.get<double>(k));
    else if (to.other >= 0)
      put_by_call(p, to.other, of.get<double>(k), false);
    else
      store(reinterpret_cast<T*>(p), of.get<T>(k));
  });
}

// Writes the results of columns, `lanes` at a time.
template <class Y, int lanes, int n>
FASTACT_DEVICE void store_columns(const OfMoments (&of)[n], char* p, int64_t step, int count,
                                  int k) {
#pragma unroll
  for (int first = 0; first < n; first += lanes) {
    Y some[lanes];
#pragma unroll
    for (int j = 0; j < lanes; ++j) some[j] = of[first + j].template get<Y>(k);
    store_lanes(p + first * step, step, count - first, some);
  }
}
// A call, which is large, for each column of a vector.
FASTACT_DEVICE_CALL OfMoments moments_by_call(const MomentResults& to, const Growing all) {
  Denominator left;
  return {to, all, left, to.second != nullptr};
}
template <class T, class Columns>
FASTACT_DEVICE void put_lanes(const MomentResults& to, int64_t at, int64_t step, int count,
                              const Columns& columns) {
  OfMoments of[Columns::kSize];
  Denominator by;
#pragma unroll
  for (int j = 0; j < Columns::kSize; ++j) of[j] = moments_by_call(to, columns.of(j, by));
  for_results(to, at, [&](char* p, int k) {
    if (to.wide) return store_columns<double, 2>(of, p, step, count, k);
    if (to.other < 0) return store_columns<T, Columns::kSize>(of, p, step, count, k);
#pragma unroll
    for (int j = 0; j < Columns::kSize; ++j)
      if (j < count) put_by_call(p + j * step, to.other, of[j].template get<double>(k), false);
  });
}

FASTACT_DEVICE void put_chunk(const MomentResults&, double* partial, const Growing& all) {
  store(partial, all.of.mean + all.of.mean_low);
  store(partial + 1, all.of.m2 + all.of.m2_low);
  store(partial + 2, all.count);
}
// Merges chunks about the mean of all. That is found from the first chunk's mean, so that equal
// means have no distance at all.
FASTACT_DEVICE Growing merge_chunks(const MomentResults&, const double* partials, int64_t count,
                                    int lane, int team, int& folds) {
  const auto part_at = [&](int64_t i) {
    return Part{load(partials + 3 * i), load(partials + 3 * i + 1), load(partials + 3 * i + 2)};
  };
  const auto for_parts = [&](const auto& visit) {
    for (int64_t i = lane; i < count; i += team) {
      const Part part = part_at(i);
      if (part.count != 0) visit(part);
    }
  };
  int64_t first = 0;
  while (first + 1 < count && load(partials + 3 * first + 2) == 0) ++first;
  const double start = finite_or_zero(part_at(first).mean);
  double all[1] = {0}, distance[1] = {0}, sums[3] = {};
  for_parts([&](const Part& part) { all[0] += part.count; });
  team_sums(all, team, folds);
  const double share = 1 / all[0];
  for_parts([&](const Part& part) {
    const double weight = part.count * share;
    distance[0] += weight * part.mean - weight * start;
  });
  team_sums(distance, team, folds);
  const double centre = start + distance[0];
  const auto part_about_centre = [&](double scale) {
    sums[0] = sums[1] = sums[2] = 0;
    for_parts([&](const Part& part) {
      const double d = (part.mean - centre) * scale, product = part.count * d;
      sums[0] += product, sums[1] += product * d, sums[2] += scaled_square(part.m2, scale);
    });
    team_sums(sums, team, folds);
    Part part = part_of(centre, finite_or_zero(sums[0]), sums[1], all[0]);
    part.m2 += sums[2];
    return part;
  };
  Part part = part_about_centre(1);
  if (!is_in_range(part.m2) && part.m2 == part.m2) {
    const double scale = part.m2 < 1 ? kScaleUp : kScaleDown;
    part.m2 = square_or_root(part_about_centre(scale).m2, inverse_power(scale));
  }
  Growing merged{};
  absorb(merged, part);
  return merged;
}

// A number in the place of squares of double that vanished, so that who looks for them finds
// something: less than what is in range, and more than what the merges of such sums lose.
constexpr double kVanished = 0x1p-1000;
template <class T, class Count>
FASTACT_DEVICE double vanished(const Count& count, const Vec<T> (&vecs)[kInFlight], int first,
                               int end, double shift) {
  bool any = false;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u)
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const double d = double(widen(vecs[u].lane[j])) - shift;
      any |= j >= first && j < end && j < count.template valid<T>(u) && (d < 0 || d > 0);
    }
  return any ? kVanished : 0.0;
}

// The first finite number among a lane's first elements, or 0.
template <class T, class Count>
FASTACT_DEVICE double first_shift(bool skips, const Count& count, const Vec<T> (&vecs)[kInFlight]) {
  if (!skips) return finite_or_zero(double(widen(vecs[0].lane[0])));
  Compute<T> shift = 0;
  bool is_found = false;
#pragma unroll
  for (int u = 0; u < kInFlight; ++u)
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      const auto x = widen(vecs[u].lane[j]);
      const bool takes = !is_found && j < count.template valid<T>(u) && x - x == 0;
      shift = takes ? x : shift;
      is_found |= takes;
    }
  return double(shift);
}

// A lane's sums of a row. Where NaN are skipped, n counts the others.
template <class T, class Terms>
struct RowLane : Terms {
  static constexpr int kBlocks = sizeof(T) == 2 ? 2 : 3;
  static constexpr bool kCanFail = false;
  using Terms::skips, Terms::has_squares;
  Shifted sums{};
  int n = 0, rounds = 0;

  FASTACT_DEVICE explicit RowLane(const MomentResults& to) : Terms(to) {}
  FASTACT_DEVICE static RowLane of(const MomentResults& to) { return RowLane(to); }

  template <class Count>
  FASTACT_DEVICE void add(const Count& count, const Vec<T> (&vecs)[kInFlight]) {
    constexpr int kSize = Vec<T>::kSize;
    if (has_squares && (skips ? n == 0 : rounds == 0)) sums.shift = first_shift(skips, count, vecs);
    double sum[kInFlight], of_squares[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      sum[u] = of_squares[u] = 0;
      if (!count.has(u)) continue;
      const int valid = count.template valid<T>(u);
      if (!skips) n += valid < kSize ? valid : kSize;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const auto x = widen(vecs[u].lane[j]);
        if (Terms::kAreFixed && !has_squares) {
          const bool takes = (Count::kIsWhole || j < valid) && !(skips && x != x);
          if (skips) n += takes;
          sum[u] += double(takes ? x : Compute<T>(0));
          continue;
        }
        const double d = double(x) - sums.shift;
        if ((!Count::kIsWhole && j >= valid) || (skips && x != x)) continue;
        if (skips) ++n;
        sum[u] += d;
        of_squares[u] = madd(d, d, of_squares[u]);
      }
    }
    sums.sum += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    if (!has_squares) return;
    sums.squares += (of_squares[0] + of_squares[1]) + (of_squares[2] + of_squares[3]);
    if (sizeof(T) == sizeof(double) && sums.squares == 0)
      sums.squares = vanished(count, vecs, 0, Vec<T>::kSize, sums.shift);
    if (moves_after<T>(++rounds) && n > 0) move_to_mean(sums, 1.0 / n, n);
  }

  FASTACT_DEVICE Growing of_team(int team, int& folds) const {
    Growing all{};
    if (has_squares || team == 1) {
      absorb(all, join<T>(sums, n, team, folds));
    } else {
      double total[2] = {sums.sum, double(n)};
      team_sums(total, team, folds);
      absorb(all, Part{total[0] / total[1], 0, total[1]});
    }
    return all;
  }
};

// A shift need only be near the mean. For 16-bit data it is a float, because eight columns are
// short of registers; it is exact while it is one of the data.
template <class T>
using Shift = Compute<T>;

// A thread's sums of a vector of columns. The last row may have fewer columns. Where NaN may be
// skipped, the others are counted column by column. moves: there may be enough rows for the shift
// to move.
template <class T, class Terms, bool moves = true>
struct ColumnLane : Terms {
  static constexpr int kBlocks = sizeof(T) == 2 ? 2 : 3;
  static constexpr bool kCanFail = false, kCounts = Terms::kMaySkip;
  static constexpr int kSize = Vec<T>::kSize;
  using Terms::skips, Terms::has_squares;
  Shift<T> shift[kSize] = {};
  double sum[kSize] = {}, squares[kSize] = {};
  int rows = 0, last = kSize;
  int valid_rows[kCounts ? kSize : 1] = {};

  FASTACT_DEVICE explicit ColumnLane(const MomentResults& to) : Terms(to) {}
  FASTACT_DEVICE static ColumnLane of(const MomentResults& to) { return ColumnLane(to); }

  FASTACT_DEVICE int count(int j) const {
    if constexpr (kCounts) return valid_rows[j];
    return j < last ? rows : rows - 1;
  }

  FASTACT_DEVICE void move(int j, double n, Shift<T> to) {
    const Shifted s = about({double(shift[j]), sum[j], squares[j]}, n, double(to));
    shift[j] = to, sum[j] = s.sum, squares[j] = s.squares;
  }

  // Sets column j's shift to the first finite of these elements, unless it has one.
  template <class Count>
  FASTACT_DEVICE void set_shift(int j, const Count& counts, const Vec<T> (&vecs)[kInFlight]) {
    bool is_found = false;
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const auto x = widen(vecs[u].lane[j]);
      const bool takes = !is_found && j < counts.template valid<T>(u) && x - x == 0;
      shift[j] = takes ? Shift<T>(x) : shift[j];
      is_found |= takes;
    }
  }

  template <class Count>
  FASTACT_DEVICE void add(const Count& counts, const Vec<T> (&vecs)[kInFlight]) {
    if (!has_squares) {
    } else if (skips) {
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (count(j) == 0) set_shift(j, counts, vecs);
    } else if (rows == 0) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const auto first = widen(vecs[0].lane[j]);
        shift[j] = is_finite(double(first)) ? first : Shift<T>(0);
      }
    }
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      const int valid = counts.template valid<T>(u);
      if (!counts.has(u)) continue;
      ++rows, last = valid;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const auto x = widen(vecs[u].lane[j]);
        if (Terms::kAreFixed && !has_squares) {
          const bool takes = (Count::kIsWhole || j < valid) && !(skips && x != x);
          if constexpr (kCounts) valid_rows[j] += takes;
          sum[j] += double(takes ? x : Compute<T>(0));
          continue;
        }
        const double d = double(x) - double(shift[j]);
        if ((!Count::kIsWhole && j >= valid) || (skips && x != x)) continue;
        if constexpr (kCounts) ++valid_rows[j];
        sum[j] += d;
        squares[j] = madd(d, d, squares[j]);
      }
    }
    if constexpr (sizeof(T) == sizeof(double)) {
#pragma unroll
      for (int j = 0; j < kSize; ++j)
        if (squares[j] == 0) squares[j] = vanished(counts, vecs, j, j + 1, shift[j]);
    }
    // Rounds so far: only the last has fewer rows.
    if (has_squares && moves && moves_after<T>((rows + kInFlight - 1) / kInFlight)) move_to_means();
  }

  FASTACT_DEVICE void move_to_means() {
    const double share = 1.0 / rows;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const auto mean = Shift<T>(double(shift[j]) + (skips ? sum[j] / count(j) : sum[j] * share));
      if (is_finite(double(mean))) move(j, count(j), mean);
    }
  }

  // The moments of a column that is this thread's alone.
  FASTACT_DEVICE Growing of(int j, Denominator& by) const {
    Growing all{};
    absorb(all, part_of(shift[j], sum[j], squares[j], count(j), by));
    return all;
  }
};

template <Access access, class T, class Lane>
FASTACT_KERNEL_OF(kThreads, sizeof(T) > 2 && access == kAligned && !Lane::kAreMany ? 3 : 2)
void moment_columns(FASTACT_GRID_CONSTANT const ColumnSums sums,
                    FASTACT_GRID_CONSTANT const MomentResults to) {
  constexpr int kSize = Vec<T>::kSize;
  static_assert(kWarp * kSize <= kThreads, "a thread for each column of a tile");
  FASTACT_SHARED(double, buffer, (kFoldBuffer<kThreads, kSize>));
  FASTACT_SHARED(double, centre, kWarp* kSize);
  const int mine = int(threadIdx.x);  // a column of the tile

  const int64_t tasks = sums.kept.size * sums.chunks.count * sums.tiles;
  for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
    const ColumnTask task = column_task<T>(sums, i, int(threadIdx.x));
    const int tx = task.tx, ty = task.ty, columns = task.columns;
    const int64_t here = task.here, end = task.end;

    Lane lane(to);
    if (task.is_there)
      visit_column<access, T>(
          sums, sums.x + locate(sums.kept, task.outer).x, task.column, task.begin + ty, end,
          [&](const auto& count, const Vec<T>(&vecs)[kInFlight]) { lane.add(count, vecs); });

    // The mean of each column, from the shift of its first row's thread.
    if (ty == 0) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) centre[tx * kSize + j] = double(lane.shift[j]);
    }
    __syncthreads();
    const auto fold = [&](const double (&of)[kSize]) {  // of all columns; gives this thread's
      const auto folded = fold_rows(buffer, of, tx, ty, sums.tx, sums.ty);
      const double sum = mine < columns ? folded.sum(buffer, mine) : 0.0;
      __syncthreads();
      return sum;
    };
    double total[kSize];
    double count = 0;  // of this thread's column
    if constexpr (Lane::kCounts) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) total[j] = lane.count(j);
      count = fold(total);
    }
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const double n = lane.count(j), start = centre[tx * kSize + j];
      total[j] = lane.rows > 0 ? madd(n, double(lane.shift[j]) - start, lane.sum[j]) : 0.0;
    }
    const double distance = fold(total);
    if (!Lane::kCounts) {
      const bool short_one = sums.elements > 0 && end == sums.rows &&
                             (sums.rows - 1) * sums.width + here + mine >= sums.elements;
      count = double(int(end - task.begin) - (short_one ? 1 : 0));
    }
    if (mine < columns && count > 0) centre[mine] = double(centre[mine]) + distance / count;
    __syncthreads();

    Part part{};
    if (lane.has_squares) {
      // The sums about that mean.
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        const Shifted before{double(lane.shift[j]), lane.sum[j], lane.squares[j]};
        const Shifted moved = about(before, lane.count(j), centre[tx * kSize + j]);
        total[j] = lane.rows > 0 ? moved.sum : 0.0;
        lane.squares[j] = lane.rows > 0 ? moved.squares : 0.0;
      }
      const double sum = fold(total), squares = fold(lane.squares);
      if (mine < columns && count > 0) part = part_of(centre[mine], sum, squares, count);
    } else if (mine < columns && count > 0) {
      part = Part{centre[mine], 0, count};
    }

    // In joined rows the columns of one output lie `inner` apart; else an output is one column.
    const int outputs = int(smaller(columns, sums.inner));
    if (outputs < columns) {
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
      emit<T>(sums, to, task.outer * sums.inner + here + mine, task.chunk,
              locate(sums.kept, task.outer).y + (here + mine) * sums.inner_y, all);
    }
    __syncthreads();
  }
}

template <class T, class Terms>
struct MomentKernels {
  using Lane = RowLane<T, Terms>;
  using ShortLane = RowLane<T, AskedTerms>;
  using OddLane = ShortLane;
  using Columns = ColumnLane<T, AskedTerms, moves_after<T>(int(kFewRows / kInFlight))>;
  template <Access access>
  static constexpr auto kColumns =
      moment_columns<access, T,
                     ColumnLane<T, std::conditional_t<access == kAligned, Terms, AskedTerms>>>;
};

}  // namespace
FASTACT_END_NAMESPACE
