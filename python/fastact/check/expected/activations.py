"""Element-wise activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...measure.cases import Case
from ...ops.bounds import computed_in
from .. import reference
from .common import Expected, ulp, widened


def allowed(
    op: Any, entry: str, x: Any, exact: Any, dtype: np.dtype[Any], on_gpu: bool = False,
    parameters: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    """How far off f(x) or f'(x) may be in the type that it is computed in; 0 for the identity."""
    if op is None:
        return np.zeros(np.shape(exact))
    bounds = op.bounds
    other = bounds.of_other(x, exact, dtype, parameters or {})
    of = "forward" if entry == "forward" else "derivative"
    return bounds.before_rounding(exact, dtype, on_gpu, of) + other


def own_parameters(op: Any, case: Case) -> dict[str, Any]:
    """An activation's parameters that differ from their defaults, as the kernels have them."""
    compute, found = computed_in(case.dtype).type, {}
    for name, usual in ({} if op is None else op.parameters).items():
        value = case.given.get(name, usual)
        if value != usual:
            found[name] = value if isinstance(value, str) else float(compute(value))
    return found


def value(op: Any, z: Any, case: Case) -> Expected:
    """f(z), for an activation of a call; None: the identity."""
    given, dtype = own_parameters(op, case), case.dtype
    y = z if op is None else reference.forward(op.name, z, **given)
    if op is not None and op.name == "celu":  # infinite as soon as the exponential is
        power = z / given.get("alpha", 1.0)
        y = np.where((z < 0) & (power > np.log(np.finfo(computed_in(dtype)).max)), -np.inf, y)
    error = allowed(op, "forward", z, y, dtype, case.on_gpu, given)
    # Infinities with other than the default parameters are beyond the oracle.
    return Expected(y, error, dtype.itemsize == 2, np.isfinite(z) if given else None, np.isnan(z))


def gradient(
    op: Any, dy: Any, z: Any, case: Case, of: Callable[..., Any] = reference.derivative
) -> tuple[Expected, Any]:
    """dy f'(z), and its error as a term of a sum. of : f' as a function of z, or of y."""
    given, dtype = own_parameters(op, case), case.dtype
    slope = 1.0 + 0 * z if op is None else of(op.name, z, **given)
    dx = dy * slope
    error = np.abs(dy) * allowed(op, "backward", z, slope, dtype, case.on_gpu, given)
    of_term = error + (0 if op is None else ulp(dx, computed_in(dtype)) / 2)
    # A slope too large for the type that it is computed in is infinite, and times 0 a NaN.
    largest = np.finfo(computed_in(dtype)).max
    usual = np.isfinite(dy) & (np.abs(slope) <= largest) & (np.isfinite(z) if given else True)
    found = Expected(dx, of_term if dtype.itemsize == 2 else error, True, usual, np.isnan(z))
    return found, of_term


def expected(case: Case) -> dict[str, Expected]:
    """y, or dx; of the second derivative ddy, which is the first one's dx of ddx."""
    op = case.op
    if not case.entry.startswith("backward"):
        return {"y": value(op, widened(case, "x"), case)}
    incoming, x = op.entry_points[case.entry].arrays[0], widened(case, op.saves[0])
    found, _ = gradient(op, widened(case, incoming), x, case, reference.derivative_by_saved)
    return {case.results[0]: found}
