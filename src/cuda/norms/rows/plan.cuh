// The plan of a norm, made on the host: from axes to rows and their elements.
//
// The axes are sorted into four classes, outermost first, and within a class by the strides of x:
//
//   batch    counts rows, and repeats the parameters       row     = batch * groups + group
//   groups   counts rows, and the parameters
//   params   inside a row, and counts the parameters       element = param * run + pixel
//   pixels   inside a row, and repeats the parameters      parameter index = group * params + param
//
// layer_norm has a batch and params; group_norm a batch, groups, params and (NCHW) pixels;
// instance_norm a batch, groups and pixels. Without weight and bias there are only batch and
// pixels.
#pragma once

#include <algorithm>
#include <utility>

#include "cuda/norms/rows/norms.h"
#include "cuda/reductions/tile_loader.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

enum NormRole { kMeanRole = 4, kRstdRole, kWeightRole, kBiasRole, kNormRoles };
constexpr int kNormAxes = 32;  // that do not merge: more take over 2^32 elements

template <class T>
constexpr int kDTypeOf = sizeof(T) == 8 ? kF64 : kF32;
template <>
constexpr int kDTypeOf<f16> = kF16;
template <>
constexpr int kDTypeOf<bf16> = kBF16;

// Where an element of a row is in arrays of any strides.
struct NormTable {
  int row_axes, count;  // axes that count rows, and all axes
  int64_t length[kNormAxes];
  int64_t stride[kNormRoles][kNormAxes];  // bytes
};

// The parameters of the kernels. Roles 0 to 3 are the arrays of NormCall::data.
struct NormRows {
  static constexpr bool kDense = true;  // a row's elements are neighbours; rows are a pitch apart

  char* data[kNormRoles];
  int64_t pitch[kNormRoles];  // bytes from row to row; of parameters, from one to the next
  bool fast[kNormRoles];      // rows of data begin at multiples of 16 bytes; parameters touch
  bool repeated[4];           // one element stands for all
  bool windows[4];            // nobody writes what neighbours hold
  bool quick;                 // whole vectors of data are all fast, and so are their parameters,
                              // which are taken as they are
  int weight_dtype, bias_dtype;

  int64_t batch, groups, count;
  int64_t length, params, run;  // length = params * run
  int lanes;                    // threads of a row
  int teams;                    // rows of a block at a time
  int per_lane;                 // vectors of a thread
  int resident;                 // of those, cached in shared memory
  int run_vecs;  // quick rows: vectors that share a parameter; 0: each element has its own

  int which;
  double parameters[kMaxParameters];
  double eps, weight_offset;
  bool is_centred, accumulate, casts;
};

struct NormStrided : NormRows {
  static constexpr bool kDense = false;
  NormTable table;
};

struct NormPlan {
  NormStrided rows;
  bool is_dense;
  int threads;
  // Of the gradients of weight and bias: their axes, groups and params.
  int param_axes;
  int64_t param_length[kNormAxes], param_stride[2][kNormAxes];
  char* param_data[2];
  int64_t param_count() const { return rows.groups * rows.params; }
};

struct NormAxis {
  int64_t length;
  int64_t stride[kNormRoles + 2];  // then dweight and dbias
  int kind;                        // of the four classes
};

// Whether the axes [first, end) step as one of `step` bytes.
bool is_linear(const NormAxis* axes, int first, int end, int role, int64_t* step) {
  *step = end > first ? axes[end - 1].stride[role] : 0;
  int64_t expected = *step;
  for (int i = end; i-- > first; expected *= axes[i].length)
    if (axes[i].stride[role] != expected) return false;
  return true;
}

bool repeats(const NormAxis* axes, int count, int role) {
  return std::all_of(axes, axes + count, [&](const NormAxis& a) { return a.stride[role] == 0; });
}

// lead: the role whose strides sort the axes. outputs: one flag per role of data.
template <class T>
NormPlan plan_norm(const NormCall& call, int lead, const bool (&outputs)[4]) {
  NormPlan plan{};
  NormRows& rows = plan.rows;
  const Operand* const operands[] = {&call.data[0], &call.data[1], &call.data[2], &call.data[3],
                                     &call.mean,    &call.rstd,    &call.weight,  &call.bias,
                                     &call.dweight, &call.dbias};
  constexpr int kAll = kNormRoles + 2;
  int64_t item[kAll];
  char* data[kAll];
  for (int k = 0; k < kAll; ++k) {
    item[k] = k < 4 ? int64_t(sizeof(T)) : int64_t(sizeof(Compute<T>));
    if (k == kWeightRole || k == kNormRoles) item[k] = item_size(call.weight_dtype);
    if (k == kBiasRole || k == kNormRoles + 1) item[k] = item_size(call.bias_dtype);
    data[k] = operands[k]->data;
  }
  const bool has_parameters = call.weight.data || call.bias.data;

  NormAxis axes[kMaxAxes];
  int count = 0;
  const Operand& shape = call.data[lead];
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape.shape[i] == 1) continue;
    NormAxis axis{shape.shape[i], {}, 0};
    const bool of_parameter = has_parameters && call.of_parameter[i];
    axis.kind = call.reduced[i] ? (of_parameter ? 2 : 3) : of_parameter ? 1 : 0;
    for (int k = 0; k < kAll; ++k)
      if (data[k] && operands[k]->shape[i] != 1)
        axis.stride[k] = byte_stride(*operands[k], i, item[k]);
    if (axis.stride[lead] < 0) {
      for (int k = 0; k < kAll; ++k) {
        if (data[k]) data[k] += (axis.length - 1) * axis.stride[k];
        axis.stride[k] = -axis.stride[k];
      }
    }
    axes[count++] = axis;
  }
  const auto comes_before = [&](const NormAxis& a, const NormAxis& b) {
    const int64_t x = a.stride[lead], y = b.stride[lead];
    if (a.kind != b.kind) return a.kind < b.kind;
    return (x == 0) != (y == 0) ? x == 0 : x > y;
  };
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && comes_before(axes[j], axes[j - 1]); --j)
      std::swap(axes[j], axes[j - 1]);
  int merged = 0;
  for (int i = 0; i < count; ++i) {
    bool merge = merged > 0 && axes[merged - 1].kind == axes[i].kind;
    for (int k = 0; k < kAll && merge; ++k)
      merge = axes[merged - 1].stride[k] == axes[i].stride[k] * axes[i].length;
    const int64_t outer = merge ? axes[merged - 1].length : 1;
    const int at = merge ? merged - 1 : merged++;
    axes[at] = axes[i];
    axes[at].length *= outer;
  }
  count = merged;
  if (count > kNormAxes)
    throw std::invalid_argument("fastact: the axes of a norm are more than its kernels know");

  int64_t lengths[4] = {1, 1, 1, 1};
  int ends[4] = {};
  for (int i = 0; i < count; ++i) lengths[axes[i].kind] *= axes[i].length;
  for (int kind = 0; kind < 4; ++kind)
    ends[kind] =
        int(std::count_if(axes, axes + count, [&](const NormAxis& a) { return a.kind <= kind; }));
  rows.batch = lengths[0], rows.groups = lengths[1];
  rows.params = lengths[2], rows.run = lengths[3];
  rows.count = rows.batch * rows.groups, rows.length = rows.params * rows.run;

  NormTable& table = plan.rows.table;
  table.row_axes = ends[1], table.count = count;
  for (int i = 0; i < count; ++i) {
    table.length[i] = axes[i].length;
    for (int k = 0; k < kNormRoles; ++k) table.stride[k][i] = axes[i].stride[k];
  }
  for (int i = ends[0]; i < ends[2]; ++i) {
    plan.param_length[plan.param_axes] = axes[i].length;
    for (int k = 0; k < 2; ++k)
      plan.param_stride[k][plan.param_axes] = axes[i].stride[kNormRoles + k];
    ++plan.param_axes;
  }

  plan.param_data[0] = data[kNormRoles], plan.param_data[1] = data[kNormRoles + 1];

  plan.is_dense = true;
  rows.weight_dtype = call.weight_dtype, rows.bias_dtype = call.bias_dtype;
  for (int k = 0; k < kNormRoles; ++k) {
    rows.data[k] = data[k];
    if (!data[k]) continue;
    int64_t step = item[k];
    const auto address = reinterpret_cast<uintptr_t>(data[k]);
    if (k < 4) {
      rows.repeated[k] = !outputs[k] && repeats(axes, count, k);
      plan.is_dense &= is_linear(axes, 0, ends[1], k, &rows.pitch[k]);
      if (rows.length > 1) plan.is_dense &= is_linear(axes, ends[1], count, k, &step);
      plan.is_dense &= rows.repeated[k] || step == item[k];
      rows.fast[k] = !rows.repeated[k] && (address | uintptr_t(rows.pitch[k])) % kVecBytes == 0;
      rows.windows[k] = true;
      for (int other = 0; other < 4; ++other)
        if (outputs[other] && call.data[other].data == call.data[k].data) rows.windows[k] = false;
    } else if (k < kWeightRole) {
      plan.is_dense &= is_linear(axes, 0, ends[1], k, &rows.pitch[k]);
    } else {
      plan.is_dense &= is_linear(axes, ends[0], ends[2], k, &rows.pitch[k]);
      const bool begins =
          address % kVecBytes == 0 && (rows.groups == 1 || rows.params * item[k] % kVecBytes == 0);
      rows.fast[k] = begins && rows.pitch[k] == item[k];
    }
    plan.is_dense &= address % uintptr_t(item[k]) == 0;  // checked before: any other is refused
  }
  constexpr int64_t kSize = Vec<T>::kSize;
  const bool runs = rows.run > 1 && has_parameters;
  rows.quick = plan.is_dense && rows.length < INT32_MAX && (!runs || rows.run % kSize == 0);
  rows.run_vecs = runs ? int(std::min<int64_t>(rows.run / kSize, INT32_MAX)) : 0;
  for (int k = 0; k < 4; ++k) rows.quick &= !data[k] || rows.fast[k];
  for (int k = kWeightRole; k < kNormRoles && !runs; ++k) {
    const int dtype = k == kWeightRole ? rows.weight_dtype : rows.bias_dtype;
    const bool known = dtype == kDTypeOf<T> || (sizeof(T) == 2 && dtype == kF32);
    rows.quick &= !data[k] || (rows.fast[k] && known);
  }
  rows.casts = sizeof(T) == 2 && call.casts, rows.weight_offset = call.weight_offset;
  rows.quick &= !rows.casts && rows.weight_offset == 0;
  rows.which = call.which;
  if (call.parameters)
    std::copy(call.parameters, call.parameters + kMaxParameters, rows.parameters);
  rows.eps = call.eps;
  rows.is_centred = call.is_centred, rows.accumulate = call.accumulate;
  return plan;
}

}  // namespace
FASTACT_END_NAMESPACE
