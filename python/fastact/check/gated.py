"""The accuracy of gated activations: against the formula in higher precision, by their bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from ..ops.bounds import GatedBounds
from ..ops.engine.fused import IDENTITY
from .common import ErrorRow, Options, Report, check_by_cases, dtypes, mixed
from .expected.gated import GatedCall

_ROWS, _MANY, _COLUMNS = 33, 16, 19  # rows, times as many
_HELD = {"limit": 1.5, "offset": 1.0}
# Of ops that take any: nothing, a kink, what is bounded, what is not. Each is checked as itself.
_ACTIVATIONS = (IDENTITY, "relu", "sigmoid", "silu", "mish")

_JUDGED = ("y", "da", "db", "dbias")


def variants(op: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What to call an op with: some activations, or the choices of one that names its own."""
    takes = op.entry_points["call"].defaults
    if "activation" in takes:
        yield from ((name, {"activation": name}) for name in _ACTIVATIONS)
    else:
        yield op.activation_of({})[0].name, {}
    for name, values in (("alpha", (1.702,)), ("approximate", ("tanh",))):
        if name in takes:
            yield from ((f"{name}={value}", {name: value}) for value in values)


def _cases(op: Any, named: dict[str, Any], dtype: Any, options: Options) -> Iterator[GatedCall]:
    rng = np.random.default_rng(0)
    rows = _ROWS * _MANY if options.exhaustive else _ROWS
    for held, has_bias in product(({}, _HELD), (False, True)):
        a, b, dy = (mixed(rng, rows, _COLUMNS).astype(dtype) for _ in range(3))
        bias = tuple(mixed(rng, _COLUMNS).astype(dtype) for _ in range(2)) if has_bias else None
        yield GatedCall(op, a, b, dy, {**named, **held}, bias)  # type: ignore[arg-type]


def _errors(call: GatedCall) -> tuple[float, ...]:
    found = dict.fromkeys(_JUDGED, 0.0)
    for name, error in call.errors(call.call(), call.backward()).items():
        short = name.split("_")[0]
        found[short] = max(found[short], error)
    return tuple(found.values())


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    for (label, named), dtype in product(variants(op), dtypes(report)):
        yield ErrorRow((label, dtype.name), partial(_cases, op, named, dtype, options), _errors)


_LEGEND = """\
The worst errors of y and of the gradients in units of their bounds and the oracle's own error, with
and without a bias, a limit and an offset. The activation's bound is the largest part of them."""

CHECK = check_by_cases(
    _rows, ["activation", "dtype"], dict.fromkeys(_JUDGED, 1), _LEGEND, of=GatedBounds
)
