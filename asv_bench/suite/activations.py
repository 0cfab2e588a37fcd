"""Activations: time of a call, also beside a copy, peak of memory, and worst error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from .common import (
    DIRECTIONS,
    DTYPES,
    SIZES,
    copying,
    dense_float32,
    dtype_named,
    names,
    normal,
    op_named,
    oracle,
    ratio,
    worst_ulp,
)

OPS = names("activations")


def _call(name: str, dtype: str, direction: str, size: int, allocated: int) -> Callable[[], object]:
    """A call on the first `size` elements of arrays of `allocated` elements, with `out=`."""
    op, kind = op_named(name), dtype_named(dtype)
    x, dy = normal(allocated, kind, seed=0), normal(allocated, kind, seed=1)
    out = np.zeros_like(x)
    if direction == "forward":
        return partial(op, x[:size], out=out[:size])
    return partial(op.backward, dy[:size], x[:size], out=out[:size])


class Speed:
    """Seconds of one call that writes to a given array, on the default number of threads."""

    params = (OPS, SIZES, DTYPES, DIRECTIONS)
    param_names = ("op", "size", "dtype", "direction")

    def setup(self, name: str, size: int, dtype: str, direction: str) -> None:
        self.call = _call(name, dtype, direction, size, allocated=size)

    def time_call(self, *_: Any) -> None:
        self.call()


class Memory:
    """Peak of the process around a call that writes to a given array.

    The arrays are the largest ones whatever the size of the call, so that the figures of all sizes
    are the same, to some noise, if and only if no call allocates memory that grows with its size.
    """

    sizes = SIZES[-2:]
    params = (OPS, sizes, DTYPES, DIRECTIONS)
    param_names = ("op", "size", "dtype", "direction")

    def setup(self, name: str, size: int, dtype: str, direction: str) -> None:
        self.call = _call(name, dtype, direction, size, allocated=max(self.sizes))

    def peakmem_call(self, *_: Any) -> None:
        self.call()


class Accuracy:
    """Worst error over a dense sample of float32 inputs, on the instruction set chosen at import.

    Inputs whose absolute error is within what the op states (a derivative near its root) do not
    count. 16-bit results are the float32 ones rounded once, which the tests hold.
    """

    params = (OPS, DIRECTIONS)
    param_names = ("op", "direction")
    unit = "ULP"

    def track_worst_ulp(self, name: str, direction: str) -> float:
        formulas = oracle()
        op, x = op_named(name), dense_float32()
        if direction == "forward":
            return worst_ulp(op(x), formulas.forward(name, x.astype(np.float64)))
        # Some ops save y, and their slopes are a function of that.
        _, saved = op.forward(x)
        slopes = op.backward(np.ones_like(x), *saved)
        by_saved = getattr(formulas, "derivative_by_saved", formulas.derivative)
        wide = saved[0].astype(np.float64)
        return worst_ulp(slopes, by_saved(name, wide), op.bounds.derivative_abs)


class Bandwidth:
    """Time over the time of NumPy's copy of as many bytes, on one thread.

    The two take turns, and the figure is the ratio of their medians: it can be compared between
    runs, and to a degree between machines, where seconds cannot. On one thread of ours, too
    (FASTACT_NUM_THREADS=1), 1 is the speed of memory. Our own copy would be another one at each
    commit.
    """

    params = (OPS, SIZES[1:], DTYPES, DIRECTIONS)
    param_names = ("op", "size", "dtype", "direction")
    unit = "x copy"

    def setup(self, name: str, size: int, dtype: str, direction: str) -> None:
        self.call = _call(name, dtype, direction, size, allocated=size)
        # Forward reads one array and writes one, as a copy does; backward reads one more.
        copied = size if direction == "forward" else size * 3 // 2
        source = normal(copied, dtype_named(dtype), seed=2)
        self.copy = copying(source)

    def track_ratio_to_copy(self, *_: Any) -> float:
        return ratio(self.call, self.copy)
