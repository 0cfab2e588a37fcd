"""Gated activations: the activation of one array, times another one, in one pass.

The formula stands in `src/common/gated/`, the oracle in `check/expected/gated.py`.
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

#: The activation that a call's options choose, of an op that names it itself.
Choose = Callable[[str, Any], Any]

Half = tuple[int, int]  # along the axis: where it begins, and its step


class Halves(NamedTuple):
    """The axis, and the shapes of a and b, and of the bias."""

    axis: int
    each: tuple[int, ...]
    bias: tuple[int, ...]


#: Words that the docstrings of all gated activations share.
_TEXTS = """
Parameters
----------
a : array
    The gate. Of float16, bfloat16, float32 or float64; any shape and strides.
b : array or float
    Of a's shape and dtype.
axis : int
    The bias's axis.
bias : array, optional
    1-D, of twice the length of the axis `axis`: first the numbers that are added to a, then those
    for b; of a's dtype or a wider one, beside float64 any.
limit : float, optional
    Above zero: a is held at limit from above, and b between -limit and limit, after the bias.
offset : float
    Is added to b after that.

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
A sum with a bias errs by 2 u (abs(a) + abs(bias)) at most, with u = 2**-24 (float64: 2**-53), and a
sum with an offset by u times itself; 16 bits are computed in float32, to which limit, offset and a
wider bias are rounded. The activation follows within its own bounds{own}, and the product is
rounded, and then to 16 bits. The bits do not depend on the number of threads. `forward` saves the
inputs alone: `backward` computes the activation again.

[own]
"""

_OTHERS = """
See Also
--------
gated : With any activation.
glu : Of the halves of one array.
"""


class GatedOp(Quantizes, CachedOp[P, R]):
    """A gated activation, and backward.

    choose : the activation, by the options; without it these name it.
    packed : a and b are the halves of one array.
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
        """The activation of a call with these options (None: the identity), and its parameters."""
        options, where = self._options(named), self._where()
        choose = self._choose
        op = choose(where, options) if choose else activation_op(where, options.activation)
        own = {} if op is None else op.parameters
        return op, {name: getattr(options, name, value) for name, value in own.items()}

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

    def _run_forward(self, now: Execution) -> None:
        now.run("gated_forward", **self._halves_by_name(now))

    def backward(self, dy: Any, /, *saved: Any, **options: Unpack[FusedKwargs[Any]]) -> Any:
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
        """The parts of packed arrays, and of the bias, that are a's and b's; or their gradients."""
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
    """A gated activation of two arrays: element by element, where it has no bias."""

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
    """Gated linear unit of a packed array: one half through an activation, times the other one.

    ``b, a = np.split(x, 2, axis)``, ``y = act(a) * b``; with gate="first" the halves change places.

    Parameters
    ----------
    x : array
        Of float16, bfloat16, float32 or float64; of an even length along `axis`; any strides.
    axis : int, default -1
        The axis that holds both halves, and along which the bias lies.
    gate : str, default "second"
        Which half goes through the activation: "second" as in torch, or "first" as in fused
        projections of gate and up.
    interleaved : bool, default False
        The halves are not one behind the other, but take turns: ``x[..., ::2], x[..., 1::2]``.
    bias : array, optional
        1-D, packed as x is along `axis`, to which it is added; of x's dtype or a wider one, beside
        float64 any.

    Returns
    -------
    array
        The result, of half of x's length along `axis`, of its dtype and framework.

    See Also
    --------
    gated : The same of two arrays.
    swiglu : With silu, of two arrays.

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
    """An activation of one array, times another one.

    ``y = act(a) * b``; with `limit` and `offset` it is
    ``act(np.minimum(a, limit)) * (np.clip(b, -limit, limit) + offset)``.

    See Also
    --------
    swiglu, geglu, reglu : With the activation named.
    glu : The same of the halves of one array.

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
    """Silu of one array, times another one.

    ``y = a * sigmoid(alpha * a) * b``, of what `gated` makes of a and b by `limit` and `offset`.

    Parameters
    ----------
    alpha : float, default 1.0
        Above zero: how sharp the bend is. With 1 it is `silu`, else `quick_gelu`; gpt-oss has
        ``alpha=1.702, limit=7.0, offset=1.0``.

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
    """Gelu of one array, times another one.

    ``y = gelu(a) * b``, of what `gated` makes of a and b by `limit` and `offset`.

    Parameters
    ----------
    approximate : str, default "none"
        "tanh" for the approximation by tanh, as `gelu` has it.

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
    """Relu of one array, times another one.

    ``y = max(a, 0) * b``, of what `gated` makes of a and b by `limit` and `offset`.

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
