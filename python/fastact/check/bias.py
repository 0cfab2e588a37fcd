"""Bias + activation: the bits of the activation of the sum, and dbias as a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..measure.cases import Case
from ..ops.bounds import computed_in
from ..ops.engine.fused import IDENTITY
from ..ops.engine.op import ops
from .expected import Call, expected
from .expected.bias import sums


def expected_y(name: str, x: Any, bias: Any, axis: int, residual: Any = None) -> NDArray[Any]:
    """y by the activation itself, of sums in the type that is computed in."""
    z: NDArray[Any] = sums(x, bias, axis, residual)
    return z if name == IDENTITY else np.asarray(ops[name](z))


def expected_dx(
    name: str, dy: Any, x: Any, bias: Any, axis: int, residual: Any = None
) -> NDArray[Any]:
    """dx, as above."""
    wide: NDArray[Any] = dy.astype(computed_in(x.dtype))
    if name == IDENTITY:
        return wide
    op, z = ops[name], sums(x, bias, axis, residual)
    if "x" in op.saves:
        return np.asarray(op.backward(wide, z))
    # The activation's own backward is of y; a gate's is of x, and its other factor is 1 here.
    return np.asarray(ops["gated"].backward(wide, z, np.ones_like(z), activation=name)[0])


def _differ(result: NDArray[Any], expected: NDArray[Any]) -> int:
    """How many elements have other bits than what is expected, rounded once."""
    unsigned = f"u{result.itemsize}"
    rounded = expected.astype(result.dtype)
    return int(np.count_nonzero(result.view(unsigned) != rounded.view(unsigned)))


class BitsOfSums(Call):
    """A call whose results have the bits of the activation itself."""

    def errors(self) -> dict[str, float]:
        """Count the wrong elements of y and dx; give the share of the bound that dbias has."""
        op, given = self.op, {**self.named, **self.incoming}
        y, (dx, dbias) = op.bound("call", self.named)(), op.bound("backward", given)()
        exact = expected(Case(op, "backward", self.shape, dx.dtype, given))["dbias"]
        name = self.named["activation"]
        of: list[Any] = [self.named.get(n) for n in ("x", "bias", "axis", "residual")]
        of_dx = expected_dx(name, self.incoming["dy"], *of)
        return {
            "y": _differ(y, expected_y(name, *of)),
            "dx": _differ(dx, of_dx),
            "dbias": exact.error(dbias),
        }
