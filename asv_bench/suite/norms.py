"""Norms: time of a call, forward and backward."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

from .common import DIRECTIONS, DTYPES, call_of, names, op_named

OPS = names("norms")

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "small": {"rows": (128, 32), "channels": (8, 32, 7, 7)},
    "large": {"rows": (4096, 768), "channels": (32, 64, 56, 56)},
}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), ["identity", "mish"], DTYPES)
    param_names = ("op", "size", "activation", "dtype")

    def setup(self, name: str, size: str, activation: str, dtype: str) -> None:
        takes = signature(op_named(name)).parameters
        # Rows have a default for the axis along which they lie.
        of_rows = "channel_axis" not in takes and takes["axis"].default is not Parameter.empty
        shape = SHAPES[size]["rows" if of_rows else "channels"]
        named: dict[str, Any] = {"num_groups": 8, "training": True, "activation": activation}
        named |= {} if of_rows else {"axis": 1}
        self.forward, self.backward = (
            call_of(name, direction, shape, dtype, named, ("weight",)) for direction in DIRECTIONS
        )

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
