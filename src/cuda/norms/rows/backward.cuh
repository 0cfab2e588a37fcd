// The backward kernels of the norms over rows. common/norms/norms.h derives the gradients:
//
//   p = dy f'(z)     g = p w     dx = rstd (g - mean(g) - xhat mean(g xhat))
//   dweight = sum p xhat         dbias = sum p
//
// norms.cu explains the passes; its backward_shape() says how many threads a row takes.
//
// A row is in registers, as forward. A team is the threads of a row. It keeps one group of
// parameters and takes the rows of that group one after another; the next quick row is read before
// the sums of this one are folded. From row to row a thread keeps the weights of its columns and
// the sums of their dweight and dbias: of kSumRows rows in the compute type in registers, then in
// double in shared memory. In the end the block adds up the sums of its teams, and of elements that
// share a parameter. It writes one part of the batch's sums; norm_parameters adds up the parts.
#pragma once

#include <type_traits>

#include "cuda/core/finish.cuh"
#include "cuda/core/held_rows.cuh"
#include "cuda/norms/rows/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

enum BackwardRole { kDy, kIn, kDTotal, kDx };
constexpr int kStatEnd = kRstdRole + 1;  // roles of data and of statistics

// How many rows a column adds up in float: a rounding for each, two for xhat and one for the part's
// sum are within the bound of 18 u.
template <class T>
constexpr int kSumRows = sizeof(T) == 8 ? INT32_MAX : 14;

// A team's rows of the batch, and the place of the parts' sums.
template <class C>
struct NormSums {
  int64_t step;              // of the batch, from a row of a team to its next
  int64_t row_step;          // the same in rows of all groups
  int64_t stride[kStatEnd];  // and in bytes, of dense arrays
  int rounds;                // rows of a team, at most
  int vecs;                  // of a thread, at most
  bool is_wanted;            // dweight or dbias
  int run_lanes;             // threads that add up the columns of a parameter
  int64_t tiles;             // blocks beside each other over a long row
  int64_t parts;             // of the batch, each with sums of its own
  C* partials;               // OUT, parts x [dweight, dbias] x groups x params
  double* spilled;           // SCRATCH, null where shared memory has room: ColumnSums of all blocks
  const C* means;            // IN of long rows, [mean of g, of g xhat] of each

  FASTACT_DEVICE C* partial(const NormRows& rows, int64_t part, int which, int64_t group) const {
    return partials + ((part * 2 + which) * rows.groups + group) * rows.params;
  }
  // How many rows a team has whose first one is `row`.
  FASTACT_DEVICE int rows_from(const NormRows& rows, int64_t row) const {
    const int64_t b = quotient(row, rows.groups);
    return b < step && b < rows.batch ? int(quotient(rows.batch - 1 - b, step)) + 1 : 0;
  }
};

// The numbers that make a row's gradient, but for the means of g and g xhat.
template <class C, class Rows>
FASTACT_DEVICE RowGradient<C> statistics_of(const Rows& rows, int64_t row) {
  RowGradient<C> stats{};
  if (rows.data[kMeanRole]) stats.mean = load(number_of<C>(rows, kMeanRole, row));
  stats.rstd = load(number_of<C>(rows, kRstdRole, row));
  return stats;
}

template <class T>
FASTACT_DEVICE Wide<T> xhat_of(Wide<T> x, const RowGradient<Compute<T>>& stats) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) x.lane[j] = stats.xhat(x.lane[j]);
  return x;
}

// Sets the lanes past the end of a row to zero.
template <class T>
FASTACT_DEVICE void zero_tail(Wide<T>& wide, int valid) {
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    if (j >= valid) wide.lane[j] = 0;
}

// f(gate) of a vector, and its derivative; the gate is read again wherever that is wanted.
template <class T, class Rows>
FASTACT_DEVICE_CALL ValueAndSlope<T> gate_of(const Rows& rows, int64_t row, int64_t q, int valid) {
  const Wide<T> gate = widen_vec(read<T>(rows, kGateRole, row, q, valid));
  return value_and_slope<T>(rows.which, rows.parameters, gate);
}

// p of the q-th vector of a row, dy f'(z) or f(gate) dy, and x, which may be gated. It is a call,
// so that only x and dy stay in registers while it calls the activation.
template <class T>
struct GradientTerms {
  Wide<T> p, x;
};
template <class T, class Rows>
FASTACT_DEVICE_CALL GradientTerms<T> terms_of(const Rows& rows, const Vec<T> x, const Vec<T> dy,
                                              const RowGradient<Compute<T>> stats, int64_t row,
                                              int64_t q, int valid) {
  GradientTerms<T> terms{widen_vec(dy), widen_vec(x)};
  if (rows.has_gate()) {
    const Wide<T> gate = gate_of<T>(rows, row, q, valid).value;
    if (rows.gate_first)
      terms.x = product_of<T>(gate, terms.x);
    else
      terms.p = cast_if<T>(rows.casts, product_of<T>(gate, terms.p));
    return terms;
  }
  const Wide<T> bias = bias_of<T>(rows, row, q, valid);
  const Wide<T> weight = weight_of<T>(rows, row, q, valid);
  Wide<T> z = cast_if<T>(rows.casts, xhat_of<T>(terms.x, stats));
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    z.lane[j] = affine(z.lane[j], weight.lane[j], bias.lane[j]);
  const Wide<T> slope = slope_at<T>(rows.which, rows.parameters, cast_if<T>(rows.casts, z));
  terms.p = cast_if<T>(rows.casts, product_of<T>(terms.p, slope));
  if (valid < Vec<T>::kSize) zero_tail<T>(terms.p, valid);
  return terms;
}

// The sums of g = p w and of g xhat of a thread, in the compute type: four chains of each.
template <class T>
struct OwnSums {
  static constexpr int kChains = Vec<T>::kSize < 4 ? Vec<T>::kSize : 4;
  Compute<T> g[kChains], g_xhat[kChains];

  FASTACT_DEVICE void add(const Wide<T>& p, const Wide<T>& xhat, const Wide<T>& weight,
                          bool casts = false) {
    const Wide<T> terms = cast_if<T>(casts, product_of<T>(p, weight));
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) {
      g[j % kChains] += terms.lane[j];
      g_xhat[j % kChains] = madd(terms.lane[j], xhat.lane[j], g_xhat[j % kChains]);
    }
  }
  FASTACT_DEVICE void fold(Compute<T> (&sums)[2]) {
#pragma unroll
    for (int m = kChains / 2; m > 0; m /= 2)
#pragma unroll
      for (int j = 0; j < m; ++j) g[j] += g[j + m], g_xhat[j] += g_xhat[j + m];
    sums[0] = g[0], sums[1] = g_xhat[0];
  }
};

// Who finds the means of g and g xhat: the lanes of a row, which are a part of a warp or a block.
// For long rows, whose tiles blocks take, the means are given. A kernel may be for all of these.
enum MeansBy { kWarpLanes, kBlockLanes, kGiven, kAnyWay };
template <MeansBy by>
constexpr TeamIn kTeamOf = by == kWarpLanes    ? kOneWarp
                           : by == kBlockLanes ? kOneBlock
                                               : kWarpOrBlock;

// Two sums over the lanes of a row, times `factor`, given to all of them: within a warp in the
// compute type, over the warps of a block in double.
template <TeamIn in, class C>
FASTACT_DEVICE void fold_two(C (&value)[2], double factor, int lanes, int& fold_index) {
  fold_team<in>(
      value, lanes, fold_index, [](auto a, auto b) { return a + b; }, 0.0,
      [&](double sum) { return C(sum * factor); });
}

// Folds within a block to one number in double: the first one's sum for the lower half of a
// warp's lanes, the second one's for the upper half.
template <class C>
FASTACT_DEVICE double fold_halves(C (&value)[2], int lanes, int& fold_index) {
  double own = 0;
  fold_team<kOneBlock>(
      value, lanes, fold_index, [](auto a, auto b) { return a + b; }, 0.0,
      [&](double sum) {
        own = sum;
        return C(0);
      });
  return own;
}

// dx of a vector.
template <class T>
FASTACT_DEVICE Wide<T> gradient_of(const RowGradient<Compute<T>>& stats, Wide<T> p,
                                   const Wide<T>& xhat, Wide<T> weight, bool casts = false) {
  if (sizeof(T) == 2 && casts)
    p = cast_if<T>(true, product_of<T>(p, weight)), weight = repeat<T>(1);
  Wide<T> dx;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    dx.lane[j] = stats.dx_of_product(p.lane[j], weight.lane[j], xhat.lane[j]);
  return dx;
}

// A thread's part of a row of its team: `count` vectors, none where the team has no row.
template <class T, int vecs, bool has_gate = false>
struct BackwardRow {
  int count;
  RowGradient<Compute<T>> stats;
  Words x[vecs], dy[vecs], gate[has_gate ? vecs : 1];
};

// A thread's part of the vectors [begin, end) of a row.
FASTACT_DEVICE RowPart part_between(int64_t row, int64_t begin, int64_t end, int lane, int lanes) {
  RowPart part{};
  part.row = row, part.first = begin + lane, part.lane = lane, part.lanes = lanes;
  part.count = part.first < end ? int(quotient(end - 1 - part.first, lanes)) + 1 : 0;
  return part;
}

// Reads and writes the rows of a team, one after another. For quick rows it keeps the addresses of
// the thread's first vector; dtotal goes by the steps of dx, and the mean by the steps of rstd.
template <class T, class Rows>
struct RowReader {
  using C = Compute<T>;
  const Rows& rows;
  const NormSums<C>& sums;
  bool has_means;
  int left;      // rows of the team that are still to be read
  RowPart part;  // of the row that was read last
  const T *dy, *x;
  T* dx;
  const C *rstd, *means;

  FASTACT_DEVICE RowReader(const Rows& all, const NormSums<C>& of, bool means_given,
                           const RowPart& first)
      : rows(all),
        sums(of),
        has_means(means_given),
        left(of.rows_from(all, first.row)),
        part(first) {
    if constexpr (Rows::kQuick) {
      const int64_t at = part.first * Vec<T>::kSize;
      dy = row_of<T>(rows, kDy, part.row) + at, x = row_of<T>(rows, kIn, part.row) + at;
      dx = row_of<T>(rows, kDx, part.row) + at, rstd = number_of<C>(rows, kRstdRole, part.row);
    } else {
      part.row -= sums.row_step;
    }
    if (has_means) means = sums.means + 2 * first.row;
  }
  FASTACT_DEVICE int64_t quick_offset(int i) const { return i * part.lanes * Vec<T>::kSize; }
  // The address in an array that steps as another one does.
  template <class N>
  FASTACT_DEVICE const N* beside(const N* p, int role, int like) const {
    return reinterpret_cast<const N*>(reinterpret_cast<const char*>(p) +
                                      (rows.data[role] - rows.data[like]));
  }
  FASTACT_DEVICE Vec<T> read(int role, const T* quick, int i) const {
    if constexpr (Rows::kByElement)
      return load_some(quick + quick_offset(i), valid_of<T>(rows, part, i));
    if constexpr (Rows::kQuick) return load_vec(quick + quick_offset(i));
    return read_vec<T>(rows, role, part, i);
  }
  FASTACT_DEVICE Vec<T> read_dtotal(int i) const {
    return read(kDTotal, beside(dx, kDTotal, kDx), i);
  }
  // dtotal is read only once the sums are known.
  template <int vecs>
  FASTACT_DEVICE void bring_dtotal_near(const BackwardRow<T, vecs>& row) const {
    if constexpr (Rows::kWhole) {
      if (!rows.data[kDTotal] || !rows.data[kDx]) return;
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        if (i < row.count) bring_near(beside(dx, kDTotal, kDx) + quick_offset(i));
    }
  }
  FASTACT_DEVICE Vec<T> read_dx(int i) const { return read(kDx, dx, i); }
  FASTACT_DEVICE void write_dx(int i, const Vec<T>& vec) const {
    if constexpr (Rows::kByElement)
      return store_some(dx + quick_offset(i), vec, valid_of<T>(rows, part, i));
    if constexpr (Rows::kQuick) return store_vec(dx + quick_offset(i), vec);
    write_vec(rows, kDx, part, i, vec);
  }
  template <int vecs>
  FASTACT_DEVICE void fetch(BackwardRow<T, vecs>& to) {
    to.count = left-- > 0 ? part.count : 0;
    if (!Rows::kQuick) part.row += sums.row_step;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      to.x[i] = to.dy[i] = {};
      if (i >= to.count) continue;
      to.x[i] = bit_cast<Words>(read(kIn, x, i));
      to.dy[i] = bit_cast<Words>(read(kDy, dy, i));
    }
    to.stats = {};
    if (to.count == 0) return;
    if constexpr (Rows::kQuick) {
      if (rows.data[kMeanRole]) to.stats.mean = load(beside(rstd, kMeanRole, kRstdRole));
      to.stats.rstd = load(rstd);
    } else {
      to.stats = statistics_of<C>(rows, part.row);
    }
    if (has_means && rows.writes_dx()) {
      to.stats.mean_g = load(means), to.stats.mean_g_xhat = load(means + 1);
      means += 2 * sums.row_step;
    }
    step(dy, kDy), step(x, kIn), step(rstd, kRstdRole);
  }
  template <class N>
  FASTACT_DEVICE void step(const N*& p, int role) {
    if constexpr (Rows::kQuick)
      p = reinterpret_cast<const N*>(reinterpret_cast<const char*>(p) + sums.stride[role]);
  }
  FASTACT_DEVICE void step_dx() {
    if constexpr (Rows::kQuick)
      dx = reinterpret_cast<T*>(reinterpret_cast<char*>(dx) + sums.stride[kDx]);
  }
};

// Writes dgate of a vector; dx IN/OUT: of x that is gated, where it is the product's. weight, xhat:
// of a product z that is gated.
template <class T, class Rows>
FASTACT_DEVICE void write_dgate(const Rows& rows, const RowPart& part, int i, const Vec<T> x,
                                const Vec<T> dy, const Wide<T> weight, const Wide<T> xhat,
                                Wide<T>& dx) {
  const int valid = valid_of<T>(rows, part, i);
  const ValueAndSlope<T> gate = gate_of<T>(rows, part.row, part.vec(i), valid);
  Wide<T> dgate;
  if (rows.gate_first) {
    dgate = product_of<T>(widen_vec(x), dx);
    dx = product_of<T>(gate.value, dx);
  } else {
    const Wide<T> h = cast_if<T>(rows.casts, xhat);
    dgate = product_of<T>(widen_vec(dy), cast_if<T>(rows.casts, product_of<T>(h, weight)));
  }
  if (!rows.data[kDGateRole]) return;
  dgate = product_of<T>(dgate, gate.slope);
  if (rows.accumulate) accumulate_onto(read_vec<T>(rows, kDGateRole, part, i), dgate);
  write_vec(rows, kDGateRole, part, i, narrow_vec<T>(dgate));
}

// The weights of a thread's vectors of a row.
template <class T, int vecs, class Rows>
FASTACT_DEVICE void take_weights(const Rows& rows, const RowPart& part, Wide<T> (&weight)[vecs]) {
#pragma unroll
  for (int i = 0; i < vecs; ++i)
    if (i < part.count)
      weight[i] = weight_of<T>(rows, part.row, part.vec(i), valid_of<T>(rows, part, i));
}

// Calls visit(i, weight, p, xhat) for each of a thread's vectors of a row. weight: for quick rows.
template <class T, int vecs, bool has_gate, class Rows, class Visit>
FASTACT_DEVICE void for_vectors(const Rows& rows, const RowPart& part,
                                const BackwardRow<T, vecs, has_gate>& row,
                                const Wide<T> (&weight)[vecs], const Visit& visit) {
#pragma unroll
  for (int i = 0; i < vecs; ++i) {
    if (i >= row.count) continue;
    const Vec<T> x = bit_cast<Vec<T>>(row.x[i]), dy = bit_cast<Vec<T>>(row.dy[i]);
    const int valid = Rows::kWhole ? Vec<T>::kSize : valid_of<T>(rows, part, i);
    const int64_t q = part.vec(i);
    Wide<T> p = widen_vec(dy), w = weight[i], wide_x = widen_vec(x);
    if constexpr (Rows::kHasFixedGate) {
      using Gate = FixedGate<Rows::kGateFirst>;
      Wide<T>& gated = Rows::kGateFirst ? wide_x : p;
      gated = product_of<T>(Gate::template value<T>(rows, widen_words<T>(row.gate[i])), gated);
    } else if constexpr (!Rows::kQuick) {
      if (rows.has_gate() || rows.which != k_identity) {
        const GradientTerms<T> terms = terms_of<T>(rows, x, dy, row.stats, part.row, q, valid);
        p = terms.p, wide_x = terms.x;
      }
      w = weight_of<T>(rows, part.row, q, valid);
    }
    Wide<T> xhat = xhat_of<T>(wide_x, row.stats);
    if (valid < Vec<T>::kSize) zero_tail<T>(xhat, valid);
    visit(i, w, p, xhat);
  }
}

// The sums of dweight and dbias of a thread's columns. `running` sums are of at most kSumRows rows,
// in the compute type; the totals of all rows are in double. Running sums are in registers for
// quick rows; else calls leave no registers, and they lie beside the totals. The totals are in
// shared memory or, where it has no room, in scratch memory, and then rows are not quick. The same
// number of all threads lies side by side.
template <class T, int vecs, class Rows>
struct ColumnSums {
  using C = Compute<T>;
  static constexpr int kSize = Vec<T>::kSize;
  static constexpr int kSums = Rows::kHasFixedGate ? 1 : 2;  // no bias stands beside a gate
  static constexpr bool kInRegisters = Rows::kQuick;
  static constexpr bool kHasRunning = !kInRegisters && sizeof(C) < sizeof(double);
  // Whether there is a kernel for each number of a thread's vectors.
  static constexpr bool kIsFull = Rows::kWhole;
  // Bytes for each vector of a thread.
  static constexpr int kBytes = kSums * kSize * int(sizeof(double) + (kHasRunning ? sizeof(C) : 0));

  decltype(dynamic_shared<double>()) totals;
  decltype(dynamic_shared<C>()) shared_running;
  double* spilled;
  int own;  // numbers of a thread
  Wide<T> of_weight[kInRegisters ? vecs : 1] = {}, of_bias[kInRegisters ? vecs : 1] = {};

  // scratch: of all blocks, or null. of_thread: vectors.
  FASTACT_DEVICE ColumnSums(double* scratch, int64_t block, int of_thread)
      : totals(dynamic_shared<double>()),
        shared_running(dynamic_shared<C>()),
        spilled(nullptr),
        own((kIsFull ? vecs : of_thread) * kSums * kSize) {
    if (scratch)
      spilled = scratch + block * of_thread * (kBytes / int(sizeof(double))) * int(blockDim.x);
  }
  FASTACT_DEVICE static int at(int i, int which, int j, int thread) {
    return ((i * kSums + which) * kSize + j) * int(blockDim.x) + thread;
  }
  FASTACT_DEVICE double total(int at) const {
    if (!kInRegisters && spilled) return load(spilled + at);
    return totals[at];
  }
  FASTACT_DEVICE void put_total(int at, double sum) const {
    if (!kInRegisters && spilled) return store(spilled + at, sum);
    totals[at] = sum;
  }
  // For float64 the running sums are the totals.
  FASTACT_DEVICE int running_at(int at) const {
    return kHasRunning ? own * int(blockDim.x) * int(sizeof(double) / sizeof(C)) + at : at;
  }
  FASTACT_DEVICE C running(int at) const {
    if (spilled) return load(reinterpret_cast<C*>(spilled) + running_at(at));
    return shared_running[running_at(at)];
  }
  FASTACT_DEVICE void put_running(int at, C sum) const {
    if (spilled) return store(reinterpret_cast<C*>(spilled) + running_at(at), sum);
    shared_running[running_at(at)] = sum;
  }

  FASTACT_DEVICE void clear() {
#pragma unroll 1
    for (int k = 0, to = int(threadIdx.x); k < own; ++k, to += int(blockDim.x)) {
      put_total(to, 0.0);
      if (!kInRegisters) put_running(to, C(0));
    }
  }
  FASTACT_DEVICE void add(int i, const Wide<T>& p, const Wide<T>& xhat, bool casts) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        of_weight[i].lane[j] = weight_sum(of_weight[i].lane[j], p.lane[j], xhat.lane[j]);
        of_bias[i].lane[j] += p.lane[j];
      }
    } else {
      add_running(spilled, own, i, p, xhat, casts);
    }
  }
  static FASTACT_DEVICE_CALL void add_running(double* spilled, int own, int i, Wide<T> p,
                                              Wide<T> xhat, bool casts) {
    const ColumnSums sums(spilled, 0, own / (2 * kSize));
    if (sizeof(T) == 2 && casts)  // such a norm has no bias
      p = cast_if<T>(true, product_of<T>(p, cast_if<T>(true, xhat))), xhat = repeat<T>(1);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const int weight = at(i, 0, j, int(threadIdx.x)), bias = at(i, 1, j, int(threadIdx.x));
      sums.put_running(weight, weight_sum(sums.running(weight), p.lane[j], xhat.lane[j]));
      sums.put_running(bias, sums.running(bias) + p.lane[j]);
    }
  }
  // Moves the sums of the last rows to the totals.
  FASTACT_DEVICE void flush() {
    if constexpr (kInRegisters) {
      int first = int(threadIdx.x);
      if (Rows::kHasFixedGate)
        forget(first);  // else addresses stay in registers from flush to flush
#pragma unroll
      for (int k = 0; k < vecs * kSums * kSize; ++k) {
        if (!kIsFull && k >= own) break;
        const int i = k / kSize / kSums;
        Wide<T>& sums = k / kSize % kSums == 0 ? of_weight[i] : of_bias[i];
        const int to = k * int(blockDim.x) + first;
        put_total(to, total(to) + double(sums.lane[k % kSize]));
        sums.lane[k % kSize] = 0;
      }
    } else if constexpr (kHasRunning) {
#pragma unroll 1
      for (int k = 0, to = int(threadIdx.x); k < own; ++k, to += int(blockDim.x)) {
        put_total(to, total(to) + double(running(to)));
        put_running(to, C(0));
      }
    }
  }
};

// Writes a thread's sums of its columns as a part's: of whole vectors whose elements have a
// parameter each, where no other thread of the block has sums of these columns. part: of the first
// row.
template <class T, class Rows, class Columns>
FASTACT_DEVICE void write_own_columns(const Rows& rows, const NormSums<Compute<T>>& sums,
                                      const Columns& columns, const RowPart& part) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize, kNumbers = Vec<C>::kSize;
  const int64_t slot = quotient(part.row, rows.groups), group = part.row - slot * rows.groups;
#pragma unroll 1
  for (int i = 0; i < part.count; ++i) {
#pragma unroll
    for (int which = 0; which < Columns::kSums; ++which) {
      C* const to = sums.partial(rows, slot, which, group) + part.vec(i) * kSize;
#pragma unroll
      for (int first = 0; first < kSize; first += kNumbers) {
        Vec<C> some;
#pragma unroll
        for (int j = 0; j < kNumbers; ++j)
          some.lane[j] = C(columns.total(columns.at(i, which, first + j, int(threadIdx.x))));
        store_vec(to + first, some);
      }
    }
  }
}

// Writes the sums of a part of the batch, from the sums of the block's columns. The block has a
// tile of a row, or the rows of its teams. Where teams have different groups, each writes its own
// sums; else they are added up.
template <class T, class Rows, class Columns>
FASTACT_DEVICE void write_part(const Rows& rows, const NormSums<Compute<T>>& sums,
                               const Columns& columns, bool has_tile) {
  constexpr int kSize = Vec<T>::kSize, kSums = Columns::kSums;
  if constexpr (Columns::kIsFull)
    if (rows.run == 1 && (has_tile || rows.teams == 1)) {
      const int lanes = int(blockDim.x);
      const int64_t task = quotient(blockIdx.x, sums.tiles), vecs = vecs_of<T>(rows);
      const int64_t begin = (blockIdx.x - task * sums.tiles) * lanes;
      const int64_t end = has_tile ? smaller(begin + lanes, vecs) : vecs;
      return write_own_columns<T>(rows, sums, columns,
                                  part_between(task, begin, end, int(threadIdx.x), lanes));
    }
  const bool is_one = has_tile || rows.groups == 1;
  const int row_lanes = has_tile ? int(blockDim.x) : rows.lanes;
  const int apart = is_one ? 1 : rows.teams, together = is_one && !has_tile ? rows.teams : 1;
  const int64_t first_task =
      has_tile ? quotient(blockIdx.x, sums.tiles) : blockIdx.x * int64_t(apart);
  const int64_t tile = has_tile ? blockIdx.x - first_task * sums.tiles : 0;
  const int64_t begin = tile * row_lanes * kSize;
  const int64_t end = has_tile ? smaller(begin + row_lanes * kSize, rows.length) : rows.length;
  // A parameter of one element belongs to one tile; all tiles have sums of a parameter of a run.
  const bool is_apart = has_tile && rows.run > 1;
  const int64_t param0 = rows.run > 1 ? 0 : begin;
  const int64_t count = apart * kSums * ((rows.run > 1 ? rows.params : end) - param0);
  const int lanes = sums.run_lanes, lane = int(threadIdx.x) % lanes;
  __syncthreads();
#pragma unroll 1
  for (int64_t n0 = 0; n0 < count; n0 += int(blockDim.x) / lanes) {
    const int64_t n = n0 + int(threadIdx.x) / lanes, nth = quotient(n, kSums * apart);
    const int at = int(n - nth * kSums * apart), which = at % kSums, team = at / kSums;
    const int64_t param = param0 + nth, from = param * rows.run;
    const int64_t first = from < begin ? begin : from;
    const int64_t last = n < count ? smaller(end, from + rows.run) : 0;
    double sum = 0;
#pragma unroll 1
    for (int64_t k = first + lane; k < last; k += lanes) {
      const int element = int(k - begin), q = element / kSize, i = q / row_lanes;
      const int thread = q - i * row_lanes + team * row_lanes;
      for (int t = 0; t < together; ++t)
        sum += columns.total(columns.at(i, which, element % kSize, thread + t * row_lanes));
    }
    sum = warp_sum(sum, lanes);
    const int64_t task = first_task + team,
                  part = is_one && !has_tile ? task : quotient(task, rows.groups);
    const int64_t group = is_one && !has_tile ? 0 : task - part * rows.groups;
    const int64_t slot = is_apart ? part * sums.tiles + tile : part;
    if (n < count && lane == 0 && slot < sums.parts)
      store(sums.partial(rows, slot, which, group) + param, Compute<T>(sum));
  }
}

// Threads of a block, at most, and of a multiprocessor: as many as leave each thread enough
// registers.
template <class T>
constexpr int resident_threads(int vecs) {
  return vecs > 1 || sizeof(T) == 8 ? 512 : sizeof(T) == 2 ? 768 : 1024;
}
template <class T, int vecs, MeansBy by>
constexpr int kBackwardThreads =
    by == kWarpLanes || (vecs == 1 && sizeof(T) == 2) ? 256 : kRowThreads;
template <class T, int vecs, MeansBy by, class Rows>
constexpr int kBackwardBlocks = !Rows::kQuick || (Rows::kByElement && by != kWarpLanes)
                                    ? 1
                                    : resident_threads<T>(vecs) / kBackwardThreads<T, vecs, by>;

template <class T, int vecs, MeansBy by, class Rows>
FASTACT_KERNEL_OF((kBackwardThreads<T, vecs, by>), (kBackwardBlocks<T, vecs, by, Rows>))
void norm_backward_rows(FASTACT_GRID_CONSTANT const Rows rows,
                        FASTACT_GRID_CONSTANT const NormSums<Compute<T>> sums) {
  using C = Compute<T>;
  using Row = BackwardRow<T, vecs>;
  constexpr bool kQuick = Rows::kQuick;
  const bool has_tile = by == kGiven || (by == kAnyWay && sums.tiles > 1);
  const int64_t task = has_tile ? quotient(blockIdx.x, sums.tiles)
                       : by == kBlockLanes
                           ? blockIdx.x
                           : int64_t(blockIdx.x) * rows.teams + int(threadIdx.x) / rows.lanes;
  const int lanes = has_tile ? int(blockDim.x) : rows.lanes;
  const int64_t begin = has_tile ? (blockIdx.x - task * sums.tiles) * lanes : 0;
  const int64_t end = has_tile ? smaller(begin + lanes, vecs_of<T>(rows)) : vecs_of<T>(rows);
  RowReader<T, Rows> reader(rows, sums, has_tile,
                            part_between(task, begin, end, int(threadIdx.x) % lanes, lanes));
  const RowPart& part = reader.part;
  ColumnSums<T, vecs, Rows> columns(sums.spilled, blockIdx.x, sums.vecs);
  if (sums.is_wanted) columns.clear();
  Wide<T> own_weight[vecs] = {};
  if constexpr (kQuick) take_weights<T>(rows, part, own_weight);
  const bool adds = rows.data[kDTotal] || rows.accumulate, casts = !kQuick && rows.casts;
  const bool has_gate = !kQuick && rows.has_gate();
  int fold_index = 0, added = 0, rounds = sums.rounds;

  // The gradients of a row; the next row is read first, if it is quick.
  const auto take = [&](Row& row, Row& next) {
    if (kQuick) reader.fetch(next);
    reader.bring_dtotal_near(row);
    if (!has_tile) {
      OwnSums<T> of_row{};
      for_vectors<T>(rows, part, row, own_weight,
                     [&](int, const Wide<T>& weight, const Wide<T>& p, const Wide<T>& xhat) {
                       of_row.add(p, xhat, weight, casts);
                     });
      C means[2];
      of_row.fold(means);
      fold_two<kTeamOf<by>>(means, rows.per_length, lanes, fold_index);
      set_subtracted(rows.norm, means[0], means[1], double(rows.length), row.stats.rstd, rows.eps,
                     kRstdRounding<C>);
      row.stats.mean_g = means[0], row.stats.mean_g_xhat = means[1];
      forget_row(row.x), forget_row(row.dy);
    }
    for_vectors<T>(rows, part, row, own_weight,
                   [&](int i, const Wide<T>& weight, const Wide<T>& p, const Wide<T>& xhat) {
                     if (sums.is_wanted) columns.add(i, p, xhat, casts);
                     if (!rows.data[kDx] && !has_gate) return;
                     Wide<T> dx = gradient_of<T>(row.stats, p, xhat, weight, casts);
                     if (has_gate) {
                       write_dgate<T>(rows, part, i, bit_cast<Vec<T>>(row.x[i]),
                                      bit_cast<Vec<T>>(row.dy[i]), weight, xhat, dx);
                       if (!rows.data[kDx]) return;
                     }
                     if (adds) {
                       if (rows.data[kDTotal]) accumulate_onto(reader.read_dtotal(i), dx);
                       if (rows.accumulate) accumulate_onto(reader.read_dx(i), dx);
                     }
                     reader.write_dx(i, narrow_vec<T>(dx));
                   });
    reader.step_dx();
    if (sums.is_wanted && (++added == kSumRows<T> || rounds == 1)) columns.flush(), added = 0;
    if (!kQuick) reader.fetch(row);
    return --rounds > 0;
  };
  Row one, other;
  reader.fetch(one);
  // Two rows take turns, so that none is moved from register to register.
  while (take(one, other) && (!kQuick || take(other, one))) {
  }
  if (sums.is_wanted) write_part<T>(rows, sums, columns, has_tile);
}

// A long row, in chunks. Where the plan has no reason for another shape, these are threads of a
// chunk, and vectors of a thread.
constexpr int kLongThreads = 256, kLongVecs = 2;

// The sums of g and g xhat of each chunk. A thread has any number of its vectors.
template <class T, class Rows>
FASTACT_KERNEL_OF(Rows::kHasFixedGate ? kLongThreads : kRowThreads, Rows::kHasFixedGate ? 4 : 1)
void norm_long_sums(FASTACT_GRID_CONSTANT const Rows rows, double* of_chunks) {
  using C = Compute<T>;
  int fold_index = 0;
  const RowPart part = row_part<T, 0, true>(rows);
  // One with calls, whose code is large, and of three arrays.
  constexpr int kAtOnce = Rows::kQuick && !Rows::kHasFixedGate ? kLongVecs : 1;
  OwnSums<T> of_row{};
#pragma unroll 1
  for (int first = 0; first < part.count; first += kAtOnce) {
    RowPart some = part;
    some.first = part.vec(first), some.count = part.count - first;
    BackwardRow<T, kAtOnce, Rows::kHasFixedGate> row;
    row.count = some.count;
    row.stats = statistics_of<C>(rows, part.row);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      row.x[i] = row.dy[i] = {};
      if (i >= row.count) continue;
      const auto read_role = [&](int role) {
        if constexpr (Rows::kByElement)
          return bit_cast<Words>(
              load_some(row_of<T>(rows, role, part.row) + some.vec(i) * Vec<T>::kSize,
                        valid_of<T>(rows, some, i)));
        else
          return bit_cast<Words>(read_vec<T>(rows, role, some, i));
      };
      row.x[i] = read_role(kIn), row.dy[i] = read_role(kDy);
      if constexpr (Rows::kHasFixedGate) row.gate[i] = read_role(kGateRole);
    }
    Wide<T> weight[kAtOnce] = {};
    if constexpr (Rows::kQuick) take_weights<T>(rows, some, weight);
    for_vectors<T>(rows, some, row, weight,
                   [&](int, const Wide<T>& w, const Wide<T>& p, const Wide<T>& xhat) {
                     of_row.add(p, xhat, w, !Rows::kQuick && rows.casts);
                   });
  }
  C sums[2];
  of_row.fold(sums);
  const double own = fold_halves(sums, rows.lanes, fold_index);
  if (part.lane < kWarp && part.lane % kMostWarps == 0)
    store(of_chunks + 2 * int64_t(blockIdx.x) + part.lane / kMostWarps, own);
}

// Their means over the row, or what dx subtracts in their place (core/finish.cuh). Rows: NormRows,
// or the rows of strided arrays, whose statistics are strided too.
template <class C, class Rows>
struct FinishLongRows {
  static constexpr int kSums = 2;
  Rows rows;
  const double* of_chunks;
  C* means;
  int64_t outputs, count;

  FASTACT_DEVICE void add(int64_t row, int64_t chunk, double (&sum)[2]) const {
    const double* from = of_chunks + 2 * (row * count + chunk);
    sum[0] += load(from), sum[1] += load(from + 1);
  }
  FASTACT_DEVICE void put(int64_t row, const double (&sum)[2]) const {
    C of_row[2] = {C(sum[0] * rows.per_length), C(sum[1] * rows.per_length)};
    const C rstd = load(number_of<C>(rows, kRstdRole, row));
    set_subtracted(rows.norm, of_row[0], of_row[1], double(rows.length), rstd, rows.eps,
                   kRstdRounding<C>);
    store(means + 2 * row, of_row[0]), store(means + 2 * row + 1, of_row[1]);
  }
};

// Adds up the sums of the parts to the gradients of the parameters.
template <class C>
struct NormGradients {
  const C* partials;      // IN, parts x [dweight, dbias] x params
  int64_t parts, params;  // of all groups
  char* to[2];            // OUT, or IN/OUT with accumulate
  int dtype[2];
  bool accumulate;
  Axes axes[2];  // of the parameters; y: of `to`
};

// `together` threads add up the parts of a parameter. The parameters of a block lie side by side;
// blockIdx.y: dweight or dbias.
template <class T, int together>
FASTACT_KERNEL(kRowThreads)
void norm_parameters(FASTACT_GRID_CONSTANT const NormGradients<Compute<T>> gradients) {
  FASTACT_SHARED(double, of_parts, kRowThreads);
  const int which = int(blockIdx.y);
  if (!gradients.to[which]) return;
  constexpr int kBeside = kRowThreads / together;
  const int lane = int(threadIdx.x) % kBeside, first_part = int(threadIdx.x) / kBeside;
  for (int64_t first = int64_t(blockIdx.x) * kBeside; first < gradients.params;
       first += int64_t(gridDim.x) * kBeside) {
    const int64_t param = first + lane;
    double sum = 0;
    if (param < gradients.params) {
      const Compute<T>* from = gradients.partials + which * gradients.params + param;
#pragma unroll 8
      for (int64_t part = first_part; part < gradients.parts; part += together)
        sum += double(load(from + part * 2 * gradients.params));
    }
    if (together > 1) {
      of_parts[int(threadIdx.x)] = sum;
      __syncthreads();
    }
    if (first_part == 0 && param < gradients.params) {
      for (int k = 1; k < together; ++k) sum += double(of_parts[k * kBeside + lane]);
      put_parameter<T>(gradients.to[which] + locate(gradients.axes[which], param).y,
                       gradients.dtype[which], sum, gradients.accumulate);
    }
    if (together > 1) __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
