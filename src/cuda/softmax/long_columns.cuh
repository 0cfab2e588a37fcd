// Long columns: a block has a strip of neighbouring columns as a whole, 64 or 128 bytes of each
// element (long_shape).
//
// The elements go by in rounds of a few vectors a thread, which come by asynchronous copies: 16
// vectors of a thread are on their way to shared memory, and no register waits for them. What fits
// stays there for the second pass; the others are read again, the last ones first, which the
// second-level cache has. One thread for each column makes the numbers of its row.
//
// Forward a thread has a running peak of each column (running_peak.cuh).
#pragma once

#include "cuda/softmax/backward.cuh"
#include "cuda/softmax/forward.cuh"
#include "cuda/softmax/running_peak.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Rounds of `vecs` vectors that are on their way to shared memory while one is computed.
template <int vecs>
constexpr int kLongAhead = 16 / vecs;

// The vectors of a thread in an array: the k-th is at `from` + k step bytes.
struct LongLane {
  char* from;
  int64_t step;
  bool fast;
};

// The vectors of a thread, by rounds of `vecs`, of one or two arrays. All go through shared memory,
// where the first rounds stay for the second pass, and so do the last ones: the slots behind the
// first are a ring. A thread takes nothing but what it brought, so no barrier is needed.
template <class T, int vecs, int arrays>
struct Rounds {
  static constexpr int kAhead = kLongAhead<vecs * arrays>;
  const SoftmaxColumns& rows;
  RowPart part{};
  LongLane lane[arrays], out;
  int count, kept, ahead;
  decltype(dynamic_shared<Vec<T>>()) slots;

  // held: how many slots there are.
  FASTACT_DEVICE Rounds(const SoftmaxColumns& given, int held)
      : rows(given),
        count(int(quotient(given.length - 1, vecs * given.lanes)) + 1),
        ahead(int(smaller(held, kAhead))),
        slots(dynamic_shared<Vec<T>>()) {
    kept = held - ahead;
    part = part_of(int(threadIdx.x) % rows.teams);
    part.lane = part.first = int(threadIdx.x) / rows.teams, part.lanes = rows.lanes;
    for (int a = 0; a < arrays; ++a) lane[a] = lane_of(role(a));
    out = lane_of(kY);
  }
  // x: which of the block's vectors.
  FASTACT_DEVICE RowPart part_of(int x) const {
    return columns_at<T>(rows, int64_t(blockIdx.x) * rows.teams + x);
  }
  FASTACT_DEVICE static constexpr int role(int a) { return a + 1 < arrays ? kDy : kX; }
  FASTACT_DEVICE LongLane lane_of(int of) const {
    return {reinterpret_cast<char*>(vec_at<T>(rows, of, part, 0)), part.lanes * rows.step[of],
            rows.fast[of] && part.columns == Vec<T>::kSize};
  }
  FASTACT_DEVICE static T* vec_of(const LongLane& of, int round, int i) {
    return reinterpret_cast<T*>(of.from + int64_t(round) * (vecs * of.step) + i * of.step);
  }
  // How many of a round's vectors there are.
  FASTACT_DEVICE int vecs_of_round(int round) const {
    const int64_t begin = int64_t(round) * (vecs * part.lanes);
    if (part.idle) return 0;
    if (begin + vecs * part.lanes <= rows.length) return vecs;
    return count_of<vecs>(rows.length - begin, part.lane, part.lanes);
  }
  FASTACT_DEVICE int slot(int round, int a) const {
    const int slot = round < kept ? round : kept + ((round - kept) & (ahead - 1));
    return (slot * arrays + a) * (vecs * kLongThreads) + int(threadIdx.x);
  }
  // Sends for a round, if there is one.
  FASTACT_DEVICE void bring(int round) const {
    if (round >= 0 && round < count) {
      const int here = vecs_of_round(round);
#pragma unroll
      for (int a = 0; a < arrays; ++a) {
        const int to = slot(round, a);
        if (lane[a].fast && here == vecs) {
#pragma unroll
          for (int i = 0; i < vecs; ++i)
            copy_later(slots, to + i * kLongThreads, vec_of(lane[a], round, i));
        } else {
#pragma unroll 1
          for (int i = 0; i < here; ++i)
            slots[to + i * kLongThreads] = read_column_slow_path<T>(
                rows, role(a), vec_of(lane[a], round, i), part.at, part.columns);
        }
      }
    }
    end_copies();
  }
  // Waits for a round.
  FASTACT_DEVICE void await(int round) {
    if (ahead == kAhead)
      await_copies<kAhead - 1>();
    else
      await_copies<0>();
    part.count = vecs_of_round(round);
  }
  // Vectors that are not there are zeros.
  FASTACT_DEVICE void take(int round, int a, Words (&x)[vecs]) const {
    const int from = slot(round, a);
    if (part.count == vecs) {
#pragma unroll
      for (int i = 0; i < vecs; ++i) x[i] = bit_cast<Words>(Vec<T>(slots[from + i * kLongThreads]));
    } else {
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        x[i] = i < part.count ? bit_cast<Words>(Vec<T>(slots[from + i * kLongThreads])) : Words{};
    }
    if (sizeof(T) == 2) forget_row(x);  // that they are numbers of 16 bits
  }
  FASTACT_DEVICE void put(int round, int i, const Wide<T>& value) const {
    Wide<T> y = value;
    T* p = vec_of(out, round, i);
    if (!out.fast || rows.accumulate) return put_slowly(p, y);
    store_vec(p, narrow_vec<T>(y));
  }
  FASTACT_DEVICE void put_slowly(T* p, Wide<T>& y) const {
    if (rows.accumulate)
      accumulate_onto(read_column_slow_path<T>(rows, kY, p, part.at, part.columns), y);
    const Vec<T> vec = narrow_vec<T>(y);
    part.columns == Vec<T>::kSize&& out.fast ? store_vec(p, vec) : store_some(p, vec, part.columns);
  }
  // Runs visit(round) for all rounds, and then again, from the last one on.
  template <class Visit>
  FASTACT_DEVICE void first_pass(Visit visit) {
    for (int round = 0; round < ahead; ++round) bring(round);
#pragma unroll 1
    for (int round = 0; round < count; ++round) {
      await(round);
      visit(round);
      bring(round + ahead);
    }
  }
  template <class Visit>
  FASTACT_DEVICE void second_pass(Visit visit) {
#pragma unroll 1
    for (int round = count; round-- > 0;) {
      await(round);
      visit(round);
      bring(round - ahead < kept ? -1 : round - ahead);
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

// The sums of the block's c-th column, given to thread c; all threads get the largest z.
template <class T, bool sorts>
FASTACT_DEVICE RowSums long_peak(RunningPeak<T, sorts, Vec<T>::kSize>& peak, int strip,
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
    const C m = reference_top(max[s]);
    peak.refer_to(s, m);
    if (sorts) {
      count[s] = peak.top[s] == m;
      if (!count[s]) peak.sum[s] += peak.top_beside(s, m);
    }
  }
  RowSums sums{};
  if (sorts) sums.count = double(fold_long<1>(count, strip, [](int a, int b) { return a + b; }));
  sums.rest = long_sums<0>(peak.sum, strip);
  sums.max = double(of_column);
  return sums;
}

template <class T, int fixed>
FASTACT_KERNEL_OF(kLongThreads, 2)
void forward_long_columns(FASTACT_GRID_CONSTANT const SoftmaxColumns rows,
                          const KindOf<T, fixed> op, const int held) {
  using C = Compute<T>;
  constexpr int n = Vec<T>::kSize, vecs = kMostVecs<T>;
  const int thread = int(threadIdx.x), columns = n * rows.teams;
  Rounds<T, vecs, 1> rounds(rows, held);
  C max[n];
  RowSums sums;
  {
    RunningPeak<T, fixed != kSoftmax, n> peak(rows);
    rounds.first_pass([&](int round) {
      Words x[vecs];
      rounds.take(round, 0, x);
      peak.add(rounds.part.count, x);
    });
    sums = long_peak(peak, rows.teams, max);
  }
  FASTACT_SHARED(C, numbers, n * kLongStrip);  // of y
  double total[2] = {};
  if (thread < columns) {
    const bool ends = !op.writes(rows) || rows.data[kLse];
    const TermsAt<T> at = terms_beside<T>(reference_top(C(sums.max)), C(rows.up));
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
    max[s] = reference_top(max[s]);
    const Move<C> move = Move<C>::of(max[s], up);
    at[s] = TermsAt<T>::of(m[s] = move(max[s]));
    moves |= move.by != 0;
  }
  const auto put = [&](int round, auto is_plain) {
    constexpr bool plain = decltype(is_plain)::value;
    Words x[vecs];
    rounds.take(round, 0, x);
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      if (!plain && i >= rounds.part.count) break;
      Wide<T> y = widen_words<T>(x[i]);
#pragma unroll
      for (int s = 0; s < n; ++s) {
        C& z = y.lane[s];
        if (!plain) z = Move<C>::of(max[s], up)(z * scale);
        z = with_softmax_map(fixed, [&](auto as) {
          return as.kTakesTerms ? as.y_of(at[s](z), number[s], C(0)) : as.y_of(z, m[s], number[s]);
        });
      }
      rounds.put(round, i, y);
    }
  };
  const bool is_plain = scale == 1 && !moves;
  rounds.second_pass([&](int round) {
    if (is_plain && rounds.part.count == vecs)
      put(round, std::true_type());
    else
      put(round, std::false_type());
  });
}

template <class T, int fixed>
FASTACT_KERNEL_OF(kLongThreads, 2)
void backward_long_columns(FASTACT_GRID_CONSTANT const SoftmaxColumns rows, const int held) {
  constexpr int n = Vec<T>::kSize, vecs = 4;
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
  FASTACT_SHARED(double, numbers, n* kLongStrip);
  const double of_column = long_sums<0>(sum, rows.teams);
  if (thread < n * rows.teams) numbers[thread] = of_column;
  __syncthreads();
#pragma unroll
  for (int s = 0; s < n; ++s) sum[s] = numbers[thread % rows.teams * n + s];
  GradientSum<Compute<T>> rounded[n];
  is_plain &= round_sums(kind, sum, rounded);
  rounds.second_pass([&](int round) {
    Words dy[vecs], y[vecs];
    rounds.take(round, 0, dy), rounds.take(round, 1, y);
    make_gradients<T, SoftmaxColumns>(kind, Compute<T>(rows.scale), rounds.part.count, dy, y,
                                      rounded, is_plain,
                                      [&](int i, const Wide<T>& dx) { rounds.put(round, i, dx); });
  });
}

// Queues a kernel of long columns. is_twice: each round is taken twice.
template <class T, int vecs, int arrays, class Kernel, class... Options>
void launch_long(Kernel kernel, const SoftmaxPlan& plan, const LongShape& of, bool is_twice,
                 cudaStream_t stream, const Options&... options) {
  constexpr int kSlot = vecs * arrays * kLongThreads * kVecBytes;
  SoftmaxColumns rows = plan.as<SoftmaxColumns>();
  const int lanes = kLongThreads / of.strip;
  rows.lay({vecs, lanes, kLongThreads}, {rows.length, 1});
  Shape shape{plan.long_blocks(of), kLongThreads};
  // A block takes 1 KiB more than it asks for.
  const SharedMemory memory = shared_of(kernel);
  const int share = (memory.most + memory.own + 1024) / of.share - 1024 - memory.own;
  const int64_t rounds = ceil_div(rows.length, lanes * vecs);
  const int slots = std::max(1, share / kSlot), ahead = kLongAhead<vecs * arrays>;
  int held = int(std::min<int64_t>(rounds, is_twice ? slots : std::min(slots, ahead)));
  if (held < ahead) held = power_of_two_from(held + 1, ahead) / 2;
  shape.shared = held * kSlot;
  launch_with_shared(kernel, shape, stream, rows, options..., held);
}

}  // namespace
FASTACT_END_NAMESPACE
