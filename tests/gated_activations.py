"""Cases of gated activations. (The gates of recurrent layers: gated.py.)"""

from typing import Any

import pytest
from arrays import finite

import fastact as fa
from fastact.check.expected.gated import GatedCall

OPS = [op for op in fa.ops.values() if op.family == "gated"]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)

# Shape of a and b, and the axis of both halves and of the bias. Each way of reading: rows of odd
# and of short length, one row, channels first, many rows of few channels, more than one chunk and
# more than one block of a sum.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((5,), 0),
    ((1,), -1),
    ((3, 20), 0),
    ((40, 768), 1),
    ((2100, 65), -1),
    ((4500, 3), 1),
    ((2, 1100), 1),
    ((3, 7000), 0),
    ((9, 6, 24, 24), 1),
    ((45, 24, 7, 7), 1),
    ((6, 5, 4, 3), 2),
]
case = pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
HELD = {"limit": 1.5, "offset": 1.0}


def made(
    op: Any, dtype: Any, shape: tuple[int, ...], axis: int = -1, *, bias: bool = True, **named: Any
) -> GatedCall:
    """A call on random numbers."""
    a, b, dy = (finite(dtype, shape, seed) for seed in range(3))
    along = tuple(finite(dtype, (shape[axis],), seed) for seed in (3, 4)) if bias else None
    return GatedCall(op, a, b, dy, {**named, "axis": axis}, along)  # type: ignore[arg-type]
