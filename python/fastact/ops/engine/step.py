"""One call of an entry point: what its arrays have to be and what it makes, as the op's spec says.

A family's method has the shapes that follow from its options, and the call of the kernels::

    with step(self, "forward", args, kwargs) as now:
        now.call.run(...)
        return now.results()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from .fused import bind
from .op import COMPUTED, DOUBLE, REQUIRED, Makes

#: How options that are numbers are checked, by their names.
_NUMBERS: Mapping[str, Callable[[str, str, Any], float]] = {
    "eps": validate.epsilon,
    **dict.fromkeys(("scale", "offset", "correction"), validate.number),
}


class Step:
    """A call that is under way, once its arrays are known to fit and its outputs are there.

    options : the arguments by name; numbers are checked. which, parameters : the activation behind
    the op, as kernels know it.
    call, views : the arrays, and numbers that stand for some.
    shapes : what the op's `_shapes` makes of them.
    """

    call: Call
    views: dict[str, View]
    shapes: Any

    def __init__(
        self, op: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.op, self.name, self.entry = op, name, op.entry_points[name]
        self.where = self.entry.where
        if "activation" in self.entry.defaults:
            self.activation, self.which, self.parameters, self.options = bind(
                self.entry, args, kwargs
            )
        else:
            self.options = self.entry.bind(args, kwargs)
        for option, check in _NUMBERS.items():
            if option in self.entry.defaults:
                setattr(
                    self.options, option, check(self.where, option, getattr(self.options, option))
                )
        op._check_options(self.where, self.options)

    # --- arrays -----------------------------------------------------------------------------------

    def given(self) -> dict[str, Any]:
        """The arrays that are there, the one that leads the call in front of the others."""
        op, entry = self.op, self.entry
        found: dict[str, Any] = {}
        names = [*entry.arrays, *(n for n in op.roles if n in entry.defaults)]
        leaders = (op.entry_points["call"].arrays[0], op.results[0], *entry.arrays[:1])
        there = (n for n in leaders if n in names and getattr(self.options, n) is not None)
        leader = next(there, names[0])
        for name in (leader, *names):
            value = getattr(self.options, name)
            self._check_given(name, value)
            if value is not None:
                found[name] = value
        return found

    def _check_given(self, name: str, value: Any) -> None:
        """Refuse None, or a number, for an argument that must be an array."""
        op = self.op
        role = op.roles.get(name, validate.DATA)
        if value is None:
            defaults = {**op.entry_points["call"].defaults, **self.entry.defaults}
            if defaults.get(name, REQUIRED) is None or name in op.optional:
                return
        elif not (role.array and isinstance(value, bool | int | float)) or name in op.of_forward:
            return
        raise TypeError(f"{self.where}: {name} must be an array, got {validate.describe(value)}")

    def fit(self) -> None:
        """Every array has the dtype and the shape that its role and the op's rule say."""
        op, where, views = self.op, self.where, self.views
        leader, data = next(iter(views.items()))
        for name, view in list(views.items())[1:]:
            role = op.roles.get(name, validate.DATA)
            validate.fits_dtype(where, name, view, leader, data, role)
            rule = op.shapes.get(name, None if role.repeats else "data")
            if rule is None or name == leader:
                continue
            allowed = self._shapes_of(rule)
            if name not in self.call.arrays:  # a number
                views[name] = self._repeated(name, view, data.shaped(allowed[0]))
            elif view.shape not in allowed:
                note = getattr(self.shapes, f"{rule}_note", "")
                raise ValueError(
                    f"{where}: {name} must have shape {allowed[0]}{note}, got {view.shape}"
                )

    def _is_data(self, name: str) -> bool:
        role: validate.Role = self.op.roles.get(name, validate.DATA)
        return role.dtype == "same"

    def _shapes_of(self, rule: str) -> tuple[tuple[int, ...], ...]:
        """The shapes that an array may have, the one that messages tell in front."""
        if rule == "data":
            return (next(iter(self.views.values())).shape,)
        names = rule.split(" or ")
        return tuple(getattr(self.shapes, name) for name in names)

    def _repeated(self, name: str, view: View, model: View) -> View:
        """A number over a shape: it came as an array of the first one's."""
        if view.size:
            return view.repeats(model)
        # Of an array of no elements it has no memory.
        return self.call.repeated(getattr(self.options, name), model)

    # --- outputs ----------------------------------------------------------------------------------

    def make(self) -> None:
        """Find or make the outputs, which lie apart from each other and from what is still read."""
        op, call, outs = self.op, self.call, self.options.out
        self.made: dict[str, tuple[View | None, Any]] = {}
        written: dict[str, View] = {}
        wanted = [*self.options.wanted, *[True] * len(op.besides)]
        for i, name in enumerate(op.outputs_of(self.name, self.options)):
            label = validate.out_name(i, outs) if i < len(outs) else name
            out = outs[i] if i < len(outs) else None
            made = op.makes.get(name) or self._like_argument(name)
            like = self._source(made.like)
            if like is None and out is not None:
                raise ValueError(f"{self.where}: {label} must be None, for there is no {made.like}")
            if like is None or not wanted[i]:
                self.made[name] = None, None
                continue
            shape = None if made.shape is None else self._shapes_of(made.shape)[0]
            view, new = call.output(
                label, out, like, shape=shape, dtype=self._dtype(made), in_place=made.in_place
            )
            self.made[name] = view, new
            written[label] = view
        self._keep_apart(written)

    def _like_argument(self, name: str) -> Makes:
        """A result is as the data, and a gradient as its argument."""
        if name in self.op.results:
            return Makes(in_place=True)
        of = name.removeprefix("d")
        return Makes(of, in_place=self._is_data(of))

    def _source(self, like: str | None) -> str | None:
        """The argument that an output is like, or one that shares its gradient; None: not there."""
        if like is None:
            return next(iter(self.views))
        shared = (like, *(other for other, its in self.op.shares.items() if its == like))
        return next((name for name in shared if name in self.views), None)

    def _dtype(self, made: Makes) -> int | None:
        if made.dtype == DOUBLE:
            return validate.DOUBLE
        return (
            validate.computed_in(next(iter(self.views.values())))
            if made.dtype == COMPUTED
            else None
        )

    def _keep_apart(self, written: Mapping[str, View]) -> None:
        op, call = self.op, self.call
        others = {
            name: view
            for name, view in self.views.items()
            if name in call.arrays and (name in op.apart or not self._is_data(name))
        }
        kept: dict[str, View] = {}
        if self.name == "forward":
            saved = {*map(id, op.saved(self._named(dict.fromkeys(self.made))))}
            kept = {n: self.views[n] for n, array in call.arrays.items() if id(array) in saved}
        for label, view in written.items():
            validate.may_write(self.where, label, view, kept, in_place=False)
            validate.apart(self.where, label, view, others)
            others[label] = view

    def _named(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments, as they were computed on, and outputs."""
        return {**vars(self.options), **self.call.arrays, **found}

    # --- results ----------------------------------------------------------------------------------

    def view(self, name: str) -> View | None:
        """An output's; None where it is not made."""
        return self.made.get(name, (None, None))[0]

    def results(self) -> Any:
        """What the entry point returns."""
        outs = (*self.options.out, *[None] * len(self.made))
        found = {
            name: None if view is None else self.call.result(out, new)
            for out, (name, (view, new)) in zip(outs, self.made.items(), strict=False)
        }
        if self.name not in ("call", "forward"):
            values = tuple(found.values())
            return values if len(values) > 1 else values[0]
        values = tuple(found[name] for name in self.op.results)
        y = values if len(values) > 1 else values[0]
        return (y, self.op.saved(self._named(found))) if self.name == "forward" else y


@contextmanager
def step(op: Any, name: str, args: Any, kwargs: Mapping[str, Any]) -> Iterator[Step]:
    """A call of an entry point, all checked; the kernels are queued inside."""
    now = Step(op, name, args, kwargs)
    of_forward = op.of_forward if name == "backward" else ()
    options = now.options.stream, op.roles, op.integers, of_forward
    with Call(now.where, *options, **now.given()) as now.call:
        now.views = now.call.views
        now.shapes = op._shapes(now.call, now.options)
        now.fit()
        now.make()
        yield now
