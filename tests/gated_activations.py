"""Cases of gated activations. (The gates of recurrent layers: gated.py.)"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pytest
from arrays import finite

import fastact as fa
from fastact.check.expected.gated import packed, parts

OPS = [op for op in fa.ops.values() if op.family == "gated"]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)

# Shape of a and b, and the axis of both halves and of the bias. Each way of reading: rows of odd
# and of short length, one row, channels first, many rows of few channels, more than one chunk and
# more than one block of a sum.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((5,), 0), ((1,), -1), ((3, 20), 0), ((40, 768), 1), ((2100, 65), -1), ((4500, 3), 1),
    ((2, 1100), 1), ((3, 7000), 0), ((9, 6, 24, 24), 1), ((45, 24, 7, 7), 1), ((6, 5, 4, 3), 2),
]  # fmt: skip
case = pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
HELD = {"limit": 1.5, "offset": 1.0}


@dataclass(frozen=True)
class Call:
    """A call of an op by arrays of its a and b, whatever it takes itself, which is run.

    named : its options. bias : what is added to a and to b along `axis`; None: nothing.
    """

    op: Any
    a: np.ndarray
    b: np.ndarray
    dy: np.ndarray
    named: Mapping[str, Any]
    bias: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def axis(self) -> int:
        return int(self.named.get("axis", -1))

    def packed(self, a: np.ndarray, b: np.ndarray, axis: int) -> np.ndarray:
        return packed(self.op, self.named, a, b, axis)

    def parts(self, array: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
        return parts(self.op, self.named, array, axis)

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What the op takes by position."""
        return (self.packed(self.a, self.b, self.axis),) if self.op.packed else (self.a, self.b)

    @cached_property
    def packed_bias(self) -> np.ndarray | None:
        return None if self.bias is None else self.packed(*self.bias, 0)

    def call(self, of: Callable[[np.ndarray], Any] = lambda a: a) -> Any:
        """y. of: makes an array of another framework of NumPy's."""
        bias = {} if self.packed_bias is None else {"bias": of(self.packed_bias)}
        return self.op(*map(of, self.arrays), **self.named, **bias)

    def backward(
        self, of: Callable[[np.ndarray], Any] = lambda a: a, **more: Any
    ) -> tuple[Any, ...]:
        """The gradients: dx, or da and db, and perhaps dbias."""
        bias = None if self.packed_bias is None else of(self.packed_bias)
        made = self.op.backward(of(self.dy), *map(of, self.arrays), bias, **self.named, **more)
        return made if isinstance(made, tuple) else (made,)

    @property
    def given(self) -> dict[str, Any]:
        """All that forward takes by name, the data first."""
        arrays = dict(zip(self.op.entry_points["call"].arrays, self.arrays, strict=True))
        return {**arrays, "bias": self.packed_bias, **self.named}


def made(
    op: Any, dtype: Any, shape: tuple[int, ...], axis: int = -1, *, bias: bool = True, **named: Any
) -> Call:
    """A call on random numbers."""
    a, b, dy = (finite(dtype, shape, seed) for seed in range(3))
    along = tuple(finite(dtype, (shape[axis],), seed) for seed in (3, 4)) if bias else None
    return Call(op, a, b, dy, {**named, "axis": axis}, along)  # type: ignore[arg-type]
