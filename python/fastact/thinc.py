"""Ops for thinc and spaCy: thinc's CPU backend, with some of its functions by fastact.

    from thinc.api import get_ops, set_current_ops

    set_current_ops(get_ops("fastact"))

thinc finds it by its entry point. docs/thinc.md lists the functions that it replaces and those that
it does not. Arguments mean what they mean in thinc. If they change the function (a threshold of
mish low enough to show in float32), thinc's own function computes it.
"""

from .waiting import installed

with installed("thinc", "thinc"):
    import thinc as _thinc  # noqa: F401

from collections.abc import Callable
from typing import Any

import numpy as np
from thinc.api import Model, NumpyOps, registry
from thinc.layers import layernorm

import fastact as fa

from .interop.foreign import name_of


def _checked(function: str, *arrays: Any) -> None:
    """Refuse arrays on a GPU, which fastact could compute, as this backend promises NumPy's."""
    for array in arrays:
        if not isinstance(array, np.ndarray):
            raise TypeError(
                f"fastact.thinc: {function} must be given arrays of NumPy, got "
                f"{name_of(type(array))}; for a GPU use thinc's CupyOps"
            )


def _forward(op: Any, X: Any, inplace: bool, **options: Any) -> Any:
    _checked(op.name, X)
    return op(X, out=X if inplace else None, **options)


def _backward(op: Any, dY: Any, X: Any, inplace: bool, **options: Any) -> Any:
    _checked(f"the gradient of {op.name}", dY, X)
    if dY.dtype != X.dtype:
        dY, inplace = dY.astype(X.dtype), False
    return op.backward(dY, X, out=dY if inplace else None, **options)


# thinc's hard_sigmoid is min(max(0.2 x + 0.5, 0), 1), and so hardsigmoid of 1.2 x.
_STRETCH = 1.2

_EPS = 1e-8  # thinc's eps of a layer norm
_FLOATS = (np.float32, np.float64)
_MOST_PIECES = 4  # the most pieces of a maxout here, measured with 2 and 3
_ROWS = 128  # rows of a maxout at a time, which stay in the cache


def _stretched(op: Any, X: Any, inplace: bool = False) -> Any:
    _checked(op.name, X)
    return np.multiply(X, _STRETCH, out=X if inplace else None)


@registry.ops("FastactOps")
class FastactOps(NumpyOps):  # type: ignore[misc]
    """thinc's backend for NumPy arrays, with activations and softmax by fastact."""

    name = "fastact"

    def sigmoid(self, X: Any, *, inplace: bool = False) -> Any:
        return _forward(fa.sigmoid, X, inplace)

    def relu(self, X: Any, inplace: bool = False) -> Any:
        return _forward(fa.relu, X, inplace)

    def backprop_relu(self, dY: Any, Y: Any, inplace: bool = False) -> Any:
        return _backward(fa.relu, dY, Y, inplace)  # Y is positive where X is

    def maxout(self, X: Any) -> Any:
        """Compute maxout by NumPy, piece by piece, which vectorises; thinc goes unit by unit."""
        _checked("maxout", X)
        if X.ndim != 3 or X.dtype not in _FLOATS or not 2 <= X.shape[2] <= _MOST_PIECES:
            return super().maxout(X)
        best, which = np.empty(X.shape[:2], X.dtype), np.empty(X.shape[:2], np.int32)
        for start in range(0, len(X), _ROWS):
            rows = slice(start, start + _ROWS)
            pieces = np.ascontiguousarray(X[rows].transpose(2, 0, 1))
            np.greater(pieces[1], pieces[0], out=which[rows], casting="unsafe")
            np.maximum(pieces[0], pieces[1], out=best[rows])
            for number in range(2, len(pieces)):
                better = np.multiply(pieces[number] > best[rows], number, dtype=np.int32)
                np.maximum(which[rows], better, out=which[rows])
                np.maximum(best[rows], pieces[number], out=best[rows])
        return best, which

    def clipped_linear(
        self,
        X: Any,
        slope: float = 1.0,
        offset: float = 0.0,
        min_val: float = 0.0,
        max_val: float = 1.0,
        inplace: bool = False,
    ) -> Any:
        if (slope, offset) != (1, 0):
            return super().clipped_linear(X, slope, offset, min_val, max_val, inplace)
        return _forward(fa.hardtanh, X, inplace, min_val=min_val, max_val=max_val)

    def backprop_clipped_linear(
        self,
        dY: Any,
        X: Any,
        slope: float = 1.0,
        offset: float = 0.0,
        min_val: float = 0.0,
        max_val: float = 1.0,
        inplace: bool = False,
    ) -> Any:
        if (slope, offset) != (1, 0):
            return super().backprop_clipped_linear(dY, X, slope, offset, min_val, max_val, inplace)
        return _backward(fa.hardtanh, dY, X, inplace, min_val=min_val, max_val=max_val)

    def hard_sigmoid(self, X: Any, inplace: bool = False) -> Any:
        return _forward(fa.hardsigmoid, _stretched(fa.hardsigmoid, X, inplace), True)

    def backprop_hard_sigmoid(self, dY: Any, X: Any, inplace: bool = False) -> Any:
        dX = _backward(fa.hardsigmoid, dY, _stretched(fa.hardsigmoid, X), inplace)
        dX *= _STRETCH
        return dX

    def hard_swish(self, X: Any, inplace: bool = False) -> Any:
        Y = _forward(fa.hardswish, _stretched(fa.hardswish, X, inplace), True)
        Y /= _STRETCH
        return Y

    def backprop_hard_swish(self, dY: Any, X: Any, inplace: bool = False) -> Any:
        return _backward(fa.hardswish, dY, _stretched(fa.hardswish, X), inplace)

    def swish(self, X: Any, inplace: bool = False) -> Any:
        return _forward(fa.silu, X, inplace)

    def backprop_swish(self, dY: Any, X: Any, Y: Any, inplace: bool = False) -> Any:
        if Y.shape != X.shape:
            raise ValueError(
                f"fastact.thinc: backprop_swish: Y must have shape {X.shape}, got {Y.shape}"
            )
        return _backward(fa.silu, dY, X, inplace)

    def hard_swish_mobilenet(self, X: Any, inplace: bool = False) -> Any:
        return _forward(fa.hardswish, X, inplace)

    def backprop_hard_swish_mobilenet(self, dY: Any, X: Any, inplace: bool = False) -> Any:
        return _backward(fa.hardswish, dY, X, inplace)

    def gelu(self, X: Any, inplace: bool = False) -> Any:
        return _forward(fa.gelu, X, inplace)

    def backprop_gelu(self, dY: Any, X: Any, inplace: bool = False) -> Any:
        return _backward(fa.gelu, dY, X, inplace)

    def gelu_approx(self, X: Any, inplace: bool = False) -> Any:
        return _forward(fa.gelu, X, inplace, approximate="tanh")

    def backprop_gelu_approx(self, dY: Any, X: Any, inplace: bool = False) -> Any:
        return _backward(fa.gelu, dY, X, inplace, approximate="tanh")

    def mish(self, X: Any, threshold: float = 20.0, inplace: bool = False) -> Any:
        if threshold < 20:
            return super().mish(X, threshold, inplace)
        return _forward(fa.mish, X, inplace)

    def backprop_mish(self, dY: Any, X: Any, threshold: float = 20.0, inplace: bool = False) -> Any:
        if threshold < 20:
            return super().backprop_mish(dY, X, threshold, inplace)
        return _backward(fa.mish, dY, X, inplace)

    def softmax(
        self, x: Any, *, inplace: bool = False, axis: int = -1, temperature: float = 1.0
    ) -> Any:
        return _forward(fa.softmax, x, inplace, axis=axis, scale=1 / temperature)

    def backprop_softmax(self, Y: Any, dY: Any, *, axis: int = -1, temperature: float = 1.0) -> Any:
        return _backward(fa.softmax, dY, Y, False, axis=axis, scale=1 / temperature)


# thinc holds a backend to the annotations of its base, which name thinc's own types.
for _name, _method in vars(FastactOps).items():
    if callable(_method) and hasattr(NumpyOps, _name):
        _method.__annotations__ = getattr(NumpyOps, _name).__annotations__


# --- layers ---------------------------------------------------------------------------------------
# No backend serves the layer norm, which thinc writes in methods of arrays.


def convert(model: Any) -> int:
    """Let `fastact.layer_norm` compute a model's layer norms.

    The model is changed in place: parameters, gradients, names and saved models stay thinc's. Call
    it again on a model that was loaded or copied. With another backend it has no effect.

    Parameters
    ----------
    model : thinc.api.Model
        The model with all layers inside; for a component of spaCy, ``component.model``.

    Returns
    -------
    int
        The number of layers that were converted.

    Examples
    --------
    >>> from thinc.api import Maxout
    >>> import fastact.thinc
    >>> fastact.thinc.convert(Maxout(8, 4, normalize=True))
    1
    """
    if not isinstance(model, Model):
        raise TypeError(
            f"fastact.thinc.convert: model must be a Model of thinc, got {type(model).__name__}"
        )
    found = [node for node in model.walk() if node._func is layernorm.forward]
    for node in found:
        node._func = forward
    return len(found)


def forward(model: Any, X: Any, is_train: bool) -> tuple[Any, Callable[[Any], Any]]:
    """Compute a layer norm forward, and return the function that backpropagates."""
    if not isinstance(model.ops, FastactOps):
        result: tuple[Any, Callable[[Any], Any]] = layernorm.forward(model, X, is_train)
        return result
    weight, bias = model.get_param("G"), model.get_param("b")
    Y, saved = fa.layer_norm.forward(X, weight, bias, eps=_EPS)

    def backprop(dY: Any) -> Any:
        dX, dweight, dbias = fa.layer_norm.backward(dY, *saved)
        model.inc_grad("G", dweight)
        model.inc_grad("b", dbias)
        return dX

    return Y, backprop
