// Activations: the map of core/elementwise.cuh over the functors of common/activations/list.h.
//
// No activation is named here: the list makes the switch below. Contiguous arrays have a kernel for
// each activation and direction; strided ones share one (activate.cuh), and so do second
// derivatives of any. How many instructions hide behind memory: docs/design/cuda.md, "Activations".
#include "common/activations/call.h"
#include "cuda/activations/activate.cuh"
#include "cuda/core/elementwise.cuh"
#include "cuda/core/native_function.h"

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
    return in[0] * derivative_by_saved(activation, in[1]);
  }
};

// Any activation, one call a vector: for strided arrays and, where code would be large and calls
// are rare, for all. An element is a vector's first lane.
template <class F, class T, int inputs>
struct Chosen {
  ChosenActivation activation;
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[inputs], int64_t index) const {
    Wide<T> wide[inputs] = {};
#pragma unroll
    for (int k = 0; k < inputs; ++k) wide[k].lane[0] = in[k];
    return static_cast<const F&>(*this).vec(wide, index).lane[0];
  }
};

template <class T>
struct ChosenForward : Chosen<ChosenForward<T>, T, 1> {
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[1], int64_t) const {
    return this->activation.template value<T>(in[0]);
  }
};

template <class T>
struct ChosenBackward : Chosen<ChosenBackward<T>, T, 2> {
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[2], int64_t) const {
    Wide<T> result = this->activation.template slope_by_saved<T>(in[1]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j) result.lane[j] = in[0].lane[j] * result.lane[j];
    return result;
  }
};

template <class T>
struct ChosenSecond : Chosen<ChosenSecond<T>, T, 3> {
  static constexpr int kUnroll = 1;
  FASTACT_DEVICE Wide<T> vec(const Wide<T> (&in)[3], int64_t) const {
    Wide<T> result = this->activation.template second_by_saved<T>(in[1]);
#pragma unroll
    for (int j = 0; j < Vec<T>::kSize; ++j)
      result.lane[j] = in[0].lane[j] * (in[2].lane[j] * result.lane[j]);
    return result;
  }
};

ChosenActivation chosen_of(const ActivationCall& call) {
  return chosen_activation(call.which, call.parameters);
}

}  // namespace

template <class T>
void activation_forward(const ActivationCall& call, cudaStream_t stream) {
  const Operand arrays[] = {call.data[0], call.data[1]};
  if (is_empty(arrays[0])) return;
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), 2, arrays);
  if (!plan.all_contiguous())
    return run_strided<T, 1>(plan, false, ChosenForward<T>{{chosen_of(call)}}, stream);
  switch (call.which) {
#define FASTACT_CASE(name, A) \
  case k_##name:              \
    return run_contiguous<T, 1, false>(plan, false, Forward<T, A>(call.parameters), stream);
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
}

template <class T>
void activation_backward(const ActivationCall& call, cudaStream_t stream) {
  const Operand arrays[] = {call.data[0], call.data[1], call.data[2]};
  if (is_empty(arrays[0])) return;
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), 3, arrays);
  if (!plan.all_contiguous())
    return run_strided<T, 2>(plan, call.accumulate, ChosenBackward<T>{{chosen_of(call)}}, stream);
  switch (call.which) {
#define FASTACT_CASE(name, A)                                                                 \
  case k_##name:                                                                              \
    return run_contiguous<T, 2, true>(plan, call.accumulate, Backward<T, A>(call.parameters), \
                                      stream);
    FASTACT_ACTIVATIONS(FASTACT_CASE)
#undef FASTACT_CASE
  }
}

template <class T>
void activation_second(const ActivationCall& call, cudaStream_t stream) {
  const Operand arrays[] = {call.data[0], call.data[1], call.data[2], call.data[3]};
  if (is_empty(arrays[0])) return;
  ElementwisePlan plan;
  plan_elementwise(&plan, sizeof(T), 4, arrays);
  run_map<T, 3, true>(plan, call.accumulate, ChosenSecond<T>{{chosen_of(call)}}, stream);
}

using Storage = FASTACT_STORAGE;
const NativeFunction<activation_forward<Storage>> forward_call(kActivationForward);
const NativeFunction<activation_backward<Storage>> backward_call(kActivationBackward);
const NativeFunction<activation_second<Storage>> second_call(kActivationSecond);

FASTACT_END_NAMESPACE
