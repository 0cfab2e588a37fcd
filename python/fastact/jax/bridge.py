"""Calls of ops in programs of XLA, with gradients and batches.

`Traced` calls the op with arrays without values, which shows the results of a call, and lets XLA
make them; `Derivative` puts `forward` and `backward` behind JAX's gradients and tangents.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from inspect import Parameter
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..interop import handlers, validate
from ..interop.shapes import Shape
from ..ops.engine.entry import DRAWN, TOLD, Entry
from ..ops.engine.op import arrays_of
from ..ops.engine.quantized import E8M0, named_format
from ..ops.engine.spec import spec_of
from ..ops.moments import Moments
from . import axes, composed
from .calls import Buffer, map_buffers, parts_of, text_of
from .linear import Map, Pair, by_formula, is_zero, zero

TARGET = "fastact"

_EVERY = ("out", "accumulate", "stream")  # of entry points, for memory that JAX's callers don't see


def _register(cls: Any, children: Any, rest: Any, make: Any) -> None:
    jax.tree_util.register_pytree_node(cls, lambda v: (children(v), rest(v)), make)


class Doubles:
    """A float64 array that an op saves while JAX has float64 switched off, as pairs of uint32."""

    dtype = np.dtype(np.float64)

    def __init__(self, bits: Any) -> None:
        self.bits = bits

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.bits.shape[:-1]
        return shape


def modelled(array: Any, shape: Sequence[int]) -> Any:
    """Describe an array of that shape."""
    if isinstance(array, Doubles):
        return Doubles(jax.ShapeDtypeStruct((*shape, 2), np.uint32))
    return jax.ShapeDtypeStruct(shape, array.dtype)


_register(Doubles, lambda d: (d.bits,), lambda d: None, lambda _, bits: Doubles(*bits))


def _of_output(array: Any) -> Any:
    """Give an output the form in which callers have it."""
    return Doubles(array) if array.dtype == np.uint32 else array


_ARRAYS = (jax.Array, np.ndarray, Doubles)


_register(
    Moments,
    lambda m: parts_of(m)[:2] if isinstance(m.count, int) else parts_of(m),
    lambda m: m.count if isinstance(m.count, int) else None,
    lambda count, arrays: Moments.of_checked(*arrays[2:] or (count,), *arrays[:2]),
)


class Template:
    """A call with its arrays taken out: `Buffer(i)` stands for the i-th of them."""

    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.args, self.kwargs = args, dict(kwargs)

    def _key(self) -> str:  # by the text of a value: 1, 1.0 and True are equal, but not the same
        return repr((self.args, self.kwargs))

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Template) and self._key() == other._key()

    def named(self, point: Entry) -> list[tuple[str, Any]]:
        return [*zip(point.arrays, self.args, strict=False), *self.kwargs.items()]

    def filled(self, of: Callable[[int], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return map_buffers(self.args, of), {n: map_buffers(v, of) for n, v in self.kwargs.items()}


def _taken_apart(
    point: Entry, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Template, list[Any]]:
    """Split a call into its template, with options by keyword, and its arrays."""
    count = len(point.arrays)
    options = dict(zip(point.leading[count:], args[count:], strict=False))
    if len(options) == len(args[count:]) and not options.keys() & kwargs.keys():
        args, kwargs = args[:count], {**options, **kwargs}  # else the op says what is wrong
    if TOLD in point.defaults and kwargs.get(TOLD) is not None:
        kwargs = {**kwargs, TOLD: validate.dtype_named(point.where, TOLD, kwargs[TOLD])}
    arrays: list[Any] = []

    def take(value: Any) -> Any:
        if isinstance(value, _ARRAYS):
            arrays.append(value)
            return Buffer(len(arrays) - 1)
        if isinstance(value, list | tuple):
            return tuple(map(take, value))
        return value.item() if isinstance(value, np.generic) else value

    return Template(take(tuple(args)), {n: take(v) for n, v in kwargs.items()}), arrays


# --- one call -------------------------------------------------------------------------------------


def _point_of(op: Any, entry: str) -> Entry:
    """The entry point that says what a call takes; `quantized` takes what the call does."""
    return op.entry_points["call" if entry == "quantized" else entry]  # type: ignore[no-any-return]


class Traced:
    """A call of an entry point with arrays of certain shapes and dtypes.

    given : its arrays, described. outputs : those that it makes, as JAX describes them.
    wanted : of a call that gives several gradients, which ones are to be made.
    donates : the first result has the memory of the first array.
    """

    def __init__(
        self,
        op: Any,
        entry: str,
        template: Template,
        arrays: Sequence[Any],
        wanted: Sequence[bool] | None = None,
        *,
        donates: bool = False,
    ) -> None:
        self.op, self.entry, self.template, self.donates = op, entry, template, donates
        function = op.entry_point(entry)
        for array in arrays:
            if not all(isinstance(n, int) for n in array.shape):
                raise TypeError(
                    f"fastact.jax.{op.name}: arrays must have numbers as their shape, got "
                    f"{array.shape}; export a program for each shape"
                )
        given = [Shape(a.shape, a.dtype, writable=donates and i == 0) for i, a in enumerate(arrays)]
        args, kwargs = template.filled(given.__getitem__)
        if isinstance(kwargs.get(DRAWN), Shape):
            kwargs[DRAWN] = 0  # no shape depends on it
        self.result = function(*args, **kwargs)
        if wanted is not None and isinstance(self.result, tuple):  # arrays alone have gradients
            self.result = tuple(
                v if wants else None for v, wants in zip(self.result, wanted, strict=False)
            )
        if donates:  # may it be written, and is it of the shape?
            others = arrays_of(self.result)[1:]
            function(*args, **kwargs, out=(given[0], *others) if others else given[0])
        places = {id(array): Buffer(i) for i, array in enumerate(given)}
        made: list[Any] = []
        paths: list[Any] = []
        for path, array in _shapes_in(self.result):
            if id(array) not in places:
                places[id(array)] = Buffer(len(given) + len(made))
                made.append(array)
                paths.append(path)
        self.places, self.outputs = places, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in made]
        doubles = [i for i, array in enumerate(arrays) if isinstance(array, Doubles)]
        if entry == "forward" and not jax.config.jax_enable_x64:
            results = [id(array) for _, array in _shapes_in(self.result[0])]
            for i, array in enumerate(made):
                if array.dtype == np.float64 and id(array) not in results:
                    self.outputs[i] = jax.ShapeDtypeStruct((*array.shape, 2), np.uint32)
                    doubles.append(len(given) + i)
        point = _point_of(op, entry)
        most = len(made) if entry == "quantized" else point.outputs + point.extra
        if entry == "quantized":  # a scale that is known comes back, and has no place in `out`
            outs = [places[id(v)] if v in made else None for v in self.result]
        elif point.skips and isinstance(self.result, tuple):
            outs = [None if v is None else places[id(v)] for v in self.result]
        else:
            outs = [places[id(array)] for array in made[:most]]
        if len(outs) > point.outputs:
            outs += [None] * (most - len(outs))
        out = tuple(outs) if len(outs) > 1 else outs[0]
        copied = [(path, len(given) + i) for i, path in enumerate(paths) if i >= most]
        options = {**template.kwargs, "out": out}
        self.text = text_of(op, entry, template.args, options, copied, doubles)
        self.given, self.wanted = [modelled(a, a.shape) for a in arrays], wanted

    def run(self, arrays: Sequence[Any]) -> Any:
        """Return the result, in a program of XLA."""
        for output in self.outputs:
            if output.dtype == np.float64 and not jax.config.jax_enable_x64:
                raise TypeError(
                    f"fastact.jax.{self.op.name}: its results are float64, which JAX has switched "
                    f'off; use jax.config.update("jax_enable_x64", True)'
                )
        plain = [a.bits if isinstance(a, Doubles) else a for a in arrays]
        made = axes.bound(_bind, plain, call=self)
        every = [*arrays, *map(_of_output, made)]
        return _replaced(self.result, lambda shape: every[self.places[id(shape)].number])

    # Calls are equal where they compute the same: programs of JAX are found by that.

    def _key(self) -> Any:
        return self.text, self.donates, *((tuple(a.shape), a.dtype) for a in self.given)

    def __hash__(self) -> int:
        return hash(self._key())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Traced) and self._key() == other._key()

    def like(
        self, arrays: Sequence[Any], *, entry: str = "", options: Mapping[str, Any] | None = None
    ) -> "Traced":
        """Repeat this call for other arrays, for another entry point, or with other options."""
        kwargs = self.template.kwargs if options is None else options
        template = Template(self.template.args, kwargs)
        entry, donates = entry or self.entry, self.donates and not entry
        return Traced(self.op, entry, template, arrays, self.wanted, donates=donates)

    def of_shapes(self, shapes: Sequence[Sequence[int]]) -> "Traced":
        """Repeat this call for arrays of other shapes."""
        return self.like([modelled(*pair) for pair in zip(self.given, shapes, strict=True)])

    def of_plain(self, arrays: Sequence[Any], options: Mapping[str, Any] | None = None) -> "Traced":
        """Repeat this call for arrays in the form in which XLA has them."""
        pairs = zip(arrays, self.given, strict=True)
        given = [Doubles(a) if isinstance(g, Doubles) else a for a, g in pairs]
        return self.like(given, options=options)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The options of the entry point."""
        return _point_of(self.op, self.entry).defaults

    @property
    def named(self) -> list[tuple[str, Any]]:
        """The arguments with their names."""
        return self.template.named(_point_of(self.op, self.entry))

    @property
    def axis(self) -> Any:
        return self.template.kwargs.get("axis", self.defaults["axis"])

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that the call names, counted from the first one of its largest array."""
        rank = max(len(array.shape) for array in self.given)
        if self.axis is None or not rank:  # then 0 and -1 name none
            return tuple(range(rank))
        every = self.axis if isinstance(self.axis, tuple) else (self.axis,)
        return tuple(one % rank for one in every)

    def ffi(self, *arrays: Any) -> tuple[Any, ...]:
        """Return the call of XLA's handler, in a program."""
        aliases = {0: 0} if self.donates else None
        call = jax.ffi.ffi_call(TARGET, self.outputs, input_output_aliases=aliases)
        return tuple(call(*arrays, call=self.text))


@lru_cache(maxsize=4096)
def _function(op: Any, entry: str, template: Template, donates: bool) -> Callable[..., Any]:
    """Return a call as a function of its arrays that JAX compiles, differentiates and batches."""

    def value(*arrays: Any) -> Any:
        return Traced(op, entry, template, arrays, donates=donates).run(arrays)

    return jax.jit(value, inline=True)  # type: ignore[no-any-return]


@lru_cache(maxsize=4096)
def _compiled(call: Traced) -> Callable[..., Any]:
    compiled: Callable[..., Any] = jax.jit(partial(_bind, call=call))
    return compiled


def _computed(*arrays: Any, call: Traced) -> Any:
    with jax.disable_jit(False):  # whoever disables it wants to see their own functions' values
        return _compiled(call)(*arrays)


def _bind(*arrays: Any, call: Traced) -> Any:
    return _call.bind(*axes.alike(arrays), call=call)


def _outputs(*arrays: Any, call: Traced) -> list[Any]:
    return axes.typed(call.outputs, arrays)


_call = Primitive("fastact")
_call.multiple_results = True
_call.def_abstract_eval(_outputs)
_call.def_impl(_computed)
batching.primitive_batchers[_call] = partial(axes.batched, _bind)
mlir.register_lowering(_call, mlir.lower_fun(axes.spread, multiple_results=True))
axes.tell_devices(_call)


def _shapes_in(value: Any, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Shape]]:
    """Return the arrays in a result, and the indexes that lead there."""
    if isinstance(value, Shape):
        return [(path, value)]
    parts = parts_of(value) if isinstance(value, tuple | Moments) else ()
    return [found for i, v in enumerate(parts) for found in _shapes_in(v, (*path, i))]


def _replaced(value: Any, of: Callable[[Shape], Any]) -> Any:
    if isinstance(value, Shape):
        return of(value)
    if isinstance(value, Moments):
        return Moments.of_checked(_replaced(value.count, of), of(value.mean), of(value.squares))
    return tuple(_replaced(v, of) for v in value) if isinstance(value, tuple) else value


# --- derivatives ----------------------------------------------------------------------------------


def _tangents(primals: Any, tangents: Any, *, call: Traced) -> tuple[list[Any], list[Any]]:
    """Compute a call's outputs and their tangents."""
    op = call.op
    if call.entry not in ("call", "forward") or call.template.kwargs.get("recompute"):
        raise TypeError(
            f"fastact.jax.{op.name}: {call.entry} has no derivative; use "
            f"fastact.jax.{op.name}, whose derivatives have some"
        )
    for name in op.traits.unrecorded:
        if call.template.kwargs.get(name):
            raise TypeError(
                f"fastact.jax.{op.name}: {name} must be False where JAX differentiates the call"
            )
    if op.traits.is_diagonal:
        (x,), (tangent,) = primals, tangents
        (y,) = _bind(x, call=call.like(call.given, entry=call.entry))
        slope = _slope(op, call.template, modelled(y, y.shape))
        return [y], slope([tangent], [y if op.saves == op.results else x], [True])
    derivative, count = Derivative(call), len(call.outputs)
    made = _bind(*primals, call=derivative.forward)
    return made[:count], derivative.along(tangents, primals, made, count)


ad.primitive_jvps[_call] = _tangents


def _slope(op: Any, template: Template, like: Any) -> Pair:
    """dy y'(saved) of an op whose results follow element by element, which is its own transpose.

    How that changes with what is saved is another such map, whose own change is an error.
    """
    options = {n: v for n, v in template.kwargs.items() if n in spec_of(op).told}

    def run(entry: str, arrays: Sequence[Any], wanted: Sequence[bool] | None = None) -> Any:
        arrays = [*map(jax.numpy.asarray, arrays)]
        call, taken = _taken_apart(op.entry_points[entry], arrays, options)
        return Traced(op, entry, call, taken, wanted).run(taken)

    def first(given: Any, others: Any, _: Any) -> list[Any]:
        return [run("backward", [*given, *others])]

    def second(given: Any, others: Any, _: Any) -> list[Any]:
        return [run("backward.backward", [*given, *others], (False, True))[1]]

    def moved(given: Any, others: Any, changes: Any, wanted: Any) -> list[Any]:
        if op.piecewise_linear:
            return [jax.numpy.zeros_like(given[0])]
        return curve(changes, [*given, *others], wanted)

    def refused(*_: Any) -> Any:
        raise TypeError(f"fastact.jax.{op.name}: has no third derivative")

    slope, change = Map(first, moved), Map(second, refused)
    curve = Pair(change, change, (like,), (like,))
    return Pair(slope, slope, (like,), (like,))


class Derivative:
    """The tangents of a call's results, and its gradients, both by what `forward` saves.

    Gradients are the op's. Tangents, which are their transpose, and how both change, are composed
    of XLA's own operations.
    """

    def __init__(self, call: Traced) -> None:
        self.op, self.spec, self.template = call.op, spec_of(call.op), call.template
        named = self.template.named(self.op.entry_points["call"])
        self.names = [name for name, value in named if isinstance(value, Buffer)]
        self.forward = call.like(call.given, entry="forward")
        result, saved = self.forward.result
        every = [*call.given, *map(_of_output, self.forward.outputs)]
        self.results, self.kept = (
            [self.forward.places[id(v)].number for v in values if isinstance(v, Shape)]
            for values in (arrays_of(result), saved)
        )
        if DRAWN in self.names:
            self.kept.append(dict(named)[DRAWN].number)
        self.structure = jax.tree_util.tree_structure([every[i] for i in self.kept])
        given = dict(zip(self.names, call.given, strict=True))
        self.dtypes = {name: array.dtype for name, array in given.items()}
        floats = {n for n, dtype in self.dtypes.items() if jax.numpy.issubdtype(dtype, np.inexact)}
        moving = {*self.spec.of, *floats.intersection(self.spec.composed)}
        self.moving = [name for name in self.names if name in moving]
        self.pair = Pair(
            Map(self.tangents, by_formula(self.tangents)),
            Map(self.gradients, by_formula(self.composed)),
            tuple(given[name] for name in self.moving),
            tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays_of(result)),
        )

    def along(
        self, tangents: Sequence[Any], primals: Sequence[Any], made: Sequence[Any], count: int
    ) -> list[Any]:
        """Return the tangents of that many first arrays of `forward`."""
        every = zip(self.names, tangents, strict=True)
        given = {name: tangent for name, tangent in every if not is_zero(tangent)}
        for name in given.keys() - {*self.moving}:
            raise TypeError(
                f"fastact.jax.{self.op.name}: {name} gets no gradient; use "
                f"jax.lax.stop_gradient({name})"
            )
        arrays = [*primals, *made]
        kept = [arrays[i] for i in self.kept]
        wanted = [True] * len(self.results)
        moved = self.pair([given.get(name) for name in self.moving], kept, wanted)
        known = dict(zip(self.results, moved, strict=True))
        saved = zip(self.op.saves, self.forward.result[1], strict=True)
        names = (name for name, value in saved if isinstance(value, Shape))
        asked = range(len(primals), len(primals) + count)
        for i, name in zip(self.kept, names, strict=False):
            if i in asked and i not in known and name in self.spec.kept:
                named = self._named(kept) | dict(zip(self.names, primals, strict=True))
                known[i] = composed.tangent(self.op, given, named, arrays[i].dtype)
        return [known[i] if i in known else zero(arrays[i]) for i in asked]

    def gradients(self, incoming: Any, others: Any, wanted: Sequence[bool]) -> list[Any]:
        """Compute the wanted gradients, by the op's `backward` or else by its formula."""
        is_own = [name in self.spec.of for name in self.moving]
        by_kernels, by_formula = (
            [wants and own is kind for wants, own in zip(wanted, is_own, strict=True)]
            for kind in (True, False)
        )
        made = self._by_kernels(incoming, others, by_kernels) if any(by_kernels) else is_own
        rest = self.composed(incoming, others, by_formula) if any(by_formula) else made
        pairs = zip(wanted, is_own, made, rest, strict=True)
        return [(a if own else b) if wants else None for wants, own, a, b in pairs]

    def _by_kernels(self, incoming: Any, others: Any, wanted: Sequence[bool]) -> list[Any]:
        places = [self.spec.of.get(name, -1) for name in self.moving]
        asked = {place for place, wants in zip(places, wanted, strict=True) if wants}
        of_each = tuple(i in asked for i in range(len(self.op.gradients)))
        options = self.template.kwargs
        options = {n: v for n, v in options.items() if n in self.spec.told - {*self.names}}
        options |= self._drawn(others)
        args, kwargs = self.spec.arguments(self._narrow(incoming), self._saved(others))
        point = self.op.entry_points["backward"]
        template, arrays = _taken_apart(point, args, {**kwargs, **options})
        found = Traced(self.op, "backward", template, arrays, of_each).run(arrays)
        found = (*(found if isinstance(found, tuple) else (found,)), *self._narrow(incoming))
        pairs = zip(places, wanted, strict=True)
        return [found[place] if wants else None for place, wants in pairs]

    def composed(self, incoming: Any, others: Any, wanted: Sequence[bool]) -> list[Any]:
        """Compute the gradients by the op's formula."""
        names = [n for n, wants in zip(self.moving, wanted, strict=True) if wants]
        dtypes = {name: self.dtypes[name] for name in names}
        found = composed.gradients(self.op, self._narrow(incoming), self._named(others), dtypes)
        return [found.get(name) for name in self.moving]

    def tangents(self, given: Any, others: Any, wanted: Sequence[bool]) -> list[Any]:
        """Compute the tangents of the results by the transposed formula.

        If results are float64, so is the whole computation, because data may have less range.
        """
        asked = [tangent is not None for tangent in given]
        narrow: Callable[..., list[Any]] = self._narrow
        dtypes = self.dtypes
        if any(one.dtype == "float64" for one in self.pair.outputs):
            narrow, dtypes = list, dict.fromkeys(dtypes, jax.numpy.dtype("float64"))
            given = [None if tangent is None else tangent.astype("float64") for tangent in given]

        def gradients(incoming: Any) -> list[Any]:
            wanted = {n: dtypes[n] for n, wants in zip(self.moving, asked, strict=True) if wants}
            found = composed.gradients(self.op, narrow(incoming), self._named(others), wanted)
            return [found.get(name) for name in self.moving]

        zeros = [jax.numpy.zeros(one.shape, one.dtype) for one in self.pair.outputs]
        alike = axes.alike([*zeros, *others, *(one for one in given if one is not None)])
        like = [y if wants else None for y, wants in zip(alike, wanted, strict=False)]
        (found,) = jax.linear_transpose(gradients, like)(given)
        return found  # type: ignore[no-any-return]

    def _narrow(self, incoming: Any) -> list[Any]:
        """Give gradients the dtype that `backward` takes: the first array's, or the result's."""
        is_told = self.template.kwargs.get(TOLD) is not None
        dtype = self.pair.outputs[0].dtype if is_told else self.dtypes[self.names[0]]
        return [None if one is None else one.astype(dtype) for one in incoming]

    def _saved(self, leaves: Sequence[Any]) -> tuple[Any, ...]:
        """Put the arrays into the tuple that `forward` saves."""
        arrays = iter(jax.tree_util.tree_unflatten(self.structure, leaves))
        _, saved = self.forward.result
        return tuple(next(arrays) if isinstance(value, Shape) else value for value in saved)

    def _named(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Give the saved values by name, and the call's options."""
        options = {n: v for n, v in self.template.kwargs.items() if n not in self.names}
        saved = zip(self.op.saves, self._saved(leaves), strict=True)
        return options | self._drawn(leaves) | {n: v for n, v in saved if v is not None}

    def _drawn(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Give the seed where that is an array, which then follows what `forward` saves."""
        return {DRAWN: leaves[-1]} if DRAWN in self.names else {}


# --- the public names -----------------------------------------------------------------------------


class Function:
    """An op for arrays of JAX: to be called in programs that JAX compiles, differentiates, batches.

    `forward` and `backward` are the op's, for rules of one's own. With `donate=True` the
    first result takes the memory of the first array; where XLA still needs that, it makes a copy.
    """

    def __init__(self, op: Any) -> None:
        self.op = op
        self.__name__ = self.__qualname__ = op.name
        self.__module__ = "fastact.jax"
        self.__doc__ = op.__doc__
        kept = [p for p in op.__signature__.parameters.values() if p.name not in _EVERY]
        donate = Parameter("donate", Parameter.KEYWORD_ONLY, default=False)
        at = -1 if kept[-1].kind is Parameter.VAR_KEYWORD else len(kept)
        kept[at:at] = [donate]
        self.__signature__ = op.__signature__.replace(parameters=kept)

    def __call__(self, *args: Any, donate: bool = False, **kwargs: Any) -> Any:
        return handlers.one_by_one(self.op, partial(self._call, "call", donate), args, kwargs)

    def _call(
        self, entry: str, donate: bool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        template, arrays = self._taken_apart(entry, args, kwargs)
        donates = validate.flag(f"fastact.jax.{self.__name__}", "donate", donate)
        call: Any = _function(self.op, entry, template, donates)
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            call = call.__wrapped__  # inside `jit` the axis of a batch goes to the front
        return call(*arrays)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """Compute the op's result, and the tuple that `backward` needs."""
        result: tuple[Any, tuple[Any, ...]] = self._traced("forward", args, kwargs)
        return result

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the gradients, from the results' gradients and what `forward` saved."""
        return self._traced("backward", args, kwargs)

    def _traced(self, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        template, arrays = self._taken_apart(entry, args, kwargs)
        arrays = [jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in arrays]
        return Traced(self.op, entry, template, arrays).run(arrays)

    def _taken_apart(
        self, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Template, list[Any]]:
        point = _point_of(self.op, entry)
        if args and entry != "backward":  # there a number is a whole gradient
            args = (self._data(point.arrays[0], args[0]), *args[1:])
        if DRAWN in kwargs:
            kwargs = {**kwargs, DRAWN: self._key(kwargs[DRAWN])}
        template, arrays = _taken_apart(point, args, kwargs)
        if not arrays:
            came = validate.describe(args[0] if args else None)
            raise TypeError(f"fastact.jax.{self.__name__}: arrays of JAX must be given, got {came}")
        for name in _EVERY:
            if template.kwargs.pop(name, None) not in (None, False):
                raise TypeError(
                    f"fastact.jax.{self.__name__}: {name} must not be given: arrays of JAX are "
                    f"immutable, and XLA chooses memory and streams"
                )
        return template, arrays

    def _data(self, name: str, value: Any) -> Any:
        """Make an array of JAX of a number that stands for data, and of integers what `jax.nn`
        computes in their place; return all else as it is.
        """
        is_array = isinstance(value, jax.Array | np.ndarray) and self.op.traits.integers is None
        if is_array and jax.numpy.isdtype(value.dtype, ("bool", "integral")):
            array = jax.numpy.asarray(value)
            return array.astype("float64" if array.dtype.itemsize == 8 else "float32")
        if isinstance(value, np.generic) and jax.numpy.issubdtype(value.dtype, np.inexact):
            return jax.numpy.asarray(value)
        if isinstance(value, np.bool_ | np.integer):
            value = value.item()
        if not isinstance(value, bool | int | float):
            return value
        zero = jax.numpy.zeros(())
        validate.holds(f"fastact.jax.{self.__name__}", name, value, zero.dtype.name)
        return zero + float(value)

    def _key(self, seed: Any) -> Any:
        """Make an array that is a seed, or a key of `jax.random`, the upper and lower 32 bits of a
        number; return all else as it is.
        """
        if not isinstance(seed, jax.Array | np.ndarray):
            return seed
        if isinstance(seed, np.ndarray):
            return self._key(jax.numpy.asarray(seed)) if seed.ndim else seed[()]
        is_key = jax.numpy.issubdtype(seed.dtype, jax.dtypes.prng_key)
        array = jax.random.key_data(seed) if is_key else seed
        if array.shape == (2,) and array.dtype == np.uint32:
            return array
        if array.shape or array.dtype.kind not in "iu":
            raise TypeError(
                f"fastact.jax.{self.__name__}: {DRAWN} must be an integer or one key of jax.random "
                f"of 64 bits, got {seed.dtype} of shape {seed.shape}; use jax.random.bits(key)"
            )
        is_long = array.dtype.itemsize == 8
        high = array >> 32 if is_long else -(array < 0).astype(np.uint32)
        return jax.numpy.stack([high.astype(np.uint32), array.astype(np.uint32)])

    def __repr__(self) -> str:
        return f"<function fastact.jax.{self.__name__}>"


class Quantizing(Function):
    """An op that gives its result in 8 bits, too."""

    def quantized(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Compute codes and scale, as the op's `quantized` gives them; they have no gradient."""
        where = f"fastact.jax.{self.__name__}.quantized"
        kwargs["dtype"] = named_format(where, kwargs.get("dtype", "int8"))
        if kwargs.get("scale_dtype") is not None:
            kwargs["scale_dtype"] = named_format(
                where, kwargs["scale_dtype"], "scale_dtype", {E8M0: 0}
            )
        found: tuple[Any, ...] = self._call("quantized", False, args, kwargs)
        return found
