"""The textbook's formulas, by which `check` judges us, as NumPy that is timed beside us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..check import reference
from ..measure.peers import LeftOut


def naive(name: str, derivative: bool = False) -> Callable[[Any, Any], Any]:
    """The textbook's formula of an activation, f(x, m) over a namespace `m` such as numpy."""
    formulas = reference.DERIVATIVE if derivative else reference.FORWARD
    if name not in formulas:
        raise LeftOut(f"there is no formula of {name}")
    formula: Callable[[Any, Any], Any] = formulas[name].of
    return formula


def as_numpy() -> Any:
    """NumPy, and what else the formulas of activations call."""
    return reference.NUMPY
