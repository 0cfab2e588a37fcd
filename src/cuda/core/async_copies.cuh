// Copies of 16 bytes from global to shared memory, on their way until await_copies: no register
// waits for them. A target is shared memory as these copies address it. On the emulated device they
// are done at once.
#pragma once

#include "cuda/core/launch.cuh"

FASTACT_BEGIN_NAMESPACE

#if defined(FASTACT_CUDA_EMULATION)
template <class Words>
emulation::SharedSpan<Words> copy_target(const emulation::SharedSpan<Words>& to) {
  return to;
}
template <class Words, class T>
void copy_async(const emulation::SharedSpan<Words>& to, int index, const T* p,
                const emulation::Site& site = emulation::Site::here()) {
  const Vec<T> vec = load_vec(p, site);
  Words words;
  memcpy(&words, &vec, sizeof(words));
  to[index] = words;
}
#else
template <class Words>
FASTACT_DEVICE unsigned copy_target(Words* to) {
  static_assert(sizeof(Words) == kVecBytes, "a vector");
  return unsigned(__cvta_generic_to_shared(to));
}
template <class T>
FASTACT_DEVICE void copy_async(unsigned target, int index, const T* p) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target + index * kVecBytes), "l"(p)
               : "memory");
#else
  const uint4 words = bit_cast<uint4>(load_vec(p));
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(target + index * kVecBytes),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
#endif
}
#endif

FASTACT_END_NAMESPACE
