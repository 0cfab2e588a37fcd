"""Cases of the benchmarks, our calls of them, and torch's: on the CPU and on a GPU.

Our call follows from the op's own description of its entry points (`ops/engine/op.py`): a case has
the options, its family makes the arrays, both by name, and the op takes of them what it asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastact.bench.bench import TimedCall, by_torch
from fastact.measure.cases import Maker, arguments
from fastact.measure.peers import LeftOut, compiled_by_torch

from ..shapes import Axis, Layout, Shape, shape_label, shared
from .libraries import Library, NumPy, Torch

ITEM = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}

#: Elements of an array on a GPU where no sizes are given: 128 MiB of float32, and 256 MiB of any
#: type.
ELEMENTS = 2**25
BYTES = 2**28
#: Of small calls, the most elements: what they cost is the call.
SMALL = 1024

_DRAWN = 1_000_003  # random numbers for an array; a prime, which no row is long

Call = Callable[[], Any]
Arrays = Mapping[str, Any]  # by the names that entry points give them
Sizes = Sequence[int] | None


@dataclass(frozen=True)
class Options:
    """What to measure, on the CPU or on a GPU.

    sizes : elements of an array, on the CPU for ops without axes; None for those of each family.
    dtypes, directions : types of the arrays; "forward", "backward" or both.
    peers : other libraries; those that are not installed are named and left out.
    threads : on the CPU, for everybody; one run after the other.
    shapes : on the CPU, names of shapes for ops with axes; all of them if it is empty.
    seconds : to spend on a row, about.
    small : whether to measure few elements, and beside them the first call and calls of tensors.
    stop_after : seconds after which no row is started; the rest is left for a run that goes on.
    goes_on : whether to measure only what the file of numbers lacks.
    compiled : on a GPU, dtypes for which torch.compile takes part, where it is a peer.
    telling_first : on a GPU, in the order of what one learns by it, not table by table.
    """

    sizes: Sizes
    dtypes: tuple[Any, ...]
    directions: tuple[str, ...]
    peers: tuple[str, ...]
    threads: tuple[int, ...] = ()
    shapes: tuple[str, ...] = ()
    seconds: float = 1.0
    small: bool = False
    stop_after: float = math.inf
    goes_on: bool = False
    compiled: tuple[str, ...] = tuple(ITEM)
    telling_first: bool = False


@dataclass(frozen=True)
class Case:
    """One row of a benchmark.

    label : the case in words, beside op, direction and dtype.
    accesses : arrays of `shape` that are read or written; two are what a copy moves.
    options : of the op's call, by name.
    axis : which axes are summed over, or share a bias; None for all.
    channel : the axis of the channels, of ops that have one.
    variant : what else tells it from other cases of the op: an activation, an entry point.
    on_gpu : whether it is one of the GPU benchmark, which the rest is for.
    span : how many elements share a result, a mean or a bias; 0: those along `axis`.
    sums : whether it writes next to nothing.
    small : bytes that move beside the arrays of `shape`.
    """

    op: Any
    direction: str
    dtype: str
    shape: Shape
    label: str
    accesses: int
    options: Arrays = field(default_factory=dict)
    axis: Axis = None
    channel: int | None = None
    variant: str = ""
    on_gpu: bool = False
    span: int = 0
    sums: bool = False
    small: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "span", self.span or shared(self.shape, self.axis))

    @property
    def entry(self) -> str:
        """The entry point of the op that is called."""
        if self.variant in self.op.entry_points:
            return self.variant
        return "call" if self.direction == "forward" else "backward"

    @property
    def size(self) -> int:
        """Elements of the array."""
        return prod(self.shape)

    @property
    def moved(self) -> int:
        """Bytes that have to move: each input read once, the output written once."""
        return self.accesses * self.size * ITEM[self.dtype] + self.small

    @property
    def words(self) -> dict[str, Any]:
        """What tells it from all others."""
        of = self.op.name, self.direction, self.dtype, self.label
        return dict(zip(("op", "direction", "dtype", "what"), of, strict=True))

    @property
    def name(self) -> str:
        """The same in one."""
        return name_of(**self.words)

    @property
    def series(self) -> str:
        """Under which name its rate is drawn over `span`."""
        last = "channels last" if self.channel == -1 else ""
        return ", ".join(filter(None, (self.op.name, last, self.variant)))


@dataclass(frozen=True)
class Asked:
    """A request for cases of an op, in a direction and a dtype, on the CPU or on a GPU.

    sizes : elements of an array; None for the sizes of the family. shapes, small : as `Options` has
        them.
    """

    op: Any
    direction: str
    dtype: str
    on_gpu: bool
    sizes: Sizes = None
    shapes: tuple[str, ...] = ()
    small: bool = False

    @property
    def forward(self) -> bool:
        """Whether it is no backward pass."""
        return self.direction == "forward"

    def sized(self, nbytes: int = BYTES // 2) -> tuple[int, ...]:
        """Elements of an array: what is asked for, or else so many bytes."""
        return tuple(self.sizes or (nbytes // ITEM[self.dtype],))

    def layouts(self, table: Sequence[Layout], on_gpu: Sequence[Layout]) -> Sequence[Layout]:
        """The layouts of the sizes, on a GPU, or those of a table of the CPU that are asked for."""
        if self.on_gpu or self.small:
            return on_gpu
        return [layout for layout in table if not self.shapes or layout.name in self.shapes]

    def case(self, shape: Shape, accesses: int, label: str = "", **more: Any) -> Case:
        """One of them; label: the shape, if there is none. more : further fields of a `Case`."""
        first = self.op, self.direction, self.dtype, shape
        return Case(*first, label or shape_label(shape), accesses, on_gpu=self.on_gpu, **more)


def name_of(op: str, direction: str, dtype: str, what: str) -> str:
    """A case in words, by which a later run knows it again."""
    return f"{op} {direction}, {dtype}, {what}"


@lru_cache(maxsize=64)
def _drawn(seed: int, count: int, dtype: str) -> NDArray[Any]:
    """Normal random numbers, the same each time: to draw them takes longer than to copy them."""
    normal = np.random.default_rng(seed).standard_normal(count, dtype=np.float32)
    return np.asarray(normal).astype(dtype)


class InMemory:
    """Arrays, each of other numbers.

    given : makes of an array of NumPy what is handed out.
    """

    def __init__(self, given: Callable[[NDArray[Any]], Any] = lambda array: array) -> None:
        self._made, self._given = 0, given

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """An array of normal random numbers; of a large one they come again, in other rows."""
        self._made += 1
        drawn = _drawn(self._made, min(prod(shape), _DRAWN), dtype)
        return self._given(np.resize(drawn, tuple(shape)))

    def integers(self, shape: Sequence[int], end: int) -> Any:
        """An array of random int64 from 0 to below `end`."""
        self._made += 1
        return self._given(np.random.default_rng(self._made).integers(0, end, shape))


@dataclass(frozen=True)
class Gradient:
    """What a peer does on backward where that is not autograd.

    function : of what `arguments` makes, before the clock starts, of the arrays by name.
    """

    function: Callable[..., Any]
    arguments: Callable[[Arrays], Sequence[Any]]


def _no_gradient(m: Library, case: Case) -> Gradient | None:
    return None


def _as_they_are(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    return arrays


@dataclass(frozen=True)
class Family:
    """How a family is measured.

    cases : those that are asked for; none for an op that is not known.
    optional : arrays that may be left out of a call, and are given (see `arguments`).
    prepared : changes the arrays of a call, by name; None where one must be given and is not there.
    by : what a case is by NumPy, torch or jax: a function of the inputs by keyword, and for an
        entry point of its own of that, which torch and jax differentiate. It raises `LeftOut` for
        what the library does not have.
    gradient : how torch or NumPy differentiates a case where that is not autograd over that
        function.
    constant : names of inputs that autograd does not differentiate by.
    onnx : the nodes of ONNX that do a case, in the words of its parser: of the inputs by their
        names, to y.
    heading : of the column that tells the cases apart.
    note : what the legend has to say of this family.
    """

    cases: Callable[[Asked], list[Case]]
    by: Callable[[Library, Case], Callable[..., Any]]
    gradient: Callable[[Library, Case], Gradient | None] = _no_gradient
    optional: tuple[str, ...] = ()
    prepared: Callable[[Case, dict[str, Any]], dict[str, Any]] = _as_they_are
    constant: frozenset[str] = frozenset()
    onnx: Callable[[Case], str] | None = None
    heading: str = "shape"
    note: str = ""

    def on_cpu(self, op: Any, direction: str, dtype: str, options: Options) -> list[Case]:
        """The cases on the CPU."""
        told = options.sizes, options.shapes, options.small
        found = self.cases(Asked(op, direction, dtype, False, *told))
        return [case for case in found if not options.small or case.size <= SMALL]

    def on_gpu(self, op: Any, direction: str, dtype: str, sizes: Sizes) -> list[Case]:
        """The cases on a GPU, for the sizes that are asked for, if any."""
        return self.cases(Asked(op, direction, dtype, True, sizes))


class Work(TimedCall):
    """Our call of a case on arrays of its own.

    inputs, incoming : the arrays that peers get: those that the op's call takes, and for backward
        the results' gradients.
    """

    def __init__(self, case: Case, family: Family, make: Maker) -> None:
        self.case, self.family = case, family
        op, data = case.op, (case.shape, case.dtype, case.options, make)
        given = family.prepared(case, arguments(op, "call", *data, family.optional))
        self.inputs = {name: array for name, array in given.items() if array is not None}
        incoming: dict[str, Any] = {}
        if case.entry == "backward":
            incoming = arguments(op, "backward", *data)
            # On the CPU, cases have no gradient for a sum beside y.
            if case.on_gpu and "dtotal" in op.entry_points["backward"].defaults:
                incoming["dtotal"] = make.random(case.shape, case.dtype)
            incoming = family.prepared(case, incoming)
        super().__init__(op, case.entry, {**case.options, **given}, incoming)

    @property
    def given(self) -> tuple[Arrays, Arrays]:
        """The arrays that peers get."""
        return self.inputs, self.incoming

    @property
    def arrays(self) -> Arrays:
        """The same in one, by name."""
        return {**self.inputs, **self.incoming}


def torch_binder(
    torch: Any, case: Case, family: Family, compiles: bool = False
) -> Callable[[Arrays, Arrays], Call]:
    """torch's call of a case, of the inputs and the incoming gradients as tensors.

    Whatever can be done once for many such calls is done here.
    """
    m, backward = Torch(torch), case.entry == "backward"
    function = family.by(m, case)
    gradient = family.gradient(m, case) if backward and not compiles else None
    prepared = (lambda one: compiled_by_torch(torch, one)) if compiles else (lambda one: one)
    if gradient is not None:
        of, arguments = gradient.function, gradient.arguments
        return lambda inputs, incoming: partial(of, *arguments({**inputs, **incoming}))
    return partial(by_torch, torch, prepared(function), constant=family.constant)


def by_numpy(work: Work, threads: int) -> Call:
    """NumPy's call of a case; it has the gradients that the family writes."""
    m, case, family = NumPy(), work.case, work.family
    if case.entry != "backward":
        return partial(family.by(m, case), **work.inputs)
    gradient = family.gradient(m, case)
    if gradient is None:
        raise LeftOut("nobody writes the chain of its gradient")
    return partial(gradient.function, *gradient.arguments(work.arrays))
