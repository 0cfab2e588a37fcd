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

// Rounds that are on their way to shared memory while one is computed, as bytes allow.
template <class T>
constexpr int kLongAhead = 16 / kMostVecs<T>;

// The vectors of a thread, by rounds of `vecs` of each array. All go through shared memory, where
// the first ones stay for the second pass, and so do the last ones: the slots behind the first are
// a ring. A thread takes nothing but what it brought, so no barrier is needed.
template <class T, int vecs, int arrays>
struct Rounds {
  const SoftmaxColumns& rows;
  RowPart part{};
  int count, kept, ahead;
  decltype(dynamic_shared<Words>()) slots;

  // x: which of the block's vectors. held: slots; ahead: of the ring, a power of two.
  FASTACT_DEVICE Rounds(const SoftmaxColumns& given, int held)
      : rows(given),
        count(int(quotient(given.length - 1, vecs * given.lanes)) + 1),
        ahead(smaller(held, kLongAhead<T>)),
        slots(dynamic_shared<Words>()) {
    kept = held - ahead;
    part = part_of(int(threadIdx.x) % rows.teams);
    part.lane = int(threadIdx.x) / rows.teams, part.lanes = rows.lanes;
  }
  FASTACT_DEVICE RowPart part_of(int x) const {
    constexpr int kSize = Vec<T>::kSize;
    RowPart of{};
    const int64_t wide = quotient(rows.inner + kSize - 1, kSize);
    const int64_t v = int64_t(blockIdx.x) * rows.teams + x, outer = quotient(v, wide);
    of.idle = outer * rows.inner >= rows.count;
    if (of.idle) return of;
    of.outer = outer, of.at = (v - outer * wide) * kSize;
    of.row = outer * rows.inner + of.at;
    of.columns = int(smaller(kSize, rows.inner - of.at));
    return of;
  }
  FASTACT_DEVICE static constexpr int role(int a) { return a + 1 < arrays ? kDy : kX; }

  // Makes `part` the one of a round.
  FASTACT_DEVICE void enter(int round) {
    const int64_t begin = int64_t(round) * (vecs * part.lanes);
    const int64_t all = smaller(rows.length - begin, vecs * part.lanes);
    part.first = begin + part.lane;
    part.count = part.idle ? 0 : count_of<vecs>(all, part.lane, part.lanes);
  }
  FASTACT_DEVICE int at(int round, int a) const {
    const int slot = round < kept ? round : kept + ((round - kept) & (ahead - 1));
    return (slot * arrays + a) * vecs * int(blockDim.x) + int(threadIdx.x);
  }
  // Sends for a round, if there is one.
  FASTACT_DEVICE void bring(int round) {
    if (round >= 0 && round < count) {
      enter(round);
#pragma unroll
      for (int a = 0; a < arrays; ++a) {
        const int to = at(round, a);
        const bool is_fast = rows.fast[role(a)] && part.columns == Vec<T>::kSize;
#pragma unroll
        for (int i = 0; i < vecs; ++i) {
          if (i >= part.count) continue;
          const T* p = vec_at<T>(rows, role(a), part, i);
          if (is_fast)
            copy_async(slots, to + i * int(blockDim.x), p);
          else
            slots[to + i * int(blockDim.x)] = bit_cast<Words>(
                read_column_slow_path<T>(rows, role(a), p, part.at, part.columns));
        }
      }
    }
    end_copies();
  }
  // Waits for a round and enters it.
  FASTACT_DEVICE void await(int round) {
    if (ahead == kLongAhead<T>)
      await_copies<kLongAhead<T> - 1>();
    else
      await_copies<0>();
    enter(round);
  }
  FASTACT_DEVICE void take(int round, int a, Words (&x)[vecs]) const {
    const int from = at(round, a);
#pragma unroll
    for (int i = 0; i < vecs; ++i)
      x[i] = i < part.count ? Words(slots[from + i * int(blockDim.x)]) : Words{};
    if (sizeof(T) == 2) forget_row(x);  // that they are numbers of 16 bits
  }
  // Runs visit(round) for all rounds, and then again, from the last one on.
  template <class Visit>
  FASTACT_DEVICE void first_pass(Visit visit) {
    for (int round = 0; round < ahead; ++round) bring(round);
    for (int round = 0; round < count; ++round) {
      await(round);
      visit(round);
      bring(round + ahead);
    }
  }
  template <class Visit>
  FASTACT_DEVICE void second_pass(Visit visit) {
    for (int round = count; round-- > 0;) {
      await(round);
      visit(round);
      const int next = round - ahead;
      bring(next < kept ? -1 : next);
    }
  }
};

// Folds a number of each of a thread's columns over the block: thread c gets the result of the
// block's c-th column. The caller puts a barrier between two uses of a buffer.
template <int buffer, class N, int n, class Merge>
FASTACT_DEVICE N fold_long(N (&value)[n], int strip, Merge merge) {
  constexpr int kMost = n * kLongStrip * (kLongThreads / kWarp);
  const int columns = n * strip;
  const auto of_warps = fold_buffer<2 * kMost, double>() + buffer * kMost;
  const int thread = int(threadIdx.x), lane = thread % kWarp, warp = thread / kWarp;
#pragma unroll
  for (int k = 0; k < n; ++k)
#pragma unroll
    for (int step = strip; step < kWarp; step *= 2)
      value[k] = merge(value[k], __shfl_xor_sync(kAllLanes, value[k], step));
  if (lane < strip) {
#pragma unroll
    for (int k = 0; k < n; ++k) of_warps[warp * columns + lane * n + k] = double(value[k]);
  }
  __syncthreads();
  if (thread >= columns) return N(0);
  N all = N(double(of_warps[thread]));
#pragma unroll 4
  for (int other = 1; other < int(blockDim.x) / kWarp; ++other)
    all = merge(all, N(double(of_warps[other * columns + thread])));
  return all;
}
template <int buffer, class N, int n>
FASTACT_DEVICE N long_sums(N (&value)[n], int strip) {
  return fold_long<buffer>(value, strip, [](N a, N b) { return a + b; });
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
      Wide<T> z = widen_words<T>(x[i]);
      if (scale != 1) {
#pragma unroll
        for (int s = 0; s < n; ++s) z.lane[s] *= scale;
      }
#pragma unroll
      for (int s = 0; s < n; ++s) most[s] = larger(most[s], z.lane[s]);
    }
    refer(most);
    forget_row(x);
    TreeSum<T, vecs, n> tree;
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      Wide<T> term{};
      if (i < part.count) {
        term = widen_words<T>(x[i]);
        if (scale != 1) {
#pragma unroll
          for (int s = 0; s < n; ++s) term.lane[s] *= scale;
        }
        if (sorts) {
#pragma unroll
          for (int s = 0; s < n; ++s) {
            const C value = term.lane[s];
            term.lane[s] = smaller_of(top[s], value), top[s] = larger(top[s], value);
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
FASTACT_DEVICE RowSums long_peak(RunningPeak<T, sorts>& peak, int strip,
                                 Compute<T> (&max)[Vec<T>::kSize]) {
  using C = Compute<T>;
  constexpr int n = Vec<T>::kSize;
  const int thread = int(threadIdx.x);
  FASTACT_SHARED(C, maxima, n * kLongStrip);
  C own[n];
  int count[n];
#pragma unroll
  for (int s = 0; s < n; ++s) own[s] = peak.top[s];
  const C of_column = fold_long<0>(own, strip, [](C a, C b) { return larger(a, b); });
  if (thread < n * strip) maxima[thread] = of_column;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < n; ++s) {
    max[s] = maxima[thread % strip * n + s];
    const C m = max[s] == -infinity<C>() ? C(0) : max[s];
    peak.sum[s] *= lowered<T>(peak.from[s], m, peak.up);
    if (sorts) {
      count[s] = peak.top[s] == m;
      const Move<C> move = Move<C>::of(m, peak.up);
      if (!count[s]) peak.sum[s] += double(TermsAt<T>::of(move(m))(move(peak.top[s])));
    }
  }
  RowSums sums{};
  if (sorts) sums.count = double(fold_long<1>(count, strip, [](int a, int b) { return a + b; }));
  sums.rest = long_sums<0>(peak.sum, strip);
  sums.max = double(of_column);
  return sums;
}

// Blocks of kLongThreads on a multiprocessor: one, so that a thread has 128 registers.
template <class T, int fixed>
FASTACT_KERNEL_OF(kLongThreads, 1)
void forward_long_columns(FASTACT_GRID_CONSTANT const SoftmaxColumns rows,
                          const KindOf<T, fixed> op, const int held) {
  using C = Compute<T>;
  constexpr int n = Vec<T>::kSize, vecs = kMostVecs<T>;
  const int thread = int(threadIdx.x), columns = n * rows.teams;
  Rounds<T, vecs, 1> rounds(rows, held);
  C max[n];
  RowSums sums;
  {
    RunningPeak<T, fixed != kSoftmax> peak(rows);
    rounds.first_pass([&](int round) {
      Words x[vecs];
      rounds.take(round, 0, x);
      peak.add(rounds.part, x);
    });
    sums = long_peak(peak, rows.teams, max);
  }
  FASTACT_SHARED(C, numbers, n * kLongStrip);  // of y
  double total[2] = {};
  if (thread < columns) {
    const bool ends = !op.writes(rows) || rows.data[kLse];
    const C m = sums.max == -infinity<double>() ? C(0) : C(sums.max), up = C(rows.up);
    const TermsAt<T> at = TermsAt<T>::of(Move<C>::of(m, up)(m));
    const Level<C> level = level_of<T>(sums, at, false, rows.up, true);
    const RowPart of = rounds.part_of(thread / n);
    if (ends && thread % n < of.columns) op.end(rows, of.row + thread % n, sums, level, total);
    numbers[thread] = fixed == kSoftmax ? level.factor : level.log;
  }
  if (fixed == kNoY) {
    if (!op.totals) return;
    int fold_index = 0;
    add_up(op, total, fold_index);
    return;
  }
  __syncthreads();
  const C scale = C(rows.scale_down), up = C(rows.up);
  bool moves = up != 1;
  C number[n], m[n];
  TermsAt<T> at[n];
#pragma unroll
  for (int s = 0; s < n; ++s) {
    number[s] = numbers[thread % rows.teams * n + s];
    if (max[s] == -infinity<C>()) max[s] = 0;
    const Move<C> move = Move<C>::of(max[s], up);
    at[s] = TermsAt<T>::of(m[s] = move(max[s]));
    moves |= move.by != 0;
  }
  rounds.second_pass([&](int round) {
    Words x[vecs];
    rounds.take(round, 0, x);
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (i >= rounds.part.count) continue;
      Wide<T> y = widen_words<T>(x[i]);
      if (scale != 1) {
#pragma unroll
        for (int s = 0; s < n; ++s) y.lane[s] *= scale;
      }
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
      write_vec(rows, kY, rounds.part, i, narrow_vec<T>(y));
    }
  });
}

template <class T, int fixed>
FASTACT_KERNEL_OF(kLongThreads, 1)
void backward_long_columns(FASTACT_GRID_CONSTANT const SoftmaxColumns rows, const int held) {
  constexpr int n = Vec<T>::kSize, vecs = kMostVecs<T> / 2;
  const int thread = int(threadIdx.x);
  const GradientOf<T, fixed> kind(rows);
  Rounds<T, vecs, 2> rounds(rows, held);
  double sum[n] = {};
  bool is_plain = true;
  rounds.first_pass([&](int round) {
    Words dy[vecs], y[vecs];
    double of_round[n];
    rounds.take(round, 0, dy), rounds.take(round, 1, y);
    is_plain &= add_gradients<T>(kind, dy, y, of_round);
#pragma unroll
    for (int s = 0; s < n; ++s) sum[s] += of_round[s];
  });
  FASTACT_SHARED(double, numbers, n * kLongStrip);
  const double of_column = long_sums<0>(sum, rows.teams);
  if (thread < n * rows.teams) numbers[thread] = of_column;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < n; ++s) sum[s] = numbers[thread % rows.teams * n + s];
  rounds.second_pass([&](int round) {
    Words dy[vecs], y[vecs];
    rounds.take(round, 0, dy), rounds.take(round, 1, y);
    put_gradients<T>(kind, rows, rounds.part, dy, y, sum, is_plain);
  });
}

// Queues a kernel of long columns. passes: 1 where nothing is taken twice. arrays: that are read.
template <class T, class Kernel, class... Options>
void launch_long(Kernel kernel, const SoftmaxPlan& plan, int passes, int arrays,
                 cudaStream_t stream, const Options&... options) {
  SoftmaxColumns rows = plan.as<SoftmaxColumns>();
  const int strip = long_strip();
  const int lanes = long_lanes<T>(rows.length), threads = lanes * strip;
  rows.lay({kMostVecs<T>, lanes, threads}, {rows.length, 1});
  Shape shape{plan.long_blocks, threads};
  // As many blocks share a multiprocessor as have long_share(). Each takes 1 KiB more than it asks.
  const SharedMemory memory = shared_of(kernel);
  const int blocks = std::max(1, long_share() / threads);
  const int share = (memory.most + memory.own + 1024) / blocks - 1024 - memory.own;
  const int of_round = kMostVecs<T> * threads * kVecBytes, of_vecs = lanes * kMostVecs<T>;
  const int64_t rounds = ceil_div(rows.length * arrays, of_vecs);
  int held = int(std::min<int64_t>(rounds, std::max(share, 0) / of_round));
  if (passes == 1 || held < kLongAhead<T>) held = std::min(held, kLongAhead<T>);
  held = std::max(held, 1);
  while (held < kLongAhead<T> && (held & (held - 1))) --held;
  shape.shared = held * of_round;
  if (shape.shared > memory.unasked) allow_shared(reinterpret_cast<const void*>(kernel));
  launch(kernel, shape, stream, rows, options..., held);
}

}  // namespace
FASTACT_END_NAMESPACE
