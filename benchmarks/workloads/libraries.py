"""NumPy, torch and jax as one interface, over which a family writes once what a peer computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from fastact.measure.formulas import NUMPY, naive
from fastact.measure.peers import LeftOut, function_named

Function = Callable[..., Any]

#: What a NumPy user writes where that is not the textbook's formula, at the default parameters; m
#: is numpy, or jax.numpy.
IDIOMS: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda x, m: m.maximum(x, 0),
    "relu6": lambda x, m: m.clip(x, 0, 6),
    "relu2": lambda x, m: m.maximum(x, 0) ** 2,
    "leaky_relu": lambda x, m: m.where(x > 0, x, 0.01 * x),
    "hardsigmoid": lambda x, m: m.clip(x + 3, 0, 6) / 6,
    "hardtanh": lambda x, m: m.clip(x, -1, 1),
    "hardswish": lambda x, m: x * m.clip(x + 3, 0, 6) / 6,
    "hardmish": lambda x, m: x * m.clip(x + 2, 0, 2) / 2,
    "logsigmoid": lambda x, m: -m.logaddexp(0, -x),
    "softplus": lambda x, m: m.logaddexp(0, x),
    "tanhshrink": lambda x, m: x - m.tanh(x),
    "softshrink": lambda x, m: m.sign(x) * m.maximum(m.abs(x) - 0.5, 0),
    "hardshrink": lambda x, m: m.where(m.abs(x) > 0.5, x, 0),
    "logcosh": lambda x, m: m.logaddexp(x, -x) - math.log(2),
}


@dataclass(frozen=True)
class Kernel:
    """The gradient of an activation: a function of dy and of what `saved` makes of the input."""

    function: Callable[[Any, Any], Any]
    saved: Callable[[Any], Any]


class Library:
    """A library of arrays.

    module : its functions of arrays, which the three call alike but for those below.
    functional : where its activations stand.
    """

    def __init__(self, module: Any, functional: Any = None) -> None:
        self.module, self.functional = module, functional

    def activation(self, name: str) -> Function:
        """Return an activation at its default parameters."""
        return function_named(self.functional, name)

    def slope(self, name: str) -> Kernel | None:
        """Return what a library calls for the gradient of an activation, if it is one function."""
        return None

    def split(self, parts: int) -> Function:
        """Return what cuts the last axis into equal parts."""
        return lambda array: self.module.split(array, parts, -1)

    def glu(self) -> Function:
        """Return the product of the last axis's first half and the sigmoid of its second one."""
        return function_named(self.functional, "glu")

    def of_rows(self, name: str, axis: int) -> Function:
        """Return a function of the softmax family along an axis."""
        function = function_named(self.functional, name)
        return lambda x: function(x, axis)

    def cross_entropy(self) -> Function:
        """Return the mean loss of rows of logits."""
        m, logsumexp = self.module, self.of_rows("logsumexp", 1)
        return lambda logits, target: m.mean(
            logsumexp(logits) - logits[m.arange(len(target)), target]
        )


class Torch(Library):
    """torch, whose gradients are autograd's nodes, without its engine where these are a chain."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch, torch.nn.functional)

    def slope(self, name: str) -> Kernel | None:
        function = self.activation(name)

        def saved(x: Any) -> Any:
            return self.chain(function(x.detach().requires_grad_()))

        if saved(self.module.ones(1)) is None:
            return None
        return Kernel(lambda dy, nodes: self.back(dy, nodes)[0], saved)

    def chain(self, y: Any) -> list[Any] | None:
        """Return the nodes from a result back to its first input; None where these branch."""
        nodes, node = [], y.grad_fn
        while node.next_functions:
            nodes.append(node)
            node, *others = (of for of, _ in node.next_functions)
            if any(other is not None and other.next_functions for other in others):
                return None
        return nodes

    def back(self, dy: Any, nodes: Sequence[Any]) -> tuple[Any, ...]:
        """Return the gradients of the first input and of what the nodes take beside it."""
        others: list[Any] = []
        with self.module.no_grad():  # or gradients would be recorded, and be other kernels
            for node in nodes:
                found = node(dy, *[None] * (len(node._input_metadata) - 1))
                dy, *more = found if isinstance(found, tuple) else (found,)
                others += more
        return (dy, *others)

    def split(self, parts: int) -> Function:
        return lambda array: array.chunk(parts, -1)

    def of_rows(self, name: str, axis: int) -> Function:
        function = function_named(self.module, name)
        return lambda x: function(x, axis)

    def cross_entropy(self) -> Function:
        loss = self.functional.cross_entropy
        return lambda logits, target: loss(logits, target)


class Jax(Library):
    """jax: its functions of arrays are NumPy's, its activations those of jax.nn, or else idioms."""

    def __init__(self, jax: Any) -> None:
        super().__init__(jax.numpy, jax.nn)

    def activation(self, name: str) -> Function:
        known = name.replace("hard", "hard_").replace("logs", "log_s")
        in_nn = getattr(self.functional, known, None)
        if in_nn is not None:
            exact = "approximate" in signature(in_nn).parameters
            return partial(in_nn, approximate=False) if exact else in_nn
        formula = IDIOMS.get(name) or naive(name)
        return lambda x: formula(x, self.module)


def _softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - np.max(x, axis, keepdims=True))
    return e / np.sum(e, axis, keepdims=True)


def _log_softmax(x: Any, axis: int) -> Any:
    d = x - np.max(x, axis, keepdims=True)
    return d - np.log(np.sum(np.exp(d), axis, keepdims=True))


def _logsumexp(x: Any, axis: int) -> Any:
    top = np.max(x, axis, keepdims=True)
    return np.squeeze(top, axis) + np.log(np.sum(np.exp(x - top), axis))


_ROWS = {"softmax": _softmax, "log_softmax": _log_softmax, "logsumexp": _logsumexp}


class NumPy(Library):
    """NumPy, with the formulas that its users write."""

    def __init__(self) -> None:
        super().__init__(NUMPY)

    def activation(self, name: str) -> Function:
        formula = IDIOMS.get(name) or naive(name)
        return lambda x: formula(x, NUMPY)

    def slope(self, name: str) -> Kernel | None:
        formula = naive(name, derivative=True)
        return Kernel(lambda dy, x: dy * formula(x, NUMPY), lambda x: x)

    def glu(self) -> Function:
        sigmoid = self.activation("sigmoid")

        def product(x: Any) -> Any:
            half = x.shape[-1] // 2
            return x[..., :half] * sigmoid(x[..., half:])

        return product

    def of_rows(self, name: str, axis: int) -> Function:
        return partial(unless_missing(_ROWS.get(name), name), axis=axis)


def unless_missing(entry: Any, name: str) -> Any:
    """Return the entry of a table of peers, or leave the peer out."""
    if entry is None:
        raise LeftOut(f"it has no {name}")
    return entry
