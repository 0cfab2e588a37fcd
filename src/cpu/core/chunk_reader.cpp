#include "cpu/core/chunk_reader.h"

#include <cstring>
#include <utility>

#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

struct Axis {
  int64_t length, stride[kReaderOperands];
  bool channel;
};

void append(OperandAxes* axes, const Axis& axis) {
  axes->length[axes->count] = axis.length;
  for (int k = 0; k < kReaderOperands; ++k) axes->stride[k][axes->count] = axis.stride[k];
  ++axes->count;
  axes->size *= axis.length;
}

}  // namespace

// Every step is a multiple of the item, the inner ones as long as what they step over.
void find_contiguous(StridedOperands* s, int k) {
  auto bits = reinterpret_cast<uintptr_t>(s->data[k]);
  int64_t expected = s->item;
  bool dense = true;
  const auto follow = [&](const OperandAxes& axes) {
    for (int axis = axes.count; axis-- > 0; expected *= axes.length[axis]) {
      bits |= uintptr_t(axes.stride[k][axis]);
      dense &= axes.stride[k][axis] == expected;
    }
  };
  follow(s->columns);
  const bool dense_row = dense;
  follow(s->rows);
  const bool aligned = bits % uintptr_t(s->item) == 0;
  s->has_unit_stride[k] = dense_row && aligned;
  s->is_flat[k] = dense && aligned;
  s->is_direct[k] = s->has_unit_stride[k] && s->item == s->compute_item;
}

int64_t OperandAxes::offset(int k, int64_t index) const {
  int64_t bytes = 0;
  for (int axis = count; axis-- > 1;) {
    bytes += index % length[axis] * stride[k][axis];
    index /= length[axis];
  }
  return count ? bytes + index * stride[k][0] : 0;
}

void plan_operands(StridedOperands* s, const ConvertKernels* kernels, int dtype, int count,
                   const Operand* arrays, int leader, int channel, bool in_order) {
  s->kernels = kernels;
  s->count = count;
  s->dtype = dtype;
  s->compute_dtype = compute_dtype(dtype);
  s->item = item_size(dtype);
  s->compute_item = item_size(s->compute_dtype);
  for (int k = 0; k < count; ++k) s->data[k] = arrays[k].data;

  // In the order of plan_reduction, so that a sum over these axes meets its terms in the same
  // order.
  Axis axes[kMaxAxes];
  int found = 0;
  s->is_channel_reversed = false;
  const Operand& shape = arrays[leader];
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape.shape[i] == 1) continue;
    Axis axis{shape.shape[i], {}, i == channel};
    for (int k = 0; k < count; ++k)
      if (arrays[k].data) axis.stride[k] = byte_stride(arrays[k], i, s->item);
    if (axis.stride[leader] < 0 && (axis.channel || !in_order)) {
      s->is_channel_reversed |= axis.channel;
      for (int k = 0; k < count; ++k) {
        s->data[k] += (axis.length - 1) * axis.stride[k];
        axis.stride[k] = -axis.stride[k];
      }
    }
    axes[found++] = axis;
  }
  order_axes(axes, found, [leader](const Axis& a) { return a.stride[leader]; });

  int merged = 0;
  for (int i = 0; i < found; ++i) {
    const Axis& inner = axes[i];
    if (merged > 0 && !inner.channel && !axes[merged - 1].channel) {
      Axis& outer = axes[merged - 1];
      bool merge = true;
      for (int k = 0; k < count; ++k) merge &= outer.stride[k] == inner.stride[k] * inner.length;
      if (merge) {
        const int64_t length = outer.length * inner.length;
        outer = inner;
        outer.length = length;
        continue;
      }
    }
    axes[merged++] = inner;
  }

  int at = -1;
  for (int i = 0; i < merged; ++i)
    if (axes[i].channel) at = i;
  const int first_column = at < 0 ? 0 : at == merged - 1 ? at : at + 1;
  s->is_channel_outer = at < 0 || at != merged - 1;
  s->rows = s->columns = OperandAxes();
  for (int i = 0; i < merged; ++i) append(i < first_column ? &s->rows : &s->columns, axes[i]);
  for (int k = 0; k < count; ++k) find_contiguous(s, k);
}

void keep_last_column(StridedOperands* s) {
  OperandAxes& from = s->columns;
  if (from.count < 2) return;
  Axis axis{};
  for (int i = 0; i < from.count; ++i) {
    axis.length = from.length[i];
    for (int k = 0; k < kReaderOperands; ++k) axis.stride[k] = from.stride[k][i];
    if (i + 1 < from.count) append(&s->rows, axis);
  }
  from.count = 0, from.size = 1;
  append(&from, axis);
  for (int k = 0; k < s->count; ++k) find_contiguous(s, k);
}

void ChunkReader::go(int64_t to_row, int64_t to_column, int64_t n) {
  row = to_row;
  column = to_column;
  count = n;
}

bool ChunkReader::is_one_piece(int k) const {
  return s.is_flat[k] || (s.has_unit_stride[k] && column + count <= s.columns.size);
}

char* ChunkReader::piece(int k) const {
  return s.data[k] + (s.is_flat[k] ? row * s.columns.size * s.item : s.rows.offset(k, row)) +
         column * s.item;
}

// Visits the span as pieces along the last axis: address, stride, how many.
template <class Visit>
void ChunkReader::for_pieces(int k, Visit visit) const {
  const OperandAxes& axes = s.columns;
  const int last = axes.count - 1;
  const int64_t length = last < 0 ? 1 : axes.length[last];
  const int64_t stride = last < 0 ? s.item : axes.stride[k][last];
  int64_t current = row, at = column;
  char* base = s.data[k] + s.rows.offset(k, current);
  for (int64_t left = count; left > 0;) {
    const int64_t within = at % length, m = std::min(left, length - within);
    visit(base + axes.offset(k, at), stride, m);
    left -= m;
    at += m;
    if (at == axes.size && left > 0) {
      at = 0;
      base = s.data[k] + s.rows.offset(k, ++current);
    }
  }
}

void ChunkReader::gather(int k, char* to) const {
  const MoveRow move = gather_for(s.item);
  for_pieces(k, [&](char* from, int64_t stride, int64_t m) {
    if (stride == s.item)
      memcpy(to, from, m * s.item);
    else
      move(to, from, stride, m);
    to += m * s.item;
  });
}

void ChunkReader::scatter(int k, const char* from) {
  const MoveRow move = scatter_for(s.item);
  for_pieces(k, [&](char* to, int64_t stride, int64_t m) {
    move(to, from, stride, m);
    from += m * s.item;
  });
}

const char* ChunkReader::load_stored(int k, char* buffer) {
  if (is_one_piece(k)) return piece(k);
  gather(k, buffer);
  return buffer;
}

const char* ChunkReader::load(int k, char* buffer) {
  if (is_one_piece(k)) {
    char* at = piece(k);
    if (s.is_direct[k]) return at;
    s.kernels->to_compute[s.dtype](at, buffer, count);
    return buffer;
  }
  if (s.item == s.compute_item) {
    gather(k, buffer);
  } else {
    gather(k, stage);
    s.kernels->to_compute[s.dtype](stage, buffer, count);
  }
  return buffer;
}

char* ChunkReader::direct(int k) const {
  return s.is_direct[k] && is_one_piece(k) ? piece(k) : nullptr;
}

void ChunkReader::store(int k, const char* from, bool accumulate) {
  const auto from_compute = s.kernels->from_compute[s.dtype][accumulate];
  if (is_one_piece(k)) {
    from_compute(from, piece(k), count);
    return;
  }
  if (accumulate) gather(k, stage);
  from_compute(from, stage, count);
  scatter(k, stage);
}

}  // namespace fastact
