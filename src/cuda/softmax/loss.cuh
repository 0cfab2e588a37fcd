// The loss of a row of cross_entropy (common/softmax/loss.h); softmax.cu explains the kernels.
#pragma once

#include "common/softmax/loss.h"
#include "cuda/softmax/statistic.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

struct Loss {
  double loss, weight;
};

// The class that a row's index names. -1: it is ignored; -2: there is no such class.
template <class Rows>
FASTACT_DEVICE int64_t class_of(const Rows& rows, int64_t row) {
  const char* p = number_address(rows, kTarget, row);
  const int64_t index = rows.dtypes.target == kI32
                            ? int64_t(load(reinterpret_cast<const int32_t*>(p)))
                            : load(reinterpret_cast<const int64_t*>(p));
  if (index == rows.loss.ignore_index) return -1;
  return index >= 0 && index < rows.length ? index : -2;
}
// The element of a class.
template <class Rows>
FASTACT_DEVICE int64_t element_of(const Rows& rows, int64_t index) {
  return rows.is_reversed ? rows.length - 1 - index : index;
}

// One logit.
template <class T, class Rows>
FASTACT_DEVICE Compute<T> logit_of(const Rows& rows, int64_t row, int64_t element) {
  const char* p = rows.data[kX];
  if constexpr (Rows::kColumns) {
    const int64_t outer = quotient(row, rows.inner), at = row - outer * rows.inner;
    p += outer * rows.pitch[kX] + element * rows.step[kX] +
         (rows.repeated[kX] ? 0 : at * int(sizeof(T)));
  } else if constexpr (Rows::kDense) {
    p += row * rows.pitch[kX] + element * rows.step[kX];
  } else {
    p += offset_of(rows.table, kX, row, element);
  }
  return widen(load(reinterpret_cast<const T*>(p)));
}

// The loss of a row, and its weight in the mean. max and log: the row's level has them.
template <class T, class Rows>
FASTACT_DEVICE Loss loss_of(const Rows& rows, int64_t row, double mass, double apart,
                            Compute<T> max, Compute<T> log, bool has_shares) {
  using C = Compute<T>;
  Loss loss{loss_of_lse(rows.loss.z_loss, double(max) + double(log)), 1};
  if (has_shares) loss.loss += loss_of_shares(apart, mass, double(log));
  if (rows.data[kDy]) return loss;
  const int64_t index = class_of(rows, row);
  if (index == -1) return {0, 0};
  if (index < 0) return {__builtin_nan(""), __builtin_nan("")};
  const int64_t element = element_of(rows, index);
  const C weight = class_weight<T>(rows, row, element);
  const C share = C(rows.loss.smoothing.keep) * weight;
  loss.loss +=
      double(loss_of_index(share, max, log, [&] { return logit_of<T>(rows, row, element); }));
  loss.weight = double(weight);
  return loss;
}
// Calls it, for the reason of level_called.
template <class T, class Rows>
FASTACT_DEVICE_CALL Loss loss_called(const Rows& rows, int64_t row, double mass, double apart,
                                     Compute<T> max, Compute<T> log, bool has_shares) {
  return loss_of<T>(rows, row, mass, apart, max, log, has_shares);
}

}  // namespace
FASTACT_END_NAMESPACE
