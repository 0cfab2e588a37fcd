"""The parts of a call: arrays, their layouts and values, parameters, outputs.

All of it is a description, drawn from one `random.Random`; `memory.py` makes arrays of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import takewhile
from random import Random
from typing import Any

import ml_dtypes
import numpy as np

import fastact as fa

Shape = tuple[int, ...]

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
INFO = {dtype: ml_dtypes.finfo(dtype) for dtype in DTYPES.values()}
FLOAT32, FLOAT64 = DTYPES["float32"], DTYPES["float64"]
#: The types in which NumPy's float functions, and so all ops but sums, compute integers.
INTEGERS = {
    np.dtype(kind): np.tanh.resolve_dtypes((np.dtype(kind), None))[0]
    for kind in ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "uint64")
}


# --- layouts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """The places of the elements of an array.

    order : the axes from the outermost to the innermost in memory.
    steps : for each axis, the distance to the next element in units of the dense one; negative
        ones run backwards.
    odd : bytes by which the base misses a multiple of the item's size.
    """

    order: Shape
    steps: Shape
    odd: int = 0

    @staticmethod
    def dense(ndim: int) -> Layout:
        return Layout(tuple(range(ndim)), (1,) * ndim)


def layout(r: Random, ndim: int, itemsize: int, *, backwards: bool, odd: bool) -> Layout:
    """Dense in C order half of the time, else any. backwards, odd: what may be."""
    kind = r.random()
    if kind < 0.45:
        return Layout.dense(ndim)
    order = list(range(ndim))
    if kind < 0.7 or r.random() < 0.4:
        order.reverse() if r.random() < 0.5 else r.shuffle(order)
    steps = [1] * ndim
    if kind > 0.6 and ndim:
        for axis in r.sample(range(ndim), min(ndim, r.choice((1, 1, 2)))):
            steps[axis] = r.choice((-1, -1, 1, 2, 3, -2) if backwards else (2, 3, 1))
    off = r.randrange(1, itemsize) if odd and itemsize > 1 and r.random() < 0.15 else 0
    return Layout(tuple(order), tuple(steps), off)


# --- values ---------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, shape: Shape, dtype: np.dtype[Any], kind: str) -> Any:
    """An array of one kind of values: see the branches."""
    if kind == "plain":
        values = rng.standard_normal(shape)
    elif kind == "positive":
        values = rng.uniform(0.5, 1.5, shape)
    elif kind == "wide":  # four orders of magnitude
        values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 1.5, shape)
    elif kind == "far":  # from 0, for their spread
        values = rng.standard_normal(shape) + (500.0 if dtype.itemsize == 2 else 1e4)
    elif kind == "constant":
        values = np.full(shape, rng.uniform(-9, 9))
    elif kind == "exponents":  # all that the dtype has, subnormal numbers too
        info = INFO.get(dtype, INFO[FLOAT32])
        low, high = int(info.minexp) - int(info.nmant), int(info.maxexp)
        values = np.ldexp(rng.uniform(-1, 1, shape), rng.integers(low, high, shape))
    elif kind == "huge":  # whose squares overflow
        info = INFO.get(dtype, INFO[FLOAT32])
        values = rng.standard_normal(shape) * 2.0 ** (0.75 * int(info.maxexp))
    elif kind in ("specials", "not finite"):
        values = rng.standard_normal(shape) * 10.0 ** rng.uniform(-3, 1.5, shape)
        if values.size:
            share, of = (8, SPECIALS) if kind == "specials" else (64, SPECIALS[2:5])
            few = rng.integers(0, values.size, 1 + values.size // share)
            np.asarray(values).reshape(-1)[few] = of[rng.integers(0, len(of), few.size)]
    elif kind == "bits":
        values = rng.integers(0, 2, shape)
    elif kind == "labels":
        values = rng.integers(-1, 3, shape)
    elif kind == "small integers":
        values = rng.integers(0, 5, shape)
    else:
        raise ValueError(kind)
    return np.asarray(values).astype(dtype)


SPECIALS = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 5e-324, 3e38, -6e4, 1e-7])


# --- descriptions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Array:
    """An operand.

    values : a kind of `draw`. repeats : axes along which it is one element, at stride 0.
    stored : the dtype that it is given in, where integers stand for numbers; else None.
    form : "array", "list", "scalar" (NumPy's, of a 0-d array) or "number" (Python's).
    """

    name: str
    shape: Shape
    dtype: np.dtype[Any]
    values: str = "plain"
    layout: Layout | None = None
    repeats: Shape = ()
    stored: np.dtype[Any] | None = None
    form: str = "array"

    @property
    def drawn(self) -> Shape:
        """The shape of the values that tell it from another one."""
        return tuple(1 if i in self.repeats else n for i, n in enumerate(self.shape))


@dataclass(frozen=True)
class Number:
    """A parameter that is a real number, given as an object of some kind."""

    value: float
    kind: str = "float"


NUMBERS = ("float", "float", "float", "int", "bool", "float32", "float64", "int64", "0-d", "tensor")


def number(r: Random, *values: float) -> Number:
    """One of some values, as any kind of object that can hold it."""
    value = r.choice(values)
    kind = r.choice(NUMBERS)
    if kind in ("int", "int64") and value != int(value):
        kind = "float"
    if kind == "int64" and not -(2**63) <= value < 2**63:
        kind = "float"
    if kind == "bool" and value not in (0.0, 1.0):
        kind = "float"
    if kind in ("float32", "tensor"):
        value = float(np.float32(value))
    return Number(value, kind)


@dataclass(frozen=True)
class Out:
    """How an output is given.

    kind : "given" (`array` says how it lies), "place" (it is the operand `of`), "skip" (None), or
        what has to be refused: "overlap" (with part of `of`), "readonly", "shape", "dtype".
    """

    kind: str
    array: Array | None = None
    of: str = ""


@dataclass(frozen=True)
class Request:
    """A call: which op and entry point, of what, with what outputs.

    dtype : of the data, after integers have become numbers.
    given : its arguments by name: Arrays, Numbers, tuples of these, and plain objects.
    by_position : what may be given by position or by keyword is given by position.
    outs : one an output; empty: `out` is not given.
    notes : what `calls` knows of it.
    refused : why the call has to be refused, if it has.
    """

    op: str
    entry: str
    framework: str
    dtype: np.dtype[Any]
    given: dict[str, Any]
    by_position: bool = False
    outs: tuple[Out, ...] = ()
    as_tuple: bool = True
    accumulate: bool = False
    notes: dict[str, Any] = field(default_factory=dict)
    refused: str = ""

    @property
    def args(self) -> tuple[Any, ...]:
        return tuple(self.given[name] for name in self._leading)

    @property
    def named(self) -> dict[str, Any]:
        return {k: v for k, v in self.given.items() if k not in self._leading}

    @property
    def _leading(self) -> list[str]:
        """The names of the arguments that are given by position."""
        point = fa.ops[self.op].entry_points["call" if self.entry == "merge" else self.entry]
        either = [n for n in point.defaults if n not in point.by_keyword] * self.by_position
        return [*point.arrays, *takewhile(self.given.__contains__, either)]

    @property
    def arrays(self) -> Iterator[Array]:
        """The operands, each once."""
        for value in self.given.values():
            for part in value if isinstance(value, tuple) else (value,):
                if isinstance(part, Array):
                    yield part

    @property
    def where(self) -> str:
        """The entry point's name in messages."""
        return f"fastact.{self.op}" + (f".{self.entry}" if self.entry != "call" else "")

    @property
    def label(self) -> str:
        return self.where.removeprefix("fastact.")

    def __str__(self) -> str:
        def of(value: Any) -> str:
            if isinstance(value, Array):
                return array(value)
            if isinstance(value, Number):
                return f"{value.kind}({value.value:g})"
            if isinstance(value, tuple):
                return f"({', '.join(map(of, value))})"
            return repr(value)

        def array(a: Array) -> str:
            at = f" {a.form}" if a.form != "array" else ""
            if a.layout and a.layout != Layout.dense(len(a.shape)):
                at += f" order{a.layout.order} steps{a.layout.steps} odd{a.layout.odd}"
            at += f" repeats{a.repeats}" if a.repeats else ""
            return f"{a.name}:{a.stored or a.dtype}{a.shape} {a.values}{at}"

        parts = [*map(of, self.args), *(f"{k}={of(v)}" for k, v in self.named.items())]
        outs = [
            o.kind + (f"[{array(o.array)}]" if o.array else "") + (f"[{o.of}]" if o.of else "")
            for o in self.outs
        ]
        if outs:
            parts.append(f"out={'tuple' if self.as_tuple else ''}({', '.join(outs)})")
        if self.accumulate:
            parts.append("accumulate=True")
        must = f" (must be refused: {self.refused})" if self.refused else ""
        return f"{self.label}({', '.join(parts)}) of {self.framework}{must}"


# --- drawing --------------------------------------------------------------------------------------


LENGTHS = (0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 100, 129, 257)


class Draw:
    """A source of descriptions, with which `calls` draws.

    device : "cpu" or "emulated", which is slow and takes no number that is misaligned.
    """

    def __init__(self, r: Random, device: str = "cpu") -> None:
        self.r = r
        self.device = device
        if device == "cpu":
            self.framework = r.choices(("numpy", "torch", "plain"), (6, 3, 1))[0]
        else:
            self.framework = "emulated"
        self.dtype = DTYPES[r.choice(("float16", "bfloat16", "float32", "float32", "float64"))]
        self.limit = 300
        if device == "cpu" and r.random() < 0.03:  # enough for two threads
            self.limit = 40_000

    def chance(self, share: float) -> bool:
        return self.r.random() < share

    def shape(self, low: int = 0, high: int = 6, *, nonzero: bool = False) -> Shape:
        """Lengths whose product stays below the limit, of few axes mostly."""
        r = self.r
        ndim = min(max(r.choice((0, 1, 1, 2, 2, 2, 3, 3, 4, 5, 6)), low), high)
        lengths, left = [], self.limit
        for _ in range(ndim):
            n = r.choice(LENGTHS)
            if self.limit > 1000 and n > 8:
                n *= r.choice((1, 4, 20))
            if n == 0 and (nonzero or r.random() < 0.6):
                n = 2
            n = max(1, min(n, left)) if n else 0
            left = max(left // max(n, 1), 1)
            lengths.append(n)
        r.shuffle(lengths)
        return tuple(lengths)

    def some(self, shape: Shape, share: float = 0.3, *, drops: bool = True) -> Shape:
        """Draw a shape that broadcasts to another one; a share of its lengths is 1."""
        lengths = tuple(1 if self.chance(share) else n for n in shape)
        return lengths[self.r.randrange(len(shape) + 1) :] if drops else lengths

    def layout(self, ndim: int, dtype: np.dtype[Any]) -> Layout:
        """Draw a layout that the framework can hold."""
        backwards = self.framework != "torch" and not self.as_torch(dtype)
        odd = self.device == "cpu" and not self.as_torch(dtype)
        return layout(self.r, ndim, dtype.itemsize, backwards=backwards, odd=odd)

    def as_torch(self, dtype: np.dtype[Any]) -> bool:
        """Whether torch makes the memory known: NumPy exports no bfloat16."""
        return self.framework == "plain" and dtype == DTYPES["bfloat16"]

    def array(
        self,
        name: str,
        shape: Shape,
        values: str = "plain",
        dtype: np.dtype[Any] | None = None,
        *,
        leads: bool = False,
        number: bool = False,
    ) -> Array:
        """An operand. leads: it decides the dtype; number: a Python number may stand for it."""
        r, dtype = self.r, dtype or self.dtype
        made = Array(name, shape, dtype, values, self.layout(len(shape), dtype))
        kind = r.random()
        if number and kind < 0.06:
            return replace(made, form="number", shape=(), layout=None)
        if kind > 0.9 and shape:
            count = r.choice((1, 1, len(shape)))
            return replace(made, repeats=tuple(sorted(r.sample(range(len(shape)), count))))
        size = math.prod(shape)
        converts = self.framework == "numpy" and dtype == self.dtype and not leads
        if converts and 0 < size < 200 and 0.06 < kind < 0.10:
            return replace(made, form="list" if shape else "scalar")
        return made

    def held(
        self, name: str, shape: Shape, values: str = "plain", dtype: np.dtype[Any] | None = None
    ) -> Array:
        """An operand that is an array: of NumPy's scalars one may be Python's float, a number."""
        return replace(self.array(name, shape, values, dtype), form="array")

    def leader(
        self, name: str, shape: Shape, values: str = "plain", integers: np.dtype[Any] | None = None
    ) -> Array:
        """The operand that decides the dtype; integers and lists too, in NumPy.

        integers : what they are computed in; None: as np.tanh has it.
        """
        made, r = self.array(name, shape, values, leads=True), self.r
        size = math.prod(shape)
        if self.framework == "numpy" and r.random() < 0.08:
            stored = r.choice(list(INTEGERS))
            self.dtype = integers or INTEGERS[stored]
            return replace(
                made,
                dtype=self.dtype,
                values="bits" if stored == np.bool_ else "small integers",
                stored=stored,
                layout=replace(made.layout or Layout.dense(len(shape)), odd=0),
            )
        if self.framework == "numpy" and 0 < size < 200 and r.random() < 0.04:
            if shape:
                self.dtype = FLOAT64
                return replace(made, dtype=FLOAT64, form="list", repeats=())
            if self.dtype != FLOAT64:  # a float64 of NumPy is Python's float: a number
                return replace(made, form="scalar")
        return made

    def outs(
        self,
        outputs: list[tuple[str, Shape, np.dtype[Any]] | None],
        operands: dict[str, Array],
        places: list[Collection[str]],
        *,
        skips: bool = False,
        accumulates: bool = False,
    ) -> dict[str, Any]:
        """`outs`, `as_tuple`, `accumulate` and `refused` of a Request.

        outputs : of each, the name, the shape and the dtype; None where there is none.
        places : the names of the operands that each may be; it shares no memory with others.
        """
        r, made, refused = self.r, [], ""
        if self.chance(0.5):
            return {}
        accumulate = accumulates and self.chance(0.4)
        taken: set[str] = set()
        bad = self.chance(0.12)
        for i, output in enumerate(outputs):
            if output is None:
                made.append(Out("skip"))
                continue
            name, shape, dtype = output
            array = Array(f"out:{name}", shape, dtype, "plain", self.layout(len(shape), dtype))
            size = math.prod(shape)
            free = {*places[i]} - taken
            able = [a for n, a in operands.items() if n in free and _fits(a, shape, dtype)]
            if bad and not refused and size > 1:
                kind = r.choice(("readonly", "shape", "dtype", "overlap", "overlap", "forbidden"))
                shared = [a for a in operands.values() if a.shape == shape and _is_dense(a, dtype)]
                forbidden = [a.name for a in shared if a.name not in places[i]]
                if kind == "readonly" and self.framework == "numpy":
                    made.append(Out(kind, array))
                elif kind == "shape":
                    made.append(Out(kind, replace(array, shape=(*shape, 2), layout=None)))
                elif kind == "dtype":
                    other = FLOAT32 if dtype != FLOAT32 else FLOAT64
                    made.append(Out(kind, replace(array, dtype=other, layout=None)))
                elif kind == "overlap" and shared and self.device == "cpu":
                    made.append(Out(kind, replace(array, layout=None), r.choice(shared).name))
                elif kind == "forbidden" and forbidden:
                    made.append(Out("place", of=r.choice(forbidden)))
                else:
                    made.append(Out("given", array))
                    continue
                refused = f"out[{i}]: {kind}"
            elif able and self.chance(0.3) and not accumulate:
                chosen = r.choice(able)
                taken.add(chosen.name)
                made.append(Out("place", of=chosen.name))
            elif (skips or not accumulate) and len(outputs) > 1 and self.chance(0.25):
                made.append(Out("skip"))
            else:
                made.append(Out("given", array))
        if all(out.kind == "skip" for out in made):
            return {}
        as_tuple = len(made) > 1 or self.chance(0.3)
        return {
            "outs": tuple(made),
            "as_tuple": as_tuple,
            "accumulate": accumulate,
            "refused": refused,
        }


def _fits(a: Array, shape: Shape, dtype: np.dtype[Any]) -> bool:
    """Whether an operand can be an output of that shape and dtype."""
    if a.form != "array" or a.stored is not None or (a.shape, a.dtype) != (shape, dtype):
        return False
    return all(a.shape[axis] == 1 for axis in a.repeats)


def _is_dense(a: Array, dtype: np.dtype[Any]) -> bool:
    """Whether a part of it that is shifted by one element can be an output."""
    plain = a.form == "array" and a.stored is None and not a.repeats and a.dtype == dtype
    return plain and a.layout is not None and a.layout == Layout.dense(len(a.shape))
