"""The benchmark of activations: forward reads x, backward dy and x; both write one array."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastact.measure.formulas import NUMPY, naive
from fastact.measure.peers import MKL, LeftOut, function_named, torch_backward

from .. import mkl, onnx
from .work import BYTES, ITEM, Asked, Call, Case, Family, Gradient, Work


def _cases(asked: Asked) -> list[Case]:
    sizes = asked.sizes or (BYTES // ITEM[asked.dtype],)
    return [asked.case((size,), 2 if asked.forward else 3, f"{size:,}") for size in sizes]


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    function = function_named(torch.nn.functional, case.op.name)
    return lambda x: function(x)


def _gradient(torch: Any, case: Case) -> Gradient | None:
    """aten's kernel of dy and what autograd has saved, where there is one."""
    kernel = torch_backward(torch, case.op.name)
    if kernel is None:
        return None
    return Gradient(kernel.function, lambda arrays: (arrays["dy"], kernel.saved(arrays["x"])))


# What a NumPy user writes where that is not the textbook's formula, at the default parameters; m is
# numpy, or jax.numpy.
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


def _formula(case: Case) -> Callable[[Any, Any], Any]:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    return naive(case.op.name)


def _numpy(case: Case, work: Work, threads: int) -> Call:
    formula, x = _formula(case), work.inputs["x"]
    if case.op.name in IDIOMS:
        return partial(IDIOMS[case.op.name], x, np)
    return partial(formula, x, NUMPY)


def _numexpr(case: Case, work: Work, threads: int) -> Call:
    numexpr = importlib.import_module("numexpr")
    # numexpr's own names of the two types that it has
    kinds = {"float32": ("float", float), "float64": ("double", np.double)}
    if case.dtype not in kinds:
        raise LeftOut(f"it has no {case.dtype}")
    kind, signature = kinds[case.dtype]
    numexpr.set_num_threads(threads)
    expressions = numexpr.expressions
    variable = expressions.VariableNode("x", kind)
    try:
        tree = _formula(case)(variable, SimpleNamespace(**expressions.functions))
    except (AttributeError, TypeError):
        raise LeftOut(f"it lacks a function of the formula of {case.op.name}") from None
    return partial(numexpr.NumExpr(tree, [("x", signature)]), work.inputs["x"])


def jax_function(jax: Any, name: str) -> Callable[..., Any]:
    """An activation as a user of jax has it: of jax.nn, or else as in NumPy."""
    in_nn = getattr(jax.nn, name.replace("hard", "hard_").replace("logs", "log_s"), None)
    if in_nn is not None:
        exact = "approximate" in signature(in_nn).parameters
        return partial(in_nn, approximate=False) if exact else in_nn
    formula = IDIOMS.get(name) or naive(name)
    return lambda x: formula(x, jax.numpy)


def _jax(jax: Any, case: Case) -> Callable[..., Any]:
    function = jax_function(jax, case.op.name)
    return lambda x: function(x)


def _onnx(case: Case) -> str:
    return onnx.activation(case.op.name, "x", "y")


ACTIVATIONS = Family(
    _cases,
    _torch,
    _gradient,
    jax=_jax,
    onnx=_onnx,
    others={"numpy": _numpy, "numexpr": _numexpr, MKL: mkl.call},
    heading="elements",
)
