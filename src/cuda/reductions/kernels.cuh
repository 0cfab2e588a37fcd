// The kernels of reductions: over rows, over columns, and over partial results; reductions.cu
// explains the plan. An accumulator says what elements are reduced to: Lane for a thread's part of
// a row, Column for a vector of columns. To is where results go:
//
//   Lane::of(to)                    one that has added nothing
//   Lane::add(count, vecs)          adds four vectors; count: how many of their elements are there
//   Lane::of_team(threads, folds)   the result of all threads of a row; counts folds (team_sums)
//   Column::add                     the same for columns
//   Column::of(j)                   the result of a column that one thread has to itself; of
//                                   moments of(j, by), where `by` divides by the column's count
//   kBlocks                         least blocks on a multiprocessor, of short rows
//   kCanFail, Sure                  whether has_failed() may say that another accumulator has to
//                                   add the same elements (accumulate)
//   put<T>(to, at_y, all)           writes a result, `at_y` bytes into the results
//   put_lanes<T>(to, ..)            writes the results of several columns
//   put_chunk(to, partials, all)    writes a chunk's result, which is To::kNumbers numbers
//   merge_chunks(to, partials, count, lane, team, folds)   merges the chunks of a team
//
// A lane only adds an element; finding it is the cost. So a lane tests once for four vectors
// whether they lie in one segment and can be read by 16 bytes. Only where they cannot (short
// segments, ends) it tests each of them. Instruction counts: docs/design/cuda.md, "Reductions".
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/reductions/denominator.cuh"
#include "cuda/reductions/tile_loader.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kThreads = 256;
constexpr int64_t kFewRows = 32;  // rows of columns that one thread takes, at most

struct RowSums : Sums {
  int64_t segment_vecs;              // of one segment
  int64_t vecs;                      // of all segments
  int64_t tasks;                     // outputs x chunks
  int team, team_shift;              // threads of a task: 1 to 32, or the block; 2^team_shift
  int threads;                       // of a block
  int64_t step_segments, step_vecs;  // a step of `team` vectors: whole segments, and vectors more
};

// Visits a lane's partition of the vectors [begin, end) of a row, kInFlight at a time:
// visit(Whole or Parts, vectors).
template <Access access, class T, class Visit>
FASTACT_DEVICE void visit_row(const RowSums& sums, const char* x, int64_t begin, int64_t end,
                              int lane, const Visit& visit) {
  constexpr int kSize = Vec<T>::kSize;
  int64_t q = begin + lane;
  if (q >= end) return;
  const auto start_of = [&](int64_t vec) {
    const int64_t segment = sums.segments.size > 1 ? vec / sums.segment_vecs : 0;
    return Offset{segment, vec - segment * sums.segment_vecs};
  };
  const Offset start = start_of(q);
  int64_t segment = start.x, within = start.y;
  // The bytes of a step, and the bytes more where it leaves its segment.
  const int64_t vec_bytes = sums.inner_x * kSize, stride = sums.segments.x[0];
  const int64_t step = sums.step_segments * stride + sums.step_vecs * vec_bytes;
  const int64_t wrap = stride - sums.segment_vecs * vec_bytes;
  const char* p = x + segment * stride + within * vec_bytes;

  // Vectors of a segment that can be read whole: `many` of them, from `least` on.
  const int64_t full = sums.inner / kSize;
  const int64_t least = access == kAnyhow ? 1 : 0;
  uint64_t many = uint64_t(full);
  if (access == kAnyhow) many = sums.is_contiguous && full > 2 ? uint64_t(full - 2) : 0;

  int64_t left = end - q;
  const int64_t round = int64_t(kInFlight) * sums.team, team_bytes = sums.team * vec_bytes;
  for (; left > 0; left -= round) {
    const char* at[kInFlight];
    int64_t inside[kInFlight] = {};
    bool whole = left > round - sums.team;
    if (whole && !has_divided_segments<access>(sums) && within >= least &&
        uint64_t(within + round - sums.team - least) < many) {  // all in one segment
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) at[u] = p + u * team_bytes;
      p += kInFlight * team_bytes;
      within += round;
      if (within >= sums.segment_vecs) within -= sums.segment_vecs, ++segment, p += wrap;
    } else {
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        at[u] = p;
        if (has_divided_segments<access>(sums))
          at[u] = left > u * sums.team
                      ? x + divided_offset(sums.segments, segment) + within * vec_bytes
                      : x;
        inside[u] = within;
        whole &= uint64_t(within - least) < many;
        p += step;
        segment += sums.step_segments;
        within += sums.step_vecs;
        if (within >= sums.segment_vecs) within -= sums.segment_vecs, ++segment, p += wrap;
      }
    }
    Vec<T> vecs[kInFlight];
    if (whole) {
      read_whole<access, T>(at, vecs);
      visit(Whole{}, vecs);
      continue;
    }
    const auto location = [&](int u) {
      const bool there = left > u * sums.team;
      return Location{at[u], there ? up_to(sums.inner - inside[u] * kSize) : 0, inside[u] > 0};
    };
    read_parts<access, T>(sums, location, vecs);
    visit(Parts<decltype(location)>{location}, vecs);
  }
}

// Visits a row that is one segment of aligned vectors.
template <class T, class Visit>
FASTACT_DEVICE void visit_segment(const RowSums& sums, const char* x, int64_t begin, int64_t end,
                                  int lane, const Visit& visit) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t first = begin + lane;
  const T* p = reinterpret_cast<const T*>(x) + first * kSize;
  int left = int(end - first);  // vectors; `whole` of them are whole
  int whole = int(smaller(sums.inner / kSize, end) - first);
  const int round = kInFlight * sums.team, step = sums.team * kSize;
  for (; whole > round - sums.team; left -= round, whole -= round, p += kInFlight * step) {
    Vec<T> vecs[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u)
      vecs[u] = read_whole<kAligned, T>(reinterpret_cast<const char*>(p + u * step));
    visit(Whole{}, vecs);
  }
  for (; left > 0; left -= round, p += kInFlight * step) {
    const int64_t here = sums.inner - (end - left) * kSize;  // elements from the first vector on
    const auto location = [&](int u) {
      const bool there = left > u * sums.team;
      return Location{reinterpret_cast<const char*>(p + u * step),
                      there ? up_to(here - u * step) : 0, left < end};
    };
    Vec<T> vecs[kInFlight];
    read_parts<kAligned, T>(sums, location, vecs);
    visit(Parts<decltype(location)>{location}, vecs);
  }
}

// A thread's part of a row: its vectors [begin, end). An idle thread has no part, yet takes part in
// shuffles and barriers.
struct RowTask {
  bool idle;
  int64_t row, chunk, begin, end;
};

// first: the task of the block's first team.
FASTACT_DEVICE RowTask task_of(const RowSums& sums, int64_t first) {
  const int64_t task = first + (int(threadIdx.x) >> sums.team_shift);
  const bool idle = task >= sums.tasks;
  const int64_t row = idle ? 0 : sums.chunks.count > 1 ? quotient(task, sums.chunks.count) : task;
  const int64_t chunk = idle ? 0 : task - row * sums.chunks.count;
  const int64_t begin = chunk * sums.chunks.size;
  return {idle, row, chunk, begin, idle ? 0 : smaller(begin + sums.chunks.size, sums.vecs)};
}

// Writes one chunk's part of an output: the result itself, where there is only one chunk.
template <class T, class To, class All>
FASTACT_DEVICE void emit(const Sums& sums, const To& to, int64_t output, int64_t chunk,
                         int64_t at_y, const All& all) {
  if (sums.chunks.count > 1)
    put_chunk(to, sums.partials + (output * sums.chunks.count + chunk) * To::kNumbers, all);
  else
    put<T>(to, at_y, all);
}

// Gives what visit(accumulator) adds up; once more, in a sure accumulator, if a quick one failed.
template <class Accumulator, class To, class Visit>
FASTACT_DEVICE Accumulator accumulate(const To& to, const Visit& visit) {
  Accumulator all = Accumulator::of(to);
  visit(all);
  if constexpr (Accumulator::kCanFail)
    if (all.has_failed()) {
      auto sure = Accumulator::Sure::of(to);
      visit(sure);
      all.take(sure);
    }
  return all;
}

template <class T, class Lane, class To, class Visit>
FASTACT_DEVICE void reduce_tasks(const RowSums& sums, const To& to, const Visit& visit) {
  const int tasks_here = sums.threads >> sums.team_shift;
  const int lane = int(threadIdx.x) & (sums.team - 1);
  int folds = 0;
  for (int64_t first = int64_t(blockIdx.x) * tasks_here; first < sums.tasks;
       first += int64_t(gridDim.x) * tasks_here) {
    const RowTask task = task_of(sums, first);
    const Offset at = locate(sums.kept, task.row);
    const Lane mine = accumulate<Lane>(to, [&](auto& sum) {
      visit(sums.x + at.x, task, lane,
            [&](const auto& count, const Vec<T>(&vecs)[kInFlight]) { sum.add(count, vecs); });
    });
    const auto all = mine.of_team(sums.team, folds);
    if (lane == 0 && !task.idle) emit<T>(sums, to, task.row, task.chunk, at.y, all);
  }
}

// is_one: rows are one segment each, of aligned vectors.
template <Access access, class T, class Lane, class To, bool is_one = false>
FASTACT_KERNEL_OF(kThreads, is_one ? 3 : 2)
void reduce_rows(FASTACT_GRID_CONSTANT const RowSums sums, FASTACT_GRID_CONSTANT const To to) {
  reduce_tasks<T, Lane>(sums, to,
                        [&](const char* x, const RowTask& task, int lane, const auto& visit) {
                          if constexpr (is_one)
                            visit_segment<T>(sums, x, task.begin, task.end, lane, visit);
                          else
                            visit_row<access, T>(sums, x, task.begin, task.end, lane, visit);
                        });
}

// Reduces rows of one segment that touch, and are so short that a lane takes a row. A block reads
// as many rows as a tile holds into shared memory, by vectors; from there each thread reads a row.
// After eight vectors the tile has a gap of one, so that neighbours' vectors lie in different
// banks.
constexpr int kTileVecs = kThreads * kInFlight;
template <class T>
constexpr int kTileBytes = (kTileVecs + 1 + kTileVecs / 8 + 1) * kVecBytes;
template <class T>
int rows_of_tile(int64_t inner) {
  return int(kTileVecs * Vec<T>::kSize / inner) / kThreads * kThreads;
}

template <class T, class Lane, class To>
FASTACT_KERNEL_OF(kThreads, Lane::kBlocks)
void reduce_short_rows(FASTACT_GRID_CONSTANT const RowSums sums, FASTACT_GRID_CONSTANT const To to,
                       const int tile_rows) {
  constexpr int kSize = Vec<T>::kSize, kLoads = kInFlight + 1;
  const auto tile = dynamic_shared<T>();
  const int missed =
      int(misalignment(sums.x) / sizeof(T));  // of all tiles: their rows are whole vectors together
  const bool is_whole = missed == 0 && sums.inner % kSize == 0;
  const auto place_of = [&](unsigned element) {
    return is_whole ? element + element / (8 * kSize) * kSize : element;
  };
  const int mine = int(threadIdx.x), inner = int(sums.inner), vecs = int(sums.vecs);
  const auto* const low = reinterpret_cast<const T*>(sums.low);
  const auto* const high = reinterpret_cast<const T*>(sums.high);
  const auto location = [&](int u) { return Location{nullptr, up_to(inner - u * kSize), u > 0}; };
  int folds = 0;
  for (int64_t first = int64_t(blockIdx.x) * tile_rows; first < sums.tasks;
       first += int64_t(gridDim.x) * tile_rows) {
    const T* const x = reinterpret_cast<const T*>(sums.x) + first * inner;
    const int rows = int(smaller(sums.tasks - first, tile_rows));
    const int count = missed + rows * inner;        // elements from the first vector on
    const int whole = (count + kSize - 1) / kSize;  // vectors
    const T* const p = x - missed + mine * kSize;
    Vec<T> held[kLoads];
    if (x - missed >= low && x - missed + whole * kSize <= high) {
#pragma unroll
      for (int u = 0; u < kLoads; ++u)
        if (mine + u * kThreads < whole) held[u] = load_vec(p + u * kThreads * kSize);
    } else {
#pragma unroll
      for (int u = 0; u < kLoads; ++u)
#pragma unroll
        for (int j = 0; j < kSize; ++j) {
          const T* const at = p + (u * kThreads * kSize + j);
          held[u].lane[j] = at >= low && at < high ? load(at) : T{};
        }
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const unsigned at = place_of((mine + u * kThreads) * kSize);
      if (mine + u * kThreads >= whole) break;
#pragma unroll
      for (int j = 0; j < kSize; ++j) tile[at + j] = held[u].lane[j];
    }
    __syncthreads();
    for (int row = mine; row < rows; row += kThreads) {
      Vec<T> of_row[kInFlight] = {};
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (u >= vecs) break;
        const int at = missed + row * inner + u * kSize, left = inner - u * kSize;
        const unsigned place = place_of(at);
        if (left >= kSize) {
#pragma unroll
          for (int j = 0; j < kSize; ++j) of_row[u].lane[j] = tile[place + j];
        } else {
#pragma unroll
          for (int j = 0; j < kSize; ++j)
            if (j < left) of_row[u].lane[j] = tile[place + j];
        }
      }
      const Lane lane = accumulate<Lane>(
          to, [&](auto& sum) { sum.add(Parts<decltype(location)>{location}, of_row); });
      put<T>(to, locate(sums.kept, first + row).y, lane.of_team(1, folds));
    }
    __syncthreads();
  }
}

struct ColumnSums : Sums {
  int64_t width;     // elements of a row, or of the rows that are joined to one
  int64_t rows;      // such rows
  int64_t elements;  // elements of all rows, where they touch; else 0
  int64_t tiles;     // of tx vectors
  int tx, ty;        // threads of a block
};

// Visits a thread's partition of the rows [begin, end) of a vector of columns, kInFlight at a time:
// visit(Whole or Parts, vectors).
template <Access access, class T, class Visit>
FASTACT_DEVICE void visit_column(const ColumnSums& sums, const char* x, int64_t column,
                                 int64_t begin, int64_t end, const Visit& visit) {
  constexpr int kSize = Vec<T>::kSize;
  if (begin >= end) return;
  x += column * sums.inner_x;
  // Rows are a step apart; or each is found by itself, from the address that a first one would
  // have.
  const bool divided = has_divided_segments<access>(sums);
  const int64_t stride = divided ? 0 : sums.segments.x[0], step = sums.ty * stride;
  const char* p = x + begin * stride;
  const int rows = int(end - begin);  // of a chunk
  // Elements of a row from this vector on; the last of joined rows may be shorter.
  const int64_t here = sums.width - column;
  const bool has_last = sums.elements > 0 && end == sums.rows;
  const int64_t lacks = has_last ? sums.rows * sums.width - sums.elements : 0;
  const int valid = up_to(here), valid_last = up_to(here - lacks);

  // Rows whose vectors can be read whole, from the first on.
  bool can = valid >= kSize;
  if (access == kAnyhow) can = sums.is_contiguous && column > 0 && valid >= 2 * kSize;
  const int whole = can ? rows - (valid_last < valid) : 0;

  int row = 0;  // after begin
  const auto locate_rows = [&](const char*(&at)[kInFlight]) {
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) {
      at[u] = p;
      p += step;
      const int index = row + u * sums.ty;
      if (divided && index < rows) at[u] += divided_offset(sums.segments, begin + index);
    }
  };
  for (; row + (kInFlight - 1) * sums.ty < whole; row += kInFlight * sums.ty) {
    const char* at[kInFlight];
    locate_rows(at);
    Vec<T> vecs[kInFlight];
    read_whole<access, T>(at, vecs);
    visit(Whole{}, vecs);
  }
  for (; row < rows; row += kInFlight * sums.ty) {
    const char* at[kInFlight];
    locate_rows(at);
    const auto location = [&](int u) {
      const int index = row + u * sums.ty;
      const int counted = index == rows - 1 ? valid_last : valid;
      return Location{at[u], index < rows ? counted : 0, column > 0};
    };
    Vec<T> vecs[kInFlight];
    read_parts<access, T>(sums, location, vecs);
    visit(Parts<decltype(location)>{location}, vecs);
  }
}

// A tile of columns over a chunk of rows, and a thread's first column.
struct ColumnTask {
  int tx, ty;
  int64_t outer, chunk, here, column, begin,
      end;        // here: the tile's first column; rows [begin, end)
  int columns;    // of the tile
  bool is_there;  // whether the thread has columns
};
template <class T>
FASTACT_DEVICE ColumnTask column_task(const ColumnSums& sums, int64_t task, int thread) {
  ColumnTask made;
  made.tx = thread % sums.tx, made.ty = thread / sums.tx;
  const int64_t rest = quotient(task, sums.tiles);
  made.outer = quotient(rest, sums.chunks.count);
  made.chunk = rest - made.outer * sums.chunks.count;
  made.here = (task - rest * sums.tiles) * sums.tx * Vec<T>::kSize;
  made.column = made.here + made.tx * Vec<T>::kSize;
  made.begin = made.chunk * sums.chunks.size;
  made.end = smaller(made.begin + sums.chunks.size, sums.rows);
  made.columns = int(smaller(sums.tx * Vec<T>::kSize, sums.width - made.here));
  made.is_there = made.column < sums.width && made.ty < sums.ty;
  return made;
}

// Bytes into the results; `inner` outputs lie along the innermost axis.
FASTACT_DEVICE int64_t offset_of_output(const Sums& sums, int64_t output, int64_t inner) {
  const int64_t outer = quotient(output, inner);
  return locate(sums.kept, outer).y + (output - outer * inner) * sums.inner_y;
}

// Merges the chunks of each output, by a block where they are many. Of sums as many lanes of a warp
// as there are chunks are enough; moments may take a fold more for one output than for another, and
// lanes of a warp can't differ in that.
template <class To>
FASTACT_HD int team_of_chunks(int64_t count) {
  constexpr int64_t kManyChunks = 128;
  if (count > kManyChunks) return kThreads;
  int team = To::kNumbers == 1 ? 1 : kWarp;
  while (team < kWarp && team < count) team *= 2;
  return team;
}
template <class T, class To>
FASTACT_KERNEL_OF(kThreads, 2)
void finish_chunks(FASTACT_GRID_CONSTANT const Sums sums, FASTACT_GRID_CONSTANT const To to,
                   const int64_t outputs, const int64_t inner) {
  const int64_t count = sums.chunks.count;
  const int team = team_of_chunks<To>(count);
  const int lane = int(threadIdx.x) & (team - 1), teams = kThreads / team;
  int folds = 0;
  for (int64_t first = int64_t(blockIdx.x) * teams; first < outputs;
       first += int64_t(gridDim.x) * teams) {
    const int64_t output = first + int(threadIdx.x) / team;
    const bool idle = output >= outputs;  // yet it takes part in shuffles
    const double* const from = sums.partials + (idle ? first : output) * count * To::kNumbers;
    const auto all = merge_chunks(to, from, count, lane, team, folds);
    if (lane == 0 && !idle) put<T>(to, offset_of_output(sums, output, inner), all);
  }
}

// Queues that kernel.
template <class T, class To>
void finish(const Sums& sums, const To& to, int64_t outputs, int64_t inner, cudaStream_t stream) {
  const int64_t teams = kThreads / team_of_chunks<To>(sums.chunks.count);
  launch(finish_chunks<T, To>, {blocks_for(ceil_div(outputs, teams)), kThreads}, stream, sums, to,
         outputs, inner);
}

// Writes the first `count` numbers to results `step` bytes apart; by vectors where these touch.
template <class N, int n>
FASTACT_DEVICE void store_lanes(char* p, int64_t step, int count, const N (&from)[n]) {
  constexpr int kSize = Vec<N>::kSize;
  if (n % kSize == 0 && count >= n && step == int64_t(sizeof(N)) && misalignment(p) == 0) {
#pragma unroll
    for (int i = 0; i < n / kSize; ++i) {
      Vec<N> vec;
#pragma unroll
      for (int j = 0; j < kSize; ++j) vec.lane[j] = from[i * kSize + j];
      store_vec(reinterpret_cast<N*>(p) + i * kSize, vec);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < n; ++j)
    if (j < count) store(reinterpret_cast<N*>(p + j * step), from[j]);
}

// --- sums

// The places of sums.
struct SumResults {
  static constexpr int kNumbers = 1;
  char* y;          // OUT, one element an output
  bool accumulate;  // y IN/OUT: added to
  Denominator divisor{};
  double initial = -0.0;  // what a sum begins with
  int other = -1;         // y's dtype, where that is not x's
  int term = 0;
};
template <class T>
FASTACT_DEVICE double divided(const SumResults& to, double sum) {
  return sizeof(T) < sizeof(double) ? to.divisor.nearly_under(sum) : to.divisor.under(sum);
}
template <class T>
FASTACT_DEVICE void put(const SumResults& to, int64_t at_y, double sum) {
  sum = divided<T>(to, sum) + to.initial;
  if (to.other >= 0) return put_by_call(to.y + at_y, to.other, sum, to.accumulate);
  put(reinterpret_cast<T*>(to.y + at_y), sum, to.accumulate);
}
template <class T, class Columns>
FASTACT_DEVICE void put_lanes(const SumResults& to, int64_t at_y, int64_t step, int count,
                              const Columns& columns) {
  constexpr int kSize = Vec<T>::kSize;
  T sums[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    double sum = divided<T>(to, columns.of(j)) + to.initial;
    if (to.other >= 0) {
      if (j < count) put_by_call(to.y + at_y + j * step, to.other, sum, to.accumulate);
      continue;
    }
    if (to.accumulate && j < count)
      sum += double(widen(load(reinterpret_cast<const T*>(to.y + at_y + j * step))));
    sums[j] = narrow_once<T>(sum);
  }
  if (to.other < 0) store_lanes(to.y + at_y, step, count, sums);
}
FASTACT_DEVICE void put_chunk(const SumResults&, double* partial, double sum) {
  store(partial, sum);
}
FASTACT_DEVICE double merge_chunks(const SumResults&, const double* partials, int64_t count,
                                   int lane, int team, int& folds) {
  double sum[1] = {0};
  for (int64_t i = lane; i < count; i += team) sum[0] += load(partials + i);
  team_sums(sum, team, folds);
  return sum[0];
}

// Reduces columns of few rows: a thread has a vector of columns with all of their rows. Vectors
// that can't be read by 16 bytes are filled up with zeros, whose sums nobody stores.
template <class T, class Columns, class To>
FASTACT_KERNEL_OF(kThreads, Columns::kBlocks)
void reduce_few_rows(FASTACT_GRID_CONSTANT const ColumnSums sums,
                     FASTACT_GRID_CONSTANT const To to) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t tasks = sums.kept.size * sums.tiles;
  const bool divided = has_divided_segments<kAnyhow>(sums);
  const int64_t stride = divided ? 0 : sums.segments.x[0];
  for (int64_t task = int64_t(blockIdx.x) * kThreads + threadIdx.x; task < tasks;
       task += int64_t(gridDim.x) * kThreads) {
    const int64_t outer = sums.kept.size > 1 ? quotient(task, sums.tiles) : 0;
    const int64_t column = (task - outer * sums.tiles) * kSize;
    const Offset at = locate(sums.kept, outer);
    const int valid = up_to(sums.width - column), rows = int(sums.rows);
    const bool is_aligned = sums.access == kAligned && valid >= kSize;
    const auto columns = accumulate<Columns>(to, [&](auto& sum) {
      const char* p = sums.x + at.x + column * sums.inner_x;
      for (int row = 0; row < rows; row += kInFlight) {
        const char* from[kInFlight];
#pragma unroll
        for (int u = 0; u < kInFlight; ++u) {
          from[u] = p;
          p += stride;
          if (divided && row + u < rows) from[u] += divided_offset(sums.segments, row + u);
        }
        Vec<T> vecs[kInFlight] = {};
        if (is_aligned) {
#pragma unroll
          for (int u = 0; u < kInFlight; ++u)
            if (row + u < rows) vecs[u] = load_vec(reinterpret_cast<const T*>(from[u]));
        } else {
          read_parts<kAnyhow, T>(
              sums,
              [&](int u) { return Location{from[u], row + u < rows ? valid : 0, column > 0}; },
              vecs);
        }
        sum.add(First{rows - row}, vecs);
      }
    });
    put_lanes<T>(to, at.y + column * sums.inner_y, sums.inner_y, valid, columns);
  }
}

// Calls visit(Term{}), which may be a lambda of the host alone: nvcc would refuse that.
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <class Visit>
FASTACT_HD void visit_term(int term, const Visit& visit) {
  switch (Term(term)) {
#define FASTACT_CASE(name, Struct) \
  case k##Struct:                  \
    return visit(Struct{});
    FASTACT_TERMS(FASTACT_CASE)
#undef FASTACT_CASE
    case kTerms:
      break;
  }
}

// A term that the call names, for kernels of layouts that few calls have.
struct AskedTerm {
  int term;

  template <class V>
  FASTACT_DEVICE V of(V x) const {
    V made = x;
#define FASTACT_CASE(name, Struct) made = term == k##Struct ? Struct::of(x) : made;
    FASTACT_TERMS(FASTACT_CASE)
#undef FASTACT_CASE
    return made;
  }
};
FASTACT_DEVICE void set_term(AskedTerm& f, const SumResults& to) { f.term = to.term; }
template <class F>
FASTACT_DEVICE void set_term(F&, const SumResults&) {}
FASTACT_DEVICE bool is_square(const AskedTerm& f) { return f.term == kSquare; }
template <class F>
FASTACT_DEVICE bool is_square(const F&) {
  return std::is_same_v<F, Square>;
}

// The sum of a term of the lanes of a vector, in N, by a tree. The conversions are exact.
template <class N, class T, class F>
FASTACT_DEVICE N vec_sum(const F& f, const Vec<T>& vec) {
  const Wide<T> wide = widen_vec(vec);
  N term[Vec<T>::kSize];
#pragma unroll
  for (int j = 0; j < Vec<T>::kSize; ++j) term[j] = f.of(N(wide.lane[j]));
  return tree_sum(term);
}

// Up to 32 terms of 16 bits are added in float before they are added in double: five roundings.
// bfloat16 may overflow there, and its squares may vanish: sums from 2^-100 on lose nothing
// by that which counts. Both show in the sum of all, and then all are added in double.
template <class T>
using FewSum = std::conditional_t<sizeof(T) == 2, float, double>;
template <class T, class N>
constexpr bool kMayFail = std::is_same_v<T, bf16> && std::is_same_v<N, float>;
template <class F>
FASTACT_DEVICE bool holds(const F& f, double sum) {
  return sum - sum == 0 && !(is_square(f) && sum < 0x1p-100);
}

// The accumulator of a term F of the elements; a few are first added in N.
template <class F, class T, class N = FewSum<T>>
struct SumLane {
  static constexpr int kBlocks = 3;
  static constexpr bool kCanFail = kMayFail<T, N>;
  using Sure = SumLane<F, T, double>;
  F f{};
  double total = 0;
  FASTACT_DEVICE static SumLane of(const SumResults& to) {
    SumLane lane;
    set_term(lane.f, to);
    return lane;
  }

  template <class Count>
  FASTACT_DEVICE void add(const Count& count, const Vec<T> (&vecs)[kInFlight]) {
    N part[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) part[u] = count.has(u) ? vec_sum<N>(f, vecs[u]) : N(0);
    total += double(tree_sum(part));
  }
  FASTACT_DEVICE bool has_failed() const { return !holds(f, total); }
  FASTACT_DEVICE void take(const Sure& sure) { total = sure.total; }
  FASTACT_DEVICE double of_team(int team, int& folds) const {
    double sum[1] = {total};
    team_sums(sum, team, folds);
    return sum[0];
  }
};

// Sums of each of a vector of columns, four rows at a time.
template <class F, class T, class N = FewSum<T>>
struct SumColumns {
  static constexpr int kBlocks = 3;
  static constexpr bool kCanFail = kMayFail<T, N>;
  using Sure = SumColumns<F, T, double>;
  static constexpr int kSize = Vec<T>::kSize;
  F f{};
  double total[kSize] = {};
  FASTACT_DEVICE static SumColumns of(const SumResults& to) {
    SumColumns columns;
    set_term(columns.f, to);
    return columns;
  }

  template <class Count>
  FASTACT_DEVICE void add(const Count& count, const Vec<T> (&vecs)[kInFlight]) {
    Wide<T> wide[kInFlight];
#pragma unroll
    for (int u = 0; u < kInFlight; ++u) wide[u] = widen_vec(vecs[u]);
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      N term[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) term[u] = count.has(u) ? f.of(N(wide[u].lane[j])) : N(0);
      total[j] += double(tree_sum(term));
    }
  }
  FASTACT_DEVICE bool has_failed() const {
    bool failed = false;
#pragma unroll
    for (int j = 0; j < kSize; ++j) failed |= !holds(f, total[j]);
    return failed;
  }
  FASTACT_DEVICE void take(const Sure& sure) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) total[j] = sure.total[j];
  }
  FASTACT_DEVICE double of(int j) const { return total[j]; }
};

// Rows that touch, as many as a vector has elements, in `inner` vectors by words: of 16 bits eight
// numbers apart would take twice the registers.
template <int inner, class T>
struct FewRows {
  static constexpr int kSize = Vec<T>::kSize;
  Words vecs[inner];

  // The first `rows` are there. Only whole vectors meet others by words: else all would be taken
  // apart right behind their loads, which came one after the other then.
  FASTACT_DEVICE void read(const T* x, int64_t rows) {
    if (rows >= kSize) {
#pragma unroll
      for (int i = 0; i < inner; ++i) vecs[i] = bit_cast<Words>(load_vec(x + i * kSize));
    } else {
#pragma unroll
      for (int i = 0; i < inner; ++i) vecs[i] = some_words(x + i * kSize, rows * inner - i * kSize);
    }
  }
  static FASTACT_DEVICE_CALL Words some_words(const T* x, int64_t n) {
    return bit_cast<Words>(load_some(x, n));
  }
  FASTACT_DEVICE Compute<T> at(int element) const {
    return widen_words<T>(vecs[element / kSize]).lane[element % kSize];
  }
  // Calls visit(j, x) with the numbers of the j-th row.
  template <class Visit>
  FASTACT_DEVICE void for_each(const Visit& visit) const {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      Compute<T> x[inner];
#pragma unroll
      for (int r = 0; r < inner; ++r) x[r] = at(j * inner + r);
      visit(j, x);
    }
  }
  // Visits each, and puts back what the visit makes of them.
  template <class Visit>
  FASTACT_DEVICE void change_each(const Visit& visit) {
    Compute<T> even{};  // of 16 bits a word's first number, whose second may be the next row's
    for_each([&](int j, Compute<T>(&x)[inner]) {
      visit(j, x);
#pragma unroll
      for (int r = 0; r < inner; ++r) {
        const int element = j * inner + r, lane = element % kSize;
        Words& vec = vecs[element / kSize];
        if constexpr (sizeof(T) == sizeof(uint32_t)) {
          vec.word[lane] = bit_cast<uint32_t>(x[r]);
        } else {
          if (lane % 2 == 1) vec.word[lane / 2] = narrow_two(even, x[r], T{});
          even = x[r];
        }
      }
    });
  }
};

// Reduces rows of 2 to kMostFewOfRow elements that touch and begin at a multiple of 16 bytes: a
// thread has as many as a vector has results. reduce: take() makes the j-th of its results of a
// row, and put() writes them.
template <int inner, class T, class Reduce>
FASTACT_KERNEL_OF(kThreads, Reduce::kBlocks)
void few_rows(FASTACT_GRID_CONSTANT const RowSums sums, FASTACT_GRID_CONSTANT const Reduce reduce) {
  constexpr int kSize = Vec<T>::kSize;
  const int64_t step = sums.kept.count > 0 ? sums.kept.y[0] : 0;
  for (int64_t first = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * kSize; first < sums.tasks;
       first += int64_t(gridDim.x) * kThreads * kSize) {
    const int rows = up_to(sums.tasks - first);
    FewRows<inner, T> few;
    few.read(reinterpret_cast<const T*>(sums.x) + first * inner, rows);
    typename Reduce::Results results;
    few.for_each(
        [&](int j, const Compute<T>(&x)[inner]) { reduce.template take<inner>(j, x, results); });
    reduce.put(results, first * step, step, rows);
  }
}

// Sums of such rows, with the additions of SumLane.
template <class F, class T>
struct FewSumsOf {
  static constexpr int kBlocks = 4;
  using Results = SumColumns<F, T>;
  SumResults to;

  template <class N, int inner>
  static FASTACT_DEVICE double sum(const F& f, const Compute<T> (&x)[inner]) {
    N term[4] = {};
#pragma unroll
    for (int r = 0; r < inner; ++r) term[r] = f.of(N(x[r]));
    return double(tree_sum(term, inner));
  }
  template <int inner>
  FASTACT_DEVICE void take(int j, const Compute<T> (&x)[inner], Results& results) const {
    double all = sum<FewSum<T>>(results.f, x);
    if (Results::kCanFail && !holds(results.f, all)) all = sum<double>(results.f, x);
    results.total[j] += all;
  }
  FASTACT_DEVICE void put(const Results& results, int64_t at, int64_t step, int rows) const {
    put_lanes<T>(to, at, step, rows, results);
  }
};

template <Access access, class F, class T>
FASTACT_KERNEL_OF(kThreads, access == kAnyhow ? 2
                            : sizeof(T) == 2  ? 3
                                              : 4)
void sum_columns(FASTACT_GRID_CONSTANT const ColumnSums sums,
                 FASTACT_GRID_CONSTANT const SumResults to) {
  FASTACT_SHARED(double, buffer, (kFoldBuffer<kThreads, Vec<T>::kSize>));
  const int64_t tasks = sums.kept.size * sums.chunks.count * sums.tiles;
  for (int64_t i = blockIdx.x; i < tasks; i += gridDim.x) {
    const auto columns = accumulate<SumColumns<F, T>>(to, [&](auto& sum) {
      int thread = int(threadIdx.x);
      if constexpr (SumColumns<F, T>::kCanFail) forget(thread);  // no register holds the task then
      const ColumnTask task = column_task<T>(sums, i, thread);
      if (task.is_there)
        visit_column<access, T>(
            sums, sums.x + locate(sums.kept, task.outer).x, task.column, task.begin + task.ty,
            task.end,
            [&](const auto& count, const Vec<T>(&vecs)[kInFlight]) { sum.add(count, vecs); });
    });
    const ColumnTask task = column_task<T>(sums, i, int(threadIdx.x));
    const auto folded = fold_rows(buffer, columns.total, task.tx, task.ty, sums.tx, sums.ty);

    // In joined rows the columns of one output lie `inner` apart; else an output is one column.
    const int outputs = int(smaller(task.columns, sums.inner));
    for (int c = int(threadIdx.x); c < outputs; c += kThreads) {
      double sum = 0;
      for (int at = c; at < task.columns; at += outputs) sum += folded.sum(buffer, at);
      emit<T>(sums, to, task.outer * sums.inner + task.here + c, task.chunk,
              locate(sums.kept, task.outer).y + (task.here + c) * sums.inner_y, sum);
    }
    __syncthreads();
  }
}

template <class F, class T>
struct SumKernels {
  using Lane = SumLane<F, T>;
  using ShortLane = Lane;  // of short rows, and of several segments
  using OddLane = SumLane<AskedTerm, T>;
  using Columns = SumColumns<F, T>;
  template <Access access>
  static constexpr auto kColumns =
      sum_columns<access, std::conditional_t<access == kAligned, F, AskedTerm>, T>;
};

}  // namespace
FASTACT_END_NAMESPACE
