// The kernels of gates.cu: forward, backward, and the end of the biases' sums.
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/gates/cells.cuh"
#include "cuda/reductions/tile_loader.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// Columns of a row that a thread takes: what 16 bytes hold, or of 16-bit data backward, where each
// of them has up to four sums in registers, 8 bytes. One where an array cannot be read like that.
template <class T, bool packed, bool backward>
constexpr int kLanes = packed ? (backward && sizeof(T) == 2 ? 4 : Pack<T>::kSize) : 1;
// Of a block, at most: threads, rows, and columns.
template <bool packed>
constexpr int kGateThreads = packed ? 128 : 256;
constexpr int kMostRows = 32;
template <class T, bool packed, bool backward>
constexpr int kMostColumns = packed ? kWarp * kLanes<T, packed, backward> : kGateThreads<packed>;
// Axes of the batch that are left once merged. Each has two rows or more: 2^40 of them are not met.
constexpr int kBatchAxes = 40;

// A call's arrays, and its cut into tiles of columns and chunks of rows: a block each.
struct GateTask {
  char* data[kGateRoles];  // null: there is none
  int64_t column[kGateRoles];
  int64_t step[kGateRoles][kBatchAxes];  // bytes
  int64_t length[kBatchAxes];
  int axes;
  int64_t gate[kMostGates];  // where a gate of the kernels begins in packed arrays, in columns
  GateVector bias[2];        // IN
  int64_t rows, columns;
  int tx, ty;  // threads of a block: along columns, and rows
  int64_t tiles, chunk, chunks;
  bool accumulate;
};

// The gradients of the biases: sums of the kept gates' gradients.
struct GateSums {
  double* partials;  // OUT: kept gates x columns x chunks, where there is more than one chunk
  int64_t chunks, columns;
  int gates, kept;
  int64_t place[kMostGates];  // of a gate in a bias, in columns
  GateVector to[2];           // OUT or IN/OUT: of bias, of recurrent_bias; without data: not wanted
  bool accumulate;
  bool is_wanted;
};

// Where a thread works: its first column, in its tile and in all, and its rows.
struct GatePlace {
  int x, y, width;  // width: columns of the tile
  int64_t tile;     // its first column
  int64_t row, end;
};

template <int lanes>
FASTACT_DEVICE GatePlace find_place(const GateTask& task) {
  GatePlace place;
  place.x = int(threadIdx.x) % task.tx, place.y = int(threadIdx.x) / task.tx;
  const int64_t chunk = quotient(blockIdx.x, task.tiles);
  place.tile = (blockIdx.x - chunk * task.tiles) * (task.tx * lanes);
  place.width = int(smaller(task.tx * lanes, task.columns - place.tile));
  place.row = chunk * task.chunk + place.y;
  place.end = place.x * lanes < place.width ? smaller((chunk + 1) * task.chunk, task.rows) : 0;
  return place;
}

// How far a row begins from the start of each array, in bytes. Arrays that a kernel does not ask
// for cost nothing.
struct GateOffsets {
  int64_t at[kGateRoles];
};

FASTACT_DEVICE GateOffsets locate(const GateTask& task, int64_t row) {
  GateOffsets offsets;
#pragma unroll
  for (int role = 0; role < kGateRoles; ++role) offsets.at[role] = 0;
  for (int axis = task.axes - 1; axis > 0; --axis) {
    const int64_t outer = quotient(row, task.length[axis]);
    const int64_t here = row - outer * task.length[axis];
#pragma unroll
    for (int role = 0; role < kGateRoles; ++role) offsets.at[role] += here * task.step[role][axis];
    row = outer;
  }
#pragma unroll
  for (int role = 0; role < kGateRoles; ++role) offsets.at[role] += row * task.step[role][0];
  return offsets;
}

// What a thread holds of an array: storage, and in the type that it is computed in.
template <class T, int lanes>
struct Held {
  T lane[lanes];
};
template <class T, int lanes>
struct Values {
  Compute<T> lane[lanes];
};

template <class T, int lanes>
FASTACT_DEVICE T* columns_of(const GateTask& task, const GatePlace& place,
                             const GateOffsets& offsets, GateRole role, int64_t gate) {
  char* row = task.data[role] + offsets.at[role];
  const int64_t column = gate + place.tile + place.x * lanes;
  return reinterpret_cast<T*>(row + column * (lanes > 1 ? int64_t(sizeof(T)) : task.column[role]));
}

// A thread's columns in a row of one array, or of one gate of a packed array.
template <class T, int lanes>
FASTACT_DEVICE Held<T, lanes> read_columns(const GateTask& task, const GatePlace& place,
                                           const GateOffsets& offsets, GateRole role,
                                           int64_t gate = 0) {
  const T* p = columns_of<T, lanes>(task, place, offsets, role, gate);
  if constexpr (lanes == Pack<T>::kSize)
    return bit_cast<Held<T, lanes>>(load_pack(p));
  else if constexpr (lanes > 1)
    return bit_cast<Held<T, lanes>>(load(reinterpret_cast<const uint64_t*>(p)));
  else
    return {{load(p)}};
}

template <class T, int lanes>
FASTACT_DEVICE void write_columns(const GateTask& task, const GatePlace& place,
                                  const GateOffsets& offsets, const Values<T, lanes>& values,
                                  GateRole role, int64_t gate = 0) {
  T* p = columns_of<T, lanes>(task, place, offsets, role, gate);
  if constexpr (lanes == Pack<T>::kSize) {
    store_pack(p, narrow_pack<T>(bit_cast<Wide<T>>(values)));
  } else if constexpr (lanes > 1) {
    const uint64_t low = narrow_two(values.lane[0], values.lane[1], T{});
    const uint64_t high = narrow_two(values.lane[2], values.lane[3], T{});
    store(reinterpret_cast<uint64_t*>(p), high << 32 | low);
  } else {
    store(p, narrow<T>(values.lane[0]));
  }
}

// -0: what adds nothing, not even to -0.
template <class T, int lanes>
FASTACT_DEVICE Held<T, lanes> nothing() {
  Held<T, lanes> held;
#pragma unroll
  for (int j = 0; j < lanes; ++j) held.lane[j] = narrow<T>(Compute<T>(-0.0));
  return held;
}

template <class T>
FASTACT_DEVICE Compute<T> bias_at(const GateVector& bias, int64_t index) {
  const char* p = bias.data + index * bias.stride;
  if (bias.dtype == kF64) return Compute<T>(load(reinterpret_cast<const double*>(p)));
  if (bias.dtype == kF32) return Compute<T>(load(reinterpret_cast<const float*>(p)));
  return widen(load(reinterpret_cast<const T*>(p)));
}

// What a kept gate adds up of the biases: of gru's q the recurrent one alone, of n the other.
template <class Kind, class T>
FASTACT_DEVICE Compute<T> bias_of(const GateTask& task, int k, int64_t column) {
  const bool is_q = k == Kind::kGates, is_n = Kind::kKept > Kind::kGates && k == 2;
  const int64_t index = (is_q ? task.gate[2] : task.gate[k]) + column;
  const bool takes = task.bias[0].data && !is_q, takes_other = task.bias[1].data && !is_n;
  if (takes && takes_other)
    return bias_at<T>(task.bias[0], index) + bias_at<T>(task.bias[1], index);
  if (takes) return bias_at<T>(task.bias[0], index);
  if (takes_other) return bias_at<T>(task.bias[1], index);
  return Compute<T>(-0.0);
}

// The biases of a tile, in the order in which the lanes of neighbours lie side by side.
template <class Kind, class T, int lanes, class Shared>
FASTACT_DEVICE void put_biases(const GateTask& task, const GatePlace& place, Shared&& biases) {
#pragma unroll
  for (int k = 0; k < Kind::kKept; ++k)
    for (int c = int(threadIdx.x); c < place.width; c += int(blockDim.x))
      biases[(k * lanes + c % lanes) * task.tx + c / lanes] =
          bias_of<Kind, T>(task, k, place.tile + c);
}

// The pre-activations of a thread's columns, and one lane of them activated.
template <class Kind, class T, int lanes>
struct GateInputs {
  Held<T, lanes> x[Kind::kGates], u[Kind::kGates];

  FASTACT_DEVICE void read(const GateTask& task, const GatePlace& place,
                           const GateOffsets& offsets) {
#pragma unroll
    for (int k = 0; k < Kind::kGates; ++k)
      x[k] = read_columns<T, lanes>(task, place, offsets, kGates, task.gate[k]);
#pragma unroll
    for (int k = 0; k < Kind::kGates; ++k)
      u[k] = task.data[kRecurrent]
                 ? read_columns<T, lanes>(task, place, offsets, kRecurrent, task.gate[k])
                 : nothing<T, lanes>();
  }

  template <class Shared>
  FASTACT_DEVICE void activate(const GateTask& task, const GatePlace& place, Shared&& biases,
                               int lane, Compute<T> (&kept)[Kind::kKept]) const {
    Compute<T> wide_x[Kind::kGates], wide_u[Kind::kGates], b[Kind::kKept];
#pragma unroll
    for (int k = 0; k < Kind::kGates; ++k) {
      wide_x[k] = widen(x[k].lane[lane]);
      wide_u[k] = widen(u[k].lane[lane]);
    }
#pragma unroll
    for (int k = 0; k < Kind::kKept; ++k) b[k] = biases[(k * lanes + lane) * task.tx + place.x];
    Kind::activate(wide_x, wide_u, b, kept);
  }
};

template <class Kind, class T, bool packed>
FASTACT_KERNEL_OF(kGateThreads<packed>, packed ? 3 : 2)
void gates_forward_kernel(FASTACT_GRID_CONSTANT const GateTask task) {
  constexpr int kCount = kLanes<T, packed, false>, kColumns = kMostColumns<T, packed, false>;
  FASTACT_SHARED(Compute<T>, biases, Kind::kKept * kColumns);
  GatePlace place = find_place<kCount>(task);
  GateInputs<Kind, T, kCount> inputs;
  Held<T, kCount> before;
  GateOffsets offsets;
  const auto read = [&] {
    offsets = locate(task, place.row);
    inputs.read(task, place, offsets);
    before = read_columns<T, kCount>(task, place, offsets, kState);
  };
  if (place.row < place.end) read();
  put_biases<Kind, T, kCount>(task, place, biases);
  __syncthreads();
  while (place.row < place.end) {
    Values<T, kCount> hidden, cell, kept[Kind::kKept];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      Compute<T> gates[Kind::kKept];
      inputs.activate(task, place, biases, j, gates);
      const Compute<T> state = widen(before.lane[j]);
      cell.lane[j] = Kind::cell(gates, state);
      hidden.lane[j] = Kind::hidden(gates, state, cell.lane[j]);
#pragma unroll
      for (int k = 0; k < Kind::kKept; ++k) kept[k].lane[j] = gates[k];
    }
    if (task.data[kGatesOut]) {
#pragma unroll
      for (int k = 0; k < Kind::kKept; ++k)
        write_columns<T>(task, place, offsets, kept[k], kGatesOut, task.gate[k]);
    }
    if constexpr (Kind::kHasCell) write_columns<T>(task, place, offsets, cell, kCell);
    write_columns<T>(task, place, offsets, hidden, kHidden);
    place.row += task.ty;
    if (place.row < place.end) read();
  }
}

// One bias's gradient, rounded.
template <class T>
FASTACT_DEVICE void put_element(const GateVector& to, int64_t index, double sum, bool accumulate) {
  char* p = to.data + index * to.stride;
  if (to.dtype == kF64)
    put(reinterpret_cast<double*>(p), sum, accumulate);
  else if (to.dtype == kF32)
    put(reinterpret_cast<float*>(p), sum, accumulate);
  else
    put(reinterpret_cast<T*>(p), sum, accumulate);
}

// The sum over all rows of the k-th kept gate's gradient is that of one or both biases. Of gru, n's
// belongs to the first, and that of q, in the same place, to the second.
template <class T>
FASTACT_DEVICE void put_sum(const GateSums& sums, int k, int64_t column, double sum) {
  const bool is_q = k == sums.gates, is_n = sums.kept > sums.gates && k == 2;
  const int64_t index = sums.place[is_q ? 2 : k] + column;
  if (sums.to[0].data && !is_q) put_element<T>(sums.to[0], index, sum, sums.accumulate);
  if (sums.to[1].data && !is_n) put_element<T>(sums.to[1], index, sum, sums.accumulate);
}

// A warp an output.
constexpr int kFinishThreads = 128;
template <class T>
FASTACT_KERNEL(kFinishThreads)
void finish_gate_sums(FASTACT_GRID_CONSTANT const GateSums sums) {
  constexpr int kOutputs = kFinishThreads / kWarp;
  const int64_t output = int64_t(blockIdx.x) * kOutputs + int(threadIdx.x) / kWarp;
  const int lane = int(threadIdx.x) % kWarp;
  double sum = 0;
  if (output < sums.kept * sums.columns)
    for (int64_t i = lane; i < sums.chunks; i += kWarp)
      sum += load(sums.partials + output * sums.chunks + i);
  sum = warp_sum(sum);
  if (lane > 0 || output >= sums.kept * sums.columns) return;
  const int k = int(quotient(output, sums.columns));
  put_sum<T>(sums, k, output - k * sums.columns, sum);
}

template <class Kind, class T, bool packed, bool recomputes>
FASTACT_KERNEL_OF(kGateThreads<packed>, packed ? 3 : 2)
void gates_backward_kernel(FASTACT_GRID_CONSTANT const GateTask task,
                           FASTACT_GRID_CONSTANT const GateSums wanted) {
  constexpr int kCount = kLanes<T, packed, true>, kColumns = kMostColumns<T, packed, true>;
  constexpr int kKept = Kind::kKept, kOuts = Kind::kGates + Kind::kAlso + 1;
  FASTACT_SHARED(Compute<T>, biases, recomputes ? kKept * kColumns : 1);
  FASTACT_SHARED(double, block, kGateThreads<packed>* kCount);
  GatePlace place = find_place<kCount>(task);
  GateInputs<Kind, T, kCount> inputs;
  Held<T, kCount> kept[kKept], before, cell{}, dh, dc{};
  GateOffsets offsets;

  // Each of what is written: the role, and where its gate begins.
  const auto role_of = [](int out) {
    return out < Kind::kGates ? kGatesOut : out < kOuts - 1 ? kRecurrentOut : kStateOut;
  };
  const auto gate_of = [&](int out) -> int64_t {
    if (out == kOuts - 1) return 0;
    return task.gate[out < Kind::kGates ? out : out - Kind::kGates];
  };
  const auto read = [&] {
    offsets = locate(task, place.row);
    if constexpr (recomputes) {
      inputs.read(task, place, offsets);
    } else {
#pragma unroll
      for (int k = 0; k < kKept; ++k)
        kept[k] = read_columns<T, kCount>(task, place, offsets, kGates, task.gate[k]);
    }
    before = read_columns<T, kCount>(task, place, offsets, kState);
    dh = read_columns<T, kCount>(task, place, offsets, kHidden);
    if constexpr (Kind::kHasCell) {
      if (!recomputes) cell = read_columns<T, kCount>(task, place, offsets, kCell);
      if (task.data[kCellGradient])
        dc = read_columns<T, kCount>(task, place, offsets, kCellGradient);
    }
  };
  if (place.row < place.end) read();
  if constexpr (recomputes) {
    put_biases<Kind, T, kCount>(task, place, biases);
    __syncthreads();
  }
  double total[kKept][kCount] = {};
  while (place.row < place.end) {
    Values<T, kCount> made[kOuts];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      Compute<T> gates[kKept], d[kKept + 1];
      const Compute<T> state = widen(before.lane[j]);
      if constexpr (recomputes) {
        inputs.activate(task, place, biases, j, gates);
      } else {
#pragma unroll
        for (int k = 0; k < kKept; ++k) gates[k] = widen(kept[k].lane[j]);
      }
      const Compute<T> c = recomputes ? Kind::cell(gates, state) : widen(cell.lane[j]);
      Kind::back(gates, state, c, widen(dh.lane[j]), widen(dc.lane[j]), d);
#pragma unroll
      for (int k = 0; k < kKept; ++k) total[k][j] += double(d[k]);
#pragma unroll
      for (int i = 0; i < kOuts; ++i) made[i].lane[j] = d[Kind::gradient_of(i)];
    }
    if (task.accumulate) {
      Held<T, kCount> old[kOuts];
#pragma unroll
      for (int i = 0; i < kOuts; ++i)
        if (task.data[role_of(i)])
          old[i] = read_columns<T, kCount>(task, place, offsets, role_of(i), gate_of(i));
#pragma unroll
      for (int i = 0; i < kOuts; ++i)
        if (task.data[role_of(i)])
#pragma unroll
          for (int j = 0; j < kCount; ++j)
            made[i].lane[j] = widen(old[i].lane[j]) + made[i].lane[j];
    }
#pragma unroll
    for (int i = 0; i < kOuts; ++i)
      if (task.data[role_of(i)])
        write_columns<T>(task, place, offsets, made[i], role_of(i), gate_of(i));
    place.row += task.ty;
    if (place.row < place.end) read();
  }
  if (!wanted.is_wanted) return;

  const int64_t chunk = quotient(blockIdx.x, task.tiles);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    fold_rows(block, total[k], place.x, place.y, task.tx, task.ty);
    for (int c = int(threadIdx.x); c < place.width; c += int(blockDim.x)) {
      const double sum = block[c];
      if (wanted.chunks > 1)
        store(wanted.partials + (k * task.columns + place.tile + c) * wanted.chunks + chunk, sum);
      else
        put_sum<T>(wanted, k, place.tile + c, sum);
    }
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
