"""Every op at the shapes of the boards: time, also beside a copy, growth of memory, worst error.

asv runs the benchmarks of today against the package of other commits, and leaves out what a commit
does not have: an op or a type. One whose package lacks what the boards need has no results.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fastact as fa

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.pages import growth
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.work import ITEM, Case, InMemory, Work

from fastact import _cpu
from fastact.bench.turns import medians, take_turns
from fastact.check.activations import Subject, ours, sweep
from fastact.check.ulp import dense_float32, in_batches
from fastact.measure.peers import COPY, OURS, dtype_named

# The cost of a call; in the cache of one core; in the shared cache; in memory.
SIZES = (64, 50_000, 1_000_000, 8_000_000)
DIRECTIONS = ("forward", "backward")
SECONDS = 0.1  # for each pair of a call and a copy


def works(name: str, size: int, dtype: str, direction: str) -> list[tuple[Case, Work]]:
    """Return the cases of an op at a size, each with its call on arrays of its own."""
    try:
        op = fa.ops[name]
        dtype_named(dtype)
    except (KeyError, SystemExit) as missing:
        raise NotImplementedError(f"this version has no {name}, or no {dtype}") from missing
    family = FAMILIES[op.family]
    cases = family.on_gpu(op, direction, dtype, (size,))
    if not cases:
        raise NotImplementedError(f"{name} has no {direction}")
    return [(case, Work(case, family, InMemory())) for case in cases]


class _OfEveryOp:
    """The parameters that all have."""

    params: tuple[Any, ...] = (list(fa.ops), SIZES, list(ITEM), DIRECTIONS)
    param_names = ("op", "size", "dtype", "direction")

    def setup(self, name: str, size: int, dtype: str, direction: str) -> None:
        self.works = works(name, size, dtype, direction)


class Speed(_OfEveryOp):
    """Seconds of the calls of all shapes of a size, which write to given arrays."""

    def time_calls(self, *_: Any) -> None:
        for _case, work in self.works:
            work.ours()


class Bandwidth(_OfEveryOp):
    """Time over the time of NumPy's copy of as many bytes, on one thread: the worst of all shapes.

    Call and copy take turns: the ratio can be compared between runs, and to a degree between
    machines, where seconds cannot. On one thread of ours, too (FASTACT_NUM_THREADS=1), 1 is the
    speed of memory. Our own copy would be another one at each commit.
    """

    params = (list(fa.ops), SIZES[1:], list(ITEM), DIRECTIONS)
    unit = "x copy"

    def track_ratio_to_copy(self, *_: Any) -> float:
        return round(max(self._ratio(case, work) for case, work in self.works), 3)

    def _ratio(self, case: Case, work: Work) -> float:
        source = np.ones(case.moved // 2, np.uint8)
        copy = partial(np.copyto, np.zeros_like(source), source)
        ratios = medians(take_turns({OURS: work.ours, COPY: copy}, SECONDS))["ratios"]
        return 1 / float(ratios[COPY])


class Memory(_OfEveryOp):
    """Bytes by which the process grows at most in calls that write to given arrays.

    Linux tells them. They are a few pages whatever the size, unless a call allocates memory.
    """

    params = (list(fa.ops), SIZES[-2:], list(ITEM), DIRECTIONS)
    unit = "bytes"

    def track_growth(self, *_: Any) -> float:
        return growth(lambda: [work.ours() for _, work in self.works])


class Accuracy:
    """Worst error over a dense sample of float32 inputs, on the instruction set chosen at import.

    Inputs whose absolute error is within what the op states (a derivative near its root) do not
    count. 16-bit results are the float32 ones rounded once, which the tests hold.
    """

    params = ([name for name, op in fa.ops.items() if op.family == "activations"], DIRECTIONS)
    param_names = ("op", "direction")
    unit = "ULP"

    def track_worst_ulp(self, name: str, direction: str) -> float:
        subject = Subject(name, fa.ops[name], {})
        found = sweep(subject, [ours(subject, _cpu.isa())], in_batches(dense_float32()))
        (tally,) = found["forward" if direction == "forward" else "derivative"]
        return round(tally.counted, 3)
