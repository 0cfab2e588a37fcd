// The native functions of recurrent gates: the plan of a call, and a thread's partition of it
// (gates.h).
#include "cpu/core/native_function.h"
#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/gates/tile_reader.h"

namespace fastact {

void prepare(Gates* g, const KernelTable* table, const GatesCall& call, bool backward) {
  const ArrayArgument *role = call.role, &state = role[gate_roles::kState];
  const int kind = call.kind, dtype = state.dtype;
  const bool recomputes = call.recomputes(), accumulate = call.accumulate;
  const int last = state.ndim - 1, gates = kGatesOf[kind], saved = kSavedOf[kind];
  g->kind = kind;
  g->backward = backward;
  g->accumulate = accumulate;

  struct Array {
    const Operand& operand;
    int index, count;
    bool is_ordered;  // packed as the caller's gates are
  };
  const bool reads_sums = !backward || recomputes;
  const Array all[] = {
      {state, kStateIn, 1, false},
      {reads_sums ? role[gate_roles::kGates] : call.kept, kGateIn, reads_sums ? gates : saved,
       reads_sums || kind == kLstm},
      {role[gate_roles::kRecurrent], kRecurrentIn, gates, true},
      {role[gate_roles::kCell], kCell, 1, false},
      {role[gate_roles::kHidden], kHidden, 1, false},
      {role[gate_roles::kCellGradient], kCellGradient, 1, false},
      {role[gate_roles::kGatesOut], kGateOut, backward ? gates : saved, backward || kind == kLstm},
      {role[gate_roles::kRecurrentOut], kRecurrentOut, gates, true},
      {role[gate_roles::kStateOut], kStateOut, 1, false},
  };

  constexpr int kArrays = sizeof(all) / sizeof(all[0]);
  Operand arrays[kArrays];
  int dtypes[kArrays], planned = 0;  // those that are there: a step of a sequence is a small call
  bool is_last[kMaxAxes] = {};
  is_last[last] = true;
  for (const Array& array : all)
    if (planned == 0 || array.operand.data)
      arrays[planned] = array.operand, dtypes[planned++] = dtype;
  plan_rows(g, table->convert, planned, arrays, dtypes, is_last, true);

  for (GateOperand& s : g->operands) s.data = nullptr, s.is_direct = false;
  constexpr int64_t kFewColumns = 32;  // below, rows are joined
  g->is_joined = g->columns.size < kFewColumns && g->rows.size > 1;
  g->moves = g->is_joined;
  g->lacks = false;
  // A kernel converts 16-bit arrays itself where it can read and write all of them.
  bool converts = g->item < g->compute_item && !g->is_joined && !accumulate;
  int at = -1;
  for (const Array& array : all) {
    if (at < 0 || array.operand.data) ++at;
    const bool is_out = is_gate_output(backward, array.index);
    if (!array.operand.data) {
      const bool is_of_kind = array.index == kRecurrentOut ? kind == kGru : is_out;
      g->lacks |= backward && (is_of_kind || (array.index == kCellGradient && kind == kLstm));
      continue;
    }
    const int64_t column = byte_stride(arrays[at], last, g->item);
    // Sums of biases read all gates of a row as one span: one column of each is no exception there.
    const bool has_run = column == g->item || array.count == 1;
    const bool is_dense = has_run && g->has_unit_stride[at];
    const bool is_direct = is_dense && g->is_direct[at];
    converts &= is_dense;
    g->moves |= !is_direct || (accumulate && is_out);
    for (int i = 0; i < array.count; ++i) {
      const int position = array.is_ordered ? call.places.at[i] : i;
      g->operands[array.index + i] = {arrays[at].data + position * g->columns.size * column, at,
                                      column, is_direct};
    }
  }

  const bool adds = role[gate_roles::kRecurrent].data;
  const bool saves = role[gate_roles::kGatesOut].data;
  const auto kernel = [&](int stored) {
    return backward ? table->gate->backward[kind][stored][recomputes ? 1 + adds : 0]
                    : table->gate->forward[kind][stored][adds][saves];
  };
  g->kernel = kernel(g->compute_dtype);
  g->converting = converts ? kernel(dtype) : nullptr;

  g->biases = saved;
  for (int k = 0; k < g->biases; ++k) {
    const bool is_q = kind == kGru && k == 3, is_n = kind == kGru && k == 2;
    for (int i = 0; i < 2; ++i) {
      const ArrayArgument& given = call.bias[i];
      const bool is_there = reads_sums && given.data && !(i == 0 ? is_q : is_n);
      const int64_t stride = is_there ? byte_stride(given, 0, item_size(given.dtype)) : 0;
      const int64_t first = call.places.at[is_q ? 2 : k] * g->columns.size;
      g->bias[k][i] = {is_there ? given.data + first * stride : nullptr, stride, given.dtype};
    }
  }
}

namespace {

void gate_partition(const Gates* gates, int64_t index, int64_t partitions) {
  with_frame<GateTiles>(*gates, [&](GateTiles& tiles) {
    for_rows(gates->size(), gates->columns.size, index, partitions,
             [&](int64_t row, int64_t rows, int64_t column, int64_t n) {
               tiles.run(row, rows, column, column + n);
             });
  });
}

// The sizes of a state, which has an axis, and the threads that a call of it is worth.
struct GateSizes {
  int64_t rows, columns;
  int threads;

  GateSizes(int kind, const Operand& state) : columns(state.shape[state.ndim - 1]) {
    const int64_t size = size_of(state);
    // Activations of a column, by which threads are counted.
    const int64_t work = kind == kLstm ? 5 : kind == kGru ? 3 : kind == kReset ? 1 : 2;
    rows = size ? size / columns : 0;
    threads = resolve_threads(size * work);
  }
  explicit GateSizes(const GatesCall& call) : GateSizes(call.kind, call.role[gate_roles::kState]) {}
};

bool has_sums(const GatesCall& call) {
  return call.bias_gradient[0].shape || call.bias_gradient[1].shape;
}

void forward(const GatesCall& call, const KernelTable* kernels) noexcept {
  const GateSizes sizes(call);
  if (sizes.rows == 0) return;
  Gates gates;
  prepare(&gates, kernels, call, false);
  run_partitions(sizes.threads, gate_partition, &gates);
}

int64_t backward_workspace(const GatesCall& call, const KernelTable*) {
  const GateSizes sizes(call);
  if (!has_sums(call) || sizes.rows == 0 || sizes.threads == 1) return 0;
  return gate_workspace_size(call.kind, call.role[gate_roles::kState].dtype, sizes.rows,
                             sizes.columns, sizes.threads);
}

void backward(const GatesCall& call, Execution* execution) {
  const GateSizes sizes(call);
  if (sizes.rows == 0) {
    for (int k = 0; k < 2 && !call.accumulate; ++k) fill(call.bias_gradient[k], 0);
    return;
  }
  Gates gates;
  prepare(&gates, execution->kernels, call, true);
  if (has_sums(call))
    run_with_bias_gradients(gates, execution->kernels, call, execution->workspace, execution->bytes,
                            sizes.threads);
  else
    run_partitions(sizes.threads, gate_partition, &gates);
}

}  // namespace

bool gate_sums_apart(int kind, int dtype, const Operand& state) {
  const GateSizes sizes(kind, state);
  return sizes.rows > 0 && sums_are_apart(kind, dtype, sizes.rows, sizes.columns, sizes.threads);
}

void add_gates(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<forward>(kGatesForward));
  functions->push_back(native_function<backward, backward_workspace>(kGatesBackward));
}

}  // namespace fastact
