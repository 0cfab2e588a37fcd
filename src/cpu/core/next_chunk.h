// Memory that a thread will read after a chunk: its kernels prefetch it while they compute
// (norms/rows/kernels.cpp).
#pragma once

#include <cstdint>

namespace fastact {

// Memory that a thread reads, or writes in place, after this chunk, in the stored dtype: of up to
// two arrays, null for none.
struct NextChunk {
  const char* at[2];
  int64_t item;
};

// The next chunks of the rows of a band, which begin `stride` bytes apart.
struct NextRows {
  NextChunk first;
  int64_t stride[2];

  NextChunk of(int64_t row) const {
    NextChunk found = first;
    for (int k = 0; k < 2; ++k)
      if (found.at[k]) found.at[k] += row * stride[k];
    return found;
  }
};

}  // namespace fastact
