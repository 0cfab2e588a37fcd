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
from typing import Any, NamedTuple, Self

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from .fused import bind
from .op import COMPUTED, DATA, DOUBLE, REQUIRED, SHAPE, Makes, Op
from .weighting import ROLES as COUNTING
from .weighting import read_what_counts

#: How options that are numbers are checked, by their names.
_NUMBERS: Mapping[str, Callable[[str, str, Any], float]] = {
    "eps": validate.epsilon,
    **dict.fromkeys(("scale", "offset", "correction"), validate.number),
}

_COMPUTED = len(_cpu.DTYPE_NAMES)  # the dtypes that kernels compute have the numbers below

#: What the dtype of an array has to be, by its role.
_DTYPES: Mapping[str, Callable[..., None]] = {
    "same": validate.same_dtype,
    "wider": validate.parameter_dtype,
    "computed": validate.computed_dtype,
    "double": validate.double_dtype,
    "any": lambda *_: None,
}


class _Output(NamedTuple):
    """An output, as calls of an entry point make it.

    at : its place in `out`; None: it has none. like : None: the first array. shape : the name of
    the shape that it has instead. dtype : None: the array's.
    """

    name: str
    label: str
    at: int | None
    like: str | None
    shape: str | None
    dtype: str | None
    in_place: bool


class _Entry:
    """What the spec of an op says of an entry point, once for all calls.

    fused : it has an activation behind it.
    first : the data of the call, for which a result or a gradient stands where they were not saved.
    arrays : the arguments that are arrays. leaders : the first of these that is given leads.
    optional : arrays that may be None. plain : arrays for which no number stands.
    data : arrays of the data's dtype. free : of these, what an output may be.
    rules : for each array the check of its dtype, and the names of the shapes that it may have.
    numbers : the options that are numbers, and their checks.
    counts : it takes weights, or a mask that tells what counts. has_checks : of its options.
    is_plain : what calling the op gives are its arrays.
    """

    def __init__(self, op: Any, name: str) -> None:
        self.op, self.name, self.entry = op, name, op.entry_points[name]
        entry, call = self.entry, op.entry_points["call"]
        self.where = entry.where
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
            n: (_DTYPES[role.dtype], self._shapes_of(n, role)) for n, role in roles.items()
        }
        self.is_forward = name == "forward"
        self.is_backward = name not in ("call", "forward")
        self.is_plain = type(op).result_of is Op.result_of
        self.of_forward = op.of_forward if name == "backward" else ()
        self.counts = not COUNTING.keys().isdisjoint(self.arrays)
        self.roles = op.roles
        self.reads_whole = op.reads_whole and not self.is_backward
        if self.reads_whole:
            self.roles = {**op.roles, self.first: validate.Role(validate.WHOLE)}
        self.has_checks = type(op)._check_options is not Op._check_options
        self._varies = type(op).outputs_of is not Op.outputs_of
        self._outputs: dict[tuple[str, ...], list[_Output]] = {}
        self._all = (
            self._made_of(op.outputs_of(name, SimpleNamespace())) if not self._varies else []
        )

    def _shapes_of(self, name: str, role: validate.Role) -> tuple[str, ...] | None:
        """The names of the shapes that an array may have, the one that messages tell in front."""
        shape = self.op.shapes.get(name, None if role.repeats else "data")
        return None if shape is None else tuple(shape.split(" or "))

    def outputs(self, options: SimpleNamespace) -> list[_Output]:
        """How the outputs of a call are made."""
        return self._made_of(self.op.outputs_of(self.name, options)) if self._varies else self._all

    def _made_of(self, names: tuple[str, ...]) -> list[_Output]:
        if names not in self._outputs:
            count = self.entry.outputs + self.entry.extra
            self._outputs[names] = [
                self._output(name, i if i < count else None, count) for i, name in enumerate(names)
            ]
        return self._outputs[names]

    def _output(self, name: str, at: int | None, count: int) -> _Output:
        label = name if at is None else validate.out_name(at, (None,) * count)
        makes = self.op.makes.get(name)
        if makes is None and self.is_backward:  # a gradient is as its argument
            of = name.removeprefix("d")
            makes = Makes(of, in_place=of == self.first or of in self.data)
        like, shape, dtype, in_place = makes or Makes(in_place=True)
        like = None if like == self.first else like
        is_same = dtype == DATA and not self.reads_whole
        return _Output(name, label, at, like, shape, None if is_same else dtype, in_place)


_entry_of = cache(_Entry)


def told(
    op: Any, name: str, args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, int, tuple[float, ...], SimpleNamespace]:
    """What a call says without its arrays, checked.

    The op of the activation behind (None: the identity, or there is none), its number and
    parameters as kernels know them, and the options.
    """
    return _told(_entry_of(op, name), args, kwargs)


def _told(
    spec: _Entry, args: Any, kwargs: Mapping[str, Any]
) -> tuple[Any, int, tuple[float, ...], SimpleNamespace]:
    entry, where = spec.entry, spec.where
    found = bind(entry, args, kwargs) if spec.fused else (None, 0, (), entry.bind(args, kwargs))
    options = found[3]
    for option, check in spec.numbers:
        setattr(options, option, check(where, option, getattr(options, option)))
    if spec.has_checks:
        spec.op._check_options(where, options)
    return found


class step:
    """A call that is under way, once its arrays are known to fit and its outputs are there.

    options : the arguments by name; numbers are checked. which, parameters : the activation behind
    the op, as kernels know it.
    call, views : the arrays, and numbers that stand for some. leader : the first one's name.
    shapes : what the op's `_shapes` makes of them.
    made : the outputs by name: view, what the caller gave, and what `Call.result` needs.
    """

    __slots__ = (
        *("_spec", "activation", "call", "leader", "made", "op", "options", "parameters"),
        *("shapes", "views", "where", "which"),
    )

    def __init__(self, op: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> None:
        self._spec = spec = _entry_of(op, name)
        self.op, self.where = op, spec.where
        self.activation, self.which, self.parameters, options = _told(spec, args, kwargs)
        self.options, given = options, vars(options)
        leader = spec.leaders[0]
        if given[leader] is None:
            leader = next((n for n in spec.leaders if given[n] is not None), leader)
        arrays = {leader: given[leader]}
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
            spec.where, options.stream, spec.roles, op.integers, spec.of_forward, **arrays
        )
        self.views, self.leader = call.views, leader

    def _no_array(self, name: str, value: Any) -> None:
        kind, came = self.op.called.get(name, "an array"), validate.describe(value)
        raise TypeError(f"{self.where}: {name} must be {kind}, got {came}")

    def __enter__(self) -> Self:
        self.call.__enter__()
        try:
            self.shapes = self.op._shapes(self.call, self.options)
            if len(self.views) > 1:
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
        where, leader, rules, views = self.where, self.leader, self._spec.rules, self.views
        data = views[leader]
        shape = data.shape
        for name, view in views.items():
            if name == leader:
                continue
            check, names = rules[name]
            check(where, name, view, leader, data)
            if names is None:
                continue
            allowed = [shape if n == "data" else getattr(self.shapes, n) for n in names]
            if view.shape in allowed and name in self.call.arrays:
                continue
            if name not in self.call.arrays:  # a number
                if allowed[0] != shape:
                    views[name] = self._repeated(name, view, data.shaped(allowed[0]))
                continue
            note = getattr(self.shapes, f"{name}_note", "")
            raise ValueError(
                f"{where}: {name} must have shape {allowed[0]}{note}, got {view.shape}"
            )

    def _repeated(self, name: str, view: View, model: View) -> View:
        """A number over a shape: it came as an array of the first one's."""
        if view.size:
            return view.repeats(model)
        # Of an array of no elements it has no memory.
        return self.call.repeated(getattr(self.options, name), model)

    # --- outputs ----------------------------------------------------------------------------------

    def _make(self) -> None:
        """Find or make the outputs, which lie apart from each other and from what is still read."""
        call, spec, options = self.call, self._spec, self.options
        self.made: dict[str, tuple[View | None, Any, Any]] = {}
        others: dict[str, View] | None = None
        for made in spec.outputs(options):
            name, label, at, like, shape, dtype, in_place = made
            out, wanted = (None, True) if at is None else (options.out[at], options.wanted[at])
            source = self.leader if like is None else self._source(like)
            if source is None and out is not None:
                raise ValueError(f"{self.where}: {label} must be None, for there is no {like}")
            if source is None or not wanted:
                self.made[name] = None, out, None
                continue
            view, new = call.output(
                label,
                out,
                source,
                shape=None if shape is None else getattr(self.shapes, shape),
                dtype=None if dtype is None else self._dtype(dtype),
                in_place=in_place,
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
        free, arrays = self._spec.free, self.call.arrays
        return {n: view for n, view in self.views.items() if n in arrays and n not in free}

    def _spared(self) -> dict[str, View]:
        """The data that are saved, which no output may be."""
        saved = self.op.saves_inputs(self.options)
        return {n: self.views[n] for n in saved if n in self.call.arrays and n in self._spec.data}

    def _source(self, like: str) -> str | None:
        """The argument that an output is like, or one that shares its gradient; None: not there."""
        if like in self.views:
            return like if like in self.call.arrays else self.leader  # of a number
        shares: Mapping[str, str] = self.op.shares
        shared = [other for other, its in shares.items() if its == like]
        return next((name for name in shared if name in self.views), None)

    def _dtype(self, dtype: str) -> int | None:
        if dtype == COMPUTED:
            return validate.computed_in(self.views[self.leader])
        is_whole = not 0 <= self.views[self.leader].dtype < _COMPUTED
        return validate.DOUBLE if dtype == DOUBLE or is_whole else None

    def view(self, name: str) -> Any:
        """Look up the view of an output; None where it is not made."""
        return self.made[name][0] if name in self.made else None

    def results(self) -> Any:
        """What the entry point returns."""
        result, spec, op = self.call.result, self._spec, self.op
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
