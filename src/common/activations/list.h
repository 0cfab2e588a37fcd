// The activations: one struct each, and the one list of them.
//
// A struct is a template over the compute type (float or double) and is made from the op's
// parameters in the order of its Python signature. forward(x) is the activation, derivative(x)
// its derivative; both are free of branches and of calls, so that the loops in
// src/cpu/activations/kernels.cpp and the CUDA map vectorise them whole. One whose derivative is
// plain arithmetic of y = forward(x) has derivative_by_value(y) as well: its op saves y, not x.
// Those that are not linear in pieces have second(x), the derivative's derivative, too; and
// second_by_value(y), the derivative of derivative_by_value(y).
// `approximate` stands for 16-bit data on a GPU, where some ULP of float do not show and
// instructions are scarce: exp_approximate and divide<approximate> are allowed there.
//
// To add one: write its struct beside its kin in activations/ and its line at the end of that file,
// a row in python/fastact/ops/activations.py and a formula in python/fastact/measure/formulas.py.
#pragma once

#include "common/activations/exponential.h"
#include "common/activations/gelu.h"
#include "common/activations/mish.h"
#include "common/activations/piecewise.h"
#include "common/activations/sigmoid.h"
#include "common/activations/tanh.h"

FASTACT_BEGIN_NAMESPACE

// Whether an activation is differentiated by its value.
template <class A, class = void>
constexpr bool kSavesValue = false;
template <class A>
constexpr bool kSavesValue<A, decltype(void(&A::derivative_by_value))> = true;

// The derivative, of what the op's forward pass saved: x, or the value.
template <class A, class T>
FASTACT_HD T derivative_by_saved(const A& activation, T saved) {
  if constexpr (kSavesValue<A>)
    return activation.derivative_by_value(saved);
  else
    return activation.derivative(saved);
}

// Whether it is curved; the others are linear in pieces.
template <class A, class = void>
constexpr bool kIsCurved = false;
template <class A>
constexpr bool kIsCurved<A, decltype(void(&A::second))> = true;

// The derivative of derivative_by_saved.
template <class A, class T>
FASTACT_HD T second_by_saved(const A& activation, T saved) {
  if constexpr (kSavesValue<A>)
    return activation.second_by_value(saved);
  else if constexpr (kIsCurved<A>)
    return activation.second(saved);
  else
    return unless_nan(saved, T(0));
}

// The one list: the lines of each file, X(name, Struct). A choice among several structs by a
// string, as gelu's, has a line a struct: gelu_tanh is gelu(approximate="tanh").
#define FASTACT_ACTIVATIONS(X) \
  FASTACT_PIECEWISE(X)         \
  FASTACT_EXPONENTIAL_UNITS(X) \
  FASTACT_GELUS(X)             \
  FASTACT_MISHES(X)            \
  FASTACT_SIGMOIDS(X)          \
  FASTACT_TANHS(X)

#define FASTACT_ENUMERATE(name, Struct) k_##name,
enum Activation : int { FASTACT_ACTIVATIONS(FASTACT_ENUMERATE) kActivations };
#undef FASTACT_ENUMERATE

#define FASTACT_NAME(name, Struct) #name,
constexpr const char* kActivationNames[] = {FASTACT_ACTIVATIONS(FASTACT_NAME)};
#undef FASTACT_NAME

#define FASTACT_SAVES_VALUE(name, Struct) kSavesValue<Struct<float>>,
constexpr bool kActivationSavesValue[] = {FASTACT_ACTIVATIONS(FASTACT_SAVES_VALUE)};
#undef FASTACT_SAVES_VALUE

FASTACT_END_NAMESPACE
