#include "cuda/core/device.h"
#include "cuda/norms/rows/forward.cuh"
FASTACT_BEGIN_NAMESPACE
namespace {
template __global__ void clustered_rows<FASTACT_STORAGE, true, NormOf<FASTACT_STORAGE>, NormQuick>(FASTACT_GRID_CONSTANT const NormQuick, const NormOf<FASTACT_STORAGE>, const int, const int64_t);
template __global__ void clustered_rows<FASTACT_STORAGE, false, NormOf<FASTACT_STORAGE>, NormQuick>(FASTACT_GRID_CONSTANT const NormQuick, const NormOf<FASTACT_STORAGE>, const int, const int64_t);
template __global__ void forward_rows<FASTACT_STORAGE, kMostVecs<FASTACT_STORAGE>, kWholeRows, NormOf<FASTACT_STORAGE>, NormQuick>(FASTACT_GRID_CONSTANT const NormQuick, const NormOf<FASTACT_STORAGE>, const ChunkNumbers, const RowPhase);
template __global__ void forward_rows<FASTACT_STORAGE, kMostVecs<FASTACT_STORAGE>, kApplyChunks, NormOf<FASTACT_STORAGE>, NormQuick>(FASTACT_GRID_CONSTANT const NormQuick, const NormOf<FASTACT_STORAGE>, const ChunkNumbers, const RowPhase);
}
FASTACT_END_NAMESPACE
