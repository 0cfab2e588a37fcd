"""The benchmark of activations: forward reads x, backward dy and x; both write one array."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..peers import (
    LeftOut,
    as_numpy,
    function_named,
    jax_call,
    naive,
    open_jax,
    torch_backward,
)
from .work import BYTES, ITEM, Call, Case, Family, Gradient, Maker, Options, Sizes, Work


def _cases(op: Any, direction: str, dtype: str, sizes: Sizes, on_gpu: bool) -> list[Case]:
    accesses = 2 if direction == "forward" else 3
    return [
        Case(op, direction, dtype, (size,), f"{size:,}", accesses, on_gpu=on_gpu)
        for size in sizes or (BYTES // ITEM[dtype],)
    ]


def _on_cpu(op: Any, direction: str, dtype: str, options: Options) -> list[Case]:
    return _cases(op, direction, dtype, options.sizes, on_gpu=False)


def _inputs(case: Case, make: Maker) -> dict[str, Any]:
    return {"x": make.random(case.shape, case.dtype)}


def _incoming(case: Case, make: Maker) -> dict[str, Any]:
    return {"dy": make.random(case.shape, case.dtype)}


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    function = function_named(torch.nn.functional, case.op.name)
    return lambda x: function(x)


def _gradient(torch: Any, case: Case) -> Gradient | None:
    """aten's kernel of dy and what autograd has saved, where there is one."""
    kernel = torch_backward(torch, case.op.name)
    if kernel is None:
        return None
    return Gradient(kernel.function, lambda arrays: (arrays["dy"], kernel.saved(arrays["x"])))


# What a NumPy user writes where that is not the textbook's formula, at the default parameters.
NUMPY_IDIOMS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardtanh": lambda x: np.clip(x, -1, 1),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardmish": lambda x: x * np.clip(x + 2, 0, 2) / 2,
    "logsigmoid": lambda x: -np.logaddexp(0, -x),
    "softplus": lambda x: np.logaddexp(0, x),
    "tanhshrink": lambda x: x - np.tanh(x),
    "softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "hardshrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "logcosh": lambda x: np.logaddexp(x, -x) - math.log(2),
}


def _formula(case: Case) -> Callable[[Any, Any], Any]:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    return naive(case.op.name)


def _numpy(case: Case, work: Work, threads: int) -> Call:
    formula, x = _formula(case), work.inputs["x"]
    if case.op.name in NUMPY_IDIOMS:
        return partial(NUMPY_IDIOMS[case.op.name], x)
    return partial(formula, x, as_numpy())


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


def _jax(case: Case, work: Work, threads: int) -> Call:
    jax = open_jax()
    function, arrays = function_named(jax.nn, case.op.name), work.arrays
    if case.direction == "forward":
        return jax_call(jax, function, arrays["x"])

    def backward(dy: Any, x: Any) -> Any:
        return jax.vjp(function, x)[1](dy)[0]

    return jax_call(jax, backward, arrays["dy"], arrays["x"])


ACTIVATIONS = Family(
    _on_cpu,
    partial(_cases, on_gpu=True),
    _inputs,
    _incoming,
    _torch,
    _gradient,
    others={"numpy": _numpy, "numexpr": _numexpr, "jax": _jax},
    heading="elements",
)
