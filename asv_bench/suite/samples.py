"""The ops of every family that has no benchmarks of its own, by an example of a call."""

from __future__ import annotations

from math import prod
from typing import Any

import fastact as fa

from .common import (
    DIRECTIONS,
    DTYPES,
    copying,
    dtype_named,
    maker_of_calls,
    normal,
    op_named,
    ratio,
    with_out,
)

# What the other files of this folder measure, at shapes of their own.
_ELSEWHERE = ("activations", "bias", "gates", "norms", "reductions")
OPS = [name for name, op in fa.ops.items() if op.family not in _ELSEWHERE]

# The call alone; a small net's, in the cache; a large one's; rows of a vocabulary.
SHAPES: dict[str, tuple[int, int]] = {
    "tiny": (8, 8),
    "short": (1024, 64),
    "linear": (4096, 768),
    "long": (512, 32000),
}


class Speed:
    """Seconds of one call that writes to given arrays, on the default number of threads."""

    params = (OPS, list(SHAPES), DTYPES, DIRECTIONS)
    param_names = ("op", "shape", "dtype", "direction")

    def setup(self, name: str, shape: str, dtype: str, direction: str) -> None:
        op, kind, axes = op_named(name), dtype_named(dtype), SHAPES[shape]
        x, dy = (normal(prod(axes), kind, seed).reshape(axes) for seed in (0, 1))
        cases = maker_of_calls()
        call = (cases.example if direction == "forward" else cases.backward_example)(op, x, dy)
        self.call = with_out(call, call())
        self.copy = copying(x)

    def time_call(self, *_: Any) -> None:
        self.call()

    def track_ratio_to_copy(self, *_: Any) -> float:
        """Of one array of the shape, as large as what is read of x."""
        return ratio(self.call, self.copy)
