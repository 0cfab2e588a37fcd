// Dropout: random words, and what they drop.
//
// The words come of Philox 4x32-10 (J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw,
// "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011, https://doi.org/10.1145/2063384.2063405),
// a function of a counter of 128 bits and a key of 64. The key is the seed. Element i of an array
// in C order, counted from the call's offset on, has word (i + offset) mod 4 of the block whose
// counter is (i + offset) / 4; the counter's upper 64 bits are 0. All of it is modulo 2^64.
//
// An element is kept where its word is at least p 2^32, rounded to an integer: by itself, wherever
// and beside whatever it is computed.
#pragma once

#include <cmath>

#include "common/bias/call.h"
#include "common/core/macros.h"

FASTACT_BEGIN_NAMESPACE

constexpr uint32_t kPhiloxFactorA = 0xD2511F53u, kPhiloxFactorC = 0xCD9E8D57u;
constexpr uint32_t kPhiloxStepA = 0x9E3779B9u, kPhiloxStepC = 0xBB67AE85u;  // of the key
constexpr int kPhiloxRounds = 10;
constexpr int kBlockWords = 4;

struct PhiloxBlock {
  uint32_t word[kBlockWords];
};

// The keys of all rounds.
struct PhiloxKeys {
  uint32_t a[kPhiloxRounds], c[kPhiloxRounds];
};
FASTACT_HD PhiloxKeys philox_keys(uint64_t seed) {
  PhiloxKeys keys{};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    keys.a[round] = uint32_t(seed) + uint32_t(round) * kPhiloxStepA;
    keys.c[round] = uint32_t(seed >> 32) + uint32_t(round) * kPhiloxStepC;
  }
  return keys;
}

FASTACT_HD PhiloxBlock philox(uint64_t counter, const PhiloxKeys& keys) {
  uint32_t a = uint32_t(counter), b = uint32_t(counter >> 32), c = 0, d = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t of_a = uint64_t(kPhiloxFactorA) * a, of_c = uint64_t(kPhiloxFactorC) * c;
    a = uint32_t(of_c >> 32) ^ b ^ keys.a[round], b = uint32_t(of_c);
    c = uint32_t(of_a >> 32) ^ d ^ keys.c[round], d = uint32_t(of_a);
  }
  return {{a, b, c, d}};
}

// The word of an element, by its index and the offset.
FASTACT_HD uint32_t dropout_word(uint64_t index, const PhiloxKeys& keys) {
  const PhiloxBlock block = philox(index / kBlockWords, keys);
  const uint32_t low = index & 1 ? block.word[1] : block.word[0];
  const uint32_t high = index & 1 ? block.word[3] : block.word[2];
  return index & 2 ? high : low;
}

// y of x, which is kept or not.
template <class C>
FASTACT_HD C dropped(bool is_kept, C x, C scale) {
  return (is_kept ? x : C(0)) * scale;
}
template <class C>
FASTACT_HD C dropped(bool is_kept, C x, C scale, C residual) {
  return madd(is_kept ? x : C(0), scale, residual);
}
// By its word. A word of 0 stands for all where all are dropped.
template <class C, class... Residual>
FASTACT_HD C dropped(const Dropout& of, C x, uint32_t word, C scale, Residual... residual) {
  return dropped(word >= of.threshold, x, scale, residual...);
}

// call: of dropout, or of another op that drops (norms/call.h).
template <class Call>
Dropout dropout_of(const Call& call) {
  const double least = std::nearbyint(std::ldexp(call.p, 32));  // exact, but for this rounding
  const bool drops_all = least >= 4294967296.0;
  return {call.seed, call.offset, drops_all ? UINT32_MAX : uint32_t(least), drops_all,
          drops_all ? 0.0 : 1.0 / (1.0 - call.p)};
}

FASTACT_END_NAMESPACE
