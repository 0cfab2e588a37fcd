"""What the benchmarks of all families share: what a case is, and how peers are asked to take part.

A family is a module `_workloads_<family>` with one `Family`: which cases it has, and for each of
them a call without arguments for us, for the copy that is our ceiling, and for every peer that can
do the same.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..terminal import require
from .shapes import Axis, Shape

Call = Callable[[], object]

OURS = "fastact"
FRESH = "fresh"  # ours without out=: the result is allocated, as peers without out= have to
COPY = "copy"
PEERS = ("numpy", "numexpr", "torch", "jax")
TORCH, COMPILED = "torch", "torch.compile"
ON_REQUEST = (COMPILED,)  # takes seconds to compile a row, which are not counted


class LeftOut(Exception):
    """A peer cannot do this case; the message says why."""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes
    ----------
    sizes : tuple of int
        Elements of an array, for ops without axes.
    dtypes : tuple of dtype
        Types of the arrays.
    directions : tuple of str
        "forward", "backward" or both.
    peers : tuple of str
        Other libraries; those that are not installed are named and left out.
    threads : int
        For everybody.
    shapes : tuple of str
        Names of shapes, for ops with axes; all of them if it is empty.
    seconds : float
        Time to spend on a row, about.
    """

    sizes: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    directions: tuple[str, ...]
    peers: tuple[str, ...]
    threads: int
    shapes: tuple[str, ...] = ()
    seconds: float = 1.0


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    axis : of a sum, None for all axes; of a bias, the one that it lies along.
    variant : what the family distinguishes beside that: an activation, another entry point of the
        op.
    """

    op: Any
    direction: str
    dtype: np.dtype[Any]
    threads: int
    shape: Shape
    label: str
    axis: Axis = None
    variant: str = ""

    @property
    def size(self) -> int:
        """Elements of the array."""
        return prod(self.shape)


@dataclass(frozen=True)
class Workload:
    """Calls that do the same work.

    Attributes
    ----------
    calls : dict of str to callable
        `OURS`, `FRESH`, `COPY` and the peers.
    copies : float
        What our time is held against, in units of what the `COPY` call moves.
    left_out : dict of str to str
        Peers asked for that cannot do it, and why.
    """

    calls: dict[str, Call]
    copies: float
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """How a family is measured.

    cases : the cases of an op, in a direction and a dtype; none for an op that is not known.
    work : the calls of a case, with those of the peers named.
    heading : of the column that tells the cases apart.
    note : what the legend has to say of this family.
    """

    cases: Callable[[Any, str, np.dtype[Any], Options], list[Case]]
    work: Callable[[Case, Sequence[str]], Workload]
    heading: str = "shape"
    note: str = ""


def installed(peers: Sequence[str]) -> list[str]:
    """The peers among `peers` that can be imported."""
    return [peer for peer in peers if find_spec(package_of(peer)) is not None]


def package_of(peer: str) -> str:
    """The package that a peer is part of."""
    return peer.partition(".")[0]


def dtype_named(name: str) -> np.dtype[Any]:
    """A floating dtype by its name, bfloat16 included where ml_dtypes is installed."""
    scalar: Any = name
    if name == "bfloat16":
        scalar = require("ml_dtypes", "bfloat16", "ml_dtypes").bfloat16
    dtype: np.dtype[Any] = np.dtype(scalar)
    return dtype


def random(shape: Shape, dtype: np.dtype[Any], seed: int = 0) -> NDArray[Any]:
    """Normal random numbers."""
    normal = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return np.asarray(normal).astype(dtype)


def ours_and_copy(
    ours: Callable[..., object],
    out: tuple[NDArray[Any], ...],
    copied: NDArray[Any],
    source: NDArray[Any],
) -> dict[str, Call]:
    """Our call with and without `out`, and the copy of `source`."""
    return {
        COPY: partial(_cpu.copy, copied, source),
        OURS: partial(ours, out=out[0] if len(out) == 1 else out),
        FRESH: ours,
    }


def ask_peers(
    makers: Mapping[str, Callable[..., Call]], peers: Sequence[str], case: Case, *arrays: Any
) -> tuple[dict[str, Call], dict[str, str]]:
    """Ask every peer for its call and try it; collect the reasons of those that can't."""
    calls, left_out = {}, {}
    for peer in peers:
        if peer not in makers:
            left_out[peer] = f"not measured for {case.op.family}"
            continue
        try:
            call = makers[peer](case, *arrays)
            with np.errstate(all="ignore"):
                call()
            calls[peer] = call
        except LeftOut as reason:
            left_out[peer] = str(reason)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            # It lacks a function, or this dtype: the other rows are still wanted.
            left_out[peer] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return calls, left_out


def naive(name: str, derivative: bool = False) -> Callable[[Any, Any], Any]:
    """The textbook's formula of an activation, f(x, m) over a namespace `m` such as numpy."""
    reference = importlib.import_module("fastact.check.reference")
    formulas = reference.DERIVATIVE if derivative else reference.FORWARD
    if name not in formulas:
        raise LeftOut(f"there is no formula of {name}")
    formula: Callable[[Any, Any], Any] = formulas[name].of
    return formula


def open_torch(threads: int) -> Any:
    """torch, told its number of threads."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    return torch


def compiled_by_torch(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch.compile, for these very shapes."""
    # Else a way back may use up what it was given, and could be run only once.
    config: Any = importlib.import_module("torch._functorch.config")
    config.donated_buffer = False
    torch._dynamo.reset()  # or it gives up on a function after some shapes, and runs it eagerly
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)
    return compiled


def as_tensor(torch: Any, array: NDArray[Any]) -> Any:
    """The same memory as a tensor."""
    if array.dtype.name == "bfloat16":  # known to torch under another name only
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def function_named(module: ModuleType, name: str) -> Callable[..., Any]:
    """An activation of torch.nn.functional or jax.nn."""
    function: Callable[..., Any] | None = getattr(module, name, None)
    if function is None:
        raise LeftOut(f"it has no {name}")
    return function


_SELU = (1.6732632423543772, 1.0507009873554805)

# What autograd calls for an activation: aten's kernel of it, given dy and x, and of those that
# differentiate by it, y.
_OF_INPUT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "relu": lambda aten, dy, x: aten.threshold_backward(dy, x, 0),
    "relu6": lambda aten, dy, x: aten.hardtanh_backward(dy, x, 0, 6),
    "leaky_relu": lambda aten, dy, x: aten.leaky_relu_backward(dy, x, 0.01, False),
    "elu": lambda aten, dy, x: aten.elu_backward(dy, 1, 1, 1, False, x),
    "selu": lambda aten, dy, x: aten.elu_backward(dy, *_SELU, 1, False, x),
    "celu": lambda aten, dy, x: aten.elu_backward(dy, 1, 1, 1, False, x),
    "gelu": lambda aten, dy, x: aten.gelu_backward(dy, x),
    "silu": lambda aten, dy, x: aten.silu_backward(dy, x),
    "mish": lambda aten, dy, x: aten.mish_backward(dy, x),
    "hardsigmoid": lambda aten, dy, x: aten.hardsigmoid_backward(dy, x),
    "hardtanh": lambda aten, dy, x: aten.hardtanh_backward(dy, x, -1, 1),
    "softplus": lambda aten, dy, x: aten.softplus_backward(dy, x, 1, 20),
    "softshrink": lambda aten, dy, x: aten.softshrink_backward(dy, x, 0.5),
    "hardshrink": lambda aten, dy, x: aten.hardshrink_backward(dy, x, 0.5),
    "hardswish": lambda aten, dy, x: aten.hardswish_backward(dy, x),
}
_OF_OUTPUT: dict[str, Callable[[Any, Any, Any], Any]] = {
    "sigmoid": lambda aten, dy, y: aten.sigmoid_backward(dy, y),
    "tanh": lambda aten, dy, y: aten.tanh_backward(dy, y),
}


def torch_backward_kernel(torch: Any, name: str) -> Callable[[Any, Any], Any] | None:
    """What autograd would call, where it needs the gradient and the input and nothing else."""
    return partial(_OF_INPUT[name], torch.ops.aten) if name in _OF_INPUT else None


def torch_gradient(torch: Any, name: str, dy: Any, x: Any) -> Callable[[], Any]:
    """A call that returns dy f'(x): a kernel, or autograd over a graph that is there already."""
    function = function_named(torch.nn.functional, name)
    kernel = torch_backward_kernel(torch, name)
    if kernel is not None:
        return partial(kernel, dy, x)
    if name in _OF_OUTPUT:
        return partial(_OF_OUTPUT[name], torch.ops.aten, dy, function(x))
    leaf = x.detach().requires_grad_()
    result = function(leaf)
    return lambda: torch.autograd.grad(result, leaf, dy, retain_graph=True)[0]


def open_jax() -> Any:
    """jax, with float64, which it would take for float32 in silence."""
    jax = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    return jax


def jax_call(jax: Any, function: Callable[..., Any], *arrays: NDArray[Any]) -> Call:
    """The function of the arrays, compiled, and waited for."""
    compiled = jax.jit(function)
    values = [jax.numpy.asarray(array) for array in arrays]
    return lambda: jax.block_until_ready(compiled(*values))
