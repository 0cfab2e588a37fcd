"""The accuracy of bias + activation: the bits of the activation of the sum, and dbias as a sum."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure.cases import Case
from ..ops.bounds import BiasBounds, computed_in
from ..ops.engine.fused import activations
from ..ops.engine.op import ops
from . import reference
from .common import ErrorRow, Options, Report, check_by_cases, dtypes, mixed
from .expected import expected

_IDENTITY = "identity"
_CASES = (((301, 77), -1), ((9, 13, 23, 5), 1))  # a layer's rows, and channels first
_MANY = 16  # times as many rows

Arrays = dict[str, NDArray[Any]]


def _inputs(dtype: np.dtype[Any], options: Options) -> Iterator[tuple[int, Arrays]]:
    """The axis, and dy, x, bias and perhaps a residual."""
    rng = np.random.default_rng(0)
    for ((rows, *rest), axis), residual in product(_CASES, (False, True)):
        shape = (rows * _MANY if options.exhaustive else rows, *rest)
        names = ["dy", "x", "residual"][: 2 + residual]
        arrays = {name: mixed(rng, *shape).astype(dtype) for name in names}
        yield axis, arrays | {"bias": mixed(rng, shape[axis]).astype(dtype)}


def sums(x: Any, bias: Any, axis: int, residual: Any = None) -> Any:
    """x + bias + residual in the type that is computed in."""
    compute = computed_in(x.dtype)
    more = None if residual is None else residual.astype(compute)
    return reference.biased(x.astype(compute), bias.astype(compute), axis, more)


def expected_y(name: str, x: Any, bias: Any, axis: int, residual: Any = None) -> NDArray[Any]:
    """y by the activation itself, of such sums, in that type."""
    z: NDArray[Any] = sums(x, bias, axis, residual)
    return z if name == _IDENTITY else np.asarray(ops[name](z))


def expected_dx(
    name: str, dy: Any, x: Any, bias: Any, axis: int, residual: Any = None
) -> NDArray[Any]:
    """dx, as above."""
    wide: NDArray[Any] = dy.astype(computed_in(x.dtype))
    if name == _IDENTITY:
        return wide
    op, z = ops[name], sums(x, bias, axis, residual)
    if "x" in op.saves:
        return np.asarray(op.backward(wide, z))
    dx: NDArray[Any] = np.empty_like(z)  # its own backward is of y
    views = (_cpu.View.from_numpy(np.asarray(a)) for a in (wide, z, dx))
    _cpu.gradient_by_input(op._which, *views)
    return dx


def _differ(result: NDArray[Any], expected: NDArray[Any]) -> int:
    """How many elements have other bits than what is expected, rounded once."""
    unsigned = f"u{result.itemsize}"
    rounded = expected.astype(result.dtype)
    return int(np.count_nonzero(result.view(unsigned) != rounded.view(unsigned)))


def _errors(op: Any, activation: str, given: tuple[int, Arrays]) -> tuple[int, int, float]:
    """Wrong elements of y and dx, and the error of dbias in units of the bound."""
    axis, arrays = given
    x, bias, residual = arrays["x"], arrays["bias"], arrays.get("residual")
    named = {**arrays, "activation": activation, "axis": axis}
    y = op.bound("call", named | {"dy": None})()
    dx, dbias = op.bound("backward", named)()
    exact = expected(Case(op, "backward", x.shape, x.dtype, named))["dbias"]
    of_dx = expected_dx(activation, arrays["dy"], x, bias, axis, residual)
    return (
        _differ(y, expected_y(activation, x, bias, axis, residual)),
        _differ(dx, of_dx),
        exact.error(dbias),
    )


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    names = [_IDENTITY, *(each.name for each in activations())]
    for activation, dtype in product(names, dtypes(report)):
        yield ErrorRow(
            (activation, dtype.name),
            partial(_inputs, dtype, options),
            partial(_errors, op, activation),
        )


_LEGEND = """\
y, dx: elements that have not the bits of the activation itself, of x + bias + residual in the type
that is computed in, rounded once. dbias: its worst error in units of the bound of a sum."""

CHECK = check_by_cases(
    _rows,
    ["activation", "dtype"],
    {"y": 0, "dx": 0, "dbias": 1},
    _LEGEND,
    of=BiasBounds,
)
