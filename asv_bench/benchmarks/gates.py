"""Recurrent gates: time of a step's call, forward and backward."""

from __future__ import annotations

from typing import Any

from .common import DTYPES, arrays, calls, dtype_named, names, normal, op_named

OPS = names("gates")

SHAPES: dict[str, tuple[int, ...]] = {"small": (8, 8), "cell": (256, 64), "large": (256, 1024)}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), DTYPES)
    param_names = ("op", "size", "dtype")

    def setup(self, name: str, size: str, dtype: str) -> None:
        op, kind, state = op_named(name), dtype_named(dtype), SHAPES[size]
        if not hasattr(op, "count"):
            raise NotImplementedError("this version does not say how many gates are packed")
        packed: tuple[int, ...] = (state[0], op.count * state[1])
        shapes = {"gates": packed, "recurrent": packed, "bias": packed[1:]}
        shapes |= {"c_prev": state, "h_prev": state}
        dy = normal(state[0] * state[1], kind, seed=9).reshape(state)
        self.forward, self.backward = calls(name, arrays(name, shapes, kind), dy)

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
