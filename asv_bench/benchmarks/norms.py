"""Norms: time of a call, forward and backward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .common import DTYPES, dtype_named, names, normal, op_named

OPS = names("norms")
# These take an image, the others rows.
OF_CHANNELS = ("group_norm", "instance_norm", "batch_norm", "norm_apply")

SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "small": {"rows": (128, 32), "channels": (8, 32, 7, 7)},
    "large": {"rows": (4096, 768), "channels": (32, 64, 56, 56)},
}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), ["identity", "mish"], DTYPES)
    param_names = ("op", "size", "activation", "dtype")

    def setup(self, name: str, size: str, activation: str, dtype: str) -> None:
        op, kind = op_named(name), dtype_named(dtype)
        shape = SHAPES[size]["channels" if name in OF_CHANNELS else "rows"]
        x = normal(int(np.prod(shape)), kind, seed=0).reshape(shape)
        weight = np.ones(shape[1], kind)
        inputs = (x, x.copy()) if name.startswith("add") else (x,)
        more: dict[str, tuple[Any, ...]] = {
            "group_norm": (8,),
            "batch_norm": (np.zeros_like(weight), weight.copy()),
            "norm_apply": (np.zeros_like(weight), weight.copy()),
        }
        options: dict[str, Any] = {"batch_norm": {"training": True}, "norm_apply": {"axis": 1}}
        told = {"activation": activation, **options.get(name, {})}
        arguments = (*inputs, *more.get(name, ()), weight)
        y, saved = op.forward(*arguments, **told)
        outs = y if isinstance(y, tuple) else (y,)
        out = tuple(np.empty_like(a) for a in outs)
        gradients = tuple(
            None if g is None else np.empty_like(g) for g in op.backward(x, *saved, **told)
        )
        self.forward = partial(op, *arguments, out=out, **told)
        self.backward = partial(op.backward, x, *saved, out=gradients, **told)

    def time_forward(self, *_: Any) -> None:
        self.forward()

    def time_backward(self, *_: Any) -> None:
        self.backward()
