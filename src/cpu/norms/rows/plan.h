// The norms that a thread computes one normalization row at a time: the plan of forward and
// backward.
//
// A normalization row (common/norms/norms.h) is a row of StridedOperands (core/chunk_reader.h) and
// its elements are the columns. The work is done chunk by chunk in the compute type (or of
// 16 bits that lie contiguous, with AVX2, by kernels that convert them in registers), with the
// activation's kernel on a chunk that lies in the first-level cache: no norm knows any activation.
//
//   forward    pass 1 over the row: its moments (reductions/kernels.h), or sum of squares
//              pass 2, from the cache: z = xhat w + b, then f in place, then the store
//   backward   pass 1: p = dy f'(z), and the sums of p w and of p w xhat
//              pass 2, from the cache: dx, and the sums of the parameters' gradients. What is no
//              array that the kernels take is made once, of whole rows (backward_rows.h)
//
// Where x is dropped, forward makes the sum by dropout's kernels, and backward, of a chunk of dx
// that it has just stored, the gradient of x.
//
// The elements of a row share its parameters in one of these ways (ParameterLayout::Kind):
//
//   kPerRow       one weight and one bias a row (instance_norm)
//   kPerElement   one an element (layer_norm, rms_norm). Up to 16 rows, a band, go through pass 2
//                 together, chunk by chunk, so that a chunk of the parameters' sums stays in the
//                 first-level cache for all of them
//   kPerSpan      one a span of neighbours (group_norm of NCHW), whose two sums serve dx and the
//                 parameters
//   kMixed        anything else: the parameters are spread over a chunk, and their sums gathered
//                 from it
//   kChannelsLast the channels come last: all rows of an example are computed together, see
//                 norms/channels/groups.cpp. The channels are the columns, and a row of
//                 StridedOperands is then a pixel. Not where there is no mean, or a residual
//
// The sums of the parameters' gradients are of the compute type within a band and double beyond it.
// Each row of sums is over a fixed block of the batch, and these rows are merged in the order of
// the blocks: the bits do not depend on the number of threads. A workspace holds these rows, at
// most 32 of them and 16 MiB in all (a single one where it is longer than a million elements), and
// behind them what each thread of backward makes.
//
// A normalization row belongs to one thread. Measurements, and what was tried and rejected:
// docs/design/norms.md.
#pragma once

#include "common/norms/call.h"
#include "cpu/core/chunk_reader.h"
#include "cpu/core/kernel_table.h"
#include "cpu/norms/rows/kernels.h"
#include "cpu/reductions/reduce.h"

namespace fastact {

constexpr int64_t kLeastBlock = 16;  // rows for one row of sums
constexpr int64_t kLongSpan = 1024;  // elements of a span, from which it is worth a call

// The formula by which a norm computes results from a row's statistics and elements.
struct NormFormula : NormOptions {
  const NormKernels* kernels;       // of the compute type
  ElementwiseKernel activation;     // likewise, forward or backward
  ElementwiseKernel value_of_gate;  // backward: f of the gate, where `activation` is dy f'
  bool is_identity;  // the activation behind z: neither its value nor its derivative is computed
  bool drops;        // some of x, or of dx
  Dropout drop;      // where it does
};

// How rows and their elements share parameters. A row's index is (batch index * groups + group), a
// parameter's index numbers the elements of a parameter.
struct ParameterLayout {
  enum Kind { kPerRow, kPerElement, kPerSpan, kMixed, kChannelsLast };

  Kind kind;
  int64_t span;                                       // neighbours that share parameters
  int64_t batch, groups, pixels, parameters_per_row;  // the lengths of the four kinds of axes
  Axes parameter_index;                               // of each element of a row (x)

  int64_t parameter_count() const { return groups * parameters_per_row; }
  // Elements of a row, in spans, have one weight and one bias.
  bool has_shared_parameters() const { return kind == kPerRow || kind == kPerSpan; }
};

// The sums of the parameters' gradients: each row of them is over a block of the batch.
struct ParameterSums {
  int64_t block, chunks;   // entries of the batch in one row of sums, and the number of these rows
  double* partial;         // [dweight, dbias][chunks][parameter_count]
  Reducer dweight, dbias;  // where they go; y null: skipped

  bool has_sums() const { return dweight.y || dbias.y; }
};

struct Norm : NormFormula, ParameterLayout, ParameterSums {
  enum Forward { kX, kResidual, kSum, kY };  // the operands; those without data are absent
  enum Backward { kDy, kIn, kDSum, kDx };
  enum OfGate { kGate = NormCall::kGate, kDGate };  // of forward kDGate is not there
  // Operands of both: one number a row, parameters, and the places of their gradients.
  enum Companions { kMean = NormCall::kData, kRstd, kWeight, kBias, kDWeight, kDBias };
  // Dropout's result of dx, and the elements' numbers, by which it drops (cpu/bias/dropper.h).
  enum OfDropout { kDropped = kDBias + 1, kNumbers, kOperands };

  StridedOperands operands;
  const KernelTable* table;
  char* held;              // backward: memory for the rows that threads hold (backward_rows.h),
  int64_t held_bytes = 0;  // and how much of it each has

  int64_t rows() const { return operands.rows.size; }
  bool has_gate() const { return operands.data[kGate]; }
  bool has_parameters() const { return operands.data[kWeight] || operands.data[kBias]; }
  double offset_of(int parameter) const { return parameter == kWeight ? weight_offset : 0.0; }
  // Along a row, a parameter is read where it lies.
  bool is_direct(int parameter) const {
    return operands.is_direct[parameter] && offset_of(parameter) == 0.0;
  }
  // All rows have the same.
  bool is_shared(int parameter) const {
    bool is = true;
    for (int i = 0; i < operands.rows.count; ++i) is &= operands.rows.stride[parameter][i] == 0;
    return is;
  }
  int64_t row_bytes() const { return operands.columns.size * operands.compute_item; }
  int64_t spans_of_row() const { return operands.columns.size / span; }
  // Whether one call takes many spans of a row, if each lies in one piece and needs no buffer.
  bool has_short_spans() const {
    return has_shared_parameters() && span >= kLeastSpan && span < kLongSpan &&
           spans_of_row() <= kPiece;
  }
};

// The plan of a call that is not empty; a call of forward where `lead` is kX, of backward where it
// is kIn: the operand whose strides sort the axes. Sets all but `partial` and what threads hold.
void prepare(Norm* norm, const KernelTable* table, const NormCall& call, int lead);

// Bytes of scratch that the parameters' sums need, 0 where there are none; and that each thread of
// backward needs.
int64_t norm_sums_size(const Norm& norm);
int64_t norm_held_size(const Norm& norm);

// One partition of forward or of backward. After all of backward's: merge_norm_partition.
void norm_forward_partition(const Norm* norm, int64_t index, int64_t partitions);
void norm_backward_partition(const Norm* norm, int64_t index, int64_t partitions);
void merge_norm_partition(const Norm* norm, int64_t index, int64_t partitions);

// Partitions of kChannelsLast (channels/groups.cpp): the two above turn to them.
void group_forward_partition(const Norm* norm, int64_t index, int64_t partitions);
void group_backward_partition(const Norm* norm, int64_t index, int64_t partitions);

}  // namespace fastact
