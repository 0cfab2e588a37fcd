// Clusters are blocks that run at the same time and reach each other's shared memory, on devices of
// compute capability 9.0 and later. Mailboxes are arrays in the shared memory of each block to
// which the threads of all of them send numbers: two boxes of n, in turn for rounds of messages.
// Every thread of the kernel says open() first, then all_are_open(), which waits until every block
// of the cluster runs; only then may it send. Thread 0 says expect(round, count) once a round, the
// count being of the numbers that come to its block, and wait(round) waits for them. Nobody sends
// the next round's numbers before it has all of this round's and its block is through with the
// round before. A kernel that was compiled for less traps: has_room_for_clusters (device.h) says
// where it is not to be launched.
//
// For kernels alone: the host's compiler can't read this file, unless it compiles for the emulated
// device, which has clusters of its own (tests/cuda_emulation).
#pragma once

#include "cuda/core/launch.cuh"

#if !defined(FASTACT_CUDA_EMULATION)

FASTACT_BEGIN_NAMESPACE

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
FASTACT_DEVICE int cluster_index() { return 0; }
FASTACT_DEVICE int block_of_cluster() { return 0; }
template <int n>
struct Mailboxes {
  FASTACT_DEVICE void open() const { __trap(); }
  FASTACT_DEVICE void all_are_open() const {}
  FASTACT_DEVICE void expect(int, int) const {}
  FASTACT_DEVICE void send(int, int, double, int) const {}
  FASTACT_DEVICE void wait(int) const {}
  FASTACT_DEVICE double get(int, int) const { return 0; }
};
FASTACT_DEVICE void bring_all_near(const void*, unsigned) {}
#else
// Volatile: they are read again, where to keep them would take registers.
FASTACT_DEVICE int cluster_index() {
  int index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
FASTACT_DEVICE int block_of_cluster() {
  int block;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
  return block;
}
// Numbers are counted by a barrier of the receiving block, so that nobody has to wait for stores.
template <int n>
struct Mailboxes {
  // The first words are the barriers.
  static FASTACT_DEVICE double* words() {
    __shared__ double of_block[2 + 2 * n];
    return of_block;
  }
  static FASTACT_DEVICE unsigned at(int i) {
    return unsigned(__cvta_generic_to_shared(words() + i));
  }
  FASTACT_DEVICE void open() const {
    if (threadIdx.x == 0) {
      asm volatile(
          "mbarrier.init.shared::cta.b64 [%0], 1;\n\tmbarrier.init.shared::cta.b64 [%1], 1;\n\t"
          "fence.mbarrier_init.release.cluster;" ::"r"(at(0)),
          "r"(at(1))
          : "memory");
    }
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
  FASTACT_DEVICE void all_are_open() const {
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
  }
  FASTACT_DEVICE void expect(int round, int count) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(round & 1)),
                 "r"(count * int(sizeof(double)))
                 : "memory");
  }
  FASTACT_DEVICE void send(int round, int i, double value, int block) const {
    asm volatile(
        "{\n\t.reg .b32 to, bar;\n\tmapa.shared::cluster.u32 to, %0, %2;\n\t"
        "mapa.shared::cluster.u32 bar, %1, %2;\n\t"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [to], %3, [bar];\n\t}" ::"r"(
            at(2 + (round & 1) * n + i)),
        "r"(at(round & 1)), "r"(block), "l"(__double_as_longlong(value))
        : "memory");
  }
  FASTACT_DEVICE void wait(int round) const {
    asm volatile(
        "{\n\t.reg .pred done;\nagain_%=:\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra again_%=;\n\t}" ::"r"(at(round & 1)),
        "r"(round >> 1 & 1)
        : "memory");
  }
  FASTACT_DEVICE double get(int round, int i) const { return words()[2 + (round & 1) * n + i]; }
};
// Reads so many bytes, a multiple of 16, into the second-level cache.
FASTACT_DEVICE void bring_all_near(const void* p, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}
#endif

FASTACT_END_NAMESPACE

#endif
