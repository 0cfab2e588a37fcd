"""The fast paths of the norms, of batch_norm and of norms whose channels come last.

A kernel over rows makes several passes, each a loop that its loads and stores single out. Their
instructions are put together in the proportion in which a thread runs them, so that a pass that
takes four vectors a round stands once beside four rounds of one that takes a single vector.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import sass
from cuda_static_names import COMPUTE, ITEM

if TYPE_CHECKING:
    from cuda_static import Kernel

FAST_NORMS = "identity"  # kernels that call no activation
_TOGETHER = 4  # vectors: what the passes are put together for


@dataclass(frozen=True)
class Pass:
    """One loop: accesses of 16 bytes in a round, and the vectors of the row that a round takes."""

    loads: int
    stores: int
    shared: tuple[int, int]
    vectors: int = 1
    multiplies: int = 0  # multiply-adds of an element, at least


# Kernel: its passes, and how often an element is read or written.
_ROWS = {
    "norm_apply_chunks": ((Pass(3, 1, (0, 0)),), 2),
    # Backward of long rows: x and dy of two vectors with weight; of two rows, with dx and columns.
    "norm_long_sums": ((Pass(6, 0, (0, 0), 2),), 2),
    "norm_long_gradients": ((Pass(4, 2, (0, 0), 2, multiplies=6),), 3),
}
# Of those, the kernels that have rows alone.
NORM_LONG = ("norm_long_sums", "norm_long_gradients")


def _passes(kernel: Kernel) -> tuple[tuple[Pass, ...], int]:
    if kernel.kernel != "norm_backward_rows":
        return _ROWS[kernel.kernel]
    # x and dy, of two rows at a time; the sums, with weight; dx, with the facts of its row, and the
    # sums of the columns: a multiply-add of an element for each.
    facts = 4 * COMPUTE[kernel.dtype] // 16
    return (
        Pass(4, 0, (0, 4), 2),
        Pass(1, 0, (2, 0)),
        Pass(0, 1, (2 + facts, 0), multiplies=2),
    ), 3


def _with_rows(kernel: Kernel) -> Kernel:
    size = 16 // ITEM[kernel.dtype]
    passes, moved = _passes(kernel)
    path: list[sass.Instruction] = []
    for one in passes:
        fma = "DFMA" if kernel.dtype == "float64" else "FFMA"
        way = kernel.code.loop(
            one.loads, one.stores, shared=one.shared, least=(fma, one.multiplies * size)
        )
        if not way:
            return replace(kernel, moved=moved)
        path += way * (_TOGETHER // one.vectors)
    return replace(kernel, path=tuple(path), elements=_TOGETHER * size, moved=moved)


# Of strips of channels: arrays read and written, vectors of each in a round where elements have 4
# bytes or more and where they have 2, the opcode that an element needs, and how often.
_STRIPS = {
    "strip_moments": (1, 0, (4, 4), "FADD", 1.5),
    "strip_forward": (1, 1, (4, 4), "FFMA", 1),
    "strip_sums": (2, 0, (4, 2), "FFMA", 1),
    "strip_backward": (2, 1, (4, 2), "FFMA", 1),
}
# Whose fast paths have 16 bytes throughout.
STRIP_WAYS = ("lines", "columns")


def _with_strips(kernel: Kernel) -> Kernel:
    reads, writes, vectors, opcode, often = _STRIPS[kernel.kernel]
    item = ITEM[kernel.dtype]
    turns = vectors[item == 2]
    elements = turns * 16 // item
    opcode = opcode.replace("F", "D", 1) if item == 8 else opcode
    path = kernel.code.loop(
        turns * reads, turns * writes, shared=(0, 0), least=(opcode, int(elements * often))
    )
    return replace(kernel, path=tuple(path), elements=elements, moved=reads + writes)


def with_norm_paths(kernel: Kernel) -> list[Kernel]:
    """The kernel with its fast path, and its further paths."""
    if kernel.kernel in _STRIPS:
        return [_with_strips(kernel)]
    return [_with_rows(kernel)]


def constants(source: str) -> dict[str, int]:
    """The numbers that a source names.

    Examples
    --------
    >>> constants("constexpr int64_t kLongRow = 2048;  // rows\\nconstexpr int kBytes = 46 << 10;")
    {'kLongRow': 2048, 'kBytes': 47104}
    """
    found = re.findall(r"constexpr \w+ (k\w+) = (\d+)(?: << (\d+))?;", source)
    return {name: int(number) << int(shift or 0) for name, number, shift in found}


_CUDA = Path(__file__).resolve().parents[1] / "src/cuda/norms/rows"
_CORE = _CUDA.parents[1] / "core"
_OPTIN = 227 << 10  # bytes of shared memory that a block may have on sm_90
_OWN = 512  # of these, backward's sums of the warps


@dataclass(frozen=True)
class Traffic:
    """Of a row, identity and parameters given: accesses an element, caches left out of account.

    sums : the share of backward's sums of columns that shared memory does not hold.
    """

    forward: float
    backward: float
    sums: float


def traffic(length: int, dtype: str) -> Traffic:
    """What a row of so many elements moves, by the plans of norms.cu and core/rows.cuh on sm_90."""
    known = constants((_CUDA / "norms.cu").read_text(encoding="utf-8"))
    for name in ("rows.cuh", "row_io.cuh"):
        known |= constants((_CORE / name).read_text(encoding="utf-8"))
    vectors = -(-length * ITEM[dtype] // 16)
    threads = known["kRowThreads"] if vectors >= known["kWideRow"] else known["kThreadsOfNarrow"]
    per_lane = -(-vectors // threads)
    # Forward: a row that registers do not hold is read again for y.
    held = (4 if ITEM[dtype] == 2 else 8) * known["kRowThreads"]
    forward = 3.0 if vectors > held else 2.0
    # Backward: long rows are read twice, and their sums stay with the threads. Of the others sums
    # come first, then x and dy; what is not kept is read for the sums, and for dx. The facts of the
    # row take a little too.
    if vectors > known["kLongRow"]:
        return Traffic(forward, 5.0, 0.0)
    planes = 2 * COMPUTE[dtype] // ITEM[dtype]
    facts = 4 * COMPUTE[dtype]
    free = _OPTIN - _OWN - facts
    sums = min(per_lane, free // (planes * 16 * threads))
    kept = min(per_lane, (free - sums * planes * 16 * threads) // (2 * 16 * threads))
    again = max(0, vectors - kept * threads) / vectors
    return Traffic(forward, 3 + 2 * again, max(0, vectors - sums * threads) / vectors)
