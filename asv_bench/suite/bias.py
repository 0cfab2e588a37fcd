"""Bias, activation and the gradients of a bias: time of a call, also beside a copy."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from .common import DIRECTIONS, DTYPES, call_of, copying, dtype_named, normal, ratio

# The cheapest activation, where the passes count, and one whose arithmetic does.
ACTIVATIONS = ("relu", "mish")

# Where the bias lies: shape and axis.
LAYOUTS: dict[str, tuple[tuple[int, ...], int]] = {
    "dense": ((4096, 768), -1),
    "channels": ((32, 64, 56, 56), 1),
    "channels last": ((32, 56, 56, 64), -1),
    "narrow": ((1_000_000, 3), -1),
}


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
        shape, axis = LAYOUTS[layout]
        named = {"activation": activation, "axis": axis}
        self.call = call_of("bias_act", direction, shape, dtype, named)
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
        shape, axis = LAYOUTS[layout]
        self.call = call_of("bias_grad", "forward", shape, dtype, {"axis": axis})
        self.copy = _copy(layout, dtype, 2)

    def time_call(self, *_: Any) -> None:
        self.call()

    def track_ratio_to_copy(self, *_: Any) -> float:
        return ratio(self.call, self.copy)
