"""A case of the GPU benchmark: what moves, our call, and the same work by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import Any, Protocol

from . import _shapes
from ._workloads import COMPILED, TORCH, compiled_by_torch

READ = "read"  # torch.sum over as many bytes of float32, for ops that write next to nothing
GPU_PEERS = (TORCH, COMPILED)
ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

#: Elements of an array where no sizes are given: 128 MiB of float32, and 256 MiB of any type.
ELEMENTS = 2**25
BYTES = 2**28

Tensors = tuple[Any, ...]
Bind = Callable[[Tensors], Callable[[], Any]]  # a peer's call for a set


class Maker(Protocol):
    """Who makes tensors: a GPU, or a test."""

    torch: Any

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor of normal random numbers."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor to be written."""


@dataclass(frozen=True)
class GpuCase:
    """One row of the benchmark.

    axis : along which elements share a result, a mean or a bias; None for all axes.
    accesses : arrays of `shape` that have to move, where those are not x, y and perhaps dy.
    reduces, into : to how many arrays, 0 being no reduction, and of what dtype.
    channel : the axis of the channels, of ops that have one.
    variant : what else tells it from other cases of the op, in words.
    groups : of channels, whose elements share more than `axis` tells.
    """

    op: Any
    direction: str
    dtype: str
    shape: tuple[int, ...]
    axis: tuple[int, ...] | None = None
    reduces: int = 0
    into: str = "float32"
    accesses: int = 0
    channel: int | None = None
    variant: str = ""
    groups: int = 0

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the result of a reduction."""
        return _shapes.kept(self.shape, self.axis)

    @property
    def moved(self) -> int:
        """Bytes that have to move: each input read once, the output written once."""
        size = prod(self.shape)
        if self.reduces:
            return size * ITEM[self.dtype] + self.reduces * prod(self.kept) * ITEM[self.into]
        accesses = self.accesses or (2 if self.direction == "forward" else 3)
        return size * ITEM[self.dtype] * accesses

    @property
    def label(self) -> str:
        """The shape, and the axes that are reduced."""
        if self.reduces:
            return _shapes.sum_label(self.shape, self.axis)
        channel = () if self.channel is None else (f"channels {self.channel}",)
        return ", ".join(filter(None, (_shapes.shape_label(self.shape), *channel, self.variant)))

    @property
    def series(self) -> str:
        """Under which name its rate is drawn over `span`."""
        last = "channels last" if self.channel == -1 else ""
        return ", ".join(filter(None, (self.op.name, last, self.variant)))

    @property
    def span(self) -> int:
        """How many elements share a result, a mean or a bias; all of them where nothing is."""
        shared = prod(self.shape) // max(prod(self.kept), 1)
        if not self.groups or self.channel is None:
            return shared
        return shared * self.shape[self.channel] // self.groups


@dataclass(frozen=True)
class GpuWork:
    """Calls that do the same work, on any one of several sets of tensors.

    Attributes
    ----------
    make : callable
        Makes a set: the inputs, then the output.
    ours, fresh : callable
        Our call for a set, and the one that allocates its result.
    peers : dict of str to callable
        Takes a set, and gives a call without arguments that returns the peer's result.
    left_out : dict of str to str
        Peers that cannot do it, and why.
    """

    make: Callable[[], Tensors]
    ours: Callable[..., Any]
    fresh: Callable[..., Any]
    peers: dict[str, Bind]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """How a family is measured.

    cases : the cases of an op for a direction, a dtype and the sizes that were asked for, if any.
    work : the calls of a case.
    """

    cases: Callable[[Any, str, str, Sequence[int] | None], list[GpuCase]]
    work: Callable[[GpuCase, Maker, Sequence[str]], GpuWork]


def first(result: Any) -> Any:
    """The result, or the first of several."""
    return result[0] if isinstance(result, tuple | list) else result


def _forward(function: Callable[..., Any], pick: Callable[[Tensors], Tensors]) -> Bind:
    def bind(tensors: Tensors) -> Callable[[], Any]:
        inputs = pick(tensors)
        return lambda: first(function(*inputs))

    return bind


def _backward(
    torch: Any, function: Callable[..., Any], pick: Callable[[Tensors], tuple[Tensors, ...]]
) -> Bind:
    def bind(tensors: Tensors) -> Callable[[], Any]:
        inputs, came, *fixed = pick(tensors)
        leaves = [tensor.detach().requires_grad_() for tensor in inputs]
        results = function(*leaves, *(fixed[0] if fixed else ()))
        return lambda: torch.autograd.grad(results, leaves, came, retain_graph=True)[0]

    return bind


def _by_both(
    wanted: Sequence[str],
    torch: Any,
    eager: Callable[..., Any],
    binder: Callable[[Callable[..., Any]], Bind],
) -> dict[str, Bind]:
    peers = {}
    if TORCH in wanted:
        peers[TORCH] = binder(eager)
    if COMPILED in wanted:
        peers[COMPILED] = binder(compiled_by_torch(torch, eager))
    return peers


def peers_of(
    wanted: Sequence[str], torch: Any, eager: Callable[..., Any], pick: Callable[[Tensors], Tensors]
) -> dict[str, Bind]:
    """A function of torch as it is and compiled, of what is picked out of a set."""
    return _by_both(wanted, torch, eager, lambda function: _forward(function, pick))


def gradients_of(
    wanted: Sequence[str],
    torch: Any,
    eager: Callable[..., Any],
    pick: Callable[[Tensors], tuple[Tensors, ...]],
) -> dict[str, Bind]:
    """What autograd does over a graph of the function that is there already.

    pick : of a set the inputs to differentiate by, the gradients that come, and perhaps inputs that
        follow as constants.
    """
    return _by_both(wanted, torch, eager, lambda function: _backward(torch, function, pick))


#: Images, channels and side of pictures where no sizes are given: past the caches, the first and a
#: later stage of ResNet-50 at a batch of 32.
_PICTURES = ((256, 64, 56), (32, 64, 56), (32, 256, 14))


def pictures(sizes: Sequence[int] | None) -> list[tuple[tuple[int, ...], int]]:
    """Shapes of pictures, each with channels first and last, and the axis of the channels."""
    found = []
    for channels, largest in dict.fromkeys((c, s) for _, c, s in _PICTURES):
        for size in sizes or ():
            side = min(max(isqrt(size // channels), 2), largest)
            found.append((max(size // (channels * side * side), 2), channels, side))
    return [
        ((images, channels, side, side), 1) if leads else ((images, side, side, channels), -1)
        for images, channels, side in (found if sizes else _PICTURES)
        for leads in (True, False)
    ]
