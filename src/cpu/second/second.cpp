// The native function of second derivatives of rows: its plan, and a thread's share of the rows
// (second.h).
#include "cpu/second/second.h"

#include <algorithm>

#include "cpu/core/native_function.h"
#include "cpu/core/row_pass.h"
#include "cpu/core/tensor_iterator.h"
#include "cpu/reductions/kernels.h"
#include "cpu/softmax/kernels.h"

namespace fastact {
namespace {

using Data = SecondCall;

struct SecondJob {
  StridedOperands operands;  // by SecondCall::Data
  const KernelTable* table;
  int kind;
  bool accumulate;
  SecondRow row;  // the numbers of the call
};

constexpr int kRead[] = {Data::kSaved, Data::kU, Data::kDy, Data::kWeight};
constexpr int kWritten[] = {Data::kDDy, Data::kDSaved, Data::kTerms};

// One thread's rows.
struct SecondRows : RowPass {
  const SecondJob& job;
  const bool is_wide;
  SecondRow row;
  SecondChunk chunk;
  alignas(64) double lanes[kMostSecondSums * kSecondLanes];
  alignas(64) char read[4][kPiece * sizeof(double)];
  alignas(64) char made[3][kPiece * sizeof(double)];

  explicit SecondRows(const SecondJob& j)
      : RowPass(j.operands), job(j), is_wide(s.compute_dtype == kF64), row(j.row) {
    char one[sizeof(double)];
    store_as(s.compute_dtype, one, 1.0);
    const int64_t item = s.compute_item;
    if (!s.data[Data::kWeight]) move_elements(item, read[3], item, one, 0, kPiece);
  }

  // Has the operands of n elements at hand, to which the reader went.
  void load(int64_t n) {
    for (int k = 0; k < 4; ++k)
      chunk.in[k] = s.data[kRead[k]] ? reader.load(kRead[k], read[k]) : read[k];
    if (job.kind == kSecondOfLogSoftmax) {
      const double zero = 0.0, one = 1.0;
      const SoftmaxLoops& softmax = job.table->softmax->bands[s.compute_dtype];
      softmax.exponentials({const_cast<char*>(chunk.in[0]), 0}, 1, n, &zero, &one, {read[3], 0});
      chunk.in[3] = read[3];
    }
  }

  double number(int k, int64_t index) const { return s.data[k] ? reader.number(k, index) : 0.0; }

  void visit(int64_t index, int64_t) {
    row.mean = number(Data::kMean, index), row.rstd = number(Data::kRstd, index);
    std::fill_n(lanes, sums() * kSecondLanes, 0.0);
    for_pieces(index, [&](int64_t, int64_t n) {
      load(n);
      job.table->second->sum[is_wide][job.kind](chunk, n, row, lanes);
    });
    for (int i = 0; i < sums(); ++i) {
      job.table->reduce->fold(lanes + i * kSecondLanes, kSecondLanes, 1);
      row.sums[i] = lanes[i * kSecondLanes];
    }
    if (is_norm(job.kind)) SecondOfNorm<double>::finish(job.kind, double(s.columns.size), &row);
    for_pieces(index, [&](int64_t, int64_t n) {
      if (s.columns.size > kPiece) load(n);  // else they still are
      for (int k = 0; k < 3; ++k) chunk.out[k] = reader.target(kWritten[k], made[k], adds(k));
      job.table->second->make[is_wide][job.kind](chunk, n, row);
      for (int k = 0; k < 3; ++k) reader.finish(kWritten[k], chunk.out[k], made[k], adds(k));
    });
  }

  int sums() const {
    return is_norm(job.kind) ? SecondOfNorm<double>::kSums : SecondOfSoftmax<double>::kSums;
  }
  bool adds(int k) const { return job.accumulate && kWritten[k] != Data::kTerms; }
};

void prepare(SecondJob* job, const KernelTable* table, const SecondCall& call) {
  plan_rows(&job->operands, table->convert, Data::kArrays, call.data, call.reduced);
  job->table = table;
  job->kind = call.kind, job->accumulate = call.accumulate;
  job->row = {0, 0, call.weight_offset, call.scale, {}};
}

void second_rows(const SecondCall& call, const KernelTable* kernels) noexcept {
  run_planned(run_rows<SecondRows, SecondJob>, size_of(call.data[Data::kSaved]), call, kernels);
}

}  // namespace

void add_second(std::vector<NativeFunction>* functions) {
  functions->push_back(native_function<second_rows>(kSecond));
}

}  // namespace fastact
