// Activations on the GPU: the map of map.cuh over the functors of common/activations.h.
//
// No activation is named here: the list in common/activations.h makes the switch below.
//
// What bounds them on an H200, at 4.3 TB/s and 132 x 128 lanes at 1.7 GHz: 31 instructions an
// element in bfloat16 and 62 in float64 (half the lanes) hide behind memory. Registers, load
// widths and instruction counts of every kernel are in docs/results/cuda_static.md, which
// tools/cuda_static.py makes.
#include "../common/activations.h"
#include "kernels.h"
#include "map.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

template <class T, template <class, bool> class A>
struct Forward : Lanewise<Forward<T, A>, T, 1> {
  A<Compute<T>, kApproximate<T>> activation;
  explicit Forward(const double* parameters) : activation(parameters) {}
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[1]) const {
    return activation.forward(in[0]);
  }
};

template <class T, template <class, bool> class A>
struct Backward : Lanewise<Backward<T, A>, T, 2> {
  A<Compute<T>, kApproximate<T>> activation;
  explicit Backward(const double* parameters) : activation(parameters) {}
  FASTACT_HD Compute<T> operator()(const Compute<T> (&in)[2]) const {
    return in[0] * activation.derivative(in[1]);
  }
};

}  // namespace

template <class T>
void activation_forward(int which, const Operand (&arrays)[2], const double* parameters,
                        cudaStream_t stream) {
  Walk walk;
  plan_walk(&walk, sizeof(T), 2, arrays);
  switch (which) {
#define FASTACT_CASE(name, A) \
  case k_##name:              \
    return run_map<T, 1, false>(walk, Forward<T, A>(parameters), stream);
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
}

template <class T>
void activation_backward(int which, const Operand (&arrays)[3], const double* parameters,
                         bool accumulate, cudaStream_t stream) {
  Walk walk;
  plan_walk(&walk, sizeof(T), 3, arrays);
  switch (which) {
#define FASTACT_CASE(name, A)                                                         \
  case k_##name:                                                                      \
    return accumulate ? run_map<T, 2, true>(walk, Backward<T, A>(parameters), stream) \
                      : run_map<T, 2, false>(walk, Backward<T, A>(parameters), stream);
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
}

using Storage = FASTACT_STORAGE;
template void activation_forward<Storage>(int, const Operand (&)[2], const double*, cudaStream_t);
template void activation_backward<Storage>(int, const Operand (&)[3], const double*, bool,
                                           cudaStream_t);

FASTACT_END_NAMESPACE
