// The emulated device on trial: kernels that are right, and kernels that each do one thing wrong.
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "arithmetic.h"
#include "array.h"
#include "cuda/core/device.h"

FASTACT_BEGIN_NAMESPACE
namespace selftest {  // not anonymous: the faults name the kernels

constexpr int kThreads = 256;
constexpr int kBlocks = 64;

// --- Running them ------------------------------------------------------------------------------

// Memory of the current device.
struct Floats {
  float* p = nullptr;
  explicit Floats(int n) { FASTACT_CUDA_CHECK(cudaMalloc(&p, size_t(n) * sizeof(float))); }
  ~Floats() { cudaFree(p); }
  Floats(const Floats&) = delete;
};

void fill(float* p, const std::vector<float>& values) {
  const emulation::Lock lock;
  emulation::write_from_host(p, values.data(), values.size() * sizeof(float));
}

std::vector<float> values_of(const float* p, int n) {
  std::vector<float> values(static_cast<size_t>(n));
  const emulation::Lock lock;
  emulation::read_to_host(values.data(), p, values.size() * sizeof(float));
  return values;
}

std::vector<float> ramp(int n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) values[size_t(i)] = float(i % 37);
  return values;
}

struct Case {
  const char* name;
  std::vector<float> (*run)();
};

// A kernel over x and y, kThreads floats each, x and y initialised.
template <class... Parameters>
std::vector<float> with_xy(void (*kernel)(Parameters...), const Shape& shape, bool fill_x = true) {
  Floats x(kThreads), y(kThreads);
  if (fill_x) fill(x.p, ramp(kThreads));
  fill(y.p, ramp(kThreads));
  if constexpr (sizeof...(Parameters) == 2)
    launch(kernel, shape, nullptr, x.p, y.p);
  else if constexpr (sizeof...(Parameters) == 1)
    launch(kernel, shape, nullptr, y.p);
  else
    launch(kernel, shape, nullptr);
  return values_of(y.p, kThreads);
}

// All trials, in the order of this file.
std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
struct Trial {
  Trial(const char* name, std::vector<float> (*run)()) { cases().push_back({name, run}); }
};

// A kernel that is run as a case of its name, over x and y, in a grid of a shape.
#define FASTACT_TRIAL(name, parameters, ...)                                     \
  FASTACT_KERNEL(kThreads) void name parameters;                                 \
  const Trial trial_of_##name(#name, [] { return with_xy(name, __VA_ARGS__); }); \
  FASTACT_KERNEL(kThreads) void name parameters

// --- Right -------------------------------------------------------------------------------------

FASTACT_DEVICE float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2)
    value += __shfl_down_sync(kAllLanes, value, unsigned(step));
  return value;
}

// For every thread: the sum over the block.
FASTACT_DEVICE float block_sum(float value) {
  FASTACT_SHARED(float, partials, kThreads / kWarp);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  value = warp_sum(value);
  __syncthreads();  // the last call's partials have been read
  if (lane == 0) partials[warp] = value;
  __syncthreads();
  float sum = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) sum += partials[i];
  return sum;
}

// y[b]: the sum of (x - mean)^2 over the b-th kThreads elements of x.
FASTACT_KERNEL(kThreads) void deviations(const float* x, float* y) {
  const float value = load(x + blockIdx.x * kThreads + threadIdx.x);
  const float mean = block_sum(value) / kThreads;
  const float sum = block_sum((value - mean) * (value - mean));
  if (threadIdx.x == 0) store(y + blockIdx.x, sum);
}

FASTACT_KERNEL(kThreads) void copy_packs(const float* x, float* y) {
  const int i = (blockIdx.x * kThreads + threadIdx.x) * Vec<float>::kSize;
  store_vec(y + i, load_vec(x + i));
}

// Lane 0 of each warp adds what the others put down: no barrier of the block.
FASTACT_TRIAL(warp_exchange, (const float* x, float* y), {1, kThreads, 1, 1, kThreads * 4}) {
  const auto all = dynamic_shared<float>();
  const auto mine = all + threadIdx.x / kWarp * kWarp;
  const int lane = threadIdx.x % kWarp;
  mine[lane] = load(x + threadIdx.x);
  __syncwarp();
  float sum = mine[(lane + 1) % kWarp];
  __syncwarp();
  mine[lane] = sum;
  __syncwarp();
  if (lane != 0) return;
  for (int i = 1; i < kWarp; ++i) mine[0] += mine[i];
  store(y + threadIdx.x / kWarp, float(mine[0]));
}

// Every kind of shuffle and vote, in a warp and in its quarters: 1 where all are right.
FASTACT_TRIAL(collectives, (float* y), {1, kWarp}) {
  const int lane = int(threadIdx.x), first = lane - lane % 8;
  bool right = __shfl_sync(kAllLanes, double(lane), 5) == 5;
  right &= __shfl_sync(kAllLanes, lane, 9, 8) == first + 1;
  right &= __shfl_down_sync(kAllLanes, unsigned(lane), 3) == unsigned(lane > 28 ? lane : lane + 3);
  right &= __shfl_xor_sync(kAllLanes, float(lane), 1, 8) == float(lane ^ 1);
  right &= __any_sync(kAllLanes, lane == 7) && !__any_sync(kAllLanes, lane == 32);
  if (lane < 16) right &= __shfl_sync(0xffffu, uint64_t(lane), 15) == 15;
  store(y + lane, float(right));
}

// y[c]: the sum over the c-th cluster of what its blocks loaded, which each of them gets, after
// three rounds of messages, each of a quarter of the last one's sum.
FASTACT_TRIAL(cluster_exchange, (const float* x, float* y), {16, kThreads, 1, 1, 0, 4}) {
  const Mailboxes<4> all;
  all.open();
  const int thread = int(threadIdx.x);
  double sum = thread < 4 ? load(x + blockIdx.x) : 0;
  all.all_are_open();
  for (int round = 0; round < 3; ++round) {
    if (thread == 0) all.expect(round, 4);
    if (thread < 4) all.send(round, block_of_cluster(), round > 0 ? sum / 4 : sum, thread);
    all.wait(round);
    sum = 0;
    for (int i = 0; i < 4; ++i) sum += all.get(round, i);
    __syncthreads();
  }
  if (thread == 0 && block_of_cluster() == cluster_index() % 4)
    store(y + cluster_index(), float(sum));
}

// Two copies of each thread on their way at once, the first awaited before the second.
FASTACT_TRIAL(copies_ahead, (const float* x, float* y), {1, kThreads / 8, 1, 1, kThreads * 4}) {
  const auto ring = dynamic_shared<Vec<float>>();
  const int thread = int(threadIdx.x), threads = int(blockDim.x);
  for (int k = 0; k < 2; ++k) {
    copy_later(ring, k * threads + thread, x + (k * threads + thread) * 4);
    end_copies();
  }
  await_copies<1>();
  store_vec(y + thread * 4, Vec<float>(ring[thread]));
  await_copies<0>();
  store_vec(y + (threads + thread) * 4, Vec<float>(ring[threads + thread]));
}

// --- Wrong -------------------------------------------------------------------------------------

// Opens a block's mailboxes, and says how many numbers it expects.
void open_for(const Mailboxes<2>& all, int count) {
  all.open();
  if (threadIdx.x == 0) all.expect(0, count);
}
// Each block sends the other one a number of a round.
void send_other(const Mailboxes<2>& all, int round = 0, int i = 0) {
  if (threadIdx.x == 0) all.send(round, i, 1.0, 1 - block_of_cluster());
}

FASTACT_TRIAL(sent_before_all_begun, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 2);
  send_other(all);
  all.all_are_open();
}

FASTACT_TRIAL(sent_to_no_block, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 2);
  all.all_are_open();
  if (threadIdx.x == 0) all.send(0, 0, 1.0, 2);
}

FASTACT_TRIAL(sent_twice, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 2);
  all.all_are_open();
  if (threadIdx.x == 0) all.send(0, 0, 1.0, 1);
}

FASTACT_TRIAL(sent_a_round_early, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 2);
  all.all_are_open();
  send_other(all);
  send_other(all, 2);
}

// The second block hears from the first, which does not wait for the answer.
FASTACT_TRIAL(sent_to_ended_block, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 1);
  all.all_are_open();
  if (block_of_cluster() == 1) {
    all.wait(0);
    __syncthreads();  // nobody comes here before the first block's threads have come to their ends
  }
  send_other(all);
}

FASTACT_TRIAL(never_sent, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 2);
  all.all_are_open();
  send_other(all);
  all.wait(0);
}

FASTACT_TRIAL(read_without_waiting, (float* y), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 2);
  all.all_are_open();
  if (threadIdx.x < 2) all.send(0, block_of_cluster(), 1.0, int(threadIdx.x));
  store(y + threadIdx.x, float(all.get(0, 0)));
}

FASTACT_TRIAL(block_without_mailbox, (float*), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  if (block_of_cluster() == 0) return;
  open_for(all, 2);
  all.all_are_open();
}

// A number orders nothing but itself.
FASTACT_TRIAL(global_memory_of_a_cluster, (float* y), {2, kThreads, 1, 1, 0, 2}) {
  const Mailboxes<2> all;
  open_for(all, 1);
  all.all_are_open();
  if (block_of_cluster() == 0 && threadIdx.x == 0) store(y, 1.0f);
  send_other(all);
  all.wait(0);
  if (block_of_cluster() == 1 && threadIdx.x == 0) store(y + 1, load(y));
}

FASTACT_TRIAL(prefetch_over_end, (const float* x, float*), {1, kThreads}) {
  bring_all_near(x, kThreads * 4 + 16);
}

template <int instance>
FASTACT_KERNEL(kThreads)
void of_a_cluster(float*) {}
FASTACT_TRIAL(copy_read_early, (const float* x, float* y), {1, kThreads / 4, 1, 1, kThreads * 4}) {
  const auto ring = dynamic_shared<Vec<float>>();
  const int thread = int(threadIdx.x);
  copy_later(ring, thread, x + thread * 4);
  end_copies();
  await_copies<1>();
  store_vec(y + thread * 4, Vec<float>(ring[thread]));
}

FASTACT_TRIAL(copy_not_closed, (const float* x, float* y), {1, kThreads / 4, 1, 1, kThreads * 4}) {
  const auto ring = dynamic_shared<Vec<float>>();
  const int thread = int(threadIdx.x);
  copy_later(ring, thread, x + thread * 4);
  await_copies<0>();
  store_vec(y + thread * 4, Vec<float>(ring[thread]));
}

FASTACT_TRIAL(copy_over_read, (const float* x, float* y), {1, kThreads / 4, 1, 1, kThreads * 4}) {
  const auto ring = dynamic_shared<Vec<float>>();
  const int thread = int(threadIdx.x), threads = int(blockDim.x);
  copy_later(ring, thread, x + thread * 4);
  end_copies();
  await_copies<0>();
  store_vec(y + thread * 4, Vec<float>(ring[(thread + kWarp) % threads]));
}

FASTACT_TRIAL(shared_out_of_bounds, (), {1, kThreads}) {
  FASTACT_SHARED(float, few, 8);
  few[threadIdx.x] = 1;
}

FASTACT_TRIAL(shared_before_start, (), {1, kThreads}) {
  FASTACT_SHARED(float, few, 8);
  if (threadIdx.x == 0) few[int(threadIdx.x) - 1] = 1;
}

FASTACT_TRIAL(dynamic_shared_out_of_bounds, (), {1, kThreads, 1, 1, 4 * kThreads - 4}) {
  const auto all = dynamic_shared<float>();
  all[threadIdx.x] = 1;
}

FASTACT_TRIAL(uninitialised_shared, (float* y), {1, kThreads}) {
  FASTACT_SHARED(float, values, kThreads);
  if (threadIdx.x > 0) values[threadIdx.x] = 1;
  __syncthreads();
  store(y + threadIdx.x, float(values[threadIdx.x]));
}

// Written in the block before: uninitialised in this one.
FASTACT_TRIAL(shared_of_another_block, (float* y), {2, kThreads}) {
  FASTACT_SHARED(float, value, 1);
  if (threadIdx.x > 0) return;
  if (blockIdx.x == 0) value[0] = 1;
  store(y + blockIdx.x, float(value[0]));
}

FASTACT_TRIAL(shared_read_race, (float* y), {1, kThreads}) {
  FASTACT_SHARED(float, values, kThreads);
  values[threadIdx.x] = 1;
  __syncthreads();
  values[threadIdx.x] = 2;
  store(y + threadIdx.x, float(values[threadIdx.x ^ 1]));
}

FASTACT_TRIAL(shared_write_race, (), {1, kThreads}) {
  FASTACT_SHARED(float, value, 1);
  value[0] = float(threadIdx.x);
}

FASTACT_TRIAL(shared_write_after_read, (float* y), {1, kThreads}) {
  FASTACT_SHARED(float, values, kThreads);
  values[threadIdx.x] = 1;
  __syncthreads();
  store(y + threadIdx.x, float(values[(threadIdx.x + kWarp) % kThreads]));
  values[threadIdx.x] = 2;
}

// A barrier of the warp does not order another warp.
FASTACT_TRIAL(syncwarp_across_warps, (float* y), {1, kThreads}) {
  FASTACT_SHARED(float, values, kThreads);
  values[threadIdx.x] = 1;
  __syncthreads();
  values[threadIdx.x] = 2;
  __syncwarp();
  store(y + threadIdx.x, float(values[kThreads - 1 - threadIdx.x]));
}

FASTACT_TRIAL(barrier_after_return, (), {1, kThreads}) {
  if (threadIdx.x == 3) return;
  __syncthreads();
}

FASTACT_TRIAL(two_barriers, (), {1, kThreads}) {
  if (threadIdx.x < kWarp)
    __syncthreads();
  else
    __syncthreads();
}

FASTACT_TRIAL(barrier_against_shuffle, (float* y), {1, kThreads}) {
  float value = 1;
  if (threadIdx.x == 0)
    __syncthreads();
  else
    value = __shfl_xor_sync(kAllLanes, value, 1);
  store(y + threadIdx.x, value);
}

FASTACT_TRIAL(shuffle_after_return, (float* y), {1, kWarp}) {
  if (threadIdx.x == 3) return;
  store(y + threadIdx.x, __shfl_xor_sync(kAllLanes, 1.f, 1));
}

FASTACT_TRIAL(shuffle_inactive_lane, (float* y), {1, kWarp}) {
  if (threadIdx.x < 16) store(y + threadIdx.x, __shfl_sync(0xffffu, 1.f, 20));
}

FASTACT_TRIAL(shuffle_outside_mask, (float* y), {1, kWarp}) {
  store(y + threadIdx.x, __shfl_sync(0xffffu, 1.f, 0));
}

FASTACT_TRIAL(load_after_end, (const float* x, float* y), {1, kThreads}) {
  store(y + threadIdx.x, load(x + 1 + threadIdx.x));
}

FASTACT_TRIAL(load_before_start, (const float* x, float* y), {1, kThreads}) {
  store(y + threadIdx.x, load(x + threadIdx.x - 1));
}

FASTACT_TRIAL(store_after_end, (float* y), {1, kThreads}) { store(y + 1 + threadIdx.x, 1.f); }

FASTACT_TRIAL(pack_over_end, (const float* x, float* y), {1, 1}) {
  store_vec(y, load_vec(x + kThreads - 2 + 2 * threadIdx.x));
}

FASTACT_TRIAL(misaligned_pack, (const float* x, float* y), {1, 1}) {
  store_vec(y, load_vec(x + 1));
}

FASTACT_TRIAL(misaligned_scalar, (const float* x, float* y), {1, 1}) {
  store(y, load(reinterpret_cast<const float*>(reinterpret_cast<const char*>(x) + 2)));
}

FASTACT_TRIAL(uninitialised_global, (const float* x, float* y), {1, kThreads}, false) {
  store(y + threadIdx.x, load(x + threadIdx.x));
}

FASTACT_TRIAL(write_conflict, (float* y), {1, kThreads}) { store(y + threadIdx.x / 2, 1.f); }

FASTACT_TRIAL(write_conflict_of_blocks, (float* y), {2, kThreads}) {
  store(y + threadIdx.x, float(blockIdx.x));
}

FASTACT_TRIAL(read_after_write, (float* y), {1, kThreads}) {
  store(y + threadIdx.x, 1.f);
  if (threadIdx.x % 2) store(y + threadIdx.x, load(y + threadIdx.x - 1));
}

FASTACT_TRIAL(write_after_read, (float* y), {1, kThreads}) {
  store(y + threadIdx.x, load(y + (threadIdx.x + 1) % kThreads));
}

FASTACT_TRIAL(too_much_static_shared, (), {1, kThreads}) {
  FASTACT_SHARED(double, large, 48 * 1024 / 8 + 1);
  large[threadIdx.x] = 1;
}

// With 1 KiB of static shared memory; the numbers tell what they are given.
template <int n>
FASTACT_KERNEL(kThreads)
void some_static_shared(float* y) {
  FASTACT_SHARED(float, kilobyte, 256);
  kilobyte[threadIdx.x] = 1.f;
  store(y + threadIdx.x, float(kilobyte[threadIdx.x]) + n);
}

// An array of 20 KiB: for each Merge, and one for all.
constexpr int kLarge = 20 * 256;
template <class Merge>
FASTACT_DEVICE void merge_in_own_array(Merge merge) {
  FASTACT_SHARED(float, own, kLarge);
  own[threadIdx.x] = merge(1.f, 2.f);
}
FASTACT_DEVICE auto common_array() {
  FASTACT_SHARED(float, common, kLarge);
  return common;
}
template <class Merge>
FASTACT_DEVICE void merge_in_common_array(Merge merge) {
  common_array()[threadIdx.x] = merge(1.f, 2.f);
}

template <int n>
FASTACT_KERNEL(kThreads)
void two_instances(float* y) {
  merge_in_own_array([](float a, float b) { return a + b; });
  merge_in_own_array([](float a, float b) { return a > b ? a : b; });
  store(y + threadIdx.x, float(n));
}
template <int n>
FASTACT_KERNEL(kThreads)
void one_helper(float* y) {
  merge_in_common_array([](float a, float b) { return a + b; });
  merge_in_common_array([](float a, float b) { return a > b ? a : b; });
  store(y + threadIdx.x, float(n));
}
// Code that no launch reaches is there all the same.
template <int n>
FASTACT_KERNEL(kThreads)
void untouched_array(float* y) {
  if (y == nullptr) merge_in_own_array([](float a, float) { return a; });
  store(y + threadIdx.x, float(n));
}

FASTACT_TRIAL(nothing, (float* y), {kBlocks, kThreads}) {
  if (y == nullptr) store(y, 0.f);
}

// --- Cases that are no trials of their own -----------------------------------------------------

// A kernel that has asked for so much dynamic shared memory, unless for 0, launched with so much.
// Of each case another kernel: what one has asked for stays.
std::vector<float> with_shared(void (*kernel)(float*), int asked, int given) {
  if (asked > 0) {
    const cudaError_t error = cudaFuncSetAttribute(
        reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, asked);
    cudaGetLastError();  // the next launch would report it otherwise
    FASTACT_CUDA_CHECK(error);
  }
  return with_xy(kernel, {1, kThreads, 1, 1, given});
}

const std::vector<Case> kMore = {
    {"deviations",
     [] {
       Floats x(kBlocks * kThreads), y(kBlocks);
       fill(x.p, ramp(kBlocks * kThreads));
       launch(deviations, {kBlocks, kThreads}, nullptr, x.p, y.p);
       return values_of(y.p, kBlocks);
     }},
    {"copy_packs",
     [] {
       Floats x(4 * kBlocks * kThreads), y(4 * kBlocks * kThreads);
       fill(x.p, ramp(4 * kBlocks * kThreads));
       launch(copy_packs, {kBlocks, kThreads}, nullptr, x.p, y.p);
       return values_of(y.p, 4 * kBlocks * kThreads);
     }},
    {"cluster_of_8", [] { return with_xy(of_a_cluster<0>, {16, kThreads, 1, 1, 0, 8}); }},
    {"cluster_of_9", [] { return with_xy(of_a_cluster<1>, {18, kThreads, 1, 1, 0, 9}); }},
    {"grid_of_half_a_cluster", [] { return with_xy(of_a_cluster<2>, {6, kThreads, 1, 1, 0, 4}); }},
    {"device_without_clusters",
     [] {
       const DeviceGuard guard(1);
       return with_xy(of_a_cluster<3>, {2, kThreads, 1, 1, 0, 2});
     }},
    {"shuffle_past_block", [] { return with_xy(shuffle_after_return, {1, 2}); }},
    {"host_memory",
     [] {
       Floats y(kThreads);
       const std::vector<float> x = ramp(kThreads);
       launch(uninitialised_global, {1, kThreads}, nullptr, x.data(), y.p);
       return values_of(y.p, kThreads);
     }},
    {"freed_memory",
     [] {
       const float* freed = Floats(kThreads).p;
       Floats y(kThreads);
       launch(uninitialised_global, {1, kThreads}, nullptr, freed, y.p);
       return values_of(y.p, kThreads);
     }},
    {"wrong_device",
     [] {
       Floats x(kThreads);
       fill(x.p, ramp(kThreads));
       const DeviceGuard guard(1);
       Floats y(kThreads);
       launch(uninitialised_global, {1, kThreads}, nullptr, x.p, y.p);
       return values_of(y.p, kThreads);
     }},
    {"wrong_stream",
     [] {
       Floats y(kThreads);
       launch(nothing, {1, kThreads}, emulation::make_stream(1), y.p);
       return std::vector<float>();
     }},
    {"too_much_dynamic_shared",
     [] { return with_xy(nothing, {1, kThreads, 1, 1, 48 * 1024 + 1}); }},
    {"all_dynamic_shared", [] { return with_xy(nothing, {1, kThreads, 1, 1, 48 * 1024}); }},
    {"all_shared", [] { return with_shared(some_static_shared<0>, 0, 47 << 10); }},
    {"too_much_shared", [] { return with_shared(some_static_shared<1>, 0, (47 << 10) + 1); }},
    {"asked_for_48_kib", [] { return with_shared(some_static_shared<2>, 48 << 10, 48 << 10); }},
    {"asked_for_the_most", [] { return with_shared(some_static_shared<3>, 63 << 10, 63 << 10); }},
    {"asked_for_too_much",
     [] { return with_shared(some_static_shared<4>, (63 << 10) + 1, 48 << 10); }},
    {"asked_for_less", [] { return with_shared(some_static_shared<5>, 16 << 10, (16 << 10) + 1); }},
    {"two_instances", [] { return with_shared(two_instances<0>, 0, 8 << 10); }},
    {"two_instances_too_much", [] { return with_shared(two_instances<1>, 0, (8 << 10) + 1); }},
    {"two_instances_asked", [] { return with_shared(two_instances<2>, 24 << 10, 24 << 10); }},
    {"two_instances_asked_too_much",
     [] { return with_shared(two_instances<3>, (24 << 10) + 1, 0); }},
    {"one_helper", [] { return with_shared(one_helper<0>, 0, 28 << 10); }},
    {"one_helper_too_much", [] { return with_shared(one_helper<1>, 0, (28 << 10) + 1); }},
    {"untouched_array", [] { return with_shared(untouched_array<0>, 0, 28 << 10); }},
    {"untouched_array_too_much", [] { return with_shared(untouched_array<1>, 0, (28 << 10) + 1); }},
    {"too_many_threads", [] { return with_xy(nothing, {1, 1025}); }},
    {"more_threads_than_compiled_for", [] { return with_xy(nothing, {1, 2 * kThreads}); }},
    {"more_rows_of_threads_than_compiled_for", [] { return with_xy(nothing, {1, kThreads, 2}); }},
    {"no_blocks", [] { return with_xy(nothing, {0, kThreads}); }},
};
const bool kAreAdded = (cases().insert(cases().end(), kMore.begin(), kMore.end()), true);

std::vector<float> run(const std::string& name) {
  for (const Case& one : cases())
    if (name == one.name) return one.run();
  throw std::invalid_argument("no such kernel: " + name);
}

// --- Launches that are recorded ------------------------------------------------------------------

FASTACT_KERNEL(kThreads) void takes_a_number(float*, int64_t) {}

// What queues launches of two buffers on a stream; whether they can be queued again elsewhere.
struct Queueing {
  const char* name;
  void (*run)(char* a, char* b, cudaStream_t stream);
};
int64_t number_of(const char* p) { return int64_t(reinterpret_cast<uintptr_t>(p)); }
void launch_number(char* a, int64_t number, cudaStream_t stream) {
  launch(takes_a_number, {1, kThreads}, stream, reinterpret_cast<float*>(a), number);
}

const Queueing kQueueings[] = {
    {"nothing", [](char*, char*, cudaStream_t) {}},
    {"two buffers",
     [](char* a, char* b, cudaStream_t stream) {
       launch_number(a + 40, 7, stream);
       launch_number(b, 8, stream);
     }},
    {"an address as a number",
     [](char* a, char* b, cudaStream_t stream) { launch_number(a, number_of(b) - 4, stream); }},
    {"a residue",
     [](char* a, char* b, cudaStream_t stream) { launch_number(a, number_of(b) % 16, stream); }},
    {"other bits of an address",
     [](char* a, char* b, cudaStream_t stream) { launch_number(a, number_of(b) % 256, stream); }},
    {"a part of an address",
     [](char* a, char* b, cudaStream_t stream) { launch_number(a, number_of(b) / 16, stream); }},
    {"a distance",
     [](char* a, char* b, cudaStream_t stream) {
       launch_number(a, number_of(b) - number_of(a), stream);
     }},
    {"an order", [](char* a, char* b, cudaStream_t stream) { launch_number(a, a < b, stream); }},
    {"another grid",
     [](char* a, char*, cudaStream_t stream) {
       launch(takes_a_number, {1 + number_of(a) / 16 % 64, kThreads}, stream,
              reinterpret_cast<float*>(a), int64_t{7});
     }},
    {"another count",
     [](char* a, char*, cudaStream_t stream) {
       for (int64_t k = 0; k < 1 + number_of(a) / 16 % 8; ++k) launch_number(a, 7, stream);
     }},
    {"none at some addresses",
     [](char* a, char* b, cudaStream_t stream) {
       if (a > b) launch_number(a, 7, stream);
     }},
    {"another device",
     [](char* a, char*, cudaStream_t stream) {
       const DeviceGuard guard(1);
       launch_number(a, 7, stream);
     }},
};

// Records on device 0, from runs in which the buffers are at these addresses.
void* recorded(const DeviceTable& table, const std::string& name,
               const std::vector<std::pair<uintptr_t, uintptr_t>>& runs) {
  void* recording = table.begin_recording();
  for (const auto& [a, b] : runs) {
    char* const buffers[] = {reinterpret_cast<char*>(a), reinterpret_cast<char*>(b)};
    table.begin_run(recording, buffers, 2);
    for (const Queueing& one : kQueueings)
      if (name == one.name) one.run(buffers[0], buffers[1], static_cast<cudaStream_t>(recording));
  }
  return table.end_recording(recording, 0);
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Case& one : cases()) all.emplace_back(one.name);
  return all;
}

}  // namespace selftest
FASTACT_END_NAMESPACE

namespace fastact {

void bind_selftest(pybind11::module_& m) {
  auto module = m.def_submodule("selftest", "Kernels on which the emulated device is tested.");
  module.def("run", selftest::run, "Runs a kernel by its name; what it wrote.",
             pybind11::call_guard<pybind11::gil_scoped_release>());
  module.def("names", selftest::names);
  module.def("queueings", [] {
    std::vector<std::string> all;
    for (const selftest::Queueing& one : selftest::kQueueings) all.emplace_back(one.name);
    return all;
  });
  module.def(
      "is_recorded",
      [](const std::string& name, const std::vector<std::pair<uintptr_t, uintptr_t>>& runs) {
        DeviceTable table{};
        add_recorded_launches(&table);
        void* launches = selftest::recorded(table, name, runs);
        if (launches) table.drop(launches);
        return launches != nullptr;
      },
      "Whether what these runs queue can be queued for other addresses.");
  module.def("power_of_two", emulation::power_of_two_approx_ftz);
  module.def("reciprocal", [](float x) { return emulation::reciprocal_approx_ftz(x); });
  module.def("reciprocal64", [](double x) { return emulation::reciprocal_approx_ftz(x); });
  module.def("minimum", emulation::minimum<float>);
  module.def("maximum", emulation::maximum<float>);
}

}  // namespace fastact
