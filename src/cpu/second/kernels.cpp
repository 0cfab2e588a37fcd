// The kernels of second/second.h.
#include <algorithm>

#include "cpu/second/second.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// So many terms are added in the compute type before their sum counts in double.
constexpr int kTermsOfLane = 8;

template <class C>
FASTACT_HD const C* in(const SecondChunk& chunk, int k) {
  return reinterpret_cast<const C*>(chunk.in[k]);
}
template <class C>
FASTACT_HD C* out(const SecondChunk& chunk, int k) {
  return reinterpret_cast<C*>(chunk.out[k]);
}

template <class C, class Of>
void sum(const SecondChunk& chunk, int64_t n, const SecondRow& row, double* lanes) {
  const C *saved = in<C>(chunk, 0), *u = in<C>(chunk, 1), *dy = in<C>(chunk, 2),
          *weight = in<C>(chunk, 3);
  const Of of(row);
  for (int64_t i = 0; i < n;) {
    alignas(64) C part[Of::kSums][kSecondLanes] = {};
    const auto add = [&](int k) FASTACT_INLINED {
      of.add(u[i + k], dy[i + k], saved[i + k], weight[i + k],
             [&](int s, C term) FASTACT_INLINED { part[s][k] += term; });
    };
    for (int round = 0; round < kTermsOfLane && i < n; ++round, i += kSecondLanes) {
      const int m = int(std::min<int64_t>(kSecondLanes, n - i));
      if (m == kSecondLanes) {
#pragma omp simd
        for (int k = 0; k < kSecondLanes; ++k) add(k);
      } else {
        for (int k = 0; k < m; ++k) add(k);
      }
    }
    for (int s = 0; s < Of::kSums; ++s)
#pragma omp simd
      for (int k = 0; k < kSecondLanes; ++k) lanes[s * kSecondLanes + k] += double(part[s][k]);
  }
}

template <class C, class Of>
void make(const SecondChunk& chunk, int64_t n, const SecondRow& row) {
  const C *saved = in<C>(chunk, 0), *u = in<C>(chunk, 1), *dy = in<C>(chunk, 2),
          *weight = in<C>(chunk, 3);
  C *const ddy = out<C>(chunk, 0), *const dsaved = out<C>(chunk, 1),
           *const terms = out<C>(chunk, 2);
  const Of of(row);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const SecondElement<C> made = of(u[i], dy[i], saved[i], weight[i]);
    ddy[i] = made.ddy, dsaved[i] = made.dsaved, terms[i] = made.term;
  }
}

}  // namespace

#define FASTACT_BOTH(function, C) {function<C, SecondOfNorm<C>>, function<C, SecondOfSoftmax<C>>}

extern const SecondKernels second_kernels;
const SecondKernels second_kernels = {
    {FASTACT_BOTH(sum, float), FASTACT_BOTH(sum, double)},
    {FASTACT_BOTH(make, float), FASTACT_BOTH(make, double)},
};

FASTACT_END_NAMESPACE
