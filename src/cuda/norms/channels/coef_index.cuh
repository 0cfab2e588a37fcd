// Where a pack of a dense array finds the numbers of its cells.
//
// What a call's arrays have in common is told once, on the host (Order), so that a pack asks for
// nothing twice: one division for its line and one for its cell, each a multiplication (Divisor).
//
//   kOneCell      a channel's line is a whole number of packs, all of them aligned: a pack has one
//                 cell, whose numbers come by 16 bytes before the pack does
//   kTwoCells     lines of other lengths, a pack or longer: the cell of the first lane and the next
//                 one, between which each lane chooses
//   kPackOfEach   channels last, a whole number of packs, aligned: a pack of each number
//   kLaneByLane   anything else: a lane steps to its cell from the lane before
//
// Asked lane by lane and number by number, with divisions, these questions took the most of dx: 410
// instructions of sm_90 for eight bfloat16 and 342 for four float32, where it now takes 184 and 97.
#pragma once

#include "cuda/norms/channels/coefficients.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

// a / by for 0 <= a < limit: floor(a factor / 2^(31 + shift)), which is exact for a < 2^31 with
// shift = ceil(log2(by)) and factor = ceil(2^(31 + shift) / by) < 2^32 (T. Granlund and P.
// Montgomery, "Division by invariant integers using multiplication", 1994). Where a or `by` may be
// larger, a division.
struct Divisor {
  int64_t by = 1;
  uint32_t factor = 0;  // 0: divide
  int shift = 0;

  Divisor() = default;
  Divisor(int64_t divisor, int64_t limit) : by(divisor) {
    constexpr int64_t kMost = int64_t(1) << 31;
    if (limit > kMost || by > kMost) return;
    while (int64_t(1) << shift < by) ++shift;
    factor = uint32_t(((uint64_t(1) << (31 + shift)) + uint64_t(by) - 1) / uint64_t(by));
  }
  FASTACT_DEVICE uint32_t quick(uint32_t a) const {
    return uint32_t(uint64_t(a << 1) * factor >> 32) >> shift;
  }
  FASTACT_DEVICE int64_t operator()(int64_t a) const {
    return factor ? int64_t(quick(uint32_t(a))) : a / by;
  }
};

// Bits, as a choice among numbers becomes a table of addresses to jump to, which no tool follows.
enum Order : int { kOneCell = 1, kTwoCells = 2, kPackOfEach = 4, kLaneByLane = 8 };

template <int number>
constexpr unsigned kBit = 1u << number;
constexpr unsigned kOfForward = kBit<kHigh> | kBit<kLow> | kBit<kScale> | kBit<kOffset>;

// The numbers of one cell that lie side by side, those of `needs`.
template <class T, unsigned needs>
struct CellSet {
  using C = Compute<T>;
  C n[kCellNumbers];

  FASTACT_DEVICE void load_from(const Cells<T>& cells, int64_t cell) {
    constexpr int kSize = Pack<C>::kSize;
    const C* p = cells.numbers + cell * kCellNumbers;
#pragma unroll
    for (int i = 0; i < kCellNumbers; i += kSize) {
      const unsigned wanted = needs >> i & ((1u << kSize) - 1);
      if ((wanted & (wanted - 1)) != 0) {
        const Pack<C> pack = load_pack(p + i);
#pragma unroll
        for (int j = 0; j < kSize; ++j) n[i + j] = pack.lane[j];
      } else {
#pragma unroll
        for (int j = 0; j < kSize; ++j)
          if (wanted >> j & 1) n[i + j] = load(p + i + j);
      }
    }
  }
  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    const C some[] = {n[which]...};
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) use(j, some);
  }
};

// The same, read when they are asked for: across a call they would take registers.
template <class T>
struct OneCell {
  const Cells<T>& cells;
  int64_t cell;

  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    CellSet<T, (kBit<which> | ...)> set;
    set.load_from(cells, cell);
    set.template with<which...>(use);
  }
};

template <class T>
struct TwoCells {
  using C = Compute<T>;
  const Cells<T>& cells;
  int64_t cell, next;
  int split;  // lanes of the first

  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    CellSet<T, (kBit<which> | ...)> first, second;
    first.load_from(cells, cell);
    second.load_from(cells, next);
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      const C some[] = {(j < split ? first.n[which] : second.n[which])...};
      use(j, some);
    }
  }
};

template <class T>
struct PackOfEach {
  using C = Compute<T>;
  const Cells<T>& cells;
  int64_t cell;

  FASTACT_DEVICE Wide<T> get(int k) const {
    constexpr int kPart = Pack<C>::kSize;
    Wide<T> wide;
#pragma unroll
    for (int i = 0; i < Pack<T>::kSize; i += kPart) {
      const Pack<C> part = load_pack(cells.numbers + k * cells.pitch + cell + i);
#pragma unroll
      for (int j = 0; j < kPart; ++j) wide.lane[i + j] = part.lane[j];
    }
    return wide;
  }
  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    const Wide<T> all[] = {get(which)...};
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      C some[sizeof...(which)];
#pragma unroll
      for (int k = 0; k < int(sizeof...(which)); ++k) some[k] = all[k].lane[j];
      use(j, some);
    }
  }
};

template <class T>
struct LaneByLane {
  using C = Compute<T>;
  const Cells<T>& cells;
  int64_t index;

  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    const int64_t line = cells.inner == 1 ? index : quotient(index, cells.inner);
    const int64_t example = cells.example == 0 ? 0 : quotient(index, cells.example);
    int64_t within = index - line * cells.inner, left = (example + 1) * cells.example - index;
    int64_t base = example * cells.channels;
    int64_t channel = line - quotient(line, cells.channels) * cells.channels;
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      const C some[] = {load(cells.at(which, base + channel))...};
      use(j, some);
      if (++within == cells.inner) within = 0, ++channel;
      if (channel == cells.channels) channel = 0;
      if (--left == 0) left = cells.example, base += cells.channels;
    }
  }
};

// The numbers of one element, in lane 0.
template <class T>
struct OneElement {
  const Cells<T>& cells;
  int64_t cell;
  template <int... which, class Use>
  FASTACT_DEVICE void with(const Use& use) const {
    with_number<which...>(cells, cell, use);
  }
};

// Of a call's arrays.
template <class T>
struct Places {
  Cells<T> cells;
  Order order;
  Divisor line, row;

  // n: elements; aligned: the first pack is the first element.
  void choose(int64_t n, bool aligned) {
    constexpr int64_t kSize = Pack<T>::kSize, kMost = int64_t(1) << 31;
    const bool side_by_side = cells.step != 1, quick = n / kSize < kMost;
    if (side_by_side && aligned && quick && cells.inner % kSize == 0) {
      order = kOneCell;
      line = {cells.inner / kSize, n / kSize};
      row = {cells.channels, n / kSize};
    } else if (side_by_side && cells.inner >= kSize) {
      order = kTwoCells;
      line = {cells.inner, n};
      row = {cells.channels, n / cells.inner};
    } else if (!side_by_side && aligned && quick && cells.inner == 1 &&
               cells.channels % kSize == 0) {
      order = kPackOfEach;
      line = {cells.channels / kSize, n / kSize};
      row = {cells.example == 0 ? kMost : cells.example / cells.channels, n / kSize};
    } else {
      order = kLaneByLane;
    }
  }

  // needs: what a map asks for. has_lines: channels need not come last. early: the numbers of one
  // cell are read before the pack is there.
  template <unsigned map_needs, bool map_has_lines, bool map_early>
  struct Place {
    static constexpr unsigned needs = map_needs;
    static constexpr bool has_lines = map_has_lines, early = map_early;
    int64_t cell;
    CellSet<T, needs> set;  // of kOneCell, early
  };
  template <class Here>
  FASTACT_DEVICE Here place(int64_t index) const {
    constexpr int kSize = Pack<T>::kSize;
    Here made;
    const auto pack = uint32_t(index / kSize);
    if (Here::has_lines && order & kOneCell) {
      const uint32_t at = line.quick(pack);
      made.cell = at - row.quick(at) * uint32_t(cells.channels);
      if constexpr (Here::early) made.set.load_from(cells, made.cell);
    } else if (order & kPackOfEach) {
      const uint32_t at = line.quick(pack);
      made.cell = int64_t(pack - (at - row.quick(at)) * uint32_t(line.by)) * kSize;
    }
    return made;
  }

  // use(numbers): with<which...>(use of a lane and of its numbers) tells those of the pack's lanes.
  template <class Here, class Use>
  FASTACT_DEVICE Wide<T> visit(int64_t index, const Here& place, const Use& use) const {
    if (order & kPackOfEach) return use(PackOfEach<T>{cells, place.cell});
    if (!Here::has_lines || order & kLaneByLane) return use(LaneByLane<T>{cells, index});
    if (order & kOneCell) {
      if constexpr (Here::early) return use(place.set);
      return use(OneCell<T>{cells, place.cell});
    }
    const int64_t at = line(index), cell = at - row(at) * cells.channels;
    const int64_t left = cells.inner - (index - at * cells.inner);
    const int64_t next = cell + 1 == cells.channels ? 0 : cell + 1;
    return use(TwoCells<T>{cells, cell, next, int(smaller(left, Pack<T>::kSize))});
  }
};

}  // namespace
FASTACT_END_NAMESPACE
