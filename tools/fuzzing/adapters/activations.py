"""Element-wise activations."""

from __future__ import annotations

from typing import Any

import numpy as np

import fastact as fa

from ..cases import Draw, Number, Request, computed_in, number
from ..judge import Expected, ulp
from ..oracle import evaluate, slack, wide
from .base import Adapter, added_to, full

#: Values of the parameters: the defaults, zero where that is allowed, far ones, both signs.
_EDGES = {
    "negative_slope": (0.01, 0, 1, -0.5, 0.25, 3),
    "alpha": (1, 0.5, 2, -1.5, 0.1),
    "beta": (1, 0.5, 2, 3),
    "lambd": (0.5, 0, 1, 2),
    "min_val": (-1, 0, -0.5, -3),
    "max_val": (1, 0, 0.5, 6),
}
_VALUES = ("wide", "wide", "wide", "specials", "exponents", "huge", "plain")


def allowed(
    op: Any, entry: str, x: Any, exact: Any, dtype: np.dtype[Any], device: bool = False,
    parameters: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """How far off f(x) or f'(x) may be in the type that it is computed in."""
    bounds = op.bounds
    scaled = bounds.of_scaling(x, exact, dtype, parameters or {})
    before = bounds.before_rounding if entry == "forward" else bounds.slope_before_rounding
    return before(exact, dtype, device) + scaled + slack(op.name, x, exact, dtype)


def parameters(op: Any, draw: Draw, share: float = 0.4) -> dict[str, Any]:
    """Some of an op's parameters by keyword, mostly none."""
    named: dict[str, Any] = {}
    for name in op.parameters:
        if not draw.chance(share):
            continue
        if name in op.choices:
            named[name] = draw.r.choice(sorted(op.choices[name]))
        else:
            named[name] = number(draw.r, *_EDGES.get(name, (op.parameters[name],)))
    numbers = numbers_of(op, named)
    if any(not holds(**numbers) for _, holds in op.rules):
        return {}
    return named


def numbers_of(op: Any, named: dict[str, Any]) -> dict[str, float]:
    """The numeric parameters in full."""
    values = {k: v.value if isinstance(v, Number) else v for k, v in named.items()}
    return {k: values.get(k, v) for k, v in op.parameters.items() if k not in op.choices}


def given_numbers(op: Any, named: dict[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """The parameters that differ from their defaults, as the kernels have them."""
    compute = computed_in(dtype).type
    found = {}
    for name in op.parameters:
        if name in named:
            value = named[name].value if isinstance(named[name], Number) else named[name]
            if value != op.parameters[name]:
                found[name] = value if isinstance(value, str) else float(compute(value))
    return found


class Activations(Adapter):
    def sample(self, op: Any, draw: Draw) -> Request:
        entry = draw.r.choice(("call", "call", "forward", "backward", "backward"))
        shape = draw.shape()
        x = draw.leader("x", shape, draw.r.choice(_VALUES))
        named = parameters(op, draw)
        args: tuple[Any, ...] = (x,)
        places = {0: (x,)}
        if entry == "backward":
            dy = draw.array("dy", shape, draw.r.choice(("plain", "wide", "specials")), number=True)
            args, places = (dy, x), {0: (dy, x)}
        forbidden = (x,) if entry == "forward" and "x" in op.saves else ()
        outs = draw.outs(
            [("y", shape, draw.dtype)],
            {} if forbidden else places,
            forbidden=forbidden,
            accumulates=entry == "backward",
        )
        return Request(
            op.name, entry, draw.framework, draw.dtype, args, named, notes={"x": x}, **outs
        )

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        op, dtype = fa.ops[request.op], request.dtype
        x = wide(full(request.notes["x"], values), dtype)
        given = given_numbers(op, request.named, dtype)
        # Infinities with other than the default parameters are beyond the oracle.
        judged = np.isfinite(x) if given else None
        nan = np.isnan(x)
        device = request.framework == "emulated"
        if request.entry != "backward":
            y = evaluate("forward", op.name, x, dtype, given)
            error = allowed(op, "forward", x, y, dtype, device, given)
            found = Expected(y, error, dtype.itemsize == 2, judged, nan)
            return [found] if request.entry == "call" else [found, None]
        dy = wide(full(request.args[0], values), dtype)
        with np.errstate(all="ignore"):
            slope = evaluate("derivative_by_saved", op.name, x, dtype, given)
            product = dy * slope
            error = np.abs(dy) * allowed(op, "backward", x, slope, dtype, device, given)
            if dtype.itemsize == 2 or request.accumulate:
                error = error + ulp(product, computed_in(dtype)) / 2
            total = product + wide(added_to(request, values, 0), dtype)
            if dtype.itemsize == 2 and request.accumulate:
                error = error + ulp(total, computed_in(dtype)) / 2
        # A slope too large for the type that it is computed in is infinite, and times 0 a NaN.
        usual = np.isfinite(dy) & (np.abs(slope) <= np.finfo(computed_in(dtype)).max)
        judged = usual if judged is None else usual & judged
        return [Expected(total, error, True, judged, nan)]

    def holds(self, request: Request, name: str, value: float) -> bool:
        op = fa.ops[request.op]
        if name not in op.parameters:
            return True
        numbers = numbers_of(op, {**request.named, name: Number(value)})
        return all(holds(**numbers) for _, holds in op.rules)
