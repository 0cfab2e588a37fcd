// From the axes of a norm's arrays to rows, elements and parameters (norms/rows/plan.h).
#include "cpu/norms/rows/plan.h"

#include <algorithm>

#include "cpu/activations/kernels.h"
#include "cpu/bias/dropper.h"
#include "cpu/core/span_iterator.h"

namespace fastact {
namespace {

constexpr int64_t kMostBlocks = 32;      // rows of sums
constexpr int64_t kFewPartitions = 4;    // where the batch is too small for that
constexpr int64_t kFewBlocks = 8;        // as many even where they are big
constexpr int64_t kSums = 4 << 20;       // bytes of them, where there are more than few
constexpr int64_t kMostSums = 16 << 20;  // bytes of them in any case

using NormAxis = Axis<kReaderOperands>;

// The kinds of axes: outside and inside a row, and of those the parameter's.
enum NormAxisKind { kBatch, kGroup, kPixel, kParameter };
bool is_reduced(const NormAxis& a) { return a.kind >= kPixel; }
bool is_of_parameter(const NormAxis& a) { return a.kind == kGroup || a.kind == kParameter; }

// to OUT: the axes, merged, with their strides in x and y.
void set_axes(Axes* to, Axis<2>* axes, int count) {
  to->count = 0, to->size = 1;
  count = merge_axes(axes, count);
  for (int i = 0; i < count; ++i) to->append(axes[i].length, axes[i].stride[0], axes[i].stride[1]);
}

// Whether the channels lie inside the pixels. axes: in the order of the caller's.
bool has_channels_last(const NormAxis* axes, int count, int lead) {
  NormAxis found[kMaxAxes];
  const int inside = int(
      std::copy_if(axes, axes + count, found, [](const NormAxis& a) { return a.kind != kBatch; }) -
      found);
  const auto pixels =
      std::count_if(found, found + inside, [](const NormAxis& a) { return !is_of_parameter(a); });
  if (pixels == 0 || pixels == inside) return false;
  order_axes(found, inside, lead);
  return std::none_of(found, found + pixels, is_of_parameter);
}

// Sets the place of a parameter's gradient.
void set_gradient(Reducer* r, const Norm& norm, int k, const NormAxis* axes, int count) {
  const StridedOperands& s = norm.operands;
  r->y = nullptr;
  if (!s.data[k]) return;
  r->table = norm.table->reduce;
  r->accumulate = norm.accumulate;
  Axis<2> found[kMaxAxes];
  int found_count = 0;
  auto bits = reinterpret_cast<uintptr_t>(s.data[k]);
  for (const int kind : {kGroup, kParameter})
    for (int i = 0; i < count; ++i)
      if (axes[i].kind == kind) {
        found[found_count++] = {axes[i].length, {0, axes[i].stride[k]}, 0};
        bits |= uintptr_t(axes[i].stride[k]);
      }
  set_axes(&r->outputs, found, found_count);
  set_output(r, s.data[k], s.dtypes[k], bits % uintptr_t(s.items[k]) == 0);
}

bool drops(const NormCall& call, int lead) {
  return lead == NormCall::kX ? call.p > 0 : call.dropped.data != nullptr;
}

// arrays OUT (Norm::kOperands): the operands in the order of Norm.
void set_operands(StridedOperands* s, const ConvertKernels* convert, const NormCall& call, int lead,
                  Operand* arrays) {
  const ArrayArgument* given[] = {&call.data[0], &call.data[1], &call.data[2], &call.data[3],
                                  &call.data[4], &call.data[5], &call.mean,    &call.rstd,
                                  &call.weight,  &call.bias,    &call.dweight, &call.dbias,
                                  &call.dropped};
  const ArrayArgument& x = call.data[lead];
  int dtypes[Norm::kOperands];
  for (int k = 0; k < Norm::kNumbers; ++k)
    arrays[k] = *given[k], dtypes[k] = (given[k]->shape ? given[k] : &x)->dtype;
  arrays[Norm::kNumbers] = drops(call, lead) ? numbers_of(x, x.dtype) : Operand{};
  dtypes[Norm::kNumbers] = x.dtype;
  begin_operands(s, convert, Norm::kOperands, arrays, dtypes);
}

void set_options(Norm* norm, const KernelTable* table, const NormCall& call, bool is_forward) {
  const int wide = norm->operands.compute_dtype;
  const auto& forward = table->elementwise->forward[call.which];
  static_cast<NormOptions&>(*norm) = call;
  norm->table = table;
  norm->kernels = &table->norm->kernels[wide];
  norm->value_of_gate = forward[wide];
  norm->activation = is_forward ? forward[wide] : table->elementwise->backward[call.which][wide][0];
  norm->is_identity = norm->has_gate() || call.which == k_identity;
  norm->gate_first = norm->has_gate() && call.gate_first;
  norm->casts = call.casts && norm->operands.item == sizeof(uint16_t);  // else it changes nothing
  norm->eps = eps_of(call.norm, call.eps);
  norm->drops = norm->operands.data[Norm::kNumbers];
  if (norm->drops) norm->drop = dropout_of(call);
}

// Sorts the axes: the batch, then the groups, then the elements; each in the order of
// plan_reduction. Groups, and where there are no sums over the batch its axes, are read forwards.
// The pixels come before the groups where channels are columns.
void sort_norm_axes(StridedOperands* s, NormAxis* axes, int count, int lead, bool has_sums,
                    bool is_by_columns) {
  for (int i = 0; i < count; ++i)
    if (axes[i].stride[lead] < 0 &&
        (axes[i].kind == kGroup || (axes[i].kind == kBatch && !has_sums)))
      reverse_axis(&axes[i], s->count, s->data);
  const auto class_of = [](const NormAxis& a) { return std::min<int>(a.kind, kPixel); };
  sort_axes(axes, count, [&](const auto& a, const auto& b) { return class_of(a) < class_of(b); });
  for (int first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && class_of(axes[end]) == class_of(axes[first]);) ++end;
    order_axes(axes + first, end - first, lead);
  }
  if (is_by_columns)
    sort_axes(axes, count,
              [](const auto& a, const auto& b) { return is_of_parameter(a) < is_of_parameter(b); });
}

// Sets the operands' rows and columns.
void set_rows(StridedOperands* s, const NormAxis* axes, int count, bool is_by_columns) {
  NormAxis merged[kMaxAxes];
  for (int i = 0; i < count; ++i) {
    merged[i] = axes[i];
    merged[i].kind = is_by_columns ? is_of_parameter(axes[i]) : is_reduced(axes[i]);
  }
  const int merged_count = merge_axes(merged, count);
  for (int i = 0; i < merged_count; ++i) (merged[i].kind ? s->columns : s->rows).append(merged[i]);
  find_contiguous(s);
}

void set_layout(ParameterLayout* layout, const NormAxis* axes, int count, int64_t columns,
                bool has_parameters, bool is_by_columns) {
  layout->batch = layout->groups = layout->pixels = layout->parameters_per_row = 1;
  int64_t* const sizes[] = {&layout->batch, &layout->groups, &layout->pixels,
                            &layout->parameters_per_row};
  for (int i = 0; i < count; ++i) *sizes[axes[i].kind] *= axes[i].length;

  // Elements share a parameter along the innermost axes that are not the parameter's.
  int inner = count;
  layout->span = 1;
  while (inner > 0 && axes[inner - 1].kind == kPixel) layout->span *= axes[--inner].length;
  const bool is_mixed =
      std::any_of(axes, axes + inner, [](const NormAxis& a) { return a.kind == kPixel; });
  if (!has_parameters) layout->span = columns;
  layout->kind = is_by_columns ? Norm::kChannelsLast
                 : layout->span == columns && (layout->span > 1 || !has_parameters) ? Norm::kPerRow
                 : is_mixed                                                         ? Norm::kMixed
                 : layout->span == 1         ? Norm::kPerElement
                 : layout->span < kLeastSpan ? Norm::kMixed
                                             : Norm::kPerSpan;

  Axis<2> index[kMaxAxes];
  int index_count = 0;
  int64_t parameter = layout->parameters_per_row;
  for (int i = 0; i < count; ++i) {
    if (!is_reduced(axes[i])) continue;
    if (axes[i].kind == kParameter) parameter /= axes[i].length;
    index[index_count++] = {axes[i].length, {axes[i].kind == kParameter ? parameter : 0, 0}, 0};
  }
  set_axes(&layout->parameter_index, index, index_count);
}

void set_sums(ParameterSums* sums, const Norm& norm, const NormAxis* axes, int count) {
  set_gradient(&sums->dweight, norm, Norm::kDWeight, axes, count);
  set_gradient(&sums->dbias, norm, Norm::kDBias, axes, count);
  const int64_t row_bytes = 2 * norm.parameter_count() * int64_t(sizeof(double));
  const int64_t most = std::clamp<int64_t>(
      std::min(std::max(kSums / row_bytes, kFewBlocks), kMostSums / row_bytes), 1, kMostBlocks);
  const int64_t least =
      std::clamp<int64_t>(ceil_div(norm.batch, kFewPartitions), kQuad, kLeastBlock);
  sums->block = ceil_div(norm.batch, most);  // of kChannelsLast an example is much work
  if (norm.kind != Norm::kChannelsLast) sums->block = std::max(sums->block, least);
  sums->chunks = ceil_div(norm.batch, sums->block);
}

}  // namespace

void prepare(Norm* norm, const KernelTable* table, const NormCall& call, int lead) {
  StridedOperands* s = &norm->operands;
  Operand arrays[Norm::kOperands];
  set_operands(s, table->convert, call, lead, arrays);
  set_options(norm, table, call, lead == NormCall::kX);

  NormAxis axes[kMaxAxes];
  const int count = find_axes(axes, arrays[lead], s->count, arrays, s->items, [&](int i) {
    return (call.reduced[i] ? kPixel : kBatch) + int(call.of_parameter[i]);
  });
  static_assert(Norm::kSum == int(Norm::kDSum), "which tell of a residual");
  const bool is_by_columns = is_centred(call.norm) && !s->data[Norm::kSum] && !norm->drops &&
                             has_channels_last(axes, count, lead);
  const bool has_sums = s->data[Norm::kDWeight] || s->data[Norm::kDBias];
  sort_norm_axes(s, axes, count, lead, has_sums, is_by_columns);
  set_rows(s, axes, count, is_by_columns);
  set_layout(norm, axes, count, s->columns.size, norm->has_parameters(), is_by_columns);
  set_sums(norm, *norm, axes, count);
}

int64_t norm_sums_size(const Norm& norm) {
  if (!norm.has_sums()) return 0;
  return norm.chunks * norm.parameter_count() * 2 * int64_t(sizeof(double));
}

}  // namespace fastact
