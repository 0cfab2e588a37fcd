// Rotary position embedding: pairs of elements, turned by an angle (Su et al., arXiv:2104.09864).
//
// Of a pair a, b and its angle's cosine and sine
//     y_a = a cos - b sin,    y_b = b cos + a sin.
// Each product is rounded, and then their difference or sum. So the published formula in the
// compute type has the same bits, on every device and instruction set: a fused multiply-add would
// have others. An error is at most u (|a cos| + |b sin| + |y|), and u (|a cos| + |b sin|) more
// where wider cosines and sines are rounded before.
//
// Backward turns back: the matrix of a rotation is orthogonal, so its transpose has -sin for sin.
// Where cos^2 + sin^2 is not 1, as with a scale in both, it is the transpose all the same.
#pragma once

#include "common/core/call.h"
#include "common/core/macros.h"

namespace fastact {

struct RotaryCall {
  enum Data : int { kA, kB, kCos, kSin, kPositions, kOutA, kOutB, kArrays };

  ArrayArgument data[kArrays];  // with the axes of a
  int axis;                     // of the pairs
  bool turns_back;
  bool accumulate;  // what is written is added to
  const char* op;   // whose name errors begin with; null: rotary
};

inline const char* problem_of_rotary(const void* given) {
  const RotaryCall& call = *static_cast<const RotaryCall*>(given);
  const ArrayArgument &a = call.data[RotaryCall::kA], &cos = call.data[RotaryCall::kCos],
                      &positions = call.data[RotaryCall::kPositions];
  const char* const wrong = "cos must broadcast to a's shape, or with positions be a table of rows";
  if (positions.shape) {
    if (positions.shape[call.axis] != 1) return "positions must have length 1 along the axis";
    return cos.ndim == 2 && cos.shape[1] == a.shape[call.axis] ? nullptr : wrong;
  }
  if (cos.ndim != a.ndim || cos.shape[call.axis] != a.shape[call.axis]) return wrong;
  for (int i = 0; i < a.ndim; ++i)
    if (cos.shape[i] != 1 && cos.shape[i] != a.shape[i]) return wrong;
  return nullptr;
}

// out_a OUT, out_b OUT = a IN, b IN, turned by cos IN and sin IN (or back), or IN/OUT += with
// accumulate. The pairs lie along `axis`. With positions IN cos and sin are tables, and each
// position names a row of both. out_a and out_b are a and b, or disjoint from all.
constexpr Field kRotaryFields[] = {
    fields::in<&RotaryCall::data, RotaryCall::kA>("a"),
    fields::in<&RotaryCall::data, RotaryCall::kB>("b").like("a"),
    fields::axis<&RotaryCall::axis>("axis", "a"),
    fields::in<&RotaryCall::data, RotaryCall::kCos>("cos").wide_enough("a"),
    fields::in<&RotaryCall::data, RotaryCall::kSin>("sin").like("cos"),
    fields::in<&RotaryCall::data, RotaryCall::kPositions>("positions")
        .beside("a")
        .index()
        .optional(),
    fields::out<&RotaryCall::data, RotaryCall::kOutA>("out_a").like("a"),
    fields::out<&RotaryCall::data, RotaryCall::kOutB>("out_b").like("a"),
    fields::in<&RotaryCall::turns_back>("turns_back"),
    fields::in<&RotaryCall::accumulate>("accumulate"),
    fields::in<&RotaryCall::op>("op").optional(),
};
constexpr CallTable kRotary = table_of_call<RotaryCall>("rotary", kRotaryFields, problem_of_rotary);

// The arrays of a call with the axes of a: in the place of a table its first row, which repeats.
struct RotaryOperands {
  Operand arrays[RotaryCall::kArrays];
  int dtypes[RotaryCall::kArrays];
  int64_t items[RotaryCall::kArrays];
  int64_t table_rows = 0;   // 0: cos is no table
  int64_t table_step[2]{};  // bytes from a row of cos, of sin, to the next one
  int64_t shape[kMaxAxes], strides[2][kMaxAxes] = {};
  AxisFlags pairs{};

  explicit RotaryOperands(const RotaryCall& call) {
    for (int k = 0; k < RotaryCall::kArrays; ++k) {
      arrays[k] = call.data[k], dtypes[k] = call.data[k].dtype;
      items[k] = item_size(dtypes[k]);
    }
    pairs.flags[call.axis] = true;
    if (!arrays[RotaryCall::kPositions].shape) return;
    const Operand& a = arrays[RotaryCall::kA];
    for (int i = 0; i < a.ndim; ++i) shape[i] = i == call.axis ? a.shape[i] : 1;
    table_rows = arrays[RotaryCall::kCos].shape[0];
    for (int k = 0; k < 2; ++k) {
      Operand& table = arrays[RotaryCall::kCos + k];
      const int64_t item = items[RotaryCall::kCos + k];
      table_step[k] = byte_stride(table, 0, item);
      strides[k][call.axis] = byte_stride(table, 1, item);
      table = {table.data, a.ndim, shape, strides[k], 1};
    }
  }
  RotaryOperands(const RotaryOperands&) = delete;
  RotaryOperands& operator=(const RotaryOperands&) = delete;
};

}  // namespace fastact

FASTACT_BEGIN_NAMESPACE

template <class C>
struct Turned {
  C a, b;
};
// back: -sine, for whoever lets the compiler see two subtractions. Of a difference and a sum side
// by side GCC 12 makes fused multiply-adds (vfmaddsub) in spite of -ffp-contract=off.
template <class C>
FASTACT_HD Turned<C> turned(C a, C b, C cosine, C sine, C back) {
  return {a * cosine - b * sine, b * cosine - a * back};
}

FASTACT_END_NAMESPACE
