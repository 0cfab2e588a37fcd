// How a thread of a norm's kernels reads vectors of parameters, and what gates are.
#pragma once

#include <type_traits>

#include "cuda/activations/fixed.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_io.cuh"
#include "cuda/norms/rows/plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// A gate multiplies x or z by f of a second array.
struct NoGate {
  static constexpr bool kIsThere = false, kIsFixed = false, kIsFirst = false;
};
// An activation that is chosen at run time, before or behind the norm.
struct AnyGate {
  static constexpr bool kIsThere = true, kIsFixed = false, kIsFirst = false;
  template <class T, class Rows>
  static FASTACT_DEVICE Wide<T> value(const Rows& rows, const Wide<T>& gate) {
    return activate<T>(rows.which, rows.parameters, gate);
  }
};
// The one of published models, which is compiled in, of quick rows.
constexpr int kFixedGate = k_silu;
template <bool is_first>
struct FixedGate {
  static constexpr bool kIsThere = true, kIsFixed = true, kIsFirst = is_first;
  template <class T, class Rows>
  static FASTACT_DEVICE Wide<T> value(const Rows& rows, const Wide<T>& gate) {
    return typename Numbered<kFixedGate, T>::Type(rows.parameters).value(gate);
  }
};

// Eight floats from `first` on, for vectors of 16-bit data.
template <class T>
FASTACT_DEVICE Wide<T> floats_of(const char* base, int64_t first) {
  const float* p = reinterpret_cast<const float*>(base) + first;
  const Vec<float> low = load_vec(p), high = load_vec(p + 4);
  Wide<T> wide;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j)
    wide.lane[j] = Compute<T>(j < 4 ? low.lane[j % 4] : high.lane[j % 4]);
  return wide;
}

// The group of parameters that a row has.
FASTACT_DEVICE int64_t group_of(const NormRows& rows, int64_t row) {
  return rows.groups > 1 ? row - quotient(row, rows.groups) * rows.groups : 0;
}
// The parameters of a group, or null.
FASTACT_DEVICE const char* parameters_base(const NormRows& rows, int role, int64_t group) {
  const char* const base = rows.data[role];
  return base ? base + group * rows.params * rows.pitch[role] : base;
}

// A weight or a bias has a dtype and an offset, and a number stands for one that is not there.
FASTACT_DEVICE int parameter_dtype(const NormRows& rows, int role) {
  return role == kWeightRole ? rows.weight_dtype : rows.bias_dtype;
}
FASTACT_DEVICE double parameter_offset(const NormRows& rows, int role) {
  return role == kWeightRole ? rows.weight_offset : 0.0;
}
template <class T>
FASTACT_DEVICE Compute<T> without_parameter(int role) {
  return Compute<T>(role == kWeightRole);
}

// The parameters of the q-th vector of a row. base: where the group of the row begins.
template <class T, class Rows>
FASTACT_DEVICE_CALL Wide<T> parameters_slow_path(const Rows& rows, int role, const char* base,
                                                 int64_t row, int64_t q, int valid) {
  constexpr int kSize = Vec<T>::kSize;
  const int dtype = parameter_dtype(rows, role);
  const double offset = parameter_offset(rows, role);
  Wide<T> wide{};
  if constexpr (Rows::kDense) {
    const int64_t first = q * kSize;
    int64_t param = quotient(first, rows.run);
    int64_t left = rows.run - (first - param * rows.run);  // elements of the same parameter
    const char* p = base + param * rows.pitch[role];
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      wide.lane[j] = load_parameter<T>(p, dtype, offset);
      if (--left > 0) continue;
      left = rows.run;
      p += rows.pitch[role];
    }
  } else {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (j >= valid) break;
      const int64_t at = offset_of(rows.table, role, row, q * kSize + j);
      wide.lane[j] = load_parameter<T>(rows.data[role] + at, dtype, offset);
    }
  }
  return wide;
}
template <class T, class Rows>
FASTACT_DEVICE Wide<T> parameters_of(const Rows& rows, int role, int64_t row, int64_t q,
                                     int valid) {
  constexpr int kSize = Vec<T>::kSize;
  if (!rows.data[role]) return repeat<T>(without_parameter<T>(role));
  const char* base = rows.data[role];
  if constexpr (Rows::kDense) {
    base = parameters_base(rows, role, group_of(rows, row));
    const int dtype = parameter_dtype(rows, role);
    const double offset = parameter_offset(rows, role);
    const int64_t first = q * kSize;
    if (rows.run > 1) {
      const int64_t param = quotient(first, rows.run);
      if (rows.run - (first - param * rows.run) >= valid)  // one for all
        return repeat<T>(load_parameter<T>(base + param * rows.pitch[role], dtype, offset));
    } else if (rows.fast[role] && valid >= kSize && offset == 0) {
      if (dtype == kDTypeOf<T>)
        return widen_vec(load_vec(reinterpret_cast<const T*>(base) + first));
      if (sizeof(T) == 2 && dtype == kF32) return floats_of<T>(base, first);
    }
  }
  return parameters_slow_path<T>(rows, role, base, row, q, valid);
}

template <class T, class Rows>
FASTACT_DEVICE Wide<T> weight_of(const Rows& rows, int64_t row, int64_t q, int valid) {
  return parameters_of<T>(rows, kWeightRole, row, q, valid);
}
template <class T, class Rows>
FASTACT_DEVICE Wide<T> bias_of(const Rows& rows, int64_t row, int64_t q, int valid) {
  return parameters_of<T>(rows, kBiasRole, row, q, valid);
}

// The numbers rounded to 16 bits, where the norm casts. Loops over quick rows, which never cast,
// say false.
template <class T>
FASTACT_DEVICE Wide<T> cast_if(bool casts, const Wide<T>& wide) {
  if constexpr (sizeof(T) == 2)
    if (casts) return widen_vec(narrow_vec<T>(wide));
  return wide;
}
template <class T>
FASTACT_DEVICE Wide<T> product_of(const Wide<T>& a, const Wide<T>& b) {
  Wide<T> product;
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) product.lane[j] = a.lane[j] * b.lane[j];
  return product;
}

// How the parameters of quick rows are given. Loops over vectors are instantiated for each way.
enum Given {
  kNothing,  // not at all
  kVecs,     // as vectors of T
  kAnyVecs,  // not, as vectors of T or of float: tested for each vector
  kRuns,     // as numbers of T for runs of elements, or not
  kOne,      // as one number for the whole row, or not
  kAnyRuns,  // as numbers of any dtype for runs of elements, or not
};
template <Given given>
using Way = std::integral_constant<Given, given>;

// The parameters of the q-th vector of a row of a group.
template <class T, Given given>
struct QuickParameters {
  static constexpr int kSize = Vec<T>::kSize;
  const NormRows& rows;
  int role, dtype;
  const char* base = nullptr;
  Compute<T> one;  // of all elements

  FASTACT_DEVICE QuickParameters(const NormRows& of, int in, int64_t group)
      : rows(of), role(in), dtype(parameter_dtype(of, in)), one(without_parameter<T>(in)) {
    if (given != kNothing) base = parameters_base(rows, role, group);
    if (given == kOne && base) one = load_parameter<T>(base, dtype);
  }
  FASTACT_DEVICE Wide<T> operator()(int q) const {
    if (given == kNothing || given == kOne || (given != kVecs && !base)) return repeat<T>(one);
    if constexpr (given == kRuns || given == kAnyRuns) return of_runs(unsigned(q) * kSize);
    const int64_t first = int64_t(q) * kSize;
    if (given == kAnyVecs && sizeof(T) == 2 && dtype != kDTypeOf<T>)
      return floats_of<T>(base, first);
    return widen_vec(load_vec(reinterpret_cast<const T*>(base) + first));
  }

 private:
  FASTACT_DEVICE Compute<T> number(unsigned param) const {
    const char* const p = base + param * rows.pitch[role];
    return given == kRuns ? Compute<T>(widen(load(reinterpret_cast<const T*>(p))))
                          : load_parameter<T>(p, dtype);
  }
  // A vector may have elements of two runs.
  FASTACT_DEVICE Wide<T> of_runs(unsigned first) const {
    const unsigned run = unsigned(rows.run), param = rows.runs.quick(first);
    const unsigned left = (param + 1) * run - first;
    Wide<T> wide = repeat<T>(number(param));
    if (rows.whole_runs) return wide;
    const Compute<T> next = number(param + (left < kSize && param + 1 < unsigned(rows.params)));
#pragma unroll
    for (int j = 1; j < kSize; ++j) wide.lane[j] = unsigned(j) < left ? wide.lane[j] : next;
    return wide;
  }
};

}  // namespace
FASTACT_END_NAMESPACE
