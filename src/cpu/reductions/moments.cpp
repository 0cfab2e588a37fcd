#include "cpu/reductions/moments.h"

#include <algorithm>
#include <cstring>

#include "cpu/core/scratch.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/segmented.h"

namespace fastact {
namespace {

constexpr int64_t kGathered = 2048;  // elements gathered at a time

// Blocks of x, in each layout, as the sums of reductions/reduce_inputs.cpp.
class MomentInputs {
 public:
  explicit MomentInputs(const MomentReducer& moments)
      : m(moments), r(moments.reducer), passes(moment_passes(r.dtype)) {}

  // mean, m2 OUT (n): of one block, terms term .. term + terms of outputs first .. first + n.
  void moments(int64_t first, int64_t n, int64_t term, int64_t terms, double* mean, double* m2) {
    switch (r.layout) {
      case Reducer::kRows:
        rows(first, n, term, terms, mean, m2);
        break;
      case Reducer::kSpread:
        spread(first, n, terms, mean, m2);
        break;
      default:
        columns(first, n, term, terms, mean, m2);
    }
  }

 private:
  // The passes over one block of n columns, the first with `shift` as it stands.
  template <class Add>
  void settle(int64_t terms, int64_t n, double* mean, double* m2, Add add) {
    for (int pass = 0; pass < passes; ++pass) {
      if (pass > 0) std::copy(mean, mean + n, shift);
      m.table->make_finite(shift, n);
      const int64_t lanes = add();
      if (lanes > 1) {
        r.table->fold(sums, lanes, n);
        r.table->fold(squares, lanes, n);
      }
      m.table->settle(shift, sums, squares, terms, n, mean, m2);
    }
  }

  void rows(int64_t first, int64_t n, int64_t term, int64_t terms, double* mean, double* m2) {
    int64_t at[kMostOutputs];
    offsets_of(r.outputs, first, n, at);
    if (r.terms.count == 1 && r.has_dense_terms) {
      m.kernels->along(r.x + term * r.item, at, n, terms, mean, m2);
      return;
    }
    if (r.is_backward) {
      m.kernels->along_backward(r.x - term * r.item, at, n, terms, mean, m2);
      return;
    }
    for (int64_t k = 0; k < n; ++k)
      r.has_dense_terms ? pieces(r.x + at[k], term, terms, mean + k, m2 + k)
                        : gathered_row(r.x + at[k], term, terms, mean + k, m2 + k);
  }

  void pieces(const char* x, int64_t term, int64_t terms, double* mean, double* m2) {
    for_spans(r.terms, term, 1, [&](int64_t offset, int64_t, int64_t) {
      r.kernels->spread(x + offset, r.item, 1, shift);
    });
    settle(terms, 1, mean, m2, [&] {
      std::fill(sums, sums + kLanes, 0.0);
      std::fill(squares, squares + kLanes, 0.0);
      int64_t phase = 0;
      for_spans(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t k) {
        m.kernels->add_terms(x + offset, k, phase, *shift, sums, squares);
        phase = (phase + k) % kLanes;
      });
      return kLanes;
    });
  }

  void gathered_row(const char* x, int64_t term, int64_t terms, double* mean, double* m2) {
    const MoveRow gather = gather_for(r.item);
    const int64_t step = last_stride(r.terms), start = 0;
    char* to = stage;
    for_spans(r.terms, term, terms, [&](int64_t offset, int64_t, int64_t k) {
      if (step == r.item)
        memcpy(to, x + offset, k * r.item);
      else
        gather(to, x + offset, step, k);
      to += k * r.item;
    });
    m.kernels->along(stage, &start, 1, terms, mean, m2);
  }

  void spread(int64_t first, int64_t n, int64_t terms, double* mean, double* m2) {
    const int64_t step = last_stride(r.outputs);
    const auto for_outputs = [&](auto visit) {
      int64_t done = 0;
      for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t k) {
        visit(r.x + offset, done, k);
        done += k;
      });
    };
    offsets_of(r.terms, 0, terms, offsets);
    for_outputs([&](const char* x, int64_t done, int64_t k) {
      r.kernels->spread(x + offsets[0], step, k, shift + done);
    });
    settle(terms, n, mean, m2, [&] {
      if (r.has_dense_terms) {
        const int64_t low = r.is_backward ? (1 - terms) * r.item : 0;
        for_outputs([&](const char* x, int64_t done, int64_t k) {
          m.kernels->short_rows[terms - 1](x + low, nullptr, k, shift + done, sums + done,
                                           squares + done);
        });
        return int64_t{1};
      }
      for_outputs([&](const char* x, int64_t done, int64_t k) {
        for (int64_t i = 0; i < terms; ++i)
          r.kernels->spread(x + offsets[i], step, k, sums + i * n + done);
      });
      m.table->deviate(shift, terms, n, sums, squares);
      return terms;
    });
  }

  void columns(int64_t first, int64_t n, int64_t term, int64_t terms, double* mean, double* m2) {
    const char* x = r.x;
    for_spans(r.outputs, first, n, [&](int64_t offset, int64_t, int64_t) { x += offset; });
    offsets_of(r.terms, term, terms, offsets);
    gather_for(r.item)(stage, x + offsets[0], last_stride(r.outputs), n);
    r.kernels->spread(stage, r.item, n, shift);
    settle(terms, n, mean, m2, [&] {
      if (r.layout == Reducer::kColumns && terms <= kFewTerms) {
        m.kernels->few_rows[terms - 1](x, offsets, n, shift, sums, squares);
        return int64_t{1};
      }
      if (r.layout == Reducer::kColumns)
        in_place(x, n, terms);
      else
        joined(x, n, terms);
      return terms;
    });
  }

  void in_place(const char* x, int64_t n, int64_t terms) {
    for (int64_t lane = 0; lane < std::min<int64_t>(kLanes, terms); ++lane)
      m.kernels->add_rows(x, offsets + lane, kLanes, ceil_div(terms - lane, kLanes), n, shift,
                          sums + lane * n, squares + lane * n, true);
  }

  // Few columns: kLanes dense rows are one row that holds every lane.
  void joined(const char* x, int64_t n, int64_t terms) {
    for (int64_t done = n; done < kLanes * n; done *= 2)
      std::copy(shift, shift + done, shift + done);
    if (r.has_dense_rows) {
      r.is_backward ? dense_backward(x + offsets[0], n, terms)
                    : dense(x + offsets[0], n, terms, true);
      return;
    }
    const MoveRow gather = gather_for(r.item);
    const int64_t rows_at_once = kGathered / n / kLanes * kLanes, step = last_stride(r.outputs);
    for (int64_t done = 0; done < terms; done += rows_at_once) {
      const int64_t k = std::min(rows_at_once, terms - done);
      for (int64_t i = 0; i < k; ++i)
        gather(stage + i * n * r.item, x + offsets[done + i], step, n);
      dense(stage, n, k, done == 0);
    }
  }

  void dense(const char* x, int64_t n, int64_t terms, bool fresh) {
    const int64_t whole = terms / kLanes, rest = terms % kLanes, end = 0;
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i < whole; ++i) at[i] = i * kLanes * n * r.item;
    if (whole) m.kernels->add_rows(x, at, 1, whole, kLanes * n, shift, sums, squares, fresh);
    if (rest)
      m.kernels->add_rows(x + whole * kLanes * n * r.item, &end, 1, 1, rest * n, shift, sums,
                          squares, fresh && whole == 0);
  }

  // As that of a sum (reductions/reduce_inputs.cpp).
  void dense_backward(const char* x, int64_t n, int64_t terms) {
    const int64_t whole = terms / kLanes, rest = terms % kLanes, row = n * r.item;
    int64_t at[kReduceBlock / kLanes];
    for (int64_t i = 0; i < whole; ++i) at[i] = -(i * kLanes + kLanes - 1) * row;
    if (whole) {
      m.kernels->add_rows(x, at, 1, whole, kLanes * n, shift, sums, squares, true);
    } else {
      std::fill(sums, sums + kLanes * n, 0.0);
      std::fill(squares, squares + kLanes * n, 0.0);
    }
    const int64_t end = -(terms - 1) * row, from = (kLanes - rest) * n;
    if (rest)
      m.kernels->add_rows(x, &end, 1, 1, rest * n, shift, sums + from, squares + from, false);
    reverse_lanes(sums, n);
    reverse_lanes(squares, n);
  }

  const MomentReducer& m;
  const Reducer& r;
  const int passes;
  alignas(64) double sums[kLanes * kTile];
  alignas(64) double squares[kLanes * kTile];
  alignas(64) double shift[kLanes * kNarrowTile];
  alignas(64) char stage[kGathered * sizeof(double)];
  int64_t offsets[kReduceBlock];
};

// From the moments of blocks to the results.
struct MomentMerger {
  const MomentReducer& m;
  const Reducer& r;
  alignas(64) double memory[3][4][kTile];

  explicit MomentMerger(const MomentReducer& moments) : m(moments), r(moments.reducer) {}

  MomentArrays local(int i) { return {memory[i][0], memory[i][1], memory[i][2], memory[i][3]}; }

  MomentArrays partial(int64_t chunk, int64_t first) const {
    const int64_t outputs = r.outputs.size;
    double* mean = r.partial + 4 * chunk * outputs + first;
    return {mean, mean + outputs, mean + 2 * outputs, mean + 3 * outputs};
  }

  int64_t chunk_end(int64_t chunk) const {
    return std::min((chunk + 1) * r.chunk_blocks * kReduceBlock, r.terms.size);
  }

  // to IN/OUT (n): a chunk's moments of `before` terms become those of as many and one more block,
  // mean and m2 (n), of `terms`.
  void add_block(const double* mean, const double* m2, int64_t terms, const MomentArrays& to,
                 int64_t before, int64_t n) {
    if (before > 0) {
      const MomentArrays one = {const_cast<double*>(mean), const_cast<double*>(m2), nullptr,
                                nullptr};
      m.table->merge(one, terms, to, before, n);
      return;
    }
    std::copy(mean, mean + n, to.mean);
    std::copy(m2, m2 + n, to.m2);
    std::fill(to.mean_low, to.mean_low + n, 0.0);
    std::fill(to.m2_low, to.m2_low + n, 0.0);
  }

  // to OUT (n): one chunk.
  void chunk(MomentInputs& inputs, int64_t first, int64_t n, int64_t index,
             const MomentArrays& to) {
    const int64_t begin = index * r.chunk_blocks * kReduceBlock, end = chunk_end(index);
    const MomentArrays one = local(2);
    for (int64_t term = begin; term < end; term += kReduceBlock) {
      const int64_t terms = std::min(kReduceBlock, end - term);
      inputs.moments(first, n, term, terms, one.mean, one.m2);
      add_block(one.mean, one.m2, terms, to, term - begin, n);
    }
  }

  void merge(const MomentArrays& from, int64_t index, const MomentArrays& to, int64_t n) {
    const int64_t before = chunk_end(index - 1);
    m.table->merge(from, chunk_end(index) - before, to, before, n);
  }

  void all_chunks(MomentInputs& inputs, int64_t first, int64_t n) {
    const MomentArrays all = local(0), part = local(1);
    chunk(inputs, first, n, 0, all);
    for (int64_t c = 1; c < r.chunks; ++c) {
      chunk(inputs, first, n, c, part);
      merge(part, c, all, n);
    }
    store(first, n, all);
  }

  void store(int64_t first, int64_t n, const MomentArrays& all) {
    if (m.mean) store_outputs(r, m.mean, first, n, all.mean, all.mean_low);
    if (m.low) {
      m.table->lose(r.y_dtype, all.mean, all.mean_low, n);
      store_outputs(r, m.low, first, n, all.mean_low, nullptr);
    }
    if (!m.second) return;
    for (int64_t i = 0; i < n; ++i) all.m2[i] = (all.m2[i] + all.m2_low[i]) / m.divisor;
    store_outputs(r, m.second, first, n, all.m2, nullptr);
  }
};

struct MomentFrame {
  MomentInputs inputs;
  MomentMerger merger;
  explicit MomentFrame(const MomentReducer& moments) : inputs(moments), merger(moments) {}
};

// Moments of terms in segments, as the sums of reductions/segmented.cpp.
struct SegmentedMoments {
  const MomentReducer& m;
  const Reducer& r;
  MomentMerger merger;
  UnfinishedBlock unfinished[kSegmentedOutputs];
  alignas(64) double mean[kMostEnds * kSegmentedOutputs], m2[kMostEnds * kSegmentedOutputs];

  explicit SegmentedMoments(const MomentReducer& moments)
      : m(moments), r(moments.reducer), merger(moments) {}

  void run(int64_t first, int64_t n, int64_t begin, int64_t end) {
    std::fill(unfinished, unfinished + n, UnfinishedBlock{});
    for_segments(
        r, first, n, begin, end,
        [&](int64_t k, const char* x, int64_t count, int64_t held) {
          m.kernels->add_segment(x, count, held, &unfinished[k], mean + k, m2 + k, n);
        },
        [&](int64_t e, int64_t block) { add_block(first, n, block, kReduceBlock, e * n); },
        [&](int64_t block, int64_t terms) {
          constexpr int64_t kStep = sizeof(UnfinishedBlock) / sizeof(double);
          alignas(64) double shift[kSegmentedOutputs], sums[kSegmentedOutputs],
              squares[kSegmentedOutputs];
          for (int64_t k = 0; k < n; ++k) shift[k] = unfinished[k].shift;
          r.table->fold_each(unfinished->sums, kStep, n, sums);
          r.table->fold_each(unfinished->squares, kStep, n, squares);
          m.table->settle(shift, sums, squares, terms, n, mean, m2);
          add_block(first, n, block, terms, 0);
        });
    if (!r.partial) merger.store(first, n, merger.local(0));
  }

  void add_block(int64_t first, int64_t n, int64_t block, int64_t terms, int64_t at) {
    const int64_t chunk = block / r.chunk_blocks, within = block % r.chunk_blocks;
    const MomentArrays to =
        r.partial ? merger.partial(chunk, first) : merger.local(chunk > 0 ? 1 : 0);
    merger.add_block(mean + at, m2 + at, terms, to, within * kReduceBlock, n);
    const bool is_end = block * kReduceBlock + terms == merger.chunk_end(chunk);
    if (is_end && chunk > 0 && !r.partial) merger.merge(to, chunk, merger.local(0), n);
  }
};

}  // namespace

void prepare(MomentReducer* moments, const KernelTable* table, const Operand& x,
             const Operand* results, const bool* reduced, int dtype, int y_dtype, double divisor) {
  constexpr int kResults = 3;
  char** const outputs[kResults] = {&moments->mean, &moments->low, &moments->second};
  // All have the strides of those that are there; none is, but in shape, where only the size of the
  // workspace is asked for.
  const Operand* const there =
      std::find_if(results, results + kResults, [](const Operand& one) { return one.data; });
  const Operand* const y = there == results + kResults ? results : there;
  Reducer* r = &moments->reducer;
  prepare(r, table->reduce, &table->reduce->kernels[kIdentity][dtype], x, *y, reduced, dtype,
          y_dtype, false);
  const int64_t origin_shift = r->y - y->data;
  for (int k = 0; k < kResults; ++k) {
    char* const data = results[k].data;
    *outputs[k] = data ? data + origin_shift : nullptr;
    r->is_y_aligned &= reinterpret_cast<uintptr_t>(data) % uintptr_t(r->y_item) == 0;
  }
  moments->table = table->moments;
  moments->kernels = &table->moments->dtypes[dtype];
  moments->divisor = divisor;
}

int64_t workspace_size(const MomentReducer* moments) {
  return 2 * workspace_size(&moments->reducer);
}

void reduce_partition(const MomentReducer* moments, int64_t index, int64_t partitions) {
  if (moments->reducer.has_segments && moment_passes(moments->reducer.dtype) == 1) {
    with_frame<SegmentedMoments>(*moments, [&](SegmentedMoments& unfinished) {
      for_segmented_tasks(moments->reducer, index, partitions,
                          [&](int64_t first, int64_t n, int64_t begin, int64_t end) {
                            unfinished.run(first, n, begin, end);
                          });
    });
    return;
  }
  with_frame<MomentFrame>(*moments, [&](MomentFrame& own) {
    for_tasks(moments->reducer, index, partitions, [&](int64_t first, int64_t n, int64_t chunk) {
      if (moments->reducer.partial)
        own.merger.chunk(own.inputs, first, n, chunk, own.merger.partial(chunk, first));
      else
        own.merger.all_chunks(own.inputs, first, n);
    });
  });
}

void merge_partition(const MomentReducer* moments, int64_t index, int64_t partitions) {
  const Reducer& r = moments->reducer;
  with_frame<MomentMerger>(*moments, [&](MomentMerger& merger) {
    const int64_t end = r.outputs.size * (index + 1) / partitions;
    for (int64_t first = r.outputs.size * index / partitions; first < end; first += kTile) {
      const int64_t n = std::min(kTile, end - first);
      const MomentArrays all = merger.partial(0, first);
      for (int64_t c = 1; c < r.chunks; ++c) merger.merge(merger.partial(c, first), c, all, n);
      merger.store(first, n, all);
    }
  });
}

}  // namespace fastact
