#include "cpu/core/chunk_reader.h"

#include <cstring>
#include <utility>

#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

struct Axis {
  int64_t length, stride[kStreams];
  bool channel;
};

void append(StreamAxes* axes, const Axis& axis) {
  axes->length[axes->count] = axis.length;
  for (int k = 0; k < kStreams; ++k) axes->stride[k][axes->count] = axis.stride[k];
  ++axes->count;
  axes->size *= axis.length;
}

}  // namespace

// Every step is a multiple of the item, the inner ones as long as what they step over.
void find_contiguous(Streams* s, int k) {
  auto bits = reinterpret_cast<uintptr_t>(s->data[k]);
  int64_t expected = s->item;
  bool dense = true;
  const auto follow = [&](const StreamAxes& axes) {
    for (int axis = axes.count; axis-- > 0; expected *= axes.length[axis]) {
      bits |= uintptr_t(axes.stride[k][axis]);
      dense &= axes.stride[k][axis] == expected;
    }
  };
  follow(s->columns);
  const bool dense_line = dense;
  follow(s->lines);
  const bool aligned = bits % uintptr_t(s->item) == 0;
  s->has_unit[k] = dense_line && aligned;
  s->is_flat[k] = dense && aligned;
  s->is_direct[k] = s->has_unit[k] && s->item == s->wide;
}

int64_t StreamAxes::offset(int k, int64_t index) const {
  int64_t bytes = 0;
  for (int axis = count; axis-- > 1;) {
    bytes += index % length[axis] * stride[k][axis];
    index /= length[axis];
  }
  return count ? bytes + index * stride[k][0] : 0;
}

void plan_streams(Streams* s, const PipelineBlocks* blocks, int dtype, int count,
                  const Operand* arrays, int leader, int channel, bool in_order) {
  s->blocks = blocks;
  s->count = count;
  s->dtype = dtype;
  s->wide_dtype = compute_dtype(dtype);
  s->item = item_size(dtype);
  s->wide = item_size(s->wide_dtype);
  for (int k = 0; k < count; ++k) s->data[k] = arrays[k].data;

  // In the order of plan_reduction, so that a sum over these axes meets its terms in the same
  // order.
  Axis axes[kMaxAxes];
  int found = 0;
  s->is_channel_turned = false;
  const Operand& shape = arrays[leader];
  for (int i = 0; i < shape.ndim; ++i) {
    if (shape.shape[i] == 1) continue;
    Axis axis{shape.shape[i], {}, i == channel};
    for (int k = 0; k < count; ++k)
      if (arrays[k].data) axis.stride[k] = byte_stride(arrays[k], i, s->item);
    if (axis.stride[leader] < 0 && (axis.channel || !in_order)) {
      s->is_channel_turned |= axis.channel;
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
  s->is_channel_line = at < 0 || at != merged - 1;
  s->lines = s->columns = StreamAxes();
  for (int i = 0; i < merged; ++i) append(i < first_column ? &s->lines : &s->columns, axes[i]);
  for (int k = 0; k < count; ++k) find_contiguous(s, k);
}

void Reader::go(int64_t to_line, int64_t to_column, int64_t n) {
  line = to_line;
  column = to_column;
  count = n;
}

bool Reader::is_one_piece(int k) const {
  return s.is_flat[k] || (s.has_unit[k] && column + count <= s.columns.size);
}

char* Reader::piece(int k) const {
  return s.data[k] + (s.is_flat[k] ? line * s.columns.size * s.item : s.lines.offset(k, line)) +
         column * s.item;
}

// Visits the run as pieces along the last axis: address, stride, how many.
template <class Visit>
void Reader::for_pieces(int k, Visit visit) const {
  const StreamAxes& axes = s.columns;
  const int last = axes.count - 1;
  const int64_t length = last < 0 ? 1 : axes.length[last];
  const int64_t stride = last < 0 ? s.item : axes.stride[k][last];
  int64_t row = line, at = column;
  char* base = s.data[k] + s.lines.offset(k, row);
  for (int64_t left = count; left > 0;) {
    const int64_t within = at % length, m = std::min(left, length - within);
    visit(base + axes.offset(k, at), stride, m);
    left -= m;
    at += m;
    if (at == axes.size && left > 0) {
      at = 0;
      base = s.data[k] + s.lines.offset(k, ++row);
    }
  }
}

const char* Reader::load(int k, char* buffer) {
  if (is_one_piece(k)) {
    char* at = piece(k);
    if (s.is_direct[k]) return at;
    s.blocks->widen[s.dtype](at, buffer, count);
    return buffer;
  }
  const MoveRow gather = gather_for(s.item);
  char* to = s.item == s.wide ? buffer : stage;
  for_pieces(k, [&](char* from, int64_t stride, int64_t m) {
    if (stride == s.item)
      memcpy(to, from, m * s.item);
    else
      gather(to, from, stride, m);
    to += m * s.item;
  });
  if (s.item != s.wide) s.blocks->widen[s.dtype](stage, buffer, count);
  return buffer;
}

char* Reader::direct(int k) const { return s.is_direct[k] && is_one_piece(k) ? piece(k) : nullptr; }

void Reader::store(int k, const char* from, bool accumulate) {
  const auto narrow = s.blocks->narrow[s.dtype][accumulate];
  if (is_one_piece(k)) {
    narrow(from, piece(k), count);
    return;
  }
  char* at = stage;
  if (accumulate) {
    const MoveRow gather = gather_for(s.item);
    for_pieces(k, [&](char* y, int64_t stride, int64_t m) {
      gather(at, y, stride, m);
      at += m * s.item;
    });
  }
  narrow(from, stage, count);
  const MoveRow scatter = scatter_for(s.item);
  at = stage;
  for_pieces(k, [&](char* y, int64_t stride, int64_t m) {
    scatter(y, at, stride, m);
    at += m * s.item;
  });
}

}  // namespace fastact
