// How the passes of norms/rows/backward.cpp get rows, and give dx back: the one place that asks how
// the arrays of a norm backward lie.
#pragma once

#include <cstring>

#include "cpu/bias/dropper.h"
#include "cpu/norms/rows/params.h"

namespace fastact {

constexpr int64_t kCachedBytes =
    8192 * sizeof(double);                  // bytes of p that pass 2 need not compute again
constexpr int64_t kJoinedBytes = 16 << 10;  // of an operand of rows that share a buffer
constexpr int64_t kBandPiece = kPiece / 2;  // elements of a chunk
constexpr int64_t kStoredPiece = kPiece;    // the same where no operand needs a buffer: of 16 bits
constexpr int64_t kBand = kLeastBlock;      // rows, at most, that pass 2 takes chunk by chunk
constexpr int64_t kShortStream = 512;       // elements of a row up to which the hardware does not
                                            // prefetch the lines of several dx written side by side

// How the kernels get p, x and dx of a row.
enum Access {
  kInPlace,  // they are arrays
  kJoined,   // whole rows pass through one buffer of each operand, the short ones together
  kFetched   // chunk by chunk, where something is converted, computed or added to
};

// Up to kBand rows, whose parameters' sums are added up in the compute type; or some of such rows.
struct Band {
  int64_t first, step;  // their indices
  int64_t count;
  BackwardRow rows[kBand];  // p, x and dx where they lie, or where a buffer holds whole rows
  int64_t index(int64_t i) const { return first + i * step; }
};

// Facts that follow from the arrays.
struct BackwardArrays {
  const Norm& of;
  const bool is_stored;  // all lies in 16 bits where it is read and written
  const bool is_plain;   // p and x are arrays
  const bool has_dx;     // dx is made: where x is gated, for dgate too
  const bool has_dgate;
  const bool is_direct;        // dx goes where it belongs
  const bool has_short_spans;  // all of a row's spans in one call
  const Access access;

  explicit BackwardArrays(const Norm& a)
      : of(a),
        is_stored(!a.accumulate && !a.drops && !a.operands.data[Norm::kDSum] &&
                  NormChunks::are_stored(a, {Norm::kDy, Norm::kIn, Norm::kDx})),
        is_plain(is_stored || (a.is_identity && !a.has_gate() && a.operands.is_direct[Norm::kDy] &&
                               a.operands.is_direct[Norm::kIn])),
        has_dx(a.operands.data[Norm::kDx] || a.drops ||
               (a.gate_first && a.operands.data[Norm::kDGate])),
        has_dgate(a.operands.data[Norm::kDGate]),
        // In place, dx may be where the gradient of the sum is yet to be read.
        is_direct(has_dx &&
                  (is_stored || (a.operands.is_direct[Norm::kDx] && !a.accumulate && !a.drops &&
                                 !a.gate_first && !a.operands.data[Norm::kDSum]))),
        has_short_spans(is_plain && (is_direct || !has_dx) && a.has_short_spans()),
        access(joins_rows()                                 ? kJoined
               : (is_plain && is_direct) || has_short_spans ? kInPlace
                                                            : kFetched) {}

  // Elements of a chunk, as many as need no buffer.
  int64_t chunk() const {
    if (access == kJoined) return kPiece;
    if (of.has_shared_parameters() && is_plain && (is_direct || !has_dx))
      return of.operands.columns.size;
    return is_stored && of.kind == Norm::kPerElement ? kStoredPiece : kBandPiece;
  }

 private:
  // Whether rows that have to be converted are so as a whole: each by itself, and once a pass,
  // their calls take most of the time.
  bool joins_rows() const {
    const StridedOperands& s = of.operands;
    return !is_stored && of.kind == Norm::kPerElement && of.groups == 1 && of.is_identity &&
           !of.has_gate() && !of.casts && s.item != s.compute_item &&
           s.columns.size * s.compute_item <= kJoinedBytes;
  }
};

// Rows of a band. Of no array's layout: the bits of the sums depend on it.
inline int64_t band_of(const Norm& a) {
  if (a.kind != Norm::kPerElement) return 1;
  const int64_t bytes = a.operands.columns.size * a.operands.compute_item;
  const bool is_narrow = a.operands.item != a.operands.compute_item;
  const bool is_made = !a.is_identity || a.has_gate() || (is_narrow && bytes <= kJoinedBytes);
  const int64_t most = is_made && bytes <= kCachedBytes ? kCachedBytes / bytes : kBand;
  const int64_t fits = (a.partial ? kNormBandBytes : kSmallNormBand) / (2 * bytes);
  return std::clamp(std::min(most, fits), int64_t(1), kBand);
}

// Buffers of whole rows (kJoined), and of chunks (kFetched).
struct JoinedBuffers {
  alignas(64) char p[kJoinedBytes], x[kJoinedBytes], dx[kJoinedBytes];
  alignas(64) char sums[2][kJoinedBytes];
  alignas(64) char dtotal[kPiece * sizeof(double)];
};
struct BackwardBuffers {
  alignas(64) char x[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char p[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char dx[kQuad][kBandPiece * sizeof(double)];
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];
  alignas(64) char cached_p[kCachedBytes];
  alignas(64) char dgate[kQuad][kBandPiece * sizeof(double)];
};

struct BackwardRows : BackwardArrays, NormChunks {
  const StridedOperands& s;
  const int64_t band;
  const bool has_sums;
  const NormKernels& kernels;
  const int64_t item;         // bytes of what these read and write
  const int64_t rows_joined;  // so many together, where they are joined
  const int64_t ahead;        // rows from one to the same position of those read next
  const bool caches_p;        // p, from pass 1 to pass 2, where it is fetched; or x f(gate)
  ChunkReader reader;
  Dropper dropper;
  BackwardBuffers buffers;
  JoinedBuffers joined;

  explicit BackwardRows(const Norm& a)
      : BackwardArrays(a),
        NormChunks(a, chunk()),
        s(of.operands),
        band(band_of(of)),
        has_sums(of.partial),
        kernels(is_stored ? of.table->norm->kernels[s.dtype] : *of.kernels),
        item(is_stored ? s.item : s.compute_item),
        rows_joined(std::clamp<int64_t>(kJoinedBytes / row_bytes(), 1, band)),
        ahead(of.has_shared_parameters() ? 1
                                         : (access == kJoined ? rows_joined : band) * of.groups),
        caches_p(access == kFetched &&
                 (!of.is_identity || of.has_gate() || !s.is_direct[Norm::kDy]) && !of.casts &&
                 !is_stored && band * row_bytes() <= kCachedBytes),
        reader(s),
        dropper(s, *of.table->bias, of.drop, Norm::kNumbers) {}

  int64_t row_bytes() const { return s.columns.size * s.compute_item; }

  void find_rows(Band* rows) {
    for (int64_t i = 0; i < rows->count; ++i) find(rows->index(i), &rows->rows[i]);
  }
  void find(int64_t index, BackwardRow* row) {
    row->stats.mean = s.data[Norm::kMean] ? reader.number(Norm::kMean, index) : 0.0;
    row->stats.rstd = reader.number(Norm::kRstd, index);
    if (is_plain) row->p = s.row(Norm::kDy, index), row->x = s.row(Norm::kIn, index);
    if (is_direct) row->dx = s.row(Norm::kDx, index);
    if (access != kFetched) find_next(index, 0, row);
  }
  void find_next(int64_t index, int64_t column, BackwardRow* row) const {
    set_next(index + ahead, column, Norm::kIn, Norm::kDy, &row->next);
  }

  void set_means(BackwardRow* row, double sum_g, double sum_g_xhat) {
    const double count = double(s.columns.size);
    row->means[0] = sum_g / count, row->means[1] = sum_g_xhat / count;
    const double rounding = s.compute_dtype == kF64 ? kRstdRounding<double> : kRstdRounding<float>;
    set_subtracted(norm.norm, row->means[0], row->means[1], count, row->stats.rstd, norm.eps,
                   rounding);
  }

  // p and x of a chunk of the band's row i, and its statistics, for the kernels. A norm that casts
  // gives them g, rounded, in the place of p, and no weight.
  NormChunk get(const Band& rows, int64_t i, NormChunk c, bool is_second, BackwardRow* row) {
    row->stats.mean = rows.rows[i].stats.mean;
    row->stats.rstd = rows.rows[i].stats.rstd;
    if (access != kFetched) {
      row->p = rows.rows[i].p + c.column * item, row->x = rows.rows[i].x + c.column * item;
      return c;
    }
    fetch(rows, i, c, is_second, &row->p, &row->x);
    if (!norm.casts) return c;
    if (weight.is_there()) {
      char* const g = buffers.p[i % kQuad];
      multiply_cast(row->p, c.weight, c.n, g);
      row->p = g;
    }
    c.weight = kOne, c.weight_row = false;
    return c;
  }

  // kFetched: p = dy f'(z) and x, in the compute type.
  void fetch(const Band& rows, int64_t i, const NormChunk& c, bool is_second, const char** to_p,
             const char** to_x) {
    const BackwardRow& row = rows.rows[i];
    if (is_plain) {
      *to_p = row.p + c.column * item, *to_x = row.x + c.column * item;
      return;
    }
    reader.go(rows.index(i), c.column, c.n);
    char* const cached = buffers.cached_p + (i * s.columns.size + c.column) * s.compute_item;
    if (norm.gate_first) {
      *to_p = reader.load(Norm::kDy, buffers.p[i % kQuad]);
      char* const gated = caches_p ? cached : buffers.x[i % kQuad];
      *to_x = gated;
      if (!caches_p || !is_second)
        multiply(norm, load_gate(c.n, buffers.dx[0]), reader.load(Norm::kIn, buffers.z), c.n,
                 gated);
      return;
    }
    *to_x = reader.load(Norm::kIn, buffers.x[i % kQuad]);
    char* const own = caches_p ? cached : buffers.p[i % kQuad];
    *to_p = own;
    if (caches_p && is_second) return;
    const bool is_product = norm.has_gate() || !norm.is_identity;
    const char* gradient = reader.load(Norm::kDy, is_product ? buffers.dy : own);
    if (!is_product)
      *to_p = gradient;
    else if (norm.has_gate())
      multiply(norm, load_gate(c.n, buffers.z), gradient, c.n, own);
    else
      multiply_by_slope(gradient, *to_x, row.stats, c, own);
    if (norm.has_gate() && norm.casts) cast(own, c.n);
  }
  // value OUT (n) = f(gate) of the elements to which the reader went.
  const char* load_gate(int64_t n, char* value) {
    char* const operands[] = {const_cast<char*>(reader.load(Norm::kGate, value)), value};
    norm.value_of_gate(operands, n, norm.parameters, 0);
    return value;
  }
  // dgate OUT (n) = factor IN (n) times `gradient` IN (n) and f'(gate).
  void make_dgate(const char* gradient, const char* factor, int64_t n, char* dgate) {
    multiply(norm, gradient, factor, n, dgate);
    char* const gate = const_cast<char*>(reader.load(Norm::kGate, buffers.z));
    char* const operands[] = {dgate, gate, dgate};
    norm.activation(operands, n, norm.parameters, 0);
  }
  // z OUT (n) = xhat w of x IN (n), as forward gives it.
  void make_z(const char* x, const RowStats& stats, const NormChunk& c, char* z) {
    const NormRow one{x, z, stats, {}};
    if (norm.casts)
      normalise_cast(x, stats, c, z);
    else
      norm.kernels->normalise[c.weight_row][c.bias_row](&one, 1, c.n, c.weight, c.bias);
  }
  void multiply_by_slope(const char* gradient, const char* x, const RowStats& stats,
                         const NormChunk& c, char* p) {
    make_z(x, stats, c, buffers.z);
    char* const operands[] = {const_cast<char*>(gradient), buffers.z, p};
    norm.activation(operands, c.n, norm.parameters, 0);
    if (norm.casts) cast(p, c.n);
  }

  // Serves norms that cast: sum IN/OUT (n) += p xhat, where p, xhat and the product are rounded.
  void add_cast_gradient(const Band& rows, int64_t i, const NormChunk& c, char* sum) {
    const char *from_p, *from_x;
    fetch(rows, i, c, true, &from_p, &from_x);
    normalised_cast(from_x, rows.rows[i].stats, c.n, buffers.z);
    multiply_cast(from_p, buffers.z, c.n, buffers.z);
    s.kernels->plus[false](sum, buffers.z, sum, c.n);
  }

  // dgate of a chunk of the band's row i, before dx is made, of z that is gated.
  void find_dgate(const Band& rows, int64_t i, const NormChunk& c) {
    char* const made = buffers.dgate[i % kQuad];
    reader.go(rows.index(i), c.column, c.n);
    make_z(reader.load(Norm::kIn, buffers.z), rows.rows[i].stats, c, made);
    make_dgate(reader.load(Norm::kDy, buffers.dy), made, c.n, made);
  }
  // dgate of x that is gated, and dx, of the gradient of their product, which it was.
  void find_gradients(int64_t n, char* dx, char* dgate) {
    if (has_dgate) make_dgate(reader.load(Norm::kIn, buffers.dy), dx, n, dgate);
    multiply(norm, load_gate(n, buffers.z), dx, n, dx);
  }

  // The n elements of a gradient, to which the reader goes; values is overwritten. buffer: of n.
  // Dropout takes it rounded to the dtype, as from its array.
  void store(char* values, int64_t n, char* buffer) {
    if (s.data[Norm::kDSum])
      s.kernels->plus[s.compute_item == sizeof(double)](reader.load(Norm::kDSum, buffer), values,
                                                        values, n);
    if (s.data[Norm::kDx]) reader.store(Norm::kDx, values, norm.accumulate);
    if (!norm.drops) return;
    if (s.item != s.compute_item) cast(values, n);
    dropper.drop(reader, s.compute_dtype, values, nullptr, values, n);
    reader.store(Norm::kDropped, values, norm.accumulate);
  }

  // kJoined: visits rows as parts that the reader takes at once, to which it goes: their first byte
  // in a buffer, and how many elements.
  template <class Visit>
  void for_parts(const Band& rows, Visit visit) {
    const int64_t size = s.columns.size, at_once = std::max<int64_t>(kPiece / size, 1);
    for (int64_t i = 0; i < rows.count; i += at_once)
      for (int64_t column = 0, n; column < size; column += n) {
        n = size > kPiece ? std::min(kPiece, size - column)
                          : std::min(at_once, rows.count - i) * size;
        reader.go(rows.index(i), column, n);
        visit((i * size + column) * s.compute_item, n);
      }
  }
  // `load` fills the buffers: only arrays of the compute type are used where they lie.
  void join(Band* rows) {
    for_parts(*rows, [&](int64_t first, int64_t) {
      reader.load(Norm::kDy, joined.p + first);
      reader.load(Norm::kIn, joined.x + first);
    });
    for (int64_t i = 0; i < rows->count; ++i) {
      BackwardRow& row = rows->rows[i];
      row.p = joined.p + i * row_bytes(), row.x = joined.x + i * row_bytes();
      row.dx = joined.dx + i * row_bytes();
    }
  }
};

}  // namespace fastact
