"""Norms: (x - mean) rstd weight + bias, with any activation behind it.

`declared` tells which elements make a normalization row and so share a mean and an rstd, the kind
of norm, and its parts, such as a residual. `norms_channels.py` has `batch_norm` and `norm_apply`,
whose channels have one mean and one rstd each. The formulas and the gradients are in
`src/common/norms`, the oracle is in `check/reference.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple, SupportsIndex, TypeAlias, Unpack

from .. import _cpu
from .._cpu import ROW_NORMS, View
from ..interop import validate
from ..interop.call import Call
from .activations import FusedKwargs, Parameters
from .bounds import NormBounds
from .dropout import DropoutOp
from .engine import axes
from .engine.entry import COMPUTED, Arg, Entry, Output
from .engine.execute import Execution
from .engine.op import Kernels, P, R, declared, float32_under_autocast, records
from .engine.quantized import Quantizes
from .engine.served import CachedOp
from .types import A, ActivationLike, Array, ArrayOrNumber, Casting, Stream

Shape = tuple[int, ...]

WEIGHTS = ("weight", "bias")
STATISTICS = ("mean", "rstd")

#: A `casting` says what is added to the weight by default, and whether all values between the
#: steps are rounded to x's dtype (src/common/norms/norms.h).
CASTINGS = {"exact": (0.0, False), "llama": (0.0, True), "gemma": (1.0, False)}

#: Arrays for y and, in `forward`, for the statistics, whose dtype may be another one.
NormOut: TypeAlias = A | tuple[A | None, *tuple[Array | None, ...]] | None

#: Arrays for a norm that also returns the sum.
AddNormOut: TypeAlias = tuple[A | None, A | None, *tuple[Array | None, ...]] | None


def read_casting(where: str, options: SimpleNamespace) -> None:
    """Translate `casting` and `weight_offset` for the kernels."""
    offset, options.casts = validate.choice(where, "casting", options.casting, CASTINGS)
    if options.weight_offset is not None:
        offset = validate.number(where, "weight_offset", options.weight_offset)
    options.weight_offset = offset


class Rows(NamedTuple):
    """The normalization rows of a call: which elements share statistics, and which parameters.

    It holds what the kernels need to know about them and the shapes that other arrays must have.
    """

    shape: Shape  # x's
    axes: Shape  # axes along which a row runs, after the cut
    of_parameter: Shape  # the axes that a parameter has
    statistics: Shape  # the shape of mean and rstd
    parameter: Shape  # the shape of weight and bias
    cut: tuple[int, int] | None = None  # the channel axis, and into how many groups it is cut
    centred: bool = False  # a mean is subtracted, as far as `rows_of` tells

    @property
    def ndim(self) -> int:
        """The number of axes of x after the cut."""
        return len(self.shape) + (self.cut is not None)

    def seen_data(self, view: View) -> View:
        """Give an array of x's shape the axes of the kernels."""
        return view.split_axis(*self.cut) if self.cut else view

    def seen_statistics(self, view: View) -> View:
        """Give the mean or the rstd those axes."""
        return view if view.ndim == self.ndim else view.with_axes(self.axes)

    def seen_parameter(self, view: View) -> View:
        """Give the weight, the bias or a gradient of them those axes."""
        if self.cut:
            view = view.split_axis(0, self.cut[1])
        lacked = axes.others(self.of_parameter, self.ndim)
        return view.with_axes(lacked) if lacked else view

    @property
    def split(self) -> Shape:
        """The shape of x with the channels cut into groups."""
        if self.cut is None:
            return self.shape
        axis, groups = self.cut
        length = self.shape[axis]
        return (*self.shape[:axis], groups, length // groups, *self.shape[axis + 1 :])

    @property
    def kept(self) -> Shape:
        """The shape in which statistics broadcast against `split`."""
        return axes.reduced(self.split, self.axes, keepdims=True)

    @property
    def along(self) -> Shape:
        """The shape in which a parameter broadcasts against `split`."""
        lacked = axes.others(self.of_parameter, self.ndim)
        return axes.reduced(self.split, lacked, keepdims=True)

    @property
    def length(self) -> int:
        """The number of elements of a row."""
        return prod(self.split[a] for a in self.axes)


def rows_of(op: Any, shape: Shape, named: Mapping[str, Any]) -> Rows:
    """Find the rows of an array of a shape, for the arguments of a call by name."""
    found = op.shapes({**named, "x": SimpleNamespace(shape=shape, ndim=len(shape))})
    rows = found if isinstance(found, Rows) else found.normed
    return rows._replace(centred="mean" in op.saves)


def named_axes(call: Call, options: SimpleNamespace) -> Rows:
    """Make rows of the elements along the axes that `axis` names."""
    where, x, axis = call.where, call.views["x"], options.axis
    if axis is None or (isinstance(axis, tuple | list) and not axis):
        raise TypeError(
            f"{where}: axis must be an integer or a tuple of integers, "
            f"got {validate.describe(axis)}"
        )
    if not x.ndim:
        raise ValueError(f"{where}: x must have an axis to normalize along, got shape ()")
    along, shape = axes.axes(where, axis, x.ndim), x.shape
    statistics = axes.reduced(shape, along, keepdims=True)
    return Rows(shape, along, along, statistics, tuple(shape[a] for a in along))


def _has_room(where: str, ndim: int) -> None:
    """Refuse x if it has no room for one more axis, the groups."""
    if ndim >= axes.MOST:
        raise ValueError(f"{where}: x must have at most {axes.MOST - 1} axes, got {ndim}")


def _must_divide(where: str, name: str, number: int, what: str, axis: int, length: int) -> None:
    if number < 1 or length % number:
        raise ValueError(f"{where}: {name} must divide the {what} along axis {axis}, got {number}")


def groups_of_channels(call: Call, options: SimpleNamespace) -> Rows:
    """Make rows of groups of channels of an example, which is axis 0 unless that has the channels.

    Backward finds the number of groups from the shape of the saved rstd.
    """
    where, x, rstd = call.where, call.views["x"], call.views.get("rstd")
    if rstd is None:
        num_groups = axes.integer(where, "num_groups", options.num_groups)
    elif rstd.ndim:
        num_groups = rstd.shape[-1]
    else:
        raise ValueError(f"{where}: rstd must have the shape (N, G), got ()")
    channel = axes.one(where, options.channel_axis, x.ndim, "channel_axis")
    kept = (channel,) if channel == 0 else (0, channel)
    _has_room(where, x.ndim)
    count = x.shape[channel]
    _must_divide(where, "num_groups", num_groups, f"{count} channels", options.channel_axis, count)
    statistics = (num_groups,) if channel == 0 else (x.shape[0], num_groups)
    along = axes.others(kept, x.ndim + 1)
    of_parameter, cut = (channel, channel + 1), (channel, num_groups)
    return Rows(x.shape, along, of_parameter, statistics, (count,), cut)


def gated_groups(call: Call, options: SimpleNamespace) -> Rows:
    """Make rows of `group_size` neighbours along the axis, or of all along the named axes."""
    where, x, size = call.where, call.views["x"], options.group_size
    if size is None:
        return named_axes(call, options)
    size = axes.integer(where, "group_size", size)
    named = options.axis
    if isinstance(named, tuple | list):
        if len(named) != 1:
            raise TypeError(
                f"{where}: axis must be an integer with group_size, got {validate.describe(named)}"
            )
        (named,) = named
    axis = axes.one(where, named, x.ndim)
    _has_room(where, x.ndim)
    length = x.shape[axis]
    _must_divide(where, "group_size", size, f"{length} elements", options.axis, length)
    groups = length // size
    statistics = (*x.shape[:axis], groups, *x.shape[axis + 1 :])
    cut = (axis, groups)
    return Rows(x.shape, (axis + 1,), (axis, axis + 1), statistics, (length,), cut)


def _length(where: str, name: str, value: Any) -> float:
    """Check a length, which is 0 or has a square that a double holds."""
    eps = validate.number(where, name, value)
    allowed = f"{name} must be 0, or from 1e-150 to 1e150"
    validate.rule(where, allowed, lambda eps: eps == 0 or 1e-150 <= eps <= 1e150, {name: eps})
    return eps


def single_channels(call: Call, options: SimpleNamespace) -> Rows:
    """Make rows of single channels of an example, which is axis 0 unless that has the channels."""
    x = call.views["x"]
    channel = axes.one(call.where, options.channel_axis, x.ndim, "channel_axis")
    along = axes.others((0, channel), x.ndim)
    statistics = axes.reduced(x.shape, along, keepdims=True)
    return Rows(x.shape, along, (channel,), statistics, (x.shape[channel],))


#: Words that the docstrings of all norms share.
TEXTS = """
Parameters
----------
gate : array, or Python scalar
    The gate, of x's shape and dtype.
offset : int
    The number of the first element of x, from 0 to 2**63 - 1, as for `dropout`.
weight : array, optional
    {lengths}, of x's dtype or a wider one, or of any dtype if x is float64.
bias : array, optional
    {lengths}, of the same dtypes as weight. Either may be given without the other.
axis : int or tuple of int
    The axes whose elements share statistics, and along which the parameters lie.
channel_axis : int
    The axis of the channels: 1 for NCHW, -1 for channels last.{batch}
eps : float
    A number that is added to {added}; it must not be negative. With 0, rstd is infinite where it
    leaves the range of float32 (float64), as for a row of zeros.
casting : {{"exact", "llama", "gemma"}}
    Where values are rounded. "exact" rounds only the result. "llama" rounds the normalised x to x's
    dtype, and then the product with the weight, as Llama's published code does. "gemma" rounds like
    "exact" and adds 1 to the weight, as Gemma's code does.
{out}

Raises
------
TypeError
    mean: statistics narrower than x
ValueError
    mean: statistics of another shape
    num_groups: a number of groups that does not divide the channels

References
----------
{reference}

Notes
-----
The op computes in float32 (float64 for float64, and for the statistics). Let u = 2**-24 (2**-53),
xhat the normalised x, and z the value before the activation. z has an error of at most {b.scaled:g}
u abs(xhat weight) + u abs(z){error} 2**-46 abs(weight) (1 + abs(xhat)), for the roundings of the
moments{given}. The activation's own error follows, and one rounding to x's dtype. A bias that is
wider than the type in which x is computed is first rounded to that type. {rough}

{order}

{notes}

[own]
"""

#: The lengths of a parameter where an axis of channels is named.
CHANNEL = "A 1-D array with one value per channel"

_ROUGH = """On a GPU, which computes moments of 16-bit data partly in float32, the bound for such
data is larger by {b.rough:g} u abs(weight) (1 + abs(xhat) + abs(mean) rstd)."""

#: Other fields of these words, for norms of rows.
_OF_ROWS = {
    "given": "",
    "batch": " The batch is axis 0, unless the channels are.",
    "order": """`forward` saves the statistics that y is computed with, rounded once to the dtype in
    which x is computed; rstd is the factor of x, or of x - mean.

    The result for a normalization row depends neither on the other rows nor on the number of
    threads. Terms are added up in the order of `fastact.sum`: the bits may depend on the order of
    the axes in memory (channels last), but not on their strides.""",
}

_LAYER = """J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer Normalization",
https://arxiv.org/abs/1607.06450"""

_ROOT = """B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019,
https://arxiv.org/abs/1910.07467

`LlamaRMSNorm` and `GemmaRMSNorm` of https://github.com/huggingface/transformers"""

#: Further errors where a mean is subtracted.
FAR = """, plus 2**-48 abs(mean weight) rstd for the rounding of the mean; for float64 it is instead
2**-52 abs(mean weight) rstd (1 + abs(xhat)) +"""


class Part(NamedTuple):
    """Something that a norm does besides normalising x, with the arguments and outputs it adds.

    args, outs, names, checks : as an op declares them.
    """

    front: str = ""  # the positional array that it takes after x
    results: tuple[str, ...] = ()  # results besides y
    saves: tuple[str, ...] = ()  # data besides x that `forward` saves
    gradients: tuple[str, ...] = ()  # results of `backward` after dx
    incoming: Mapping[str, Any] = records()  # gradients of results by keyword, with their defaults
    args: Mapping[str, Arg] = records()
    outs: Mapping[str, Output] = records()
    names: Mapping[str, str] = records()
    checks: Mapping[str, Callable[[str, str, Any], Any]] = records()
    out: str = ""  # a text on `out` and on the results, for docstrings
    note: str = ""  # another one, on the bounds and the gradients


def _merged(parts: Sequence[Part], field: str) -> dict[str, Any]:
    """Merge what all parts declare in a field into one table."""
    return {name: value for part in parts for name, value in getattr(part, field).items()}


#: It normalises the sum of x and a residual, and returns the sum.
RESIDUAL = Part(
    front="residual",
    results=("total",),
    incoming={"dtotal": None},
    args={"residual": Arg(shares="x"), "dtotal": Arg()},
    out="""out : tuple of arrays or None, optional
    Where to write y and the sum; None allocates one. Both may be x or residual itself.

Returns
-------
y : array
    The normalised sum, of x's shape, dtype and framework.
total : array
    The sum, rounded to x's dtype. The rounded sum is normalised, so that y is its norm. For 16-bit
    data, kernels that normalise the sum before they round it, such as vLLM's and flash-attn's,
    differ by that rounding.""",
    note="""The saved x is the sum. `dtotal` is the gradient with respect to the returned sum.""",
)

#: The sum is that of the residual and what dropout leaves of x. Before dropout, the kernels' dx is
#: the residual's gradient.
DROPPED_RESIDUAL = RESIDUAL._replace(
    gradients=("dresidual",),
    args={"dtotal": Arg()},
    outs={"backward.dresidual": Output("x", in_place=True)},
    names={"dx": "dresidual", "dropped": "dx"},
    checks=DropoutOp.checks,
)

#: It multiplies by the activation of a gate.
GATE = Part(
    front="gate",
    saves=("gate",),
    gradients=("dgate",),
    note="""act(gate) is within the activation's own bounds, too. Products with it are rounded in
    the type in which x is computed, and its errors propagate through them. With `gate_first`, the
    product with x is normalised in that type, whose range it must not leave.""",
)

#: Options say where 16 bits are rounded between the steps, and what is added to the weight.
CASTING = Part(
    note="""With casting="llama" and 16-bit data, `backward` rounds where the derivative of that
    code does: the gradient that reaches the normalised x, the terms of dweight, and the gradient
    that comes from an activation. For float32 and float64 this adds no rounding.""",
)

#: The arguments of kernels for parts that a norm lacks.
PLAIN: Mapping[str, Any] = MappingProxyType(
    {"weight_offset": 0.0, "casts": False, "gate_first": False, "p": 0.0, "seed": 0, "offset": 0}
)


class NormOp(Quantizes, CachedOp[P, R]):
    """Normalization of rows of x, act((x - mean) rstd weight + bias), and backward.

    over : finds the `Rows` of a call from its options.
    kind : the functor of src/common/norms/rows.h; only "CentredNorm" has a mean and a bias.
    parts : what the norm does besides.
    """

    family = "norms"
    bounds = NormBounds(scaled=6, rough=4)

    def __init__(
        self,
        function: Callable[P, R],
        over: Callable[[Call, SimpleNamespace], Rows],
        kind: str,
        *parts: Part,
    ) -> None:
        self._declare(function)
        self._over, self.kind, self.parts = over, kind, parts
        is_centred = kind == "CentredNorm"
        weights, statistics = (WEIGHTS, STATISTICS) if is_centred else (WEIGHTS[:1], STATISTICS[1:])
        data = ("x", *(name for part in parts for name in part.saves))
        front = [part.front for part in parts if part.front]
        if not front and kind in _cpu.SECOND_KINDS:
            self._is(second=_cpu.SECOND_KINDS.index(kind))
        self.results = ("y", *(name for part in parts for name in part.results))
        self.saves = (*data, *statistics, *weights)
        others = (name for part in parts for name in part.gradients)
        self.gradients = ("dx", *others, *(f"d{name}" for name in weights))
        self.args = {
            "x": Arg(validate.ARRAY),
            **dict.fromkeys(statistics, Arg(validate.STATISTIC, "statistics")),
            **dict.fromkeys(weights, Arg(shape="parameter")),
            **_merged(parts, "args"),
        }
        made = dict.fromkeys(statistics, Output(shape="statistics", dtype=COMPUTED))
        self.outs, self.checks = made | _merged(parts, "outs"), _merged(parts, "checks")
        self._is(counts_elements="p" in self.checks)
        runs = {"forward": "norm_forward", "backward": "norm_backward"}
        names = {**_merged(parts, "names"), "reduced": "axes"}
        self.kernels = Kernels(runs, names, {**PLAIN, "norm": ROW_NORMS.index(kind)})
        # The number of groups follows from what is saved.
        self._enter_points(but=("num_groups",), told=_merged(parts, "incoming"))

    def _texts(self) -> str:
        is_centred, by_axes = "mean" in self.saves, "axis" in self.__signature__.parameters
        along = "An array with the lengths of x along `axis`, in the order of x"
        return TEXTS.format(
            b=self.bounds,
            **_OF_ROWS,
            rough=_ROUGH.format(b=self.bounds),
            lengths=along if by_axes else CHANNEL,
            added="the variance" if is_centred else "the mean of the squares",
            reference=_LAYER if is_centred else _ROOT,
            error=FAR if is_centred else ", plus, for float64,",
            out="".join(part.out for part in self.parts),
            notes="\n\n".join(part.note for part in self.parts),
        )

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        return super().saved({**named, "x": named.get("total", named["x"])})

    def saves_inputs(self, options: SimpleNamespace) -> tuple[str, ...]:
        found = super().saves_inputs(options)
        return tuple(n for n in found if n != "x") if "total" in self.results else found

    def _shapes(self, call: Call, options: SimpleNamespace, entry: str = "call") -> Rows:
        return self._over(call, options)

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        rows: Rows = now.shapes
        whole = {*rows.axes, *rows.of_parameter}
        if rows.cut is None:
            return axes.others(tuple(whole), rows.ndim)
        cut = rows.cut[0]
        return tuple(a for a in range(rows.ndim - 1) if a != cut and a + (a > cut) not in whole)

    def backward(
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[FusedKwargs[A]]
    ) -> tuple[A | None, ...]:
        """Compute the gradients with respect to x, weight and bias.

        Let ``xhat = (x - mean) * rstd``, ``z = xhat * weight + bias``, ``p = dy * act'(z)`` and
        ``g = p * weight``. Then ``dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dtotal``,
        with means over the normalization row, and ``dweight = sum(p * xhat)`` and
        ``dbias = sum(p)``, over all elements that share a parameter. `rms_norm` and `add_rms_norm`
        subtract no mean: for them xhat is ``x * rstd``, and dx has no ``mean(g)``.

        With N elements in a row, a change of ``x[j]`` moves the mean by ``1 / N`` and rstd by
        ``-rstd**2 * xhat[j] / N``, which gives the two terms that are subtracted in dx.

        Parameters
        ----------
        dtotal : array, or Python scalar, optional
            The gradient with respect to the returned sum. It is added to dx, which is also the
            residual's gradient.

        Notes
        -----
        Let u = 2**-24 (float64: 2**-53), xhat = (x - mean) rstd for the statistics as they were
        saved, p = dy act'(z) and g = p weight. dx has an error of at most u rstd (6 abs(g) + 18
        (mean abs(g) + abs(xhat) mean abs(g xhat))), dweight of at most 18 u sum abs(p xhat), and
        dbias of at most 18 u sum abs(p). Sums of float64 are added up in float64; for n terms, read
        18 + n / 8 for 18. The error of p is the derivative's own error, plus the error of z (6 u
        abs(xhat weight) + u abs(z)) times the second derivative, plus u abs(p); it enters dx,
        dweight and dbias by the same formulas. Without an activation p is exact. One rounding to
        the dtype follows.

        `backward` makes two passes over a normalization row; the second one finds it in the cache.
        """

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        if "casting" in entry.defaults:
            read_casting(entry.where, options)


@float32_under_autocast("cuda")
@declared(NormOp, named_axes, "CentredNorm")
def layer_norm(
    x: A,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Layer normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, with mean and variance over
    `axis`, in one pass over memory.

    See Also
    --------
    fastact.rms_norm : The same without mean and bias.
    fastact.add_layer_norm : The same for a sum.

    Examples
    --------
    >>> x = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]])
    >>> fa.layer_norm(x)
    array([[-1.2247...,  0.        ,  1.2247...],
           [-0.7071..., -0.7071...,  1.4142...]])
    >>> y, saved = fa.layer_norm.forward(x, np.full(3, 2.0), activation="mish")
    >>> y
    array([[-0.2023...,  0.        ,  2.4187...],
           [-0.3029..., -0.3029...,  2.8108...]])
    >>> dx, dweight, dbias = fa.layer_norm.backward(1.0, *saved, activation="mish")
    >>> dweight
    array([0.1707..., 0.0350..., 2.7304...])
    """


@float32_under_autocast("cuda")
@declared(NormOp, named_axes, "RmsNorm", CASTING)
def rms_norm(
    x: A,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Root-mean-square normalization.

    ``y = act(x / sqrt(mean(x**2) + eps) * (weight + weight_offset))``, with the mean over `axis`,
    in one pass over memory.

    See Also
    --------
    fastact.layer_norm : The same around the mean, with a bias.
    fastact.add_rms_norm : The same for a sum.

    Examples
    --------
    >>> x = np.array([3.0, 4.0])
    >>> fa.rms_norm(x, eps=0)
    array([0.8485..., 1.1313...])
    >>> y, saved = fa.rms_norm.forward(x, np.ones(2), eps=0)
    >>> fa.rms_norm.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.1810..., -0.1357...]), array([0.8485..., 0.        ]))
    """


@float32_under_autocast("cuda")
@declared(NormOp, named_axes, "CentredNorm", RESIDUAL)
def add_layer_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Sum of two arrays, and layer normalization of the sum.

    ``total = x + residual`` and ``y = act((total - mean) / sqrt(variance + eps) * weight + bias)``,
    with mean and variance of total over `axis`, in one pass over memory.

    See Also
    --------
    fastact.layer_norm : The same for one array.
    fastact.add_rms_norm : The same without mean and bias.

    Examples
    --------
    >>> x, residual = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    >>> fa.add_layer_norm(x, residual, eps=0)
    (array([-1.,  1.]), array([1., 3.]))
    >>> (y, total), saved = fa.add_layer_norm.forward(x, residual, np.ones(2), eps=0)
    >>> fa.add_layer_norm.backward(1.0, *saved, dtotal=np.array([3.0, 5.0]))
    (array([3., 5.]), array([-1.,  1.]), None)
    """


@float32_under_autocast("cuda")
@declared(NormOp, named_axes, "RmsNorm", RESIDUAL, CASTING)
def add_rms_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Sum of two arrays, and root-mean-square normalization of the sum.

    ``total = x + residual`` and ``y = act(total / sqrt(mean(total**2) + eps) * (weight +
    weight_offset))``, with the mean over `axis`, in one pass over memory.

    See Also
    --------
    fastact.rms_norm : The same for one array.
    fastact.add_layer_norm : The same around the mean, with a bias.

    Examples
    --------
    >>> x, residual = np.array([1.0, 2.0]), np.array([2.0, 2.0])
    >>> fa.add_rms_norm(x, residual, eps=0)
    (array([0.8485..., 1.1313...]), array([3., 4.]))
    >>> (y, total), saved = fa.add_rms_norm.forward(x, residual, np.ones(2), eps=0)
    >>> fa.add_rms_norm.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.1810..., -0.1357...]), array([0.8485..., 0.        ]))
    """


@float32_under_autocast("cuda")
@declared(NormOp, named_axes, "CentredNorm", DROPPED_RESIDUAL)
def dropout_add_layer_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    p: float,
    seed: SupportsIndex,
    offset: SupportsIndex = 0,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Dropout, a sum with the residual, and layer normalization of the sum.

    ``total = dropout(x, p, seed=seed, offset=offset, residual=residual)`` and ``y = act((total -
    mean) / sqrt(variance + eps) * weight + bias)``, with mean and variance of total over `axis`; on
    the CPU this takes one pass over memory.

    See Also
    --------
    fastact.add_layer_norm : The same without dropout.
    fastact.dropout : The mask, and what happens to an element.
    fastact.dropout_add_rms_norm : The same without mean and bias.

    Notes
    -----
    total has the bits that `dropout` gives, so it is rounded to x's dtype once.

    dresidual is the gradient with respect to total, which is the dx of other norms. From it
    `backward` computes dx, with the bits of ``dropout.backward(dresidual, p, seed=seed,
    offset=offset)``, and draws the mask again. On a GPU, adding to `out` takes memory for
    dresidual.

    Examples
    --------
    >>> x, residual = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    >>> fa.dropout_add_layer_norm(x, residual, p=0.5, seed=3, eps=0)
    (array([ 1., -1.]), array([2., 1.]))
    >>> (y, total), saved = fa.dropout_add_layer_norm.forward(
    ...     x, residual, np.ones(2), p=0.5, seed=3, eps=0
    ... )
    >>> dx, dresidual, dweight, dbias = fa.dropout_add_layer_norm.backward(
    ...     1.0, *saved, p=0.5, seed=3, dtotal=np.array([3.0, 5.0])
    ... )
    >>> dx, dresidual
    (array([6., 0.]), array([3., 5.]))
    """


@float32_under_autocast("cuda")
@declared(NormOp, named_axes, "RmsNorm", DROPPED_RESIDUAL, CASTING)
def dropout_add_rms_norm(
    x: A,
    residual: ArrayOrNumber,
    /,
    weight: Array | None = None,
    *,
    p: float,
    seed: SupportsIndex,
    offset: SupportsIndex = 0,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    activation: ActivationLike = "identity",
    out: AddNormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> tuple[A, A]:
    """Dropout, a sum with the residual, and root-mean-square normalization of the sum.

    ``total = dropout(x, p, seed=seed, offset=offset, residual=residual)`` and ``y = act(total /
    sqrt(mean(total**2) + eps) * (weight + weight_offset))``, with the mean over `axis`; on the CPU
    this takes one pass over memory.

    See Also
    --------
    fastact.add_rms_norm : The same without dropout.
    fastact.dropout_add_layer_norm : The same around the mean, with a bias, and notes on gradients.

    Examples
    --------
    >>> x, residual = np.array([1.5, 2.0]), np.array([0.0, 4.0])
    >>> fa.dropout_add_rms_norm(x, residual, p=0.5, seed=3, eps=0)
    (array([0.8485..., 1.1313...]), array([3., 4.]))
    >>> y, saved = fa.dropout_add_rms_norm.forward(x, residual, np.ones(2), p=0.5, seed=3, eps=0)
    >>> dx, dresidual, dweight = fa.dropout_add_rms_norm.backward(
    ...     np.array([1.0, 0.0]), *saved, p=0.5, seed=3
    ... )
    >>> dx, dresidual
    (array([0.3620..., 0.        ]), array([ 0.1810..., -0.1357...]))
    """


@declared(NormOp, named_axes, "L2Norm", Part(checks={"eps": _length}))
def l2_normalize(
    x: A,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-12,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Division by the length, the square root of the sum of the squares.

    ``y = act(x / max(sqrt(sum(x**2)), eps) * weight)``, with the sum over `axis`, in one pass.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes over which squares are added up and along which the weight lies; the default of
        `torch.nn.functional.normalize` is 1.
    eps : float, default 1e-12
        The smallest length that x is divided by: 0, or from 1e-150 to 1e150.

    See Also
    --------
    fastact.rms_norm : Division by the square root of the mean of the squares.

    Notes
    -----
    The gradient has sums instead of means: ``dx = rstd * (g - xhat * sum(g * xhat))``, where rstd
    is one over the length. Where the length is at most eps, the divisor is a constant, and ``dx = g
    / eps``. If the length is infinite, finite elements give 0 and infinite ones NaN. rstd is of
    float32 (float64 for float64), where it is infinite for lengths below 3e-39; with an eps as
    small as that, y is then not a number.

    References
    ----------
    `torch.nn.functional.normalize`,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html

    Examples
    --------
    >>> x = np.array([[3.0, 4.0], [0.0, 0.0]])
    >>> fa.l2_normalize(x)
    array([[0.6, 0.8],
           [0. , 0. ]])
    >>> fa.l2_normalize(np.array([3e160, 4e160]))
    array([0.6, 0.8])
    >>> y, saved = fa.l2_normalize.forward(np.array([3.0, 4.0]), np.ones(2))
    >>> fa.l2_normalize.backward(np.array([1.0, 0.0]), *saved)
    (array([ 0.128, -0.096]), array([0.6, 0. ]))
    """


@declared(NormOp, gated_groups, "RmsNorm", GATE, CASTING)
def gated_rms_norm(
    x: A,
    gate: ArrayOrNumber,
    /,
    weight: Array | None = None,
    *,
    axis: int | tuple[int, ...] = -1,
    eps: float = 1e-6,
    activation: ActivationLike = "silu",
    gate_first: bool = False,
    group_size: int | None = None,
    weight_offset: float | None = None,
    casting: Casting = "exact",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Root-mean-square normalization times an activation of a gate.

    ``y = x / sqrt(mean(x**2) + eps) * (weight + weight_offset) * act(gate)``, with the mean over
    `axis`, in one pass over memory. With `gate_first` it is the norm of ``x * act(gate)``.

    Parameters
    ----------
    gate_first : bool, default False
        If True, multiply x by the gate before the norm, as ``norm_before_gate=False`` of Mamba-2.
    group_size : int, optional
        The number of neighbours along `axis`, which must then be an integer, that are normalised
        together; the weight lies along the whole axis.

    See Also
    --------
    fastact.rms_norm : The same without a gate.
    fastact.gated : The gate without the norm.

    References
    ----------
    T. Dao and A. Gu, "Transformers are SSMs: Generalized Models and Efficient Algorithms Through
    Structured State Space Duality", ICML 2024, https://arxiv.org/abs/2405.21060

    `MambaRMSNormGated` and `Qwen3NextRMSNormGated` of https://github.com/huggingface/transformers

    Examples
    --------
    >>> x, gate = np.array([3.0, 4.0]), np.array([1.0, -1.0])
    >>> fa.gated_rms_norm(x, gate, eps=0)
    array([ 0.6203..., -0.3042...])
    >>> fa.gated_rms_norm(x, gate, eps=0, gate_first=True)
    array([ 1.2696..., -0.6227...])
    >>> y, saved = fa.gated_rms_norm.forward(x, gate, np.ones(2), eps=0, activation="sigmoid")
    >>> dx, dgate, dweight = fa.gated_rms_norm.backward(1.0, *saved, activation="sigmoid")
    >>> dgate
    array([0.1668..., 0.2224...])
    """


@float32_under_autocast("cuda")
@declared(NormOp, groups_of_channels, "CentredNorm")
def group_norm(
    x: A,
    /,
    num_groups: int,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    channel_axis: int = 1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Group normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, with mean and variance over each
    group of neighbouring channels of each example.

    Parameters
    ----------
    num_groups : int
        The number of groups, which divides the number of channels.

    See Also
    --------
    fastact.instance_norm : The same with each channel as a group.
    fastact.layer_norm : The same over axes.

    Notes
    -----
    A group of one value is its own mean, so its xhat is 0. `F.group_norm` refuses such groups in a
    batch of one example and accepts them in a larger batch. Here an example does not depend on the
    others, and only the module `fastact.torch.nn.GroupNorm` refuses what torch refuses.

    `group_norm.backward` finds the number of groups from the shape of rstd.

    References
    ----------
    Y. Wu and K. He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494

    Examples
    --------
    >>> x = np.array([[1.0, 3.0, 5.0, 5.0]])
    >>> fa.group_norm(x, 2, eps=1e-12)
    array([[-1.,  1.,  0.,  0.]])
    >>> y, saved = fa.group_norm.forward(x, 2, np.ones(4), eps=1e-12)
    >>> dx, dweight, dbias = fa.group_norm.backward(2.0, *saved)
    >>> dweight
    array([-2.,  2.,  0.,  0.])
    """


@declared(NormOp, single_channels, "CentredNorm")
def instance_norm(
    x: A,
    /,
    weight: Array | None = None,
    bias: Array | None = None,
    *,
    channel_axis: int = 1,
    eps: float = 1e-5,
    activation: ActivationLike = "identity",
    out: NormOut[A] = None,
    stream: Stream = None,
    **parameters: Unpack[Parameters],
) -> A:
    """Instance normalization.

    ``y = act((x - mean) / sqrt(variance + eps) * weight + bias)``, with mean and variance over each
    channel of each example.

    See Also
    --------
    fastact.group_norm : The same over groups of channels.
    fastact.batch_norm : The same over the whole batch.

    Notes
    -----
    A channel of one value is its own mean, so its xhat is 0. `F.instance_norm` refuses it, and so
    do the modules `fastact.torch.nn.InstanceNorm1d` to `3d`. These also keep running statistics,
    which each example updates with its ``fastact.mean_var(x, axes, correction=1)``;
    `fastact.batch_norm` normalises by them.

    References
    ----------
    D. Ulyanov, A. Vedaldi and V. Lempitsky, "Instance Normalization: The Missing Ingredient for
    Fast Stylization", https://arxiv.org/abs/1607.08022

    Examples
    --------
    >>> x = np.array([[[1.0, 3.0], [5.0, 9.0]]])
    >>> fa.instance_norm(x, eps=0)
    array([[[-1.,  1.],
            [-1.,  1.]]])
    >>> y, saved = fa.instance_norm.forward(x, np.ones(2), np.ones(2), eps=0)
    >>> dx, dweight, dbias = fa.instance_norm.backward(np.array([[[1.0, 0.0], [0.0, 1.0]]]), *saved)
    >>> dweight, dbias
    (array([-1.,  1.]), array([1., 1.]))
    """
