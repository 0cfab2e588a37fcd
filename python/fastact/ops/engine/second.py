"""`backward.backward` and `jvp` of ops that have no kernels for them.

Arrays are checked as calls of `backward` and of the op check them. Then the op's formula is
computed, in the arithmetic of the arrays' own framework (`fastact.derivatives`). Kernels alone
are replayed, so no such call is cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature
from operator import attrgetter
from typing import Any

import numpy as np

from ..._cpu import View
from ...interop import handlers, validate
from ...interop.foreign import describe
from ...interop.frameworks import NUMPY, framework_of, namespace, see, to_numpy
from . import fused
from .op import EntryPoint, arrays_of, result_of
from .spec import Spec, spec_of
from .step import Step


class Second:
    """The gradients of `backward`: of what comes back, and of what was saved.

    Takes what comes back to the gradients of `backward`, None for 0, and then what `backward`
    takes. Gives a gradient for each of the results' gradients, and for each saved array that has
    one, None where that was not given. What `forward` made besides, as a norm's statistics, counts
    as made of the arrays: it has no gradient of its own. ``out`` is a tuple of them all, where None
    skips one; ``accumulate=True`` adds to it.
    """

    def __init__(self, op: Any) -> None:
        backward = op.entry_points["backward"]
        taken = {*backward.arrays, *backward.defaults}
        several = len(op.results) > 1
        #: The gradients of the results, as a step of `backward` names them.
        self.incoming = [
            f"d{name}" if f"d{name}" in taken else f"dy[{i}]" if several else "dy"
            for i, name in enumerate(op.results)
        ]
        gives = tuple(f"d{n}" for n in (*self.incoming, *op.moving))
        ddx = [Parameter(f"d{name}", Parameter.POSITIONAL_ONLY) for name in op.gradients]
        self.__signature__ = Signature([*ddx, *backward.signature.parameters.values()])
        where = f"{backward.where}.backward"
        self.op, self.__name__ = op, "backward.backward"
        self.point = EntryPoint(where, self.__signature__, gives, skips=True)
        self.backward = partial(no_third, where)

    def __reduce__(self) -> Any:
        return attrgetter(self.__name__), (self.op,)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        op, point = self.op, self.point
        is_fused = "activation" in point.defaults
        options = fused.bind(point, args, kwargs)[1] if is_fused else point.bind(args, kwargs)
        rest = {n: value for n, value in kwargs.items() if n not in ("out", "accumulate")}
        try:
            now = Step(op, "backward", args[len(op.gradients) :], rest)
            with now.call:
                now.prepare(models=True)
                now.where = now.call.where = point.where
                m = _operations(now)
                ddx = self._ddx(now, options, m)
                outs = self._outputs(now, options.out)
                found = self._found(now, ddx, m)
                results = [
                    _written(made, out, options.accumulate, m) if wants else None
                    for made, out, wants in zip(found, outs, options.wanted, strict=True)
                ]
        except (TypeError, ValueError) as error:
            was = op.entry_points["backward"].where
            error.args = (str(error).replace(f"{was}:", f"{point.where}:", 1),)
            raise
        return tuple(results) if len(results) > 1 else results[0]

    def _ddx(self, now: Step, options: Any, m: Any) -> dict[str, Any]:
        """What comes back, by the arguments of the gradients."""
        found = {}
        for gradient, name in zip(self.op.gradients, self.op.differentiated, strict=True):
            label, view = f"d{gradient}", now.view(gradient)
            value = getattr(options, label)
            if value is None:
                continue
            if view is None:
                raise ValueError(f"{now.where}: {label} must be None, for there is no {name}")
            found[name] = _taken(now, label, value, name, view, m)
        return found

    def _outputs(self, now: Step, outs: Sequence[Any]) -> list[Any]:
        """The arrays to write, checked."""
        views: dict[str, View] = {}
        names = (*self.incoming, *self.op.moving)
        for i, (name, out) in enumerate(zip(names, outs, strict=True)):
            if out is None:
                continue
            label = validate.out_name(i, outs)
            if name not in now.views:
                raise ValueError(f"{now.where}: {label} must be None, for there is no {name}")
            view, _ = now.call.output(label, out, name)
            validate.apart(now.where, label, view, views)
            views[label] = view
        return [*outs]

    def _found(self, now: Step, ddx: Mapping[str, Any], m: Any) -> list[tuple[Any, Any]]:
        """Each gradient, and an array of its dtype."""
        op = self.op
        dys = [_array(now, name, m) for name in self.incoming]
        told = vars(now.options)
        named = {n: told[n] for n in spec_of(op).told if told.get(n) is not None}
        named |= {n: _array(now, n, m) for n in op.saves if n in now.views}
        named |= {n: told[n] for n in op.sizes}
        models = [*dys, *(named.get(name) for name in op.moving)]
        with m.plain():
            if not now.views[now.leader].size:
                return [(None if a is None else m.zeros(a.shape, a), a) for a in models]
            derivatives = handlers.derivatives()
            wide = {n: m.wide(value) for n, value in named.items()}
            ddx = {n: m.wide(value) for n, value in ddx.items()}
            of_dys, of_saved = derivatives.second(op, ddx, [*map(m.wide, dys)], wide, m)
        found = [*of_dys, *(of_saved.get(name) for name in op.moving)]
        return [(None if a is None else d, a) for d, a in zip(found, models, strict=True)]


def no_third(where: str, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"{where}.backward: there is no third derivative")


def jvp(op: Any, tangents: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What calling an op gives, and its tangent."""
    spec, point, where = spec_of(op), op.entry_points["call"], op._where("jvp")
    _no_out(where, kwargs)
    try:
        now = Step(op, "call", args, kwargs)
        with now.call:
            now.prepare()
            now.where = now.call.where = where
            m = _operations(now)
            told = vars(now.options)
            order = [n for n in (*point.arrays, *point.defaults) if n in now.call.arrays]
            for name in order:
                if name in spec.of:
                    validate.supported_dtype(where, name, now.views[name])
            given = _checked_tangents(where, spec, {n: now.call.arrays[n] for n in order}, tangents)
            now.spec.compute(now)
            result = now.results()
            own = {*point.arrays, *point.defaults, *spec.told} - {"out", "stream"}
            named = {n: _array(now, n, m) if n in now.views else told.get(n) for n in own}
            with m.plain():
                wide, ways = ({n: m.wide(v) for n, v in d.items() if v is not None}
                              for d in (named, given))  # fmt: skip
                if now.views[now.leader].size:
                    found = handlers.derivatives().tangents(op, ways, wide, m)
                else:
                    found = [m.zeros(y.shape, y) for y in arrays_of(result)]
                pairs = zip(found, arrays_of(result), strict=True)
                moved = tuple(m.own(m.expanded(d, tuple(y.shape)), y) for d, y in pairs)
    except (TypeError, ValueError) as error:
        error.args = (str(error).replace(f"{point.where}:", f"{where}:", 1),)
        raise
    return result, result_of(moved, result)


def only_tangent(op: Any, tangents: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The tangent of an op with one array, checked."""
    given = tangents[0] if type(tangents) is tuple and len(tangents) == 1 else tangents
    if len(args) == 1 and "out" not in kwargs and hasattr(given, "dtype"):
        (x,) = args
        if hasattr(x, "dtype") and x.shape == given.shape and x.dtype == given.dtype:
            return given  # soon, for most
    spec, where = spec_of(op), op._where("jvp")
    named = spec.named(args, kwargs)
    _no_out(where, named)
    (tangent,) = _checked_tangents(where, spec, named, tangents).values()
    return 0.0 if tangent is None else tangent


def _no_out(where: str, named: Mapping[str, Any]) -> None:
    if named.get("out") is not None:
        raise TypeError(f"{where}: out must not be given")


def _checked_tangents(
    where: str, spec: Spec, named: Mapping[str, Any], given: Any
) -> dict[str, Any]:
    """One for each array that has a gradient, by its name: of its shape and dtype, or None."""
    arrays = {n: value for n, value in named.items() if n in spec.of and value is not None}
    given = given if isinstance(given, tuple | list) else (given,)
    if len(given) != len(arrays):
        raise TypeError(
            f"{where}: tangents must be a tuple of {len(arrays)}, for {', '.join(arrays)}, got "
            f"{describe(tuple(given))}"
        )
    for (name, array), tangent in zip(arrays.items(), given, strict=True):
        expected, found = (
            (tuple(getattr(a, "shape", ())), getattr(a, "dtype", None)) for a in (array, tangent)
        )
        if tangent is not None and expected != found and expected[1] is not None:
            raise (TypeError if expected[0] == found[0] else ValueError)(
                f"{where}: the tangent of {name} must be like {name}, {describe(array)}, got "
                f"{describe(tangent)}"
            )
    return dict(zip(arrays, given, strict=True))


# --- arrays of a step -----------------------------------------------------------------------------


def _operations(now: Step) -> Any:
    """The arithmetic of the call's arrays."""
    array = next(iter(now.call.arrays.values()))
    xp = np if now.call.framework is NUMPY else namespace(array)
    operations = handlers.derivatives().Operations
    if not all(hasattr(xp, name) for name in operations.needs):
        raise TypeError(
            f"{now.where}: arrays must be of NumPy, torch, CuPy or JAX, whose arithmetic finds "
            f"derivatives that have no kernel, got {describe(array)}"
        )
    return operations(xp)


def _array(now: Step, name: str, m: Any) -> Any:
    """An array of the call; a number in its place becomes one. None: it is not there."""
    if name not in now.views:
        return None
    if name in now.call.arrays:
        return now.call.arrays[name]
    return _filled(now, vars(now.options)[name], now.views[name].shape, m)


def _filled(now: Step, number: Any, shape: Sequence[int], m: Any) -> Any:
    if isinstance(number, bool):  # a mask
        return number
    return m.zeros(shape, next(iter(now.call.arrays.values()))) + number


def _taken(now: Step, label: str, value: Any, like: str, model: View, m: Any) -> Any:
    """An array that comes back, which is like another one."""
    call = now.call
    if isinstance(value, bool | int | float):
        validate.holds(now.where, label, value, model.dtype_name)
        return _filled(now, float(value), model.shape, m)
    framework = framework_of(value)
    if framework is None and call.framework is NUMPY:
        value, framework = to_numpy(now.where, label, value), NUMPY
    if framework is not call.framework:
        raise TypeError(
            f"{now.where}: {label} must come from {call.framework.name} as the other arrays do, "
            f"got {describe(value)}"
        )
    view = see(now.where, label, value, framework, call.place)
    validate.same_as(now.where, label, view, like, model)
    return value


def _written(found: tuple[Any, Any], out: Any, accumulate: bool, m: Any) -> Any:
    """A gradient in the caller's array, or in one of its own."""
    made, like = found
    if made is None:
        return None
    with m.plain():
        made = m.expanded(made, tuple(like.shape))
        if out is None:
            return m.own(made, like)
        out[...] = m.wide(out) + made if accumulate else made
    return out
