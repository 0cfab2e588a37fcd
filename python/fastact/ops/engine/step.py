"""One call of an entry point: what its arrays have to be and what it makes, as the op's spec says.

`serve` runs it. A family says which shapes follow from the options (`Op._shapes`), and which native
function runs (`Op.runs`), or has a method where it takes more than one call by names::

    def _run_backward(self, now: Step) -> None:
        now.run("bias_act_backward", x=now.views["dy"])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop import foreign, handlers, validate
from ...interop.call import Call
from . import axes
from .fused import bind
from .op import COMPUTED, DATA, DOUBLE, OF_X, REQUIRED, SHAPE, TOLD, Makes, Op
from .weighting import ROLES as COUNTING
from .weighting import read_what_counts

#: How options that are numbers are checked, by their names.
_NUMBERS: Mapping[str, Callable[[str, str, Any], float | None]] = {
    "eps": validate.epsilon,
    "initial": validate.initial,
    **dict.fromkeys((TOLD, OF_X), validate.dtype_number),
    **dict.fromkeys(("scale", "offset", "correction"), validate.number),
}

_COMPUTED = len(_cpu.DTYPE_NAMES)  # the dtypes that kernels compute have the numbers below

#: An argument of a native function: its name there, how a step finds it, and the argument to whose
#: shape it repeats.
Source = tuple[str, Callable[["Step"], Any], str | None]


@cache
def _tables() -> Any:
    """What each native function takes (src/common/<family>/call.h)."""
    return _cpu.native_calls()


class _Output(NamedTuple):
    """An output, as calls of an entry point make it.

    at : its place in `out`; None: it has none. like : None: the first array. shape : the name of
    the shape that it has instead; seen : of the one that it has in any case. dtype : None: the
    array's.
    """

    name: str
    label: str
    at: int | None
    like: str | None
    shape: str | None
    seen: str
    dtype: str | None
    in_place: bool


class _Entry:
    """What the spec of an op says of an entry point, once for all calls.

    fused : it has an activation behind it.
    first : the data of the call, for which a result or a gradient stands where they were not saved.
    parts : of a tuple of gradients, one for each result.
    arrays : the arguments that are arrays. leaders : the first of these that is given leads.
    optional : arrays that may be None. plain : arrays for which no number stands.
    data : arrays of the data's dtype. free : of these, what an output may be.
    rules : for each array the rule of its dtype, the names of the shapes that it may have (None:
    any), and whether it repeats over the first of them.
    numbers : the options that are checked one by one, and how.
    counts : it takes weights, or a mask that tells what counts. has_checks : of its options.
    is_plain : what calling the op gives are its arrays. compute : runs its kernels.
    """

    def __init__(self, op: Any, name: str) -> None:
        self.op, self.name, self.entry = op, name, op.entry_points[name]
        entry, call = self.entry, op.entry_points["call"]
        self.where = entry.where
        self.first = call.arrays[0]
        self.is_forward = name == "forward"
        self.is_backward = name not in ("call", "forward")
        takes_saved = name in ("backward", "backward.backward")
        self.fused = "activation" in entry.defaults
        checks = {**_NUMBERS, **op.checks}
        self.numbers = [(n, check) for n, check in checks.items() if n in entry.defaults]
        self.parts = self._parts()
        arrays = [n for n in entry.arrays if n not in op.sizes and not (self.parts and n == "dy")]
        self.arrays = (*self.parts, *arrays, *(n for n in op.roles if n in entry.defaults))
        leaders = (self.first, op.results[0], *entry.arrays[:1])
        self.leaders = [n for n in leaders if n in self.arrays]
        roles = {n: op.roles.get(_whole(n), validate.DATA) for n in self.arrays}
        missing = (*op.optional, *(op.unsaved if takes_saved else ()))
        self.optional = {
            n
            for n in self.arrays
            if n in missing
            or None in (call.defaults.get(n, REQUIRED), entry.defaults.get(n, REQUIRED))
        }
        self.plain = {n for n, role in roles.items() if role.array} - {*op.of_forward}
        self.data = {n for n, role in roles.items() if role.dtype == "same"}
        self.free = {n for n in self.data if _whole(n) not in op.apart} | {"out"}
        self.rules = {
            n: (role.dtype, self._shapes_of(n, role), n in op.spreads or _repeats(role))
            for n, role in roles.items()
        }
        self.is_plain = type(op).result_of is Op.result_of
        self.of_forward = op.of_forward if takes_saved else ()
        self.counts = not COUNTING.keys().isdisjoint(self.arrays)
        self.roles = op.roles
        self.reads_whole = op.reads_whole and not self.is_backward
        if self.reads_whole:
            self.roles = {**op.roles, self.first: validate.Role(validate.WHOLE)}
        self.has_checks = type(op)._check_options is not Op._check_options
        self._varies = type(op).outputs_of is not Op.outputs_of
        self._outputs: dict[tuple[str, ...], list[_Output]] = {}
        self._all = [] if self._varies else self._made_of(entry.gives)
        self.sources: dict[str, list[Source]] = {}
        runs = "forward" if name == "call" else name
        self.compute: Callable[[Step], None] = getattr(
            op, f"_run_{runs.replace('.', '_')}", lambda now: now.run(op.runs[runs])
        )

    def _parts(self) -> tuple[str, ...]:
        """The gradients in the tuple that dy is, where each result's has no name of its own."""
        results, taken = self.op.results, {*self.entry.arrays, *self.entry.defaults}
        if "dy" not in taken or len(results) == 1 or taken.issuperset(f"d{n}" for n in results):
            return ()
        return tuple(f"dy[{i}]" for i in range(len(results)))

    def _shapes_of(self, name: str, role: validate.Role) -> tuple[str, ...] | None:
        """The names of the shapes that an array may have, the one that messages tell in front."""
        default = "data" if role.number or not role.repeats else None
        shape = self.op.shapes.get(_whole(name), default)
        return None if shape is None else tuple(shape.split(" or "))

    def seen(self, name: str) -> str:
        """The name of an argument's shape, or its own where it may have any."""
        if name == self.first and not self.is_backward:
            return "data"
        is_any = name in self.rules and self.rules[name][1] is None
        return name if is_any else self.op.shapes.get(_whole(name)) or "data"

    # --- outputs ----------------------------------------------------------------------------------

    def outputs(self, options: SimpleNamespace) -> list[_Output]:
        """How the outputs of a call are made."""
        return self._made_of(self.op.outputs_of(self.name, options)) if self._varies else self._all

    def _made_of(self, names: tuple[str, ...]) -> list[_Output]:
        if names not in self._outputs:
            count = self.entry.outputs + self.entry.extra
            self._outputs[names] = [
                self.output(name, i if i < count else None, count) for i, name in enumerate(names)
            ]
        return self._outputs[names]

    def output(self, name: str, at: int | None = None, count: int = 0) -> _Output:
        """How one of them is made."""
        label = name if at is None else validate.out_name(at, (None,) * count)
        makes = self.op.makes.get(f"{self.name}.{name}") or self.op.makes.get(name)
        if makes is None and self.is_backward:  # a gradient is as its argument
            of = name.removeprefix("d")
            in_place = self.name != "backward.backward" and (of == self.first or of in self.data)
            makes = Makes(of, in_place=in_place)
        like, shape, dtype, in_place = makes or Makes(in_place=True)
        seen = shape or self.seen(like or self.first)
        like = None if like == self.first else like
        is_same = dtype == DATA and not self.reads_whole
        return _Output(name, label, at, like, shape, seen, None if is_same else dtype, in_place)

    # --- native functions -------------------------------------------------------------------------

    def sources_of(self, function: str, now: Step) -> list[Source]:
        """The arguments of a native function, in its table's order; `now` is any call."""
        found: list[Source] = []
        for field, facts in _tables()[function].items():
            is_like = facts["role"] == "in" and facts["shape"] == "like"
            like = facts["shape_of"] if is_like else None
            found.append((field, self._find(field, facts, now), like))
        return found

    def _find(self, field: str, facts: Mapping[str, Any], now: Step) -> Callable[[Step], Any]:
        name = self.op.fields.get(field, field)
        if facts["kind"] == "array":
            return self._find_array(name, facts, type(now.shapes))
        if field.startswith("accumulate"):
            output = field.removeprefix("accumulate").lstrip("_")
            return lambda now: now.adds(output)
        if name in getattr(now.shapes, "_fields", ()):
            return attrgetter(f"shapes.{name}")
        return attrgetter(f"options.{name}" if hasattr(now.options, name) else f"op.{name}")

    def _find_array(
        self, name: str, facts: Mapping[str, Any], shapes: type
    ) -> Callable[[Step], Any]:
        is_read, is_optional = facts["role"] == "in", facts["optional"]
        see = seen_by(shapes, self.seen(name) if is_read else self.output(name).seen)

        def find(now: Step) -> Any:
            view = now.views.get(name) if is_read else now.view(name)
            if view is not None:
                return view if see is None else see(now.shapes, view)
            return None if is_read or is_optional else now.temporary(name)

        return find


def seen_by(shapes: type, shape: str) -> Callable[[Any, View], View] | None:
    """How an array whose shape has this name gets the axes of the kernels; None: it has them."""
    found: Callable[[Any, View], View] | None = getattr(shapes, f"seen_{shape}", None)
    return found


def _repeats(role: validate.Role) -> bool:
    return role.repeats and role.number


def _whose(data: str, shape: str) -> str:
    """A shape by its name, for messages."""
    return "x's shape" if shape in ("data", "whole") else f"{data}'s {shape}"


def _whole(name: str) -> str:
    """The argument that an array is a part of: dy, of dy[0]."""
    return name.partition("[")[0]


_entry_of = cache(_Entry)


def options_of(
    op: Any, name: str, args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, SimpleNamespace]:
    """What a call says without its arrays, checked.

    The op of the activation behind (None: the identity, or there is none), and the options; `which`
    and `parameters` among them are its number and parameters as kernels know them.
    """
    spec = _entry_of(op, name)
    found = bind(spec.entry, args, kwargs) if spec.fused else (None, spec.entry.bind(args, kwargs))
    options = found[1]
    for option, check in spec.numbers:
        setattr(options, option, check(spec.where, option, getattr(options, option)))
    if spec.has_checks:
        op._check_options(spec.where, options)
    return found


def serve(op: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call an entry point."""
    if name != "call" and foreign.is_watched():
        found = handlers.entered(op, name, args, kwargs)
        if found is not NotImplemented:
            return found
    now = Step(op, name, args, kwargs)
    with now.call:
        now.prepare()
        now.spec.compute(now)
        return now.results()


class Step:
    """A call that is under way.

    options : the arguments by name; numbers are checked. activation : the op behind the op.
    call, views : the arrays, and numbers that stand for some. leader : the first one's name.
    shapes : what the op's `_shapes` makes of them.
    made : the outputs by name: view, what the caller gave, and what `Call.result` needs.
    """

    __slots__ = (
        *("activation", "call", "leader", "made", "op", "options"),
        *("shapes", "spec", "views", "where"),
    )

    def __init__(self, op: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.spec = spec = _entry_of(op, name)
        self.op, self.where = op, spec.where
        self.activation, self.options = options_of(op, name, args, kwargs)
        given = vars(self.options)
        if spec.parts:
            given.update(self._taken_apart())
        leader = spec.leaders[0]
        if given[leader] is None:
            leader = next((n for n in spec.leaders if given[n] is not None), leader)
        arrays = {leader: given[leader]}
        if op.sizes and spec.is_backward and isinstance(given[leader], bool | int | float):
            (out,) = self.options.out  # it says the dtype, which a number has not
            if out is not None:
                leader, arrays = "out", {"out": out}
        for name in spec.arrays:
            value = given[name]
            if value is None:
                if name in spec.optional:
                    continue
                self._no_array(name, value)
            elif name in spec.plain and isinstance(value, bool | int | float):
                self._no_array(name, value)
            arrays[name] = value
        if spec.counts:
            read_what_counts(spec.where, arrays)
        self.call = call = Call(
            spec.where, self.options.stream, spec.roles, op.integers, spec.of_forward, **arrays
        )
        self.views, self.leader = call.views, leader

    def _taken_apart(self) -> dict[str, Any]:
        """The gradients of a tuple, one for each result; None is 0."""
        given, parts = self.options.dy, self.spec.parts
        if not isinstance(given, tuple | list) or len(given) != len(parts):
            came = validate.describe(given)
            raise TypeError(f"{self.where}: dy must be a tuple of two gradients, got {came}")
        return {n: 0.0 if part is None else part for n, part in zip(parts, given, strict=True)}

    def _no_array(self, name: str, value: Any) -> None:
        kind, came = self.op.called.get(name, "an array"), validate.describe(value)
        raise TypeError(f"{self.where}: {name} must be {kind}, got {came}")

    def prepare(self, *, models: bool = False) -> None:
        """Check the arrays, and make the outputs; models: only what they are like, no memory."""
        self.shapes = self.op._shapes(self.call, self.options)
        if len(self.views) > 1:
            self._fit()
        self._make(models)

    # --- arrays -----------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Every array has the dtype and the shape that its role and the op's rule say."""
        where, leader, rules, views = self.where, self.leader, self.spec.rules, self.views
        data = views[leader]
        shape = data.shape
        for name, view in views.items():
            if name == leader:
                continue
            rule, names, repeats = rules[name]
            if rule != validate.OF_RESULT.dtype:
                validate.has_dtype(where, name, view, rule, leader, data)
            elif name in self.call.arrays:
                self._has_told_dtype(name, view, leader, data)
            if names is None:
                continue
            allowed = [shape if n == "data" else getattr(self.shapes, n) for n in names]
            if repeats:
                axes.check_repeats(where, name, view.shape, allowed[0], _whose(leader, names[0]))
                views[name] = axes.repeated(view, allowed[0])
                continue
            if view.shape in allowed and name in self.call.arrays:
                continue
            if name not in self.call.arrays:  # a number
                told = getattr(self.options, TOLD, None)
                if rule == validate.OF_RESULT.dtype and told is not None:
                    model = data.shaped(allowed[0]).of_dtype(told)
                    views[name] = self.call.repeated(self._number(name), model)
                elif allowed[0] != shape:
                    views[name] = self._repeated(name, view, data.shaped(allowed[0]))
                continue
            note = getattr(self.shapes, f"{name}_note", "")
            raise ValueError(
                f"{where}: {name} must have shape {allowed[0]}{note}, got {view.shape}"
            )

    def _has_told_dtype(self, name: str, view: View, leader: str, data: View) -> None:
        told = getattr(self.options, TOLD, None)
        if told is not None:
            leader, data = "the result", data.of_dtype(told)
        validate.has_dtype(self.where, name, view, "same", leader, data)

    def _repeated(self, name: str, view: View, model: View) -> View:
        """A number over a shape: it came as an array of the first one's."""
        if view.size:
            return view.repeats(model)
        # Of an array of no elements it has no memory.
        return self.call.repeated(self._number(name), model)

    def _number(self, name: str) -> float:
        """Give the number in an array's place: 0 for a part of a tuple that is None."""
        parts = self.spec.parts
        if name in parts:
            return self.options.dy[parts.index(name)] or 0.0
        return getattr(self.options, name)  # type: ignore[no-any-return]

    # --- outputs ----------------------------------------------------------------------------------

    def _make(self, models: bool) -> None:
        """Find or make the outputs, which lie apart from each other and from what is still read."""
        call, spec, options = self.call, self.spec, self.options
        self.made: dict[str, tuple[View | None, Any, Any]] = {}
        others: dict[str, View] | None = None
        grouped = getattr(self.shapes, "grouped", ())
        for made in spec.outputs(options):
            name, label, at, like, shape, _, dtype, in_place = made
            out, wanted = (None, True) if at is None else (options.out[at], options.wanted[at])
            source = self.leader if like is None else self._source(like)
            if source is None and out is not None:
                raise ValueError(f"{self.where}: {label} must be None, for there is no {like}")
            if source is None and at is not None and at >= spec.entry.outputs:
                continue  # nobody asked for it
            if source is None or not wanted or self._is_whole(source, out):
                self.made[name] = None, out, None
                continue
            lengths = None if shape is None else getattr(self.shapes, shape)
            of_dtype = None if dtype is None else self._dtype(dtype)
            if models:
                self.made[name] = call.model(source, lengths, of_dtype), None, None
                continue
            view, new = call.output(
                label,
                out,
                source,
                shape=lengths,
                dtype=of_dtype,
                in_place=in_place or source == "out",
                grouped=self.shapes.axes if shape == "shape" and grouped else (),
            )
            self.made[name] = view, out, new
            if out is not None:
                others = self._read() if others is None else others
                validate.apart(self.where, label, view, others)
                others[label] = view
                if spec.is_forward:
                    spared = self._spared()
                    validate.may_write(self.where, label, view, spared, in_place=False)

    def _read(self) -> dict[str, View]:
        """The arrays that no output may be."""
        free, arrays = self.spec.free, self.call.arrays
        return {n: view for n, view in self.views.items() if n in arrays and n not in free}

    def _spared(self) -> dict[str, View]:
        """The data that are saved, which no output may be."""
        saved = self.op.saves_inputs(self.options)
        return {n: self.views[n] for n in saved if n in self.call.arrays and n in self.spec.data}

    def _source(self, like: str) -> str | None:
        """The argument that an output is like, or one that shares its gradient; None: not there."""
        if like in self.views:
            return like if like in self.call.arrays else self.leader  # of a number
        shares: Mapping[str, str] = self.op.shares
        shared = [other for other, its in shares.items() if its == like]
        return next((name for name in shared if name in self.views), None)

    def _is_whole(self, source: str, out: Any) -> bool:
        """Of whole numbers no gradient is made, and an array for it is refused."""
        if not self.spec.is_backward or 0 <= self.views[source].dtype < _COMPUTED:
            return False
        if out is not None:
            validate.supported_dtype(self.where, source, self.views[source])
        return True

    def _dtype(self, dtype: str) -> int | None:
        told: int | None = getattr(self.options, dtype, None)
        if told is not None:
            return told
        if dtype == COMPUTED:
            return validate.computed_in(self.views[self.leader])
        is_whole = not 0 <= self.views[self.leader].dtype < _COMPUTED
        return validate.DOUBLE if dtype == DOUBLE or is_whole else None

    def view(self, name: str) -> Any:
        """An output's; None where it is not made."""
        return self.made[name][0] if name in self.made else None

    def temporary(self, name: str) -> View:
        """Memory of the call's own, in the place of an output that is not made."""
        made = self.spec.output(name)
        view = self.call.temporary(
            made.like or self.leader,
            None if made.shape is None else getattr(self.shapes, made.shape),
            None if made.dtype is None else self._dtype(made.dtype),
        )
        return self._with_axes(made.seen, view)

    def results(self) -> Any:
        """What the entry point returns."""
        result, spec, op = self.call.result, self.spec, self.op
        found = {
            name: None if view is None else result(out, new)
            for name, (view, out, new) in self.made.items()
        }
        values = tuple(found.values())
        if spec.is_backward or (spec.is_plain and not spec.is_forward):
            return values if len(values) > 1 else values[0]
        named = {**vars(self.options), **self.call.arrays, **found}
        named[SHAPE] = self.views[self.leader].shape  # which not every array tells
        if not spec.is_forward:
            return op.result_of(values, named)
        count = len(op.outputs_of("call", self.options))
        return op.result_of(values[:count], named), op.saved(named)

    # --- native functions -------------------------------------------------------------------------

    def run(self, function: str, /, **given: Any) -> None:
        """Run a native function; the arguments that are not given are found by their names.

        Numbers come from the shapes, from the options, or from the op.
        """
        spec = self.spec
        if function not in spec.sources:
            spec.sources[function] = spec.sources_of(function, self)
        for field, find, like in spec.sources[function]:
            if field not in given:
                value = find(self)
                if like is not None and value is not None:
                    value = _over(given[like], value)
                given[field] = value
        self.call.run(function, **given)

    def seen(self, name: str, like: View | None = None) -> Any:
        """An array of the call, with the axes of the kernels; None: it is not there.

        like : to whose shape it repeats.
        """
        view = self.views.get(name)
        if view is None:
            return None
        view = self._with_axes(self.spec.seen(name), view)
        return view if like is None else _over(like, view)

    def written(self, name: str) -> Any:
        """The same of an output; None: it is not made."""
        view = self.view(name)
        return None if view is None else self._with_axes(self.spec.output(name).seen, view)

    def _with_axes(self, shape: str, view: View) -> View:
        """An array whose shape has this name, with the axes of the kernels."""
        see = seen_by(type(self.shapes), shape)
        return view if see is None else see(self.shapes, view)

    def adds(self, output: str) -> bool:
        """Whether kernels add to an output, or (no name) to all.

        Memory in the place of one that nobody wants holds nothing to add to.
        """
        adds: bool = getattr(self.options, "accumulate", False)
        return adds and (not output or self.view(output) is not None)


def _over(like: View, view: View) -> View:
    """An array over another one's shape."""
    shape = like.shape
    return view if view.shape == shape else view.broadcast_to(shape)
