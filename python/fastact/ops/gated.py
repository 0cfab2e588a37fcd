"""Gated activations: the activation of one array times another array, in one pass.

The formula is in `src/common/gated/`, the oracle is in `check/expected/gated.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from .._cpu import View
from ..interop import validate
from . import activations as _activations
from .activations import FusedKwargs, Parameters
from .bounds import GatedBounds
from .engine import axes
from .engine.elementwise import Elementwise
from .engine.entry import Arg, Entry, Output, positional
from .engine.execute import Execution
from .engine.fused import activation_op, activations
from .engine.op import P, R, declared
from .engine.quantized import Quantizes
from .engine.reductions import GRADIENT_SUM_BOUNDS
from .engine.served import CachedOp
from .types import A, ActivationLike, Array, ArrayOrNumber, Out, Stream

#: How the options of a call choose the activation, for an op that names it itself.
Choose = Callable[[str, Any], Any]

Half = tuple[int, int]  # along the axis: where it begins, and its step


class Halves(NamedTuple):
    """The axis, the shape of a and b, and the shape of the bias."""

    axis: int
    each: tuple[int, ...]
    bias: tuple[int, ...]


#: Words that the docstrings of all gated activations share.
_TEXTS = """
Parameters
----------
a : array
    The gate, of dtype float16, bfloat16, float32 or float64, with any shape and strides.
b : array or float
    The array that is multiplied by the activation of the gate, of a's shape and dtype.
axis : int
    The axis of the bias.
bias : array, optional
    A 1-D array twice as long as the axis `axis`: first the numbers that are added to a, then those
    that are added to b. It has a's dtype or a wider one, or any dtype if a is float64.
limit : float, optional
    A number above zero. After the bias, a is clipped to at most limit, and b to [-limit, limit].
offset : float
    A number that is added to b after that.

Raises
------
ValueError
    interleaved: an odd length
    gate: an unknown gate
    approximate: an unknown approximation
    alpha: an alpha that is not above zero
    limit: a limit that is not above zero
{others}
References
----------
N. Shazeer, "GLU Variants Improve Transformer", 2020, https://arxiv.org/abs/2002.05202

Notes
-----
A sum with a bias has an error of at most 2 u (abs(a) + abs(bias)), with u = 2**-24 (float64:
2**-53), and a sum with an offset has an error of u times itself. 16-bit data is computed in
float32, to which limit, offset and a wider bias are rounded. The activation follows within its own
bounds{own}; the product is rounded, and for 16-bit data rounded again. The bits do not depend on
the number of threads. `forward` saves only the inputs; `backward` computes the activation again.

[own]
"""

_OTHERS = """
See Also
--------
gated : The same with any activation.
glu : The same for the halves of one array.
"""


class GatedOp(Quantizes, CachedOp[P, R]):
    """A gated activation, and backward.

    choose : finds the activation from the options; without it an option names the activation.
    packed : whether a and b are the halves of one array.
    """

    family = "gated"
    # Two roundings of a sum with a bias: of a wider bias, and of the sum.
    bounds = GatedBounds(sums=2, dbias=GRADIENT_SUM_BOUNDS)

    def __init__(self, function: Callable[P, R], choose: Choose | None = None) -> None:
        call = self._declare(function)
        self._choose = choose
        arrays = positional(call)
        self.packed = len(arrays) == 1
        self._is(axis_of_bias=not self.packed)
        self.saves = (*arrays, "bias")
        self.gradients = tuple(f"d{name}" for name in self.saves)
        self.args = {
            "dy": Arg(shape="each", may_be_out=not self.packed),
            "bias": Arg(
                shape="bias",
                called="an array with one axis",
                note=", for a and for b the length of axis {axis}",
            ),
        }
        self.outs = {"y": Output(shape="each") if self.packed else Output(in_place=True)}
        self._enter_points(unasked=1)

    def _texts(self) -> str:
        own, others = "", ""
        if self._choose is not None:
            ulp = self.activation_of({})[0].bounds.forward_ulp
            own, others = f" ({ulp:g} ULP)" if ulp else " (exact)", _OTHERS
        return _TEXTS.format(own=own, others=others)

    def _gives(self) -> str:
        *arrays, bias = self.gradients
        return f"{' and '.join(arrays)}, and {bias} where there is a bias"

    def activation_of(self, named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Find a call's activation (None for the identity) and its parameters, by the options."""
        options, where = self._options(named), self._where()
        choose = self._choose
        op = choose(where, options) if choose else activation_op(where, options.activation)
        own = {} if op is None else op.parameters
        return op, {name: getattr(options, name, value) for name, value in own.items()}

    @property
    def trials(self) -> list[dict[str, Any]]:
        """List the trials of activations, and their defaults where the op's own differ."""
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

    def _run_forward(self, now: Execution) -> None:
        now.run("gated_forward", **self._halves_by_name(now))

    def backward(self, dy: Any, /, *saved: Any, **options: Unpack[FusedKwargs[Any]]) -> Any:
        """Compute the gradients with respect to the arrays and the bias, in one pass over the data.

        ``da = dy * c * act'(z)`` and ``db = dy * act(z)``, where z is the gate and c its other
        factor, as for the call; they are 0 where `limit` clips a or b. ``dbias`` is their sum over
        all axes but `axis`, packed like the bias.

        Parameters
        ----------
        out : array or tuple, optional
            Where to write the gradients: an array for x's alone, otherwise a tuple of arrays, where
            None skips one. da and db may each be dy, a or b itself, and dx may be x.

        Returns
        -------
        dbias : array
            The gradient with respect to the bias, of its shape and dtype: the last one of a tuple,
            if there is a bias.

        Notes
        -----
        z and c have the same errors as for the call, and the activation and its derivative are
        within their own bounds. The products dy c, dy c act'(z) and dy act(z) are each rounded, and
        the gradients are then rounded to the dtype. dbias has the errors of its terms before they
        are rounded to the dtype, plus 0.5 ULP and 2**-46 of the sum of their magnitudes. On the
        CPU, for float32 and float64, it has the bits of ``bias_grad`` of da and of db, if these
        have the same memory layout.
        """

    def _run_backward(self, now: Execution) -> None:
        now.run("gated_backward", **self._halves_by_name(now), **self._halves_by_name(now, "d"))

    # --- both -------------------------------------------------------------------------------------

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        where = entry.where
        options.limit = validate.above_zero(where, "limit", options.limit, math.inf)
        if self._choose is not None:
            op = self._choose(where, options)
            options.which, options.parameters = op.native(where, options)
        if self.packed:
            validate.choice(where, "gate", options.gate, {"first": "", "second": ""})

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Halves:
        first = self.saves[0]
        shape = tuple(call.views[first].shape)
        runs_along = bool(shape) or self.packed or "bias" in call.views
        axis = axes.one(call.where, options.axis, len(shape), of=first) if runs_along else 0
        if not self.packed:
            return Halves(axis, shape, (2 * shape[axis],) if shape else ())
        if shape[axis] % 2:
            raise ValueError(
                f"{call.where}: x must have an even length along axis {options.axis}, got shape "
                f"{shape}"
            )
        each = (*shape[:axis], shape[axis] // 2, *shape[axis + 1 :])
        return Halves(axis, each, (shape[axis],))

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        whole = (now.shapes.axis,) if self.packed or "bias" in now.views else ()
        return axes.others(whole, len(now.shapes.each))

    def _halves_by_name(self, now: Execution, of: str = "") -> dict[str, View | None]:
        """Find a's and b's parts of packed arrays and of the bias, or of their gradients."""
        find = now.view if of else now.views.get
        packed = [("bias_", find(f"{of}bias"), 0)]
        if self.packed:
            packed.append(("", find(f"{of}x"), now.shapes.axis))
        found = {}
        for name, view, axis in packed:
            length = view.shape[axis] if view is not None else 0
            for part, half in zip("ab", self.halves(vars(now.options), length), strict=True):
                each = None if view is None else view.sliced(axis, *half, length // 2)
                found[f"{of}{name}{part}"] = each
        return found


class GatedOfTwo(Elementwise[P, R], GatedOp[P, R]):
    """A gated activation of two arrays, which works element by element if it has no bias."""

    def is_ufuncs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        # A bias runs along an axis, which no mask or label names.
        return kwargs.get("bias") is None and super().is_ufuncs(args, kwargs)


def _silu(where: str, options: Any) -> Any:
    is_silu = validate.number(where, "alpha", options.alpha) == 1
    return _activations.silu if is_silu else _activations.quick_gelu


@declared(GatedOp)
def glu(
    x: A,
    /,
    activation: ActivationLike = "sigmoid",
    *,
    axis: int = -1,
    gate: str = "second",
    interleaved: bool = False,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Gated linear unit of a packed array: the activation of one half times the other half.

    ``b, a = np.split(x, 2, axis)`` and ``y = act(a) * b``; gate="first" swaps the halves.

    Parameters
    ----------
    x : array
        Data of dtype float16, bfloat16, float32 or float64, with any strides and an even length
        along `axis`.
    axis : int, default -1
        The axis that holds both halves, and along which the bias lies.
    gate : str, default "second"
        The half that goes through the activation: "second" as in torch, or "first" as in fused
        projections of gate and up.
    interleaved : bool, default False
        If True, the halves alternate, ``x[..., ::2], x[..., 1::2]``, instead of being contiguous.
    bias : array, optional
        A 1-D array that is added to x, packed as x is along `axis`. It has x's dtype or a wider
        one, or any dtype if x is float64.

    Returns
    -------
    array
        The result, of x's dtype and framework and half of its length along `axis`.

    See Also
    --------
    gated : The same for two arrays.
    swiglu : The same with silu, for two arrays.

    References
    ----------
    Y. N. Dauphin et al., "Language Modeling with Gated Convolutional Networks", ICML 2017,
    https://arxiv.org/abs/1612.08083

    Examples
    --------
    >>> x = np.array([[1.0, 2.0, -1.0, 0.0]])
    >>> fa.glu(x)
    array([[0.2689..., 1.        ]])
    >>> fa.glu(x, "relu", gate="first", interleaved=True)
    array([[2., 0.]])
    >>> y, saved = fa.glu.forward(x)
    >>> fa.glu.backward(np.ones((1, 2)), *saved)
    array([[0.2689..., 0.5       , 0.1966..., 0.5       ]])
    """


@declared(GatedOfTwo)
def gated(
    a: A,
    b: ArrayOrNumber,
    /,
    activation: ActivationLike = "silu",
    *,
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """An activation of one array times another array.

    ``y = act(a) * b``. With `limit` and `offset`, ``y`` is
    ``act(np.minimum(a, limit)) * (np.clip(b, -limit, limit) + offset)``.

    See Also
    --------
    swiglu, geglu, reglu : The same with a fixed activation.
    glu : The same for the halves of one array.

    Examples
    --------
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.gated(a, b, "mish")
    array([-0.3034...,  0.        ,  2.5952...])
    >>> y, saved = fa.gated.forward(a, b, "mish")
    >>> da, db = fa.gated.backward(np.ones(3), *saved, "mish")
    >>> db
    array([-0.3034...,  0.        ,  0.8650...])
    """


@declared(GatedOfTwo, _silu)
def swiglu(
    a: A,
    b: ArrayOrNumber,
    /,
    *,
    alpha: float = 1.0,
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Silu of one array times another array.

    ``y = a * sigmoid(alpha * a) * b``; `limit` and `offset` change a and b as for `gated`.

    Parameters
    ----------
    alpha : float, default 1.0
        How sharp the bend is, above zero. With 1 the activation is `silu`, otherwise `quick_gelu`;
        gpt-oss uses ``alpha=1.702, limit=7.0, offset=1.0``.

    Examples
    --------
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.swiglu(a, b)
    array([-0.2689...,  0.        ,  2.1931...])
    >>> y, saved = fa.swiglu.forward(a, b)
    >>> da, db = fa.swiglu.backward(np.ones(3), *saved)
    >>> da
    array([0.0723..., 1.        , 2.7830...])
    >>> fa.swiglu(a, b, alpha=1.702, limit=7.0, offset=1.0)
    array([-0.3084...,  0.        ,  3.3831...])
    """


@declared(GatedOfTwo, lambda where, options: _activations.gelu)
def geglu(
    a: A,
    b: ArrayOrNumber,
    /,
    *,
    approximate: str = "none",
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Gelu of one array times another array.

    ``y = gelu(a) * b``; `limit` and `offset` change a and b as for `gated`.

    Parameters
    ----------
    approximate : str, default "none"
        "tanh" selects the approximation by tanh, as for `gelu`.

    Examples
    --------
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.geglu(a, b)
    array([-0.1586...,  0.        ,  2.5240...])
    >>> y, saved = fa.geglu.forward(a, b)
    >>> da, db = fa.geglu.backward(np.ones(3), *saved)
    >>> da
    array([-0.0833...,  1.        ,  3.2499...])
    """


@declared(GatedOfTwo, lambda where, options: _activations.relu)
def reglu(
    a: A,
    b: ArrayOrNumber,
    /,
    *,
    axis: int = -1,
    bias: Array | None = None,
    limit: float | None = None,
    offset: float = 0.0,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Relu of one array times another array.

    ``y = max(a, 0) * b``; `limit` and `offset` change a and b as for `gated`.

    Examples
    --------
    >>> a, b = np.array([-1.0, 0.0, 1.0]), np.array([1.0, 2.0, 3.0])
    >>> fa.reglu(a, b)
    array([0., 0., 3.])
    >>> y, saved = fa.reglu.forward(a, b)
    >>> da, db = fa.reglu.backward(np.ones(3), *saved)
    >>> da
    array([0., 0., 3.])
    """
