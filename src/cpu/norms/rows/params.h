// What the norms' passes share: the parameters in the compute type, chunk by chunk
// (norms/rows/plan.h).
#pragma once

#include <algorithm>

#include "cpu/core/span_iterator.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/norms/rows/plan.h"

namespace fastact {

// The units of an array are most often evenly spaced: then these are a multiplication.
struct Offsets {
  int64_t x, y;
};
inline Offsets offsets_at(const Axes& axes, int64_t index) {
  if (axes.count == 1) return {index * axes.x[0], index * axes.y[0]};
  Offsets at{};
  for_runs(axes, index, 1, [&](int64_t x, int64_t y, int64_t) { at = {x, y}; });
  return at;
}
inline int64_t offset_of(const Axes& axes, int64_t index) { return offsets_at(axes, index).x; }

inline char* line_of(const Streams& s, int k, int64_t line) {
  const StreamAxes& axes = s.lines;
  return s.data[k] + (axes.count == 1 ? line * axes.stride[k][0] : axes.offset(k, line));
}

// One thread's view of a parameter.
class NormValues {
 public:
  // neutral: what stands for a parameter that is not there.
  NormValues(const Streams& streams, const NormParameter& parameter, double neutral)
      : s(streams), p(parameter) {
    if (s.wide == sizeof(float)) {
      const float value = float(neutral);
      memcpy(buffer, &value, sizeof value);
    } else {
      memcpy(buffer, &neutral, sizeof neutral);
    }
  }

  bool is_there() const { return p.data; }

  // Those of n elements of a unit from `column` on; of one that is not there, its neutral value.
  const char* row(int64_t unit, int64_t column, int64_t n) {
    if (!p.data) return buffer;
    const char* base = base_of(unit);
    if (p.is_direct) return base + column * s.wide;
    if (base != read_base || column != read_column || n != read_count) read(base, column, n);
    return buffer;
  }

  // That of one element.
  const char* one(int64_t unit, int64_t column) {
    if (!p.data || !p.is_wide) return row(unit, column, 1);
    return base_of(unit) + offset_of(p.row, column);
  }

  // Those of all runs of a unit, at most kPiece runs of `run` elements.
  RunValues runs(int64_t unit, int64_t run, int64_t count) {
    if (!p.data) return {buffer, 0};
    if (p.is_wide && p.row.count == 2 && p.row.x[1] == 0) return {base_of(unit), p.row.x[0]};
    for (int64_t r = 0; r < count; ++r) memcpy(of_runs + r * s.wide, one(unit, r * run), s.wide);
    return {of_runs, s.wide};
  }

  double number(const char* value) const {
    // By memcpy: statistics that the caller gives may lie at any address.
    double wide;
    float narrow;
    if (s.wide == sizeof(double)) return memcpy(&wide, value, sizeof(wide)), wide;
    return memcpy(&narrow, value, sizeof(narrow)), double(narrow);
  }

 private:
  const char* base_of(int64_t unit) const {
    return p.is_shared ? p.data : p.data + offset_of(p.units, unit);
  }

  void read(const char* base, int64_t column, int64_t n) {
    const int64_t item = item_size(p.dtype), step = last_stride(p.row);
    const MoveRow gather = gather_for(item);
    alignas(64) char packed[kPiece * sizeof(double)];
    char* to = packed;
    for_runs(p.row, column, n, [&](int64_t at, int64_t, int64_t m) {
      gather(to, base + at, step, m);
      to += m * item;
    });
    if (compute_dtype(p.dtype) == s.wide_dtype)
      s.blocks->widen[p.dtype](packed, buffer, n);
    else
      s.blocks->round(packed, buffer, n);
    read_base = base, read_column = column, read_count = n;
  }

  const Streams& s;
  const NormParameter& p;
  const char* read_base = nullptr;
  int64_t read_column = -1, read_count = -1;
  alignas(64) char buffer[kPiece * sizeof(double)], of_runs[kPiece * sizeof(double)];
};

// A chunk of a unit, with what its elements are multiplied by and what is added.
struct NormChunk {
  int64_t column, n;
  const char *weight, *bias;
  bool weight_row, bias_row;  // one an element, or one for all
};

constexpr int64_t kPrefetched = 64;       // elements at a time
constexpr int64_t kFarUnits = 128 << 10;  // bytes of a unit, from which none is prefetched
constexpr int64_t kNear = 2 << 20;        // and of x, up to which all of it stays near
constexpr int64_t kLongRun = 1024;        // elements of a run, from which it is worth a call

// One thread's parameters, and the chunks that go with them.
struct NormChunks {
  const Norm& norm;
  const int64_t most;  // elements of a chunk
  const bool is_far;   // what comes next has to be prefetched
  NormValues weight, bias;

  NormChunks(const Norm& a, int64_t most_elements)
      : norm(a),
        most(most_elements),
        is_far(a.streams.columns.size >= kPrefetched &&
               a.streams.columns.size * a.streams.item <= kFarUnits &&
               a.streams.size() * a.streams.item > kNear),
        weight(a.streams, a.weight, 1.0),
        bias(a.streams, a.bias, -0.0) {}

  // The elements from `column` on of a unit that comes later, of two operands; none where they are
  // in a cache already, or units too big for them to stay in one until then.
  NextChunk next(int64_t unit, int64_t column, int first, int second) const {
    const Streams& s = norm.streams;
    NextChunk found{{nullptr, nullptr}, s.item};
    if (!is_far || unit >= norm.units()) return found;
    int count = 0;
    for (const int k : {first, second})
      if (k >= 0 && s.has_unit[k]) found.at[count++] = line_of(s, k, unit) + column * s.item;
    return found;
  }

  int64_t runs_of_unit() const { return norm.streams.columns.size / norm.run; }

  // Whether one call takes all runs of a unit, if each lies in one piece and needs no buffer.
  bool has_short_runs() const {
    return shares_parameters() && norm.run >= kLeastRun && norm.run < kLongRun &&
           runs_of_unit() <= kPiece;
  }

  bool shares_parameters() const { return norm.kind == Norm::kOne || norm.kind == Norm::kRuns; }

  // Visits all of a unit.
  template <class Visit>
  void for_unit(int64_t unit, Visit visit) {
    const int64_t size = norm.streams.columns.size;
    const int64_t step = shares_parameters() ? norm.run : size;
    for (int64_t first = 0; first < size; first += step)
      for_chunks(unit, first, first + step, visit);
  }

  // Visits elements first .. end of a unit; of one run, if parameters are shared.
  template <class Visit>
  void for_chunks(int64_t unit, int64_t first, int64_t end, Visit visit) {
    NormChunk c{first, 0, nullptr, nullptr, false, false};
    const bool is_shared = shares_parameters();
    if (is_shared) {
      c.weight = weight.one(unit, first), c.bias = bias.one(unit, first);
    } else {
      c.weight_row = weight.is_there(), c.bias_row = bias.is_there();
    }
    for (; c.column < end; c.column += c.n) {
      c.n = std::min(most, end - c.column);
      if (!is_shared) {
        c.weight = weight.row(unit, c.column, c.n), c.bias = bias.row(unit, c.column, c.n);
      }
      visit(c);
    }
  }
};

}  // namespace fastact
