"""Recurrent gates: time of a step's call, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .common import DTYPES, dtype_named, names, normal, op_named

OPS = names("gates")

SHAPES: dict[str, tuple[int, int]] = {"small": (8, 8), "cell": (256, 64), "large": (256, 1024)}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), DTYPES)
    param_names = ("op", "size", "dtype")

    def setup(self, name: str, size: str, dtype: str) -> None:
        op, kind = op_named(name), dtype_named(dtype)
        rows, columns = SHAPES[size]
        width = op.count * columns
        gates = normal(rows * width, kind, seed=0).reshape(rows, width)
        state = normal(rows * columns, kind, seed=1).reshape(rows, columns)
        named = {"gates": gates, "recurrent": gates.copy(), op.state: state}
        named["bias"] = np.ones(width, kind)
        by_position = op.entry_points["call"].arrays
        inputs = tuple(named.pop(array) for array in by_position)
        y, saved = op.forward(*inputs, **named)
        results = y if isinstance(y, tuple) else (y,)
        gradients = (state,) * len(results)
        out = tuple(
            None if d is None else np.empty_like(d) for d in op.backward(*gradients, *saved)
        )
        self.forward = partial(op, *inputs, out=tuple(map(np.empty_like, results)), **named)
        self.backward = partial(op.backward, *gradients, *saved, out=out)

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
