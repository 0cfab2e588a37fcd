// Parameters of forward and backward of norms/rows in the compute type, and
// the chunks of a row that they go with.
#pragma once

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "cpu/gated/kernels.h"
#include "cpu/norms/rows/plan.h"
#include "cpu/reductions/rescaled.h"

namespace fastact {

// stats OUT: of terms in double whose squares left its range (reductions/rescaled.h); as they are
// where terms are not finite. read(term, n, x): x OUT = terms term .. term + n.
template <class Read>
FASTACT_RARE void rescale_row(const Norm& norm, int64_t terms, Read read, RowStats* stats) {
  Rescaled found;
  const auto read_all = [&](int64_t term, int64_t n, double* x, double* weights) {
    read(term, n, x);
    std::fill_n(weights, n, 1.0);
  };
  if (!rescale(terms, is_centred(norm.norm), read_all, &found)) return;
  *stats = {found.mean * found.up,
            rstd_of_scaled(norm.norm, found.m2, found.count, norm.eps, found.up)};
}

// One thread's view of a parameter, which is operand k.
class NormParameterReader {
 public:
  // neutral: what stands for a parameter that is not there.
  NormParameterReader(const Norm& norm, int parameter, double neutral)
      : s(norm.operands),
        k(parameter),
        offset(norm.offset_of(parameter)),
        is_direct(norm.is_direct(parameter)),
        is_shared(norm.is_shared(parameter)),
        is_wide(s.data[k] && s.dtypes[k] == s.compute_dtype && is_aligned() && offset == 0.0),
        reader(s) {
    store_as(s.compute_dtype, buffer, neutral);
  }

  bool is_there() const { return s.data[k]; }

  // Memory for the values of all elements of a row, which then are read once for the rows that
  // share them; null: a chunk of them is.
  char* whole = nullptr;

  // Values for n elements of a row from `column` on; of a missing parameter, its neutral value.
  const char* of_elements(int64_t row, int64_t column, int64_t n) {
    if (!is_there()) return buffer;
    const char* base = base_of(row);
    if (is_direct) return base + column * s.compute_item;
    if (whole) {
      if (base != read_base) read_whole(row);
      read_base = base;
      return whole + column * s.compute_item;
    }
    if (base != read_base || column != read_column || n != read_count) read(row, column, n, buffer);
    read_base = base, read_column = column, read_count = n;
    return buffer;
  }

  // The value for one element.
  const char* of_element(int64_t row, int64_t column) {
    if (!is_wide) return of_elements(row, column, 1);
    return base_of(row) + s.columns.offset(k, column);
  }

  // Values for `count` spans of a row of `span` elements, at most kPiece of them.
  SpanValues of_spans(int64_t row, int64_t first, int64_t span, int64_t count) {
    if (!is_there()) return {buffer, 0};
    if (is_wide && s.columns.count == 2 && s.columns.length[1] == span &&
        s.columns.stride[k][1] == 0)
      return {base_of(row) + first * s.columns.stride[k][0], s.columns.stride[k][0]};
    if (base_of(row) != span_base || first != first_span)
      for (int64_t r = 0; r < count; ++r)
        memcpy(span_buffer + r * s.compute_item, of_element(row, (first + r) * span),
               s.compute_item);
    span_base = base_of(row), first_span = first;
    return {span_buffer, s.compute_item};
  }

 private:
  const char* base_of(int64_t row) const { return is_shared ? s.data[k] : s.row(k, row); }

  bool is_aligned() const {
    auto bits = reinterpret_cast<uintptr_t>(s.data[k]);
    for (const OperandAxes* axes : {&s.rows, &s.columns})
      for (int i = 0; i < axes->count; ++i) bits |= uintptr_t(axes->stride[k][i]);
    return bits % uintptr_t(s.items[k]) == 0;
  }

  void read(int64_t row, int64_t column, int64_t n, char* values) {
    reader.go(row, column, n);
    const bool is_wider = s.items[k] > s.compute_item;  // the offset is added before it is rounded
    const int64_t item = is_wider ? s.items[k] : s.compute_item;
    char* const to = is_wider && offset != 0.0 ? span_buffer : values;
    const char* from = to == values ? reader.load(k, to) : reader.load_stored(k, to);
    if (from != to) memcpy(to, from, n * item);
    if (offset == 0.0) return;
    item == sizeof(double) ? shift<double>(to, n) : shift<float>(to, n);
    if (to != values) reader.to_compute(k, to, values, n);
  }

  void read_whole(int64_t row) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(kPiece, s.columns.size - column);
      read(row, column, n, whole + column * s.compute_item);
    }
  }

  template <class T>
  void shift(char* values, int64_t n) {
    for (T* value = reinterpret_cast<T*>(values); n-- > 0; ++value) *value += T(offset);
  }

  const StridedOperands& s;
  const int k;
  const double offset;
  const bool is_direct, is_shared;
  const bool is_wide;  // of the compute type where it lies, and aligned
  ChunkReader reader;
  const char *read_base = nullptr, *span_base = nullptr;
  int64_t first_span = 0;
  int64_t read_column = -1, read_count = -1;
  alignas(64) char buffer[kPiece * sizeof(double)], span_buffer[kPiece * sizeof(double)];
};

// A chunk of a row, with what its elements are multiplied by and what is added.
struct NormChunk {
  int64_t column, n;
  const char *weight, *bias;
  bool weight_row, bias_row;  // one an element, or one for all
};

constexpr int64_t kPrefetched = 64;  // elements at a time

// One thread's parameters, and the chunks that go with them.
struct NormChunks {
  const Norm& norm;
  const int64_t most;  // elements of a chunk
  const bool is_far;   // what comes next has to be prefetched
  NormParameterReader weight, bias;

  NormChunks(const Norm& a, int64_t most_elements)
      : norm(a),
        most(most_elements),
        is_far(a.operands.columns.size >= kPrefetched &&
               a.operands.columns.size * a.operands.item <= kFarRow &&
               a.operands.size() * a.operands.item > kNear),
        weight(a, Norm::kWeight, 1.0),
        bias(a, Norm::kBias, -0.0) {}

  // Whether kernels read and write these operands, those that are there, where they lie in 16 bits.
  static bool are_stored(const Norm& a, std::initializer_list<int> operands) {
    const StridedOperands& s = a.operands;
    return a.is_identity && !a.has_gate() && !a.casts && s.item == sizeof(uint16_t) &&
           a.table->norm->kernels[s.dtype].add_band &&
           std::all_of(operands.begin(), operands.end(), [&](int k) {
             return !s.data[k] || (s.has_unit_stride[k] && s.dtypes[k] == s.dtype);
           });
  }

  // next OUT: the elements from `column` on of a row that comes later, of two operands; none where
  // they are in a cache already, or rows too big for them to stay in one until then.
  void set_next(int64_t row, int64_t column, int first, int second, NextChunk* next) const {
    const StridedOperands& s = norm.operands;
    next->at[0] = next->at[1] = nullptr;
    next->item = s.item;
    if (!is_far || row >= norm.rows()) return;
    int count = 0;
    for (const int k : {first, second})
      if (k >= 0 && s.has_unit_stride[k]) next->at[count++] = s.row(k, row) + column * s.item;
  }

  // `casts` alone, so that the data are of 16 bits and there is no bias.
  //
  // z OUT (n) = xhat w, both rounded to the data's dtype, of x IN (n); z is not x.
  void normalise_cast(const char* x, const RowStats& stats, const NormChunk& c, char* z) {
    normalised_cast(x, stats, c.n, z);
    if (weight.is_there()) multiply_cast(z, c.weight, c.n, z);
  }
  // xhat OUT (n), rounded.
  void normalised_cast(const char* x, const RowStats& stats, int64_t n, char* xhat) {
    const NormRow row{x, xhat, stats, {}};
    norm.kernels->normalise[0][0](&row, 1, n, kOne, kNothing);
    cast(xhat, n);
  }
  // product OUT (n) = a IN (n) times b IN (n), rounded; it may be either.
  void multiply_cast(const char* a, const char* b, int64_t n, char* product) {
    const NormRow row{a, product, {0.0, 1.0}, {}};
    norm.kernels->normalise[1][0](&row, 1, n, b, kNothing);
    cast(product, n);
  }
  // product OUT (n) = a IN (n) times b IN (n), of the compute type; it may be either.
  static void multiply(const Norm& norm, const char* a, const char* b, int64_t n, char* product) {
    constexpr GatedNumbers kUnlimited{std::numeric_limits<double>::infinity(), 0.0};
    norm.table->gated->product[norm.operands.compute_dtype](a, b, nullptr, product, n, kUnlimited);
  }
  // value OUT (n) = f(gate) of the n elements to which a reader went.
  const char* load_gate(ChunkReader& reader, int64_t n, char* value) const {
    char* const operands[] = {const_cast<char*>(reader.load(Norm::kGate, value)), value};
    norm.value_of_gate(operands, n, norm.parameters, 0);
    return value;
  }
  // values IN/OUT (n), rounded.
  void cast(char* values, int64_t n) {
    const StridedOperands& s = norm.operands;
    s.kernels->from_compute[s.dtype][false](values, narrow, n);
    s.kernels->to_compute[s.dtype](narrow, values, n);
  }

  static inline const float kNumbers[] = {1.0F, -0.0F};  // what changes nothing
  static inline const char* const kOne = reinterpret_cast<const char*>(&kNumbers[0]);
  static inline const char* const kNothing = reinterpret_cast<const char*>(&kNumbers[1]);
  alignas(64) char narrow[kPiece * sizeof(uint16_t)];

  // Visits all of a row; where parameters are shared, span by span.
  template <class Visit>
  void for_row(int64_t row, Visit visit) {
    const bool is_shared = norm.has_shared_parameters();
    const int64_t size = norm.operands.columns.size, step = is_shared ? norm.span : size;
    NormChunk c{
        0, 0, nullptr, nullptr, !is_shared && weight.is_there(), !is_shared && bias.is_there()};
    for (int64_t end = step; c.column < size; end += step) {
      if (is_shared)
        c.weight = weight.of_element(row, c.column), c.bias = bias.of_element(row, c.column);
      for (; c.column < end; c.column += c.n) {
        c.n = std::min(most, end - c.column);
        if (!is_shared) {
          c.weight = weight.of_elements(row, c.column, c.n);
          c.bias = bias.of_elements(row, c.column, c.n);
        }
        visit(c);
      }
    }
  }
};

}  // namespace fastact
