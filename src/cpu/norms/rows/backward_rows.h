// How the passes of norms/rows/backward.cpp get rows, and give dx back: the one place that asks how
// the arrays of a norm backward lie.
//
// The kernels take p and x, and make dx, where these are arrays. Else a thread holds some rows in a
// part of the workspace, as a whole and in the compute type: p and x are made once, for both
// passes, and dx takes the place of p.
#pragma once

#include "cpu/bias/dropper.h"
#include "cpu/norms/rows/params.h"

namespace fastact {

constexpr int64_t kMadeBytes = 8192 * sizeof(double);  // of a band whose p has to be computed
constexpr int64_t kHeldBytes = 16 << 10;    // of an operand of short rows that are held together
constexpr int64_t kBandPiece = kPiece / 2;  // elements of a chunk
constexpr int64_t kStoredPiece = kPiece;    // the same where no operand needs a buffer: of 16 bits
constexpr int64_t kBand = kLeastBlock;      // rows, at most, that pass 2 takes chunk by chunk
constexpr int64_t kShortStream = 512;       // elements of a row up to which the hardware does not
                                            // prefetch the lines of several dx written side by side

// Up to kBand rows, whose parameters' sums are added up in the compute type; or some of such rows.
struct Band {
  int64_t first, step;  // their indices
  int64_t count;
  BackwardRow rows[kBand];
  int64_t index(int64_t i) const { return first + i * step; }
};

// Rows of a band. Of no array's layout: the bits of the sums depend on it.
inline int64_t band_of(const Norm& a) {
  if (a.kind != Norm::kPerElement) return 1;
  const int64_t bytes = a.row_bytes();
  const bool is_narrow = a.operands.item != a.operands.compute_item;
  const bool is_made = !a.is_identity || a.has_gate() || (is_narrow && bytes <= kHeldBytes);
  const int64_t most = is_made && bytes <= kMadeBytes ? kMadeBytes / bytes : kBand;
  const int64_t fits = (a.has_sums() ? kNormBandBytes : kSmallNormBand) / (2 * bytes);
  return std::clamp(std::min(most, fits), int64_t(1), kBand);
}

// Facts that follow from the arrays.
struct BackwardFacts {
  const Norm& of;
  const StridedOperands& s;
  const bool is_stored;  // all lies in 16 bits where it is read and written
  const bool has_dx;     // dx is made: where x is gated, for dgate too
  const bool has_dgate;
  const bool gates_z;                     // else x, if there is a gate
  const bool holds_p, holds_x, holds_dx;  // else they are arrays
  const bool is_made;                     // what is held is more than what arrays have
  const int64_t band, at_once;            // rows, and those of them that are held together
  const bool has_whole_sums;              // of a band in held memory, else chunk by chunk

  explicit BackwardFacts(const Norm& a)
      : of(a),
        s(a.operands),
        is_stored(!a.accumulate && !a.drops && !s.data[Norm::kDSum] &&
                  NormChunks::are_stored(a, {Norm::kDy, Norm::kIn, Norm::kDx})),
        has_dx(s.data[Norm::kDx] || a.drops || (a.gate_first && s.data[Norm::kDGate])),
        has_dgate(s.data[Norm::kDGate]),
        gates_z(a.has_gate() && !a.gate_first),
        holds_p(!is_stored && (!a.is_identity || gates_z || !s.is_direct[Norm::kDy])),
        holds_x(!is_stored && (a.gate_first || !s.is_direct[Norm::kIn])),
        // In place, dx may be where the gradient of the sum is yet to be read.
        holds_dx(!has_dx || (!is_stored && (!s.is_direct[Norm::kDx] || a.accumulate || a.drops ||
                                            a.gate_first || s.data[Norm::kDSum]))),
        is_made(!a.is_identity || a.has_gate() || a.casts),
        band(band_of(a)),
        at_once(holds_p || holds_x || holds_dx
                    ? std::clamp<int64_t>(kHeldBytes / a.row_bytes(), 1, band)
                    : band),
        has_whole_sums(a.has_sums() && !a.has_shared_parameters() && (at_once < band || a.casts)) {}
};

// The rows that a thread holds, from `memory` on.
struct BackwardArrays : BackwardFacts {
  char *weight_row, *sums[2], *p, *x, *dx, *dgate;
  int64_t bytes = 0;  // of all of these

  BackwardArrays(const Norm& a, char* memory) : BackwardFacts(a) {
    memory += -reinterpret_cast<uintptr_t>(memory) % kCacheLine;
    const auto take = [&](bool is_needed, int64_t more) {
      char* const found = memory && is_needed ? memory + bytes : nullptr;
      if (is_needed) bytes += (more + kCacheLine - 1) / kCacheLine * kCacheLine;
      return found;
    };
    const int64_t row = a.row_bytes(), rows = at_once * row;
    weight_row = take(
        s.data[Norm::kWeight] && !a.has_shared_parameters() && !a.is_direct(Norm::kWeight), row);
    for (char*& each : sums) each = take(has_whole_sums, row + kCacheLine);
    p = take(holds_p, rows);
    x = take(holds_x, rows);
    dx = holds_p ? p : take(holds_dx, rows);
    dgate = take(has_dgate, rows);
  }
};

struct BackwardRows : BackwardArrays, NormChunks {
  const bool has_sums;
  const NormKernels& kernels;
  const int64_t item;   // bytes of what these read and write
  const int64_t ahead;  // rows from one to the same position of those read next
  ChunkReader reader;
  Dropper dropper;
  alignas(64) char dy[kPiece * sizeof(double)];
  alignas(64) char z[kPiece * sizeof(double)];

  explicit BackwardRows(const BackwardArrays& arrays)
      : BackwardArrays(arrays),
        NormChunks(of, kPiece),
        has_sums(of.has_sums()),
        kernels(is_stored ? of.table->norm->kernels[s.dtype] : *of.kernels),
        item(is_stored ? s.item : s.compute_item),
        ahead(of.has_shared_parameters() ? 1 : at_once * of.groups),
        reader(s),
        dropper(s, *of.table->bias, of.drop, Norm::kNumbers) {
    weight.whole = weight_row;
  }

  // Finds where rows lie, or are to be held.
  void find(Band* rows) const {
    for (int64_t i = 0; i < rows->count; ++i) {
      BackwardRow& row = rows->rows[i];
      const int64_t index = rows->index(i), at = i * norm.row_bytes();
      row.stats.mean = s.data[Norm::kMean] ? reader.number(Norm::kMean, index) : 0.0;
      row.stats.rstd = reader.number(Norm::kRstd, index);
      row.p = holds_p ? p + at : s.row(Norm::kDy, index);
      row.x = holds_x ? x + at : s.row(Norm::kIn, index);
      row.dx = holds_dx ? dx + at : s.row(Norm::kDx, index);
      set_next(index + ahead, 0, Norm::kIn, Norm::kDy, &row.next);
    }
  }

  void set_means(BackwardRow* row, double sum_g, double sum_g_xhat) {
    const double count = double(s.columns.size);
    row->means[0] = sum_g / count, row->means[1] = sum_g_xhat / count;
    const double rounding = s.compute_dtype == kF64 ? kRstdRounding<double> : kRstdRounding<float>;
    set_subtracted(norm.norm, row->means[0], row->means[1], count, row->stats.rstd, norm.eps,
                   rounding);
  }

  // Fills what is held of rows. cast_sums: whole rows to which norms that cast add the terms of
  // dweight.
  void hold(const Band& rows, char* cast_sums) {
    for (int64_t i = 0; is_made && i < rows.count; ++i)
      for_row(rows.index(i), [&](const NormChunk& c) {
        reader.go(rows.index(i), c.column, c.n);
        make(rows.rows[i], c, i * norm.row_bytes() + c.column * item, cast_sums);
      });
    if (!is_made && (holds_p || holds_x))
      for_parts(rows, [&](int64_t at, int64_t) {
        if (holds_p) reader.load(Norm::kDy, p + at);
        if (holds_x) reader.load(Norm::kIn, x + at);
      });
  }

  // Stores what was made of rows in held memory.
  void put(const Band& rows) {
    if (!holds_dx && !has_dgate) return;
    for_parts(rows, [&](int64_t at, int64_t n) {
      if (norm.gate_first) {  // dx is yet the gradient of x f(gate)
        if (has_dgate) make_dgate(reader.load(Norm::kIn, dy), dx + at, n, dgate + at);
        multiply(norm, load_gate(reader, n, z), dx + at, n, dx + at);
      }
      if (holds_dx && (s.data[Norm::kDx] || norm.drops)) store(dx + at, n);
      if (has_dgate) reader.store(Norm::kDGate, dgate + at, norm.accumulate);
    });
  }

 private:
  // Visits rows as parts that the reader takes at once, to which it goes: their first byte in what
  // is held, and how many elements.
  template <class Visit>
  void for_parts(const Band& rows, Visit visit) {
    const int64_t size = s.columns.size;
    const int64_t together = rows.step == 1 ? std::max<int64_t>(kPiece / size, 1) : 1;
    for (int64_t i = 0; i < rows.count; i += together)
      for (int64_t column = 0, n; column < size; column += n) {
        n = size > kPiece ? std::min(kPiece, size - column)
                          : std::min(together, rows.count - i) * size;
        reader.go(rows.index(i), column, n);
        visit((i * size + column) * s.compute_item, n);
      }
  }

  // Makes p, x and dgate of a chunk of a row, which begin at byte `at` of what is held. A norm that
  // casts has g, rounded, in the place of p, and no weight.
  void make(const BackwardRow& row, const NormChunk& c, int64_t at, char* cast_sums) {
    char* const own = const_cast<char*>(row.p) + c.column * item;  // written if it is held
    const char* of_x = row.x + c.column * item;
    if (norm.gate_first)
      multiply(norm, load_gate(reader, c.n, z), reader.load(Norm::kIn, dy), c.n, x + at);
    else if (holds_x)
      of_x = reader.load(Norm::kIn, x + at);
    if (holds_p) {
      const char* const gradient = reader.load(Norm::kDy, norm.is_identity && !gates_z ? own : dy);
      if (!norm.is_identity) {
        make_z(of_x, row.stats, c, z);
        char* const operands[] = {const_cast<char*>(gradient), z, own};
        norm.activation(operands, c.n, norm.parameters, 0);
      } else if (gates_z) {
        multiply(norm, load_gate(reader, c.n, z), gradient, c.n, own);
      }
      if ((gates_z || !norm.is_identity) && norm.casts) cast(own, c.n);
    }
    if (gates_z && has_dgate) {
      make_z(of_x, row.stats, c, dgate + at);
      make_dgate(reader.load(Norm::kDy, dy), dgate + at, c.n, dgate + at);
    }
    if (!norm.casts) return;
    if (has_sums) {  // p xhat, where p, xhat and the product are rounded
      char* const sum = cast_sums + c.column * item;
      normalised_cast(of_x, row.stats, c.n, z);
      multiply_cast(own, z, c.n, z);
      s.kernels->plus[false](sum, z, sum, c.n);
    }
    if (weight.is_there()) multiply_cast(own, c.weight, c.n, own);
  }
  // dgate OUT (n) = factor IN (n) times `gradient` IN (n) and f'(gate).
  void make_dgate(const char* gradient, const char* factor, int64_t n, char* to) {
    multiply(norm, gradient, factor, n, to);
    char* const gate = const_cast<char*>(reader.load(Norm::kGate, z));
    char* const operands[] = {to, gate, to};
    norm.activation(operands, n, norm.parameters, 0);
  }
  // to OUT (n) = xhat w of x IN (n), as forward gives it.
  void make_z(const char* of_x, const RowStats& stats, const NormChunk& c, char* to) {
    const NormRow one{of_x, to, stats, {}};
    if (norm.casts)
      normalise_cast(of_x, stats, c, to);
    else
      norm.kernels->normalise[c.weight_row][c.bias_row](&one, 1, c.n, c.weight, c.bias);
  }

  // Stores the n elements of a gradient, to which the reader went; values is overwritten. Dropout
  // takes it rounded to the dtype, as from its array.
  void store(char* values, int64_t n) {
    if (s.data[Norm::kDSum])
      s.kernels->plus[s.compute_item == sizeof(double)](reader.load(Norm::kDSum, dy), values,
                                                        values, n);
    if (s.data[Norm::kDx]) reader.store(Norm::kDx, values, norm.accumulate);
    if (!norm.drops) return;
    if (s.item != s.compute_item) cast(values, n);
    dropper.drop(reader, s.compute_dtype, values, nullptr, values, n);
    reader.store(Norm::kDropped, values, norm.accumulate);
  }
};

}  // namespace fastact
