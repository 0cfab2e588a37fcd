"""The functions of thinc's backend that ops of fastact compute.

thinc's other arguments mean what they mean there; a function that they make another one of, as a
threshold of mish below that at which float32 can tell, is thinc's own.
"""

from typing import Any

import numpy as np
from thinc.api import NumpyOps, registry

import fastact as fa

from ..interop.foreign import name_of


def _checked(function: str, *arrays: Any) -> None:
    """A GPU's arrays would be computed, but this backend promises NumPy's."""
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
