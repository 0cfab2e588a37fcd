"""Recurrent gates: time of a step's call, forward and backward."""

from __future__ import annotations

from typing import Any

from .common import DIRECTIONS, DTYPES, call_of, names

OPS = names("gates")

SHAPES: dict[str, tuple[int, ...]] = {"small": (8, 8), "cell": (256, 64), "large": (256, 1024)}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), DTYPES)
    param_names = ("op", "size", "dtype")

    def setup(self, name: str, size: str, dtype: str) -> None:
        optional = ("recurrent", "bias")
        self.forward, self.backward = (
            call_of(name, direction, SHAPES[size], dtype, {}, optional) for direction in DIRECTIONS
        )

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
