"""A case of the GPU benchmark: what moves, our call, and the same work by torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
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

    axis : of a reduction, None for all axes.
    accesses : arrays of `shape` that have to move, where those are not x, y and perhaps dy.
    reduces, into : to how many arrays, 0 being no reduction, and of what dtype.
    """

    op: Any
    direction: str
    dtype: str
    shape: tuple[int, ...]
    axis: tuple[int, ...] | None = None
    reduces: int = 0
    into: str = "float32"
    accesses: int = 0

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
        return _shapes.shape_label(self.shape)


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
    peers: dict[str, Callable[[Tensors], Callable[[], Any]]]
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """How a family is measured.

    cases : the cases of an op for a direction, a dtype and the sizes that were asked for, if any.
    work : the calls of a case.
    """

    cases: Callable[[Any, str, str, Sequence[int] | None], list[GpuCase]]
    work: Callable[[GpuCase, Maker, Sequence[str]], GpuWork]


def bound(
    function: Callable[..., Any], pick: Callable[[Tensors], Tensors]
) -> Callable[[Tensors], Callable[[], Any]]:
    def bind(tensors: Tensors) -> Callable[[], Any]:
        inputs = pick(tensors)
        return lambda: function(*inputs)

    return bind


def peers_of(
    wanted: Sequence[str], torch: Any, eager: Callable[..., Any], pick: Callable[[Tensors], Tensors]
) -> dict[str, Callable[[Tensors], Callable[[], Any]]]:
    peers = {}
    if TORCH in wanted:
        peers[TORCH] = bound(eager, pick)
    if COMPILED in wanted:
        peers[COMPILED] = bound(compiled_by_torch(torch, eager), pick)
    return peers
