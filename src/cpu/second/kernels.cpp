// The kernels of second/second.h.
#include "cpu/second/second.h"
#include "cpu/simd/vector.h"

FASTACT_BEGIN_NAMESPACE
namespace {

// So many terms are added in the compute type before their sum counts in double.
constexpr int kTermsOfLane = 8;

template <class C, class Of>
void sum(const SecondChunk& chunk, int64_t n, const SecondRow& row, double* lanes) {
  using Read = ComputeVector<C>;
  using V = typename Read::type;
  constexpr int kCount = Read::kCount, kVectorsOfLanes = kSecondLanes / kCount;
  const C *saved = pointer<C>(chunk.in[0]), *u = pointer<C>(chunk.in[1]),
          *dy = pointer<C>(chunk.in[2]), *weight = pointer<C>(chunk.in[3]);
  const Of of(row);
  int64_t i = 0;
  while (i + kSecondLanes <= n) {
    V part[Of::kSums][kVectorsOfLanes] = {};
    for (int term = 0; term < kTermsOfLane && i + kSecondLanes <= n; ++term)
#pragma GCC unroll 8
      for (int v = 0; v < kVectorsOfLanes; ++v, i += kCount)
        of.add(Read::load(u + i), Read::load(dy + i), Read::load(saved + i), Read::load(weight + i),
               [&](int s, V terms) FASTACT_INLINED { part[s][v] += terms; });
    for (int s = 0; s < Of::kSums; ++s) {
      alignas(64) C terms[kSecondLanes];
      memcpy(terms, part[s], sizeof terms);
#pragma omp simd
      for (int k = 0; k < kSecondLanes; ++k) lanes[s * kSecondLanes + k] += double(terms[k]);
    }
  }
  for (int k = 0; i < n; ++i, ++k)
    of.add(u[i], dy[i], saved[i], weight[i],
           [&](int s, C term) FASTACT_INLINED { lanes[s * kSecondLanes + k] += double(term); });
}

template <class C, class Of>
void make(const SecondChunk& chunk, int64_t n, const SecondRow& row) {
  const C *saved = pointer<C>(chunk.in[0]), *u = pointer<C>(chunk.in[1]),
          *dy = pointer<C>(chunk.in[2]), *weight = pointer<C>(chunk.in[3]);
  C *const ddy = pointer<C>(chunk.out[0]), *const dsaved = pointer<C>(chunk.out[1]),
           *const terms = pointer<C>(chunk.out[2]);
  const Of of(row);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    const SecondElement<C> made = of(u[i], dy[i], saved[i], weight[i]);
    ddy[i] = made.ddy, dsaved[i] = made.dsaved;
    if (Of::kHasTerms) terms[i] = made.term;
  }
}

}  // namespace

#define FASTACT_KINDS(function, C)                                                              \
  {function<C, SecondOfNorm<C>>, function<C, SecondOfNorm<C>>, function<C, SecondOfSoftmax<C>>, \
   function<C, SecondOfLogSoftmax<C>>}

extern const SecondKernels second_kernels;
const SecondKernels second_kernels = {
    {FASTACT_KINDS(sum, float), FASTACT_KINDS(sum, double)},
    {FASTACT_KINDS(make, float), FASTACT_KINDS(make, double)},
};

FASTACT_END_NAMESPACE
