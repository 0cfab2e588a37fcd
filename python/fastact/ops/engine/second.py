"""`backward.backward` for ops that do not define it, and `jvp`.

Arrays are checked as in calls of `backward` and of the op. Then a kernel runs, if there is one for
the whole call (`src/common/second/second.h`); it is replayed like calls of other entry points.
Anything else is computed by the op's formula, in the arithmetic of the arrays' own framework
(`fastact.derivatives`), and is not cached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from inspect import Parameter, Signature
from operator import attrgetter
from typing import Any

import numpy as np

from ..._cpu import TERMS, CachedCall, View
from ...interop import handlers, validate
from ...interop.foreign import describe, plain
from ...interop.frameworks import NUMPY, in_native_order, namespace
from . import axes, fused
from .entry import Entry
from .execute import Execution, said_by
from .op import arrays_of, result_of
from .spec import Spec, spec_of

_ELEMENT = TERMS.index("identity")  # the term of a sum


class Second(CachedCall):
    """The gradients of `backward` with respect to its incoming gradients and to what was saved.

    The arguments are the gradients with respect to the results of `backward`, with None for 0, and
    then the arguments of `backward`. The results are one gradient for each incoming gradient, and
    for each saved array that has one, or None if it was not given. What `forward` computed besides,
    such as a norm's statistics, depends on the arrays and has no gradient of its own. ``out`` is a
    tuple for all of them, where None skips one; ``accumulate=True`` adds to it.
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
        self.point = Entry(where, self.__signature__, gives, skips=True)
        self.backward = partial(no_third, where)
        super().__init__(self._serve, op.entry_point("backward"), "backward")
        #: The entry point for torch's tensors, which gives None if no kernel does the whole call;
        #: the formula is then computed elsewhere.
        self.by_kernel = CachedCall(partial(self._serve, by_kernel=True), self, "by_kernel")

    def __reduce__(self) -> Any:
        return attrgetter(self.__name__), (self.op,)

    def _serve(self, *args: Any, by_kernel: bool = False, **kwargs: Any) -> Any:
        op, point = self.op, self.point
        _, options = fused.bind(point, args, kwargs)
        rest = {n: value for n, value in kwargs.items() if n not in ("out", "accumulate")}
        with said_by(point.where, op.entry_points["backward"].where):
            now = Execution(op.entry_points["backward"], args[len(op.gradients) :], rest)
            with now.call:
                now.prepare(models=True)
                now.where = now.call.where = point.where
                ddx, outs = self._ddx(now, options), self._outputs(now, options.out)
                if self._has_kernel(now, ddx, by_kernel):
                    results = self._of_kernel(now, options, outs)
                elif by_kernel:
                    return None
                else:
                    results = self._of_formula(now, options, ddx)
        return tuple(results) if len(results) > 1 else results[0]

    def _ddx(self, now: Execution, options: Any) -> dict[str, str]:
        """Check incoming gradients; return their names by the arguments of the gradients."""
        found = {}
        for gradient, name in zip(self.op.gradients, self.op.differentiated, strict=True):
            label, view = f"d{gradient}", now.view(gradient)
            value = getattr(options, label)
            if value is None:
                continue
            if view is None:
                raise ValueError(f"{now.where}: {label} must be None, as there is no {name}")
            now.call.take(label, value, name, view)
            found[name] = label
        return found

    def _outputs(self, now: Execution, outs: Sequence[Any]) -> dict[str, View]:
        """Check the arrays to write; return their views by what they are the gradients of."""
        views: dict[str, View] = {}
        found = {}
        names = (*self.incoming, *self.op.moving)
        for i, (name, out) in enumerate(zip(names, outs, strict=True)):
            if out is None:
                continue
            label = validate.out_name(i, outs)
            if name not in now.views:
                raise ValueError(f"{now.where}: {label} must be None, as there is no {name}")
            found[name], _ = now.call.output(label, out, name)
            validate.apart(now.where, label, found[name], views)
            views[label] = found[name]
        return found

    # --- by a kernel ------------------------------------------------------------------------------

    def _has_kernel(self, now: Execution, ddx: Mapping[str, str], is_quick: bool) -> bool:
        """Tell whether a kernel does the whole call and, if is_quick, beats the formula."""
        x, weight = now.views[now.leader], now.views.get("weight")
        if self.op.traits.second is None or [*ddx] != [self.op.differentiated[0]] or now.activation:
            return False
        if any(n in now.views for n in {*self.op.moving} - {now.leader, "weight", "bias"}):
            return False
        if weight is not None and (weight.dtype != x.dtype or x.itemsize < 4):
            return False  # its gradient is the sum of numbers in x's dtype
        is_any = not is_quick or now.call.is_on_gpu
        return is_any or _runs_along_rows(now.seen(now.leader), now.shapes.axes)

    def _of_kernel(self, now: Execution, options: Any, outs: Mapping[str, View]) -> list[Any]:
        call, op, shapes = now.call, self.op, now.shapes
        made: dict[str, tuple[View, Any]] = {}
        given = zip((*self.incoming, *op.moving), options.out, options.wanted, strict=True)
        results: dict[str, Any] = {}
        for name, out, wants in given:
            results[name] = None
            if wants and name in now.views:
                view, new = outs.get(name), None
                if view is None:
                    view, new = call.output(name, None, name if name in call.arrays else now.leader)
                made[name] = now._with_axes(now.entry.seen(name), view), new
                results[name] = out, new
        (dy,), x, terms = self.incoming, now.seen(now.leader), None
        accumulate: Any = options.accumulate
        offset = getattr(now.options, "weight_offset", 0.0) if "weight" in now.views else 0.0
        if "weight" in made:
            terms = now._with_axes(now.entry.seen(now.leader), call.temporary(now.leader))
        call.run(
            "second_rows",
            saved=x,
            ddx=now.seen(f"d{op.gradients[0]}"),
            dy=now.seen(dy),
            reduced=shapes.axes,
            **{name: now.seen(name) for name in ("weight", "mean", "rstd")},
            **{to: made.get(of, (None,))[0] for to, of in (("ddy", dy), ("dsaved", now.leader))},
            terms=terms,
            kind=op.traits.second,
            scale=getattr(now.options, "scale", 1.0),
            weight_offset=offset,
            accumulate=accumulate,
        )
        if terms is not None:
            over, dweight = axes.others(shapes.of_parameter, terms.ndim), made["weight"][0]
            more: Any = {"term": _ELEMENT, "divisor": 1.0, "initial": -0.0}
            call.run("sum", x=terms, axes=over, y=dweight, accumulate=accumulate, **more)
        if "bias" in made:  # in which dx has no part
            (view, _) = made["bias"]
            call.run("broadcast", x=call.repeated(0.0, view), y=view, accumulate=accumulate)
        return [pair and call.result(*pair) for pair in results.values()]

    # --- by the op's formula ----------------------------------------------------------------------

    def _of_formula(self, now: Execution, options: Any, ddx: Mapping[str, str]) -> list[Any]:
        m = _operations(now)
        named = {n: _array(now, label, m, options) for n, label in ddx.items()}
        found = zip(self._found(now, named, m), options.out, options.wanted, strict=True)
        made = [_value(d, out, options.accumulate, m) if wants else None for d, out, wants in found]
        with m.plain():  # at last: what is written may be what is read
            return [_written(d, out) for d, out in zip(made, options.out, strict=True)]

    def _found(self, now: Execution, ddx: Mapping[str, Any], m: Any) -> list[tuple[Any, Any]]:
        """Compute each gradient, with an array of its dtype."""
        op = self.op
        dys = [_array(now, name, m) for name in self.incoming]
        told = vars(now.options)
        named = {n: told[n] for n in spec_of(op).told if n in told}  # axis=None is no default
        named |= {n: _array(now, n, m) for n in op.saves if n in now.views}
        named |= {n: told[n] for n, arg in op.args.items() if arg.is_shape and n in told}
        models = [*dys, *(named.get(name) for name in op.moving)]
        with m.plain():
            if not now.views[now.leader].size:
                return [(None if a is None else m.zeros(a.shape, a), a) for a in models]
            derivatives = handlers.bridge("derivatives")
            wide = {n: m.wide(value) for n, value in named.items()}
            ddx = {n: m.wide(value) for n, value in ddx.items()}
            of_dys, of_saved = derivatives.second(op, ddx, [*map(m.wide, dys)], wide, m)
        found = [*of_dys, *(of_saved.get(name) for name in op.moving)]
        return [(None if a is None else d, a) for d, a in zip(found, models, strict=True)]


def no_third(where: str, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"{where}.backward: there is no third derivative")


def jvp(op: Any, tangents: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute the result of calling an op, and its tangent."""
    spec, point, where = spec_of(op), op.entry_points["call"], op._where("jvp")
    _no_out(where, kwargs)
    with said_by(where, op.entry_points["forward"].where):
        now = Execution(op.entry_points["forward"], args, kwargs)
        with now.call:
            now.prepare()
            now.where = now.call.where = where
            m = _operations(now)
            told = vars(now.options)
            for name in op.traits.unrecorded:
                if told[name]:
                    raise TypeError(f"{where}: {name} must be False, as its result has no tangent")
            order = [n for n in (*point.arrays, *point.defaults) if n in now.call.arrays]
            for name in order:
                if name in spec.of:
                    validate.supported_dtype(where, name, now.views[name])
            given = _checked_tangents(where, spec, {n: now.call.arrays[n] for n in order}, tangents)
            now.entry.run(now)
            result, saved = now.results()
            own = {*point.arrays, *point.defaults, *spec.told} - {"out", "stream"}
            named = dict(zip(op.saves, saved, strict=True))
            named |= {n: _array(now, n, m) if n in now.views else told.get(n) for n in own}
            with m.plain():
                is_double = any("float64" in str(y.dtype) for y in arrays_of(result))
                named = {n: v for n, v in named.items() if v is not None or n in told}
                given = {n: v for n, v in given.items() if v is not None}
                wide, ways = (
                    {n: m.wide(v, is_double) for n, v in d.items()} for d in (named, given)
                )
                if now.views[now.leader].size:
                    found = handlers.bridge("derivatives").tangents(op, ways, wide, m)
                else:
                    found = [m.zeros(y.shape, y) for y in arrays_of(result)]
                pairs = zip(found, arrays_of(result), strict=True)
                moved = tuple(m.own(m.expanded(d, tuple(y.shape)), y) for d, y in pairs)
    return result, result_of(moved, result, moved=True)


def only_tangent(op: Any, tangents: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Check the tangent of an op with one array."""
    given = tangents[0] if type(tangents) is tuple and len(tangents) == 1 else tangents
    if len(args) == 1 and "out" not in kwargs and hasattr(given, "dtype"):
        (x,) = args
        if hasattr(x, "dtype") and x.shape == given.shape and x.dtype == given.dtype:
            return given  # the short way for most calls
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
    """Check one tangent for each array that has a gradient, of its shape and dtype, or None."""
    arrays = {n: _native(value) for n, value in named.items() if n in spec.of and value is not None}
    given = tuple(map(_native, given if isinstance(given, tuple | list) else (given,)))
    if len(given) != len(arrays):
        raise TypeError(
            f"{where}: tangents must be a tuple of {len(arrays)}, for {', '.join(arrays)}, got "
            f"{describe(given)}"
        )
    for (name, array), tangent in zip(arrays.items(), given, strict=True):
        plain(where, f"the tangent of {name}", tangent)
        expected, found = (
            (tuple(getattr(a, "shape", ())), getattr(a, "dtype", None)) for a in (array, tangent)
        )
        if tangent is not None and expected != found and expected[1] is not None:
            raise (TypeError if expected[0] == found[0] else ValueError)(
                f"{where}: the tangent of {name} must be like {name}, {describe(array)}, got "
                f"{describe(tangent)}"
            )
    return dict(zip(arrays, given, strict=True))


def _native(array: Any) -> Any:
    """Put an array into the byte order that kernels read; only its values matter."""
    return in_native_order(array) if isinstance(array, np.ndarray) else array


# --- arrays of a step -----------------------------------------------------------------------------


def _operations(now: Execution) -> Any:
    """Find the arithmetic of the call's arrays, which no plan repeats."""
    now.call.reads_values()
    array = next(iter(now.call.arrays.values()))
    xp = np if now.call.framework is NUMPY else namespace(array)
    operations = handlers.bridge("derivatives").Operations
    if not all(hasattr(xp, name) for name in operations.needs):
        raise TypeError(
            f"{now.where}: arrays must be of NumPy, torch, CuPy or JAX, whose arithmetic finds "
            f"derivatives that have no kernel, got {describe(array)}"
        )
    return operations(xp)


def _array(now: Execution, name: str, m: Any, options: Any = None) -> Any:
    """Find an array of the call, or None; a number in its place becomes an array.

    options : the options with the number; by default the call's own.
    """
    if name not in now.views:
        return None
    if name in now.call.arrays:
        return now.call.arrays[name]
    number = getattr(options or now.options, name)
    if isinstance(number, bool) and not options:  # a mask
        return number
    return m.zeros(now.views[name].shape, next(iter(now.call.arrays.values()))) + float(number)


def _runs_along_rows(view: View, over: Sequence[int]) -> bool:
    """Tell whether rows are contiguous and follow each other in memory."""
    step = view.itemsize
    for axis in range(view.ndim - 1, view.ndim - 1 - len(over), -1):
        if axis not in over or (view.shape[axis] > 1 and view.strides[axis] != step):
            return False
        step *= view.shape[axis]
    return True


def _value(found: tuple[Any, Any], out: Any, accumulate: bool, m: Any) -> Any:
    """Return a gradient, or its sum with the caller's array, in new memory."""
    made, like = found
    if made is None:
        return None
    with m.plain():
        made = m.expanded(made, tuple(like.shape))
        return m.own(m.wide(out) + made if accumulate else made, like)


def _written(made: Any, out: Any) -> Any:
    """Write a gradient to the caller's array, if there is one."""
    if made is None or out is None:
        return made
    out[...] = made
    return out
