#include "cpu/core/rows.h"

#include "common/core/dtypes.h"
#include "common/core/reduction_plan.h"

namespace fastact {
namespace {

struct Axis {
  int64_t length, stride[kRowOperands];
};

// As the last axis, or as a part of the one before, where all operands step over both as one.
void append(RowAxes* axes, const Axis& axis, int count) {
  const int last = axes->count - 1;
  bool merges = last >= 0;
  for (int k = 0; k < count && merges; ++k)
    merges = axes->stride[k][last] == axis.stride[k] * axis.length;
  const int at = merges ? last : axes->count++;
  axes->length[at] = merges ? axes->length[at] * axis.length : axis.length;
  for (int k = 0; k < count; ++k) axes->stride[k][at] = axis.stride[k];
  axes->size *= axis.length;
}

}  // namespace

void plan_rows(Rows* s, const ConvertKernels* convert, int count, const Operand* arrays,
               const int* dtypes, const bool* reduced, bool in_order) {
  s->convert = convert;
  s->count = count;
  s->compute_dtype = compute_dtype(dtypes[0]);
  s->compute_item = item_size(s->compute_dtype);
  s->rows = s->columns = RowAxes();
  Axis kept[kMaxAxes];
  int kept_count = 0;
  for (int k = 0; k < count; ++k)
    s->operand[k] = {arrays[k].data, dtypes[k], item_size(dtypes[k]), false, false};
  for (int i = 0; i < arrays[0].ndim; ++i) {
    if (arrays[0].shape[i] == 1) continue;
    Axis axis{arrays[0].shape[i], {}};
    for (int k = 0; k < count; ++k)
      if (arrays[k].data && arrays[k].shape[i] != 1)
        axis.stride[k] = byte_stride(arrays[k], i, s->operand[k].item);
    if (reduced[i])
      append(&s->columns, axis, count);
    else
      kept[kept_count++] = axis;
  }
  if (!in_order) order_axes(kept, kept_count, [](const Axis& a) { return a.stride[0]; });
  for (int i = 0; i < kept_count; ++i) append(&s->rows, kept[i], count);

  for (int k = 0; k < count; ++k) {
    RowOperand& operand = s->operand[k];
    if (!operand.data) continue;
    auto bits = reinterpret_cast<uintptr_t>(operand.data);
    for (int axis = 0; axis < s->rows.count; ++axis) bits |= uintptr_t(s->rows.stride[k][axis]);
    const RowAxes& columns = s->columns;
    operand.is_contiguous =
        bits % uintptr_t(operand.item) == 0 &&
        (columns.count == 0 || (columns.count == 1 && columns.stride[k][0] == operand.item));
    operand.is_direct = operand.is_contiguous && operand.dtype == s->compute_dtype;
  }
  const int last = s->rows.count - 1;
  s->are_neighbours =
      last >= 0 && s->rows.stride[0][last] == s->operand[0].item && !s->operand[0].is_contiguous;
}

void store_as(int dtype, char* at, double value) {
  const float narrow = float(value);
  const f16 half = narrow_once<f16>(value);
  const bf16 brain = narrow_once<bf16>(value);
  const void* of[kDTypes] = {&half, &brain, &narrow, &value};
  memcpy(at, of[dtype], item_size(dtype));
}

double number_at(int dtype, const char* at) {
  // By memcpy: what the caller gives may lie at any address.
  double wide;
  float narrow;
  uint16_t bits;
  if (dtype == kF64) return memcpy(&wide, at, sizeof wide), wide;
  if (dtype == kF32) return memcpy(&narrow, at, sizeof narrow), double(narrow);
  memcpy(&bits, at, sizeof bits);
  return double(dtype == kF16 ? widen(f16{bits}) : widen(bf16{bits}));
}

template <class Visit>
void RowReader::for_pieces(const RowAxes& axes, int k, char* base, int64_t first, int64_t n,
                           Visit visit) {
  const int last = axes.count - 1;
  if (last < 0) {
    visit(base, 0, n);
    return;
  }
  const int64_t length = axes.length[last], stride = axes.stride[k][last];
  while (n > 0) {
    const int64_t m = std::min(n, axes.count == 1 ? length - first : length - first % length);
    visit(base + axes.offset(k, first), stride, m);
    first += m, n -= m;
  }
}

// visit(i, offset) for each of n steps along axes.
template <class Visit>
void for_steps(const RowAxes& axes, int k, int64_t first, int64_t n, Visit visit) {
  for (int64_t i = 0; i < n; ++i) visit(i, axes.offset(k, first + i));
}

void RowReader::gather(const RowAxes& axes, int k, char* base, int64_t first, int64_t n,
                       char* to) const {
  const int64_t item = s.operand[k].item;
  for_pieces(axes, k, base, first, n, [&](char* from, int64_t stride, int64_t m) {
    if (stride == item || m == 1)
      memcpy(to, from, m * item);
    else
      gather_for(item)(to, from, stride, m);
    to += m * item;
  });
}

void RowReader::scatter(const RowAxes& axes, int k, char* base, int64_t first, int64_t n,
                        const char* from) {
  const int64_t item = s.operand[k].item;
  for_pieces(axes, k, base, first, n, [&](char* to, int64_t stride, int64_t m) {
    if (stride == item || m == 1)
      memcpy(to, from, m * item);
    else
      scatter_for(item)(to, from, stride, m);
    from += m * item;
  });
}

void RowReader::load_from(const RowAxes& axes, int k, char* base, int64_t first, int64_t n,
                          char* to) {
  const RowOperand& operand = s.operand[k];
  if (operand.dtype == s.compute_dtype) {
    gather(axes, k, base, first, n, to);
    return;
  }
  gather(axes, k, base, first, n, stage);
  if (operand.dtype == kF64)
    s.convert->round(stage, to, n);
  else
    s.convert->to_compute[operand.dtype](stage, to, n);
}

void RowReader::store_to(const RowAxes& axes, int k, char* base, int64_t first, int64_t n,
                         const char* from, bool accumulate) {
  const RowOperand& operand = s.operand[k];
  if (accumulate) gather(axes, k, base, first, n, stage);
  s.convert->from_compute[operand.dtype][accumulate](from, stage, n);
  scatter(axes, k, base, first, n, stage);
}

const char* RowReader::load(int k, int64_t row, int64_t column, int64_t n, char* buffer) {
  const RowOperand& operand = s.operand[k];
  if (operand.is_direct) return address(k, row) + column * operand.item;
  if (operand.is_contiguous && operand.dtype < kF32)
    s.convert->to_compute[operand.dtype](address(k, row) + column * operand.item, buffer, n);
  else
    load_from(s.columns, k, address(k, row), column, n, buffer);
  return buffer;
}

const char* RowReader::load_raw(int k, int64_t row, int64_t column, int64_t n, char* buffer) {
  if (s.operand[k].is_contiguous) return address(k, row) + column * s.operand[k].item;
  gather(s.columns, k, address(k, row), column, n, buffer);
  return buffer;
}

void RowReader::store(int k, int64_t row, int64_t column, int64_t n, const char* from,
                      bool accumulate) {
  const RowOperand& operand = s.operand[k];
  if (operand.is_contiguous)
    s.convert->from_compute[operand.dtype][accumulate](from,
                                                       address(k, row) + column * operand.item, n);
  else
    store_to(s.columns, k, address(k, row), column, n, from, accumulate);
}

void RowReader::load_tile(int k, int64_t row, int64_t width, int64_t column, int64_t n,
                          char* buffer) {
  if (s.operand[k].dtype == s.compute_dtype) {
    load_raw_tile(k, row, width, column, n, buffer);
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    load_from(s.rows, k, s.operand[k].data + s.columns.offset(k, column + i), row, width,
              buffer + i * width * s.compute_item);
}

void RowReader::load_raw_tile(int k, int64_t row, int64_t width, int64_t column, int64_t n,
                              char* buffer) {
  const int64_t item = s.operand[k].item;
  char* to = buffer;
  for_pieces(s.rows, k, s.operand[k].data, row, width, [&](char* base, int64_t stride, int64_t m) {
    const MoveRow move = gather_for(item);
    for_steps(s.columns, k, column, n, [&](int64_t i, int64_t offset) {
      char* at = to + i * width * item;
      if (stride == item || m == 1)
        memcpy(at, base + offset, m * item);
      else
        move(at, base + offset, stride, m);
    });
    to += m * item;
  });
}

void RowReader::store_tile(int k, int64_t row, int64_t width, int64_t column, int64_t n,
                           const char* from, bool accumulate) {
  const int64_t item = s.operand[k].item;
  if (accumulate || s.operand[k].dtype != s.compute_dtype) {
    for (int64_t i = 0; i < n; ++i)
      store_to(s.rows, k, s.operand[k].data + s.columns.offset(k, column + i), row, width,
               from + i * width * s.compute_item, accumulate);
    return;
  }
  for_pieces(s.rows, k, s.operand[k].data, row, width, [&](char* base, int64_t stride, int64_t m) {
    const MoveRow move = scatter_for(item);
    for_steps(s.columns, k, column, n, [&](int64_t i, int64_t offset) {
      const char* at = from + i * width * item;
      if (stride == item || m == 1)
        memcpy(base + offset, at, m * item);
      else
        move(base + offset, at, stride, m);
    });
    from += m * item;
  });
}

}  // namespace fastact
