"""The fast paths of the norms, of batch_norm and of norms whose channels come last.

Kernels whose rows are in registers have none: cuda_static_launches.py has their ways.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import sass
from cuda_static_launches import HELD_BACKWARD
from cuda_static_names import COMPUTE, ITEM

if TYPE_CHECKING:
    from cuda_static import Kernel

FAST_NORMS = "identity"  # kernels that call no activation
# Of chunks of rows, y from the statistics: what a round reads of a vector, weight and bias with it.
APPLY = "norm_apply_chunks"


def _with_rows(kernel: Kernel) -> Kernel:
    size = 16 // ITEM[kernel.dtype]
    return replace(kernel, path=tuple(kernel.code.loop(3, 1)), elements=size, moved=2)


# Rows of numbers that a map takes, in the compute type, by what it does; and loads of 16 bytes by
# which it takes those of one cell.
_NUMBERS = {"norm forward": 4, "given": 1, "of channels": 5, "of groups": 6}
_SET = {"norm forward": (1, 2), "given": (0, 0), "of channels": (2, 2)}


def _with_map(kernel: Kernel) -> list[Kernel]:
    """One line each for numbers that a vector shares, and for a vector of each number."""
    item, wide = ITEM[kernel.dtype], COMPUTE[kernel.dtype]
    words = kernel.what.split(", ")
    kind = words[0] if words[0] in _NUMBERS else words[1]
    turns = 1 if item == 2 and kernel.inputs == 2 else 2
    # dx by given statistics does not ask for x, which some instances read and others do not.
    inputs = range(1, 3) if kind == "given" else (kernel.inputs,)

    def way(numbers: int) -> tuple[sass.Instruction, ...]:
        ways = (kernel.code.path(turns * (one + numbers), turns, shared=(0, 0)) for one in inputs)
        return tuple(next(filter(None, ways), ()))

    facts = replace(kernel, elements=turns * 16 // item, moved=inputs[0] + 1)
    apart = way(_NUMBERS[kind] * wide // item)
    last = replace(facts, what=f"{kernel.what}, channels last", path=apart)
    if kernel.family == "channels_last":
        return [last]
    shared = way(_SET[kind][wide == 8]) or (apart if kind == "given" else ())
    return [replace(facts, path=shared), replace(last, is_variant=True)]


def with_norm_paths(kernel: Kernel) -> list[Kernel]:
    """The kernel with its fast path, and its further paths."""
    if kernel.is_norm_map:
        return _with_map(kernel)
    if kernel.kernel.startswith("sums_of"):
        path = kernel.code.loop(4)  # two vectors of x and of dy
        elements = 2 * 16 // ITEM[kernel.dtype]
        return [replace(kernel, path=tuple(path), elements=elements, moved=2)]
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
