"""One way to call each op, of every family but the activations, on data of two axes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import fastact as fa
from fastact import Moments

Named = dict[str, Any]


def _more(x: np.ndarray, dy: np.ndarray) -> dict[str, tuple[tuple[Any, ...], Named, Named]]:
    """What follows x, what is told by keyword, and what of that backward is told again."""
    w = np.linspace(0.5, 1.5, x.shape[1]).astype(x.dtype)
    b, axis = w - x.dtype.type(1), {"axis": 0}

    def gates(count: int, *biases: str) -> Named:
        return dict.fromkeys(biases, np.tile(w, count))

    return {
        "bias_act": ((b,), {"activation": "mish", "residual": dy}, {"activation": "mish"}),
        "bias_grad": ((), {}, {}),
        "unbroadcast": (((len(x), 1),), {}, {}),
        "sum": ((), axis, axis),
        "sum_squares": ((), axis, axis),
        "mean_var": ((), axis, axis),
        "moments": ((), axis, axis),
        "layer_norm": ((w, b), {}, {}),
        "rms_norm": ((w,), {}, {}),
        "add_layer_norm": ((dy, w, b), {}, {}),
        "add_rms_norm": ((dy, w), {}, {}),
        "group_norm": ((2, w, b), {}, {}),
        "instance_norm": ((w, b), {}, {}),
        "batch_norm": ((None, None, w, b), {"training": True}, {"training": True}),
        "norm_apply": ((b, w, w, b), {"axis": 1}, {"axis": 1}),
        "lstm_gates": ((dy,), gates(4, "bias"), {}),
        "gru_gates": ((np.tile(dy, 3), dy), gates(3, "bias", "recurrent_bias"), {}),
        "gru_reset": ((dy,), gates(1, "bias"), {}),
        "gru_blend": ((dy,), gates(2, "bias"), {}),
    }


#: Gates that are packed in what comes first.
_GATES = {"lstm_gates": 4, "gru_gates": 3, "gru_reset": 1, "gru_blend": 2}


def _first(op: Any, x: np.ndarray) -> np.ndarray:
    """x, and side by side as many of it as there are gates."""
    return np.tile(x, _GATES[op.name]) if op.name in _GATES else x


_NAMES = frozenset(_more(np.ones((2, 2)), np.ones((2, 2))))
#: The ops that this module can call, activations included.
OPS = [op for op in fa.ops.values() if op.family == "activations" or op.name in _NAMES]


def parts(result: Any) -> tuple[Any, ...]:
    """The arrays of a result."""
    if isinstance(result, Moments):
        return result.mean, result.m2
    return result if isinstance(result, tuple) else (result,)


def forward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """The op with all that it takes; `out` may be added."""
    more, told, _ = _more(x, dy).get(op.name, ((), {}, {}))
    return partial(op, _first(op, x), *more, **told)


def backward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """Its backward; `out` and `accumulate` may be added. dy: for results of x's shape."""
    more, told, again = _more(x, dy).get(op.name, ((), {}, {}))
    result, saved = op.forward(_first(op, x), *more, **told)
    gradients = tuple(part.astype(x.dtype) for part in parts(result))
    if op.name in ("mean_var", "moments"):
        return partial(op.backward, gradients, *saved, **again)
    gradient = dy if gradients[0].shape == x.shape else gradients[0]
    if op.name == "lstm_gates":
        return partial(op.backward, gradient, gradients[1], *saved, **again)
    return partial(op.backward, gradient, *saved, **again)
