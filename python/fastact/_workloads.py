"""What the benchmark runs: for each family of ops, our call and the same work by its peers.

A family is one entry of `WORKLOADS`: a function that makes the arrays of a case and returns a call
without arguments for us, for the copy that is our ceiling, and for every peer that has the op.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _cpu
from ._terminal import require

Call = Callable[[], object]

OURS = "fastact"
FRESH = "fresh"  # ours without out=: the result is allocated, as peers without out= have to
COPY = "copy"
PEERS = ("numpy", "numexpr", "torch", "jax")


class LeftOut(Exception):
    """A peer cannot do this case; the message says why."""


@dataclass(frozen=True)
class Case:
    """One row of the benchmark."""

    op: Any
    direction: str
    dtype: np.dtype[Any]
    size: int
    threads: int


@dataclass(frozen=True)
class Workload:
    """Calls that do the same work.

    Attributes
    ----------
    calls : dict of str to callable
        `OURS`, `FRESH`, `COPY` and the peers.
    copies : float
        Bytes that the op has to move, in units of what the `COPY` call moves.
    left_out : dict of str to str
        Peers asked for that cannot do it, and why.
    """

    calls: dict[str, Call]
    copies: float
    left_out: dict[str, str] = field(default_factory=dict)


def installed(peers: Sequence[str]) -> list[str]:
    """The peers among `peers` that can be imported."""
    return [peer for peer in peers if find_spec(peer) is not None]


def dtype_named(name: str) -> np.dtype[Any]:
    """A floating dtype by its name, bfloat16 included where ml_dtypes is installed."""
    scalar: Any = name
    if name == "bfloat16":
        scalar = require("ml_dtypes", "bfloat16", "ml_dtypes").bfloat16
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def workload(case: Case, peers: Sequence[str]) -> Workload:
    """Build the calls of a case for its op's family."""
    return WORKLOADS[case.op.family](case, peers)


def _peer_calls(
    makers: Mapping[str, Callable[..., Call]], peers: Sequence[str], case: Case, *arrays: Any
) -> tuple[dict[str, Call], dict[str, str]]:
    """Ask every peer for its call; collect the reasons of those that have none."""
    calls, left_out = {}, {}
    for peer in peers:
        try:
            calls[peer] = makers[peer](case, *arrays)
        except LeftOut as reason:
            left_out[peer] = str(reason)
    return calls, left_out


# --- activations: forward reads x and writes y; backward reads dy and x and writes dx -------------


def _activation(case: Case, peers: Sequence[str]) -> Workload:
    generator = np.random.default_rng(0)
    x, dy = (
        generator.standard_normal(case.size, dtype=np.float32).astype(case.dtype) for _ in range(2)
    )
    out = np.empty_like(x)
    calls: dict[str, Call] = {COPY: partial(_cpu.copy, out, x)}
    if case.direction == "forward":
        calls |= {OURS: partial(case.op, x, out=out), FRESH: partial(case.op, x)}
    else:
        calls |= {
            OURS: partial(case.op.backward, dy, x, out=out),
            FRESH: partial(case.op.backward, dy, x),
        }
    theirs, left_out = _peer_calls(_ACTIVATION_PEERS, peers, case, dy, x)
    return Workload(calls | theirs, 1.0 if case.direction == "forward" else 1.5, left_out)


def _naive_formula(case: Case) -> Callable[[Any, Any], Any]:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    reference = importlib.import_module("fastact._reference")
    formula: Callable[[Any, Any], Any] = reference.FORWARD[case.op.name].of
    return formula


def _activation_numpy(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    return partial(_naive_formula(case), x, np)


def _activation_numexpr(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
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
        tree = _naive_formula(case)(variable, SimpleNamespace(**expressions.functions))
    except (AttributeError, TypeError):
        raise LeftOut(f"it lacks a function of the formula of {case.op.name}") from None
    return partial(numexpr.NumExpr(tree, [("x", signature)]), x)


def _as_tensor(torch: Any, array: NDArray[Any]) -> Any:
    if array.dtype.name == "bfloat16":  # known to torch under another name only
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _torch_backward_kernel(torch: Any, name: str) -> Any:
    """What autograd would call, where it needs the gradient and the input and nothing else."""
    kernel = getattr(torch.ops.aten, f"{name}_backward", None)
    if kernel is None:
        return None
    arguments = kernel.default._schema.arguments
    needed = [argument.name for argument in arguments if not argument.has_default_value()]
    return kernel if needed == ["grad_output", "self"] else None


def _activation_torch(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    torch = importlib.import_module("torch")
    torch.set_num_threads(case.threads)
    function = getattr(torch.nn.functional, case.op.name, None)
    if function is None:
        raise LeftOut(f"it has no {case.op.name}")
    tensor, gradient = _as_tensor(torch, x), _as_tensor(torch, dy)
    if case.direction == "forward":
        return partial(function, tensor)
    kernel = _torch_backward_kernel(torch, case.op.name)
    if kernel is not None:
        return partial(kernel, gradient, tensor)
    leaf = tensor.requires_grad_()
    result = function(leaf)
    return partial(torch.autograd.grad, result, leaf, gradient, retain_graph=True)


def _activation_jax(case: Case, dy: NDArray[Any], x: NDArray[Any]) -> Call:
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)  # or float64 silently becomes float32
    function = getattr(jax.nn, case.op.name, None)
    if function is None:
        raise LeftOut(f"it has no {case.op.name}")
    value, gradient = jax.numpy.asarray(x), jax.numpy.asarray(dy)
    if case.direction == "forward":
        compiled = jax.jit(function)
        return lambda: compiled(value).block_until_ready()
    pullback = jax.jit(lambda dy, x: jax.vjp(function, x)[1](dy)[0])
    return lambda: pullback(gradient, value).block_until_ready()


_ACTIVATION_PEERS = {
    "numpy": _activation_numpy,
    "numexpr": _activation_numexpr,
    "torch": _activation_torch,
    "jax": _activation_jax,
}

WORKLOADS: dict[str, Callable[[Case, Sequence[str]], Workload]] = {
    "activations": _activation,
}
