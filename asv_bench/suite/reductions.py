"""Sums, moments and statistics: time of a call, and peak of memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from .common import DTYPES, call_of, dtype_named, names, normal, op_named, with_out

OPS = [*names("reductions"), *names("statistics")]
Axis = int | tuple[int, ...] | None

# Each way of walking: shape, and the axes that are summed over.
LAYOUTS: dict[str, tuple[tuple[int, ...], Axis]] = {
    "columns": ((4096, 4096), 0),
    "rows": ((4096, 4096), 1),
    "channels": ((32, 64, 56, 56), (0, 2, 3)),
    "narrow": ((1_000_000, 3), 0),
    "middle": ((64, 512, 512), 1),
}

AXES: dict[str, Axis] = {"0": 0, "1": 1, "all": None}


def _of_rows(
    name: str, dtype: str, shape: tuple[int, ...], axis: Axis, rows: int
) -> Callable[[], object]:
    """A reduction of the first rows of an array, with `out=`."""
    op, kind = op_named(name), dtype_named(dtype)
    x = normal(prod(shape), kind, seed=0).reshape(shape)[:rows]
    call = partial(op, x, axis=axis)
    return with_out(call, call())


class Speed:
    """Seconds of one call that writes to a given array, on the default number of threads."""

    params = (OPS, list(LAYOUTS), DTYPES)
    param_names = ("op", "layout", "dtype")

    def setup(self, name: str, layout: str, dtype: str) -> None:
        shape, axis = LAYOUTS[layout]
        self.call = call_of(name, "forward", shape, dtype, {"axis": axis})

    def time_call(self, *_: Any) -> None:
        self.call()


class Backward:
    """The same of the gradient, which writes an array of x's shape."""

    params = (OPS, list(LAYOUTS), DTYPES)
    param_names = ("op", "layout", "dtype")

    def setup(self, name: str, layout: str, dtype: str) -> None:
        shape, axis = LAYOUTS[layout]
        self.call = call_of(name, "backward", shape, dtype, {"axis": axis})

    def time_call(self, *_: Any) -> None:
        self.call()


class Memory:
    """Peak of the process around a call that writes to a given array.

    The array is the whole one whatever part of it is summed up, so that the figures of both are the
    same, to some noise, if and only if no call allocates memory that grows with its size.
    """

    rows = (256, 4096)
    params = (OPS, rows, DTYPES, list(AXES))
    param_names = ("op", "rows", "dtype", "axis")

    def setup(self, name: str, rows: int, dtype: str, axis: str) -> None:
        self.call = _of_rows(name, dtype, (max(self.rows), 4096), AXES[axis], rows)

    def peakmem_call(self, *_: Any) -> None:
        self.call()
