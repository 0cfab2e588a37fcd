// The gradients of the gates' biases (gates.h): sums over rows, in the order of bias_grad.
#include "cpu/core/scratch.h"
#include "cpu/core/threads.h"
#include "cpu/gates/tile_reader.h"
#include "cpu/reductions/summing_pass.h"

namespace fastact {
namespace {

// The gradients of the biases that a call of backward wants, and how they are shared out.
struct BiasGradients {
  BiasGradients(const Gates& gates, const ReduceTable* table, const GatesCall& call);

  const Gates& gates;
  // The sums for each row of the bias, in the caller's order, for dbias and drecurrent_bias, which
  // are equal. y is null where one is not wanted.
  Reducer sums[kMostGates], recurrent[kMostGates];
  // One block of rows, whose lanes are divided among threads and meet in a workspace: parts of it
  // (0: it is not shared), and lanes of a part that lie side by side.
  int64_t parts = 0, part_lanes;
  double* shared;  // that workspace
  int gate_order[kMostGates];
};

constexpr int64_t kSpanCost = 256;  // of a border between spans, in elements of lanes
constexpr int64_t kDeep = 8;        // rows of a lane that are read at once, at most

// The operand whose sum over the rows is the gradient of row k of the bias.
int operand_of_sum(const Gates& g, int k) {
  return g.kind == kGru && k == 3 ? kRecurrentOut + 2 : kGateOut + k;
}

// Columns of a task: all their gradients are still in the second-level cache when they are
// added up, if the rows are not too many for that.
int64_t tile_of(int kind, int64_t compute_item, int64_t rows, int64_t columns) {
  const int64_t most = kMostColumns / kSavedOf[kind] / kGateStep * kGateStep;
  const int64_t fit = kL2Bytes / (rows * kSavedOf[kind] * compute_item);  // columns in the cache
  const int64_t tiles = ceil_div(columns, fit >= kNarrowTile ? std::min(fit, most) : most);
  return std::min(columns, ceil_div(ceil_div(columns, tiles), kGateStep) * kGateStep);
}

// How the lanes of one block are divided: among `count` parts, in spans of `lanes` lanes. With long
// spans the last thread has to fetch more lanes from the others. With short spans two threads write
// to the same cache line more often: at each border between spans, unless rows begin at one.
struct Parts {
  int64_t count = 1, lanes = 1;
  Parts(int64_t rows, int64_t width, int threads) {
    while (count < threads && count < kLanes) count *= 2;
    if (count > threads) count = std::min<int64_t>(4 * count, kLanes);  // for equal partitions
    while (2 * lanes * count <= kLanes && 4 * lanes * lanes * width <= kSpanCost * rows) lanes *= 2;
  }
  // Bytes of workspace, for rows of lanes of that width.
  int64_t bytes(int64_t width) const { return count * lanes * width * int64_t(sizeof(double)); }
};

// Whether threads take rows of one block rather than tiles of columns.
bool splits_rows(int64_t rows, int64_t tiles, int threads) {
  if (rows > kReduceBlock || threads < 2) return false;
  return tiles < threads || (rows >= kLanes / 2 * threads && tiles < kFewTasks);
}

// The sums of a tile's columns over the rows of a block, as gate after gate in the packed order.
class GateBiasSums : public BlockSource {
 public:
  explicit GateBiasSums(const BiasGradients& given)
      : gradients(given), g(given.gates), r(given.sums[0]), tiles(g, true) {
    for (int k = 0; k < g.biases; ++k) reads_back &= tiles.is_direct(operand_of_sum(g, k));
  }

  void run(int64_t index, int64_t partitions) {
    if (!gradients.parts) return reduce_tasks(gradients.sums, g.biases, *this, index, partitions);
    for (int64_t i = gradients.parts * index / partitions;
         i < gradients.parts * (index + 1) / partitions; ++i)
      part(i);
  }

  // Gradients that are stored as they are computed are read again from the cache, a band of rows
  // after the other.
  Results block(int64_t first, int64_t n, int64_t row, int64_t rows) override {
    const int64_t width = n * g.biases;
    const int64_t deep =
        std::clamp<int64_t>(kL2Bytes / (kLanes * width * g.compute_item), 1, kDeep);
    const int64_t band = reads_back ? deep * kLanes : kLanes;
    for (int64_t done = 0; done < rows; done += band) {
      const int64_t end = std::min(done + band, rows);
      for (int64_t k = done; reads_back && k < end;) k += tiles.tile(row + k, end - k, first, n);
      for (int64_t lane = 0; reads_back && lane < std::min<int64_t>(kLanes, end - done); ++lane)
        add_stored(first, n, row + done + lane, end - done - lane, done == 0, lanes + lane * width);
      if (!reads_back) add_made(first, n, row, done, end);
    }
    r.table->fold(lanes, std::min<int64_t>(rows, kLanes), width);
    return {lanes, nullptr, 0};
  }

  // In the workspace, the lanes of the tile from column `first` on.
  static double* lanes_of(const BiasGradients& b, int64_t first) {
    return b.shared + b.parts * b.part_lanes * b.gates.biases * first;
  }

 private:
  // The rows of one block whose lanes belong to a part: every parts-th span of part_lanes. It folds
  // them as far as that needs no other part, so that few lanes meet in the workspace; all the
  // part's rows are whole, and no two threads write to a cache line but where spans of rows meet.
  void part(int64_t index) {
    const int64_t begin = index * gradients.part_lanes,
                  every = gradients.parts * gradients.part_lanes;
    if (reads_back)
      for (int64_t row = begin; row < g.rows.size; row += every)
        tiles.run(row, std::min(gradients.part_lanes, g.rows.size - row), 0, g.columns.size);
    for (int64_t first = 0; first < g.columns.size; first += r.tile) {
      const int64_t n = std::min(r.tile, g.columns.size - first), width = n * g.biases;
      for (int64_t row = begin; row < g.rows.size; row += every) {
        const int64_t end = std::min(row + gradients.part_lanes, g.rows.size);
        if (!reads_back) add_made(first, n, 0, row, end);
        for (int64_t lane = row; reads_back && lane < std::min<int64_t>(kLanes, end); ++lane)
          add_stored(first, n, lane, g.rows.size - lane, true, lanes + lane * width);
      }
      for (int64_t lane = begin; lane < std::min(begin + gradients.part_lanes, g.rows.size);
           ++lane) {
        fold(lane, every, width);
        std::copy_n(lanes + lane * width, width, lanes_of(gradients, first) + lane * width);
      }
    }
  }

  // lanes[lane] becomes the sum of the lanes lane, lane + step, ..., in the order of the table's
  // fold.
  void fold(int64_t lane, int64_t step, int64_t width) {
    const int64_t count = std::min<int64_t>(g.rows.size, kLanes);
    for (int64_t half = kLanes / 2; half >= step; half /= 2)
      for (int64_t l = lane; l < half && l + half < count; l += step)
        for (int64_t i = 0; i < width; ++i) lanes[l * width + i] += lanes[(l + half) * width + i];
  }

  // lane IN/OUT: every kLanes-th of so many stored rows, several at once: lanes are not read and
  // written for every one.
  void add_stored(int64_t first, int64_t n, int64_t row, int64_t rows, bool fresh, double* lane) {
    for (int64_t done = 0; done < rows; done += kDeep * kLanes, fresh = false)
      add(first, n, row + done, std::min(kDeep, ceil_div(rows - done, kLanes)), 0, fresh, lane);
  }

  // Rows row + begin .. row + end of gradients of which some pass through buffers.
  void add_made(int64_t first, int64_t n, int64_t row, int64_t begin, int64_t end) {
    for (int64_t i = begin, m; i < end; i += m) {
      m = tiles.tile(row + i, std::min(end - i, g.moves ? kGatePiece / n : 1), first, n);
      for (int64_t j = 0; j < m; ++j)
        add(first, n, row + i + j, 1, j, i + j < kLanes, lanes + (i + j) % kLanes * g.biases * n);
    }
  }

  // lane IN/OUT: `count` rows, kLanes apart, or the row of a buffer.
  void add(int64_t first, int64_t n, int64_t row, int64_t count, int64_t made_row, bool fresh,
           double* lane) {
    int64_t at[kDeep];
    const bool are_joined =
        reads_back && n == g.columns.size;  // all gates lie in the row of the first
    for (int k = 0; k < g.biases; ++k) {
      const int index = operand_of_sum(g, k);
      const bool is_gate = k < kGatesOf[g.kind], is_direct = tiles.is_direct(index);
      const GateOperand& s = g.operands[index];
      const int64_t position = is_gate ? gradients.gate_order[k] : k;
      if (are_joined && is_gate && position > 0) continue;
      for (int64_t i = 0; i < count; ++i)
        at[i] =
            is_direct ? g.rows.offset(s.array, row + i * kLanes) : made_row * n * g.compute_item;
      r.kernels->add_rows(is_direct ? s.data + first * s.column : tiles.made(index), at, 1, count,
                          are_joined && is_gate ? n * kGatesOf[g.kind] : n, nullptr,
                          lane + position * n, 0, fresh, 0);
    }
  }

  const BiasGradients& gradients;
  const Gates& g;
  const Reducer& r;
  GateTiles tiles;
  bool reads_back = true;  // all gradients, from where they are stored
  alignas(64) double lanes[kLanes * kMostColumns];
};

BiasGradients::BiasGradients(const Gates& g, const ReduceTable* table, const GatesCall& call)
    : gates(g) {
  std::copy_n(call.places.at, kMostGates, gate_order);
  int64_t tile = tile_of(g.kind, g.compute_item, g.rows.size, g.columns.size);
  if (g.moves || g.lacks) tile = std::min(tile, kGatePiece);
  for (int k = 0; k < g.biases; ++k) {
    const bool is_q = k == kGatesOf[g.kind], is_n = g.kind == kGru && k == 2;
    const int64_t position = is_q ? 2 : k;
    for (int i = 0; i < 2; ++i) {
      Reducer* r = i == 0 ? &sums[k] : &recurrent[k];
      const ArrayArgument& to = call.bias_gradient[i];
      const bool is_wanted = to.data && !(i == 0 ? is_q : is_n);
      const int64_t stride = is_wanted ? byte_stride(to, 0, item_size(to.dtype)) : 0;
      set_accumulator(r, table, kItself, g.compute_dtype);
      set_channels(
          r, {is_wanted ? to.data + position * g.columns.size * stride : nullptr, stride, to.dtype},
          g.columns.size, g.accumulate);
      r->terms.size = g.rows.size;
      r->row = g.columns.size;
      r->layout = Reducer::kColumns;
      set_tile(r, tile);
      cut_terms(r);
    }
    sums[k].also = &recurrent[k];
  }
}

void run_partition(const BiasGradients* gradients, int64_t index, int64_t partitions) {
  with_frame<GateBiasSums>(*gradients, [&](GateBiasSums& sums) { sums.run(index, partitions); });
}

// Divides the sums among so many threads, or as many as the workspace suffices for.
void use_workspace(BiasGradients* b, char* workspace, int64_t bytes, int threads) {
  const Gates& g = b->gates;
  if (threads == 1 || !workspace) return;
  double* const shared = reinterpret_cast<double*>(workspace);
  if (g.rows.size > kReduceBlock) {
    const int64_t each = partial_size(b->sums);
    if (bytes < g.biases * each * int64_t(sizeof(double))) return;
    for (int k = 0; k < g.biases; ++k) b->sums[k].partial = shared + k * each;
    return;
  }
  const int64_t width = kSavedOf[g.kind] * g.columns.size;
  const int64_t tile = tile_of(g.kind, g.compute_item, g.rows.size, g.columns.size);
  if (!splits_rows(g.rows.size, ceil_div(g.columns.size, tile), threads)) return;
  threads = std::min(threads, int(kLanes));  // more of them make no more parts
  while (threads > 1 && Parts(g.rows.size, width, threads).bytes(width) > bytes) --threads;
  if (threads < 2) return;
  const Parts parts(g.rows.size, width, threads);
  b->parts = parts.count, b->part_lanes = parts.lanes;
  b->shared = shared;
}

// Adds up the lanes that the parts left in the workspace.
void merge_parts(const BiasGradients& b) {
  const Gates& g = b.gates;
  const Reducer& r = b.sums[0];
  for (int64_t first = 0; first < g.columns.size; first += r.tile) {
    const int64_t n = std::min(r.tile, g.columns.size - first);
    double* const lanes = GateBiasSums::lanes_of(b, first);
    r.table->fold(lanes, std::min(g.rows.size, b.parts * b.part_lanes), n * g.biases);
    for (int k = 0; k < g.biases; ++k)
      store_results(b.sums[k], first, n, {lanes + k * n, nullptr, 0});
  }
}

}  // namespace

bool sums_are_apart(int kind, int dtype, int64_t rows, int64_t columns, int threads) {
  const int64_t compute_item = item_size(compute_dtype(dtype));
  const bool is_exact = item_size(dtype) == compute_item;  // else they were rounded
  const int64_t bytes = rows * columns * kSavedOf[kind] * compute_item;
  const int64_t tile = tile_of(kind, compute_item, rows, columns);
  if (splits_rows(rows, ceil_div(columns, tile), threads) && bytes <= threads * kL2Bytes)
    return false;
  return is_exact && rows > kLanes && bytes > kL2Bytes && columns > tile;
}

int64_t gate_workspace_size(int kind, int dtype, int64_t rows, int64_t columns, int threads) {
  const int64_t width = kSavedOf[kind] * columns;
  const int64_t tile = tile_of(kind, item_size(compute_dtype(dtype)), rows, columns);
  const int64_t tiles = ceil_div(columns, tile);
  if (rows <= kReduceBlock)
    return splits_rows(rows, tiles, threads) ? Parts(rows, width, threads).bytes(width) : 0;
  Reducer r;
  r.terms.size = rows;
  cut_terms(&r);
  return tiles >= kFewTasks ? 0 : r.chunks * width * 2 * int64_t(sizeof(double));
}

void run_with_bias_gradients(const Gates& gates, const KernelTable* table, const GatesCall& call,
                             char* workspace, int64_t bytes, int threads) {
  BiasGradients gradients(gates, table->reduce, call);
  use_workspace(&gradients, workspace, bytes, threads);
  run_partitions(threads, run_partition, &gradients);
  gradients.parts ? merge_parts(gradients) : merge_chunks(gradients.sums, gates.biases, threads);
}

}  // namespace fastact
