"""Recurrent gates: time of a step's call, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .common import DTYPES, dtype_named, names, normal, op_named

OPS = names("gates")

SHAPES: dict[str, tuple[int, int]] = {"small": (8, 8), "cell": (256, 64), "large": (256, 1024)}
_GATES = {"lstm_gates": 4, "gru_gates": 3, "gru_reset": 1, "gru_blend": 2}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), DTYPES)
    param_names = ("op", "size", "dtype")

    def setup(self, name: str, size: str, dtype: str) -> None:
        op, kind = op_named(name), dtype_named(dtype)
        rows, columns = SHAPES[size]
        width = _GATES[name] * columns
        gates = normal(rows * width, kind, seed=0).reshape(rows, width)
        state = normal(rows * columns, kind, seed=1).reshape(rows, columns)
        inputs = (gates, gates.copy(), state) if name == "gru_gates" else (gates, state)
        told: dict[str, Any] = {"bias": np.ones(width, kind)}
        if name != "gru_gates":
            told["recurrent"] = gates.copy()
        y, saved = op.forward(*inputs, **told)
        results = y if isinstance(y, tuple) else (y,)
        gradients = (state, state) if name == "lstm_gates" else (state,)
        out = tuple(
            None if d is None else np.empty_like(d) for d in op.backward(*gradients, *saved)
        )
        self.forward = partial(op, *inputs, out=tuple(map(np.empty_like, results)), **told)
        self.backward = partial(op.backward, *gradients, *saved, out=out)

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
