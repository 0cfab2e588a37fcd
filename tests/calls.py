"""One way to call each op, by the sample of its spec, on data of two axes."""

from collections.abc import Callable
from typing import Any

import numpy as np

import fastact as fa
from fastact.ops.op import arrays_of

OPS = list(fa.ops.values())
parts = arrays_of


def forward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """The op with all that it takes; `out` may be added."""
    return op.example(x, dy)


def backward(op: Any, x: np.ndarray, dy: np.ndarray) -> Callable[..., Any]:
    """Its backward; `out` and `accumulate` may be added. dy: for results of x's shape."""
    return op.backward_example(x, dy)
