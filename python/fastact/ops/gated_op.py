"""The op object of gated activations: one array through an activation, times another one.

The two are arrays of their own, or the halves of one: native functions get two views of it. (The
gates of recurrent layers are another family: `gate.py`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from types import SimpleNamespace
from typing import Any

import numpy as np

from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes
from .bounds import GatedBounds
from .elementwise import Elementwise
from .fused import activation_op, bind
from .op import CachedOp, EntryPoint, Model, P, R, register, signature_of
from .reduction import SUM_BOUNDS

#: Two roundings of a sum with a bias: of a wider bias, and of the sum.
GATED_BOUNDS = GatedBounds(sums=2, dbias=SUM_BOUNDS)

#: The activation that a call's options choose, of an op that names it itself.
Choose = Callable[[str, Any], Any]

Half = tuple[int, int]  # along the axis: where it begins, and its step


class Gated(CachedOp[P, R]):
    """A gated activation, and backward.

    packed : a and b are the halves of one array.
    """

    bounds = GATED_BOUNDS

    def __init__(self, function: Callable[P, R], choose: Choose | None) -> None:
        call = self._declare(function, "gated")
        self._choose = choose
        self._arrays = arrays = _arrays(call)
        self.packed = len(arrays) == 1
        self.saves = (*arrays, "bias")
        self.gradients = tuple(f"d{name}" for name in self.saves)
        backward = signature_of(call, ("dy", *arrays), ("bias",))
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            backward=EntryPoint(
                self._where("backward"), backward, outputs=len(arrays), extra=1, skips=True
            ),
        )

    def sample(self, x: Any, dy: Any) -> dict[str, Any]:
        bias = np.linspace(-0.5, 0.5, 2 * x.shape[1]).astype(x.dtype)
        arrays = (np.concatenate((x, dy), 1),) if self.packed else (x, dy)
        return {**dict(zip(self._arrays, arrays, strict=True)), "bias": bias}

    def activation_of(self, named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The activation of a call with these options (None: the identity), and its parameters."""
        defaults = self.entry_points["call"].defaults
        if self._choose is None:
            op = activation_op(self._where(), named.get("activation", defaults["activation"]))
        else:
            op = self._choose(self._where(), SimpleNamespace(**{**defaults, **named}))
        own = {} if op is None else op.parameters
        return op, {n: named.get(n, defaults.get(n, value)) for n, value in own.items()}

    def halves(self, named: Mapping[str, Any], length: int) -> tuple[Half, Half]:
        """Where a and b lie in a packed array, or in the bias, of this length along the axis."""
        if not self.packed:
            return (0, 1), (length // 2, 1)
        first, second = ((0, 2), (1, 2)) if named["interleaved"] else ((0, 1), (length // 2, 1))
        return (second, first) if named["gate"] == "second" else (first, second)

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        if not self.packed:
            return super().models(named)
        shape = list(named["x"].shape)
        axis = axes.one(self._where(), self._options(named).axis, len(shape))
        shape[axis] = shape[axis] // 2
        return [Model(tuple(shape))], {}

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map("call", args, kwargs)[0]

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and what `backward` needs.

        ``saved = (x, bias)``, or ``(a, b, bias)``: the inputs alone, from which `backward` computes
        the activation again.

        Parameters
        ----------
        *args, **kwargs
            What calling the op takes. `out` shares no memory with what is saved.

        Returns
        -------
        y : array
            What calling the op gives.
        saved : tuple
            The arrays of the call and the bias, or None; not copied: do not change them before
            `backward`.

        Notes
        -----
        Of the same bits, and so as accurate, as calling the op.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
        >>> y, saved = fa.swiglu.forward(a, b)
        >>> y
        array([-0.2689...,  0.        ,  2.1931...])
        """
        return self._map("forward", args, kwargs)

    def _map(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The result, and what is saved."""
        entry, saves = self.entry_points[name], name == "forward"
        which, numbers, options = self._bind(entry, args, kwargs)
        where, (out,) = entry.where, options.out
        given = {name: getattr(options, name) for name in self._arrays}
        with Call(where, options.stream, **_with_bias(where, given, options.bias)) as call:
            axis, a, b, (bias_a, bias_b) = self._views(call, options)
            in_place = not saves and not self.packed
            y, made = call.output("out", out, self._arrays[0], shape=a.shape, in_place=in_place)
            validate.apart(where, "out", y, _bias_of(call))
            call.run(
                "gated_forward",
                a=a,
                b=b,
                y=y,
                axis=axis,
                bias_a=bias_a,
                bias_b=bias_b,
                which=which,
                parameters=numbers,
                limit=options.limit,
                offset=options.offset,
            )
            saved = [call.arrays.get(name, value) for name, value in given.items()]
            return call.result(out, made), (*saved, call.arrays.get("bias"))

    def backward(self, dy: Any, *saved: Any, **options: Any) -> Any:
        """The gradients with respect to the arrays and the bias, in one pass over the data.

        ``da = dy * c * act'(z)`` and ``db = dy * act(z)``, with z the gate and c what it is
        multiplied by, as for the call; 0 where `limit` holds a, or b. ``dbias`` is their sum over
        all axes but `axis`, packed as bias is.

        Parameters
        ----------
        dy : array or float
            The gradient with respect to y: its shape and dtype.
        *saved
            What `forward` saved: x, or a and b, and then bias, by position or by keyword.
        **options
            Those of the call, as given to `forward`. `out`: where to write the gradients, an array
            for x's alone, else a tuple of arrays; one that is None is not computed. da and db may
            each be dy, a or b itself, dx may be x. `accumulate`, a bool, by default False: add the
            gradients to `out` instead of overwriting it. `stream`, for arrays on a GPU: the stream
            to work on.

        Returns
        -------
        dx, or da and db : array, or tuple of arrays
            Of the shape, dtype and framework of x, or of a. dx is packed as x is.
        dbias : array
            Where there is a bias, as the last one of a tuple: of its shape and dtype.

        Notes
        -----
        z and c err as for the call, and the activation and its derivative are within their own
        bounds; the products dy c, that with the derivative, and dy act(z) are rounded, and then to
        the dtype. dbias errs by what its terms do before they are rounded to the dtype, 0.5 ULP,
        and 2**-46 of the sum of their magnitudes. On the CPU, for float32 and float64, it has the
        bits of ``bias_grad`` of da and of db, where these lie in memory alike.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
        >>> y, saved = fa.swiglu.forward(a, b)
        >>> da, db = fa.swiglu.backward(np.ones(3), *saved)
        >>> db
        array([-0.2689...,  0.        ,  0.7310...])
        """

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        which, numbers, options = self._bind(entry, args, kwargs)
        where, has_bias = entry.where, options.bias is not None
        given = {name: getattr(options, name) for name in self._arrays} | {"dy": options.dy}
        if not has_bias and options.out[-1] is not None:
            count = len(self._arrays)
            raise ValueError(f"{where}: out[{count}] must be None, for there is no bias")
        with Call(where, options.stream, **_with_bias(where, given, options.bias)) as call:
            axis, a, b, (bias_a, bias_b) = self._views(call, options)
            wanted = [*options.wanted[:-1], options.wanted[-1] and has_bias]
            names = (*[self._arrays[0]] * len(self._arrays), "bias")
            made: list[tuple[Any, Any]] = [
                call.output(validate.out_name(i, options.out), out, name, in_place=name != "bias")
                if needed
                else (None, None)
                for i, (out, needed, name) in enumerate(
                    zip(options.out, wanted, names, strict=True)
                )
            ]
            views = [view for view, _ in made]
            self._keep_apart(call, views, options.out)
            da, db = self._halves_of(views[0], axis, options) if self.packed else views[:2]
            dbias_a, dbias_b = self._halves_of(views[-1], 0, options)
            call.run(
                "gated_backward",
                a=a,
                b=b,
                dy=call.views["dy"],
                da=da,
                db=db,
                axis=axis,
                bias_a=bias_a,
                bias_b=bias_b,
                dbias_a=dbias_a,
                dbias_b=dbias_b,
                which=which,
                parameters=numbers,
                limit=options.limit,
                offset=options.offset,
                accumulate=options.accumulate,
            )
            results = tuple(
                call.result(out, new) if needed else None
                for out, needed, (_, new) in zip(options.out, wanted, made, strict=True)
            )
            results = results if has_bias else results[:-1]
            return results if len(results) > 1 else results[0]

    # --- both -------------------------------------------------------------------------------------

    def _bind(
        self, entry: EntryPoint, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[int, tuple[float, ...], SimpleNamespace]:
        """The activation's native number and parameters, and the arguments, numbers checked."""
        where = entry.where
        if self._choose is None:
            _, which, numbers, options = bind(entry, args, kwargs)
        else:
            options = entry.bind(args, kwargs)
            which, numbers = self._choose(where, options).native(where, options)
        options.limit = _limit(where, options.limit)
        options.offset = validate.number(where, "offset", options.offset)
        if self.packed:
            validate.choice(where, "gate", options.gate, {"first": "", "second": ""})
        return which, numbers, options

    def _views(
        self, call: Call, options: SimpleNamespace
    ) -> tuple[int, View, View, tuple[View | None, View | None]]:
        """The axis, a, b, and the halves of the bias: all are known to fit."""
        where, views, like = call.where, call.views, self._arrays[0]
        data = views[like]
        has_bias = "bias" in views
        axis = (
            axes.one(where, options.axis, data.ndim, of=like)
            if data.ndim or self.packed or has_bias
            else 0
        )
        if self.packed:
            if data.shape[axis] % 2:
                raise ValueError(
                    f"{where}: x must have an even length along axis {options.axis}, got shape "
                    f"{data.shape}"
                )
            a, b = self._parts(data, axis, options)
        else:
            a, b = data, views[self._arrays[1]]
            validate.same_as(where, self._arrays[1], b, like, data)
        if "dy" in views:
            dy = views["dy"]
            if "dy" not in call.arrays:  # a number
                dy = views["dy"] = dy.repeats(a)
            validate.same_dtype(where, "dy", dy, like, data)
            axes.has_shape(where, "dy", dy, a.shape)
        if not has_bias:
            return axis, a, b, (None, None)
        bias = views["bias"]
        validate.parameter_dtype(where, "bias", bias, like, data)
        expected = (2 * a.shape[axis],)
        if bias.shape != expected:
            raise ValueError(
                f"{where}: bias must have shape {expected}, for a and for b the length of axis "
                f"{options.axis}, got {bias.shape}"
            )
        return axis, a, b, self._parts(bias, 0, options)

    def _parts(self, view: View, axis: int, options: SimpleNamespace) -> tuple[View, View]:
        """The part of a packed array, or of a bias, that is a's, and the one that is b's."""
        length = view.shape[axis]
        a, b = self.halves(vars(options), length)
        return view.sliced(axis, *a, length // 2), view.sliced(axis, *b, length // 2)

    def _halves_of(
        self, view: View | None, axis: int, options: SimpleNamespace
    ) -> tuple[View | None, View | None]:
        """The same of an array that may be missing."""
        return (None, None) if view is None else self._parts(view, axis, options)

    def _keep_apart(self, call: Call, views: list[View | None], outs: tuple[Any, ...]) -> None:
        """No gradient shares memory with another one, or with a bias; nor dx with dy."""
        others = _bias_of(call)
        if self.packed and "dy" in call.arrays:
            others["dy"] = call.views["dy"]
        for i, view in enumerate(views):
            if view is not None:
                validate.apart(call.where, validate.out_name(i, outs), view, others)
                others[validate.out_name(i, outs)] = view


def _arrays(call: Signature) -> tuple[str, ...]:
    return tuple(n for n, p in call.parameters.items() if p.kind is Parameter.POSITIONAL_ONLY)


def _with_bias(where: str, given: Mapping[str, Any], bias: Any) -> dict[str, Any]:
    """The arrays of a call."""
    return {**given} if bias is None else {**given, "bias": validate.one_axis(where, "bias", bias)}


def _bias_of(call: Call) -> dict[str, View]:
    return {name: view for name, view in call.views.items() if name == "bias"}


def _limit(where: str, limit: Any) -> float:
    """What holds a and b: a number above zero, or none."""
    if limit is None:
        return math.inf
    found = validate.number(where, "limit", limit)
    if found <= 0:
        raise ValueError(f"{where}: limit must be above zero or None, got {found!r}")
    return found


class GatedOfTwo(Elementwise[P, R], Gated[P, R]):
    """A gated activation of two arrays: element by element, where it has no bias."""

    def _plain_call(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("bias") is not None:  # it runs along an axis, which no mask or label names
            return Gated._plain_call(self, *args, **kwargs)
        return super()._plain_call(*args, **kwargs)

    def _understood(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[EntryPoint, SimpleNamespace]:
        entry = self.entry_points["call"]
        self._bind(entry, args, kwargs)
        if self._choose is None:
            op = activation_op(entry.where, entry.option("activation", args, kwargs))
            entry = entry if op is None else entry.with_parameters(op)
        return entry, entry.bind(args, kwargs)


def gated_op(choose: Choose | None = None) -> Callable[[Callable[P, R]], Gated[P, R]]:
    """The gated activation that a function declares.

    Its arrays by position alone are x, which is packed, or a and b.

    choose : the activation, by the options; without it these name it.
    """

    def declare(function: Callable[P, R]) -> Gated[P, R]:
        is_packed = len(_arrays(signature(function))) == 1
        return register((Gated if is_packed else GatedOfTwo)(function, choose))

    return declare
