// From the numbers of cells to y and dx: maps over dense arrays, and element by element over any.
//
// Dense arrays go through map.cuh, whose packs know their index, by Cells; strided ones through
// apply_strided, in which the cell's number is an operand like another: its "address".
#pragma once

#include "batch_norm_cells.cuh"
#include "map.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// y = f((x - mean) scale + offset)
template <class T, bool is_identity>
struct NormForward {
  static constexpr int kTurns = 1;
  Cells<T> cells;
  ChosenActivation activation;

  FASTACT_DEVICE Wide<T> finish(const Wide<T>& z) const {
    if constexpr (is_identity)
      return z;
    else
      return activate<T>(activation.which, activation.parameters, z);
  }
  FASTACT_DEVICE Wide<T> pack(const Wide<T> (&in)[1], int64_t index) const {
    Wide<T> z;
    with_numbers<kHigh, kLow, kScale, kOffset>(cells, index, [&](int j, const Compute<T>(&n)[4]) {
      z.lane[j] = batch_normalised(in[0].lane[j], n[0], n[1], n[2], n[3]);
    });
    return finish(z);
  }
  FASTACT_DEVICE Compute<T> at_cell(const Compute<T> (&in)[1], int64_t cell) const {
    Wide<T> z{};
    with_number<kHigh, kLow, kScale, kOffset>(cells, cell, [&](int, const Compute<T>(&n)[4]) {
      z.lane[0] = batch_normalised(in[0], n[0], n[1], n[2], n[3]);
    });
    return finish(z).lane[0];
  }
  FASTACT_DEVICE Compute<T> at(const Compute<T> (&in)[1], int64_t index) const {
    return at_cell(in, cells.cell_of(index));
  }
};

// How dx follows from p = dy f'(z).
enum Statistics : int {
  kGiven,       // dx = scale p
  kOfChannels,  // batch_gradient
  kOfUnits,     // dx = rstd (p weight - mean - (x - mean of x) slope): weights differ in a unit
};

template <class T, Statistics statistics, bool is_identity>
struct NormBackward {
  static constexpr int kTurns = 1;
  // Of 16 bits, eight lanes: with registers for four blocks up to 60 bytes spill around the call.
  static constexpr int kLeastBlocks = sizeof(T) == 2 && !is_identity ? 3 : kMapBlocks<T>;
  using C = Compute<T>;
  Cells<T> cells;
  ChosenActivation activation;

  template <class Place>
  FASTACT_DEVICE Wide<T> gradient(const Wide<T>& dy, const Wide<T>& x, const Place& place) const {
    if constexpr (is_identity) return finish(dy, x, place);
    Wide<T> z{};
    place.template with<kHigh, kLow, kScale, kOffset>([&](int j, const C(&n)[4]) {
      z.lane[j] = batch_normalised(x.lane[j], n[0], n[1], n[2], n[3]);
    });
    // Across the call as few registers as they came in.
    const Pack<T> dy_before = narrow_pack<T>(dy), x_before = narrow_pack<T>(x);
    Wide<T> p = slope_at<T>(activation.which, activation.parameters, z);
    const Wide<T> again = widen_pack(dy_before);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) p.lane[j] = again.lane[j] * p.lane[j];
    return finish(p, widen_pack(x_before), place);
  }

  // A few numbers at a time: eight lanes of six are more than there are registers.
  template <class Place>
  FASTACT_DEVICE Wide<T> finish(Wide<T> p, Wide<T> x, const Place& place) const {
    if constexpr (statistics == kGiven) {
      place.template with<kScale>([&](int j, const C(&n)[1]) { p.lane[j] *= n[0]; });
      return p;
    }
    place.template with<kHigh, kLow>(
        [&](int j, const C(&n)[2]) { x.lane[j] = centred(x.lane[j], n[0], n[1]); });
    if constexpr (statistics == kOfChannels) {
      place.template with<kScale, kMean, kSlope>([&](int j, const C(&n)[3]) {
        p.lane[j] = batch_gradient(p.lane[j], x.lane[j], n[0], n[1], n[2]);
      });
    } else {
      place.template with<kWeight, kMean>(
          [&](int j, const C(&n)[2]) { p.lane[j] = madd(p.lane[j], n[0], -n[1]); });
      place.template with<kRstd, kSlope>(
          [&](int j, const C(&n)[2]) { p.lane[j] = n[0] * madd(-x.lane[j], n[1], p.lane[j]); });
    }
    return p;
  }

  struct AtIndex {
    const Cells<T>& cells;
    int64_t index;
    template <int... which, class Use>
    FASTACT_DEVICE void with(const Use& use) const {
      with_numbers<which...>(cells, index, use);
    }
  };
  struct AtCell {
    const Cells<T>& cells;
    int64_t cell;
    template <int... which, class Use>
    FASTACT_DEVICE void with(const Use& use) const {
      with_number<which...>(cells, cell, use);
    }
  };
  FASTACT_DEVICE Wide<T> pack(const Wide<T> (&in)[2], int64_t index) const {
    return gradient(in[0], in[1], AtIndex{cells, index});
  }
  FASTACT_DEVICE C at_cell(const C (&in)[2], int64_t cell) const {
    Wide<T> dy{}, x{};
    dy.lane[0] = in[0], x.lane[0] = in[1];
    return gradient(dy, x, AtCell{cells, cell}).lane[0];
  }
  FASTACT_DEVICE C at(const C (&in)[2], int64_t index) const {
    return at_cell(in, cells.cell_of(index));
  }
};

// out OUT = f(in IN ...), or IN/OUT += of the same; of a map's operands the last input's place is
// its element's cell.
template <class T, int inputs, class F>
FASTACT_KERNEL(kMapThreads)
void apply_strided(FASTACT_GRID_CONSTANT const StridedMap<inputs + 1> map,
                   FASTACT_GRID_CONSTANT const F f) {
  const int64_t index = int64_t(blockIdx.x) * kMapThreads + threadIdx.x;
  if (index >= map.pieces) return;
  int64_t at[inputs + 2];
  if (map.pieces <= int64_t(0xffffffff))
    locate(map, uint32_t(index), at);
  else
    locate(map, index, at);
  Compute<T> in[inputs];
#pragma unroll
  for (int k = 0; k < inputs; ++k)
    in[k] = widen(load(reinterpret_cast<const T*>(map.in[k] + at[k])));
  const int64_t cell = int64_t(reinterpret_cast<intptr_t>(map.in[inputs])) + at[inputs];
  T* out = reinterpret_cast<T*>(map.out + at[inputs + 1]);
  Compute<T> value = f.at_cell(in, cell);
  if (map.accumulate) value = widen(load(out)) + value;
  store(out, narrow<T>(value));
}

// Which axes tell cells apart: the number of a cell counts along them, row by row.
struct CellStrides {
  int64_t stride[kMaxAxes];
};
CellStrides cell_strides(const Operand& x, const bool* of_cell) {
  CellStrides made{};
  int64_t step = 1;
  for (int i = x.ndim - 1; i >= 0; --i)
    if (of_cell[i]) made.stride[i] = step, step *= x.shape[i];
  return made;
}

// arrays: the inputs, then the output; dense: they lie as `f.cells` has it.
template <class T, int inputs, bool accumulates, class F>
void apply(const Operand (&arrays)[inputs + 1], bool dense, const bool* of_cell, bool accumulate,
           const F& f, cudaStream_t stream) {
  Walk walk;
  if (dense) {
    plan_walk(&walk, sizeof(T), inputs + 1, arrays);
    return run_contiguous<T, inputs, accumulates>(walk, accumulate, f, stream);
  }
  const CellStrides cells = cell_strides(arrays[inputs], of_cell);
  Operand with_cells[inputs + 2];
  for (int k = 0; k < inputs; ++k) with_cells[k] = arrays[k];
  with_cells[inputs] = {nullptr, arrays[inputs].ndim, arrays[inputs].shape, cells.stride, 1};
  with_cells[inputs + 1] = arrays[inputs];
  plan_walk(&walk, sizeof(T), inputs + 2, with_cells);
  StridedMap<inputs + 1> map{};
  map.pieces = walk.size;
  map.accumulate = accumulate;
  map.ndim = walk.ndim;
  for (int k = 0; k <= inputs; ++k) map.in[k] = walk.data[k];
  map.out = walk.data[inputs + 1];
  for (int axis = 0; axis < walk.ndim; ++axis) {
    map.shape[axis] = walk.shape[axis];
    for (int k = 0; k < inputs + 2; ++k) map.strides[k][axis] = walk.strides[k][axis];
  }
  launch(apply_strided<T, inputs, F>, {ceil_div(walk.size, kMapThreads), kMapThreads}, stream, map,
         f);
}

}  // namespace
FASTACT_END_NAMESPACE
