"""Ways to call each op, by the sample of its spec, on data of two axes."""

from collections.abc import Callable
from typing import Any

import numpy as np

import fastact as fa
from fastact import _cpu
from fastact.measure.cases import bound, example, sample
from fastact.ops.engine.op import arrays_of

OPS = list(fa.ops.values())
parts = arrays_of


def forward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """The op with all that it takes; `out` may be added."""
    return example(op, x, dy)


def backward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """Its backward; `out` and `accumulate` may be added.

    dy goes back where the result has its shape, and else the result itself.
    """
    named = sample(op, x, dy)
    result, _ = op.bound("forward", named)()
    gradients: dict[str, Any] = {}
    for name, part in zip(op.results, arrays_of(result), strict=True):
        like_x = part.astype(x.dtype)
        gradients[f"d{name}"] = dy if like_x.shape == dy.shape and not gradients else like_x
    several = tuple(gradients.values())
    dys = {"dy": several if len(several) > 1 else several[0]}  # where that is its name
    return bound(op, "backward", named, {**dys, **gradients})


def arguments_of(op: Any, entry: str, dtype: Any) -> Any:
    """Positional and keyword arguments of an entry point, of NumPy's arrays."""
    x, dy = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(dtype)
    named = sample(op, x, dy)
    if entry == "backward":
        result, saved = op.bound("forward", named)()
        gradients = tuple(array.astype(dtype) for array in map(np.asarray, arrays_of(result)))
        incoming = {f"d{n}": g for n, g in zip(op.results, gradients, strict=True)}
        incoming.setdefault("dy", gradients if len(gradients) > 1 else gradients[0])
        named = {**named, **incoming, **dict(zip(op.saves, saved, strict=True))}
    bound = op.bound(entry, named)
    return bound.args, bound.keywords


def uncached(run: Callable[[], Any]) -> Any:
    """Run it without recorded calls."""
    _cpu.enable_call_cache(False)
    try:
        return run()
    finally:
        _cpu.enable_call_cache(True)
