// Statistics by groups: each element of x belongs to the group that its label says, or to none.
//
// Outputs are the axes that stay, and each has a result for every group. Elements are read in
// pieces of 512, in double, and added to the lanes of their groups one by one
// (reductions/grouped_kernels.h); where labels hardly change, run by run.
//
// A task is a tile of outputs, with lanes for all their groups, and a chunk of their terms. How the
// terms are cut is a function of the lengths alone, and chunks merge in order: the bits do not
// depend on the threads. Terms are cut where there are few tiles, into chunks that have many terms
// a group, so that merging takes little beside them.
//
// Where a label is one of a whole row of x, along the outputs, elements join the lanes of a row in
// vectors. If such rows are long and contiguous, and results many, the rows of each group are
// listed first, and a group is a reduction of its own by the ungrouped kernels of columns
// (reductions/reduce.h), whose bits it has: lanes of all groups would not fit in the caches.
//
// Nothing is written before every label has been compared with the number of groups: where the
// lanes of all tasks are held, while they are filled, and else in a pass of its own over the
// labels.
//
// With many more groups than labels, every result is first that of no elements, and
// labels become ranks among those that are met: lanes and lists are of these groups alone.
//
// Lanes of double whose squares or sums left its range (common/reductions/range.h) are added up
// anew, times a power of two each: one pass over the elements finds the powers, one adds.
//
// The workspace holds the lanes of all tasks, or of one task a thread. Listed, it holds an offset
// and the label of each term, and there are no more terms than results, or few. With ranks, it
// begins with these, and with the groups that are met.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/core/threads.h"
#include "cpu/reductions/grouped_kernels.h"
#include "cpu/reductions/rescaled.h"
#include "cpu/reductions/weighted.h"

namespace fastact {
namespace {

constexpr int64_t kProbes = 16;                // pairs of labels that tell of runs
constexpr int64_t kLanesBytes = 256 << 10;     // of a task: they stay in the second-level cache
constexpr int64_t kRowLanesBytes = 512 << 10;  // the same, of rows: most of them are not touched
constexpr int64_t kTouchedOfRow = 24;          // bytes of a lane that each element of a row touches
constexpr int64_t kLeastRowLanes = 4;          // outputs that fill a line of lanes by half
constexpr int64_t kLeastTile = 8;              // outputs, however many groups there are
constexpr int64_t kMostTile = 256;
constexpr int64_t kMostGroupChunks = 16;
constexpr int64_t kTermsOfGroup = 48;  // of a chunk: as many as make merging cheap beside them
constexpr int64_t kRowsOfGroup = 96;   // the same, where rows join lanes
constexpr int64_t kLeastChunk = 4096;
constexpr int64_t kLeastRow = 16;        // outputs of one label that are worth a list of the terms
constexpr int64_t kFewListed = 1 << 16;  // terms, however few results there are
constexpr int64_t kSparse = 4;           // groups a label from which ranks are worth a search

// The elements' are those of ElementStager.
enum Operands { kX, kWeights, kWhere, kLabels, kY, kOperands };

// The plan of the elements: how they are read, and added to a lane.
struct GroupedTerms : LabelledArrays {  // rows: the outputs; columns: the terms
  const LaneKernels* kernels;
  int lane;  // LaneKind
  int term;
  bool is_double, skips, is_by_output;
  bool may_be_far;  // lanes may leave the range of double
  bool is_plain;    // elements and labels are contiguous, and read where they lie
  bool has_rows;    // all outputs share their labels, so that rows of them join rows of lanes
};

// The groups, and the labels that name them.
struct Groups {
  int64_t groups;        // that have lanes: all, or as many as may be met
  int64_t ranked;        // labels that become ranks; 0: they are groups
  const int64_t* met;    // the group of each rank; null: it is the rank
  int64_t group_stride;  // of the results, in bytes
};

// The tasks, and the lanes of each in the workspace.
struct LaneTasks {
  int64_t tile, tiles;           // outputs at a time, and how often
  int64_t chunk_terms, chunks;   // of each tile
  int64_t slots, bytes_of_slot;  // of the workspace: each has the lanes of a task
  bool holds_all;                // of all tasks
  char* lanes;
  int is_far = 0;  // OUT: whether a lane left the range
};

struct Grouped : GroupedTerms, Groups, LaneTasks {
  Reducer reducer;  // stores the results
  bool is_listed;   // the workspace has a list of the terms,
  int64_t* starts;  // in which group g has the offsets starts[g] .. starts[g + 1]
  int64_t* offsets;
  bool is_divided;  // listed: a mean is a sum over the number of its terms
};

int64_t tile_width(const Grouped& g, int64_t tile) {
  return std::min(g.tile, g.operands.rows.size - tile * g.tile);
}

// Lanes of a slot. Behind them lies the one, or the row, of elements that count nowhere.
int64_t lanes_of(const Grouped& g) { return g.tile * g.groups; }
int64_t all_lanes(const Grouped& g) { return lanes_of(g) + (g.has_rows ? g.tile : 1); }

char* slot(const Grouped& g, int64_t index) { return g.lanes + index * g.bytes_of_slot; }

struct GroupedInputs {
  const Grouped& g;
  const StridedOperands& s;
  const ReduceTable& table;
  ElementStager stager;
  alignas(64) int64_t at[kStaged];
  // Results of lanes, as store_results takes them.
  alignas(64) double values[kMostSets][kTile];
  alignas(64) double errors[kMostSets][kTile];

  explicit GroupedInputs(const Grouped& grouped)
      : g(grouped),
        s(grouped.operands),
        table(*grouped.reducer.table),
        stager(s, table, kWeightProduct) {}

  // Terms of outputs first .. first + n onto the lanes of a slot, [group][output].
  void add(int64_t first, int64_t n, int64_t term, int64_t end, char* lanes) {
    if (g.is_plain && g.has_rows) return add_plain_rows(first, n, term, end, lanes);
    if (g.is_plain) return add_plain(first, term, end, lanes);
    for_staged(first, n, term, end,
               [&](const double* w, int64_t count) { add_staged(w, count, n, lanes); });
  }

  // visit(weights, how many) for pieces of these terms, whose numbers are in x, and lanes in at.
  template <class Visit>
  void for_staged(int64_t first, int64_t n, int64_t term, int64_t end, Visit visit) {
    const int64_t rows = std::max<int64_t>(kStaged / n, 1);
    for (int64_t terms; term < end; term += terms) {
      terms = std::min(rows, end - term);
      find_lanes(first, n, term, terms);
      stager.read(kX, first, n, term, terms, stager.x);
      visit(stage_weights(first, n, term, terms), terms * n);
    }
  }

  // Adds terms of one output whose elements and labels are contiguous. Those of 16 bits are staged.
  void add_plain(int64_t output, int64_t term, int64_t end, char* lanes) {
    const int64_t item = s.items[kX], label = s.items[kLabels];
    const bool is_half = item == sizeof(uint16_t);
    const char *from = s.row(kX, output), *labels = s.row(kLabels, output);
    const auto kernel = g.kernels->add[is_half][label == sizeof(int64_t)];
    for (int64_t n; term < end; term += n) {
      n = std::min(kStaged, end - term);
      const char* x = from + term * item;
      if (!is_half && has_runs(labels + term * label, label, n)) {
        add_runs(x, output, term, n, lanes);
        continue;
      }
      if (is_half) {
        stager.read(kX, output, 1, term, n, stager.x);
        x = reinterpret_cast<const char*>(stager.x);
      }
      if (kernel(x, labels + term * label, n, g.groups, g.skips, lanes, all_lanes(g)))
        note(g.has_wrong_label);
    }
  }

  void add_plain_rows(int64_t first, int64_t n, int64_t term, int64_t end, char* lanes) {
    for (int64_t terms; term < end; term += terms) {
      terms = std::min(kStaged, end - term);
      find_lanes(first, n, term, terms);
      const int64_t* group = at;
      for_pieces(s.columns, kX, s.data[kX] + first * s.items[kX], term, terms,
                 [&](const char* from, int64_t step, int64_t rows) {
                   g.kernels->add_rows[s.dtypes[kX]](from, step, group, rows, n, g.skips, lanes);
                   group += rows;
                 });
    }
  }

  // Whether labels change so seldom that runs of one are worth a call.
  static bool has_runs(const char* labels, int64_t item, int64_t n) {
    for (int64_t i = 0; i < kProbes; ++i) {
      const char* const at = labels + i * (n - 1) / kProbes * item;
      if (n <= kProbes || memcmp(at, at + item, item)) return false;
    }
    return true;
  }

  // Runs of elements of one group: each is a block.
  void add_runs(const char* from, int64_t output, int64_t term, int64_t n, char* lanes) {
    find_lanes(output, 1, term, n);
    const int plain[] = {kItself, kMoments}, valid[] = {kValidMean, kValidMoments};
    const int what = (g.skips ? valid : plain)[g.lane];
    const int64_t start = 0;
    double results[kMostSets];
    for (int64_t i = 0, run; i < n; i += run) {
      run = std::find_if(at + i, at + n, [&](int64_t lane) { return lane != at[i]; }) - (at + i);
      const Accumulator& of = table.accumulators[what];
      of.kernels[s.dtypes[kX]].blocks(from + i * s.items[kX], &start, 1, run, 0, results, 1);
      const double count = g.skips ? results[of.sets - 1] : double(run);
      if (g.lane == kLaneMoments)
        results[2] =
            g.is_double ? lost_by_mean(from + i * sizeof(double), run, count, *results) : 0;
      g.kernels->add_block(results, count, at[i], lanes, all_lanes(g));
    }
  }

  // Returns what the rounding of a mean lost, of a run of n doubles; `count` are not skipped.
  double lost_by_mean(const char* from, int64_t n, double count, double mean) const {
    alignas(64) double lanes[kMostSets * kLanes];
    std::fill_n(lanes, kMostSets * kLanes, -0.0);
    const int what = g.skips ? kValidMoments : kMoments;
    table.accumulators[what].kernels[kF64].add_terms(from, n, 0, mean, 0, lanes);
    table.fold(lanes, kLanes, 1);
    return *lanes / count;
  }

  const double* stage_weights(int64_t first, int64_t n, int64_t term, int64_t terms) {
    if (!stager.has_weights()) return nullptr;
    stager.read_weights(first, n, term, terms);
    g.table->choose(stager.x, stager.weights, g.skips, terms * n, lanes_of(g), at);
    return s.data[kWeights] ? stager.weights : nullptr;
  }

  // n elements, of rows that have `width`.
  void add_staged(const double* w, int64_t n, int64_t width, char* lanes) {
    for (int64_t i = 0; i < n && g.term == kSquare; ++i) stager.x[i] *= stager.x[i];
    if (g.has_rows)
      return g.kernels->add_rows[kF64](reinterpret_cast<const char*>(stager.x),
                                       width * sizeof(double), at, n / width, width, g.skips,
                                       lanes);
    const int64_t count = all_lanes(g);
    if (w) return g.kernels->add_weighted(stager.x, w, at, n, lanes, count);
    g.kernels->add[1][1](reinterpret_cast<const char*>(stager.x), reinterpret_cast<const char*>(at),
                         n, count, g.skips, lanes, count);
  }

  // at OUT: the lane of each element, or the group of each row.
  void find_lanes(int64_t first, int64_t n, int64_t term, int64_t terms) {
    const bool is_row = n > 1 && !g.has_rows;
    const int64_t width = g.has_rows ? 1 : g.tile;
    const auto find = g.table->find_lanes[s.dtypes[kLabels] == kI64];
    for_tile(s, kLabels, first, g.has_rows ? 1 : n, term, terms,
             [&](const char* from, int64_t stride, int64_t done, int64_t size) {
               if (find(from, stride, size, g.all_groups, width, is_row ? done % n : 0, is_row,
                        g.groups * width, at + done))
                 note(g.has_wrong_label);
             });
  }

  // The results of n outputs from `output` on, whose lanes begin at `lane` of a slot.
  void store(const Reducer& r, char* slot, int64_t lane, int64_t output, int64_t n) {
    for (int64_t done = 0, m; done < n; done += m) {
      m = std::min(kTile, n - done);
      read(slot, lane + done, m);
      bool is_any_far = false;
      for (int64_t i = 0; g.may_be_far && i < m; ++i) is_any_far |= is_far(i);
      if (is_any_far) note(g.is_far);
      store_results(r, output + done, m, {values[0], errors[0], kTile});
    }
  }

  // Whether what was read of a lane left the range.
  bool is_far(int64_t i) const {
    if (g.lane == kLaneSum) return !is_finite(values[0][i]) && values[1][i] != 0;
    return is_far_moment(values[0][i], values[1][i] + errors[1][i]) && values[2][i] != 0;
  }

  // A lane as it was read, whose elements were divided by `up`.
  Rescaled rescaled(int64_t i, double up) const {
    const auto whole = [&](int set) { return values[set][i] + errors[set][i]; };
    if (g.lane == kLaneSum) return {whole(0) / whole(1), 0, 0, whole(1), up};
    return {values[0][i], errors[0][i], whole(1), whole(2), up};
  }

  void read(char* slot, int64_t lane, int64_t n) {
    g.kernels->read(slot, all_lanes(g), lane, n, values[0], errors[0], kTile);
  }

  // The lane of element i, of rows of n.
  int64_t lane_of(int64_t i, int64_t n) const {
    return g.has_rows ? at[i / n] * g.tile + i % n : at[i];
  }
};

// Lets a reducer store results of the index-th of the groups that have lanes.
void choose_results(const Grouped& g, int64_t index, Reducer* r) {
  const int64_t group = g.met ? g.met[index] : index;
  for (char* Reducer::* at : {&Reducer::y, &Reducer::second, &Reducer::count})
    if (g.reducer.*at) r->*at = g.reducer.*at + group * g.group_stride;
}

// store(reducer, lane, output, how many) for pieces of the lanes first .. first + n of a tile: of
// all groups of its outputs.
template <class Store>
void for_lanes(const Grouped& g, int64_t tile, int64_t first, int64_t n, Store store) {
  if (g.is_by_output && !g.met) return store(g.reducer, first, tile * g.groups + first, n);
  Reducer r = g.reducer;
  for (int64_t lane = first, m; lane < first + n; lane += m) {
    const int64_t group = lane / g.tile, column = lane % g.tile;
    m = std::min(g.tile - column, first + n - lane);
    const int64_t there = std::min(m, tile_width(g, tile) - column);
    choose_results(g, group, &r);
    if (there > 0) store(r, lane, tile * g.tile + column, there);
  }
}

void store_lanes(GroupedInputs& inputs, int64_t tile, char* lanes, int64_t first, int64_t n) {
  for_lanes(inputs.g, tile, first, n,
            [&](const Reducer& r, int64_t lane, int64_t output, int64_t m) {
              inputs.store(r, lanes, lane, output, m);
            });
}

// The lanes of a task before its first element.
char* clear(const Grouped& g, char* lanes) {
  g.kernels->clear(lanes, all_lanes(g), g.tile);
  return lanes;
}

// scales OUT: the powers of two by which the elements of lanes are multiplied, for lanes that left
// the range of double; of others they are negative. Returns whether there are such lanes.
FASTACT_RARE bool find_scales(GroupedInputs& inputs, int64_t tile, char* lanes, double* scales) {
  const Grouped& g = inputs.g;
  const int64_t count = lanes_of(g), width = tile_width(g, tile);
  std::fill_n(scales, all_lanes(g), -1.0);
  for (int64_t lane = 0, n; lane < count; lane += n) {
    n = std::min(kTile, count - lane);
    inputs.read(lanes, lane, n);
    for (int64_t i = 0; i < n; ++i)
      if (inputs.is_far(i)) scales[lane + i] = 0;
  }
  const auto is_any = [=] {
    return std::any_of(scales, scales + count, [](double scale) { return scale >= 0; });
  };
  if (!is_any()) return false;
  inputs.for_staged(tile * g.tile, width, 0, g.operands.columns.size,
                    [&](const double*, int64_t n) {
                      for (int64_t i = 0; i < n; ++i) {
                        double& peak = scales[inputs.lane_of(i, width)];
                        const double size = std::abs(inputs.stager.x[i]);
                        if (g.skips && size != size) continue;
                        if (peak >= 0) peak = size <= kMostDouble ? std::max(peak, size) : HUGE_VAL;
                      }
                    });
  for (int64_t lane = 0; lane < count; ++lane) {
    const double peak = scales[lane];
    scales[lane] = peak > 0 && peak <= kMostDouble ? scale_of(peak) : -1.0;
  }
  return is_any();
}

// Adds up such lanes of a tile anew, whose batches are closed, and stores their results. The scales
// lie behind the lanes.
FASTACT_RARE void rescale_tile(GroupedInputs& inputs, int64_t tile, char* lanes) {
  const Grouped& g = inputs.g;
  const int64_t count = lanes_of(g), width = tile_width(g, tile);
  double* const scales = reinterpret_cast<double*>(lanes + g.bytes_of_slot) - all_lanes(g);
  if (!find_scales(inputs, tile, lanes, scales)) return;
  clear(g, lanes);
  inputs.for_staged(tile * g.tile, width, 0, g.operands.columns.size,
                    [&](const double* w, int64_t n) {
                      for (int64_t i = 0; i < n; ++i) {
                        const double scale = scales[inputs.lane_of(i, width)];
                        inputs.stager.x[i] *= scale;
                        if (scale < 0 && !g.has_rows) inputs.at[i] = count;
                      }
                      inputs.add_staged(w, n, width, lanes);
                    });
  for_lanes(g, tile, 0, count, [&](const Reducer& r, int64_t lane, int64_t output, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      if (scales[lane + i] < 0) continue;
      inputs.read(lanes, lane + i, 1);
      store_rescaled(r, output + i, inputs.rescaled(0, inverse_power(scales[lane + i])));
    }
  });
}

// The outputs of no elements.
void store_nothing(const Grouped& g, const Reducer& of, const Axes& outputs, int64_t first,
                   int64_t end) {
  Reducer r = of;
  set_accumulator(&r, r.table, g.lane == kLaneMoments ? kValidMoments : kValidMean, kF32);
  r.outputs = outputs;
  for (int64_t n; first < end; first += n) {
    n = std::min(kTile, end - first);
    double values[kMostSets][kTile] = {}, errors[kMostSets][kTile] = {};
    store_results(r, first, n, {values[0], errors[0], kTile});
  }
}

// The reduction of one group.
void choose_group(const Grouped& g, int64_t group, Reducer* r) {
  choose_results(g, group, r);
  r->listed = g.offsets + g.starts[group];
  r->terms.size = g.starts[group + 1] - g.starts[group];
  r->divisor = g.is_divided ? double(r->terms.size) : 1.0;
  if (r->terms.size > 0) cut_terms(r);
}

// reduce_partition of a task with few terms: of most groups, where there are many.
void sum_few(const Reducer& r, int64_t task) {
  const int64_t tiles = ceil_div(r.row, r.tile), within = task % tiles * r.tile;
  const int64_t first = task / tiles * r.row + within, n = std::min(r.tile, r.row - within);
  alignas(64) double sums[kTile];
  int64_t at;
  offsets_of(r.outputs, first, 1, &at);
  r.kernels->few_rows[r.terms.size - 1](r.x + at, r.listed, n, nullptr, sums, kTile);
  store_results(r, first, n, {sums, nullptr, kTile});
}

// Tasks of all groups, one group after the other, in parts of as many terms.
void listed_partition(const Grouped& g, int64_t index, int64_t partitions) {
  const int64_t tasks = g.reducer.tasks, each = g.starts[g.groups] + g.groups;
  const int64_t begin = each * tasks * index / partitions;
  const int64_t end = each * tasks * (index + 1) / partitions;
  const bool is_plain = g.reducer.accumulator->sets == 1;
  Reducer r = g.reducer;
  for (int64_t group = 0; group < g.groups; ++group) {
    const int64_t at = (g.starts[group] + group) * tasks;
    const int64_t terms = g.starts[group + 1] - g.starts[group] + 1;
    if (at + terms * tasks <= begin || at >= end) continue;
    choose_group(g, group, &r);
    if (r.terms.size == 0) {
      if (at >= begin) store_nothing(g, r, r.outputs, 0, r.outputs.size);
      continue;
    }
    for (int64_t task = 0; task < tasks; ++task)
      if (at + task * terms >= begin && at + task * terms < end)
        is_plain&& r.terms.size <= kFewTerms ? sum_few(r, task) : reduce_partition(&r, task, tasks);
  }
}

// Whether rows that have one label each are long, and a list of them takes no more than the
// results.
bool is_list_short(const Grouped& g) {
  const StridedOperands& s = g.operands;
  const OperandAxes& rows = s.rows;
  const int64_t last = rows.count - 1;
  return last >= 0 && is_readable(s, kX) && rows.stride[kX][last] == s.items[kX] &&
         rows.length[last] >= kLeastRow &&
         s.columns.size <= std::max(kFewListed, g.groups * rows.size);
}

// The reduction of the groups but for their terms (prepare in reduce.cpp has its layout).
void plan_listed(Grouped* g, const MomentsCall& call) {
  const OperandAxes& rows = g->operands.rows;
  Reducer* r = &g->reducer;
  const int dtype = g->operands.dtypes[kX];
  const bool has_count = call.results[MomentsCall::kCount].shape;
  g->is_divided = call.of_m2 == kNothing && !call.skips && !has_count;
  const int of_mean = g->is_divided ? int(kItself) : call.skips ? int(kValidMean) : int(kMoments);
  const int of_sum = call.skips ? int(kValid) : call.term;
  const int of_m2 = call.skips ? kValidMoments : kMoments;
  set_accumulator(r, r->table,
                  call.of_m2 == kNothing ? of_mean
                  : call.of_m2 == kTotal ? of_sum
                                         : of_m2,
                  dtype);
  r->x = g->operands.data[kX];
  r->outputs = Axes();
  for (int i = 0; i < rows.count; ++i)
    r->outputs.append(rows.length[i], rows.stride[kX][i], rows.stride[kY][i]);
  r->layout = Reducer::kColumns;
  r->rescale = dtype == kF64 && call.of_m2 != kTotal ? rescale_array : nullptr;
  r->row = rows.length[rows.count - 1];
  const int64_t tiles = ceil_div(r->row, r->accumulator->passes[dtype] > 1 ? kTile / 2 : kTile);
  set_tile(r, (ceil_div(r->row, tiles) + 15) / 16 * 16);
  g->holds_all = false;
}

// The outputs of so many groups, whose axis comes last; 0: of one, without the axis.
Axes outputs_of(const Grouped& g, int64_t groups) {
  const OperandAxes& rows = g.operands.rows;
  Axes outputs;
  for (int i = 0; i < rows.count; ++i) outputs.append(rows.length[i], 0, rows.stride[kY][i]);
  if (groups) outputs.append(groups, 0, g.group_stride);
  return outputs;
}

// Whether results may be those of lanes that left the range of double.
bool may_be_far(const Grouped& g, const MomentsCall& call) {
  const StridedOperands& s = g.operands;
  const bool has_doubles = s.dtypes[kX] == kF64 || (s.data[kWeights] && s.dtypes[kWeights] == kF64);
  return has_doubles && (call.of_m2 != kTotal || call.is_weighted());
}

int64_t power_of_two_up_to(int64_t n) {
  int64_t power = 1;
  while (2 * power <= n) power *= 2;
  return power;
}

void prepare(Grouped* g, const KernelTable& table, const MomentsCall& call, int threads) {
  const ArrayArgument& model = call.model();
  const int64_t item = item_size(model.dtype);
  ArrayArgument output = model;  // without its last axis
  int64_t strides[kMaxAxes];
  const int64_t group_stride = take_groups(&output, strides);
  const ArrayArgument given[kOperands] = {call.inputs[MomentsCall::kX],
                                          call.inputs[MomentsCall::kWeights],
                                          call.inputs[MomentsCall::kWhere], call.labels, output};
  StridedOperands& s = g->operands;
  plan_axes(&s, table.convert, kOperands, given, call.axes);
  const int64_t outputs = s.rows.size, terms = s.columns.size;

  const bool has_m2 = call.of_m2 != kNothing && call.of_m2 != kTotal;
  g->table = table.grouped, g->labels = kLabels;
  g->lane = has_m2 ? kLaneMoments : kLaneSum;
  g->term = call.term;
  g->skips = call.skips || call.term == kValid;
  g->is_double = s.dtypes[kX] == kF64 || s.dtypes[kX] == kI64;
  g->all_groups = groups_of(model);
  const int64_t labels = are_shared(s.rows, kLabels) ? terms : outputs * terms;
  g->ranked = g->all_groups / kSparse >= labels ? labels : 0;
  g->groups = g->ranked ? labels : std::max<int64_t>(g->all_groups, 1);
  g->met = nullptr;
  g->is_by_output = outputs == 1 || last_step(s.columns, kX) <= last_step(s.rows, kX);
  const bool are_rows = !g->is_by_output && outputs >= kLeastRowLanes &&
                        are_shared(s.rows, kLabels) && !call.is_weighted();
  g->is_listed = are_rows && is_list_short(*g);
  g->has_rows = are_rows && !g->is_listed;
  g->kernels = &table.grouped->lanes[g->has_rows][g->lane][g->is_double];
  const int64_t of_lane = g->kernels->bytes;
  const int64_t touched = g->has_rows ? kTouchedOfRow : of_lane;
  const int64_t bytes = g->has_rows ? kRowLanesBytes : kLanesBytes;
  const int64_t most = std::clamp(bytes / (touched * g->groups), kLeastTile, kMostTile);
  g->tile = g->is_by_output ? 1 : std::min(outputs, most);
  if (g->has_rows)  // of equal width, in whole cache lines
    g->tile = ceil_div(ceil_div(outputs, ceil_div(outputs, most)), kLaneStep) * kLaneStep;
  g->tiles = ceil_div(outputs, g->tile);
  g->chunks = 1;
  const int64_t of_group = g->has_rows ? kRowsOfGroup : kTermsOfGroup;
  if (g->tiles < kFewTasks)
    g->chunks = power_of_two_up_to(
        std::min({terms / (of_group * g->groups), terms / kLeastChunk, kMostGroupChunks}));
  g->chunk_terms = ceil_div(terms, g->chunks);
  g->chunks = ceil_div(terms, g->chunk_terms);
  g->holds_all = g->chunks > 1 || g->tiles == 1;
  g->slots = g->holds_all ? g->tiles * g->chunks : threads;
  g->may_be_far = may_be_far(*g, call);
  const int64_t lanes = all_lanes(*g), shared = (g->groups + 2) * g->kernels->shared;
  const int64_t of_scales = g->may_be_far ? lanes * int64_t(sizeof(double)) : 0;
  g->bytes_of_slot = ceil_div(lanes * of_lane + shared + of_scales, kCacheLine) * kCacheLine;

  Reducer* r = &g->reducer;
  set_accumulator(r, table.reduce, has_m2 ? kValidMoments : kValidMean,
                  kF32);  // never out of range
  g->group_stride = group_stride;
  r->outputs = outputs_of(*g, g->is_by_output && !g->ranked ? g->groups : 0);
  set_output(r, s.data[kY], model.dtype, is_aligned(model, item));
  set_moments(r, call);
  const bool has_one_axis = s.columns.count == 1 && is_readable(s, kX) &&
                            s.columns.stride[kX][0] == s.items[kX] &&
                            s.columns.stride[kLabels][0] == s.items[kLabels];
  const bool has_dense_rows =
      g->has_rows && s.rows.count == 1 && is_readable(s, kX) && s.rows.stride[kX][0] == s.items[kX];
  g->is_plain = (g->is_by_output ? has_one_axis && is_aligned(s, kLabels) : has_dense_rows) &&
                call.term != kSquare && !call.is_weighted();
  if (g->is_listed) plan_listed(g, call);
}

void list_terms(Grouped* g) {
  const StridedOperands& s = g->operands;
  const int64_t terms = s.columns.size;
  int64_t* const starts = reinterpret_cast<int64_t*>(g->lanes);
  int64_t* const offsets = starts + g->groups + 2;
  // A copy: a thread that changes labels meanwhile changes no place in the list.
  int64_t* const labels = offsets + terms;
  g->starts = starts, g->offsets = offsets;
  std::fill_n(starts, g->groups + 2, 0);
  read_labels(*g, 0, 0, terms, labels);
  if (g->has_wrong_label) return;
  // starts[g + 2] counts group g; then starts[g + 1] is where its next term goes.
  for (int64_t i = 0; i < terms; ++i)
    if (labels[i] >= 0) ++starts[labels[i] + 2];
  for (int64_t i = 0; i < g->groups; ++i) starts[i + 2] += starts[i + 1];
  const int64_t* label = labels;
  for_pieces(s.columns, kX, s.data[kX], 0, terms, [&](char* from, int64_t stride, int64_t n) {
    int64_t at = from - s.data[kX];
    for (int64_t i = 0; i < n; ++i, ++label, at += stride)
      if (*label >= 0) offsets[starts[*label + 1]++] = at;
  });
}

int64_t bytes_needed(const Grouped* g) {
  const int64_t of_ranks = 2 * g->ranked * int64_t(sizeof(int64_t));
  return of_ranks + (g->is_listed
                         ? (g->groups + 2 + 2 * g->operands.columns.size) * int64_t(sizeof(int64_t))
                         : g->slots * g->bytes_of_slot);
}

void rank_labels(Grouped* g) {
  constexpr int k = kLabels;
  StridedOperands& s = g->operands;
  OperandAxes &rows = s.rows, &columns = s.columns;
  int64_t* const ranks = reinterpret_cast<int64_t*>(g->lanes);
  int64_t* const met = ranks + g->ranked;
  for (int64_t i = 0; i < g->ranked; i += columns.size)
    read_labels(*g, i / columns.size, 0, columns.size, ranks + i);
  if (g->has_wrong_label) return;
  int64_t* end = std::copy_if(ranks, met, met, [](int64_t label) { return label >= 0; });
  std::sort(met, end);
  end = std::unique(met, end);
  for (int64_t i = 0; i < g->ranked; ++i)
    if (ranks[i] >= 0) ranks[i] = std::lower_bound(met, end, ranks[i]) - met;
  g->met = met;
  g->groups = end - met;
  g->lanes = reinterpret_cast<char*>(met + g->ranked);

  // They lie one after the other.
  int64_t step = s.items[k] = sizeof(int64_t);
  s.data[k] = reinterpret_cast<char*>(ranks), s.dtypes[k] = kI64;
  for (OperandAxes* axes : {&columns, &rows})
    for (int i = axes->count - 1; i >= 0; --i) {
      if (axes == &rows && g->ranked == columns.size) break;  // all rows have these labels
      axes->stride[k][i] = step;
      step *= axes->length[i];
    }
}

void store_nothing_partition(const Grouped* g, int64_t index, int64_t partitions) {
  const Axes outputs = outputs_of(*g, g->all_groups);
  store_nothing(*g, g->reducer, outputs, begin_of_part(outputs.size, index, partitions),
                begin_of_part(outputs.size, index + 1, partitions));
}

void grouped_partition(const Grouped* g, int64_t index, int64_t partitions) {
  if (g->is_listed) return listed_partition(*g, index, partitions);
  const int64_t tasks = g->tiles * g->chunks, terms = g->operands.columns.size;
  with_frame<GroupedInputs>(*g, [&](GroupedInputs& inputs) {
    for (int64_t i = tasks * index / partitions; i < tasks * (index + 1) / partitions; ++i) {
      const int64_t tile = i / g->chunks, chunk = i % g->chunks;
      char* const lanes = clear(*g, slot(*g, g->holds_all ? i : index));
      inputs.add(tile * g->tile, tile_width(*g, tile), chunk * g->chunk_terms,
                 std::min((chunk + 1) * g->chunk_terms, terms), lanes);
      if (g->holds_all) continue;
      store_lanes(inputs, tile, lanes, 0, lanes_of(*g));
      if (__atomic_load_n(&g->is_far, __ATOMIC_RELAXED)) rescale_tile(inputs, tile, lanes);
    }
  });
}

void store_groups_partition(const Grouped* g, int64_t index, int64_t partitions) {
  const int64_t count = lanes_of(*g), steps = ceil_div(count, kLaneStep);
  const int64_t first = steps * index / partitions * kLaneStep;
  const int64_t n = std::min(steps * (index + 1) / partitions * kLaneStep, count) - first;
  with_frame<GroupedInputs>(*g, [&](GroupedInputs& inputs) {
    for (int64_t tile = 0; tile < g->tiles; ++tile) {
      char* const all = slot(*g, tile * g->chunks);
      for (int64_t chunk = 1; chunk < g->chunks; ++chunk)
        g->kernels->merge(slot(*g, tile * g->chunks + chunk), all, all_lanes(*g), first, n);
      store_lanes(inputs, tile, all, first, n);
    }
  });
}

void rescale_groups_partition(const Grouped* g, int64_t index, int64_t partitions) {
  with_frame<GroupedInputs>(*g, [&](GroupedInputs& inputs) {
    for (int64_t tile = g->tiles * index / partitions; tile < g->tiles * (index + 1) / partitions;
         ++tile)
      rescale_tile(inputs, tile, slot(*g, tile * g->chunks));
  });
}

}  // namespace

int64_t grouped_workspace(const MomentsCall& call, const KernelTable* kernels) {
  Grouped grouped;
  prepare(&grouped, *kernels, call, resolve_threads(size_of(call.x())));
  return bytes_needed(&grouped);
}

bool run_grouped(const MomentsCall& call, Execution* execution, int* is_degenerate) {
  int threads = resolve_threads(size_of(call.x()));
  Grouped g;
  prepare(&g, *execution->kernels, call, threads);
  if (execution->bytes < bytes_needed(&g)) {  // it was sized for fewer threads
    threads = 1;
    g = Grouped();
    prepare(&g, *execution->kernels, call, threads);
  }
  check_workspace("fastact._cpu", kGroupedCall.name, execution->workspace, execution->bytes,
                  bytes_needed(&g), sizeof(double));
  g.lanes = execution->workspace;
  g.reducer.is_degenerate = is_degenerate;
  const auto run = [&](auto partition) { run_partitions(threads, partition, &g); };
  if (g.ranked)
    rank_labels(&g);
  else if (g.is_listed && g.all_groups)
    list_terms(&g);
  else if (!g.holds_all || !g.all_groups)
    run_partitions<LabelledArrays>(threads, check_labels_partition, &g);
  if (g.ranked && !g.has_wrong_label) {
    run(store_nothing_partition);
    if (g.is_listed) list_terms(&g);
  }
  if (!g.all_groups || g.has_wrong_label) return g.has_wrong_label;
  run(grouped_partition);
  if (!g.holds_all || g.has_wrong_label) return g.has_wrong_label;
  run(store_groups_partition);
  if (g.is_far) run(rescale_groups_partition);
  return false;
}

}  // namespace fastact
