"""What XLA's own operations compute of an op: its tangents, and how gradients change.

By the formulas of `measure/composed.py`; the results and the gradients themselves are the op's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..measure import composed
from . import gates


class _Jax:
    """`composed.Operations`, with the function of an activation."""

    exp: Any = staticmethod(jnp.exp)
    log: Any = staticmethod(jnp.log)
    sqrt: Any = staticmethod(jnp.sqrt)
    isnan: Any = staticmethod(jnp.isnan)
    where: Any = staticmethod(jnp.where)

    def __init__(self, function_of: Callable[[Any], Callable[..., Any]]) -> None:
        self.function_of = function_of

    def zeros(self, shape: Sequence[int], like: Any) -> Any:
        return jnp.zeros(tuple(shape), like.dtype)

    def arange(self, count: int, like: Any) -> Any:
        return jnp.arange(count)

    def sum(self, x: Any, axes: tuple[int, ...]) -> Any:
        return jnp.sum(x, axes, keepdims=True) if axes else x

    def max(self, x: Any, axes: tuple[int, ...]) -> Any:
        return jnp.max(x, axes, keepdims=True) if axes else x

    def constant(self, x: Any) -> Any:
        return jax.lax.stop_gradient(x)

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        return self.function_of(op)(x, **parameters)

    def of_ones(self, op: Any, x: Any, options: Mapping[str, Any]) -> Any:
        return self.constant(self.call(op, jnp.ones(x.shape, x.dtype), options))

    def vjp(self, f: Callable[..., Any], arrays: Sequence[Any], incoming: Sequence[Any]) -> Any:
        results, back = jax.vjp(f, *arrays)
        pairs = zip(incoming, results, strict=True)
        return back(
            tuple(jnp.zeros_like(y) if dy is None else dy.astype(y.dtype) for dy, y in pairs)
        )


def _wide(value: Any) -> Any:
    is_short = isinstance(value, jax.Array) and value.dtype.itemsize == 2
    return value.astype(jnp.float32) if is_short and value.dtype.kind in "fV" else value


def gradients(
    op: Any,
    incoming: Sequence[Any],
    named: Mapping[str, Any],
    dtypes: Mapping[str, Any],
    function_of: Callable[..., Any],
) -> dict[str, Any]:
    """The gradients by the names of these arguments, of these dtypes."""
    named = {n: _wide(v) for n, v in named.items()}
    incoming = [_wide(v) for v in incoming]
    if op.family == "gates":
        found = gates.gradients(op, incoming, named)
    else:
        found = composed.gradients(op, incoming, named, _Jax(function_of))
    return {name: found[name].astype(dtype) for name, dtype in dtypes.items()}


def moves(op: Any, name: str) -> bool:
    """Whether formulas take what `forward` makes and saves for more than a constant."""
    return op.family == "gates" and name == "gates"


def tangent(op: Any, tangents: Mapping[str, Any], named: Mapping[str, Any], dtype: Any) -> Any:
    """The tangent of the same, by the tangents of the arguments."""
    tangents, named = ({n: _wide(v) for n, v in each.items()} for each in (tangents, named))
    return gates.tangent(op, tangents, named).astype(dtype)
