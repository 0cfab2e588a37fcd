"""The accuracy of gated activations: against the formula in higher precision, by their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from ..measure.cases import arguments
from ..ops.bounds import GatedBounds
from ..ops.engine.fused import IDENTITY
from .common import Drawn, ErrorRow, Options, Report, check_by_cases, dtypes, mixed
from .expected import Call

_ROWS, _MANY, _COLUMNS = 33, 16, 19  # rows, times as many
_HELD = {"limit": 1.5, "offset": 1.0}
# Ops that take any activation get none, a kink, a bounded and two unbounded ones: each activation
# is checked by an op of its own.
_ACTIVATIONS = (IDENTITY, "relu", "sigmoid", "silu", "mish")


def variants(op: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give arguments for an op: some activations, or the choices of an op that names its own."""
    takes = op.entry_points["call"].defaults
    if "activation" in takes:
        yield from ((name, {"activation": name}) for name in _ACTIVATIONS)
    else:
        yield op.activation_of({})[0].name, {}
        for named in op.trials:
            yield ", ".join(f"{name}={value}" for name, value in named.items()), named


def _cases(op: Any, named: dict[str, Any], dtype: Any, options: Options) -> Iterator[Call]:
    make = Drawn(mixed, dtype)
    shape = (_ROWS * _MANY if options.exhaustive else _ROWS, _COLUMNS)
    for held, optional in product(({}, _HELD), ((), ("bias",))):
        way = {**named, **held}
        given = arguments(op, "call", shape, dtype.name, way, make, optional)
        yield Call(op, shape, way | given, arguments(op, "backward", shape, dtype.name, way, make))


def _errors(call: Call) -> tuple[float, ...]:
    found = call.errors()
    return (found["y"], max(found.get(k, 0.0) for k in ("dx", "da", "db")), found.get("dbias", 0.0))


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    for (label, named), dtype in product(variants(op), dtypes(report)):
        yield ErrorRow((label, dtype.name), partial(_cases, op, named, dtype, options), _errors)


_LEGEND = """\
The worst errors of y and of the gradients (dx, or da and db) in units of their bounds, with
and without a bias, a limit and an offset. The activation's bound is the largest part of them."""

CHECK = check_by_cases(
    _rows, ["activation", "dtype"], {"y": 1, "dx": 1, "dbias": 1}, _LEGEND, of=GatedBounds
)
