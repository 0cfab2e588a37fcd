"""What the GPU benchmark runs: for each family, its cases, our call and the same work by torch.

A family is one entry of `GPU_WORKLOADS`: which cases there are, and how each is built. Nothing here
needs a GPU: `device` makes the tensors, wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Protocol

from . import _shapes
from ._workloads import LeftOut, function_named, torch_backward_kernel

TORCH, COMPILED = "torch", "torch.compile"
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
    """One row of the benchmark. axis: of a reduction, None for all axes."""

    op: Any
    direction: str
    dtype: str
    shape: tuple[int, ...]
    axis: tuple[int, ...] | None = None
    reduces: bool = False

    @property
    def kept(self) -> tuple[int, ...]:
        """The shape of the result of a reduction."""
        return _shapes.kept(self.shape, self.axis)

    @property
    def moved(self) -> int:
        """Bytes that have to move: each input read once, the output written once."""
        size = prod(self.shape)
        if self.reduces:
            return (size + prod(self.kept)) * ITEM[self.dtype]
        return size * ITEM[self.dtype] * (2 if self.direction == "forward" else 3)

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


def _compiled(torch: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function by torch.compile, for these very shapes."""
    torch._dynamo.reset()  # or it gives up on a function after some shapes, and runs it eagerly
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False)
    return compiled


def _bound(
    function: Callable[..., Any], pick: Callable[[Tensors], Tensors]
) -> Callable[[Tensors], Callable[[], Any]]:
    def bind(tensors: Tensors) -> Callable[[], Any]:
        inputs = pick(tensors)
        return lambda: function(*inputs)

    return bind


def _peers(
    wanted: Sequence[str], torch: Any, eager: Callable[..., Any], pick: Callable[[Tensors], Tensors]
) -> dict[str, Callable[[Tensors], Callable[[], Any]]]:
    peers = {}
    if TORCH in wanted:
        peers[TORCH] = _bound(eager, pick)
    if COMPILED in wanted:
        peers[COMPILED] = _bound(_compiled(torch, eager), pick)
    return peers


# --- activations: forward reads x and writes y; backward reads dy and x and writes dx -------------


def _activation_cases(
    op: Any, direction: str, dtype: str, sizes: Sequence[int] | None
) -> list[GpuCase]:
    elements = sizes or sorted({ELEMENTS, BYTES // ITEM[dtype]})
    return [GpuCase(op, direction, dtype, (size,)) for size in elements]


def _activation_by_torch(torch: Any, name: str, direction: str) -> Callable[..., Any]:
    """The function, or what autograd calls for its gradient, of (dy, x)."""
    function = function_named(torch.nn.functional, name)
    if direction == "forward":
        return function
    kernel: Callable[..., Any] | None = torch_backward_kernel(torch, name)
    if kernel is not None:
        return kernel

    def pullback(dy: Any, x: Any) -> Any:
        return torch.func.vjp(function, x)[1](dy)[0]

    return pullback


def _activation_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    forward = case.direction == "forward"

    def make() -> Tensors:
        inputs = [device.random(case.shape, case.dtype) for _ in range(1 if forward else 2)]
        return (*inputs, device.empty(case.shape, case.dtype))

    call = case.op if forward else case.op.backward
    peers, left_out = {}, {}
    try:
        eager = _activation_by_torch(device.torch, case.op.name, case.direction)
        peers = _peers(wanted, device.torch, eager, lambda tensors: tensors[:-1])
    except LeftOut as reason:
        left_out = dict.fromkeys(wanted, str(reason))
    return GpuWork(
        make,
        lambda *tensors: call(*tensors[:-1], out=tensors[-1]),
        lambda *tensors: call(*tensors[:-1]),
        peers,
        left_out,
    )


# --- reductions: x is read once; what is written is small -----------------------------------------


def _reduction_cases(
    op: Any, direction: str, dtype: str, sizes: Sequence[int] | None
) -> list[GpuCase]:
    if direction != "forward" or op.name not in _REDUCTIONS:
        return []
    return [
        GpuCase(op, direction, dtype, layout.shape, axis, reduces=True)
        for size in sizes or (ELEMENTS,)
        for layout in _shapes.reduced(size, narrow=max(size // 2, 1))
        for axis in layout.axes
    ]


def _sum_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    return torch.sum if axis is None else lambda x: torch.sum(x, dim=axis)


def _sum_squares_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    total = _sum_by_torch(torch, axis)
    return lambda x: total(torch.square(x))


#: Ops of the family that are measured, and what torch does for them.
_REDUCTIONS: dict[str, Callable[[Any, tuple[int, ...] | None], Callable[[Any], Any]]] = {
    "sum": _sum_by_torch,
    "sum_squares": _sum_squares_by_torch,
}


def _reduction_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    eager = _REDUCTIONS[case.op.name](device.torch, case.axis)
    return GpuWork(
        lambda: (device.random(case.shape, case.dtype), device.empty(case.kept, case.dtype)),
        lambda x, out: case.op(x, axis=case.axis, out=out),
        lambda x, out: case.op(x, axis=case.axis),
        _peers(wanted, device.torch, eager, lambda tensors: tensors[:-1]),
    )


GPU_WORKLOADS = {
    "activations": Family(_activation_cases, _activation_work),
    "reductions": Family(_reduction_cases, _reduction_work),
}
