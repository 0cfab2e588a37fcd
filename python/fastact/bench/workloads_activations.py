"""The benchmark of activations: forward reads x, backward dy and x; both write one array."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .workloads import (
    Call,
    Case,
    Family,
    LeftOut,
    Options,
    Workload,
    as_tensor,
    ask_peers,
    function_named,
    jax_call,
    naive,
    open_jax,
    open_torch,
    ours_and_copy,
    random,
    torch_gradient,
)


def _cases(op: Any, direction: str, dtype: np.dtype[Any], options: Options) -> list[Case]:
    return [
        Case(op, direction, dtype, options.threads, (size,), f"{size:,}") for size in options.sizes
    ]


def _work(case: Case, peers: Sequence[str]) -> Workload:
    dy, x = (random(case.shape, case.dtype, seed) for seed in (0, 1))
    out = np.empty_like(x)
    forward = case.direction == "forward"
    ours = partial(case.op, x) if forward else partial(case.op.backward, dy, x)
    calls = ours_and_copy(ours, (out,), out, x)
    theirs, left_out = ask_peers(_PEERS, peers, case, dy, x)
    return Workload(calls | theirs, 1.0 if forward else 1.5, left_out)


def _formula(case: Case) -> Callable[[Any, Any], Any]:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    return naive(case.op.name)


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


def _numpy(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    formula, name = _formula(case), case.op.name
    if name in NUMPY_IDIOMS:
        return partial(NUMPY_IDIOMS[name], x)
    reference = importlib.import_module("fastact.check.reference")
    return partial(formula, x, reference.NUMPY)


def _numexpr(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    numexpr = importlib.import_module("numexpr")
    # numexpr's own names of the two types that it has
    kinds = {"float32": ("float", float), "float64": ("double", np.double)}
    if case.dtype.name not in kinds:
        raise LeftOut(f"it has no {case.dtype.name}")
    kind, signature = kinds[case.dtype.name]
    numexpr.set_num_threads(case.threads)
    expressions = numexpr.expressions
    variable = expressions.VariableNode("x", kind)
    try:
        tree = _formula(case)(variable, SimpleNamespace(**expressions.functions))
    except (AttributeError, TypeError):
        raise LeftOut(f"it lacks a function of the formula of {case.op.name}") from None
    return partial(numexpr.NumExpr(tree, [("x", signature)]), x)


def _torch(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    torch = open_torch(case.threads)
    tensor, gradient = as_tensor(torch, x), as_tensor(torch, dy)
    if case.direction == "forward":
        return partial(function_named(torch.nn.functional, case.op.name), tensor)
    return torch_gradient(torch, case.op.name, gradient, tensor)


def _jax(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    jax = open_jax()
    function = function_named(jax.nn, case.op.name)
    if case.direction == "forward":
        return jax_call(jax, function, x)
    return jax_call(jax, lambda dy, x: jax.vjp(function, x)[1](dy)[0], dy, x)


_PEERS = {"numpy": _numpy, "numexpr": _numexpr, "torch": _torch, "jax": _jax}

FAMILY = Family(_cases, _work, heading="elements")
