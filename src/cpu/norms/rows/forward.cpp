// The norms forward, one normalization row after the other (norms/rows/plan.h).
#include <atomic>
#include <cstring>

#include "common/norms/norms.h"
#include "common/reductions/moments.h"
#include "cpu/core/scratch.h"
#include "cpu/norms/channels/channels_last.h"
#include "cpu/norms/rows/params.h"

namespace fastact {
namespace {

constexpr int64_t kNontemporalBytes = 32 << 20;  // bytes of y, of which a cache keeps little
constexpr int64_t kTogether = kRoots;            // rows, at most, whose divisions overlap,
constexpr int64_t kTogetherBytes = 4096;  // of which no more than this is read before it is used

struct NormForward : NormChunks {
  const StridedOperands& s;
  const int source;  // what is normalised: x, or the sum of x and the residual
  const bool is_nontemporal;
  const bool are_alike;  // rows of which one call takes many
  const bool by_spans;   // all of a row's spans in one call
  const int64_t together;
  ChunkReader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char gathered[kReduceBlock * sizeof(double)];

  explicit NormForward(const Norm& a)
      : NormChunks(a, chunk_of(a)),
        s(a.operands),
        source(a.operands.data[Norm::kSum] ? Norm::kSum : Norm::kX),
        is_nontemporal(bypasses_caches(a.operands)),
        are_alike(is_alike(a)),
        by_spans(a.kind == Norm::kPerSpan && is_plain(a) && has_short_spans()),
        together(std::clamp<int64_t>(
            kTogetherBytes / (a.operands.columns.size * a.operands.compute_item), 1, kTogether)),
        reader(a.operands) {}

  // y goes past the caches: it is no operand's memory, and too big to stay there.
  static bool bypasses_caches(const StridedOperands& s) {
    bool is_another = s.is_direct[Norm::kY];
    for (int k = 0; k < Norm::kY; ++k) is_another &= s.data[k] != s.data[Norm::kY];
    return is_another && s.size() * s.item >= kNontemporalBytes;
  }

  // From array to array, and there is nothing else to do in between.
  static bool is_plain(const Norm& a) {
    const StridedOperands& s = a.operands;
    return a.is_identity && s.is_direct[Norm::kY] && !bypasses_caches(s) &&
           s.is_direct[s.data[Norm::kSum] ? Norm::kSum : Norm::kX];
  }

  // As long as what needs no buffer.
  static int64_t chunk_of(const Norm& a) {
    const auto is_whole = [&](int k) { return !a.operands.data[k] || a.is_direct(k); };
    const bool is_shared = a.kind == Norm::kPerRow || a.kind == Norm::kPerSpan;
    return is_plain(a) && (is_shared || (is_whole(Norm::kWeight) && is_whole(Norm::kBias)))
               ? a.operands.columns.size
               : kPiece;
  }

  // Whether one call can take many rows: all have the same parameters.
  static bool is_alike(const Norm& a) {
    return is_plain(a) && (a.kind == Norm::kPerElement || !a.has_parameters()) &&
           a.is_shared(Norm::kWeight) && a.is_shared(Norm::kBias);
  }

  // Up to `together` rows. Between a short row's sums and its elements there are two divisions
  // and a root, each of which waits for the one before it.
  void rows(int64_t first, int64_t n) {
    double mean[kRoots] = {}, squares[kRoots];
    for (int64_t i = 0; source == Norm::kSum && i < n; ++i) add(first + i);
    statistics(first, n, mean, squares);
    norm.kernels->roots(squares, n, double(s.columns.size), norm.eps);
    NormRow some[kRoots];
    for (int64_t i = 0; i < n; ++i) {
      some[i].stats = {mean[i], squares[i]};
      save(first + i, some[i].stats);
    }
    if (by_spans) {
      for (int64_t i = 0; i < n; ++i) normalise_spans(first + i, &some[i]);
      return;
    }
    if (!are_alike) {
      for (int64_t i = 0; i < n; ++i)
        for_row(first + i, [&](const NormChunk& c) { normalise(first + i, c, &some[i]); });
      return;
    }
    for_row(first, [&](const NormChunk& c) {
      for (int64_t i = 0; i < n; ++i) {
        some[i].x = s.row(source, first + i) + c.column * s.compute_item;
        some[i].z = s.row(Norm::kY, first + i) + c.column * s.compute_item;
        some[i].next = after(first + i, c.column);
      }
      norm.kernels->normalise[c.weight_row][c.bias_row](some, n, c.n, c.weight, c.bias);
    });
  }

  void normalise_spans(int64_t index, NormRow* row) {
    row->x = s.row(source, index);
    row->z = s.row(Norm::kY, index);
    row->next = after(index, 0);
    const int64_t spans = spans_of_row();
    norm.kernels->normalise_spans(*row, spans, norm.span, weight.of_spans(index, norm.span, spans),
                                  bias.of_spans(index, norm.span, spans));
  }

  // What is read after a chunk, once this row and its neighbours are done.
  NextChunk after(int64_t index, int64_t column) const {
    return next(index + together, column, Norm::kX, source == Norm::kSum ? Norm::kResidual : -1);
  }

  // mean OUT (n; untouched if not centred), squares OUT (n). Units of one block in one call.
  void statistics(int64_t first, int64_t n, double* mean, double* squares) {
    const int64_t size = s.columns.size;
    if (!s.has_unit_stride[source] || size > kReduceBlock) {
      for (int64_t i = 0; i < n; ++i)
        norm.is_centred ? moments(first + i, &mean[i], &squares[i])
                        : sum_of_squares(first + i, &squares[i]);
      return;
    }
    int64_t at[kRoots];
    for (int64_t i = 0; i < n; ++i) at[i] = s.row(source, first + i) - s.data[source];
    if (norm.is_centred)
      norm.table->moments->dtypes[s.dtype].along(s.data[source], at, n, size, mean, squares);
    else
      norm.table->reduce->kernels[kSquare][s.dtype].sum_blocks(s.data[source], at, n, size,
                                                               squares);
  }

  // The sum is stored before anything else, and what is normalised is what was stored.
  void add(int64_t index) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(kPiece, s.columns.size - column);
      reader.go(index, column, n);
      const char* a = reader.load(Norm::kX, x);
      const char* b = reader.load(Norm::kResidual, z);
      char* sum = reader.direct(Norm::kSum);
      s.kernels->plus[s.compute_item == sizeof(double)](a, b, sum ? sum : z, n);
      if (!sum) reader.store(Norm::kSum, z, false);
    }
  }

  void save(int64_t index, const RowStats& stats) const {
    if (s.data[Norm::kMean]) reader.store_number(Norm::kMean, index, stats.mean);
    if (s.data[Norm::kRstd]) reader.store_number(Norm::kRstd, index, stats.rstd);
  }

  // A block of the row, and the dtype in which it lies there.
  const char* block(int64_t index, int64_t first, int64_t n, int* dtype) {
    reader.go(index, first, n);
    if (const char* at = reader.stored(source)) {
      *dtype = s.dtype;
      return at;
    }
    *dtype = s.compute_dtype;
    for (int64_t done = 0, m; done < n; done += m) {
      m = std::min(kPiece, n - done);
      reader.go(index, first + done, m);
      char* to = gathered + done * s.compute_item;
      const char* from = reader.load(source, to);
      if (from != to) memcpy(to, from, m * s.compute_item);
    }
    return gathered;
  }

  // With the bits of `moments` over these axes, whether they lie in one piece or not.
  void moments(int64_t index, double* mean, double* squares) {
    const int64_t size = s.columns.size;
    if (s.has_unit_stride[source]) {
      const char* at = s.row(source, index);
      norm.table->moments->dtypes[s.dtype].row(at, size, mean, squares);
      return;
    }
    const int64_t chunk_terms = blocks_a_chunk(size) * kReduceBlock, start = 0;
    const auto arrays = [](Moments& m) {
      return MomentArrays{&m.mean, &m.m2, &m.mean_low, &m.m2_low};
    };
    Moments all{};
    for (int64_t begin = 0; begin < size; begin += chunk_terms) {
      const int64_t end = std::min(begin + chunk_terms, size);
      Moments chunk{};
      for (int64_t term = begin, n; term < end; term += n) {
        n = std::min(kReduceBlock, end - term);
        Moments one{};
        int dtype;
        const char* at = block(index, term, n, &dtype);
        norm.table->moments->dtypes[dtype].along(at, &start, 1, n, &one.mean, &one.m2);
        if (term > begin)
          norm.table->moments->merge(arrays(one), n, arrays(chunk), term - begin, 1);
        else
          chunk = one;
      }
      if (begin > 0)
        norm.table->moments->merge(arrays(chunk), end - begin, arrays(all), begin, 1);
      else
        all = chunk;
    }
    *mean = all.mean + all.mean_low;
    *squares = all.m2 + all.m2_low;
  }

  void sum_of_squares(int64_t index, double* squares) {
    const int64_t size = s.columns.size, start = 0;
    double hi = 0.0, lo = 0.0;
    for (int64_t term = 0, n; term < size; term += n) {
      n = std::min(kReduceBlock, size - term);
      int dtype;
      const char* at = block(index, term, n, &dtype);
      double sum;
      norm.table->reduce->kernels[kSquare][dtype].sum_blocks(at, &start, 1, n, &sum);
      if (term > 0)
        norm.table->reduce->merge(&sum, nullptr, &hi, &lo, 1);
      else
        hi = sum;
    }
    *squares = lo == 0.0 ? hi : hi + lo;
  }

  void normalise(int64_t index, const NormChunk& c, NormRow* row) {
    const int64_t offset = c.column * s.compute_item;
    if (!s.is_direct[source] || !s.is_direct[Norm::kY]) reader.go(index, c.column, c.n);
    row->x = s.is_direct[source] ? s.row(source, index) + offset : reader.load(source, x);
    char* y = s.is_direct[Norm::kY] ? s.row(Norm::kY, index) + offset : nullptr;
    row->z = y && !is_nontemporal ? y : z;
    row->next = after(index, c.column);
    if (norm.casts)
      normalise_cast(row->x, row->stats, c, row->z);
    else
      norm.kernels->normalise[c.weight_row][c.bias_row](row, 1, c.n, c.weight, c.bias);
    char* const operands[] = {row->z, row->z};
    if (!norm.is_identity) norm.activation(operands, c.n, norm.parameters);
    if (!y)
      reader.store(Norm::kY, z, false);
    else if (is_nontemporal)
      norm.kernels->store_nontemporal(z, y, c.n * s.compute_item);
  }
};

}  // namespace

void norm_forward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  if (norm->kind == Norm::kChannelsLast)
    return channels_last_forward_partition(norm, index, partitions);
  with_frame<NormForward>(*norm, [&](NormForward& forward) {
    const int64_t rows = norm->rows(), end = rows * (index + 1) / partitions;
    for (int64_t i = rows * index / partitions, n; i < end; i += n) {
      n = std::min(forward.together, end - i);
      forward.rows(i, n);
    }
    // Before others read what has been streamed.
    if (forward.is_nontemporal) std::atomic_thread_fence(std::memory_order_seq_cst);
  });
}

}  // namespace fastact
