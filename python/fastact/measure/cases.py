"""A call of any op as data, and which arrays its entry points take for data of a shape.

The shapes of arrays follow from the data's and from the options as the op itself finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np

from ..ops.bounds import computed_in
from ..ops.engine.entry import ANY, REQUIRED
from .sum_axes import axes_of, is_sum

Shape = tuple[int, ...]
DOUBLE = np.dtype(np.float64)

#: The results of entry points that call them something else.
RESULTS = {"value_and_grad": ("y", "dx")}


@dataclass(frozen=True)
class Case:
    """A call of an op."""

    op: Any
    entry: str
    shape: Shape  # the data's
    dtype: np.dtype[Any]  # the data's, of which integers have become numbers
    given: Mapping[str, Any]  # arrays of NumPy and options, where they are not as by default
    on_gpu: bool = False

    def option(self, name: str) -> Any:
        value = self.given.get(name, self.op.entry_points["call"].defaults.get(name, REQUIRED))
        return None if value is REQUIRED else value

    def has(self, name: str) -> bool:
        return self.given.get(name) is not None

    def array(self, name: str) -> Any:
        """Return an array in its full shape, also where a number stands for it."""
        array = np.asarray(self.given[name])
        return array if array.ndim else np.broadcast_to(array, self.shapes.get(name, self.shape))

    @property
    def shapes(self) -> dict[str, Shape]:
        return shapes_of(self.op, self.entry, self.shape, self.given)

    @property
    def results(self) -> tuple[str, ...]:
        return results_of(self.op, self.entry)

    def at(self, entry: str, **more: Any) -> Case:
        """Return a call of another entry point with the same arguments and more."""
        return replace(self, entry=entry, given={**self.given, **more})


def arrays_of_entry(op: Any, entry: str) -> tuple[str, ...]:
    """Return the names of the arrays that an entry point takes, in its order."""
    point = op.entry_points[entry]
    taken = {name.partition("[")[0] for name in point.taken}
    return tuple(n for n in (*point.arrays, *point.defaults) if n in taken)


def results_of(op: Any, entry: str) -> tuple[str, ...]:
    """The names of an entry point's results; forward's are followed by the names in `saves`."""
    if entry in ("call", "forward", "merge"):
        return (*op.results, *(op.saves if entry == "forward" else ()))
    return RESULTS.get(entry) or tuple(op.entry_points[entry].gives)


def is_loss(op: Any) -> bool:
    """Tell whether an op is the loss of rows against a target."""
    return "target" in op.entry_points["call"].arrays


def dtype_of(op: Any, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of one of an op's arrays, where nobody chooses another one, by the data's."""
    if name in ("divisor", "sum_dy", "sum_dy_xhat") or (name in op.results and "m2" in op.results):
        return DOUBLE
    statistics = ("mean", "rstd", "running_mean", "running_var") if "rstd" in op.saves else ()
    if name in (*statistics, "lse", "rest", "share") or (name == "weight" and is_loss(op)):
        return computed_in(dtype)
    return np.dtype({"target": np.int64, "where": np.bool_}.get(name, dtype))


def shapes_of(op: Any, entry: str, shape: Shape, named: Mapping[str, Any]) -> dict[str, Shape]:
    """The shapes of arrays that go into a call or come out of it, by name, but the data's own.

    shape : of the data. named : the call's options; a gates op's `order` and a mask change none.
    """
    adds_up = is_sum(op) or op.family in ("reductions", "statistics")
    found = (_of_sum if adds_up else _by_the_op)(op, entry, shape, named)
    return {**{f"d{name}": of for name, of in found.items()}, **found}


class Maker(Protocol):
    """Who makes arrays: NumPy, a GPU, or a test."""

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """Return an array of normal random numbers."""

    def integers(self, shape: Sequence[int], end: int) -> Any:
        """Return an array of random int64 from 0 to below `end`."""


class Drawn:
    """A maker of arrays by functions of random numbers and a shape: of the first, and of others.

    fits : whether the arrays' dtype has had all of their numbers.
    """

    def __init__(self, first: Callable[..., Any], others: Callable[..., Any]) -> None:
        self._draw, self._others, self._rng = first, others, np.random.default_rng(0)
        self.fits = True

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        with np.errstate(over="ignore"):
            made = self._draw(self._rng, *shape).astype(dtype)
        self.fits &= bool(np.isfinite(made).all())
        self._draw = self._others
        return made

    def integers(self, shape: Sequence[int], end: int) -> Any:
        """Draw integers from 0 to below `end`."""
        return self._rng.integers(0, end, tuple(shape))


def arguments(
    op: Any,
    entry: str,
    shape: Shape,
    dtype: str,
    named: Mapping[str, Any],
    make: Maker,
    optional: Collection[str] = (),
) -> dict[str, Any]:
    """Return the arrays that a call must be given, by name, in the order of the signature.

    Of backward, the gradients alone: the rest is what forward saves.

    shape, dtype : of the data. named : the call's options. optional : arrays that may be left out
    and are not, where the op has a gradient for them.
    """
    point, shapes = op.entry_points[entry], shapes_of(op, entry, shape, named)
    found: dict[str, Any] = {}
    for name in arrays_of_entry(op, entry):
        is_saved = entry == "backward" and name in op.saves
        needed = name in point.arrays or point.defaults[name] is REQUIRED
        wanted = name in optional and (name in op.differentiated or name in op.shares)
        if is_saved or not (needed or wanted):
            continue
        of = shapes["weight" if name in ("mean", "rstd") else name] if name in shapes else shape
        if name == "target":
            found[name] = make.integers(of, shapes["weight"][0])
        elif name == "dy" and len(op.results) > 1 and op.family == "reductions":
            found[name] = tuple(make.random(of, dtype) for _ in op.results)
        else:
            found[name] = make.random(of, dtype)
        if name in ("running_var", "rstd", "weights"):
            found[name] = abs(found[name])
    return found


def bound(
    op: Any, entry: str, named: Mapping[str, Any], incoming: Mapping[str, Any]
) -> partial[Any]:
    """A call of an entry point, by forward's arguments and, for backward, incoming gradients."""
    if entry != "backward":
        return cast("partial[Any]", op.bound(entry, named))
    _, saved = op.bound("forward", named)()
    given = {**named, **incoming, **dict(zip(op.saves, saved, strict=True))}
    return cast("partial[Any]", op.bound(entry, given))


#: Options that have no default, as examples have them.
_NEEDED = {"num_groups": 2, "p": 0.25, "seed": 3}


def needed(op: Any) -> dict[str, Any]:
    """Choose those that an op has."""
    return {n: v for n, v in _NEEDED.items() if n in op.entry_points["call"].defaults}


class _Given:
    """Makes arrays of one that is there, and of another one of its shape with two axes."""

    def __init__(self, x: Any, dy: Any) -> None:
        self._x, self._next = x, iter((x,))
        self._dy = dy

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        """Return the first array, then the other one, or both side by side; of one axis, a ramp."""
        if tuple(shape) == self._x.shape:
            return next(self._next, self._dy)
        if len(shape) == 1:
            return np.linspace(0.5, 1.5, shape[0]).astype(self._x.dtype)
        turns = -(-shape[1] // (2 * self._x.shape[1]))
        beside = np.concatenate((self._x, self._dy) * turns, 1)[:, : shape[1]]
        return np.ascontiguousarray(beside)

    def integers(self, shape: Sequence[int], end: int) -> Any:
        """All of them, in turns."""
        return np.arange(shape[0]) % end


def options_of_example(op: Any, shape: Sequence[int]) -> dict[str, Any]:
    """Return the options of an example of a call, by name, for data of a shape."""
    defaults = op.entry_points["call"].defaults
    named: dict[str, Any] = needed(op)
    for name, value in (("training", True), ("shape", (shape[0], *(1 for _ in shape[1:])))):
        named |= {name: value} if name in defaults else {}
    if defaults.get("axis", 0) in (None, REQUIRED) and not is_loss(op):
        named["axis"] = 0 if "keepdims" in defaults else 1
    if op.family == "bias" and not is_sum(op):
        named["activation"] = "mish"
    return named


def sample(op: Any, x: Any, dy: Any) -> dict[str, Any]:
    """Return the arguments of an example of a call, by name.

    x and dy have one shape with two axes; dy serves as whatever else has x's shape. Channels are
    even.
    """
    named = options_of_example(op, x.shape)
    optional = (*op.differentiated, "residual")
    given = arguments(op, "call", x.shape, x.dtype.name, named, _Given(x, dy), optional)
    return {**given, **dict.fromkeys(op.written), **named}


def _packed(op: Any, entry: str, shape: Shape, named: Mapping[str, Any]) -> Shape:
    """The shape of the first array for data of a shape, which several gates share, or halves."""
    axis, count = -1, 1
    if op.family == "gated" and op.packed:
        axis, count = named.get("axis", op.entry_points["call"].defaults["axis"]), 2
    elif op.family == "gates":
        is_kept = entry == "backward" and not named.get("recompute", False)
        count = len(op.kept) if is_kept else op.count
    lengths = list(shape)
    if count > 1:
        lengths[axis] *= count
    return tuple(lengths)


def _by_the_op(op: Any, entry: str, shape: Shape, named: Mapping[str, Any]) -> dict[str, Shape]:
    """Ask the op itself for the shapes of a call."""
    first, own = op.entry_points["call"].arrays[0], _packed(op, entry, shape, named)
    views: dict[str, Any] = {first: SimpleNamespace(shape=own, ndim=len(own))}
    for name, value in named.items():
        if name in op.args and name != first and value is not None:
            views[name] = value if hasattr(value, "shape") else np.asarray(value)
    defaults = {**op.entry_points[entry].defaults, **op.entry_points["call"].defaults}
    says = {n: value for n, value in named.items() if isinstance(value, int | str | tuple | list)}
    options = SimpleNamespace(**{**defaults, **says})
    call: Any = SimpleNamespace(where=op.name, views=views)
    found = op._shapes(call, options, entry if op.family == "gates" else "call")
    names = {n: out.shape for n, out in op.outs.items() if out.shape and not out.like}
    names |= {n: arg.shape.partition(" or ")[0] for n, arg in op.args.items() if arg.shape}
    shapes = {n: getattr(found, of) for n, of in names.items() if "." not in n and of != ANY}
    if is_loss(op):
        shapes |= {"target": found.losses, "weight": shape[found.axis :][:1]}
    return {**shapes, first: own}


def _of_sum(op: Any, entry: str, shape: Shape, named: Mapping[str, Any]) -> dict[str, Shape]:
    _, result = axes_of(op, shape, named)
    return {"dy": result} if entry == "backward" else dict.fromkeys(op.results, result)
