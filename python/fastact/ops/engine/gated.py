"""The op object of gated activations: one array through an activation, times another one.

The two are arrays of their own, or the halves of one: native functions get two views of it. (The
gates of recurrent layers are another family: `gates.py`.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from inspect import signature
from types import SimpleNamespace
from typing import Any, NamedTuple

from ..._cpu import View
from ...interop import validate
from ..bounds import GatedBounds
from . import axes
from .elementwise import Elementwise
from .entry import Arg, Entry, Output, positional, signature_of
from .execute import Execution
from .fused import activation_op, activations
from .op import P, R, register
from .quantized import Quantizes
from .reductions import GRADIENT_SUM_BOUNDS
from .served import CachedOp

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


class GatedOp(Quantizes, CachedOp[P, R]):
    """A gated activation, and backward.

    packed : a and b are the halves of one array.
    """

    bounds = GATED_BOUNDS

    def __init__(self, function: Callable[P, R], choose: Choose | None) -> None:
        call = self._declare(function, "gated")
        self._choose = choose
        self._arrays = arrays = positional(call)
        self.packed = len(arrays) == 1
        self._is(axis_of_bias=not self.packed)
        self.saves = (*arrays, "bias")
        self.gradients = tuple(f"d{name}" for name in self.saves)
        backward = signature_of(call, ("dy", *arrays), ("bias",))
        self.args = {
            "dy": Arg(shape="each", may_be_out=not self.packed),
            "bias": Arg(shape="bias", called="an array with one axis"),
        }
        self.outs = {"y": Output(shape="each", in_place=not self.packed)}
        self._enter_points(call, backward, unasked=1)

    def activation_of(self, named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The activation of a call with these options (None: the identity), and its parameters."""
        defaults = self.entry_points["call"].defaults
        if self._choose is None:
            op = activation_op(self._where(), named.get("activation", defaults["activation"]))
        else:
            op = self._choose(self._where(), SimpleNamespace(**{**defaults, **named}))
        own = {} if op is None else op.parameters
        return op, {n: named.get(n, defaults.get(n, value)) for n, value in own.items()}

    @property
    def trials(self) -> list[dict[str, Any]]:
        """List what activations of its options try, and their defaults, where its own differ."""
        defaults = self.entry_points["call"].defaults
        return [
            named
            for other in activations()
            for named in (dict(other.parameters), *other.trials)
            if named.keys() <= defaults.keys() and named.items() - defaults.items()
            if self.activation_of(named)[0] is other
        ]

    def halves(self, named: Mapping[str, Any], length: int) -> tuple[Half, Half]:
        """Find where a and b lie in a packed array, or in the bias, of this length."""
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

    def _run_forward(self, now: Execution) -> None:
        now.run("gated_forward", **self._halves_by_name(now))

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

    def _run_backward(self, now: Execution) -> None:
        now.run("gated_backward", **self._halves_by_name(now), **self._halves_by_name(now, "d"))

    # --- both -------------------------------------------------------------------------------------

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        where = entry.where
        options.limit = _limit(where, options.limit)
        if self._choose is not None:
            op = self._choose(where, options)
            options.which, options.parameters = op.native(where, options)
        if self.packed:
            validate.choice(where, "gate", options.gate, {"first": "", "second": ""})

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Halves:
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

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        whole = (now.shapes.axis,) if self.packed or "bias" in now.views else ()
        return axes.others(whole, len(now.shapes.each))

    def _halves_by_name(self, now: Execution, of: str = "") -> dict[str, View | None]:
        """The parts of packed arrays, and of the bias, that are a's and b's; or their gradients."""
        find = now.view if of else now.views.get
        found = self._parts(f"{of}bias_", find(f"{of}bias"), 0, now)
        if self.packed:
            found |= self._parts(of, find(f"{of}x"), now.shapes.axis, now)
        return found

    def _parts(
        self, names: str, view: View | None, axis: int, now: Execution
    ) -> dict[str, View | None]:
        if view is None:
            return {f"{names}a": None, f"{names}b": None}
        length = view.shape[axis]
        a, b = self.halves(vars(now.options), length)
        return {
            f"{names}{part}": view.sliced(axis, *half, length // 2)
            for part, half in (("a", a), ("b", b))
        }


def _limit(where: str, limit: Any) -> float:
    """Read the number that holds a and b, which is above zero, or none."""
    if limit is None:
        return math.inf
    found = validate.number(where, "limit", limit)
    if found <= 0:
        raise ValueError(f"{where}: limit must be above zero or None, got {found!r}")
    return found


class GatedOfTwo(Elementwise[P, R], GatedOp[P, R]):
    """A gated activation of two arrays: element by element, where it has no bias."""

    def is_ufuncs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        # A bias runs along an axis, which no mask or label names.
        return kwargs.get("bias") is None and super().is_ufuncs(args, kwargs)


def gated_op(choose: Choose | None = None) -> Callable[[Callable[P, R]], GatedOp[P, R]]:
    """The gated activation that a function declares.

    Its arrays by position alone are x, which is packed, or a and b.

    choose : the activation, by the options; without it these name it.
    """

    def declare(function: Callable[P, R]) -> GatedOp[P, R]:
        is_packed = len(positional(signature(function))) == 1
        return register((GatedOp if is_packed else GatedOfTwo)(function, choose))

    return declare
