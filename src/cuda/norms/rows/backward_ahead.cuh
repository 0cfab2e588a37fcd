// Backward of norms over whole quick rows, where the next rows wait in shared memory.
//
// The kernels do what norm_backward_rows does, in the same order, hence with the same bits. There
// the next row is in registers beside this one. Here asynchronous copies bring `ahead` rows to
// shared memory, each thread its own vectors, so that nobody needs a barrier for them. That leaves
// registers for more threads or for more vectors of each.
//
// A row that is too long for a block has the blocks of a cluster, a tile for each. They send one
// another the sums of their tiles, and every block adds these up as norm_long_means does.
#pragma once

#include "cuda/core/cluster.cuh"
#include "cuda/norms/rows/backward.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Threads of all blocks of a multiprocessor: they bound the registers of each.
template <class T, int vecs>
constexpr int kAheadThreads = sizeof(T) == 4 ? (vecs <= 2 ? 1024 : 512)
                              : vecs == 1    ? 1024
                                             : 640;
// Blocks are few and large where a row has a cluster.
template <class T, int vecs, bool in_clusters>
constexpr int kAheadBound = in_clusters ? kRowThreads : kAheadThreads<T, vecs>;
constexpr int kMostAhead = 4;

FASTACT_DEVICE void await_row(int ahead) {
  if (ahead == 1) return await_copies<0>();
  if (ahead == 2) return await_copies<1>();
  if (ahead == 3) return await_copies<2>();
  await_copies<kMostAhead - 1>();
}

// fold_two over the blocks of a cluster, one after another as norm_long_means adds up chunks.
// fold_index counts the rounds of messages as well.
constexpr int kNumbersOfCluster = kWarp;
template <class C>
FASTACT_DEVICE void fold_over_cluster(C (&value)[2], double factor, int lanes, int blocks,
                                      int& fold_index, const Mailboxes<kNumbersOfCluster>& mail) {
  const int round = fold_index;
  const double own = fold_halves(value, lanes, fold_index);
  const int thread = int(threadIdx.x), lane = thread % kWarp, block = lane % kMostWarps;
  if (thread < kWarp && block < blocks)
    mail.send(round, lane - block + block_of_cluster(), own, block);
  if (thread == 0) mail.expect(round, 2 * blocks);
  mail.wait(round);
  const double of_block = block < blocks ? mail.get(round, lane) : 0.0;
  const double sum = warp_fold(of_block, [](double a, double b) { return a + b; }, kMostWarps);
  share_halves(C(sum * factor), value);
}

// The steps of rows that 32 bits can count, which spares registers: of data in vectors, of
// statistics in bytes.
struct AheadSteps {
  unsigned pitch[kStatEnd];
  unsigned count, row_step;  // rows
  int ahead;
};

// whole: each thread has all of its vectors. dx and the sums of columns are wanted.
template <class T, int vecs, bool in_clusters, bool whole>
FASTACT_KERNEL_OF((kAheadBound<T, vecs, in_clusters> == 1024 && vecs == 2 && !whole
                       ? 896
                       : kAheadBound<T, vecs, in_clusters>),
                  1)
void norm_backward_ahead(FASTACT_GRID_CONSTANT const NormQuick rows,
                         FASTACT_GRID_CONSTANT const NormSums<Compute<T>> sums,
                         FASTACT_GRID_CONSTANT const AheadSteps steps) {
  using C = Compute<T>;
  constexpr int kSize = Vec<T>::kSize;
  const int thread = int(threadIdx.x), lanes = int(blockDim.x);
  unsigned row = unsigned(in_clusters ? cluster_index() : blockIdx.x);
  const int first = (in_clusters ? block_of_cluster() : 0) * lanes * vecs + thread;
  const int end = in_clusters ? int(smaller(first - thread + lanes * vecs, vecs_of<T>(rows)))
                              : int(vecs_of<T>(rows));
  const int count = whole ? vecs : count_of<vecs>(end - first + thread, thread, lanes);
  const auto at = [&](int role, unsigned of_row, int i) {
    return reinterpret_cast<T*>(rows.data[role]) +
           size_t(of_row * steps.pitch[role] + unsigned(first + i * lanes)) * kSize;
  };
  const auto ring = dynamic_shared<Vec<T>>();
  const int row_vecs = 2 * vecs * lanes;
  ColumnSums<T, vecs, NormQuick> columns(nullptr, 0, vecs);
  columns.totals = columns.totals + steps.ahead * row_vecs * (kVecBytes / int(sizeof(double)));
  const auto copy_row = [&](unsigned of_row, int to) {
    if (of_row < steps.count) {
#pragma unroll
      for (int i = 0; i < vecs; ++i) {
        if (i >= count) continue;
        copy_later(ring, to + 2 * i * lanes + thread, at(kIn, of_row, i));
        copy_later(ring, to + (2 * i + 1) * lanes + thread, at(kDy, of_row, i));
      }
    }
    end_copies();
  };
  // Vectors that a thread lacks are computed as well, of zeros: a branch for each would cost more.
#pragma unroll 1
  for (int k = 0; k < steps.ahead; ++k) {
    for (int i = count; i < vecs; ++i)
      for (int which = 0; which < 2; ++which)
        ring[k * row_vecs + (2 * i + which) * lanes + thread] = Vec<T>{};
    copy_row(row + k * steps.row_step, k * row_vecs);
  }
  // The next row's mean is read by even lanes, its rstd by odd ones. For what all lanes read alike
  // nvcc 13.0 waits at once, to keep it in a uniform register.
  const bool has_mean = rows.data[kMeanRole];
  C next = 0;
  const auto read_stats = [&](unsigned of_row) {
    if (of_row >= steps.count) return;
    const auto number = [&](int role) {
      return load(reinterpret_cast<const C*>(rows.data[role] + size_t(of_row) * steps.pitch[role]));
    };
    if (thread % 2 == 0) {
      if (has_mean) next = number(kMeanRole);
    } else {
      next = number(kRstdRole);
    }
  };
  read_stats(row);
  columns.clear();
  RowPart part{};
  part.row = row, part.first = first, part.count = count, part.lane = thread, part.lanes = lanes;
  Wide<T> own_weight[vecs] = {};
  take_weights<T>(rows, part, own_weight);
  const bool adds = rows.data[kDTotal] || rows.accumulate;
  int fold_index = 0, take = 0;  // fold_index: rows, too
  const Mailboxes<kNumbersOfCluster> mail{};
  if constexpr (in_clusters) mail.open(), mail.all_are_open();

#pragma unroll 1
  for (; row < steps.count; row += steps.row_step) {
    RowGradient<C> stats{};
    if (has_mean) stats.mean = __shfl_sync(kAllLanes, next, 0);
    stats.rstd = __shfl_sync(kAllLanes, next, 1);
    await_row(steps.ahead);
    Words x[vecs], dy[vecs];
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      x[i] = bit_cast<Words>(Vec<T>(ring[take + 2 * i * lanes + thread]));
      dy[i] = bit_cast<Words>(Vec<T>(ring[take + (2 * i + 1) * lanes + thread]));
    }
    const auto begin_next = [&] {
      copy_row(row + steps.ahead * steps.row_step, take);
      take = take + row_vecs < steps.ahead * row_vecs ? take + row_vecs : 0;
      read_stats(row + steps.row_step);
    };
    constexpr bool kEarly = sizeof(T) == 2;  // where registers suffice for that
    if (kEarly) begin_next();
    if (rows.data[kDTotal]) {
#pragma unroll
      for (int i = 0; i < vecs; ++i)
        if (i < count) bring_near(at(kDTotal, row, i));
    }

    // dy waits for the second pass as it was read, and xhat, which took more instructions.
    OwnSums<T> of_row{};
    Wide<T> xhat[vecs];
#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      xhat[i] = xhat_of<T>(widen_words<T>(x[i]), stats);
      if (i >= count) xhat[i] = {};  // its mean may be large
      of_row.add(widen_words<T>(dy[i]), xhat[i], own_weight[i]);
    }
    if (!kEarly) begin_next();
    C means[2];
    of_row.fold(means);
    if constexpr (in_clusters)
      fold_over_cluster(means, rows.per_length, lanes, int(sums.tiles), fold_index, mail);
    else
      fold_two<kOneBlock>(means, rows.per_length, lanes, fold_index);
    set_subtracted(rows.norm, means[0], means[1], double(rows.length), stats.rstd, rows.eps,
                   kRstdRounding<C>);
    stats.mean_g = means[0], stats.mean_g_xhat = means[1];
    forget_row(dy);

#pragma unroll
    for (int i = 0; i < vecs; ++i) {
      const Wide<T> p = widen_words<T>(dy[i]);
      columns.add(i, p, xhat[i], false);
      Wide<T> dx = gradient_of<T>(stats, p, xhat[i], own_weight[i]);
      T* const to = at(kDx, row, i);
      if (i >= count) continue;
      if (adds) {
        if (rows.data[kDTotal]) accumulate_onto(load_vec(at(kDTotal, row, i)), dx);
        if (rows.accumulate) accumulate_onto(load_vec(to), dx);
      }
      store_vec(to, narrow_vec<T>(dx));
    }
    if (fold_index % kSumRows<T> == 0 || row + steps.row_step >= steps.count) columns.flush();
  }
  part.row = in_clusters ? cluster_index() : blockIdx.x;
  write_own_columns<T>(rows, sums, columns, part);
}

}  // namespace
FASTACT_END_NAMESPACE
