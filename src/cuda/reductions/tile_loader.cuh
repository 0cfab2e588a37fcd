// How a reduction reads its operand: where rows, segments and columns lie, and their vectors,
// aligned or not.
//
// Four vectors of a lane are in flight at a time. Whether they can be read by 16 bytes is decided
// once for an array (Access) and once for four vectors; the rest is read one by one (read_parts).
#pragma once

#include "cuda/core/indexing.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/vector_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kInFlight = 4;  // vectors of a lane

// How the vectors of x can be read.
enum Access : int {
  kAligned,  // each is a multiple of 16 bytes
  kAnyhow,   // by windows inside one segment, or element by element
};

struct Sums {
  const char* x;       // IN
  Axes kept;           // outputs, less the innermost axis where that is kept
  Axes segments;       // reduced axes outside the innermost
  int64_t inner;       // elements of the innermost axis
  int64_t inner_x;     // their distance in bytes, in x
  int64_t inner_y;     // and in y, if that axis is kept
  bool is_contiguous;  // inner_x is the item size
  Access access;
  const char *low, *high;  // the ends of an array without gaps, of which tiles are read
  Chunks chunks;           // of the reduced index: of vectors, or of rows
  double* partials;  // OUT where there is more than one chunk: outputs x chunks x their numbers
};

// One vector of x: where it begins, how many elements of its row or segment follow from there (at
// most kEnough of them are counted), and whether there is one such vector before it.
constexpr int kEnough = 64;
struct Location {
  const char* p;
  int valid;
  bool follows;
};

FASTACT_DEVICE int up_to(int64_t n) { return int(smaller(n, kEnough)); }

template <Access access, class T>
FASTACT_DEVICE bool can_read_fast(const Sums& sums, const Location& location) {
  constexpr int kSize = Vec<T>::kSize;
  if constexpr (access == kAligned) return location.valid >= kSize;
  return sums.is_contiguous && location.follows && location.valid >= 2 * kSize;
}

// Reads by 16 bytes, whatever lies around.
template <Access access, class T>
FASTACT_DEVICE Vec<T> read_whole(const char* p) {
  if constexpr (access == kAligned) return load_vec(reinterpret_cast<const T*>(p));
  return cut_window(reinterpret_cast<const T*>(p));
}

template <Access access, class T>
FASTACT_DEVICE void read_whole(const char* const (&at)[kInFlight], Vec<T> (&vecs)[kInFlight]) {
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) vecs[u] = read_whole<access, T>(at[u]);
}

// Reads kInFlight vectors, some of them not whole, with zeros for elements that are not there.
// location_of(u): where the u-th vector is.
template <Access access, class T, class LocationOf>
FASTACT_DEVICE void read_parts(const Sums& sums, const LocationOf& location_of,
                               Vec<T> (&vecs)[kInFlight]) {
  bool fast[kInFlight];
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) fast[u] = can_read_fast<access, T>(sums, location_of(u));
#pragma unroll
  for (int u = 0; u < kInFlight; ++u) {
    if (fast[u]) {
      vecs[u] = read_whole<access, T>(location_of(u).p);
      continue;
    }
    vecs[u] = Vec<T>{};
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      if (j < location_of(u).valid)
        vecs[u].lane[j] = load(reinterpret_cast<const T*>(location_of(u).p + j * sums.inner_x));
  }
}

// How many lanes of the next vectors count: all (a constant), or as many as their locations say.
struct Whole {
  static constexpr bool kIsWhole = true;
  template <class T>
  FASTACT_DEVICE static constexpr int valid(int) {
    return Vec<T>::kSize;
  }
  FASTACT_DEVICE static constexpr bool has(int) { return true; }
};
// The first `left` vectors, which are whole.
struct First {
  static constexpr bool kIsWhole = true;
  int left;
  template <class T>
  FASTACT_DEVICE int valid(int u) const {
    return has(u) ? Vec<T>::kSize : 0;
  }
  FASTACT_DEVICE bool has(int u) const { return u < left; }
};
template <class LocationOf>
struct Parts {
  static constexpr bool kIsWhole = false;
  const LocationOf& location_of;
  template <class T>
  FASTACT_DEVICE int valid(int u) const {
    return location_of(u).valid;
  }
  FASTACT_DEVICE bool has(int u) const { return location_of(u).valid > 0; }
};
FASTACT_DEVICE_CALL int64_t divided_offset(const Axes& axes, int64_t index) {
  return locate(axes, index).x;
}

// Whether several axes count segments: then finding where a segment begins takes divisions and
// registers.
template <Access access>
FASTACT_DEVICE bool has_divided_segments(const Sums& sums) {
  return access == kAnyhow && sums.segments.count > 1;
}

}  // namespace
FASTACT_END_NAMESPACE
