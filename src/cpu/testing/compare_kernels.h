// How far float32 results are from float64 ones: what `python -m fastact check` asks of billions.
#pragma once

#include <cstdint>

namespace fastact {

constexpr int kErrorEdges = 6;

// The largest errors of a run of results and, for the ULP, where they are first met.
struct Comparison {
  double absolute, ulp;
  double counted;              // in ULP, where the absolute error exceeds what is allowed
  int64_t ulp_at, counted_at;  // 0 where there is no error
  int64_t above[kErrorEdges];  // how many exceed each edge, in ULP
  bool is_finite;              // else an infinity or a NaN takes part, and the rest means nothing
};

struct CompareKernels {
  // y IN (n), exact IN (n). A unit in the last place is float32's at the float32 number at or below
  // |exact|.
  void (*compare)(const float* y, const double* exact, int64_t n, double allowed,
                  const double* edges, Comparison* found);
};

}  // namespace fastact
