// What forward and backward of norms/rows have in common: the parameters in the compute type, and
// the chunks of a row that they go with.
#pragma once

#include <algorithm>

#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/norms/rows/plan.h"

namespace fastact {

// Rows are most often evenly spaced: then the offset is a multiplication.
struct Offsets {
  int64_t x, y;
};
inline Offsets offsets_at(const Axes& axes, int64_t index) {
  if (axes.count == 1) return {index * axes.x[0], index * axes.y[0]};
  Offsets at{};
  for_spans(axes, index, 1, [&](int64_t x, int64_t y, int64_t) { at = {x, y}; });
  return at;
}
inline int64_t offset_of(const Axes& axes, int64_t index) { return offsets_at(axes, index).x; }

inline char* row_address(const StridedOperands& s, int k, int64_t row) {
  const OperandAxes& axes = s.rows;
  return s.data[k] + (axes.count == 1 ? row * axes.stride[k][0] : axes.offset(k, row));
}

// One thread's view of a parameter.
class NormParameterReader {
 public:
  // neutral: what stands for a parameter that is not there.
  NormParameterReader(const StridedOperands& operands, const NormParameter& parameter,
                      double neutral)
      : s(operands), p(parameter) {
    if (s.compute_item == sizeof(float)) {
      const float value = float(neutral);
      memcpy(buffer, &value, sizeof value);
    } else {
      memcpy(buffer, &neutral, sizeof neutral);
    }
  }

  bool is_there() const { return p.data; }

  // Those of n elements of a row from `column` on; of one that is not there, its neutral value.
  const char* of_elements(int64_t row, int64_t column, int64_t n) {
    if (!p.data) return buffer;
    const char* base = base_of(row);
    if (p.is_direct) return base + column * s.compute_item;
    if (base != read_base || column != read_column || n != read_count) read(base, column, n);
    return buffer;
  }

  // That of one element.
  const char* of_element(int64_t row, int64_t column) {
    if (!p.data || !p.is_wide) return of_elements(row, column, 1);
    return base_of(row) + offset_of(p.along_row, column);
  }

  // Those of all spans of a row, at most kPiece spans of `span` elements.
  SpanValues of_spans(int64_t row, int64_t span, int64_t count) {
    if (!p.data) return {buffer, 0};
    if (p.is_wide && p.along_row.count == 2 && p.along_row.x[1] == 0)
      return {base_of(row), p.along_row.x[0]};
    for (int64_t r = 0; r < count; ++r)
      memcpy(span_buffer + r * s.compute_item, of_element(row, r * span), s.compute_item);
    return {span_buffer, s.compute_item};
  }

  double number(const char* value) const {
    // By memcpy: statistics that the caller gives may lie at any address.
    double wide;
    float narrow;
    if (s.compute_item == sizeof(double)) return memcpy(&wide, value, sizeof(wide)), wide;
    return memcpy(&narrow, value, sizeof(narrow)), double(narrow);
  }

 private:
  const char* base_of(int64_t row) const {
    return p.is_shared ? p.data : p.data + offset_of(p.across_rows, row);
  }

  void read(const char* base, int64_t column, int64_t n) {
    const int64_t item = item_size(p.dtype), step = last_stride(p.along_row);
    const MoveRow gather = gather_for(item);
    alignas(64) char packed[kPiece * sizeof(double)];
    char* to = packed;
    for_spans(p.along_row, column, n, [&](int64_t at, int64_t, int64_t m) {
      gather(to, base + at, step, m);
      to += m * item;
    });
    const bool is_double = p.dtype == kF64;
    if (is_double) shift<double>(packed, n);  // before it is rounded
    if (compute_dtype(p.dtype) == s.compute_dtype)
      s.kernels->to_compute[p.dtype](packed, buffer, n);
    else
      s.kernels->round(packed, buffer, n);
    if (!is_double)
      s.compute_item == sizeof(double) ? shift<double>(buffer, n) : shift<float>(buffer, n);
    read_base = base, read_column = column, read_count = n;
  }

  template <class T>
  void shift(char* values, int64_t n) {
    if (p.offset == 0) return;
    for (T* value = reinterpret_cast<T*>(values); n-- > 0; ++value) *value += T(p.offset);
  }

  const StridedOperands& s;
  const NormParameter& p;
  const char* read_base = nullptr;
  int64_t read_column = -1, read_count = -1;
  alignas(64) char buffer[kPiece * sizeof(double)], span_buffer[kPiece * sizeof(double)];
};

// A chunk of a row, with what its elements are multiplied by and what is added.
struct NormChunk {
  int64_t column, n;
  const char *weight, *bias;
  bool weight_row, bias_row;  // one an element, or one for all
};

constexpr int64_t kPrefetched = 64;     // elements at a time
constexpr int64_t kFarRow = 128 << 10;  // bytes of a row, from which none is prefetched
constexpr int64_t kNear = 2 << 20;      // and of x, up to which all of it stays near
constexpr int64_t kLongSpan = 1024;     // elements of a span, from which it is worth a call

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
        weight(a.operands, a.weight, 1.0),
        bias(a.operands, a.bias, -0.0) {}

  // The elements from `column` on of a row that comes later, of two operands; none where they are
  // in a cache already, or rows too big for them to stay in one until then.
  NextChunk next(int64_t row, int64_t column, int first, int second) const {
    const StridedOperands& s = norm.operands;
    NextChunk found{{nullptr, nullptr}, s.item};
    if (!is_far || row >= norm.rows()) return found;
    int count = 0;
    for (const int k : {first, second})
      if (k >= 0 && s.has_unit_stride[k])
        found.at[count++] = row_address(s, k, row) + column * s.item;
    return found;
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

  int64_t spans_of_row() const { return norm.operands.columns.size / norm.span; }

  // Whether one call takes all spans of a row, if each lies in one piece and needs no buffer.
  bool has_short_spans() const {
    return has_shared_parameters() && norm.span >= kLeastSpan && norm.span < kLongSpan &&
           spans_of_row() <= kPiece;
  }

  bool has_shared_parameters() const {
    return norm.kind == Norm::kPerRow || norm.kind == Norm::kPerSpan;
  }

  // Visits all of a row.
  template <class Visit>
  void for_row(int64_t row, Visit visit) {
    const int64_t size = norm.operands.columns.size;
    const int64_t step = has_shared_parameters() ? norm.span : size;
    for (int64_t first = 0; first < size; first += step)
      for_chunks(row, first, first + step, visit);
  }

  // Visits elements first .. end of a row; of one span, if parameters are shared.
  template <class Visit>
  void for_chunks(int64_t row, int64_t first, int64_t end, Visit visit) {
    NormChunk c{first, 0, nullptr, nullptr, false, false};
    const bool is_shared = has_shared_parameters();
    if (is_shared) {
      c.weight = weight.of_element(row, first), c.bias = bias.of_element(row, first);
    } else {
      c.weight_row = weight.is_there(), c.bias_row = bias.is_there();
    }
    for (; c.column < end; c.column += c.n) {
      c.n = std::min(most, end - c.column);
      if (!is_shared) {
        c.weight = weight.of_elements(row, c.column, c.n),
        c.bias = bias.of_elements(row, c.column, c.n);
      }
      visit(c);
    }
  }
};

}  // namespace fastact
