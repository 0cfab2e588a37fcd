// The norms forward, one normalization row after the other (norms/rows/plan.h).
#include <cstring>

#include "common/reductions/moments.h"
#include "cpu/bias/dropper.h"
#include "cpu/core/row_pass.h"
#include "cpu/norms/rows/params.h"

namespace fastact {
namespace {

constexpr int64_t kTogether = kRoots;      // rows, at most, whose divisions overlap,
constexpr int64_t kTogetherBytes = 4096;   // no more than this is read before it is used
constexpr int64_t kLongBytes = 512 << 10;  // or this, which a second-level cache holds
constexpr int64_t kGatedBytes = 64 << 10;  // of rows of x f(gate), up to which they are kept
static_assert(kTogetherBytes <= kPiece * sizeof(float), "what a buffer holds, and a reader takes");

struct NormForward : NormChunks, RowPass {
  // A row's statistic gives a mean, or 0, and m2, the sum of the squares of the distances from it:
  // with the bits of `moments`, and in rows of one chunk of `sum_squares`, over these axes.
  const Accumulator& accumulator;
  const int first_number;     // of {mean, m2}, that it gives
  const int64_t chunk_terms;  // of a row, that are merged before others are
  const int source;           // what is normalised: x, or the sum of x and the residual
  const bool is_stored;       // it and y lie in 16 bits where they are read and written
  const NormKernels& kernels;
  const int64_t item;    // bytes of what these read and write
  const bool are_alike;  // rows of which one call takes many
  const bool by_spans;   // all of a row's spans in one call
  Dropper dropper;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char gathered[kReduceBlock * sizeof(double)];
  alignas(64) char gate_value[kPiece * sizeof(double)];  // f(gate)
  alignas(64) char gated[kGatedBytes];                   // x f(gate), of rows from first_kept on
  int64_t first_kept = 0;

  explicit NormForward(const Norm& a)
      : NormChunks(a, chunk_of(a)),
        RowPass(a.operands),
        accumulator(
            a.table->reduce->accumulators[is_centred(a.norm) ? kMoments : kSquaresInDouble]),
        first_number(is_centred(a.norm) ? 0 : 1),
        chunk_terms(is_centred(a.norm) ? blocks_a_chunk(s.columns.size) * kReduceBlock
                                       : s.columns.size),
        source(source_of(a)),
        is_stored(are_stored(a, {source_of(a), Norm::kY})),
        kernels(is_stored ? a.table->norm->kernels[s.dtype] : *a.kernels),
        item(is_stored ? s.item : s.compute_item),
        are_alike(is_alike(a)),
        by_spans(a.kind == Norm::kPerSpan && is_plain(a) && a.has_short_spans()),
        dropper(a.operands, *a.table->bias, a.drop, Norm::kNumbers) {
    width = std::clamp<int64_t>(together_bytes() / norm.row_bytes(), 1, kTogether);
    reader.bypass_caches(Norm::kY);
  }

  static int source_of(const Norm& a) {
    return a.operands.data[Norm::kSum] ? Norm::kSum : Norm::kX;
  }

  // From array to array, and there is nothing else to do in between.
  static bool is_plain(const Norm& a) {
    const StridedOperands& s = a.operands;
    return are_stored(a, {source_of(a), Norm::kY}) ||
           (a.is_identity && !a.has_gate() && s.is_direct[Norm::kY] &&
            !bypasses_caches(s, Norm::kY) && s.is_direct[source_of(a)]);
  }

  // As long as what needs no buffer.
  static int64_t chunk_of(const Norm& a) {
    const auto is_whole = [&](int k) { return !a.operands.data[k] || a.is_direct(k); };
    return is_plain(a) &&
                   (a.has_shared_parameters() || (is_whole(Norm::kWeight) && is_whole(Norm::kBias)))
               ? a.operands.columns.size
               : kPiece;
  }

  // Whether one call can take many rows: all have the same parameters, and a buffer holds them.
  static bool is_alike(const Norm& a) {
    const int64_t row_bytes = a.operands.columns.size * a.operands.compute_item;
    return (is_plain(a) || (row_bytes <= kTogetherBytes && !a.casts)) &&
           (a.kind == Norm::kPerElement || !a.has_parameters()) && a.is_shared(Norm::kWeight) &&
           a.is_shared(Norm::kBias);
  }

  // The bytes of rows that one call takes. For long ones of 16 bits their parameters are converted
  // chunk by chunk: once for all of them.
  int64_t together_bytes() const {
    return is_stored && are_alike && most < s.columns.size ? kLongBytes : kTogetherBytes;
  }

  // Between a short row's sums and its elements there are two divisions
  // and a root, each of which waits for the one before it.
  void visit(int64_t first, int64_t n) {
    for (int64_t i = 0; source == Norm::kSum && i < n; ++i) add(first + i);
    if (keeps_rows()) keep_rows(first, n);
    NormRow some[kRoots];
    set_stats(first, n, some);
    if (by_spans) {
      for (int64_t i = 0; i < n; ++i) normalise_spans(first + i, &some[i]);
      return;
    }
    const int64_t at_once = are_alike ? n : 1;
    for (int64_t i = 0; i < n; i += at_once) normalise(first + i, at_once, some + i);
  }

  // Normalises `count` rows chunk by chunk. Several rows have the same parameters, and if they pass
  // through a buffer, a row is one chunk.
  void normalise(int64_t first, int64_t count, NormRow* some) {
    const bool is_read = is_stored || (s.is_direct[source] && !gates_x());  // where it lies
    const bool is_made = !is_stored && (!s.is_direct[Norm::kY] || reader.bypasses(Norm::kY));
    for_row(first, [&](const NormChunk& c) {
      const int64_t n = count * c.n, bytes = c.n * item;
      reader.go(first, c.column, n);
      const char* const loaded = is_read ? nullptr : load_source(first, c.column, n, x);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = c.column * item;
        some[i].x = loaded ? loaded + i * bytes : s.row(source, first + i) + at;
        some[i].z = is_made ? z + i * bytes : s.row(Norm::kY, first + i) + at;
        find_next(first + i, c.column, &some[i]);
      }
      if (gates_z()) load_gate(reader, n, gate_value);  // before anything is written
      if (norm.casts)
        normalise_cast(some->x, some->stats, c, some->z);
      else
        kernels.normalise[c.weight_row][c.bias_row](some, count, c.n, c.weight, c.bias);
      for (int64_t i = 0; i < count; ++i) {
        char* const operands[] = {some[i].z, some[i].z};
        if (!norm.is_identity) norm.activation(operands, c.n, norm.parameters, 0);
        if (gates_z())
          multiply(norm, gate_value + i * c.n * s.compute_item, some[i].z, c.n, some[i].z);
      }
      if (is_made) reader.store(Norm::kY, z, false);
    });
  }

  // Makes the rows' statistics of their moments.
  void set_stats(int64_t first, int64_t n, NormRow* some) {
    double numbers[2][kRoots] = {}, *const squares = numbers[1];
    unsigned far = 0;  // a bit for each row whose squares left the range of double
    const int64_t size = s.columns.size;
    statistics(first, n, numbers);
    for (int64_t i = 0; s.dtype == kF64 && i < n; ++i)
      far |= unsigned(leaves_range(squares[i], double(size), norm.eps)) << i;
    norm.kernels->roots[norm.norm](squares, n, double(size), norm.eps);
    for (int64_t i = 0; i < n; ++i) {
      RowStats& stats = some[i].stats;
      stats = {numbers[0][i], squares[i]};
      if (far >> i & 1)
        rescale_row(
            norm, size,
            [&](int64_t term, int64_t m, double* to) {
              memcpy(to, load_source(first + i, term, m, x), m * sizeof(double));
            },
            &stats);
      save(first + i, stats);
    }
  }

  bool gates_x() const { return norm.gate_first; }
  bool gates_z() const { return norm.has_gate() && !norm.gate_first; }
  // Whether x f(gate) is made once for both passes.
  bool keeps_rows() const { return gates_x() && norm.row_bytes() <= kGatedBytes; }

  // to OUT (kPiece) = x f(gate) of the n elements to which the reader went.
  void gate_x(int64_t n, char* to) {
    multiply(norm, load_gate(reader, n, gate_value), reader.load(Norm::kX, to), n, to);
  }

  void keep_rows(int64_t first, int64_t n) {
    first_kept = first;
    const int64_t all = n * s.columns.size;  // of several rows at most a piece
    for (int64_t at = 0, m; at < all; at += m) {
      m = std::min(kPiece, all - at);
      reader.go(first, at, m);
      gate_x(m, gated + at * s.compute_item);
    }
  }

  // Loads n elements of the normalised array, into `buffer` (kPiece) unless it holds them already.
  const char* load_source(int64_t index, int64_t column, int64_t n, char* buffer) {
    reader.go(index, column, n);
    if (keeps_rows())
      return gated + (index - first_kept) * norm.row_bytes() + column * s.compute_item;
    if (!gates_x()) return reader.load(source, buffer);
    gate_x(n, buffer);
    return buffer;
  }

  void normalise_spans(int64_t index, NormRow* row) {
    row->x = s.row(source, index);
    row->z = s.row(Norm::kY, index);
    find_next(index, 0, row);
    const int64_t spans = norm.spans_of_row();
    kernels.normalise_spans(*row, spans, norm.span, weight.of_spans(index, 0, norm.span, spans),
                            bias.of_spans(index, 0, norm.span, spans));
  }

  // Finds what comes after a chunk, once this row and its neighbours are done. On AMD's processors
  // its prefetches slow all but float64.
  void find_next(int64_t index, int64_t column, NormRow* row) const {
    const int beside = norm.has_gate()        ? int(Norm::kGate)
                       : source == Norm::kSum ? Norm::kResidual
                                              : -1;
    const bool gains = s.dtype == kF64 || prefetches_next_chunk();
    set_next(gains ? index + width : norm.rows(), column, Norm::kX, beside, &row->next);
  }

  // numbers OUT (n): the mean (untouched without one), and the squares. Rows of one block in one
  // call.
  void statistics(int64_t first, int64_t n, double (&numbers)[2][kRoots]) {
    const int64_t size = s.columns.size;
    if ((!s.has_unit_stride[source] && !keeps_rows()) || size > kReduceBlock) {
      for (int64_t i = 0; i < n; ++i) long_row(first + i, &numbers[0][i], &numbers[1][i]);
      return;
    }
    int64_t at[kRoots];
    const char* base = s.data[source];
    for (int64_t i = 0; i < n; ++i)
      at[i] = keeps_rows() ? i * norm.row_bytes() : s.row(source, first + i) - base;
    if (keeps_rows()) base = load_source(first, 0, n * size, nullptr);
    accumulator.kernels[gates_x() ? s.compute_dtype : s.dtype].blocks(
        base, at, n, size, 0, numbers[first_number], kRoots);
  }

  // The sum is stored before anything else, and what is normalised is what was stored.
  void add(int64_t index) {
    for_pieces(index, [&](int64_t, int64_t n) {
      const char* a = reader.load(Norm::kX, x);
      const char* b = reader.load(Norm::kResidual, z);
      char* const sum = reader.target(Norm::kSum, z, false);
      if (norm.drops)
        dropper.drop(reader, s.compute_dtype, a, b, sum, n);
      else
        s.kernels->plus[s.compute_item == sizeof(double)](a, b, sum, n);
      reader.finish(Norm::kSum, sum, z, false);
    });
  }

  void save(int64_t index, const RowStats& stats) const {
    if (s.data[Norm::kMean]) reader.store_number(Norm::kMean, index, stats.mean);
    if (s.data[Norm::kRstd]) reader.store_number(Norm::kRstd, index, stats.rstd);
  }

  // A block of the row, and the dtype in which it lies there.
  const char* block(int64_t index, int64_t first, int64_t n, int* dtype) {
    reader.go(index, first, n);
    if (const char* at = gates_x() ? nullptr : reader.stored(source)) {
      *dtype = s.dtype;
      return at;
    }
    *dtype = s.compute_dtype;
    if (keeps_rows()) return load_source(index, first, n, nullptr);
    for (int64_t done = 0, m; done < n; done += m) {
      m = std::min(kPiece, n - done);
      char* to = gathered + done * s.compute_item;
      const char* from = load_source(index, first + done, m, to);
      if (from != to) memcpy(to, from, m * s.compute_item);
    }
    return gathered;
  }

  // Block by block, whether they lie in one piece or not.
  void long_row(int64_t index, double* mean, double* squares) {
    const int64_t size = s.columns.size, start = 0;
    const auto results = [&](Moments* m) {
      return Results{&m->mean + first_number, &m->mean_low + first_number, 1};
    };
    const auto merge = [&](Moments* more, int64_t n, Moments* all, int64_t* before) {
      if (*before == 0)
        *all = *more;
      else
        accumulator.merge(results(more), n, results(all), *before, 1);
      *before += n;
    };
    Moments all{}, chunk{};
    int64_t of_all = 0, of_chunk = 0;
    for (int64_t term = 0, n; term < size; term += n) {
      n = std::min(kReduceBlock, size - term);
      Moments one{};
      int dtype;
      const char* at = block(index, term, n, &dtype);
      accumulator.kernels[dtype].blocks(at, &start, 1, n, 0, results(&one).values, 1);
      merge(&one, n, &chunk, &of_chunk);
      if (of_chunk < chunk_terms && term + n < size) continue;
      merge(&chunk, of_chunk, &all, &of_all);
      of_chunk = 0;
    }
    *mean = all.mean + all.mean_low;
    *squares = all.m2 + all.m2_low;
  }
};

}  // namespace

void norm_forward_partition(const Norm* norm, int64_t index, int64_t partitions) {
  if (norm->kind == Norm::kChannelsLast) return group_forward_partition(norm, index, partitions);
  run_rows<NormForward>(norm, index, partitions);
}

}  // namespace fastact
