"""The benchmark of rotary embeddings, of tokens with heads of 128 elements.

A call reads x and writes y; the angles of a token are the same for its heads. As models do it, the
whole head is turned, as halves and as neighbours. Behind a norm backward reads x, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..shapes import hidden, shape_label
from .work import BYTES, ITEM, Asked, Case, Family

_HEAD = 128


def _is_normed(op: Any) -> bool:
    return "weight" in op.saves


def _cases(asked: Asked) -> list[Case]:
    found = []
    for size in asked.sizes or (BYTES // 2 // ITEM[asked.dtype],):
        tokens, columns = hidden(size)
        head = min(_HEAD, columns)
        shape = tokens, columns // head, head
        small = tokens * head * ITEM[asked.dtype]  # cosines and sines
        accesses = 2 + (_is_normed(asked.op) and not asked.forward)
        found.append(asked.case(shape, accesses, small=small))
        label = f"{shape_label(shape)}, interleaved"
        found.append(asked.case(shape, accesses, label, small=small, options={"interleaved": True}))
    return found


def _prepared(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    """Angles of a token."""
    return {n: a[:, :1] if n in ("cos", "sin") else a for n, a in arrays.items()}


# --- the same by torch and jax --------------------------------------------------------------------


def _formula(case: Case, stack: Callable[..., Any], join: Callable[..., Any], norm: Any) -> Any:
    def turned(x: Any, cos: Any, sin: Any, weight: Any = None) -> Any:
        if _is_normed(case.op):
            x = norm(x, x.shape[-1:], weight, 1e-6)
        if case.options.get("interleaved"):
            a, b = x[..., ::2], x[..., 1::2]
            return stack((a * cos - b * sin, b * cos + a * sin), -1).reshape(x.shape)
        half = x.shape[-1] // 2
        a, b = x[..., :half], x[..., half:]
        return join((a * cos - b * sin, b * cos + a * sin), -1)

    return turned


def _rms_norm(x: Any, shape: Any, weight: Any, eps: float) -> Any:
    return x / ((x * x).mean(-1, keepdims=True) + eps) ** 0.5 * weight


ROTARY = Family(
    _cases,
    lambda torch, case: _formula(case, torch.stack, torch.cat, torch.nn.functional.rms_norm),
    optional=("weight",),
    prepared=_prepared,
    constant=frozenset({"cos", "sin"}),
    jax=lambda jax, case: _formula(case, jax.numpy.stack, jax.numpy.concatenate, _rms_norm),
)
