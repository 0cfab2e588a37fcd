"""The accuracy of the recurrent gates: states and gradients in units of their stated bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from ..measure.cases import arguments
from ..ops.bounds import GateBounds
from .common import Drawn, ErrorRow, Options, Report, check_by_cases, dtypes
from .expected import Call

_SHAPES = ((37, 300), (300, 20))
_MANY = 16  # times as many rows
_SCALES = (1.0, 30.0)  # of the summands: gates that open and shut, and gates that never move


def _steps(op: Any, dtype: Any, options: Options) -> Iterator[Call]:
    """Normal numbers, with a recurrent projection and both biases."""
    make = Drawn(lambda rng, *shape: rng.normal(size=shape), dtype)
    optional = ("recurrent", "bias", "recurrent_bias")
    for (rows, columns), scale, recompute in product(_SHAPES, _SCALES, (False, True)):
        shape = (rows * _MANY if options.exhaustive else rows, columns)
        given = arguments(op, "call", shape, dtype.name, {}, make, optional)
        for name in {"gates", "recurrent"} & given.keys():
            given[name] = (given[name] * dtype.type(scale)).astype(dtype)
        dys = {f"d{name}": make.random(shape, dtype.name) for name in op.results}
        yield Call(op, shape, {**given, "recompute": recompute}, dys)


def _errors(call: Call) -> tuple[float, float, float]:
    """Give the worst errors of states, of kept gates and of gradients."""
    found, op = call.errors(), call.op
    gradients = max(found[name] for name in op.gradients if name in found)
    return max(found[name] for name in op.results), found.get("gates", 0.0), gradients


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    for dtype in dtypes(report):
        yield ErrorRow((dtype.name,), partial(_steps, op, dtype, options), _errors)


_LEGEND = """\
The worst errors of what a step gives, of the activated gates that it keeps and of the gradients,
dbias among them, in units of their bounds, which the docstrings tell, and the oracle's own error:
the rounding to the dtype is a part of them, and 16-bit results use all of it."""

CHECK = check_by_cases(
    _rows,
    ["dtype"],
    {"states": 1, "gates": 1, "gradients": 1},
    _LEGEND,
    of=GateBounds,
)
