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

#include "common/norms/call.h"
#include "common/norms/rows.h"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_plan.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kDataRoles = NormCall::kData;
enum NormRole { kMeanRole = kDataRoles, kRstdRole, kWeightRole, kBiasRole, kNormRoles };
constexpr int kGateRole = NormCall::kGate, kDGateRole = NormCall::kDGate;

// How rows and their elements share parameters.
struct NormParameters {
  int64_t batch, groups;
  int64_t params, run;  // length = params * run
  double per_length;    // 1 / length
  Divisor runs;         // by run
  bool whole_runs;      // quick rows: no vector has elements of two runs
};

// The parameters of the kernels. The first roles are the arrays of NormCall::data. Weight and bias
// have a pitch from one number to the next, and are fast where their numbers touch.
struct NormRows : RowArrays<kNormRoles>, NormParameters {
  using Slow = NormRows;
  static constexpr bool kByElement = false, kHasFixedGate = false;

  bool quick;  // data are whole fast vectors, and so are weight and bias, which need no offset and
               // no cast
  int weight_dtype, bias_dtype;

  int which;
  double parameters[kMaxParameters];
  double eps, weight_offset;
  RowNorm norm;
  bool accumulate, casts, gate_first;

  FASTACT_HD bool has_gate() const { return data[kGateRole]; }
  FASTACT_HD bool writes_dx() const {
    return data[NormCall::kDx] || (gate_first && data[kDGateRole]);
  }
};

// Quick rows without an activation. Their kernels have no tests for each vector and no call, which
// would spill registers.
struct NormQuick : NormRows {
  static constexpr bool kQuick = true, kWhole = true, kHasRuns = false, kClusters = true;
};

// Quick rows forward where several elements of a row share a parameter. A kernel has the registers
// of the worst way to read parameters, and theirs takes more than vectors of them.
struct NormRuns : NormQuick {
  static constexpr bool kHasRuns = true, kClusters = false;
};

// Rows without an activation that are misaligned or no whole vectors: element by element. Forward
// they are short and touch, and come through shared memory.
struct NormElements : NormRuns {
  static constexpr bool kWhole = false, kByElement = true;
};

// Quick rows of one parameter an element, backward of a norm with a gate whose activation is
// compiled in (gated_backward.cuh). is_first: gate_first of the call.
template <bool is_first>
struct NormQuickGated : NormQuick {
  static constexpr bool kHasFixedGate = true, kGateFirst = is_first;
  uint32_t pitch_vecs[kDataRoles];  // pitch of the data, in vectors
};

struct NormStrided : NormRows {
  using Slow = NormStrided;
  static constexpr bool kDense = false;
  RowTable<kNormRoles> table;
};

struct NormPlan {
  NormStrided rows;
  bool is_dense;
  RowShape shape;
  // The axes of the gradients of weight and bias: groups and params.
  Axes param_axes[2];
  char* param_data[2];
  int64_t param_count() const { return rows.groups * rows.params; }
};

// lead: the role whose strides sort the axes. outputs: one flag per role of data.
template <class T>
NormPlan plan_norm(const NormCall& call, int lead, const bool (&outputs)[kDataRoles]) {
  NormPlan plan{};
  NormRows& rows = plan.rows;
  const Operand operands[] = {call.data[0], call.data[1], call.data[2], call.data[3],
                              call.data[4], call.data[5], call.mean,    call.rstd,
                              call.weight,  call.bias,    call.dweight, call.dbias};
  constexpr int kAll = kNormRoles + 2;
  int64_t item[kAll];
  for (int k = 0; k < kAll; ++k) {
    item[k] = k < kDataRoles ? int64_t(sizeof(T)) : int64_t(sizeof(Compute<T>));
    if (k == kWeightRole || k == kNormRoles) item[k] = item_size(call.weight.dtype);
    if (k == kBiasRole || k == kNormRoles + 1) item[k] = item_size(call.bias.dtype);
  }
  const bool has_parameters = call.weight.data || call.bias.data;
  const RowAxes<kAll> axes(operands, item, lead, false, [&](int i) {
    const bool of_parameter = has_parameters && call.of_parameter[i];
    return call.reduced[i] ? (of_parameter ? 2 : 3) : of_parameter ? 1 : 0;
  });
  const auto& data = axes.data;
  const int count = axes.count;
  int ends[4];
  for (int kind = 0; kind < 4; ++kind) ends[kind] = axes.end_of(kind);
  rows.batch = axes.size_of(0), rows.groups = axes.size_of(1);
  rows.params = axes.size_of(2), rows.run = axes.size_of(3);
  rows.count = rows.batch * rows.groups, rows.length = rows.params * rows.run;
  rows.per_length = 1.0 / double(rows.length);

  axes.fill(&plan.rows.table, ends[1]);
  for (int k = 0; k < 2; ++k) {
    plan.param_data[k] = data[kNormRoles + k];
    for (int i = ends[0]; i < ends[2]; ++i)
      plan.param_axes[k].append(axes.axes[i].length, 0, axes.axes[i].stride[kNormRoles + k]);
  }

  plan.is_dense = true;
  rows.weight_dtype = call.weight.dtype, rows.bias_dtype = call.bias.dtype;
  for (int k = 0; k < kNormRoles; ++k) {
    rows.data[k] = data[k];
    if (!data[k]) continue;
    int64_t step = item[k];
    const auto address = reinterpret_cast<uintptr_t>(data[k]);
    if (k < kDataRoles) {
      rows.repeated[k] = !outputs[k] && axes.repeats(k);
      plan.is_dense &= axes.is_linear(0, ends[1], k, &rows.pitch[k]);
      if (rows.length > 1) plan.is_dense &= axes.is_linear(ends[1], count, k, &step);
      plan.is_dense &= rows.repeated[k] || step == item[k];
      rows.fast[k] = !rows.repeated[k] && (address | uintptr_t(rows.pitch[k])) % kVecBytes == 0;
      rows.windows[k] = true;
      for (int other = 0; other < kDataRoles; ++other)
        if (outputs[other] && call.data[other].data == call.data[k].data) rows.windows[k] = false;
    } else if (k < kWeightRole) {
      plan.is_dense &= axes.is_linear(0, ends[1], k, &rows.pitch[k]);
    } else {
      plan.is_dense &= axes.is_linear(ends[0], ends[2], k, &rows.pitch[k]);
      const bool begins =
          address % kVecBytes == 0 && (rows.groups == 1 || rows.params * item[k] % kVecBytes == 0);
      rows.fast[k] = begins && rows.pitch[k] == item[k];
    }
    plan.is_dense &= address % uintptr_t(item[k]) == 0;  // always so: the call was checked
  }
  constexpr int64_t kSize = Vec<T>::kSize;
  const bool runs = rows.run > 1 && has_parameters;
  rows.quick = plan.is_dense && rows.length < INT32_MAX && (!runs || rows.run >= kSize);
  rows.runs = Divisor(rows.run, rows.length), rows.whole_runs = rows.run % kSize == 0;
  for (int k = 0; k < kDataRoles; ++k) rows.quick &= !data[k] || rows.fast[k];
  for (int k = kWeightRole; k < kNormRoles && !runs; ++k) {
    const int dtype = k == kWeightRole ? rows.weight_dtype : rows.bias_dtype;
    const bool known = dtype == kDTypeOf<T> || (sizeof(T) == 2 && dtype == kF32);
    rows.quick &= !data[k] || (rows.fast[k] && known);
  }
  rows.casts = sizeof(T) == 2 && call.casts, rows.weight_offset = call.weight_offset;
  rows.quick &= !rows.casts && rows.weight_offset == 0;
  rows.which = call.which;
  std::copy(call.parameters + 0, call.parameters + kMaxParameters, rows.parameters);
  rows.eps = eps_of(call.norm, call.eps);
  rows.norm = RowNorm(call.norm);
  rows.accumulate = call.accumulate && !call.dropped.data;  // then dx is added by dropout's kernel
  rows.gate_first = call.gate_first;
  return plan;
}

}  // namespace
FASTACT_END_NAMESPACE
