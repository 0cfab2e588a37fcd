"""The benchmark of activations: forward reads x, backward dy and x; both write one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import onnx
from .libraries import Library
from .work import BYTES, Asked, Case, Family, Gradient


def _cases(asked: Asked) -> list[Case]:
    count = 2 if asked.forward else 3
    return [asked.case((size,), count, f"{size:,}") for size in asked.sized(BYTES)]


def _by(m: Library, case: Case) -> Callable[..., Any]:
    function = m.activation(case.op.name)
    return lambda x: function(x)


def _gradient(m: Library, case: Case) -> Gradient | None:
    """The library's function of dy and of what it has saved of x, where there is one."""
    kernel = m.slope(case.op.name)
    if kernel is None:
        return None
    return Gradient(kernel.function, lambda arrays: (arrays["dy"], kernel.saved(arrays["x"])))


def _onnx(case: Case) -> str:
    return onnx.activation(case.op.name, "x", "y")


ACTIVATIONS = Family(_cases, _by, _gradient, onnx=_onnx, heading="elements")
