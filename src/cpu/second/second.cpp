// The native function of second derivatives of rows: its plan, and a thread's share of the rows
// (second.h).
#include "cpu/second/second.h"

#include <algorithm>

#include "cpu/core/native_function.h"
#include "cpu/core/scratch.h"

namespace fastact {
namespace {

using Data = SecondCall;

constexpr int kRead[] = {Data::kSaved, Data::kU, Data::kDy, Data::kWeight};
constexpr int kWritten[] = {Data::kDDy, Data::kDSaved, Data::kTerms};

// One thread's rows.
struct SecondRows {
  const SecondJob& job;
  const StridedOperands& s;
  const bool is_wide;
  ChunkReader reader;
  SecondRow row;
  SecondChunk chunk;
  alignas(64) double lanes[kMostSecondSums * kSecondLanes];
  alignas(64) char read[4][kPiece * sizeof(double)];
  alignas(64) char made[3][kPiece * sizeof(double)];

  explicit SecondRows(const SecondJob& j)
      : job(j), s(j.operands), is_wide(s.compute_dtype == kF64), reader(s), row(j.row) {
    char one[sizeof(double)];
    store_as(s.compute_dtype, one, 1.0);
    if (!s.data[Data::kWeight]) s.kernels->fill[is_wide](one, read[3], kPiece);
  }

  // visit(elements) of the chunks of a row, whose operands are then at hand. again: they were
  // visited, and the only chunk of a row is still there.
  template <class Visit>
  void for_chunks(int64_t index, bool again, Visit visit) {
    for (int64_t column = 0, n; column < s.columns.size; column += n) {
      n = std::min(kPiece, s.columns.size - column);
      if (!again || s.columns.size > kPiece) load(index, column, n);
      visit(n);
    }
  }

  void load(int64_t index, int64_t column, int64_t n) {
    reader.go(index, column, n);
    for (int k = 0; k < 4; ++k)
      chunk.in[k] = s.data[kRead[k]] ? reader.load(kRead[k], read[k]) : read[k];
    if (job.kind == kSecondOfLogSoftmax) {
      job.softmax->exponentials(chunk.in[0], n, 0.0, 1.0, read[3]);
      chunk.in[3] = read[3];
    }
  }

  double number(int k, int64_t index) const { return s.data[k] ? reader.number(k, index) : 0.0; }

  void run(int64_t index) {
    row.mean = number(Data::kMean, index), row.rstd = number(Data::kRstd, index);
    std::fill_n(lanes, sums() * kSecondLanes, 0.0);
    for_chunks(index, false,
               [&](int64_t n) { job.kernels->sum[is_wide][job.kind](chunk, n, row, lanes); });
    finish();
    for_chunks(index, true, [&](int64_t n) {
      for (int k = 0; k < 3; ++k) chunk.out[k] = reader.target(kWritten[k], made[k], adds(k));
      job.kernels->make[is_wide][job.kind](chunk, n, row);
      for (int k = 0; k < 3; ++k) reader.finish(kWritten[k], chunk.out[k], made[k], adds(k));
    });
  }

  int sums() const {
    return is_norm(job.kind) ? SecondOfNorm<double>::kSums : SecondOfSoftmax<double>::kSums;
  }
  bool adds(int k) const { return job.accumulate && kWritten[k] != Data::kTerms; }

  // The sums of lanes, in halves, and what follows from them.
  void finish() {
    for (int i = 0; i < sums(); ++i) {
      double* const of = lanes + i * kSecondLanes;
      for (int half = kSecondLanes / 2; half > 0; half /= 2)
        for (int k = 0; k < half; ++k) of[k] += of[half + k];
      row.sums[i] = of[0];
    }
    if (is_norm(job.kind)) SecondOfNorm<double>::finish(job.kind, double(s.columns.size), &row);
  }
};

void prepare(SecondJob* job, const KernelTable* table, const SecondCall& call) {
  Operand arrays[Data::kArrays];
  int dtypes[Data::kArrays];
  for (int k = 0; k < Data::kArrays; ++k) arrays[k] = call.data[k], dtypes[k] = call.data[k].dtype;
  plan_rows(&job->operands, table->convert, Data::kArrays, arrays, dtypes, call.reduced, false);
  job->kernels = table->second;
  job->softmax = table->softmax->kernels + (job->operands.compute_dtype == kF64);
  job->kind = call.kind, job->accumulate = call.accumulate;
  job->row = {0, 0, call.weight_offset, call.scale, {}};
}

void run_share(const SecondJob* job, int64_t index, int64_t partitions) {
  with_frame<SecondRows>(*job, [&](SecondRows& rows) {
    for_rows(job->operands, 1, 1, index, partitions, [&](int64_t row, int64_t) { rows.run(row); });
  });
}

void second_rows(const SecondCall& call, const KernelTable* kernels) noexcept {
  const int64_t size = size_of(call.data[Data::kSaved]);
  if (size == 0) return;
  SecondJob job;
  prepare(&job, kernels, call);
  run_partitions(resolve_threads(size), run_share, &job);
}

}  // namespace

void add_second(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<second_rows>(kSecond));
}

}  // namespace fastact
