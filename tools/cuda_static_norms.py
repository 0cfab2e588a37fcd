"""The fast paths of the norms, of batch_norm and of norms whose channels come last.

Kernels whose rows are in registers have none: cuda_static_launches.py has their ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from cuda_static_launches import HELD_BACKWARD
from cuda_static_names import ITEM

if TYPE_CHECKING:
    from cuda_static import Kernel


# Of strips of channels: arrays read and written, vectors of each in a round where elements have 4
# bytes or more and where they have 2, the opcode that an element needs, and how often.
_STRIPS = {
    "strip_moments": (1, 0, (4, 4), "FADD", 1.5),
    "strip_forward": (1, 1, (4, 4), "FFMA", 1),
    "strip_sums": (2, 0, (4, 2), "FFMA", 1),
    "strip_backward": (2, 1, (4, 2), "FFMA", 1),
}
# Whose fast paths have 16 bytes throughout, and call no activation.
FAST_STRIPS = ("lines", "columns"), ("", "identity")


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
    return [_with_strips(kernel)] if kernel.kernel in _STRIPS else [kernel]


def constants(source: str) -> dict[str, int]:
    """The numbers that a source names.

    Examples
    --------
    >>> constants("constexpr int64_t kLongRow = 2048;  // rows\\nconstexpr int kBytes = 46 << 10;")
    {'kLongRow': 2048, 'kBytes': 47104}
    """
    found = re.findall(r"constexpr \w+ (k\w+) = (\d+)(?: << (\d+))?;", source)
    return {name: int(number) << int(shift or 0) for name, number, shift in found}


_CORE = Path(__file__).resolve().parents[1] / "src/cuda/core"


@dataclass(frozen=True)
class Traffic:
    """Of a row, identity and parameters given: accesses an element, caches left out of account."""

    forward: float
    backward: float


def traffic(length: int, dtype: str) -> Traffic:
    """What a row of so many elements moves: a row that registers do not hold is read again."""
    threads = constants((_CORE / "row_io.cuh").read_text(encoding="utf-8"))["kRowThreads"]
    vectors = -(-length * ITEM[dtype] // 16)
    held = (4 if ITEM[dtype] == 2 else 8) * threads
    return Traffic(
        3.0 if vectors > held else 2.0, 5.0 if vectors > HELD_BACKWARD[ITEM[dtype]] else 3.0
    )
