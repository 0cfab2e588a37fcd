// The norms forward, unit by unit (norms.h).
#include <atomic>
#include <cstring>

#include "../common/moments.h"
#include "../common/norms.h"
#include "norm_columns.h"
#include "norm_values.h"

namespace fastact {
namespace {

constexpr int64_t kStreamed = 32 << 20;   // bytes of y, of which a cache keeps little
constexpr int64_t kTogether = 8;          // units, at most, whose divisions overlap,
constexpr int64_t kTogetherBytes = 4096;  // of which no more than this is read before it is used

struct Forward : NormChunks {
  const Streams& s;
  const int source;  // what is normalised: x, or the sum of x and the residual
  const bool is_streamed;
  const int64_t together;
  Reader reader;
  alignas(64) char x[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char gathered[kReduceBlock * sizeof(double)];

  explicit Forward(const Norm& a)
      : NormChunks(a, chunk_of(a)),
        s(a.streams),
        source(a.streams.data[Norm::kSum] ? Norm::kSum : Norm::kX),
        is_streamed(streams(a.streams)),
        together(std::clamp<int64_t>(kTogetherBytes / (a.streams.columns.size * a.streams.wide), 1,
                                     kTogether)),
        reader(a.streams) {}

  // y goes past the caches: it is no operand's memory, and too big to stay there.
  static bool streams(const Streams& s) {
    bool is_another = s.is_direct[Norm::kY];
    for (int k = 0; k < Norm::kY; ++k) is_another &= s.data[k] != s.data[Norm::kY];
    return is_another && s.size() * s.item >= kStreamed;
  }

  // As long as what needs no buffer.
  static int64_t chunk_of(const Norm& a) {
    const Streams& s = a.streams;
    const bool is_plain = a.is_identity && s.is_direct[Norm::kY] && !streams(s) &&
                          s.is_direct[s.data[Norm::kSum] ? Norm::kSum : Norm::kX];
    const auto is_whole = [](const NormParameter& p) { return !p.data || p.is_direct; };
    const bool is_shared = a.kind == Norm::kOne || a.kind == Norm::kRuns;
    return is_plain && (is_shared || (is_whole(a.weight) && is_whole(a.bias))) ? s.columns.size
                                                                               : kPiece;
  }

  // Up to `together` units. Between a short unit's sums and its elements there are two divisions
  // and a root, each of which waits for the one before it.
  void units(int64_t first, int64_t n) {
    UnitStats stats[kTogether];
    double squares[kTogether];
    for (int64_t i = 0; i < n; ++i) {
      if (source == Norm::kSum) add(first + i);
      stats[i].mean = 0.0;
      norm.is_centred ? moments(first + i, &stats[i].mean, &squares[i])
                      : sum_of_squares(first + i, &squares[i]);
    }
    const double count = double(s.columns.size);
    for (int64_t i = 0; i < n; ++i) stats[i].rstd = rstd_of(squares[i], count, norm.eps);
    for (int64_t i = 0; i < n; ++i) {
      save(first + i, stats[i]);
      for_unit(first + i, [&](const NormChunk& c) { normalise(first + i, c, stats[i]); });
    }
  }

  // The sum is stored before anything else, and what is normalised is what was stored.
  void add(int64_t index) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(kPiece, s.columns.size - column);
      reader.go(index, column, n);
      const char* a = reader.load(Norm::kX, x);
      const char* b = reader.load(Norm::kResidual, z);
      char* sum = reader.direct(Norm::kSum);
      s.blocks->plus[s.wide == sizeof(double)](a, b, sum ? sum : z, n);
      if (!sum) reader.store(Norm::kSum, z, false);
    }
  }

  void save(int64_t index, const UnitStats& stats) {
    if (!norm.rstd) return;
    for_runs(norm.unit_stats, index, 1, [&](int64_t mean, int64_t rstd, int64_t) {
      if (s.wide == sizeof(double)) {
        if (norm.mean) memcpy(norm.mean + mean, &stats.mean, sizeof(double));
        memcpy(norm.rstd + rstd, &stats.rstd, sizeof(double));
      } else {
        const float rounded[] = {float(stats.mean), float(stats.rstd)};
        if (norm.mean) memcpy(norm.mean + mean, rounded, sizeof(float));
        memcpy(norm.rstd + rstd, rounded + 1, sizeof(float));
      }
    });
  }

  // A block of the unit, and the dtype in which it lies there.
  const char* block(int64_t index, int64_t first, int64_t n, int* dtype) {
    reader.go(index, first, n);
    if (const char* at = reader.stored(source)) {
      *dtype = s.dtype;
      return at;
    }
    *dtype = s.wide_dtype;
    for (int64_t done = 0, m; done < n; done += m) {
      m = std::min(kPiece, n - done);
      reader.go(index, first + done, m);
      char* to = gathered + done * s.wide;
      const char* from = reader.load(source, to);
      if (from != to) memcpy(to, from, m * s.wide);
    }
    return gathered;
  }

  // With the bits of `moments` over these axes, whether they lie in one piece or not.
  void moments(int64_t index, double* mean, double* squares) {
    const int64_t size = s.columns.size;
    reader.go(index, 0, size);
    if (const char* at = reader.stored(source)) {
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
      norm.table->reduce->terms[kSquare][dtype].sum_blocks(at, &start, 1, n, &sum);
      if (term > 0)
        norm.table->reduce->merge(&sum, nullptr, &hi, &lo, 1);
      else
        hi = sum;
    }
    *squares = lo == 0.0 ? hi : hi + lo;
  }

  void normalise(int64_t index, const NormChunk& c, const UnitStats& stats) {
    reader.go(index, c.column, c.n);
    const char* from = reader.load(source, x);
    const int second = source == Norm::kSum ? Norm::kResidual : -1;
    char* y = reader.direct(Norm::kY);
    char* to = y && !is_streamed ? y : z;
    norm.blocks->normalise[c.weight_row][c.bias_row](
        from, c.n, stats, c.weight, c.bias, to, next(index + together, c.column, Norm::kX, second));
    char* const operands[] = {to, to};
    if (!norm.is_identity) norm.activation(operands, c.n, norm.parameters);
    if (!y)
      reader.store(Norm::kY, z, false);
    else if (is_streamed)
      norm.blocks->stream(z, y, c.n * s.wide);
  }
};

}  // namespace

void norm_forward_share(const Norm* norm, int64_t index, int64_t shares) {
  if (norm->kind == Norm::kColumns) return column_forward_share(norm, index, shares);
  Forward forward(*norm);
  const int64_t units = norm->units(), end = units * (index + 1) / shares;
  for (int64_t i = units * index / shares, n; i < end; i += n) {
    n = std::min(forward.together, end - i);
    forward.units(i, n);
  }
  // Before others read what has been streamed.
  if (forward.is_streamed) std::atomic_thread_fence(std::memory_order_seq_cst);
}

}  // namespace fastact
