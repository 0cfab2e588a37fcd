"""The op object of a norm with statistics of rows of x: its three entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType, SimpleNamespace
from typing import Any, Generic, SupportsIndex, TypeAlias, Unpack

from ... import _cpu
from ..._cpu import ROW_NORMS, View
from ...interop import validate
from ...interop.call import Call
from ..activations import Parameters
from ..bounds import GatedNormBounds, NormBounds
from ..types import A, ActivationLike, Array, ArrayOrNumber, Casting, Outs, Stream
from . import axes
from .dropout import DropoutOp
from .entry import COMPUTED, Arg, Entry, Output, signature_of
from .execute import Execution
from .op import Kernels, P, R, register
from .quantized import Quantizes
from .served import CachedOp

Shape = tuple[int, ...]

WEIGHTS = ("weight", "bias")
STATISTICS = ("mean", "rstd")

#: A `casting` stands for what is added to the weight by default, and for whether all that lies
#: between the steps is rounded to x's dtype (src/common/norms/norms.h).
CASTINGS = {"exact": (0.0, False), "llama": (0.0, True), "gemma": (1.0, False)}

#: Arrays for y; of `forward`, the statistics too, whose dtype may be another one.
NormOut: TypeAlias = A | tuple[A | None, *tuple[Array | None, ...]] | None

#: Arrays of a norm that returns the sum, too.
AddNormOut: TypeAlias = tuple[A | None, A | None, *tuple[Array | None, ...]] | None


def read_casting(where: str, options: SimpleNamespace) -> None:
    """Make of `casting` and `weight_offset` what kernels are told."""
    offset, options.casts = validate.choice(where, "casting", options.casting, CASTINGS)
    if options.weight_offset is not None:
        offset = validate.number(where, "weight_offset", options.weight_offset)
    options.weight_offset = offset


@dataclass(frozen=True, slots=True)
class Rows:
    """The normalization rows of a call: which elements share statistics, and which parameters.

    It holds what the kernels have to know of them, and the shapes that other arrays must have.

    shape : of x. cut : the channel axis, and into how many groups it is cut; None: no axis is.
    axes : those along which a row runs, after that. of_parameter : those that a parameter has.
    statistics, parameter : the shapes of mean and rstd, and of weight and bias.
    centred : a mean is subtracted, as far as `rows_of` tells.
    """

    shape: Shape
    axes: Shape
    of_parameter: Shape
    statistics: Shape
    parameter: Shape
    cut: tuple[int, int] | None = None
    centred: bool = False

    @property
    def ndim(self) -> int:
        """How many axes x has, after the cut."""
        return len(self.shape) + (self.cut is not None)

    def seen_data(self, view: View) -> View:
        """An array of x's shape with the axes of the kernels."""
        return view.split_axis(*self.cut) if self.cut else view

    def seen_statistics(self, view: View) -> View:
        """The mean or the rstd with those axes."""
        return view if view.ndim == self.ndim else view.with_axes(self.axes)

    def seen_parameter(self, view: View) -> View:
        """The weight or the bias, or its gradient, with those axes."""
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
    def count(self) -> int:
        """How many elements a row has."""
        return prod(self.split[a] for a in self.axes)


def rows_of(op: Any, shape: Shape, named: Mapping[str, Any]) -> Rows:
    """The rows of an array of a shape, for the arguments of a call by name."""
    found = op.shapes({**named, "x": SimpleNamespace(shape=shape, ndim=len(shape))})
    return replace(found if isinstance(found, Rows) else found.normed, centred="mean" in op.saves)


def named_axes(call: Call, options: SimpleNamespace) -> Rows:
    """A row has the elements along the axes that `axis` names."""
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
    """Refuse x where no axis more fits, which groups are."""
    if ndim >= axes.MOST:
        raise ValueError(f"{where}: x must have at most {axes.MOST - 1} axes, got {ndim}")


def _must_divide(where: str, name: str, number: int, what: str, axis: int, length: int) -> None:
    if number < 1 or length % number:
        raise ValueError(f"{where}: {name} must divide the {what} along axis {axis}, got {number}")


def groups_of_channels(call: Call, options: SimpleNamespace) -> Rows:
    """A row has a group of the channels of an example: axis 0, unless that has the channels.

    Backward sees by the shape of the saved rstd how many groups there are.
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
    """A row has `group_size` neighbours along the axis, or all along the axes that it names."""
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
    """A length whose square a double holds, or 0."""
    eps = validate.number(where, name, value)
    allowed = f"{name} must be 0, or from 1e-150 to 1e150"
    validate.rule(where, allowed, lambda eps: eps == 0 or 1e-150 <= eps <= 1e150, {name: eps})
    return eps


def single_channels(call: Call, options: SimpleNamespace) -> Rows:
    """A row has one channel of an example: axis 0, unless that has the channels."""
    x = call.views["x"]
    channel = axes.one(call.where, options.channel_axis, x.ndim, "channel_axis")
    along = axes.others((0, channel), x.ndim)
    statistics = axes.reduced(x.shape, along, keepdims=True)
    return Rows(x.shape, along, (channel,), statistics, (x.shape[channel],))


class NormOptions(Parameters, Generic[A], total=False):
    """The options that `NormOp.backward` takes by keyword, where an op has them."""

    mean: Array
    rstd: Array
    weight: Array | None
    bias: Array | None
    axis: int | tuple[int, ...]
    channel_axis: int
    eps: float
    weight_offset: float | None
    casting: Casting
    activation: ActivationLike
    gate_first: bool
    group_size: int | None
    p: float
    seed: SupportsIndex
    offset: SupportsIndex
    dtotal: ArrayOrNumber | None
    out: Outs[A]
    accumulate: bool
    stream: Stream


@dataclass(frozen=True)
class Part:
    """A thing that a norm does besides normalising x, and the arguments and outputs that it adds.

    front : the array beside x that it takes in front. results : what the call gives besides y.
    saves : data besides x that `forward` saves. stands_for : saved arguments in whose place
    results are saved.
    gradients : what `backward` gives after dx. incoming : gradients of results by keyword, with
    their defaults.
    args, outs, names, checks : as an op declares them.
    reads : makes of a call's options what kernels are told.
    """

    front: str = ""
    results: tuple[str, ...] = ()
    saves: tuple[str, ...] = ()
    stands_for: Mapping[str, str] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    incoming: Mapping[str, Any] = field(default_factory=dict)
    args: Mapping[str, Arg] = field(default_factory=dict)
    outs: Mapping[str, Output] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    checks: Mapping[str, Callable[[str, str, Any], Any]] = field(default_factory=dict)
    reads: Callable[[str, SimpleNamespace], None] | None = None


#: It normalises the sum of x and a residual, and returns the sum.
RESIDUAL = Part(
    front="residual",
    results=("total",),
    stands_for={"x": "total"},
    incoming={"dtotal": None},
    args={"residual": Arg(shares="x"), "dtotal": Arg()},
)

#: The sum is of what dropout leaves of x: kernels have dx before it is dropped, which is the
#: residual's.
DROPPED_RESIDUAL = replace(
    RESIDUAL,
    gradients=("dresidual",),
    args={"dtotal": Arg()},
    outs={"backward.dresidual": Output("x", in_place=True)},
    names={"dx": "dresidual", "dropped": "dx"},
    checks=DropoutOp.checks,
)

#: It multiplies by the activation of a gate.
GATE = Part(front="gate", saves=("gate",), gradients=("dgate",))

#: Options say where 16 bits are rounded between the steps, and what is added to the weight.
CASTING = Part(reads=read_casting)

#: Kernels are told this of parts that a norm lacks.
PLAIN: Mapping[str, Any] = MappingProxyType(
    {"weight_offset": 0.0, "casts": False, "gate_first": False, "p": 0.0, "seed": 0, "offset": 0}
)


class NormOp(Quantizes, CachedOp[P, R]):
    """Normalization of rows of x, act((x - mean) rstd weight + bias), and backward.

    over : from a call and its options to its `Rows`.
    kind : the functor of src/common/norms/rows.h: "CentredNorm" alone has a mean and a bias.
    parts : what it does besides.
    """

    bounds = NormBounds(scaled=6, rough=4)

    def __init__(
        self,
        function: Callable[P, R],
        over: Callable[[Call, SimpleNamespace], Rows],
        kind: str,
        parts: Sequence[Part],
    ) -> None:
        call = self._declare(function, "norms")
        self._over, self.kind, self.parts = over, kind, parts
        is_centred = kind == "CentredNorm"
        weights, statistics = (WEIGHTS, STATISTICS) if is_centred else (WEIGHTS[:1], STATISTICS[1:])
        data = ("x", *(name for part in parts for name in part.saves))
        if "gate" in data:
            self.bounds = GatedNormBounds(scaled=self.bounds.scaled, rough=self.bounds.rough)
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
        }
        self.outs = dict.fromkeys(statistics, Output(shape="statistics", dtype=COMPUTED))
        self._add(parts)
        incoming = {name: v for part in parts for name, v in part.incoming.items()}
        # How many groups there are, follows from what is saved.
        backward = signature_of(
            call, ("dy", *data), (*statistics, *weights), but=("num_groups", *front), **incoming
        )
        self._enter_points(call, backward, besides=statistics)

    def _add(self, parts: Sequence[Part]) -> None:
        """Take what the parts declare."""
        names: dict[str, str] = {}
        for part in parts:
            self.args = {**self.args, **part.args}
            self.outs = {**self.outs, **part.outs}
            self.checks = {**self.checks, **part.checks}
            names |= part.names
        if self.kind == "L2Norm":
            self.checks = {**self.checks, "eps": _length}
        if "p" in self.checks:
            self._is(counts_elements=True)
        runs = {"forward": "norm_forward", "backward": "norm_backward"}
        names["reduced"] = "axes"
        self.kernels = Kernels(runs, names, {**PLAIN, "norm": ROW_NORMS.index(self.kind)})

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        stand = {n: named[result] for p in self.parts for n, result in p.stands_for.items()}
        return super().saved({**named, **stand})

    def saves_inputs(self, options: SimpleNamespace) -> tuple[str, ...]:
        made = {name for part in self.parts for name in part.stands_for}
        return tuple(name for name in self.saves if name not in made)

    def _shapes(self, call: Call, options: SimpleNamespace, entry: str = "call") -> Rows:
        return self._over(call, options)

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        rows: Rows = now.shapes
        whole = {*rows.axes, *rows.of_parameter}
        if rows.cut is None:
            return axes.others(tuple(whole), rows.ndim)
        cut = rows.cut[0]
        return tuple(a for a in range(rows.ndim - 1) if a != cut and a + (a > cut) not in whole)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The op's value, as calling the op gives it, and the tuple that `backward` needs.

        With ``xhat = (x - mean) * rstd`` and ``z = xhat * weight + bias``, ``y = act(z)``, where
        ``rstd = 1 / sqrt(variance + eps)``.

        Parameters
        ----------
        out : array or tuple, optional
            As for the call, or a tuple that goes on with arrays for the statistics that are saved;
            one that is None is allocated. They may not share memory with what is saved.

        Notes
        -----
        y is as accurate as the result of the call. It was computed by mean and rstd, which are
        returned rounded once to the dtype in which x is computed. Where a residual was added, the
        x that is saved is the sum.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, weight = np.array([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]]), np.ones(3)
        >>> y, saved = fa.layer_norm.forward(x, weight, activation="mish")
        >>> dx, dweight, dbias = fa.layer_norm.backward(np.ones((2, 3)), *saved, activation="mish")
        >>> dweight
        array([-0.1176..., -0.1279...,  2.8592...])
        """

    def backward(
        self, dy: ArrayOrNumber, x: A, /, *saved: Any, **options: Unpack[NormOptions[A]]
    ) -> tuple[A | None, ...]:
        """The gradients with respect to x, weight and bias.

        With ``xhat = (x - mean) * rstd``, ``z = xhat * weight + bias``, ``p = dy * act'(z)`` and
        ``g = p * weight``, ``dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dtotal``, with
        means over the normalization row; ``dweight = sum(p * xhat)`` and ``dbias = sum(p)``, over
        all elements that a parameter meets. `rms_norm` and `add_rms_norm` subtract no mean: for
        them xhat is ``x * rstd``, and dx has no ``mean(g)``.

        A change of ``x[j]`` moves the mean by ``1 / N`` and rstd by ``-rstd**2 * xhat[j] / N``, of
        N elements in a row; hence the two terms that are taken away in dx.

        Parameters
        ----------
        dtotal : array, or Python scalar, optional
            The gradient with respect to the sum that was returned. It is added to dx, which is the
            residual's gradient too.

        Notes
        -----
        With u = 2**-24 (float64: 2**-53), xhat = (x - mean) rstd for the statistics as they were
        saved, p = dy act'(z) and g = p weight, dx has an error of at most u rstd (6 abs(g) + 18
        (mean abs(g) + abs(xhat) mean abs(g xhat))), dweight one of 18 u sum abs(p xhat), dbias one
        of 18 u sum abs(p). Sums of float64 are added up in float64: of n terms, read 18 + n / 8 for
        18. p is off by the derivative's own error, by z's (6 u abs(xhat weight) + u abs(z)) times
        the second derivative, and by u abs(p), and dx, dweight and dbias follow by the same
        formulas; without an activation it is exact. Then one rounding to the dtype.

        There are two passes over a normalization row; the second one finds it in the cache.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.rms_norm.forward(np.array([[3.0, 4.0]]), np.ones(2), eps=0)
        >>> fa.rms_norm.backward(np.array([[1.0, 0.0]]), *saved)
        (array([[ 0.181..., -0.135...]]), array([0.848..., 0.        ]))
        """

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        for part in self.parts:
            if part.reads is not None:
                part.reads(entry.where, options)


def norm(
    over: Callable[[Call, SimpleNamespace], Rows], kind: str, *parts: Part
) -> Callable[[Callable[P, R]], NormOp[P, R]]:
    """Make the norm that a function declares; the formulas are in src/common/norms.

    over : what its normalization rows are. kind, parts : as `NormOp` has them.
    """
    return lambda function: register(NormOp(function, over, kind, parts))
