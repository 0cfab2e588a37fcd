// The backward kernels of norms with a gate whose activation is compiled in, of quick rows: what
// backward.cuh says of rows, teams and sums holds here as well, and so do its bits.
//
// A row is x, dy and the gate. A thread goes over its vectors by pairs of elements, and computes
// the gate's activation again behind the sums of the row: all else would take registers that leave
// too few threads to a multiprocessor. For the same reason an address is made of the row's number,
// by two multiplications of 32 bits. No bias stands beside a gate, and no mean was subtracted.
#pragma once

#include <type_traits>

#include "cuda/activations/fixed.cuh"
#include "cuda/norms/rows/backward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T>
using FixedGateOf = typename Numbered<kFixedGate, T>::Function;

// Reads the rows of a team, one after another, and knows where a thread's vectors are.
template <class T, class Rows>
struct GatedReader {
  using C = Compute<T>;
  const Rows& rows;
  const NormSums<C>& sums;
  int left, count, lanes;  // rows that are still to be read; vectors of the thread in a row
  uint32_t first, row;     // the thread's first vector, and the row that is read next

  FASTACT_DEVICE GatedReader(const Rows& all, const NormSums<C>& of, const RowPart& part)
      : rows(all),
        sums(of),
        left(of.rows_from(all, part.row)),
        count(part.count),
        lanes(part.lanes),
        first(uint32_t(part.first)),
        row(uint32_t(part.row)) {}
  FASTACT_DEVICE T* at(int role, uint32_t of_row, int i) const {
    const uint32_t vec = of_row * rows.pitch_vecs[role] + (first + uint32_t(i * lanes));
    return reinterpret_cast<T*>(rows.data[role] + int64_t(vec) * kVecBytes);
  }
  FASTACT_DEVICE Words read(int role, uint32_t of_row, int i) const {
    return bit_cast<Words>(load_vec(at(role, of_row, i)));
  }
  FASTACT_DEVICE void write(int role, uint32_t of_row, int i, const Words& words) const {
    store_vec(at(role, of_row, i), bit_cast<Vec<T>>(words));
  }
  template <int vecs>
  FASTACT_DEVICE void fetch(BackwardRow<T, vecs, true>& next, bool has_means) {
    next.count = left-- > 0 ? count : 0;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      next.x[i] = next.dy[i] = next.gate[i] = {};
      if (i >= next.count) continue;
      next.x[i] = read(kIn, row, i);
      next.dy[i] = read(kDy, row, i);
      next.gate[i] = read(kGateRole, row, i);
    }
    next.stats = {};
    if (next.count > 0) {
      next.stats.rstd = load(number_of<C>(rows, kRstdRole, row));
      // Nobody has found the means where dx is not wanted.
      if (has_means && rows.writes_dx())
        next.stats.mean_g_xhat = load(sums.means + 2 * int64_t(row) + 1);
    }
    row += uint32_t(sums.row_step);
  }
};

// The numbers that make an element's gradients.
template <class C, bool gate_first>
struct GatedElement {
  C x, dy, weight, value, p, xhat;  // value: of the gate's activation

  FASTACT_DEVICE GatedElement(C of_x, C of_dy, C of_weight, C activated,
                              const RowGradient<C>& stats)
      : x(of_x), dy(of_dy), weight(of_weight), value(activated) {
    p = gate_first ? dy : value * dy;
    xhat = stats.xhat(gate_first ? value * x : x);
  }
  FASTACT_DEVICE C g_xhat(C sum) const { return madd(p * weight, xhat, sum); }
  // dx, and dgate OUT. slope: of the activation.
  FASTACT_DEVICE C gradients(C slope, const RowGradient<C>& stats, C* dgate) const {
    const C dx = stats.dx_of_product(p, weight, xhat);
    *dgate = (gate_first ? x * dx : dy * (xhat * weight)) * slope;
    return gate_first ? value * dx : dx;
  }
};

// An element of a vector.
template <class T>
FASTACT_DEVICE Compute<T> lane_of(const Words& words, int j) {
  return widen_words<T>(words).lane[j];
}
// Puts two elements, from the j-th on, into a vector.
template <class T>
FASTACT_DEVICE void put_two(Words& words, int j, Compute<T> low, Compute<T> high) {
  Wide<T> wide{};
  wide.lane[j] = low, wide.lane[j + 1] = high;
  const Words made = bit_cast<Words>(narrow_vec<T>(wide));
  constexpr int kOfWord = int(sizeof(uint32_t) / sizeof(T));
#pragma unroll
  for (int k = 0; k < 4; ++k)
    if (k == j / kOfWord || k == (j + 1) / kOfWord) words.word[k] = made.word[k];
}

// Sum of g xhat of a thread's vector, by chains as OwnSums has them.
template <class T, bool gate_first>
FASTACT_DEVICE void add_g_xhat(const FixedGateOf<T>& f, const Words& x, const Words& dy,
                               const Words& gate, const Wide<T>& weight,
                               const RowGradient<Compute<T>>& stats, OwnSums<T>& sums) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) {
    const GatedElement<Compute<T>, gate_first> element(
        lane_of<T>(x, j), lane_of<T>(dy, j), weight.lane[j], f.forward(lane_of<T>(gate, j)), stats);
    Compute<T>& sum = sums.g_xhat[j % OwnSums<T>::kChains];
    sum = element.g_xhat(sum);
  }
}

// Adds to the sums of the columns of a thread's vector, and makes its dx and dgate in the place of
// its x and dy. accumulates: added to what is at dx_before and dgate_before, or at neither if null.
template <class T, bool gate_first, bool accumulates>
FASTACT_DEVICE void make_gradients(const FixedGateOf<T>& f, Words& x, Words& dy, const Words& gate,
                                   const Wide<T>& weight, const RowGradient<Compute<T>>& stats,
                                   Wide<T>& of_weight, const T* dx_before, const T* dgate_before) {
  using C = Compute<T>;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; j += 2) {
    C dx[2], dgate[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      C slope;
      const C value = f.forward(lane_of<T>(gate, j + k), slope);
      const GatedElement<C, gate_first> element(lane_of<T>(x, j + k), lane_of<T>(dy, j + k),
                                                weight.lane[j + k], value, stats);
      of_weight.lane[j + k] = weight_sum(of_weight.lane[j + k], element.p, element.xhat);
      dx[k] = element.gradients(slope, stats, &dgate[k]);
      if (accumulates && dx_before) dx[k] = widen(load(dx_before + j + k)) + dx[k];
      if (accumulates && dgate_before) dgate[k] = widen(load(dgate_before + j + k)) + dgate[k];
    }
    put_two<T>(x, j, dx[0], dx[1]);
    put_two<T>(dy, j, dgate[0], dgate[1]);
  }
}

template <class T, int vecs, MeansBy by, class Rows>
FASTACT_KERNEL_OF((kBackwardThreads<T, vecs, by>), (kBackwardBlocks<T, vecs, by, Rows>))
void norm_backward_rows_gated(FASTACT_GRID_CONSTANT const Rows rows,
                              FASTACT_GRID_CONSTANT const NormSums<Compute<T>> sums) {
  using C = Compute<T>;
  using Row = BackwardRow<T, vecs, true>;
  constexpr bool kHasTile = by == kGiven, kGateFirst = Rows::kGateFirst;
  const int64_t task = kHasTile ? quotient(blockIdx.x, sums.tiles)
                       : by == kBlockLanes
                           ? blockIdx.x
                           : int64_t(blockIdx.x) * rows.teams + int(threadIdx.x) / rows.lanes;
  const int lanes = kHasTile ? int(blockDim.x) : rows.lanes;
  const int64_t begin = kHasTile ? (blockIdx.x - task * sums.tiles) * lanes : 0;
  const int64_t end = kHasTile ? smaller(begin + lanes, vecs_of<T>(rows)) : vecs_of<T>(rows);
  const RowPart part = part_between(task, begin, end, int(threadIdx.x) % lanes, lanes);
  GatedReader<T, Rows> reader(rows, sums, part);
  ColumnSums<T, vecs, Rows> columns(nullptr, 0, sums.vecs);
  if (sums.is_wanted) columns.clear();
  Wide<T> own_weight[vecs] = {};
  take_weights<T>(rows, part, own_weight);
  const FixedGateOf<T> f(rows.parameters);
  int added = 0, rounds = sums.rounds;

  const auto take = [&](Row& row, Row& next) {
    // A block stays for the rows that its team has; of teams in one warp some may have a row less.
    const int count = by == kWarpLanes ? row.count : reader.count;
    reader.fetch(next, kHasTile);
    if (!kHasTile) {
      OwnSums<T> of_row{};
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        if (i < count)
          add_g_xhat<T, kGateFirst>(f, row.x[i], row.dy[i], row.gate[i], own_weight[i], row.stats,
                                    of_row);
      C means[2];
      of_row.fold(means);
      int fold_index = reader.left;  // it counts down, and its parity takes turns as well
      fold_two<kTeamOf<by>>(means, rows.per_length, lanes, fold_index);
      set_subtracted(rows.norm, means[0], means[1], double(rows.length), row.stats.rstd, rows.eps,
                     kRstdRounding<C>);
      row.stats.mean_g_xhat = means[1];
      forget_row(row.x), forget_row(row.dy), forget_row(row.gate);
    }
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= count) continue;
      const uint32_t of_row = reader.row - 2 * uint32_t(sums.row_step);  // two were read since
      const auto make = [&](auto accumulates, const T* dx, const T* dgate) {
        make_gradients<T, kGateFirst, accumulates.value>(f, row.x[i], row.dy[i], row.gate[i],
                                                         own_weight[i], row.stats,
                                                         columns.of_weight[i], dx, dgate);
      };
      const bool has_dx = rows.data[kDx], has_dgate = rows.data[kDGateRole];
      if (rows.accumulate)  // the code is there twice: a test for each number would cost more
        make(std::true_type(), has_dx ? reader.at(kDx, of_row, i) : nullptr,
             has_dgate ? reader.at(kDGateRole, of_row, i) : nullptr);
      else
        make(std::false_type(), nullptr, nullptr);
      if (has_dx) reader.write(kDx, of_row, i, row.x[i]);
      if (has_dgate) reader.write(kDGateRole, of_row, i, row.dy[i]);
    }
    const bool is_last = by == kWarpLanes ? --rounds == 0 : reader.left < 0;
    if (sums.is_wanted && (++added == kSumRows<T> || is_last)) columns.flush(), added = 0;
    return !is_last;
  };
  Row one, other;
  reader.fetch(one, kHasTile);
  // Two rows take turns, so that none is moved from register to register.
  if (by == kWarpLanes || reader.left >= 0) {
    while (take(one, other) && take(other, one)) {
    }
  }
  if (sums.is_wanted) write_part<T>(rows, sums, columns, kHasTile);
}

}  // namespace
FASTACT_END_NAMESPACE
