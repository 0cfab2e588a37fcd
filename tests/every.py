"""Calls of every op in every way to call it, for what holds of all of them on every backend."""

import math
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from devices import FRAMEWORKS, KERNELS, Framework

import fastact as fa
from fastact.measure.cases import arguments, bound, options_of_example
from fastact.ops.engine.op import arrays_of


class Drawn(Enum):
    """Arrays beside the data that a call is given, drawn for it."""

    MASK, WEIGHTS, LABELS = range(3)

    def of(self, shape: tuple[int, ...]) -> np.ndarray:
        draw = np.random.default_rng(len(shape))
        if self is Drawn.LABELS:
            return draw.integers(-1, 3, shape[0])
        return draw.random(shape) < 0.7 if self is Drawn.MASK else draw.random(shape)


#: Options that change how arrays are read, added up or written.
WAYS: list[dict[str, Any]] = [
    {}, {"activation": "mish"}, {"activation": "relu", "residual": None}, {"axis": 0},
    {"axis": (0, 1)}, {"axis": -1, "keepdims": True}, {"channel_axis": -1, "activation": "mish"},
    {"scale": 0.5}, {"interleaved": True, "gate": "first"}, {"gate": "first"}, {"gate_first": True},
    {"group_size": 2}, {"limit": 0.75, "offset": 0.5}, {"order": "iofg"}, {"recompute": True},
    {"reduction": "none", "label_smoothing": 0.25}, {"casting": "gemma"}, {"bias": None},
    {"casting": "llama", "weight_offset": 0.5}, {"weight": None}, {"interleaved": True},
    {"softcap": 2.0}, {"mask": Drawn.MASK}, {"where": Drawn.MASK},
    {"weights": Drawn.WEIGHTS}, {"skipna": True}, {"by": Drawn.LABELS, "groups": 3, "axis": 0},
]  # fmt: skip

#: What kernels tell apart: less than a vector, whole vectors, odd ends, rows of more than a warp, a
#: chunk and a block, many short rows, columns of several tiles, rows of several axes.
SHAPES = [
    (2, 2), (6, 16), (9, 33), (7, 34), (3, 1030), (140, 6), (40, 300), (300, 8), (4, 6, 24),
    (2, 4, 3, 6), (5, 6, 7), (2, 9001), (515, 3), (1030, 4),
]  # fmt: skip

#: For the CPU, whose sums are cut into blocks of 2048 rows, and whose work among threads.
LARGE = [(5000, 40), (300, 1030), (2, 1100, 130), (2, 70_001)]
LARGE += [(9, 12, 20, 20), (9, 20, 20, 12), (20_001, 3), (3, 2500, 65), (45, 24, 7, 7)]
EMPTY = [(0, 4), (4, 0), (0, 0), (0, 4, 6), (2, 0, 6), (2, 4, 0)]


#: Ops whose elements don't depend on each other: a long row shows no more of them than a short one.
MAPS = ("activations", "dropout")

#: Families whose ops' kernels differ by a formula alone, or by what is made of one set of moments.
ALIKE = ("gated", "statistics")

#: Normal numbers, drawn once: to draw them for each array would take a third of the tests' time.
NORMAL = np.random.default_rng(0).normal(size=1 << 20)


class Random:
    """Makes arrays of normal numbers, each of which begins elsewhere in `NORMAL`."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def random(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        size = math.prod(shape)
        first = self.draw.integers(NORMAL.size - size)
        return NORMAL[first : first + size].reshape(shape).astype(dtype)

    def integers(self, shape: Sequence[int], end: int) -> np.ndarray:
        return np.asarray(self.draw.integers(0, end, shape))


class Call:
    """A call of an op with all arrays that it takes, and of its backward, of NumPy's arrays."""

    def __init__(self, op: Any, way: dict[str, Any], shape: tuple[int, ...], dtype: Any) -> None:
        self.op, self.shape, self.dtype = op, shape, np.dtype(dtype)
        drawn = {n: v.of(shape) if isinstance(v, Drawn) else v for n, v in way.items()}
        options, make = {**options_of_example(op, shape), **drawn}, Random(sum(shape))
        optional = {*op.differentiated, "residual"} - {*way}
        given = arguments(op, "call", shape, self.dtype.name, options, make, optional)
        self.named = {**given, **dict.fromkeys(op.written), **options}
        self.result, self.saved = op.bound("forward", self.named)()
        self.dys = [make.random(np.shape(y), self.dtype.name) for y in arrays_of(self.result)]

    @property
    def forward(self) -> partial[Any]:
        return bound(self.op, "call", self.named, {})

    def backward(self, *dys: Any) -> partial[Any]:
        dys = dys or (*self.dys,)
        incoming = {f"d{n}": dy for n, dy in zip(self.op.results, dys, strict=True)}
        incoming = {"dy": dys if len(dys) > 1 else dys[0], **incoming}
        saved = dict(zip(self.op.saves, self.saved, strict=True))
        named = {**self.named, **incoming, **saved}
        found: partial[Any] = self.op.bound("backward", named)
        return found

    @property
    def both(self) -> tuple[partial[Any], partial[Any]]:
        return self.forward, self.backward()


@cache
def fits(op: Any, way: str, shape: tuple[int, ...]) -> bool:
    """Whether an op takes such options, and data of such a shape with them."""
    options = next(w for w in WAYS if repr(w) == way)
    if not {*options} <= {*op.entry_points["call"].defaults, *op.entry_points["forward"].defaults}:
        return False
    if (
        "channel_axis" in op.entry_points["call"].defaults
        and len(shape) == 2
        and np.prod(shape) > 1000
    ):
        return False  # as many rows of one element, each of which takes the emulated device a while
    if "channel_axis" in options and len(shape) < 3:
        return False  # whose channels come last without the option
    if op.family in MAPS and shape == (2, 9001):
        return False  # which takes the emulated device longest
    try:
        Call(op, options, shape, np.float32).both  # noqa: B018
    except (TypeError, ValueError, IndexError):
        return False
    return True


def shapes_of(op: Any, way: dict[str, Any], *seed: Any, count: int = 1) -> list[tuple[int, ...]]:
    """Some shapes that fit, other ones for each dtype and test."""
    fitting = [shape for shape in SHAPES if fits(op, repr(way), shape)]
    first = zlib.crc32(repr((op.name, way, *map(str, seed))).encode())
    return [fitting[(first + 3 * i) % len(fitting)] for i in range(min(count, len(fitting)))]


def large(op: Any, way: dict[str, Any], *seed: Any) -> tuple[int, ...]:
    """A shape for the CPU, whose work is cut into blocks and among threads.

    The next one that fits: to try all of them would take longer than what is tested.
    """
    first = zlib.crc32(repr((op.name, way, *map(str, seed))).encode()) % len(LARGE)
    return next(s for s in (*LARGE[first:], *LARGE[:first]) if fits(op, repr(way), s))


with warnings.catch_warnings(action="ignore"):  # of groups without elements
    PAIRS = [
        (op, way) for op in fa.ops.values() for way in WAYS
        if any(fits(op, repr(way), shape) for shape in SHAPES)
    ]  # fmt: skip


def each_call(
    places: Sequence[Framework], kept: Callable[[Any, Any], bool] = lambda op, way: True
) -> Any:
    """Each op in each way to call it that it has, in each of these places.

    A plain run has on devices, and of families with one set of kernels everywhere, each op in one
    way, and each other way on one op a family.
    """
    with warnings.catch_warnings(action="ignore"):
        rows = [
            (op, way, place) for op, way in PAIRS if kept(op, way) for place in places
            if place.exact or "by" not in way  # groups are the CPU's
        ]  # fmt: skip
    shown, params = set(), []
    for op, way, place in rows:
        key = op.family, repr(way), place.name
        is_one_of_many = not place.exact or op.family in ALIKE
        marks = pytest.mark.thorough if way and is_one_of_many and key in shown else ()
        shown.add(key)
        params.append(
            pytest.param(op, way, place, marks=marks, id="-".join((op.name, *way, place.name)))
        )
    return pytest.mark.parametrize(("op", "way", "place"), params)


#: NumPy's arrays, and each device's.
PLACES = [FRAMEWORKS[0], *KERNELS]


def moved(call: partial[Any], change: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    """A call with its arrays changed; one that is given twice is one array still."""
    seen: dict[int, Any] = {}

    def one(value: Any) -> Any:
        if isinstance(value, tuple) and any(isinstance(v, np.ndarray) for v in value):
            return tuple(map(one, value))
        if not isinstance(value, np.ndarray | np.generic):
            return value
        if id(value) not in seen:  # NumPy's arrays without axes are numbers
            seen[id(value)] = change(np.asarray(value))
        return seen[id(value)]

    args = tuple(map(one, call.args))
    keywords = {name: one(value) for name, value in call.keywords.items()}
    return lambda **named: call.func(*args, **keywords, **named)


def arrays_in(call: partial[Any]) -> Iterator[np.ndarray]:
    """The arrays that a call is given."""
    for value in (*call.args, *call.keywords.values()):
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, np.ndarray):
                yield one


def parts(made: Any, place: Framework) -> list[np.ndarray | None]:
    """The results of a call, as NumPy's arrays; of forward those that are saved, too."""
    if isinstance(made, tuple) and isinstance(made[-1], tuple):
        made = (*arrays_of(made[0]), *made[1])
    found = [a if a is None or hasattr(a, "dtype") else np.asarray(a) for a in arrays_of(made)]
    return [
        a if a is None or isinstance(a, np.ndarray) else np.asarray(place.numpy(a)) for a in found
    ]


def results(place: Framework, call: partial[Any], change: Any = lambda a: a) -> list[Any]:
    """The results of a call with its arrays changed, in a place."""
    return parts(moved(call, lambda a: place.of(change(a)))(), place)
