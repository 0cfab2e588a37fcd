"""One call of an entry point: what its arrays have to be and what it makes, as the op's spec says.

A family's method has the shapes that follow from its options, and the call of the kernels::

    with step(self, "forward", args, kwargs) as now:
        now.call.run(...)
        return now.results()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from .fused import bind
from .op import COMPUTED, DOUBLE, REQUIRED, Makes
from .weighting import ROLES as COUNTING
from .weighting import read_what_counts

#: How options that are numbers are checked, by their names.
_NUMBERS: Mapping[str, Callable[[str, str, Any], float]] = {
    "eps": validate.epsilon,
    **dict.fromkeys(("scale", "offset", "correction"), validate.number),
}

#: What the dtype of an array has to be, by its role.
_DTYPES: Mapping[str, Callable[..., None]] = {
    "same": validate.same_dtype,
    "wider": validate.parameter_dtype,
    "computed": validate.computed_dtype,
    "double": validate.double_dtype,
    "any": lambda *_: None,
}


class _Entry:
    """What the spec of an op says of an entry point, once for all calls.

    fused : it has an activation behind it.
    first : the data of the call, for which a result or a gradient stands where they were not saved.
    arrays : the arguments that are arrays. leaders : the first of these that is given leads.
    optional : arrays that may be None. plain : arrays for which no number stands.
    data : arrays of the data's dtype. free : of these, what an output may be.
    rules : for each array the check of its dtype, and the name of its shape.
    numbers : the options that are numbers, and their checks.
    counts : it takes weights, or a mask that tells what counts.
    """

    def __init__(self, op: Any, name: str) -> None:
        entry, call = op.entry_points[name], op.entry_points["call"]
        self.first = call.arrays[0]
        self.fused = "activation" in entry.defaults
        self.numbers = [(n, check) for n, check in _NUMBERS.items() if n in entry.defaults]
        self.arrays = (*entry.arrays, *(n for n in op.roles if n in entry.defaults))
        leaders = (call.arrays[0], op.results[0], *entry.arrays[:1])
        self.leaders = [n for n in leaders if n in self.arrays]
        roles = {n: op.roles.get(n, validate.DATA) for n in self.arrays}
        missing = (*op.optional, *(op.unsaved if name == "backward" else ()))
        self.optional = {
            n
            for n in self.arrays
            if n in missing
            or None in (call.defaults.get(n, REQUIRED), entry.defaults.get(n, REQUIRED))
        }
        self.plain = {n for n, role in roles.items() if role.array} - {*op.of_forward}
        self.data = {n for n, role in roles.items() if role.dtype == "same"}
        self.free = self.data - {*op.apart}
        self.rules = {
            n: (_DTYPES[role.dtype], op.shapes.get(n, None if role.repeats else "data"))
            for n, role in roles.items()
        }
        self.is_forward = name == "forward"
        self.roles = op.roles
        if op.reads_whole and name in ("call", "forward"):
            self.roles = {**op.roles, self.first: validate.Role(validate.WHOLE)}
        self.counts = not COUNTING.keys().isdisjoint(self.arrays)
        self.of_forward = op.of_forward if name == "backward" else ()
        self.is_backward = name not in ("call", "forward")


_entry_of = cache(_Entry)


def told(
    op: Any, name: str, args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, int, tuple[float, ...], SimpleNamespace]:
    """What a call says without its arrays, checked.

    The op of the activation behind (None: the identity, or there is none), its number and
    parameters as kernels know them, and the options.
    """
    spec, entry = _entry_of(op, name), op.entry_points[name]
    found = bind(entry, args, kwargs) if spec.fused else (None, 0, (), entry.bind(args, kwargs))
    options = found[-1]
    given = vars(options)
    for option, check in spec.numbers:
        given[option] = check(entry.where, option, given[option])
    op._check_options(entry.where, options)
    return found


class step:
    """A call that is under way, once its arrays are known to fit and its outputs are there.

    options : the arguments by name; numbers are checked. which, parameters : the activation behind
    the op, as kernels know it.
    call, views : the arrays, and numbers that stand for some. leader : the first one's name.
    shapes : what the op's `_shapes` makes of them.
    made : the outputs by name, each its view and what `Call.result` makes an array of, or None.
    """

    def __init__(self, op: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.op, self.name, self.where = op, name, op.entry_points[name].where
        self._spec = spec = _entry_of(op, name)
        self.activation, self.which, self.parameters, self.options = told(op, name, args, kwargs)
        given = vars(self.options)
        leader = next((n for n in spec.leaders if given[n] is not None), spec.leaders[0])
        arrays = {leader: given[leader]}
        for n in spec.arrays:
            value = given[n]
            if value is None:
                if n in spec.optional:
                    continue
                self._no_array(n, value)
            elif n in spec.plain and isinstance(value, bool | int | float):
                self._no_array(n, value)
            arrays[n] = value
        if spec.counts:
            read_what_counts(self.where, arrays)
        stream = self.options.stream
        self.call = Call(self.where, stream, spec.roles, op.integers, spec.of_forward, **arrays)
        self.views, self.leader = self.call.views, leader

    def _no_array(self, name: str, value: Any) -> None:
        kind, came = self.op.called.get(name, "an array"), validate.describe(value)
        raise TypeError(f"{self.where}: {name} must be {kind}, got {came}")

    def __enter__(self) -> Self:
        self.call.__enter__()
        try:
            self.shapes = self.op._shapes(self.call, self.options)
            self._fit()
            self._make()
        except BaseException as error:
            self.call.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.call.__exit__(kind, error, traceback)

    # --- arrays -----------------------------------------------------------------------------------

    def _fit(self) -> None:
        """Every array has the dtype and the shape that its role and the op's rule say."""
        where, leader, rules = self.where, self.leader, self._spec.rules
        data = self.views[leader]
        for name, view in self.views.items():
            if name == leader:
                continue
            check, rule = rules[name]
            check(where, name, view, leader, data)
            if rule is None or (rule == "data" and view.shape == data.shape):
                continue
            allowed = self._shapes_of(rule)
            if name not in self.call.arrays:  # a number
                self.views[name] = self._repeated(name, view, data.shaped(allowed[0]))
            elif view.shape not in allowed:
                note = getattr(self.shapes, f"{name}_note", "")
                raise ValueError(
                    f"{where}: {name} must have shape {allowed[0]}{note}, got {view.shape}"
                )

    def _shapes_of(self, rule: str) -> tuple[tuple[int, ...], ...]:
        """The shapes that an array may have, the one that messages tell in front."""
        if rule == "data":
            return (self.views[self.leader].shape,)
        return tuple(getattr(self.shapes, name) for name in rule.split(" or "))

    def _repeated(self, name: str, view: View, model: View) -> View:
        """A number over a shape: it came as an array of the first one's."""
        if view.size:
            return view.repeats(model)
        # Of an array of no elements it has no memory.
        return self.call.repeated(getattr(self.options, name), model)

    # --- outputs ----------------------------------------------------------------------------------

    def _make(self) -> None:
        """Find or make the outputs, which lie apart from each other and from what is still read."""
        op, call, spec, where = self.op, self.call, self._spec, self.where
        outs, wanted = self.options.out, self.options.wanted
        spared = self._spared() if spec.is_forward else {}
        others = {n: v for n, v in self.views.items() if n in call.arrays and n not in spec.free}
        self.made: dict[str, tuple[View | None, Any]] = {}
        for i, name in enumerate(op.outputs_of(self.name, self.options)):
            is_told = i < len(outs)
            label = validate.out_name(i, outs) if is_told else name
            out = outs[i] if is_told else None
            makes = self._makes(name)
            like = self._source(makes.like)
            if like is None and out is not None:
                raise ValueError(f"{where}: {label} must be None, for there is no {makes.like}")
            if like is None or (is_told and not wanted[i]):
                self.made[name] = None, None
                continue
            shape = None if makes.shape is None else self._shapes_of(makes.shape)[0]
            dtype = self._dtype(makes.dtype)
            view, new = call.output(
                label, out, like, shape=shape, dtype=dtype, in_place=makes.in_place
            )
            self.made[name] = view, new
            if out is not None:
                validate.may_write(where, label, view, spared, in_place=False)
                validate.apart(where, label, view, others)
                others[label] = view

    def _spared(self) -> dict[str, View]:
        """The data that are saved, which no output may be."""
        saved = self.op.saves_inputs(self.options)
        return {n: self.views[n] for n in saved if n in self.call.arrays and n in self._spec.data}

    def _makes(self, name: str) -> Makes:
        """A result is as the data, and a gradient as its argument, if nothing else is told."""
        found = self.op.makes.get(name)
        if found is not None:
            return found  # type: ignore[no-any-return]
        if not self._spec.is_backward:
            return Makes(in_place=True)
        of = name.removeprefix("d")
        return Makes(of, in_place=of == self._spec.first or of in self._spec.data)

    def _source(self, like: str | None) -> str | None:
        """The argument that an output is like, or one that shares its gradient; None: not there."""
        if like is None or like == self._spec.first:
            return str(self.leader)
        if like in self.views:
            return like if like in self.call.arrays else self.leader  # of a number
        shares: Mapping[str, str] = self.op.shares
        shared = [other for other, its in shares.items() if its == like]
        return next((name for name in shared if name in self.views), None)

    def _dtype(self, dtype: str) -> int | None:
        if dtype == COMPUTED:
            return validate.computed_in(self.views[self.leader])
        is_whole = self.views[self.leader].dtype_name not in _cpu.DTYPE_NAMES
        return validate.DOUBLE if dtype == DOUBLE or is_whole else None

    def view(self, name: str) -> Any:
        """An output's; None where it is not made."""
        return self.made.get(name, (None, None))[0]

    def results(self) -> Any:
        """What the entry point returns."""
        outs = (*self.options.out, *[None] * len(self.made))
        found = {
            name: None if view is None else self.call.result(out, new)
            for out, (name, (view, new)) in zip(outs, self.made.items(), strict=False)
        }
        values = tuple(found.values())
        if self._spec.is_backward:
            return values if len(values) > 1 else values[0]
        named = {**vars(self.options), **self.call.arrays, **found}
        count = len(self.op.outputs_of("call", self.options))
        y = self.op.result_of(values[:count], named)
        return (y, self.op.saved(named)) if self._spec.is_forward else y
