"""The benchmark of activations: forward reads x, backward dy and x; both write one array."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastact.measure.formulas import naive
from fastact.measure.peers import MKL, LeftOut

from .. import mkl, onnx
from .libraries import Library
from .work import BYTES, Asked, Call, Case, Family, Gradient, Work


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


def _numexpr(case: Case, work: Work, threads: int) -> Call:
    numexpr = importlib.import_module("numexpr")
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    # numexpr's own names of the two types that it has
    kinds = {"float32": ("float", float), "float64": ("double", np.double)}
    if case.dtype not in kinds:
        raise LeftOut(f"it has no {case.dtype}")
    kind, signature = kinds[case.dtype]
    numexpr.set_num_threads(threads)
    expressions = numexpr.expressions
    variable = expressions.VariableNode("x", kind)
    try:
        tree = naive(case.op.name)(variable, SimpleNamespace(**expressions.functions))
    except (AttributeError, TypeError):
        raise LeftOut(f"it lacks a function of the formula of {case.op.name}") from None
    return partial(numexpr.NumExpr(tree, [("x", signature)]), work.inputs["x"])


def _onnx(case: Case) -> str:
    return onnx.activation(case.op.name, "x", "y")


ACTIVATIONS = Family(
    _cases,
    _by,
    _gradient,
    onnx=_onnx,
    others={"numexpr": _numexpr, MKL: mkl.call},
    heading="elements",
)
