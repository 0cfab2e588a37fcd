"""Norms: time of a call, forward and backward."""

from __future__ import annotations

from inspect import Parameter, signature
from math import prod
from typing import Any

import numpy as np

from .common import DTYPES, arrays, calls, dtype_named, names, normal, op_named

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
        kind, takes = dtype_named(dtype), signature(op_named(name)).parameters
        # Rows have a default for the axis along which they lie.
        of_rows = "channel_axis" not in takes and takes["axis"].default is not Parameter.empty
        shape = SHAPES[size]["rows" if of_rows else "channels"]
        named: dict[str, Any] = {"num_groups": 8, "training": True, "activation": activation}
        named |= {} if of_rows else {"axis": 1}
        named |= {array: np.zeros(shape[1], kind) for array in ("running_mean", "mean")}
        named |= {array: np.ones(shape[1], kind) for array in ("running_var", "rstd", "weight")}
        named |= arrays(name, {"x": shape, "residual": shape}, kind)
        dy = normal(prod(shape), kind, seed=9).reshape(shape)
        self.forward, self.backward = calls(name, named, dy)

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
