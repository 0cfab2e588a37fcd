#include "cpu/core/chunk_reader.h"

#include <atomic>
#include <cstring>
#include <limits>

#include "common/core/dtypes.h"
#include "cpu/core/tensor_iterator.h"

namespace fastact {
namespace {

// Takes any dtype: masks and weights may be narrower than what they stand beside, or integers.
void convert(const ConvertKernels& kernels, int dtype, int compute, const char* from, char* to,
             int64_t n) {
  if (dtype < kDTypes && compute_dtype(dtype) == compute)
    return kernels.to_compute[dtype](from, to, n);
  if (dtype == kF64) return kernels.round(from, to, n);
  const int64_t item = item_size(dtype), wide = item_size(compute);
  for (int64_t i = 0; i < n; ++i)
    store_as(compute, to + i * wide, number_at(dtype, from + i * item));
}

// Side by side, and aligned.
bool is_dense(const char* at, int64_t stride, int64_t n, int64_t item) {
  return (stride == item || n == 1) && (reinterpret_cast<uintptr_t>(at) & uintptr_t(item - 1)) == 0;
}

// Every step is a multiple of the item, the inner ones as long as what they step over.
void find_contiguous(StridedOperands* s, int k) {
  s->has_unit_stride[k] = s->is_flat[k] = s->is_direct[k] = false;
  if (!s->data[k]) return;
  auto bits = reinterpret_cast<uintptr_t>(s->data[k]);
  int64_t expected = s->items[k];
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
  const bool aligned = (bits & uintptr_t(s->items[k] - 1)) == 0;
  s->has_unit_stride[k] = dense_row && aligned;
  s->is_flat[k] = dense && aligned;
  s->is_direct[k] = s->has_unit_stride[k] && s->dtypes[k] == s->compute_dtype;
}

}  // namespace

void OperandAxes::append(const Axis<kReaderOperands>& axis, int operands) {
  length[count] = axis.length;
  for (int k = 0; k < operands; ++k) stride[k][count] = axis.stride[k];
  reciprocal[count] = UINT64_MAX / uint64_t(axis.length) + 1;
  ++count;
  size *= axis.length;
}

int64_t OperandAxes::offset_of_many(int k, int64_t index, int axes) const {
  int64_t bytes = 0;
  for (int axis = axes; axis-- > 1;) {
    const int64_t outer = divide(index, axis);
    bytes += (index - outer * length[axis]) * stride[k][axis];
    index = outer;
  }
  return bytes + index * stride[k][0];
}

void begin_operands(StridedOperands* s, const ConvertKernels* kernels, int count,
                    const Operand* arrays, const int* dtypes) {
  s->kernels = kernels;
  s->count = count;
  s->dtype = dtypes[0];
  s->compute_dtype = compute_dtype(s->dtype);
  s->item = item_size(s->dtype);
  s->compute_item = item_size(s->compute_dtype);
  for (int k = 0; k < count; ++k) {
    s->data[k] = arrays[k].data;
    s->dtypes[k] = dtypes[k];
    s->items[k] = item_size(dtypes[k]);
  }
  s->is_channel_outer = s->is_channel_reversed = false;
  // Assigning empty ones would copy all of the axes that they could hold.
  for (OperandAxes* axes : {&s->rows, &s->columns}) axes->count = 0, axes->size = 1;
}

void find_contiguous(StridedOperands* s) {
  for (int k = 0; k < s->count; ++k) find_contiguous(s, k);
}

void plan_operands(StridedOperands* s, const ConvertKernels* kernels, int count,
                   const Operand* arrays, const int* dtypes, int leader, int channel, bool in_order,
                   bool last_alone) {
  begin_operands(s, kernels, count, arrays, dtypes);

  // In the order of plan_reduction, so that a sum over these axes meets its terms in the same
  // order.
  Axis<kReaderOperands> axes[kMaxAxes];
  int found = find_axes(axes, arrays[leader], count, arrays, s->items,
                        [=](int i) { return int(i == channel); });
  for (int i = 0; i < found; ++i) {
    if (axes[i].stride[leader] >= 0 || (in_order && !axes[i].kind)) continue;
    s->is_channel_reversed |= axes[i].kind;
    reverse_axis(&axes[i], count, s->data);
  }
  order_axes(axes, found, leader);
  found = merge_axes(axes, found);

  int at = -1;
  for (int i = 0; i < found; ++i)
    if (axes[i].kind) at = i;
  s->is_channel_outer = at < 0 || at != found - 1;
  int first_column = at >= 0 && s->is_channel_outer ? at + 1 : std::max(at, 0);
  if (at < 0 && last_alone) first_column = std::max(found - 1, 0);
  for (int i = 0; i < found; ++i) (i < first_column ? s->rows : s->columns).append(axes[i], count);
  find_contiguous(s);
}

void plan_rows(StridedOperands* s, const ConvertKernels* kernels, int count, const Operand* arrays,
               const int* dtypes, const bool* reduced, bool in_order, bool as_sums) {
  begin_operands(s, kernels, count, arrays, dtypes);
  Axis<kReaderOperands> axes[kMaxAxes];
  int found = find_axes(axes, arrays[0], count, arrays, s->items,
                        [=](int i) { return int(!reduced || reduced[i]); });
  sort_axes(axes, found, [](const auto& a, const auto& b) { return a.kind < b.kind; });
  const auto columns = std::find_if(axes, axes + found, [](const auto& a) { return a.kind; });
  for (auto* axis = axes; as_sums && axis != columns; ++axis)
    if (axis->stride[0] < 0) reverse_axis(axis, count, s->data);
  if (!in_order) order_axes(axes, int(columns - axes), 0);
  if (as_sums) order_axes(columns, int(axes + found - columns), 0);
  found = merge_axes(axes, found);
  for (int i = 0; i < found; ++i) (axes[i].kind ? s->columns : s->rows).append(axes[i], count);
  find_contiguous(s);
}

void read_strided(const ConvertKernels& kernels, int dtype, int compute, const char* from,
                  int64_t stride, int64_t n, char* to) {
  const int64_t item = item_size(dtype);
  if (dtype == compute) return move_elements(item, to, item, from, stride, n);
  if (is_dense(from, stride, n, item)) return convert(kernels, dtype, compute, from, to, n);
  alignas(64) char packed[kPiece * sizeof(double)];
  move_elements(item, packed, item, from, stride, n);
  convert(kernels, dtype, compute, packed, to, n);
}

void write_strided(const ConvertKernels& kernels, int dtype, const char* from, char* to,
                   int64_t stride, int64_t n, bool accumulate) {
  const int64_t item = item_size(dtype);
  if (dtype == compute_dtype(dtype) && !accumulate)
    return move_elements(item, to, stride, from, item, n);
  const auto from_compute = kernels.from_compute[dtype][accumulate];
  if (is_dense(to, stride, n, item)) return from_compute(from, to, n);
  alignas(64) char packed[kPiece * sizeof(double)];
  if (accumulate) move_elements(item, packed, item, to, stride, n);
  from_compute(from, packed, n);
  move_elements(item, to, stride, packed, item, n);
}

namespace {

bool is_amd() {
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
  __builtin_cpu_init();
  return __builtin_cpu_is("amd");
#else
  return false;
#endif
}

int64_t bytes_that_bypass() {
  return is_amd() ? kNontemporalBytes : std::numeric_limits<int64_t>::max();
}
std::atomic<int64_t> nontemporal_bytes{bytes_that_bypass()};

}  // namespace

bool prefetches_next_chunk() {
  static const bool does = !is_amd();
  return does;
}

int64_t bypass_caches_from(int64_t bytes) { return nontemporal_bytes.exchange(bytes); }

bool exceeds_caches(int64_t bytes) {
  return bytes >= nontemporal_bytes.load(std::memory_order_relaxed);
}

bool bypasses_caches(const StridedOperands& s, int k) {
  bool is_another = s.is_direct[k];
  for (int other = 0; other < s.count; ++other)
    is_another &= other == k || s.data[other] != s.data[k];
  return is_another && exceeds_caches(s.size() * s.items[k]);
}

void store_as(int dtype, char* at, double value) {
  // By memcpy: what the caller gives may lie at any address.
  const float narrow = float(value);
  if (dtype == kF64) return void(memcpy(at, &value, sizeof value));
  if (dtype == kF32) return void(memcpy(at, &narrow, sizeof narrow));
  const uint16_t bits =
      dtype == kF16 ? narrow_once<f16>(value).bits : narrow_once<bf16>(value).bits;
  memcpy(at, &bits, sizeof bits);
}

double number_at(int dtype, const char* at) {
  const auto read = [at](auto number) { return memcpy(&number, at, sizeof number), number; };
  switch (dtype) {
    case kF16:
      return double(widen(f16{read(uint16_t())}));
    case kBF16:
      return double(widen(bf16{read(uint16_t())}));
    case kF32:
      return double(read(float()));
    case kF64:
      return read(double());
    case kI32:
      return double(read(int32_t()));
    case kI64:
      return double(read(int64_t()));
    default:
      return *at ? 1.0 : 0.0;
  }
}

void ChunkReader::to_compute(int k, const char* from, char* to, int64_t n) const {
  convert(*s.kernels, s.dtypes[k], s.compute_dtype, from, to, n);
}

// move(address, its steps, place in a buffer that holds the span, steps there, rows, columns) for
// the pieces of operand k's span. A tile is walked along the axis on which elements of the operand
// are nearer to each other: the buffer stays in the first-level cache, whatever the steps there.
template <class Move>
void ChunkReader::for_moves(int k, Move move) const {
  const int64_t item = s.items[k];
  if (width == 1)
    return for_tiles(k, [&](char* at, Steps steps, int64_t done, int64_t m, int64_t n) {
      move(at, steps, done * item, Steps{n * item, item}, m, n);
    });
  int64_t across = 0;
  for_pieces(s.rows, k, s.data[k], row, width, [&](char* base, int64_t to_row, int64_t m) {
    int64_t place = across * item;
    for_pieces(s.columns, k, base, column, count / width,
               [&](char* at, int64_t to_column, int64_t n) {
                 if (std::abs(to_column) < std::abs(to_row))
                   move(at, Steps{to_row, to_column}, place, Steps{item, width * item}, m, n);
                 else
                   move(at, Steps{to_column, to_row}, place, Steps{width * item, item}, n, m);
                 place += n * width * item;
               });
    across += m;
  });
}

void ChunkReader::scatter(int k, const char* from) {
  const int64_t item = s.items[k];
  if (is_one_piece(k)) return s.kernels->stream(from, piece(k), count * item);
  for_moves(k, [&](char* to, Steps steps, int64_t place, Steps dense, int64_t m, int64_t n) {
    move_tile(item, to, steps, from + place, dense, m, n);
  });
}

const char* ChunkReader::load_stored(int k, char* buffer) {
  if (is_one_piece(k)) return piece(k);
  for_moves(k, [&](char* from, Steps steps, int64_t place, Steps dense, int64_t m, int64_t n) {
    move_tile(s.items[k], buffer + place, dense, from, steps, m, n);
  });
  return buffer;
}

const char* ChunkReader::load_converted(int k, char* buffer) {
  if (s.dtypes[k] == s.compute_dtype) return load_stored(k, buffer);
  to_compute(k, load_stored(k, stage), buffer, count);
  return buffer;
}

void ChunkReader::store(int k, const char* from, bool accumulate) {
  const auto from_compute = s.kernels->from_compute[s.dtypes[k]][accumulate];
  if (is_one_piece(k) && (accumulate || !bypasses(k))) return from_compute(from, piece(k), count);
  if (s.dtypes[k] == s.compute_dtype && !accumulate) return scatter(k, from);
  if (accumulate) load_stored(k, stage);
  from_compute(from, stage, count);
  scatter(k, stage);
}

}  // namespace fastact
