// Long columns: a block has a few neighbouring columns as a whole, 64 bytes of each element.
//
// The elements go by in rounds of kMostVecs vectors a thread. What fits of the vectors waits in
// shared memory for the second pass, each read by the thread that wrote it; the others are read
// again, the last ones first, which the second-level cache has. One thread for each column makes
// the numbers of its row.
//
// Forward a thread's terms stand beside a reference of its own for each column, a largest z that it
// has met. A larger one takes its place only beyond kTermRoom powers of two, so that hardly a round
// has to look at more than its largest z. References differ by powers of two, by which sums are
// scaled exactly, or, where z moves, by an exponential.
#pragma once

#include "cuda/softmax/backward.cuh"
#include "cuda/softmax/forward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Where a thread is in its columns. x: which of the block's vectors.
template <class T>
FASTACT_DEVICE RowPart long_part(const SoftmaxColumns& rows, int x) {
  constexpr int kSize = Vec<T>::kSize;
  RowPart part{};
  const int64_t wide = quotient(rows.inner + kSize - 1, kSize);
  const int64_t v = int64_t(blockIdx.x) * kLongStrip + x, outer = quotient(v, wide);
  part.idle = outer * rows.inner >= rows.count;
  part.lane = int(threadIdx.x) / kLongStrip, part.lanes = rows.lanes;
  if (part.idle) return part;
  part.outer = outer, part.at = (v - outer * wide) * kSize;
  part.row = outer * rows.inner + part.at;
  part.columns = int(smaller(kSize, rows.inner - part.at));
  return part;
}

template <int vecs>
FASTACT_DEVICE int rounds_of(const SoftmaxColumns& rows) {
  return int(quotient(rows.length - 1, vecs * rows.lanes)) + 1;
}
template <int vecs>
FASTACT_DEVICE void enter_round(const SoftmaxColumns& rows, int round, RowPart* part) {
  const int64_t begin = int64_t(round) * (vecs * part->lanes);
  const int64_t all = smaller(rows.length - begin, vecs * part->lanes);
  part->first = begin + part->lane;
  part->count = part->idle ? 0 : count_of<vecs>(all, part->lane, part->lanes);
}

// The vectors of the first `held` rounds, in shared memory.
template <int vecs>
struct Stash {
  decltype(dynamic_shared<Words>()) words;
  int held;

  FASTACT_DEVICE explicit Stash(int rounds) : words(dynamic_shared<Words>()), held(rounds) {}
  FASTACT_DEVICE void put(int round, const Words (&x)[vecs]) const {
    if (round >= held) return;
#pragma unroll
    for (int i = 0; i < vecs; ++i) words[at(round, i)] = x[i];
  }
  FASTACT_DEVICE bool take(int round, Words (&x)[vecs]) const {
    if (round >= held) return false;
#pragma unroll
    for (int i = 0; i < vecs; ++i) x[i] = words[at(round, i)];
    return true;
  }
  FASTACT_DEVICE int at(int round, int i) const {
    return (round * vecs + i) * int(blockDim.x) + int(threadIdx.x);
  }
};

// Folds a number of each of a thread's columns over the block: thread c gets the result of the
// block's c-th column. The caller puts a barrier between two uses of a buffer.
template <int buffer, class N, int n, class Merge>
FASTACT_DEVICE N fold_long(N (&value)[n], Merge merge) {
  constexpr int kColumns = n * kLongStrip, kWarps = kLongThreads / kWarp;
  const auto of_warps = fold_buffer<2 * kColumns * kWarps, double>() + buffer * kColumns * kWarps;
  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
#pragma unroll
  for (int k = 0; k < n; ++k)
#pragma unroll
    for (int step = kLongStrip; step < kWarp; step *= 2)
      value[k] = merge(value[k], __shfl_xor_sync(kAllLanes, value[k], step));
  if (lane < kLongStrip) {
#pragma unroll
    for (int k = 0; k < n; ++k) of_warps[warp * kColumns + lane * n + k] = double(value[k]);
  }
  __syncthreads();
  if (thread >= kColumns) return N(0);
  N all = N(double(of_warps[thread]));
#pragma unroll 4
  for (int other = 1; other < int(blockDim.x) / kWarp; ++other)
    all = merge(all, N(double(of_warps[other * kColumns + thread])));
  return all;
}
template <int buffer, class N, int n>
FASTACT_DEVICE N long_sums(N (&value)[n]) {
  return fold_long<buffer>(value, [](N a, N b) { return a + b; });
}

// Powers of two by which a term may be above its reference. For 16 bits it is a part of the
// exponent, as kTermScale.
template <class T>
constexpr double kTermRoom = sizeof(T) == 2 ? 4 : 16;

// By what terms beside the reference of `from` are multiplied to be terms beside the reference of
// `to`, which is no less.
template <class T>
FASTACT_DEVICE_CALL double lowered(Compute<T> from, Compute<T> to, Compute<T> up) {
  using C = Compute<T>;
  if (from == -infinity<C>()) return 1;  // of terms that are all 0
  const Move<C> before = Move<C>::of(from, up), after = Move<C>::of(to, up);
  const double powers =
      double(reference_exponent(before(from))) - double(reference_exponent(after(to)));
  if (before.by == 0 && after.by == 0) return power_of_two(int64_t(powers));
  const double apart =
      madd(powers, 0.69314718055994530942, (double(before.by) - double(after.by)) * double(up));
  return exp_scaled<0>(no_less(apart, kExpZero<double>)).value();
}

// The peaks of a thread's columns so far. sorts: as PeakWays; the sums lack the tops.
template <class T, bool sorts>
struct RunningPeak {
  using C = Compute<T>;
  static constexpr int n = Vec<T>::kSize;
  const C scale, up, room;
  C top[n], from[n];  // from: of the reference
  TermsAt<T> at[n];
  double sum[n];
  bool moves;

  FASTACT_DEVICE explicit RunningPeak(const SoftmaxColumns& rows)
      : scale(C(rows.scale_down)),
        up(C(rows.up)),
        room(C(kTermRoom<T> * 0.69314718055994530942 / rows.up)),
        moves(up != 1) {
#pragma unroll
    for (int s = 0; s < n; ++s)
      top[s] = from[s] = -infinity<C>(), at[s] = TermsAt<T>::of(C(0)), sum[s] = 0;
  }
  FASTACT_DEVICE Move<C> move(int s) const {
    return Move<C>::of(from[s] == -infinity<C>() ? C(0) : from[s], up);
  }
  // Makes the reference of each column good for a z.
  FASTACT_DEVICE void refer(const C (&most)[n]) {
    bool is_good = true;
#pragma unroll
    for (int s = 0; s < n; ++s) is_good &= most[s] <= from[s] + room;
    if (is_good) return;
#pragma unroll
    for (int s = 0; s < n; ++s) {
      if (most[s] <= from[s] + room) continue;
      sum[s] *= lowered<T>(from[s], most[s], up);
      from[s] = most[s];
      at[s] = TermsAt<T>::of(move(s)(from[s]));
      moves |= move(s).by != 0;
    }
  }
  template <int vecs>
  FASTACT_DEVICE void add(const RowPart& part, Words (&x)[vecs]) {
    C most[n];
#pragma unroll
    for (int s = 0; s < n; ++s) most[s] = -infinity<C>();
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= part.count) continue;
      const Wide<T> z = widen_words<T>(x[i]);
#pragma unroll
      for (int s = 0; s < n; ++s) most[s] = larger(most[s], scale * z.lane[s]);
    }
    refer(most);
    forget_row(x);
    TreeSum<T, vecs, n> tree;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> term{};
      if (i < part.count) {
        term = widen_words<T>(x[i]);
#pragma unroll
        for (int s = 0; s < n; ++s) {
          C& z = term.lane[s];
          z *= scale;
          if (sorts) {
            const C value = z;
            z = smaller_of(top[s], value), top[s] = larger(top[s], value);
          }
        }
        if (moves) {
#pragma unroll
          for (int s = 0; s < n; ++s) term.lane[s] = move(s)(term.lane[s]);
        }
#pragma unroll
        for (int s = 0; s < n; ++s) term.lane[s] = at[s](term.lane[s]);
      }
      tree.add(i, term);
    }
#pragma unroll
    for (int s = 0; s < n; ++s) {
      sum[s] += tree.total(s);
      if (!sorts) top[s] = larger(top[s], most[s]);
    }
  }
};

// The sums of the block's c-th column, given to thread c; all threads get the largest z.
template <class T, bool sorts>
FASTACT_DEVICE RowSums long_peak(RunningPeak<T, sorts>& peak, Compute<T> (&max)[Vec<T>::kSize]) {
  using C = Compute<T>;
  constexpr int n = Vec<T>::kSize;
  const int thread = int(threadIdx.x);
  FASTACT_SHARED(C, maxima, n * kLongStrip);
  C own[n];
  int count[n];
#pragma unroll
  for (int s = 0; s < n; ++s) own[s] = peak.top[s];
  const C of_column = fold_long<0>(own, [](C a, C b) { return larger(a, b); });
  if (thread < n * kLongStrip) maxima[thread] = of_column;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < n; ++s) {
    max[s] = maxima[thread % kLongStrip * n + s];
    const C m = max[s] == -infinity<C>() ? C(0) : max[s];
    peak.sum[s] *= lowered<T>(peak.from[s], m, peak.up);
    if (sorts) {
      count[s] = peak.top[s] == m;
      const Move<C> move = Move<C>::of(m, peak.up);
      if (!count[s]) peak.sum[s] += double(TermsAt<T>::of(move(m))(move(peak.top[s])));
    }
  }
  RowSums sums{};
  if (sorts) sums.count = double(fold_long<1>(count, [](int a, int b) { return a + b; }));
  sums.rest = long_sums<0>(peak.sum);
  sums.max = double(of_column);
  return sums;
}

template <class T, int fixed>
FASTACT_KERNEL_OF(kLongThreads, 1)
void forward_long_columns(FASTACT_GRID_CONSTANT const SoftmaxColumns rows,
                          const KindOf<T, fixed> op, const int held) {
  using C = Compute<T>;
  constexpr int n = Vec<T>::kSize, kColumns = n * kLongStrip, vecs = kMostVecs<T>;
  const int thread = int(threadIdx.x), x = thread % kLongStrip;
  const Stash<vecs> stash(held);
  RowPart part = long_part<T>(rows, x);
  const int rounds = rounds_of<vecs>(rows);
  C max[n];
  RowSums sums;
  {
    RunningPeak<T, fixed != kSoftmax> peak(rows);
    for (int round = 0; round < rounds; ++round) {
      Words given[vecs];
      enter_round<vecs>(rows, round, &part);
      take_vecs<T>(rows, kX, part, T{}, given);
      stash.put(round, given);
      peak.add(part, given);
    }
    sums = long_peak(peak, max);
  }
  FASTACT_SHARED(C, numbers, kColumns);  // of y
  double total[2] = {};
  if (thread < kColumns) {
    const bool ends = !op.writes(rows) || rows.data[kLse];
    const C m = sums.max == -infinity<double>() ? C(0) : C(sums.max), up = C(rows.up);
    const TermsAt<T> at = TermsAt<T>::of(Move<C>::of(m, up)(m));
    const Level<C> level = level_of<T>(sums, at, false, rows.up, true);
    const RowPart of = long_part<T>(rows, thread / n);
    if (ends && thread % n < of.columns) op.end(rows, of.row + thread % n, sums, level, total);
    numbers[thread] = fixed == kSoftmax ? level.factor : level.log;
  }
  if (fixed == kNoY) {
    if (!op.totals || thread >= kWarp) return;
    for (int k = 0; k < 2; ++k) total[k] = warp_sum(total[k]);
    if (thread > 0) return;
    for (int k = 0; k < 2; ++k) store(op.totals + 2 * int64_t(blockIdx.x) + k, total[k]);
    return;
  }
  __syncthreads();
  const C scale = C(rows.scale_down), up = C(rows.up);
  bool moves = up != 1;
  C number[n], m[n];
  TermsAt<T> at[n];
#pragma unroll
  for (int s = 0; s < n; ++s) {
    number[s] = numbers[x * n + s];
    if (max[s] == -infinity<C>()) max[s] = 0;
    const Move<C> move = Move<C>::of(max[s], up);
    at[s] = TermsAt<T>::of(m[s] = move(max[s]));
    moves |= move.by != 0;
  }
  for (int round = rounds; round-- > 0;) {
    Words given[vecs];
    enter_round<vecs>(rows, round, &part);
    if (!stash.take(round, given)) take_vecs<T>(rows, kX, part, T{}, given);
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= part.count) continue;
      Wide<T> y = widen_words<T>(given[i]);
#pragma unroll
      for (int s = 0; s < n; ++s) y.lane[s] *= scale;
      if (moves) {
#pragma unroll
        for (int s = 0; s < n; ++s) y.lane[s] = Move<C>::of(max[s], up)(y.lane[s]);
      }
#pragma unroll
      for (int s = 0; s < n; ++s)
        y.lane[s] = with_softmax_map(fixed, [&](auto as) {
          return as.kTakesTerms ? as.y_of(at[s](y.lane[s]), number[s], C(0))
                                : as.y_of(y.lane[s], m[s], number[s]);
        });
      write_vec(rows, kY, part, i, narrow_vec<T>(y));
    }
  }
}

template <class T, int fixed>
FASTACT_KERNEL_OF(kLongThreads, 1)
void backward_long_columns(FASTACT_GRID_CONSTANT const SoftmaxColumns rows, const int held) {
  constexpr int n = Vec<T>::kSize, kColumns = n * kLongStrip, vecs = kMostVecs<T> / 2;
  const int thread = int(threadIdx.x), x = thread % kLongStrip;
  const Stash<2 * vecs> stash(held);
  const GradientOf<T, fixed> kind(rows);
  RowPart part = long_part<T>(rows, x);
  const int rounds = rounds_of<vecs>(rows);
  const auto take = [&](Words(&dy)[vecs], Words(&y)[vecs]) {
    take_vecs<T>(rows, kDy, part, T{}, dy);
    take_vecs<T>(rows, kX, part, T{}, y);
  };
  double sum[n] = {};
  bool is_plain = true;
  for (int round = 0; round < rounds; ++round) {
    Words dy[vecs], y[vecs];
    double of_round[n];
    enter_round<vecs>(rows, round, &part);
    take(dy, y);
    if (round < held) {
      Words both[2 * vecs];
#pragma unroll
      for (int i = 0; i < vecs; ++i) both[i] = dy[i], both[vecs + i] = y[i];
      stash.put(round, both);
    }
    is_plain &= add_gradients<T>(kind, dy, y, of_round);
#pragma unroll
    for (int s = 0; s < n; ++s) sum[s] += of_round[s];
  }
  FASTACT_SHARED(double, numbers, kColumns);
  const double of_column = long_sums<0>(sum);
  if (thread < kColumns) numbers[thread] = of_column;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < n; ++s) sum[s] = numbers[x * n + s];
  for (int round = rounds; round-- > 0;) {
    Words dy[vecs], y[vecs], both[2 * vecs];
    enter_round<vecs>(rows, round, &part);
    if (stash.take(round, both)) {
#pragma unroll
      for (int i = 0; i < vecs; ++i) dy[i] = both[i], y[i] = both[vecs + i];
    } else {
      take(dy, y);
    }
    put_gradients<T>(kind, rows, part, dy, y, sum, is_plain);
  }
}

// Queues a kernel of long columns. arrays: that are read twice, or 0.
template <class T, class Kernel, class... Options>
void launch_long(Kernel kernel, const SoftmaxPlan& plan, int arrays, cudaStream_t stream,
                 const Options&... options) {
  SoftmaxColumns rows = plan.as<SoftmaxColumns>();
  const int lanes = long_lanes<T>(rows.length), threads = lanes * kLongStrip;
  rows.lay({kMostVecs<T>, lanes, threads}, {rows.length, 1});
  Shape shape{plan.long_blocks, threads};
  // As many blocks share a multiprocessor as have kLongThreads. Each takes 1 KiB more than it asks.
  const SharedMemory memory = shared_of(kernel);
  const int share = (memory.most + memory.own + 1024) / (kLongThreads / threads) - 1024;
  const int of_round = kMostVecs<T> * threads * kVecBytes, of_vecs = lanes * kMostVecs<T>;
  int held = 0;
  if (arrays > 0) {
    const int64_t rounds = ceil_div(rows.length * arrays, of_vecs);
    held = int(std::min<int64_t>(rounds, std::max(0, share - memory.own) / of_round));
  }
  shape.shared = held * of_round;
  if (shape.shared > memory.unasked) allow_shared(reinterpret_cast<const void*>(kernel));
  launch(kernel, shape, stream, rows, options..., held);
}

}  // namespace
FASTACT_END_NAMESPACE
