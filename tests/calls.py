"""Ways to call each op, by the sample of its spec, on data of two axes."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import fastact as fa
from fastact import _cpu
from fastact.measure.cases import bound, sample
from fastact.ops.engine.op import arrays_of

OPS = list(fa.ops.values())
parts = arrays_of


def forward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """The op with all that it takes; `out` may be added."""
    made: Callable[..., Any] = op.bound("call", sample(op, x, dy))
    return made


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
        dys = [array.astype(dtype) for array in map(np.asarray, arrays_of(result))]
        saved = [np.asarray(v) if isinstance(v, np.generic) else v for v in saved]
        bound = back(op, named, saved, dys)
    elif entry == "quantized":
        fixed = {**dict.fromkeys(op.written, np.ones(4, dtype)), "training": False}
        bound = op.bound("call", {**named, **fixed} if op.written else named)
    else:
        bound = op.bound(entry, named)
    return bound.args, bound.keywords


def incoming(op: Any, dys: Sequence[Any]) -> dict[str, Any]:
    """The gradients of the results, by whichever names backward takes them."""
    by_name = {f"d{n}": dy for n, dy in zip(op.results, dys, strict=True)}
    return {"dy": tuple(dys) if len(dys) > 1 else dys[0], **by_name}


def back(op: Any, named: dict[str, Any], saved: Any, dys: Sequence[Any]) -> Any:
    """A call of backward for what forward saved, given the gradients of the results."""
    kept = dict(zip(op.saves, saved, strict=True))
    return op.bound("backward", {**named, **incoming(op, dys), **kept})


def uncached(run: Callable[[], Any]) -> Any:
    """Run it without recorded calls."""
    _cpu.enable_call_cache(False)
    try:
        return run()
    finally:
        _cpu.enable_call_cache(True)
