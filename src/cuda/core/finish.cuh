// The last step of sums whose parts lie in scratch memory. An op is a functor:
//
//   kSums                    sums of each output
//   int64_t outputs, count   outputs, and parts of each
//   add(output, i, sum)      adds the i-th part to sum, double[kSums]
//   put(output, sum)         one thread writes what follows from the sums
//
// A team, a warp or a block, has an output. Its threads take the parts in turn, and a tree adds up
// their sums, in an order that depends on the number of parts and on the team alone.
#pragma once

#include "cuda/core/block_reduce.cuh"
#include "cuda/core/indexing.cuh"
#include "cuda/core/parameter_io.cuh"

FASTACT_BEGIN_NAMESPACE
namespace {

constexpr int kFinishThreads = 256, kMostFinishThreads = 512;

template <class Op>
FASTACT_KERNEL(kMostFinishThreads)
void finish_sums(FASTACT_GRID_CONSTANT const Op op, const int team) {
  const int teams = int(blockDim.x) / team, lane = int(threadIdx.x) % team;
  const int64_t output = int64_t(blockIdx.x) * teams + int(threadIdx.x) / team;
  const bool idle = output >= op.outputs;  // a whole team, which takes part in shuffles
  double sum[Op::kSums] = {};
#pragma unroll 2
  for (int64_t i = idle ? op.count : lane; i < op.count; i += team) op.add(output, i, sum);
  int folds = 0;
  team_sums(sum, team, folds);
  if (lane == 0 && !idle) op.put(output, sum);
}

// Queues it. team: threads of an output, a warp or a block of them.
template <class Op>
void finish(const Op& op, cudaStream_t stream, int team = kWarp) {
  const int threads = std::max(team, kFinishThreads);
  launch(finish_sums<Op>, {ceil_div(op.outputs, threads / team), threads}, stream, op, team);
}

// Numbers that are the sums of their parts, outputs x count; without parts they are 0.
struct FinishNumbers {
  static constexpr int kSums = 1;
  const double* parts;
  NumberVector to;  // OUT, or IN/OUT +=
  bool accumulate;
  int64_t outputs, count;

  FASTACT_DEVICE void add(int64_t output, int64_t i, double (&sum)[1]) const {
    sum[0] += load(parts + output * count + i);
  }
  FASTACT_DEVICE void put(int64_t output, const double (&sum)[1]) const {
    put_number(to, output, sum[0], accumulate);
  }
};
inline void finish_numbers(const FinishNumbers& op, cudaStream_t stream) {
  constexpr int64_t kOfWarp = 128;  // parts
  finish(op, stream, op.count > kOfWarp ? kFinishThreads : kWarp);
}

}  // namespace
FASTACT_END_NAMESPACE
