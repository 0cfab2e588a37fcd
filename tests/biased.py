"""Cases of bias_act, and what it gives, by the activations themselves and by sums of NumPy's."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sums
from arrays import finite
from conftest import ACTIVATIONS
from devices import Framework

import fastact as fa
from fastact.check.expected.bias import expected_dx as expected_dx
from fastact.check.expected.bias import expected_y

NAMES = ["identity", *(op.name for op in ACTIVATIONS)]
# With and without, and both ways: the identity alone has a way of its own.
fused = pytest.mark.parametrize(("name", "residual"), [("identity", False), ("mish", True)])
name_of_all = pytest.mark.parametrize("name", NAMES)
name_of_some = pytest.mark.parametrize("name", ["identity", "mish"])
# Each way of walking: shape and the bias's axis. Channels last, wide, narrow and with odd tails;
# channels first with long, short and odd lines; one block of 2048 terms and many; one line.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((5,), 0), ((1,), -1), ((3, 20), 0), ((40, 768), 1), ((2100, 100), -1), ((2100, 65), -1),
    ((4500, 3), 1), ((5000, 1), 1), ((2, 1100), 1), ((1, 5000), 1), ((3, 7000), 0),
    ((9, 6, 24, 24), 1), ((9, 6, 23, 25), 1), ((45, 24, 7, 7), 1), ((2, 1100, 3), 1),
    ((9, 24, 24, 6), -1), ((6, 5, 4, 3), 2), ((2, 1, 300), 1),
]  # fmt: skip
case = pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)


def parts(dtype: Any, shape: tuple[int, ...], axis: int, residual: bool = True) -> list[Any]:
    """dy, x, bias and residual."""
    made = [finite(dtype, shape, seed) for seed in range(3)]
    bias = finite(dtype, (shape[axis],), 3)
    return [made[0], made[1], bias, made[2] if residual else None]


def wide(array: Any) -> Any:
    """In the type in which it is computed."""
    if array is None:
        return None
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32)


def expected_forward(name: str, x: Any, bias: Any, axis: int, residual: Any) -> np.ndarray:
    """By the activation itself, of sums by NumPy."""
    return expected_y(name, x, bias, axis, residual).astype(x.dtype)


def call(framework: Framework, entry: Any, *arrays: Any, **named: Any) -> Any:
    """A call on a framework's arrays; what comes back is NumPy's."""
    of = lambda a: framework.of(a) if isinstance(a, np.ndarray) else a  # noqa: E731
    results = entry(*map(of, arrays), **{key: of(value) for key, value in named.items()})
    if isinstance(results, tuple):
        return tuple(framework.numpy(result) for result in results)
    return framework.numpy(results)


def assert_sums(dbias: np.ndarray, dx: np.ndarray, axis: int, dtype: Any) -> None:
    """dbias is the sum of dx, within the bound of a sum."""
    by_channel = np.moveaxis(dx.astype(np.float64), axis, 0)
    rows = by_channel.reshape(len(by_channel), -1)
    rounding: Any = 0.0
    if dtype.itemsize == 2:  # the terms were not rounded, dx is
        info = ml_dtypes.finfo(dtype)
        least = float(info.smallest_subnormal) / 2
        rounding = float(info.eps) * np.abs(rows).sum(1) + least * rows.shape[1]
    sums.assert_sums(fa.bias_grad.bounds, dbias, rows, rounding)
