// The kernels of gates.cu: forward, backward, and the last step of the biases' sums.
#pragma once

#include <type_traits>

#include "common/gates/call.h"
#include "cuda/core/finish.cuh"
#include "cuda/core/parameter_io.cuh"
#include "cuda/core/row_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

using namespace gate_roles;

// Columns of a row that a thread takes: 16 bytes of them. Backward 8 bytes of 16-bit data, for each
// column has up to four sums in registers. One column where an array has no such vectors.
template <class T, bool vectorized, bool backward>
constexpr int kLanes = vectorized ? (backward && sizeof(T) == 2 ? 4 : Vec<T>::kSize) : 1;
// Blocks that share a multiprocessor, at least: as many as leave a thread registers enough that
// nothing spills.
template <class Kind, class T, bool vectorized, bool recomputes>
constexpr int kGateBlocks = !vectorized                                                     ? 2
                            : recomputes || (Kind::kAlso > 0 && sizeof(T) == sizeof(float)) ? 3
                                                                                            : 4;
// Threads, rows and columns of a block, at most.
template <bool vectorized>
constexpr int kGateThreads = vectorized ? 128 : 256;
constexpr int kMostRows = 32;
template <class T, bool vectorized, bool backward>
constexpr int kMostColumns =
    vectorized ? kWarp * kLanes<T, vectorized, backward> : kGateThreads<vectorized>;

// A call's arrays, and its cut into tiles of columns and chunks of rows: a block each.
struct GateTask {
  char* data[kGateRoles];  // null: there is none
  int64_t column[kGateRoles];
  uint32_t pitch[kGateRoles];  // bytes from row to row of the one axis that vectors are read along
  RowTable<kGateRoles> batch;
  int64_t gate[kMostGates];  // where a gate of the kernels begins in packed arrays, in columns
  NumberVector bias[2];      // IN
  int64_t rows, columns;
  int tx, ty;  // threads of a block: along columns, and rows
  int64_t tiles, chunk, chunks;
  bool accumulate;
};

// The gradients of the biases: sums of the saved gates' gradients.
struct GateSums {
  double* partials;  // OUT: saved gates x columns x chunks, where there is more than one chunk
  int64_t chunks, columns;
  int gates, saved;
  int64_t gate[kMostGates];  // of a gate in a bias, in columns
  NumberVector to[2];        // OUT or IN/OUT: of bias, of recurrent_bias; without data: not wanted
  bool accumulate;
  bool is_wanted;
};

// A thread's place: its first column, in its tile and in all, and its rows.
struct GatePosition {
  int x, y, width;  // width: columns of the tile
  int64_t tile;     // its first column
  int64_t row, end;
};

template <int lanes>
FASTACT_DEVICE GatePosition find_position(const GateTask& task) {
  GatePosition position;
  position.x = int(threadIdx.x) % task.tx, position.y = int(threadIdx.x) / task.tx;
  const int64_t chunk = quotient(blockIdx.x, task.tiles);
  position.tile = (blockIdx.x - chunk * task.tiles) * (task.tx * lanes);
  position.width = int(smaller(task.tx * lanes, task.columns - position.tile));
  position.row = chunk * task.chunk + position.y;
  position.end =
      position.x * lanes < position.width ? smaller((chunk + 1) * task.chunk, task.rows) : 0;
  return position;
}

// The begin of a row. By vectors it is the row's number, which each array multiplies by its one
// pitch. By single columns it is the bytes from the start of each array; arrays that a kernel does
// not use cost nothing.
template <int lanes>
struct GateOffsets {
  uint32_t row;
};
template <>
struct GateOffsets<1> {
  int64_t at[kGateRoles];
};

template <int lanes>
FASTACT_DEVICE GateOffsets<lanes> locate(const GateTask& task, int64_t row) {
  GateOffsets<lanes> offsets;
  if constexpr (lanes > 1) {
    offsets.row = uint32_t(row);
  } else {
#pragma unroll
    for (int role = 0; role < kGateRoles; ++role) offsets.at[role] = 0;
    offset_all(task.batch, row, 0, task.batch.count, offsets.at);
  }
  return offsets;
}

// A thread's elements of an array, as they are stored, and in the type that they are computed in.
// 16-bit elements are held by words, because nvcc 13.0 would take eight single numbers apart.
template <class T, int lanes, bool in_words = sizeof(T) == 2 && (lanes > 1)>
struct Held {
  T lane[lanes];
  FASTACT_DEVICE Compute<T> at(int j) const { return widen(lane[j]); }
};
template <class T, int lanes>
struct Held<T, lanes, true> {
  uint32_t word[lanes / 2];
  FASTACT_DEVICE float at(int j) const {
    if constexpr (std::is_same_v<T, bf16>)
      return bit_cast<float>(j % 2 ? word[j / 2] & 0xffff0000u : word[j / 2] << 16);
    else
      return widen(T{uint16_t(word[j / 2] >> (j % 2 * 16))});
  }
};
template <class T, int lanes>
struct Values {
  Compute<T> lane[lanes];
};

template <class T, int lanes>
FASTACT_DEVICE T* columns_of(const GateTask& task, const GatePosition& position,
                             const GateOffsets<lanes>& offsets, GateRole role, int64_t gate) {
  if constexpr (lanes > 1) {
    char* row = task.data[role] + uint64_t(offsets.row) * task.pitch[role];
    return reinterpret_cast<T*>(row) +
           (uint32_t(gate) + uint32_t(position.tile) + uint32_t(position.x * lanes));
  } else {
    const int64_t column = gate + position.tile + position.x;
    return reinterpret_cast<T*>(task.data[role] + offsets.at[role] + column * task.column[role]);
  }
}

// A thread's columns in a row of one array, or of one gate of a packed array.
template <class T, int lanes>
FASTACT_DEVICE Held<T, lanes> read_columns(const GateTask& task, const GatePosition& position,
                                           const GateOffsets<lanes>& offsets, GateRole role,
                                           int64_t gate = 0) {
  const T* p = columns_of<T, lanes>(task, position, offsets, role, gate);
  if constexpr (lanes == Vec<T>::kSize)
    return bit_cast<Held<T, lanes>>(load_vec(p));
  else if constexpr (lanes > 1)
    return bit_cast<Held<T, lanes>>(load(reinterpret_cast<const uint64_t*>(p)));
  else
    return {{load(p)}};
}

template <class T, int lanes>
FASTACT_DEVICE void write_columns(const GateTask& task, const GatePosition& position,
                                  const GateOffsets<lanes>& offsets, const Values<T, lanes>& values,
                                  GateRole role, int64_t gate = 0) {
  T* p = columns_of<T, lanes>(task, position, offsets, role, gate);
  if constexpr (lanes == Vec<T>::kSize) {
    store_vec(p, narrow_vec<T>(bit_cast<Wide<T>>(values)));
  } else if constexpr (lanes > 1) {
    const uint64_t low = narrow_two(values.lane[0], values.lane[1], T{});
    const uint64_t high = narrow_two(values.lane[2], values.lane[3], T{});
    store(reinterpret_cast<uint64_t*>(p), high << 32 | low);
  } else {
    store(p, narrow<T>(values.lane[0]));
  }
}

// The bias of a saved gate: the sum of both biases, but for gru the recurrent one alone at q, and
// the other one alone at n.
template <class Kind, class T>
FASTACT_DEVICE Compute<T> bias_of(const GateTask& task, int k, int64_t column) {
  const bool is_q = k == Kind::kGates, is_n = Kind::kSaved > Kind::kGates && k == 2;
  const int64_t index = (is_q ? task.gate[2] : task.gate[k]) + column;
  const bool takes = task.bias[0].data && !is_q, takes_other = task.bias[1].data && !is_n;
  if (takes && takes_other)
    return parameter_at<T>(task.bias[0], index) + parameter_at<T>(task.bias[1], index);
  if (takes) return parameter_at<T>(task.bias[0], index);
  if (takes_other) return parameter_at<T>(task.bias[1], index);
  return Compute<T>(-0.0);
}

// The biases of a tile, ordered so that the same lane of neighbouring threads lies side by side.
template <class Kind, class T, int lanes, class Shared>
FASTACT_DEVICE void put_biases(const GateTask& task, const GatePosition& position,
                               Shared&& biases) {
#pragma unroll
  for (int k = 0; k < Kind::kSaved; ++k)
    for (int c = int(threadIdx.x); c < position.width; c += int(blockDim.x))
      biases[(k * lanes + c % lanes) * task.tx + c / lanes] =
          bias_of<Kind, T>(task, k, position.tile + c);
}

// The pre-activations of a thread's columns, and one lane of them activated.
template <class Kind, class T, int lanes>
struct GateInputs {
  Held<T, lanes> x[Kind::kGates], u[Kind::kGates];

  FASTACT_DEVICE void read(const GateTask& task, const GatePosition& position,
                           const GateOffsets<lanes>& offsets) {
#pragma unroll
    for (int k = 0; k < Kind::kGates; ++k)
      x[k] = read_columns<T, lanes>(task, position, offsets, kGates, task.gate[k]);
#pragma unroll
    for (int k = 0; k < Kind::kGates; ++k)
      if (task.data[kRecurrent])
        u[k] = read_columns<T, lanes>(task, position, offsets, kRecurrent, task.gate[k]);
  }

  template <class Shared>
  FASTACT_DEVICE void activate(const GateTask& task, const GatePosition& position, Shared&& biases,
                               int lane, Compute<T> (&saved)[Kind::kSaved]) const {
    Compute<T> wide_x[Kind::kGates], wide_u[Kind::kGates], b[Kind::kSaved];
#pragma unroll
    for (int k = 0; k < Kind::kGates; ++k) {
      wide_x[k] = x[k].at(lane);
      // -0 adds nothing, not even to -0.
      wide_u[k] = task.data[kRecurrent] ? u[k].at(lane) : Compute<T>(-0.0);
    }
#pragma unroll
    for (int k = 0; k < Kind::kSaved; ++k) b[k] = biases[(k * lanes + lane) * task.tx + position.x];
    Kind::activate(wide_x, wide_u, b, saved);
    Kind::finish(saved);
  }
};

template <class Kind, class T, bool vectorized>
FASTACT_KERNEL_OF(kGateThreads<vectorized>, vectorized ? 4 : 2)
void gates_forward_kernel(FASTACT_GRID_CONSTANT const GateTask task) {
  constexpr int kCount = kLanes<T, vectorized, false>,
                kColumns = kMostColumns<T, vectorized, false>;
  FASTACT_SHARED(Compute<T>, biases, Kind::kSaved * kColumns);
  GatePosition position = find_position<kCount>(task);
  GateInputs<Kind, T, kCount> inputs;
  Held<T, kCount> before;
  GateOffsets<kCount> offsets;
  const auto read = [&] {
    offsets = locate<kCount>(task, position.row);
    inputs.read(task, position, offsets);
    before = read_columns<T, kCount>(task, position, offsets, kState);
  };
  if (position.row < position.end) read();
  put_biases<Kind, T, kCount>(task, position, biases);
  __syncthreads();
  while (position.row < position.end) {
    Values<T, kCount> hidden, cell, saved[Kind::kSaved];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      Compute<T> gates[Kind::kSaved];
      inputs.activate(task, position, biases, j, gates);
      const Compute<T> state = before.at(j);
      cell.lane[j] = Kind::cell(gates, state);
      hidden.lane[j] = Kind::hidden(gates, state, cell.lane[j]);
#pragma unroll
      for (int k = 0; k < Kind::kSaved; ++k) saved[k].lane[j] = gates[k];
    }
    if (task.data[kGatesOut]) {
#pragma unroll
      for (int k = 0; k < Kind::kSaved; ++k)
        write_columns<T>(task, position, offsets, saved[k], kGatesOut, task.gate[k]);
    }
    if constexpr (Kind::kHasCell) write_columns<T>(task, position, offsets, cell, kCell);
    write_columns<T>(task, position, offsets, hidden, kHidden);
    position.row += task.ty;
    if (position.row < position.end) read();
  }
}

// The sum of the k-th saved gate's gradient over all rows is the gradient of both biases. In gru
// the sum for n belongs to `bias` alone, and the sum for q, at the same index, to recurrent_bias.
template <class T>
FASTACT_DEVICE void put_sum(const GateSums& sums, int k, int64_t column, double sum) {
  const bool is_q = k == sums.gates, is_n = sums.saved > sums.gates && k == 2;
  const int64_t index = sums.gate[is_q ? 2 : k] + column;
  if (sums.to[0].data && !is_q) put_parameter<T>(sums.to[0], index, sum, sums.accumulate);
  if (sums.to[1].data && !is_n) put_parameter<T>(sums.to[1], index, sum, sums.accumulate);
}

// The last step (core/finish.cuh).
template <class T>
struct FinishGates {
  static constexpr int kSums = 1;
  GateSums sums;
  int64_t outputs, count;

  FASTACT_DEVICE void add(int64_t output, int64_t i, double (&sum)[1]) const {
    sum[0] += load(sums.partials + output * count + i);
  }
  FASTACT_DEVICE void put(int64_t output, const double (&sum)[1]) const {
    const int k = int(quotient(output, sums.columns));
    put_sum<T>(sums, k, output - k * sums.columns, sum[0]);
  }
};

template <class Kind, class T, bool vectorized, bool recomputes>
FASTACT_KERNEL_OF(kGateThreads<vectorized>, (kGateBlocks<Kind, T, vectorized, recomputes>))
void gates_backward_kernel(FASTACT_GRID_CONSTANT const GateTask task,
                           FASTACT_GRID_CONSTANT const GateSums wanted) {
  constexpr int kCount = kLanes<T, vectorized, true>, kColumns = kMostColumns<T, vectorized, true>;
  constexpr int kSaved = Kind::kSaved, kOuts = Kind::kGates + Kind::kAlso + 1;
  FASTACT_SHARED(Compute<T>, biases, recomputes ? kSaved * kColumns : 1);
  FASTACT_SHARED(double, buffer, (kFoldBuffer<kGateThreads<vectorized>, kCount>));
  GatePosition position = find_position<kCount>(task);
  GateInputs<Kind, T, kCount> inputs;
  Held<T, kCount> saved[kSaved], before, cell{}, dh, dc{};
  GateOffsets<kCount> offsets;

  // The role of each array that is written, and where its gate begins.
  const auto role_of = [](int out) {
    return out < Kind::kGates ? kGatesOut : out < kOuts - 1 ? kRecurrentOut : kStateOut;
  };
  const auto gate_of = [&](int out) -> int64_t {
    if (out == kOuts - 1) return 0;
    return task.gate[out < Kind::kGates ? out : out - Kind::kGates];
  };
  const auto read = [&] {
    offsets = locate<kCount>(task, position.row);
    if constexpr (recomputes) {
      inputs.read(task, position, offsets);
    } else {
#pragma unroll
      for (int k = 0; k < kSaved; ++k)
        saved[k] = read_columns<T, kCount>(task, position, offsets, kGates, task.gate[k]);
    }
    before = read_columns<T, kCount>(task, position, offsets, kState);
    dh = read_columns<T, kCount>(task, position, offsets, kHidden);
    if constexpr (Kind::kHasCell) {
      if (!recomputes) cell = read_columns<T, kCount>(task, position, offsets, kCell);
      if (task.data[kCellGradient])
        dc = read_columns<T, kCount>(task, position, offsets, kCellGradient);
    }
  };
  if (position.row < position.end) read();
  if constexpr (recomputes) {
    put_biases<Kind, T, kCount>(task, position, biases);
    __syncthreads();
  }
  double total[kSaved][kCount] = {};
  while (position.row < position.end) {
    Values<T, kCount> made[kOuts];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      Compute<T> gates[kSaved], d[kSaved + 1];
      const Compute<T> state = before.at(j);
      if constexpr (recomputes) {
        inputs.activate(task, position, biases, j, gates);
      } else {
#pragma unroll
        for (int k = 0; k < kSaved; ++k) gates[k] = saved[k].at(j);
      }
      const Compute<T> c = recomputes ? Kind::cell(gates, state) : cell.at(j);
      Kind::back(gates, state, c, dh.at(j), dc.at(j), d);
#pragma unroll
      for (int k = 0; k < kSaved; ++k) total[k][j] += double(d[k]);
#pragma unroll
      for (int i = 0; i < kOuts; ++i) made[i].lane[j] = d[Kind::gradient_of(i)];
    }
    if (task.accumulate) {
      Held<T, kCount> old[kOuts];
#pragma unroll
      for (int i = 0; i < kOuts; ++i)
        if (task.data[role_of(i)])
          old[i] = read_columns<T, kCount>(task, position, offsets, role_of(i), gate_of(i));
#pragma unroll
      for (int i = 0; i < kOuts; ++i)
        if (task.data[role_of(i)])
#pragma unroll
          for (int j = 0; j < kCount; ++j) made[i].lane[j] = old[i].at(j) + made[i].lane[j];
    }
#pragma unroll
    for (int i = 0; i < kOuts; ++i)
      if (task.data[role_of(i)])
        write_columns<T>(task, position, offsets, made[i], role_of(i), gate_of(i));
    position.row += task.ty;
    if (position.row < position.end) read();
  }
  if (!wanted.is_wanted) return;

  const int64_t chunk = quotient(blockIdx.x, task.tiles);
#pragma unroll
  for (int k = 0; k < kSaved; ++k) {
    const auto folded = fold_rows(buffer, total[k], position.x, position.y, task.tx, task.ty);
    for (int c = int(threadIdx.x); c < position.width; c += int(blockDim.x)) {
      const double sum = folded.sum(buffer, c);
      if (wanted.chunks > 1)
        store(wanted.partials + (k * task.columns + position.tile + c) * wanted.chunks + chunk,
              sum);
      else
        put_sum<T>(wanted, k, position.tile + c, sum);
    }
    __syncthreads();
  }
}

}  // namespace
FASTACT_END_NAMESPACE
