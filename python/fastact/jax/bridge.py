"""Calls of ops in programs of XLA, with gradients and batches.

`Traced` calls the op with arrays without values, which shows the results of a call, and lets XLA
make them; `differentiable` puts `forward` and `backward` behind JAX's gradients.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from inspect import Parameter
from itertools import zip_longest
from typing import Any

import jax
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ..interop import validate
from ..interop.shapes import Shape
from ..ops.engine.op import EntryPoint, arrays_of, result_of
from ..ops.engine.spec import spec_of
from ..ops.moments import Moments
from . import axes, composed
from .calls import Buffer, map_buffers, parts_of, text_of

TARGET = "fastact"

_EVERY = ("out", "accumulate", "stream")  # of entry points, for memory that JAX's callers don't see


class Still:
    """A value that JAX carries along with arrays, and does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _register(cls: Any, children: Any, rest: Any, make: Any) -> None:
    jax.tree_util.register_pytree_node(cls, lambda v: (children(v), rest(v)), make)


_register(Still, lambda s: (), lambda s: s.value, lambda value, _: Still(value))


class Doubles:
    """float64 that an op saves, where JAX has that switched off: the bits, as pairs of uint32."""

    dtype = np.dtype(np.float64)

    def __init__(self, bits: Any) -> None:
        self.bits = bits

    @property
    def shape(self) -> tuple[int, ...]:
        shape: tuple[int, ...] = self.bits.shape[:-1]
        return shape


def modelled(array: Any, shape: Sequence[int]) -> Any:
    """A description of an array, of that shape."""
    if isinstance(array, Doubles):
        return Doubles(jax.ShapeDtypeStruct((*shape, 2), np.uint32))
    return jax.ShapeDtypeStruct(shape, array.dtype)


_register(Doubles, lambda d: (d.bits,), lambda d: None, lambda _, bits: Doubles(*bits))

_ARRAYS = (jax.Array, np.ndarray, Doubles)


def _moments_of(count: int | None, arrays: Sequence[Any]) -> Moments:
    mean, m2, *counts = arrays
    return Moments.of_checked(counts[0] if counts else count, mean, m2)


_register(
    Moments,
    lambda m: parts_of(m)[:2] if isinstance(m.count, int) else parts_of(m),
    lambda m: m.count if isinstance(m.count, int) else None,
    _moments_of,
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

    def filled(self, of: Callable[[int], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return map_buffers(self.args, of), {n: map_buffers(v, of) for n, v in self.kwargs.items()}


def _taken_apart(
    point: EntryPoint, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Template, list[Any]]:
    """The template of a call, with options by keyword, and its arrays."""
    count = len(point.arrays)
    either = [name for name in point.defaults if name not in point.by_keyword]
    options = dict(zip(either, args[count:], strict=False))
    if len(options) == len(args[count:]) and not options.keys() & kwargs.keys():
        args, kwargs = args[:count], {**options, **kwargs}  # else the op says what is wrong
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
        given = [Shape(a.shape, a.dtype, writable=donates and i == 0) for i, a in enumerate(arrays)]
        args, kwargs = template.filled(given.__getitem__)
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
        point = op.entry_points[entry]
        most = point.outputs + point.extra
        if point.skips and isinstance(self.result, tuple):
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
        """The result, in a program of XLA's."""
        for output in self.outputs:
            if output.dtype == np.float64 and not jax.config.jax_enable_x64:
                raise TypeError(
                    f"fastact.jax.{self.op.name}: its results are float64, which JAX has switched "
                    f'off; use jax.config.update("jax_enable_x64", True)'
                )
        plain = [a.bits if isinstance(a, Doubles) else a for a in arrays]
        made = _call.bind(*plain, call=self)
        every = [*arrays, *(Doubles(a) if a.dtype == np.uint32 else a for a in made)]
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
        """The same call of other arrays, of another entry point, or with other options."""
        kwargs = self.template.kwargs if options is None else options
        template = Template(self.template.args, kwargs)
        entry, donates = entry or self.entry, self.donates and not entry
        return Traced(self.op, entry, template, arrays, self.wanted, donates=donates)

    def of_shapes(self, shapes: Sequence[Sequence[int]]) -> "Traced":
        """The same call of arrays of other shapes."""
        return self.like([modelled(*pair) for pair in zip(self.given, shapes, strict=True)])

    def of_plain(self, arrays: Sequence[Any], options: Mapping[str, Any] | None = None) -> "Traced":
        """The same call of arrays as XLA has them."""
        pairs = zip(arrays, self.given, strict=True)
        given = [Doubles(a) if isinstance(g, Doubles) else a for a, g in pairs]
        return self.like(given, options=options)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The options of the entry point."""
        return self.op.entry_points[self.entry].defaults  # type: ignore[no-any-return]

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
        """The call of XLA's handler, in a program."""
        aliases = {0: 0} if self.donates else None
        call = jax.ffi.ffi_call(TARGET, self.outputs, input_output_aliases=aliases)
        return tuple(call(*arrays, call=self.text))


@lru_cache(maxsize=4096)
def _compiled(call: Traced) -> Callable[..., Any]:
    compiled: Callable[..., Any] = jax.jit(partial(_call.bind, call=call))
    return compiled


def _outputs(*arrays: Any, call: Traced) -> list[Any]:
    return [jax.core.ShapedArray(output.shape, output.dtype) for output in call.outputs]


def _refused(*_: Any, call: Traced) -> Any:
    raise TypeError(
        f"fastact.jax.{call.op.name}: has no second derivative; forward and backward have no "
        f"derivative"
    )


_call = Primitive("fastact")
_call.multiple_results = True
_call.def_abstract_eval(_outputs)
_call.def_impl(lambda *arrays, call: _compiled(call)(*arrays))
ad.primitive_jvps[_call] = _refused
batching.primitive_batchers[_call] = partial(axes.batched, _call.bind)
mlir.register_lowering(_call, mlir.lower_fun(axes.spread, multiple_results=True))
axes.tell_devices(_call)


def _shapes_in(value: Any, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Shape]]:
    """The arrays in a result, and the indexes that lead there."""
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


# --- gradients ------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def _differentiable(op: Any, template: Template, donates: bool) -> Callable[..., Any]:
    """A call as a function of its arrays that JAX compiles and differentiates."""
    if op.is_diagonal:
        return _elementwise(op, template, donates)
    spec = spec_of(op)
    names = _names_of(op, template)
    options = {n: v for n, v in template.kwargs.items() if n in spec.told and n not in names}

    def value(*arrays: Any) -> Any:
        return Traced(op, "call", template, arrays, donates=donates).run(arrays)

    def forward(*primals: Any) -> tuple[Any, Any]:
        arrays = [p.value for p in primals]
        for name, p in zip(names, primals, strict=True):
            if p.perturbed and name not in spec.of:
                raise TypeError(
                    f"fastact.jax.{op.name}: {name} gets no gradient; use "
                    f"jax.lax.stop_gradient({name})"
                )
        result, of_saved, kept = _forward(op, template, names, arrays)
        needed = tuple(p.perturbed for p in primals)
        return result, (kept, Still((of_saved, needed, arrays[0].dtype)))

    def backward(residuals: Any, result: Any) -> tuple[Any, ...]:
        kept, (of_saved, needed, dtype) = residuals[0], residuals[1].value
        incoming = [
            None if isinstance(g, SymbolicZero) else g.astype(dtype) for g in arrays_of(result)
        ]
        if all(gradient is None for gradient in incoming):
            return (None,) * len(names)
        places = [spec.of.get(name, -1) for name in names]
        wanted = tuple(
            any(place == i and wants for place, wants in zip(places, needed, strict=True))
            for i in range(len(op.gradients))
        )
        static = {n: v for n, v in template.kwargs.items() if n not in names}
        found = _backward(op, static, options, wanted, of_saved, incoming, kept)
        return tuple(
            found[place] if wants else None for place, wants in zip(places, needed, strict=True)
        )

    call = jax.custom_vjp(value)
    call.defvjp(forward, backward, symbolic_zeros=True)
    return jax.jit(call, inline=True)  # type: ignore[no-any-return]


def _forward(op: Any, template: Template, names: Sequence[str], arrays: Sequence[Any]) -> Any:
    """The result, and what is saved: with buffers in the place of arrays, and these."""
    call = Traced(op, "forward", template, arrays)
    counts = isinstance(getattr(call.result[0], "count", None), Shape)  # which no formula gives
    if counts or not composed.has_formula(op):
        result, saved = call.run(arrays)
        return result, *_arrays_out_of(saved)
    _, saved = call.result
    places = iter(range(len(saved)))
    of_saved = tuple(Buffer(next(places)) if isinstance(v, Shape) else v for v in saved)
    numbers = [call.places[id(v)].number for v in saved if isinstance(v, Shape)]
    of_results = [call.places[id(v)].number for v in arrays_of(call.result[0])]
    static = {n: v for n, v in template.kwargs.items() if n not in names}

    def value(*arrays: Any) -> Any:
        result, saved = call.run(arrays)
        return arrays_of(result), _arrays_out_of(saved)[1]

    def value_and_tangents(primals: Any, tangents: Any) -> Any:
        results, kept = run(*primals)

        def formula(*arrays: Any) -> Any:
            named = {**static, **dict(zip(names, arrays, strict=True))}
            return composed.results(op, named, results, Function)

        _, moved = jax.jvp(formula, primals, tangents)
        known = dict(zip(of_results, moved, strict=True)) | dict(enumerate(tangents))
        changes = [
            known[number] if number in known else composed.unchanged(value)
            for number, value in zip(numbers, kept, strict=True)
        ]
        return (results, kept), (moved, changes)

    run = jax.custom_jvp(value)
    run.defjvp(value_and_tangents)
    results, kept = run(*arrays)
    return result_of(results, call.result[0]), of_saved, kept


def _backward(
    op: Any,
    static: Mapping[str, Any],
    options: Mapping[str, Any],
    wanted: Sequence[bool],
    of_saved: Any,
    incoming: Sequence[Any],
    kept: Sequence[Any],
) -> tuple[Any, ...]:
    """The gradients that are wanted."""
    spec = spec_of(op)

    def value(incoming: Sequence[Any], kept: Sequence[Any]) -> Any:
        args, kwargs = spec.arguments(incoming, map_buffers(of_saved, kept.__getitem__))
        template, arrays = _taken_apart(op.entry_points["backward"], args, {**kwargs, **options})
        found = Traced(op, "backward", template, arrays, wanted).run(arrays)
        found = found if isinstance(found, tuple) else (found,)
        pairs = zip_longest(found, wanted)  # a bias that is not there has no gradient
        return tuple(g if wants else None for g, wants in pairs)

    def value_and_tangents(primals: Any, tangents: Any) -> Any:
        found = run(*primals)

        def formula(incoming: Sequence[Any], kept: Sequence[Any]) -> Any:
            saved = zip(op.saves, map_buffers(of_saved, kept.__getitem__), strict=True)
            named = {**static, **{n: v for n, v in saved if v is not None}}
            return composed.gradients(op, incoming, named, found, Function)

        return found, jax.jvp(formula, primals, tangents)[1]

    if not composed.has_formula(op):
        return value(incoming, kept)  # type: ignore[no-any-return]
    run = jax.custom_jvp(value)
    run.defjvp(value_and_tangents)
    return run(list(incoming), list(kept))  # type: ignore[no-any-return]


# An op whose results follow element by element is differentiated in both directions. Its derivative
# is its own transpose: y' = slope(x', saved), and the gradient of x is slope of y's. How that
# changes with `saved` is another such function, whose own change is an error.

_linear: Any = Primitive("fastact_linear")  # in the first array, and its own transpose there


def _elementwise(op: Any, template: Template, donates: bool) -> Callable[..., Any]:
    """A call of such an op as a function of its array that JAX compiles and differentiates."""
    spec = spec_of(op)
    options = {n: v for n, v in template.kwargs.items() if n in spec.told}

    def run(entry: str, *arrays: Any) -> Any:
        call, taken = _taken_apart(
            op.entry_points[entry], [*map(jax.numpy.asarray, arrays)], options
        )
        wanted = None if entry == "backward" else (False, True)
        found = Traced(op, entry, call, taken, wanted).run(taken)
        return found if entry == "backward" else found[1]

    def value(x: Any) -> Any:
        return Traced(op, "call", template, [x], donates=donates).run([x])

    def value_and_tangent(primals: Any, tangents: Any) -> Any:
        (x,), (tangent,) = primals, tangents
        y = _differentiable(op, template, False)(x)
        return y, slope(tangent.astype(y.dtype), y if op.saves == op.results else x)

    def of_saved(dy: Any, saved: Any) -> Any:
        return _linear.bind(dy, saved, run=partial(run, "backward"), again=slope, op=op)

    def slope_and_tangent(primals: Any, tangents: Any) -> Any:
        (dy, saved), (ddy, change) = primals, tangents
        parts = []
        if not isinstance(ddy, SymbolicZero):
            parts.append(slope(ddy, saved))
        if not (isinstance(change, SymbolicZero) or op.piecewise_linear):
            parts.append(curve(change, dy, saved))
        return slope(dy, saved), sum(parts[1:], parts[0]) if parts else jax.numpy.zeros_like(dy)

    def curve(change: Any, dy: Any, saved: Any) -> Any:
        second = partial(run, "backward.backward")
        return _linear.bind(change, dy, saved, run=second, again=curve, op=op)

    call, slope = jax.custom_jvp(value), jax.custom_jvp(of_saved)
    call.defjvp(value_and_tangent)
    slope.defjvp(slope_and_tangent, symbolic_zeros=True)
    return jax.jit(call, inline=True)  # type: ignore[no-any-return]


def _run_linear(*arrays: Any, run: Any, again: Any, op: Any) -> Any:
    return run(*arrays)


def _linear_in_tangents(primals: Any, tangents: Any, *, op: Any, **rules: Any) -> Any:
    if any(type(change) is not ad.Zero for change in tangents[1:]):
        raise TypeError(f"fastact.jax.{op.name}: has no third derivative")
    return (_linear.bind(one, *primals[1:], op=op, **rules) for one in (primals[0], tangents[0]))


def _transposed(gradient: Any, _: Any, *arrays: Any, run: Any, again: Any, op: Any) -> Any:
    return (again(gradient, *arrays), *[None] * len(arrays))


def _linear_batched(arrays: Any, places: Any, *, run: Any, again: Any, op: Any) -> Any:
    size = next(a.shape[axis] for a, axis in zip(arrays, places, strict=True) if axis is not None)
    in_front: Any = batching.bdim_at_front  # it has no types
    first = in_front(arrays[0], places[0], size)
    run, again = (jax.vmap(of, in_axes=(0, *places[1:])) for of in (run, again))
    return _linear.bind(first, *arrays[1:], run=run, again=again, op=op), 0


_linear.def_impl(_run_linear)
_linear.def_abstract_eval(lambda first, *arrays, **rules: first)
ad.primitive_jvps[_linear] = _linear_in_tangents
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _linear_batched
mlir.register_lowering(_linear, mlir.lower_fun(_run_linear, multiple_results=False))
axes.tell_devices(_linear)


def _names_of(op: Any, template: Template) -> list[str]:
    """The names of the arrays of a call."""
    point = op.entry_points["call"]
    given = [*zip(point.arrays, template.args, strict=False), *template.kwargs.items()]
    return [name for name, value in given if isinstance(value, Buffer)]


def _arrays_out_of(saved: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """The saved values with buffers in the place of arrays, and the arrays."""
    arrays = [value for value in saved if isinstance(value, _ARRAYS)]
    places = iter(range(len(arrays)))
    taken = (Buffer(next(places)) if isinstance(v, _ARRAYS) else v for v in saved)
    return tuple(taken), arrays


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
        template, arrays = self._taken_apart("call", args, kwargs)
        donates = validate.flag(f"fastact.jax.{self.__name__}", "donate", donate)
        call: Any = _differentiable(self.op, template, donates)
        if any(isinstance(array, jax.core.Tracer) for array in arrays):
            call = call.__wrapped__  # inside `jit` the axis of a batch goes to the front
        return call(*arrays)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """What calling the op gives, and the tuple that `backward` needs."""
        result: tuple[Any, tuple[Any, ...]] = self._traced("forward", args, kwargs)
        return result

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        """The gradients, from the results' gradients and what `forward` saved."""
        return self._traced("backward", args, kwargs)

    def _traced(self, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        template, arrays = self._taken_apart(entry, args, kwargs)
        return Traced(self.op, entry, template, arrays).run(arrays)

    def _taken_apart(
        self, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Template, list[Any]]:
        first, *rest = args or (None,)
        if isinstance(first, bool | int | float):
            args = (jax.numpy.asarray(float(first)), *rest)
        template, arrays = _taken_apart(self.op.entry_points[entry], args, kwargs)
        if not arrays:
            came = validate.describe(first)
            raise TypeError(f"fastact.jax.{self.__name__}: arrays of JAX must be given, got {came}")
        for name in _EVERY:
            if template.kwargs.pop(name, None) not in (None, False):
                raise TypeError(
                    f"fastact.jax.{self.__name__}: {name} must not be given: arrays of JAX are "
                    f"immutable, and XLA chooses memory and streams"
                )
        return template, arrays

    def __repr__(self) -> str:
        return f"<function fastact.jax.{self.__name__}>"
