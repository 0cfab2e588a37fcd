"""The benchmark of reductions: x is read once, and what a sum writes is small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import shapes
from .workloads import (
    Call,
    Case,
    Family,
    LeftOut,
    Options,
    Workload,
    as_tensor,
    ask_peers,
    jax_call,
    open_jax,
    open_torch,
    ours_and_copy,
    random,
)

_BOTH = "value_and_grad"


def _cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    if op.name not in _SUMS or (op.name in _MOMENTS and direction == "backward"):
        return []
    case = partial(Case, op, direction, dtype, options.threads)
    layouts = (*shapes.REDUCED, *(shapes.MIDDLE if op.name in _MOMENTS else ()))
    found = [
        case(layout.shape, shapes.sum_label(layout.shape, axis), axis)
        for layout in shapes.chosen(layouts, options.shapes)
        for axis in layout.axes
    ]
    if direction == "backward" and hasattr(op, _BOTH):
        found += [
            case(layout.shape, f"{shapes.shape_label(layout.shape)}, {_BOTH}", variant=_BOTH)
            for layout in shapes.chosen(shapes.WEIGHTS, options.shapes)
        ]
    return found


def _work(case: Case, peers: Sequence[str]) -> Workload:
    op, x = case.op, random(case.shape, case.dtype)
    kept = shapes.kept(case.shape, case.axis)
    dy, like_x = random(kept, case.dtype, seed=1), np.empty_like(x)
    ours: Callable[..., object]
    out: tuple[NDArray[Any], ...]
    if case.variant == _BOTH:
        ours, out = partial(op.value_and_grad, x), (np.empty(kept, case.dtype), like_x)
    elif case.direction == "forward":
        ours = partial(op, x, axis=case.axis)
        results = _MOMENTS.get(op.name, (None,))
        out = tuple(np.empty(kept, dtype or case.dtype) for dtype in results)
    else:
        _, saved = op.forward(x, axis=case.axis)
        ours, out = partial(op.backward, dy, *saved, axis=case.axis), (like_x,)
    calls = ours_and_copy(ours, out, like_x, x)
    # Peers have no keyword for it: what broadcasts against x is theirs to begin with.
    axes = tuple(range(x.ndim)) if case.axis is None else case.axis
    theirs, left_out = ask_peers(_PEERS, peers, case, np.expand_dims(dy, axes), x)
    return Workload(calls | theirs, 1.0, left_out)


# --- the same by numpy, torch and jax, which call the functions alike: m is one of them -----------

#: Ops with two results, and their dtypes, None for x's; torch has a function of its own for them.
_MOMENTS: dict[str, tuple[Any, ...]] = {
    "mean_var": (None, None),
    "moments": (np.float64, np.float64),
}


def _var_mean(x: Any, axis: Any, m: Any) -> Any:
    if hasattr(m, "var_mean"):
        return tuple(reversed(m.var_mean(x, axis, correction=0)))
    return m.mean(x, axis=axis), m.var(x, axis=axis)


def _moments(x: Any, axis: Any, m: Any) -> Any:
    mean, var = _var_mean(x, axis, m)
    return mean, var * (prod(x.shape) / prod(mean.shape))


def _no_gradient(dy: Any, x: Any, m: Any) -> Any:
    raise LeftOut("only forward is measured")


#: The sum of x over `axis`, and the gradient for a dy that broadcasts against x. The latter is
#: written out, as ours is; a peer could leave a mere sum's a view.
_SUMS: dict[str, tuple[Callable[[Any, Any, Any], Any], Callable[[Any, Any, Any], Any]]] = {
    "sum": (
        lambda x, axis, m: m.sum(x, axis=axis),
        lambda dy, x, m: (m.clone if hasattr(m, "clone") else m.copy)(m.broadcast_to(dy, x.shape)),
    ),
    "sum_squares": (
        lambda x, axis, m: m.sum(m.square(x), axis=axis),
        lambda dy, x, m: 2 * x * dy,
    ),
    "mean_var": (_var_mean, _no_gradient),
    "moments": (_moments, _no_gradient),
}


def _by(m: Any, case: Case) -> Callable[[Any, Any], Any]:
    """What a peer does with dy and x."""
    total, gradient = _SUMS[case.op.name]
    if case.variant == _BOTH:
        return lambda dy, x: (total(x, None, m), 2 * x)
    if case.direction == "forward":
        return lambda dy, x: total(x, case.axis, m)
    return lambda dy, x: gradient(dy, x, m)


def _numpy(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    return partial(_by(np, case), dy, x)


def _torch(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    torch = open_torch(case.threads)
    return partial(_by(torch, case), as_tensor(torch, dy), as_tensor(torch, x))


def _jax(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    jax = open_jax()
    return jax_call(jax, _by(jax.numpy, case), dy, x)


_PEERS = {"numpy": _numpy, "torch": _torch, "jax": _jax}

#: For all families that sum.
NOTE = """\
Sums are held against a copy of the array that they read, which reads as much and writes as much
again: 0.5 is the speed of memory that is only read. In the same way the gradient of a sum is held
against a copy of the array that it writes."""

FAMILY = Family(_cases, _work, note=NOTE)
