"""Bias, activation and the gradients of a bias: time of a call, and time against that of a copy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from .common import (
    DIRECTIONS,
    DTYPES,
    arrays,
    calls,
    copying,
    dtype_named,
    normal,
    op_named,
    ratio,
    with_out,
)

# The cheapest activation, where the passes count, and one whose arithmetic does.
ACTIVATIONS = ("relu", "mish")

# Where the bias lies: shape and axis.
LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "dense": ((4096, 768), -1),
    "channels": ((32, 64, 56, 56), 1),
    "channels last": ((32, 56, 56, 64), -1),
    "narrow": ((1_000_000, 3), -1),
}


def _bias_act(layout: str, dtype: str, activation: str, direction: str) -> Callable[[], object]:
    """A call with `out=`."""
    kind, (shape, axis) = dtype_named(dtype), LAYOUTS[layout]
    named: dict[str, Any] = {"activation": activation, "axis": axis}
    named |= arrays("bias_act", {"x": shape, "bias": (shape[axis],)}, kind)
    dy = normal(prod(shape), kind, seed=3).reshape(shape)
    return calls("bias_act", named, dy)[direction != "forward"]


def _bias_grad(layout: str, dtype: str) -> Callable[[], object]:
    shape, axis = LAYOUTS[layout]
    given = arrays("bias_grad", {"dy": shape}, dtype_named(dtype))
    call = partial(op_named("bias_grad"), given["dy"], axis=axis)
    return with_out(call, call())


def _copy(layout: str, dtype: str, arrays: int) -> Callable[[], object]:
    """A copy that moves as many bytes as reading or writing that many arrays."""
    size = prod(LAYOUTS[layout][0]) * arrays // 2
    source = normal(size, dtype_named(dtype), seed=3)
    return copying(source)


class BiasAct:
    """Forward reads one array and writes one; backward reads two and writes one."""

    params = (list(LAYOUTS), DTYPES, ACTIVATIONS, DIRECTIONS)
    param_names = ("layout", "dtype", "activation", "direction")

    def setup(self, layout: str, dtype: str, activation: str, direction: str) -> None:
        self.call = _bias_act(layout, dtype, activation, direction)
        self.copy = _copy(layout, dtype, 2 if direction == "forward" else 3)

    def time_call(self, *_: Any) -> None:
        self.call()

    def track_ratio_to_copy(self, *_: Any) -> float:
        return ratio(self.call, self.copy)


class BiasGrad:
    """One array is read: 0.5 of a copy of it is the speed of memory."""

    params = (list(LAYOUTS), DTYPES)
    param_names = ("layout", "dtype")

    def setup(self, layout: str, dtype: str) -> None:
        self.call = _bias_grad(layout, dtype)
        self.copy = _copy(layout, dtype, 2)

    def time_call(self, *_: Any) -> None:
        self.call()

    def track_ratio_to_copy(self, *_: Any) -> float:
        return ratio(self.call, self.copy)
