// Terms that sums make of each element of an array: one struct a term, and the one list of them.
//
//   of(x)             the term of an element, or of a vector of them, in double; of 0 it is 0
//   gradient(dy, x)   dy times the term's derivative, in the type in which x is computed
//
// The kernels of both devices are made of the list: a sum over any axes (cpu/reductions/kernels.h,
// cuda/reductions/kernels.cuh), and the element-wise gradient. To add a term: its struct and its
// line here, an op in python/fastact/ops/reductions.py, and its formula in
// python/fastact/check/expected/reductions.py.
#pragma once

#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

struct Itself {
  template <class V>
  static FASTACT_HD V of(V x) {
    return x;
  }
  template <class T>
  static FASTACT_HD T gradient(T dy, T) {
    return dy;
  }
};

// For float and narrower it is exact. The gradient is doubled last, so that it overflows only where
// dx does.
struct Square {
  template <class V>
  static FASTACT_HD V of(V x) {
    return x * x;
  }
  template <class T>
  static FASTACT_HD T gradient(T dy, T x) {
    const T product = dy * x;
    return product + product;
  }
};

// 0 where x is NaN.
struct Valid {
  template <class V>
  static FASTACT_HD V of(V x) {
    return x == x ? x : V{};
  }
  template <class T>
  static FASTACT_HD T gradient(T dy, T x) {
    return x == x ? dy : T{};
  }
};

// The one list. X(name, Struct): the name is the one by which Python's ops ask for the term.
#define FASTACT_TERMS(X) \
  X(identity, Itself)    \
  X(square, Square)      \
  X(valid, Valid)

#define FASTACT_ENUMERATE(name, Struct) k##Struct,
enum Term : int { FASTACT_TERMS(FASTACT_ENUMERATE) kTerms };
#undef FASTACT_ENUMERATE

#define FASTACT_NAME(name, Struct) #name,
constexpr const char* kTermNames[] = {FASTACT_TERMS(FASTACT_NAME)};
#undef FASTACT_NAME

FASTACT_END_NAMESPACE
