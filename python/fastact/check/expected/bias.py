"""bias_act, also to the bits of the activation itself; the gradients of broadcasting are sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...measure.cases import DOUBLE, Case
from ...measure.sum_axes import is_sum
from ...ops.bounds import computed_in
from ...ops.engine.fused import IDENTITY
from ...ops.engine.op import ops
from .. import reference
from . import activations, reductions
from .common import Expected, wide, widened


def sums(x: Any, bias: Any, axis: int, residual: Any = None) -> Any:
    """Add up x, bias and residual in the type that is computed in."""
    compute = computed_in(x.dtype)
    z = x.astype(compute) + reference.along(bias.astype(compute), x.ndim, axis)
    return z if residual is None else z + residual.astype(compute)


def expected_y(name: str, x: Any, bias: Any, axis: int, residual: Any = None) -> NDArray[Any]:
    """y by the activation itself, of sums in the type that is computed in."""
    z: NDArray[Any] = sums(x, bias, axis, residual)
    return z if name == IDENTITY else np.asarray(ops[name](z))


def expected_dx(
    name: str, dy: Any, x: Any, bias: Any, axis: int, residual: Any = None
) -> NDArray[Any]:
    dy = dy.astype(computed_in(x.dtype))
    if name == IDENTITY:
        return np.asarray(dy)
    op, z = ops[name], sums(x, bias, axis, residual)
    if "x" in op.saves:
        return np.asarray(op.backward(dy, z))
    # The activation's own backward is of y; a gate's is of x, and its other factor is 1 here.
    return np.asarray(ops["gated"].backward(dy, z, np.ones_like(z), activation=name)[0])


def expected(case: Case) -> dict[str, Expected]:
    """y, or dx and dbias, of the bits of z = x + bias + residual."""
    if is_sum(case.op):
        return reductions.expected(case)
    dtype, axis = case.dtype, case.option("axis")
    name = getattr(case.option("activation"), "name", case.option("activation"))
    op = None if name == IDENTITY else ops[name]
    given = {k: case.array(k) for k in ("x", "bias", "residual") if case.has(k)}
    # Backward of the identity is given no x.
    z = wide(sums(axis=axis, **given) if "x" in given else case.array("dy"), dtype)
    if case.entry != "backward":
        return {"y": activations.value(op, z, case)}
    dx, of_term = activations.gradient(op, widened(case, "dy"), z, case)
    others = tuple(i for i in range(z.ndim) if i != axis % z.ndim)
    total, size = dx.exact.sum(others), np.abs(dx.exact).sum(others)
    error = of_term.sum(others) + case.op.bounds.dbias.absolute * size
    judged = dx.judged & np.isfinite(dx.exact)
    dbias = Expected(total, error, True, judged.all(others) & (size < 1e300), adds=DOUBLE)
    return {"dx": dx} | ({"dbias": dbias} if case.has("bias") else {})
