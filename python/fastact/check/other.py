"""The accuracy of ops whose family has no check of its own, along each axis that they may have."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ..measure.cases import arguments, needed
from .common import Drawn, ErrorRow, Options, Report, check_by_cases, dtypes, mixed
from .expected import Call

_ROWS, _MANY, _COLUMNS = 34, 16, 38  # rows, times as many


def _cases(op: Any, dtype: Any, options: Options) -> Iterator[Call]:
    make = Drawn(mixed, dtype)
    shape = (_ROWS * _MANY if options.exhaustive else _ROWS, _COLUMNS)
    for axis in range(len(shape)) if "axis" in op.entry_points["call"].defaults else (None,):
        named = needed(op) if axis is None else {**needed(op), "axis": axis}
        given = arguments(op, "call", shape, dtype.name, named, make, op.differentiated)
        yield Call(
            op, shape, named | given, arguments(op, "backward", shape, dtype.name, named, make)
        )


def _errors(call: Call) -> tuple[float, ...]:
    found = call.errors()
    gradients = [found.pop(name, 0.0) for name in call.op.gradients]
    return max(found.values()), max(gradients)


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    for dtype in dtypes(report):
        yield ErrorRow((dtype.name,), partial(_cases, op, dtype, options), _errors)


_LEGEND = "The worst errors of results and of gradients, in units of their bounds."

CHECK = check_by_cases(_rows, ["dtype"], {"results": 1, "gradients": 1}, _LEGEND, of=object)
