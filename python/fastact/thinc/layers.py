"""Layers of thinc that no backend serves: its layer norm is written in methods of arrays."""

from collections.abc import Callable
from typing import Any

from thinc.api import Model
from thinc.layers import layernorm

import fastact as fa

from .ops import FastactOps

_EPS = 1e-8  # thinc's


def convert(model: Any) -> int:
    """Let a model's layer norms be computed by `fastact.layer_norm`.

    In place: parameters, gradients, names and saved models stay thinc's. Call it once more on a
    model that was loaded or copied. Where the current backend is not NumPy's, it has no effect.

    Parameters
    ----------
    model : thinc.api.Model
        The model, with all layers inside; of a component of spaCy's ``component.model``.

    Returns
    -------
    int
        How many layers were converted now.

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
    """A layer norm forward, and the function that backpropagates."""
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
