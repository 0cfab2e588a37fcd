"""A case of the GPU benchmark: what moves, our call, and the same work by torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt, prod
from typing import Any, Protocol

from . import shapes
from .workloads import COMPILED, TORCH, compiled_by_torch

READ = "read"  # torch.sum over as many bytes of float32, for ops that write next to nothing
LIGER = "liger"
GPU_PEERS = (TORCH, COMPILED, LIGER)
ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

#: Elements of an array where no sizes are given: 128 MiB of float32, and 256 MiB of any type.
ELEMENTS = 2**25
BYTES = 2**28

Tensors = tuple[Any, ...]
Bind = Callable[[Tensors], Callable[[], Any]]  # a peer's call for a set
NOBODY: Mapping[str, Callable[..., Any]] = {}


class Maker(Protocol):
    """Who makes tensors: a GPU, or a test."""

    torch: Any

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor of normal random numbers."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A tensor to be written."""


def name_of(op: str, direction: str, dtype: str, label: str) -> str:
    """A case in words, by which a later run knows it again."""
    return f"{op} {direction}, {dtype}, {label}"


@dataclass(frozen=True)
class GpuCase:
    """One row of the benchmark.

    axis : along which elements share a result, a mean or a bias; None for all axes.
    accesses : arrays of `shape` that have to move, where those are not x, y and perhaps dy.
    reduces, into : to how many arrays, 0 being no reduction, and of what dtype; on backward:
        from how many gradients.
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
        return shapes.kept(self.shape, self.axis)

    @property
    def sums(self) -> bool:
        """Whether it writes next to nothing."""
        return bool(self.reduces) and self.direction == "forward"

    @property
    def moved(self) -> int:
        """Bytes that have to move: each input read once, the output written once."""
        size = prod(self.shape)
        if self.reduces:
            small = self.reduces * prod(self.kept) * ITEM[self.into]
            return size * ITEM[self.dtype] * (self.accesses or 1) + small
        accesses = self.accesses or (2 if self.direction == "forward" else 3)
        return size * ITEM[self.dtype] * accesses

    @property
    def name(self) -> str:
        """What tells it from all others."""
        return name_of(self.op.name, self.direction, self.dtype, self.label)

    @property
    def label(self) -> str:
        """The shape, and the axes that are reduced."""
        if self.reduces and not self.variant:
            return shapes.sum_label(self.shape, self.axis)
        channel = () if self.channel is None else (f"channels {self.channel}",)
        return ", ".join(filter(None, (shapes.shape_label(self.shape), *channel, self.variant)))

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


def _by_all(
    wanted: Sequence[str],
    torch: Any,
    eager: Callable[..., Any],
    also: Mapping[str, Callable[..., Any]],
    binder: Callable[[Callable[..., Any]], Bind],
) -> dict[str, Bind]:
    peers = {name: binder(function) for name, function in also.items() if name in wanted}
    if TORCH in wanted:
        peers[TORCH] = binder(eager)
    if COMPILED in wanted:
        peers[COMPILED] = binder(compiled_by_torch(torch, eager))
    return peers


def peers_of(
    wanted: Sequence[str],
    torch: Any,
    eager: Callable[..., Any],
    pick: Callable[[Tensors], Tensors],
    also: Mapping[str, Callable[..., Any]] = NOBODY,
) -> dict[str, Bind]:
    """A function of torch as it is and compiled, of what is picked out of a set.

    also : further peers, and their functions of the same.
    """
    return _by_all(wanted, torch, eager, also, lambda function: _forward(function, pick))


def gradients_of(
    wanted: Sequence[str],
    torch: Any,
    eager: Callable[..., Any],
    pick: Callable[[Tensors], tuple[Tensors, ...]],
    also: Mapping[str, Callable[..., Any]] = NOBODY,
) -> dict[str, Bind]:
    """What autograd does over a graph of the function that is there already.

    pick : of a set the inputs to differentiate by, the gradients that come, and perhaps inputs that
        follow as constants.
    also : further peers, and their functions of the same.
    """
    return _by_all(wanted, torch, eager, also, lambda function: _backward(torch, function, pick))


#: Images, channels and side of pictures where no sizes are given: past the caches, and the first, a
#: later and the last stage of ResNet-50 at a batch of 32; planes of the last are no whole packs.
_PICTURES = ((256, 64, 56), (32, 64, 56), (32, 256, 14), (32, 2048, 7))


def pictures(sizes: Sequence[int] | None) -> list[tuple[tuple[int, ...], int]]:
    """Shapes of pictures, each with channels first and last, and the axis of the channels."""
    found: list[tuple[int, int, int]] = []
    for channels, largest in dict.fromkeys((c, s) for _, c, s in _PICTURES):
        for size in sizes or ():
            if size < 16 * channels and found:
                continue  # planes of next to nothing
            side = min(max(isqrt(size // channels), 2), largest)
            found.append((max(size // (channels * side * side), 2), channels, side))
    return [
        ((images, channels, side, side), 1) if leads else ((images, side, side, channels), -1)
        for images, channels, side in (found if sizes else _PICTURES)
        for leads in (True, False)
    ]
