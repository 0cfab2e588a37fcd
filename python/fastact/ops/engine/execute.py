"""One call of an entry point, from its arguments to its results, which `execute` carries out.

A family says which shapes follow from the options (`Op._shapes`) and which native function runs
(`Op.kernels`), or has a method if it takes more than one call by names::

    def _run_backward(self, now: Execution) -> None:
        now.run("bias_act_backward", x=now.views["dy"])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ... import _cpu
from ..._cpu import View
from ...interop import foreign, handlers, validate
from ...interop.call import Call
from . import axes, fused
from .entry import COMPUTED, DOUBLE, TOLD, Entry, outputs_of, seen_by, sources_of
from .op import SHAPE, Op
from .weighting import read_what_counts

_OF_RESULT = validate.OF_RESULT.dtype
_COMPUTED = len(_cpu.DTYPE_NAMES)  # the dtypes that kernels compute have the numbers below


def execute(entry: Entry, /, *args: Any, **kwargs: Any) -> Any:
    if entry.name != "call" and foreign.is_watched():
        found = handlers.entered(entry.op, entry.name, args, kwargs)
        if found is not NotImplemented:
            return found
    now = Execution(entry, args, kwargs)  # bind, arrays
    with now.call:
        now.prepare()  # shapes, outputs
        entry.run(now)
        return now.results()


@contextmanager
def said_by(where: str, entry: str, more: str = "") -> Iterator[None]:
    """Let errors of an inner call begin with the name of the outer call.

    more : further keywords that the outer call takes.
    """
    try:
        yield
    except (TypeError, ValueError) as error:
        allowed = f"; allowed are {more}, " if more else "; allowed are "
        text = str(error).replace("; allowed are ", allowed, 1)
        error.args = (text.replace(f"{entry}:", f"{where}:", 1),)
        raise


def options_of(entry: Entry, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, SimpleNamespace]:
    """Parse the arguments of a call except its arrays.

    This gives the op of the activation (None: the identity, or no activation) and the options,
    which include `which` and `parameters`, its number and parameters for kernels.
    """
    activation, options = fused.bind(entry, args, kwargs)
    for option, check in entry.numbers:
        setattr(options, option, check(entry.where, option, getattr(options, option)))
    vars(options).update(entry.constants)
    entry.op._check_options(entry, options)
    return activation, options


class Execution:
    """A call in progress.

    options : the arguments by name; numbers are checked. activation : the op behind the op.
    call, views : the arrays, and numbers that stand for some. leader : the first one's name.
    shapes : the result of the op's `_shapes`.
    made : the outputs by name: view, what the caller gave, and what `Call.result` needs.
    """

    __slots__ = (
        *("activation", "call", "entry", "leader", "made", "op"),
        *("options", "shapes", "views", "where"),
    )

    def __init__(self, entry: Entry, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.entry, self.op, self.where = entry, entry.op, entry.where
        self.activation, self.options = options_of(entry, args, kwargs)
        self.leader, arrays = self._arrays()
        self.call = Call(
            entry.where,
            self.options.stream,
            entry.roles,
            entry.op.traits.integers,
            entry.of_forward,
            **arrays,
        )
        self.views = self.call.views

    # --- arrays -----------------------------------------------------------------------------------

    def _arrays(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the first array, and all arrays as they were given."""
        entry, given = self.entry, vars(self.options)
        if entry.parts:
            given.update(self._taken_apart())
        leader = entry.leaders[0]
        if given[leader] is None:
            leader = next((n for n in entry.leaders if given[n] is not None), leader)
        arrays = {leader: given[leader]}
        if entry.takes_shape and isinstance(given[leader], bool | int | float):
            (out,) = self.options.out  # it has the dtype that a number lacks
            if out is not None:
                leader, arrays = "out", {"out": out}
        for name, may_lack, may_be_number in entry.asked:
            value = given[name]
            if value is None and may_lack:
                continue
            if value is None or (not may_be_number and isinstance(value, bool | int | float)):
                kind, came = entry.taken[name].called, validate.describe(value)
                raise TypeError(f"{self.where}: {name} must be {kind}, got {came}")
            arrays[name] = value
        if entry.counts:
            read_what_counts(entry.where, arrays)
        return leader, arrays

    def _taken_apart(self) -> dict[str, Any]:
        """Split a tuple of gradients, one for each result; None is 0."""
        given, parts = self.options.dy, self.entry.parts
        if not isinstance(given, tuple | list) or len(given) != len(parts):
            came = validate.describe(given)
            raise TypeError(f"{self.where}: dy must be a tuple of two gradients, got {came}")
        return {n: 0.0 if part is None else part for n, part in zip(parts, given, strict=True)}

    def prepare(self, *, models: bool = False) -> None:
        """Check the arrays, and make the outputs; models: without memory."""
        self.shapes = self.op._shapes(self.call, self.options, self.entry.name)
        if len(self.views) > 1:
            self._fit()
        self._make(models)

    def _fit(self) -> None:
        """Check that every array has the dtype and shape of its role and the op's rule."""
        where, leader, rules, views = self.where, self.leader, self.entry.rules, self.views
        data, arrays, told = views[leader], self.call.arrays, getattr(self.options, TOLD, None)
        shape = data.shape
        for name, view in views.items():
            if name == leader:
                continue
            rule, names, repeats = rules[name]
            is_of_result, is_number = rule == _OF_RESULT, name not in arrays
            if not is_of_result:
                validate.has_dtype(where, name, view, rule, leader, data)
            elif not is_number:
                like = (leader, data) if told is None else ("the result", data.of_dtype(told))
                validate.has_dtype(where, name, view, "same", *like)
            if names is None:
                continue
            allowed = [shape if n == "data" else getattr(self.shapes, n) for n in names]
            if repeats:
                is_of_x = names[0] in ("data", "whole")
                of = "x's shape" if is_of_x else f"{leader}'s {names[0]}"
                axes.check_repeats(where, name, view.shape, allowed[0], of)
                views[name] = axes.repeated(view, allowed[0])
            elif is_number and is_of_result and told is not None:
                model = data.shaped(allowed[0]).of_dtype(told)
                views[name] = self.call.repeated(self._number(name), model)
            elif is_number and allowed[0] != shape:
                # It came as an array of the first one's shape, which has no memory for no elements.
                model = data.shaped(allowed[0])
                views[name] = (
                    view.repeats(model)
                    if view.size
                    else self.call.repeated(self._number(name), model)
                )
            elif not is_number and view.shape not in allowed:
                note = self.entry.taken[name].note.format(leader=leader, **vars(self.options))
                raise ValueError(
                    f"{where}: {name} must have shape {allowed[0]}{note}, got {view.shape}"
                )

    def _number(self, name: str) -> float:
        """Return the number in an array's place; None in a tuple is 0."""
        parts = self.entry.parts
        if name in parts:
            return self.options.dy[parts.index(name)] or 0.0
        return getattr(self.options, name)  # type: ignore[no-any-return]

    # --- outputs ----------------------------------------------------------------------------------

    def _make(self, models: bool) -> None:
        """Find or make the outputs, which must not overlap each other or what is still read."""
        call, entry, options = self.call, self.entry, self.options
        self.made: dict[str, tuple[View | None, Any, Any]] = {}
        others: dict[str, View] | None = None
        grouped = getattr(self.shapes, "grouped", ())
        for made in outputs_of(entry, self.op.outputs_of(entry.name, options)):
            name, label, at, like, shape, _, dtype, in_place = made
            out, wanted = (None, True) if at is None else (options.out[at], options.wanted[at])
            source = self.leader if like is None else self._source(like)
            if source is None and out is not None:
                raise ValueError(f"{self.where}: {label} must be None, as there is no {like}")
            if source is None and at is not None and at >= entry.outputs:
                continue  # it was not asked for
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
                if others is None:
                    free, arrays = entry.free, call.arrays
                    others = {n: v for n, v in self.views.items() if n in arrays and n not in free}
                validate.apart(self.where, label, view, others)
                others[label] = view
                if entry.is_forward:  # what is saved stays
                    saved = {*self.op.saves_inputs(options)} & call.arrays.keys() & entry.data
                    spared = {n: self.views[n] for n in self.views if n in saved}
                    validate.may_write(self.where, label, view, spared, in_place=False)

    def _source(self, like: str) -> str | None:
        """Find the argument that an output is like, or one that shares its gradient, or None."""
        if like in self.views:
            return like if like in self.call.arrays else self.leader  # of a number
        args = self.op.args
        return next((n for n in self.views if n in args and args[n].shares == like), None)

    def _is_whole(self, source: str, out: Any) -> bool:
        """Tell whether data are whole numbers, without a gradient; refuse an array for one."""
        if not self.entry.is_backward or 0 <= self.views[source].dtype < _COMPUTED:
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
        """Return an output's view, or None if it is not made."""
        return self.made[name][0] if name in self.made else None

    def temporary(self, name: str) -> View:
        """Allocate temporary memory in place of an output that is not made."""
        made = self.entry.output(name)
        view = self.call.temporary(
            made.like or self.leader,
            None if made.shape is None else getattr(self.shapes, made.shape),
            None if made.dtype is None else self._dtype(made.dtype),
        )
        return self._with_axes(made.seen, view)

    def results(self) -> Any:
        result, entry, op = self.call.result, self.entry, self.op
        found = {
            name: None if view is None else result(out, new)
            for name, (view, out, new) in self.made.items()
        }
        values = tuple(found.values())
        if entry.is_backward or (not entry.is_forward and type(op).result_of is Op.result_of):
            return values if len(values) > 1 else values[0]
        named = {**vars(self.options), **self.call.arrays, **found}
        named[SHAPE] = self.views[self.leader].shape  # which not every array tells
        if not entry.is_forward:
            return op.result_of(values, named)
        count = len(op.outputs_of("call", self.options))
        return op.result_of(values[:count], named), op.saved(named)

    # --- native functions -------------------------------------------------------------------------

    def run(self, function: str, /, **given: Any) -> None:
        """Run a native function; arguments that are not given are found by name."""
        for field, find, like in sources_of(self.entry, function, self.shapes.__class__):
            if field not in given:
                value = find(self)
                if like is not None and value is not None:
                    value = _over(given[like], value)
                given[field] = value
        self.call.run(function, **given)

    def seen(self, name: str, like: View | None = None) -> Any:
        """Return an array of the call with the axes of the kernels, or None.

        like : the array to whose shape it repeats.
        """
        view = self.views.get(name)
        if view is None:
            return None
        view = self._with_axes(self.entry.seen(name), view)
        return view if like is None else _over(like, view)

    def written(self, name: str) -> Any:
        """Give an output the axes of the kernels; None if it is not made."""
        view = self.view(name)
        return None if view is None else self._with_axes(self.entry.output(name).seen, view)

    def _with_axes(self, shape: str, view: View) -> View:
        """Give an array whose shape has this name the axes of the kernels."""
        see = seen_by(type(self.shapes), shape)
        return view if see is None else see(self.shapes, view)

    def adds(self, output: str) -> bool:
        """Tell whether kernels add to an output, or (no name) to all.

        Temporary memory in place of a skipped output holds nothing to add to.
        """
        adds: bool = getattr(self.options, "accumulate", False)
        return adds and (not output or self.view(output) is not None)


def _over(like: View, view: View) -> View:
    """Repeat an array over another one's shape."""
    shape = like.shape
    return view if view.shape == shape else view.broadcast_to(shape)
