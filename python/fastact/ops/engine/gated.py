"""The op object of gated activations: one array through an activation, times another one.

The two are arrays of their own, or the halves of one: native functions get two views of it. (The
gates of recurrent layers are another family: `gates.py`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from ..._cpu import View
from ...interop import validate
from ..bounds import GatedBounds
from . import axes
from .elementwise import Elementwise
from .fused import activation_op
from .op import CachedOp, EntryPoint, Makes, P, R, register, signature_of
from .reductions import GRADIENT_SUM_BOUNDS
from .step import step, told

#: Two roundings of a sum with a bias: of a wider bias, and of the sum.
GATED_BOUNDS = GatedBounds(sums=2, dbias=GRADIENT_SUM_BOUNDS)

#: The activation that a call's options choose, of an op that names it itself.
Choose = Callable[[str, Any], Any]

Half = tuple[int, int]  # along the axis: where it begins, and its step


class Halves(NamedTuple):
    """The axis, and the shapes of a and b, and of the bias; what messages say of the latter."""

    axis: int
    each: tuple[int, ...]
    bias: tuple[int, ...]
    given: Any

    @property
    def bias_note(self) -> str:
        return f", for a and for b the length of axis {self.given}"


class Gated(CachedOp[P, R]):
    """A gated activation, and backward.

    packed : a and b are the halves of one array.
    """

    bounds = GATED_BOUNDS
    roles = MappingProxyType({"dy": validate.DATA})
    shapes = MappingProxyType({"dy": "each", "bias": "bias"})
    called = MappingProxyType({"bias": "an array with one axis"})

    def __init__(self, function: Callable[P, R], choose: Choose | None) -> None:
        call = self._declare(function, "gated")
        self._choose = choose
        self._arrays = arrays = _arrays(call)
        self.packed = len(arrays) == 1
        self.saves = (*arrays, "bias")
        self.gradients = tuple(f"d{name}" for name in self.saves)
        backward = signature_of(call, ("dy", *arrays), ("bias",))
        self.makes = {"y": Makes(shape="each", in_place=not self.packed)}
        self.apart = ("dy",) if self.packed else ()
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            backward=EntryPoint(
                self._where("backward"), backward, outputs=len(arrays), extra=1, skips=True
            ),
        )

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

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """What calling the op gives, and what `backward` needs.

        The inputs alone are saved: `backward` computes the activation again.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
        >>> y, saved = fa.swiglu.forward(a, b)
        >>> y
        array([-0.2689...,  0.        ,  2.1931...])
        """

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, options, y = now.call, now.options, now.view("y")
            axis, (which, numbers) = now.shapes.axis, self._native(now)
            (a, b), (bias_a, bias_b) = self._views(now)
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
            return now.results()

    def backward(self, dy: Any, *saved: Any, **options: Any) -> Any:
        """The gradients with respect to the arrays and the bias, in one pass over the data.

        ``da = dy * c * act'(z)`` and ``db = dy * act(z)``, with z the gate and c what it is
        multiplied by, as for the call; 0 where `limit` holds a, or b. ``dbias`` is their sum over
        all axes but `axis`, packed as bias is.

        Parameters
        ----------
        out : array or tuple, optional
            Where to write the gradients: an array for x's alone, else a tuple of arrays; one that
            is None is not computed. da and db may each be dy, a or b itself, dx may be x.

        Returns
        -------
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
        with step(self, "backward", args, kwargs) as now:
            call, options, axis = now.call, now.options, now.shapes.axis
            (a, b), (bias_a, bias_b), (which, numbers) = *self._views(now), self._native(now)
            views = [now.view(name) for name in self.gradients]
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
            results: tuple[Any, ...] = now.results()
            results = results if bias_a is not None else results[:-1]
            return results if len(results) > 1 else results[0]

    # --- both -------------------------------------------------------------------------------------

    def _check_options(self, where: str, options: SimpleNamespace) -> None:
        options.limit = _limit(where, options.limit)
        if self._choose is not None:
            options.native = self._choose(where, options).native(where, options)
        if self.packed:
            validate.choice(where, "gate", options.gate, {"first": "", "second": ""})

    def _native(self, now: step) -> Any:
        """The activation's native number and parameters."""
        return (now.which, now.parameters) if self._choose is None else now.options.native

    def _shapes(self, call: Any, options: SimpleNamespace) -> Halves:
        first = self._arrays[0]
        shape = tuple(call.views[first].shape)
        runs_along = bool(shape) or self.packed or "bias" in call.views
        axis = axes.one(call.where, options.axis, len(shape), of=first) if runs_along else 0
        if not self.packed:
            return Halves(axis, shape, (2 * shape[axis],) if shape else (), options.axis)
        if shape[axis] % 2:
            raise ValueError(
                f"{call.where}: x must have an even length along axis {options.axis}, got shape "
                f"{shape}"
            )
        each = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
        return Halves(axis, each, (shape[axis],), options.axis)

    def _views(self, now: step) -> tuple[Any, tuple[View | None, View | None]]:
        """The views of a and b, and the two parts of the bias."""
        views, options = now.views, now.options
        pair = [views[name] for name in self._arrays]
        parts = self._parts(pair[0], now.shapes.axis, options) if self.packed else pair
        return parts, self._halves_of(views.get("bias"), 0, options)

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


def _arrays(call: Signature) -> tuple[str, ...]:
    return tuple(n for n, p in call.parameters.items() if p.kind is Parameter.POSITIONAL_ONLY)


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

    def is_ufuncs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        # A bias runs along an axis, which no mask or label names.
        return kwargs.get("bias") is None and super().is_ufuncs(args, kwargs)

    def _understood(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[EntryPoint, SimpleNamespace]:
        op, *_ = told(self, "call", args, kwargs)
        entry = self.entry_points["call"]
        if self._choose is None and op is not None:
            entry = entry.with_parameters(op)
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
