"""Tangents of ops, and changes of their gradients, composed of XLA's own operations.

By the formulas of `fastact.derivatives`; the results and the gradients themselves are the op's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..derivatives import formulas, gates
from ..derivatives.operations import Operations
from .axes import alike

#: The functions of ops for arrays of JAX, by their names.
FUNCTIONS: dict[str, Any] = {}


#: Hides from XLA that it knows arrays. The oldest JAX has no rule for the tangents of its barrier.
_held: Any = jax.custom_jvp(jax.lax.optimization_barrier)
_held.defjvp(lambda primals, tangents: (_held(*primals), *tangents))


class _Jax(Operations):
    """The operations of XLA, with the function of an activation, and JAX's own gradients."""

    def constant(self, x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        return FUNCTIONS[op.name](x, **parameters)

    def sloped(self, slopes: Callable[..., Sequence[Any]], *arrays: Any) -> Any:
        total: Any = jax.custom_jvp(lambda *arrays: sum(slopes(*arrays)))

        def moved(primals: Any, tangents: Any) -> tuple[Any, Any]:
            pairs = zip(tangents, slopes(*primals), strict=True)
            return total(*primals), sum(t * slope for t, slope in pairs)

        total.defjvp(moved)
        return total(*arrays)

    def vjp(self, f: Callable[..., Any], arrays: Sequence[Any], incoming: Sequence[Any]) -> Any:
        # Zeros of the formula's own vary, too, where the results' gradients do.
        known = [dy for dy in incoming if dy is not None]
        # XLA multiplies constants by each other, as the factors of squares, which overflow. It must
        # take no array for one, not even where a traced function closes over it.
        given = alike([*arrays, *known])[: len(arrays)]
        results, back = jax.vjp(f, *_held(given))
        pairs = zip(incoming, results, strict=True)
        return back(
            tuple(jnp.zeros_like(y) if dy is None else dy.astype(y.dtype) for dy, y in pairs)
        )


_JAX = _Jax(jnp)


def gradients(
    op: Any, incoming: Sequence[Any], named: Mapping[str, Any], dtypes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the gradients by the names of these arguments, of these dtypes."""
    is_double = "float64" in dtypes.values()
    named = {n: _JAX.wide(v, is_double) for n, v in named.items()}
    found = formulas.gradients(
        op, [_JAX.wide(dy, is_double) for dy in incoming], named, _JAX, dtypes
    )
    return {name: found[name].astype(dtype) for name, dtype in dtypes.items()}


def tangent(op: Any, tangents: Mapping[str, Any], named: Mapping[str, Any], dtype: Any) -> Any:
    """Return the tangent of the activated gates, by the arguments and their tangents."""
    tangents, named = ({n: _JAX.wide(v) for n, v in each.items()} for each in (tangents, named))

    def kept(by: Mapping[str, Any]) -> Any:
        return gates.kept(op, {**named, **by}, _JAX)

    moved = jax.jvp(kept, ({n: named[n] for n in tangents},), (tangents,))[1]
    return moved.astype(dtype)
