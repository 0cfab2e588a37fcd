// From the axes of a norm's arrays to rows, elements and parameters (norms/rows/plan.h).
#include "cpu/norms/rows/plan.h"

#include <algorithm>
#include <utility>

#include "cpu/core/span_iterator.h"

namespace fastact {
namespace {

constexpr int64_t kMostBlocks = 32;      // rows of sums
constexpr int64_t kFewPartitions = 4;    // where the batch is too small for that
constexpr int64_t kFewBlocks = 8;        // as many even where they are big
constexpr int64_t kSums = 4 << 20;       // bytes of them, where there are more than few
constexpr int64_t kMostSums = 16 << 20;  // bytes of them in any case

enum Companion { kMean, kRstd, kWeight, kBias, kDWeight, kDBias, kCompanions };

struct Axis {
  int64_t length, data[kReaderOperands], companion[kCompanions];
  bool reduced, of_parameter;
  bool is_column;   // of the streams
  int caller_axis;  // among the caller's axes
};

// Assigning an empty one would copy all of the 64 axes that it could hold.
template <class Any>
void clear(Any* axes) {
  axes->count = 0, axes->size = 1;
}

// As the last axis, or as a part of the one before, where both step as one.
void append(Axes* axes, int64_t n, int64_t x, int64_t y) {
  if (axes->count > 0) {
    const int last = axes->count - 1;
    if (axes->x[last] == x * n && axes->y[last] == y * n) {
      axes->length[last] *= n, axes->x[last] = x, axes->y[last] = y;
      axes->size *= n;
      return;
    }
  }
  axes->append(n, x, y);
}

void append(OperandAxes* axes, const Axis& axis, int count) {
  const int last = axes->count - 1;
  bool merge = last >= 0;
  for (int k = 0; k < count && merge; ++k)
    merge = axes->stride[k][last] == axis.data[k] * axis.length;
  const int at = merge ? last : axes->count++;
  axes->length[at] = merge ? axes->length[at] * axis.length : axis.length;
  for (int k = 0; k < kReaderOperands; ++k) axes->stride[k][at] = axis.data[k];
  axes->size *= axis.length;
}

bool is_aligned(const char* data, int64_t item) {
  return reinterpret_cast<uintptr_t>(data) % uintptr_t(item) == 0;
}

void set_parameter(NormParameter* to, const char* data, int dtype, int compute_dtype,
                   const Axis* axes, int count, Companion which) {
  NormParameter& p = *to;
  p.data = data;
  if (!data) return;
  p.is_shared = true;
  clear(&p.across_rows), clear(&p.along_row);
  p.dtype = dtype;
  for (int i = 0; i < count; ++i)
    append(axes[i].is_column ? &p.along_row : &p.across_rows, axes[i].length,
           axes[i].companion[which], 0);
  const int64_t item = item_size(dtype);
  p.is_wide = dtype == compute_dtype && is_aligned(data, item);
  for (int i = 0; i < p.across_rows.count; ++i) {
    p.is_wide &= p.across_rows.x[i] % item == 0;
    p.is_shared &= p.across_rows.x[i] == 0;
  }
  for (int i = 0; i < p.along_row.count; ++i) p.is_wide &= p.along_row.x[i] % item == 0;
  p.is_direct = p.is_wide && p.along_row.count <= 1 &&
                (p.along_row.size == 1 || last_stride(p.along_row) == item);
}

// Each is read through a buffer, where the offset is added.
void set_offset(NormParameter* parameter, double offset) {
  parameter->offset = offset;
  if (offset != 0) parameter->is_wide = parameter->is_direct = false;
}

// Whether the channels lie inside the pixels. Then those come before the groups.
bool move_channels_last(Axis* axes, int count, int lead) {
  Axis found[kMaxAxes];
  int inside_row = 0, pixels = 0;
  for (int i = 0; i < count; ++i)
    if (axes[i].reduced || axes[i].of_parameter) {
      pixels += !axes[i].of_parameter;
      found[inside_row++] = axes[i];
    }
  if (pixels == 0 || pixels == inside_row) return false;
  std::sort(found, found + inside_row,
            [](const Axis& a, const Axis& b) { return a.caller_axis < b.caller_axis; });
  order_axes(found, inside_row, [lead](const Axis& a) { return a.data[lead]; });
  for (int i = 0; i < inside_row; ++i)
    if (found[i].of_parameter == (i < pixels)) return false;
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && axes[j - 1].of_parameter && !axes[j].of_parameter; --j)
      std::swap(axes[j], axes[j - 1]);
  for (int i = 0; i < count; ++i) axes[i].is_column = axes[i].of_parameter;
  return true;
}

// Where a gradient of a parameter goes.
void set_gradient(Reducer* r, const Norm& norm, char* data, int dtype, const Axis* axes, int count,
                  Companion which) {
  r->table = norm.table->reduce;
  r->accumulate = norm.accumulate;
  clear(&r->outputs);
  bool aligned = is_aligned(data, item_size(dtype));
  for (const bool inside : {false, true})
    for (int i = 0; i < count; ++i)
      if (axes[i].of_parameter && axes[i].reduced == inside) {
        append(&r->outputs, axes[i].length, 0, axes[i].companion[which]);
        aligned &= axes[i].companion[which] % item_size(dtype) == 0;
      }
  set_output(r, data, dtype, aligned);
}

}  // namespace

void prepare(Norm* norm, const KernelTable* table, int dtype, const NormArrays& given) {
  StridedOperands* s = &norm->operands;
  s->kernels = table->convert;
  s->count = kReaderOperands;
  s->dtype = dtype;
  s->compute_dtype = compute_dtype(dtype);
  s->item = item_size(dtype);
  s->compute_item = item_size(s->compute_dtype);
  s->is_channel_outer = s->is_channel_reversed = false;
  norm->table = table;
  norm->kernels = &table->norm->kernels[s->compute_dtype == kF64];

  const Operand* const companions[] = {&given.mean, &given.rstd,    &given.weight,
                                       &given.bias, &given.dweight, &given.dbias};
  const int companion_dtype[] = {s->compute_dtype, s->compute_dtype,   given.weight_dtype,
                                 given.bias_dtype, given.weight_dtype, given.bias_dtype};
  char* data[kCompanions];
  for (int c = 0; c < kCompanions; ++c) data[c] = companions[c]->data;
  for (int k = 0; k < kReaderOperands; ++k) s->data[k] = given.arrays[k].data;

  // The batch, then the groups, then the elements; each in the order of plan_reduction. Groups, and
  // where there are no sums over the batch its axes, are read forwards.
  const bool has_sums = data[kDWeight] || data[kDBias];
  Axis axes[kMaxAxes];
  int count = 0;
  const Operand& shape = given.arrays[given.lead];
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape.shape[i] == 1) continue;
    Axis axis{shape.shape[i], {}, {}, given.reduced[i], given.of_parameter[i], given.reduced[i], i};
    for (int k = 0; k < kReaderOperands; ++k)
      if (s->data[k]) axis.data[k] = byte_stride(given.arrays[k], i, s->item);
    for (int c = 0; c < kCompanions; ++c)
      if (data[c] && companions[c]->shape[i] != 1)
        axis.companion[c] = byte_stride(*companions[c], i, item_size(companion_dtype[c]));
    if (axis.data[given.lead] < 0 && !axis.reduced && (axis.of_parameter || !has_sums)) {
      for (int k = 0; k < kReaderOperands; ++k) {
        s->data[k] += (axis.length - 1) * axis.data[k];
        axis.data[k] = -axis.data[k];
      }
      for (int c = 0; c < kCompanions; ++c) {
        data[c] += (axis.length - 1) * axis.companion[c];
        axis.companion[c] = -axis.companion[c];
      }
    }
    axes[count++] = axis;
  }
  const auto class_of = [](const Axis& a) { return a.reduced ? 2 : a.of_parameter ? 1 : 0; };
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && class_of(axes[j]) < class_of(axes[j - 1]); --j)
      std::swap(axes[j], axes[j - 1]);
  for (int first = 0, end; first < count; first = end) {
    for (end = first + 1; end < count && class_of(axes[end]) == class_of(axes[first]);) ++end;
    order_axes(axes + first, end - first, [&](const Axis& a) { return a.data[given.lead]; });
  }

  const bool is_by_columns = move_channels_last(axes, count, given.lead);

  clear(&s->rows), clear(&s->columns);
  clear(&norm->row_stats), clear(&norm->pixels);
  norm->batch = norm->groups = norm->parameters_per_row = 1;
  for (int i = 0; i < count; ++i) {
    const Axis& axis = axes[i];
    append(axis.is_column ? &s->columns : &s->rows, axis, s->count);
    if (!axis.reduced)
      append(&norm->row_stats, axis.length, axis.companion[kMean], axis.companion[kRstd]);
    if (axis.reduced && !axis.of_parameter)
      append(&norm->pixels, axis.length, axis.data[given.lead], 0);
    int64_t* size = axis.reduced        ? axis.of_parameter ? &norm->parameters_per_row : nullptr
                    : axis.of_parameter ? &norm->groups
                                        : &norm->batch;
    if (size) *size *= axis.length;
  }
  for (int k = 0; k < s->count; ++k) find_contiguous(s, k);

  norm->mean = data[kMean];
  norm->rstd = data[kRstd];
  set_parameter(&norm->weight, data[kWeight], given.weight_dtype, s->compute_dtype, axes, count,
                kWeight);
  set_offset(&norm->weight, given.weight_offset);
  set_parameter(&norm->bias, data[kBias], given.bias_dtype, s->compute_dtype, axes, count, kBias);

  // Elements share a parameter along the innermost axes that are not the parameter's.
  int inner = count;
  norm->span = 1;
  while (inner > 0 && axes[inner - 1].reduced && !axes[inner - 1].of_parameter)
    norm->span *= axes[--inner].length;
  bool is_mixed = false;
  for (int i = 0; i < inner; ++i) is_mixed |= axes[i].reduced && !axes[i].of_parameter;
  const bool has_parameters = norm->weight.data || norm->bias.data;
  if (!has_parameters) norm->span = s->columns.size;
  norm->kind = is_by_columns ? Norm::kChannelsLast
               : norm->span == s->columns.size && (norm->span > 1 || !has_parameters)
                   ? Norm::kPerRow
               : is_mixed                ? Norm::kMixed
               : norm->span == 1         ? Norm::kPerElement
               : norm->span < kLeastSpan ? Norm::kMixed
                                         : Norm::kPerSpan;

  clear(&norm->parameter_index);
  int64_t parameter = norm->parameters_per_row;
  for (int i = 0; i < count; ++i) {
    if (!axes[i].reduced) continue;
    if (axes[i].of_parameter) parameter /= axes[i].length;
    append(&norm->parameter_index, axes[i].length, axes[i].of_parameter ? parameter : 0, 0);
  }
  norm->partial = nullptr;
  set_gradient(&norm->dweight, *norm, data[kDWeight], given.weight_dtype, axes, count, kDWeight);
  set_gradient(&norm->dbias, *norm, data[kDBias], given.bias_dtype, axes, count, kDBias);

  const int64_t row_bytes = 2 * norm->parameter_count() * int64_t(sizeof(double));
  const int64_t most = std::clamp<int64_t>(
      std::min(std::max(kSums / row_bytes, kFewBlocks), kMostSums / row_bytes), 1, kMostBlocks);
  const int64_t least =
      std::clamp<int64_t>(ceil_div(norm->batch, kFewPartitions), kQuad, kLeastBlock);
  norm->block = std::max(ceil_div(norm->batch, most), least);
  if (is_by_columns) norm->block = ceil_div(norm->batch, most);  // an example is much work
  norm->chunks = ceil_div(norm->batch, norm->block);
}

int64_t norm_workspace_size(const Norm* norm) {
  if (!norm->dweight.y && !norm->dbias.y) return 0;
  return norm->chunks * norm->parameter_count() * 2 * int64_t(sizeof(double));
}

}  // namespace fastact
