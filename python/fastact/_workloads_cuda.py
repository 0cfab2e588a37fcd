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
from ._workloads import (
    COMPILED,
    TORCH,
    LeftOut,
    compiled_by_torch,
    function_named,
    torch_backward_kernel,
)
from ._workloads_gates import gate_chain

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
        peers[COMPILED] = _bound(compiled_by_torch(torch, eager), pick)
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
        GpuCase(op, direction, dtype, layout.shape, axis, *_results(op.name, dtype))
        for size in sizes or (ELEMENTS,)
        for layout in _shapes.reduced(size, narrow=max(size // 2, 1))
        for axis in layout.axes
    ]


def _sum_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    return torch.sum if axis is None else lambda x: torch.sum(x, dim=axis)


def _sum_squares_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    total = _sum_by_torch(torch, axis)
    return lambda x: total(torch.square(x))


def _var_mean_by_torch(torch: Any, axis: tuple[int, ...] | None) -> Callable[[Any], Any]:
    return lambda x: torch.var_mean(x, dim=axis, correction=0)[1]


#: Ops of the family that are measured, and what torch does for them.
_REDUCTIONS: dict[str, Callable[[Any, tuple[int, ...] | None], Callable[[Any], Any]]] = {
    "sum": _sum_by_torch,
    "sum_squares": _sum_squares_by_torch,
    "mean_var": _var_mean_by_torch,
    "moments": _var_mean_by_torch,
}


def _results(name: str, dtype: str) -> tuple[int, str]:
    """How many arrays an op reduces to, and of what dtype."""
    return 1 + (name in ("mean_var", "moments")), "float64" if name == "moments" else dtype


def _reduction_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """Of two results, which lie behind each other in one tensor, a call returns the mean."""
    eager = _REDUCTIONS[case.op.name](device.torch, case.axis)
    pair = case.reduces > 1
    shape = (case.reduces, *case.kept) if pair else case.kept

    def ours(x: Any, out: Any) -> Any:
        if not pair:
            return case.op(x, axis=case.axis, out=out)
        case.op(x, axis=case.axis, out=tuple(out))
        return out[0]

    def fresh(x: Any, out: Any) -> Any:
        made = case.op(x, axis=case.axis)
        return made if not pair else made.mean if case.op.name == "moments" else made[0]

    return GpuWork(
        lambda: (device.random(case.shape, case.dtype), device.empty(shape, case.into)),
        ours,
        fresh,
        _peers(wanted, device.torch, eager, lambda tensors: tensors[:-1]),
    )


# --- gates: with a recurrent projection and a bias added inside; backward with dbias --------------

#: Rows and units of a state: a small cell, a wide and a large one, and out of the caches.
_GATE_SHAPES = ((256, 64), (64, 512), (256, 1024), (4096, 1024), (4096, 4096))

_GATES = {"lstm_gates": 4, "gru_gates": 3, "gru_reset": 1, "gru_blend": 2}

#: Arrays of a state's shape that each direction reads and writes once, biases aside.
_GATE_ACCESSES = {
    "lstm_gates": {"forward": 4 + 4 + 1 + 2, "backward": 4 + 4 + 4 + 1},
    "gru_gates": {"forward": 3 + 3 + 1 + 1, "backward": 4 + 2 + 3 + 3 + 1},
    "gru_reset": {"forward": 1 + 1 + 1 + 1, "backward": 1 + 2 + 1 + 1},
    "gru_blend": {"forward": 2 + 2 + 1 + 1, "backward": 2 + 2 + 2 + 1},
}


def _gate_cases(op: Any, direction: str, dtype: str, sizes: Sequence[int] | None) -> list[GpuCase]:
    accesses = _GATE_ACCESSES[op.name][direction]
    # A size is that of all that forward of an LSTM adds up: 8 arrays of 64 units.
    shapes = [(max(size // (8 * 64), 1), 64) for size in sizes] if sizes else _GATE_SHAPES
    return [GpuCase(op, direction, dtype, shape, accesses=accesses) for shape in shapes]


def _gate_peers(
    wanted: Sequence[str], torch: Any, op: str, gradients: int
) -> dict[str, Callable[[Tensors], Callable[[], Any]]]:
    """The step as a chain of operations of the first four tensors.

    gradients: how many come after them, for what autograd does over a graph that is there already;
    0: forward.
    """
    eager = gate_chain(op, torch)

    def binder(function: Callable[..., Any]) -> Callable[[Tensors], Callable[[], Any]]:
        def bind(tensors: Tensors) -> Callable[[], Any]:
            if not gradients:
                return lambda: function(*tensors[:4])[0]
            leaves = [tensor.detach().requires_grad_() for tensor in tensors[:4]]
            results = function(*leaves)
            came = tensors[4 : 4 + gradients]
            return lambda: torch.autograd.grad(results, leaves, came, retain_graph=True)[0]

        return bind

    peers = {}
    if TORCH in wanted:
        peers[TORCH] = binder(eager)
    if COMPILED in wanted:
        peers[COMPILED] = binder(compiled_by_torch(torch, eager))
    return peers


def _gate_work(case: GpuCase, device: Maker, wanted: Sequence[str]) -> GpuWork:
    """Tensors are what the chain takes, gradients, what else is saved, and outputs, backwards."""
    op, (rows, columns) = case.op, case.shape
    is_lstm, is_gru = op.name == "lstm_gates", op.name == "gru_gates"
    states = 2 if is_lstm else 1
    packed = (rows, _GATES[op.name] * columns)

    def given(tensors: Tensors) -> tuple[Tensors, dict[str, Any], Any]:
        """The call's arrays and options, and the state."""
        if is_gru:  # gates, recurrent, state, bias
            return tensors[:3], {"bias": tensors[3]}, tensors[2]
        return tensors[:2], {"recurrent": tensors[2], "bias": tensors[3]}, tensors[1]

    def random(*shapes: Sequence[int]) -> Tensors:
        return tuple(device.random(shape, case.dtype) for shape in shapes)

    def empty(*shapes: Sequence[int]) -> Tensors:
        return tuple(device.empty(shape, case.dtype) for shape in shapes)

    def make() -> Tensors:
        second = (packed, case.shape) if is_gru else (case.shape, packed)
        inputs = random(packed, *second, packed[1:])
        if case.direction == "forward":
            return (*inputs, *empty(*[case.shape] * states))
        arrays, options, _ = given(inputs)
        saved = op.forward(*arrays, **options)[1]
        also = (saved[0], saved[2]) if is_lstm else (saved[0],)
        outs = [packed[1:], case.shape, *[packed] * is_gru, packed]
        return (*inputs, *random(*[case.shape] * states), *also, *empty(*outs))

    def forward(tensors: Tensors, out: Any) -> Any:
        arrays, options, _ = given(tensors)
        results = op(*arrays, **options, out=out)
        return results[0] if is_lstm else results

    def backward(tensors: Tensors, out: Any) -> Any:
        _, options, state = given(tensors)
        dh, kept = tensors[4], tensors[4 + states]
        arrays: Tensors = (dh, kept, None, state) if is_gru else (dh, kept, state)
        if is_lstm:
            arrays = (dh, tensors[5], kept, state, tensors[7])
        return op.backward(*arrays, bias=options["bias"], out=out)[0]

    def outs(tensors: Tensors) -> Any:
        if case.direction == "forward":
            return tensors[:3:-1] if is_lstm else tensors[-1]
        return (*tensors[: -4 - is_gru : -1], *[None] * is_gru)

    ours = forward if case.direction == "forward" else backward
    return GpuWork(
        make,
        lambda *tensors: ours(tensors, outs(tensors)),
        lambda *tensors: ours(tensors, None),
        _gate_peers(wanted, device.torch, op.name, states if ours is backward else 0),
    )


GPU_WORKLOADS = {
    "activations": Family(_activation_cases, _activation_work),
    "gates": Family(_gate_cases, _gate_work),
    "reductions": Family(_reduction_cases, _reduction_work),
}
