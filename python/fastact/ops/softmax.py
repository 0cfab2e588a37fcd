"""Softmax and loss: `softmax`, `log_softmax` and `logsumexp` of rows, and `cross_entropy`.

The formulas are in `src/common/softmax/softmax.h`, the oracle is in `check/reference.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple, Unpack

from .. import _cpu
from .._cpu import View
from ..interop import validate
from .bounds import CrossEntropyBounds, SoftmaxBounds
from .engine import axes
from .engine.entry import ANY, COMPUTED, DOUBLE, Arg, Entry, Output
from .engine.execute import Execution
from .engine.op import Kernels, P, R, declared, float32_under_autocast, records
from .engine.quantized import Quantizes
from .engine.reductions import add_up, fill
from .engine.served import CachedOp
from .types import A, Array, ArrayOrNumber, Kwargs, Out, Outs, Sliced, Stream

#: The axes of a row: one of x's, or several.
RowAxes = int | tuple[int, ...]


#: Words that the docstrings of all functions of rows share.
_TEXTS = """
Parameters
----------
scale : float
    The factor of x, for example 1 / sqrt(d) for attention.
mask : array, float or bool, optional
    A mask that broadcasts to x's shape: either bool, with True where an element takes part, or
    numbers of any dtype, even integers, that are added. It has no gradient.

Raises
------
TypeError
    mask: a mask of an unsupported dtype
    sink: a sink of neither x's dtype nor a wider one
ValueError
    mask: a mask that does not broadcast to x's shape
    scale: a scale that is not finite
    sink: a sink that does not broadcast to the rows
    softcap: a softcap that is not above zero, or not finite

References
----------
P. Blanchard, D. J. Higham and N. J. Higham, "Accurately computing the log-sum-exp and softmax
functions", IMA Journal of Numerical Analysis 41(4), 2021, https://doi.org/10.1093/imanum/draa038

Notes
-----
[own]

Elements that a mask leaves out with False or -inf do not matter at all, even if they are NaN. In
softmax and log_softmax, a NaN or +inf that takes part makes all others of its row NaN. z may leave
the range of the type in which it is computed without y doing so, because y follows from the
distances within the row.

The result for a row does not depend on the other rows, on strides, on the layout or on the number
of threads. With several axes, elements are in the order of the axes.
"""


class WithSinks(NamedTuple):
    """Rows along some axes, and sinks, which repeat to one per row."""

    axes: tuple[int, ...]  # the axes along which a row lies
    rows: tuple[int, ...]  # the shape without them
    sink: tuple[int, ...] = ()  # the shape of the sinks

    def seen_rows(self, view: View) -> View:
        """Give an array of one number per row as many axes as x has."""
        return view.with_axes(self.axes)

    def seen_sink(self, view: View) -> View:
        """Give the sinks those axes, of length 1 where they repeat."""
        lacked = range(len(self.rows) - view.ndim)
        return view.with_axes(tuple(lacked)).with_axes(self.axes)


class RowFunction(CachedOp[P, R]):
    """The base of softmax, log_softmax and logsumexp, of z = scale x + mask over rows of x."""

    family = "softmax"
    saves: tuple[str, ...] = ("y",)  # the value, where its gradient needs no more
    kernels = Kernels({"forward": "softmax_forward", "backward": "softmax_backward"})
    makes: Mapping[str, Any] = records()  # for `_enter_points`

    def __init__(self, function: Callable[P, R]) -> None:
        self._declare(function)
        numbers = {"softcap": 0.0, "kind": _cpu.SOFTMAX_KINDS.index(self.name)}
        self.kernels = self.kernels._replace(numbers=numbers)
        self.bounds = SoftmaxBounds(self.name)
        if self.name in _cpu.SECOND_KINDS:
            self._is(second=_cpu.SECOND_KINDS.index(self.name))
        self._enter_points(**self.makes)

    def _texts(self) -> str:
        return _TEXTS

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> Any:
        return axes.over_axes(call.where, options, next(iter(call.views.values())).shape)


class RowOp(Quantizes, RowFunction[P, R]):
    """A function of rows whose result has x's shape, and may be codes."""

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        """Find the axes of parts: none with a sink, or where a GPU sums across rows."""
        over, ndim = now.shapes.axes, now.views[now.leader].ndim
        whole = "sink" in now.views or (now.call.is_on_gpu and over != (ndim - 1,))
        return () if whole else axes.others(over, ndim)


class SoftmaxOp(RowOp[P, R]):
    """Softmax, with sinks that take a part of a row, and a cap."""

    makes = records(told={"share": None, "x": None}, unasked=1)
    saves = ("y", "sink", "share", "x")
    gradients = ("dx", "dsink")
    args = records(
        sink=Arg(validate.PARAMETER, "rows", repeats=True),
        share=Arg(validate.STATISTIC, "rows", of_forward=True),
        x=Arg(),
    )
    outs = records(
        share=Output(shape="rows", dtype=COMPUTED),
        dsink=Output("sink", shape="sink"),
    )

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> WithSinks:
        over, sink = super()._shapes(call, options), call.views.get("sink")
        return WithSinks(over.axes, over.shape, () if sink is None else tuple(sink.shape))

    def unsaved(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        lacks = () if named.get("softcap") else ("x",)
        return lacks if named.get("sink") is not None else (*lacks, "share")

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        where = entry.where
        options.softcap = validate.above_zero(where, "softcap", options.softcap, 0.0)
        has_sink = options.sink is not None
        if entry.is_backward:
            if has_sink != (options.share is not None):
                lacks = ("share", "sink") if has_sink else ("sink", "share")
                raise TypeError(
                    "{}: {} must be given with {}, as forward saved them".format(where, *lacks)
                )
            if (options.softcap != 0) != (options.x is not None):
                lacks = ("x", "softcap") if options.x is None else ("softcap", "x")
                raise TypeError("{}: {} must be given with {}".format(where, *lacks))
        elif len(options.out) > 1 and options.out[1] is not None and not has_sink:
            raise ValueError(f"{where}: out[1] must be None, as there is no sink")

    def _run_backward(self, now: Execution) -> None:
        dsink = now.written("dsink")
        if dsink is None:
            now.run("softmax_backward")
            return
        # Each row has its gradient in float64; these are summed and rounded once.
        shape = now.views["y"].shape
        kept = axes.reduced(shape, now.shapes.axes, keepdims=True)
        each, total = (
            now.call.temporary(now.leader, of, validate.DOUBLE) for of in (kept, dsink.shape)
        )
        if math.prod(shape):
            now.run("softmax_backward", dsinks=each, accumulate=now.adds("dx"))
            repeats = tuple(i for i, n in enumerate(dsink.shape) if n != kept[i])
            add_up(now.call, each, total, repeats)
        else:
            fill(now.call, total, 0.0)
        now.run("softmax_sink", total=total, dsink=dsink)

    def backward(
        self,
        dy: ArrayOrNumber,
        y: A,
        /,
        sink: Array | None = None,
        share: Array | None = None,
        x: A | None = None,
        axis: RowAxes = -1,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
        out: Outs[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> Any:
        """Compute the gradient with respect to x, from y, and from x where it was capped.

        ``dx = scale * y * (dy - sum(dy * y))``, with the sum over the row. An element whose y is 0
        takes no part: its dx is 0, and its dy is left out of the sum, even if it is infinite or
        NaN. With a softcap, dx is multiplied by ``1 - tanh(scale * x / softcap)**2``. The mask has
        no gradient. A sink has ``dsink = -sum(share * sum(dy * y))``, over the rows that have it;
        without a sink only dx is returned.

        Parameters
        ----------
        share : array, optional
            The probabilities of the sink, as `forward` saved them, if there is a sink.
        x : array, optional
            The array x, as `forward` saved it, if there is a softcap.
        out : array or tuple, optional
            Where to write dx, or with a sink (dx, dsink), where None skips one.

        Notes
        -----
        Sums are in double. The gradient is computed from y as it was saved: with u = 2**-24
        (float64: 2**-53) an error is at most 4 u abs(scale y) (abs(dy) + sum abs(dy y)). For a y
        that is nearly 1, dx is about dy (1 - y), and the bound may be larger than that, because y
        was rounded. Sums of n terms add (4 + n / 32) 2**-53 of their terms' magnitudes, or 6 u of
        them on a GPU, where a thread first adds up its own elements. A softcap adds (9 + 2**-52
        abs(scale x) / (softcap u)) u abs(dx). All are then rounded to the dtype. A slope of the cap
        below 2**-124 (2**-1020) may be 0. dsink is added up in double and rounded once to the dtype
        of sink. Before that, its error is 4 u of the sum of abs(share dy y), with n / 32 u more for
        float64, plus 2**-46 of that sum.
        """


class LogSoftmaxOp(RowOp[P, R]):
    """The logarithm of softmax."""

    def backward(
        self, dy: ArrayOrNumber, y: A, /, *saved: Any, **options: Unpack[Kwargs[A]]
    ) -> Any:
        """Compute the gradient with respect to x, from the result.

        ``dx = scale * (dy - exp(y) * sum(dy))``, with the sum of every dy of the row. An element
        whose y is -inf takes no part, and its dx is 0. The mask has no gradient.

        Notes
        -----
        Sums are in double. The gradient is computed from y as it was saved: with u = 2**-24
        (float64: 2**-53) an error is at most 8 u abs(scale) ((1 - exp(y)) abs(dy) + exp(y) t),
        where t is the sum of abs(dy) over the others: no digit of 1 - exp(y) is lost. Sums of n
        terms add (4 + n / 32) 2**-53 of their terms' magnitudes, or 6 u of them on a GPU, where a
        thread first adds up its own elements. All are then rounded to the dtype.
        """


class LogSumExp(RowFunction[P, R]):
    """A function of rows that gives one number per row: `logsumexp`."""

    saves = ("x", "mask", "lse", "rest")
    makes = records(front=saves)
    outs = records(
        y=Output(shape="shape"),
        **dict.fromkeys(("lse", "rest"), Output(shape="shape", dtype=COMPUTED)),
    )
    args = records(
        lse=Arg(validate.STATISTIC, "shape", of_forward=True),
        rest=Arg(validate.STATISTIC, "shape", of_forward=True, unsaved=True),
        dy=Arg(shape="shape", may_be_out=False),
    )
    kernels = Kernels({"backward": "logsumexp_backward"}, {"number": "y", "share": "rest"})

    def _run_forward(self, now: Execution) -> None:
        now.run("softmax_forward", y=None)

    def backward(
        self,
        dy: ArrayOrNumber,
        x: A,
        mask: ArrayOrNumber | None,
        lse: Array,
        rest: Array | None,
        /,
        axis: RowAxes = -1,
        *,
        scale: float = 1.0,
        keepdims: bool = False,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """Compute the gradient with respect to x.

        ``dx = scale * dy * exp(scale * x + mask - lse - rest)``, because the derivative of
        logsumexp is softmax. A rest of None is 0. In a row in which no element takes part, dx is 0.
        The mask has no gradient.

        Notes
        -----
        The gradient is taken at lse + rest as saved. Without a scale and a mask that sum is within
        4 u of the exact value for any lse, with u = 2**-24 (float64: 2**-53, and n / 32 u more for
        a row of n). An error is at most (8 + abs(scale x) + abs(mask)) u abs(dx), or 8 u abs(dx)
        without a scale and a mask, plus the rounding to the dtype.
        """


class LossPlan(NamedTuple):
    """The parsed options of a call of a loss, and the shapes that follow from them."""

    axis: int
    ignore_index: int
    label_smoothing: float
    z_loss: float
    reduction: int
    is_one: bool  # the result is one number
    losses: tuple[int, ...]  # the shape of one loss per row
    of_loss: tuple[int, ...]  # the shape of the result
    one: tuple[int, ...] = ()

    def seen_losses(self, view: View) -> View:
        """Give an array of one number per row the axes of the logits."""
        return view.with_axes((self.axis,))

    def seen_of_loss(self, view: View) -> View:
        """Give the result, or its gradient, those axes."""
        return view.with_axes(tuple(range(len(self.losses) + 1)) if self.is_one else (self.axis,))


class CrossEntropy(CachedOp[P, R]):
    """The cross entropy of logits and a target, whose probabilities are never stored."""

    family = "softmax"
    bounds = CrossEntropyBounds()
    results = ("loss",)
    saves = ("logits", "target", "weight", "lse", "rest", "divisor")
    gradients = ("dlogits",)
    args = records(
        target=Arg(shape=ANY, composed=True),
        weight=Arg(validate.WEIGHTS, ANY),
        lse=Arg(validate.STATISTIC, "losses", of_forward=True),
        rest=Arg(validate.STATISTIC, "losses", of_forward=True, unsaved=True),
        divisor=Arg(validate.TOTAL, "one", of_forward=True, unsaved=True),
        dloss=Arg(shape="of_loss", may_be_out=False),
    )
    outs = records(
        loss=Output(shape="of_loss"),
        **dict.fromkeys(("lse", "rest"), Output(shape="losses", dtype=COMPUTED)),
        divisor=Output(shape="one", dtype=DOUBLE),
    )

    def __init__(self, function: Callable[P, R]) -> None:
        self._declare(function)
        self._enter_points("dloss", front=self.saves, extra=2)

    def unsaved(self, named: Mapping[str, Any]) -> tuple[str, ...]:
        return ("divisor",) if named.get("reduction") == "none" else ()

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> LossPlan:
        where, shape = call.where, call.views["logits"].shape
        default = 1 if len(shape) > 1 else 0
        given = default if options.axis is None else options.axis
        axis = axes.one(where, given, len(shape), of="logits")
        ignore_index = axes.integer(where, "ignore_index", options.ignore_index)
        smoothing = validate.number(where, "label_smoothing", options.label_smoothing)
        if not 0 <= smoothing <= 1:
            raise ValueError(f"{where}: label_smoothing must be from 0 to 1, got {smoothing!r}")
        z_loss = validate.number(where, "z_loss", options.z_loss)
        if z_loss < 0:
            raise ValueError(f"{where}: z_loss must not be negative, got {z_loss!r}")
        allowed = {name: i for i, name in enumerate(_cpu.REDUCTIONS)}
        reduction = validate.choice(where, "reduction", options.reduction, allowed)
        is_one, losses = options.reduction != "none", axes.reduced(shape, (axis,), keepdims=False)
        of_loss = () if is_one else losses
        return LossPlan(axis, ignore_index, smoothing, z_loss, reduction, is_one, losses, of_loss)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """Return the result of calling the op, and the tuple that `backward` needs.

        Returns
        -------
        saved : tuple
            ``(logits, target, weight, lse, rest, divisor)``, where None stands for an array that
            was not given. lse and rest have the shape of the losses, that of logits without `axis`.
            Arrays are not copied: do not change them before `backward`.
        """

    def _run_forward(self, now: Execution) -> None:
        is_one, loss = now.shapes.is_one, now.view("loss")
        now.run(
            "cross_entropy_forward",
            **self._arrays(now),
            losses=None if is_one else now.written("loss"),
            loss=loss if is_one else None,
            divisor=now.view("divisor") or (now.temporary("divisor") if is_one else None),
        )

    def _arrays(self, now: Execution) -> dict[str, Any]:
        views, where, plan = now.views, now.where, now.shapes
        logits, target, weight = views["logits"], views["target"], views.get("weight")
        classes, axis = logits.shape[plan.axis], (plan.axis,)
        if classes == 0:
            raise ValueError(f"{where}: logits must have a class along axis {plan.axis}, got none")
        found: dict[str, Any] = {"axes": axis, "target": None, "weight": None}
        if target.dtype_name in validate.INDICES.also:
            is_last = target.shape == logits.shape[:-1]
            hint = "; use axis=-1 for logits with their classes last" if is_last else ""
            axes.has_shape(where, "target", target, plan.losses, hint)
            found["target"] = target.with_axes(axis)
        elif target.shape == plan.losses:
            raise TypeError(
                f"{where}: target must have an integer dtype where it has classes, or shape "
                f"{logits.shape} where it has probabilities, got {target.dtype_name} of shape "
                f"{target.shape}"
            )
        else:
            validate.same_as(where, "target", target, "logits", logits)
            found["probabilities"] = target
        if weight is not None:
            if not axes.broadcasts(weight.shape, (classes,)):
                raise ValueError(
                    f"{where}: weight must have shape ({classes},), or broadcast to it, got "
                    f"{weight.shape}"
                )
            weight = axes.repeated(weight, (classes,))
            found["weight"] = weight.with_axes(axes.others(axis, logits.ndim))
        return found

    def backward(
        self,
        dloss: ArrayOrNumber,
        logits: A,
        target: Array,
        weight: Array | None,
        lse: Array,
        rest: Array | None,
        divisor: Array | None,
        /,
        *,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        reduction: str = "mean",
        axis: int | None = None,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """Compute the gradient with respect to the logits, in one pass over them.

        ``dlogits = dloss / divisor * (p * (sum(t * weight) + 2 * z_loss * lse) - t * weight)``,
        with ``p = exp(logits - lse - rest)`` and the smoothed target t. It is 0 where the target is
        ignored. Target and weight have no gradients here.

        Raises
        ------
        ValueError
            For a class that the logits do not have.

        Notes
        -----
        The gradient is taken at lse + rest as saved, which is within 4 u of logsumexp for any
        logits, with u = 2**-24 (float64: 2**-53, and n / 32 u more for n classes). If rest is None,
        it has the accuracy of a rounded lse. With g = dloss / divisor and t the smoothed target, an
        error is at most 8 u abs(g) (p (sum(t weight) + 2 z_loss abs(lse)) + t weight), with n / 32
        u more for float64, plus the rounding to the dtype. If the target is a class of weight w,
        then with a = (1 - label_smoothing) w the bound has a (1 - p) and p (sum(t weight) - a) in
        place of t weight and p sum(t weight): no digit of 1 - p is lost.
        """

    def _run_backward(self, now: Execution) -> None:
        if ("divisor" in now.views) != now.shapes.is_one:
            raise ValueError(f"{now.where}: divisor must be an array, or None for reduction='none'")
        now.run("cross_entropy_backward", **self._arrays(now))


@float32_under_autocast("cuda")
@declared(SoftmaxOp)
def softmax(
    x: A,
    /,
    axis: RowAxes = -1,
    *,
    scale: float = 1.0,
    mask: ArrayOrNumber | None = None,
    sink: Array | None = None,
    softcap: float | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Softmax.

    ``y = exp(z) / (sum(exp(z)) + exp(sink))`` over `axis`, with ``z = scale * x + mask``. Without a
    sink y sums to 1. With a softcap, ``z = softcap * tanh(scale * x / softcap) + mask``.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes of a row.
    sink : array, optional
        A logit that only takes part in the sum, like the sinks of gpt-oss's attention. It
        broadcasts to the shape of x without `axis`; for heads along axis 1 of four axes its shape
        is (H, 1). It is neither scaled nor masked.
    softcap : float, optional
        The limit of abs(z) before the mask, above zero. Gemma 2's attention uses 50.

    See Also
    --------
    fastact.log_softmax : The logarithm of softmax.
    fastact.logsumexp : The logarithm of its divisor.

    Notes
    -----
    The op computes in float32 (float64 for float64), with sums in double; on a GPU a thread first
    adds up its own elements in float32. y is within 4 ULP of the exact value, however far apart the
    elements are, even where y is subnormal. float64 has n / 32 u more for a row of n elements, with
    u = 2**-53. With a scale or a mask, z is rounded, which adds a relative error of 4 u max
    (abs(scale x) + abs(mask)); with a softcap the factor is 12 u, and scale x is the capped one.
    16-bit data is rounded once more.

    For an element that a mask leaves out, y and the gradient are 0. A row in which no element takes
    part, because all z are -inf, gives 0 with a mask and NaN without one.

    Besides y, `forward` saves the sink and share, the sink's probability in each row, in the type
    of the computation; without a sink both are None. For 16-bit data on a GPU, a share below
    2**-126 may be 0. The second array of a tuple `out` receives share. With a scale or a mask,
    abs(sink) counts like another abs(scale x) in the bound. With a softcap, `forward` also saves x,
    which `out` must not overwrite; otherwise it saves None. For z to be accurate, softcap /
    abs(scale) must be in the range of the type of the computation.

    References
    ----------
    M. Dukhan and A. Ablavatski, "The Two-Pass Softmax Algorithm", https://arxiv.org/abs/2001.04438

    G. Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023,
    https://arxiv.org/abs/2309.17453

    Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size", 2024 (softcap),
    https://arxiv.org/abs/2408.00118

    Examples
    --------
    >>> fa.softmax(np.array([[0.0, 0.0], [1.0, -np.inf]]))
    array([[0.5, 0.5],
           [1. , 0. ]])
    >>> fa.softmax(np.zeros(4), mask=np.array([True, True, False, False]))
    array([0.5, 0.5, 0. , 0. ])
    >>> fa.softmax(np.zeros((2, 2)), sink=np.array([0.0, -np.inf]))
    array([[0.3333..., 0.3333...],
           [0.5       , 0.5       ]])
    >>> fa.softmax(np.array([0.0, 1e9]), softcap=2.0)
    array([0.1192..., 0.8807...])
    >>> y, saved = fa.softmax.forward(np.zeros(2))
    >>> fa.softmax.backward(np.array([1.0, 0.0]), *saved)
    array([ 0.25, -0.25])
    """


@float32_under_autocast("cuda")
@declared(LogSoftmaxOp)
def log_softmax(
    x: A,
    /,
    axis: RowAxes = -1,
    *,
    scale: float = 1.0,
    mask: ArrayOrNumber | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """The logarithm of softmax.

    ``y = z - logsumexp(z)`` over `axis`, with ``z = scale * x + mask``.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes of a row, over which exp(y) sums to 1.

    See Also
    --------
    fastact.softmax : Its exponential.
    fastact.cross_entropy : The loss computed from it, which does not store it.

    Notes
    -----
    ``y = (z - m) - log1p(s)``, where m is the maximum and s the sum of ``exp(z - m)`` without the
    maximum's own term, so that y keeps all its digits even for an element far above all others. y
    is within 4 ULP of the exact value. float64 has n / 32 u min(abs(y), 1) more for a row of n
    elements, with u = 2**-53. With a scale or a mask, z is rounded, which adds 4 u max (abs(scale
    x) + abs(mask)). 16-bit data is rounded once more.

    For an element that a mask leaves out, y is -inf and the gradient is 0. A row in which no
    element takes part, because all z are -inf, gives -inf with a mask and NaN without one.

    Examples
    --------
    >>> fa.log_softmax(np.array([0.0, -40.0]))
    array([-4.2483...e-18, -4.0000...e+01])
    >>> y, saved = fa.log_softmax.forward(np.zeros(2))
    >>> fa.log_softmax.backward(np.array([1.0, 0.0]), *saved)
    array([ 0.5, -0.5])
    """


@float32_under_autocast("cuda")
@declared(LogSumExp)
def logsumexp(
    x: Sliced[A],
    /,
    axis: RowAxes = -1,
    *,
    scale: float = 1.0,
    mask: ArrayOrNumber | None = None,
    keepdims: bool = False,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """The logarithm of the sum of exponentials.

    ``y = log(sum(exp(z)))`` over `axis`, with ``z = scale * x + mask``, without overflow.

    Parameters
    ----------
    axis : int or tuple of int, default -1
        The axes to reduce.

    Returns
    -------
    array
        The result y, of x's dtype and framework.

    See Also
    --------
    fastact.log_softmax : The op that subtracts this from z.

    Notes
    -----
    ``y = m + log1p(s)``, where m is the maximum and s the sum of ``exp(z - m)`` without the
    maximum's own term. y is within 4 ULP of the exact value or, near 0, where m and log1p(s)
    cancel, within 4 u, with u = 2**-24. float64 has n / 32 u more for a row of n elements, with u =
    2**-53. With a scale or a mask, z is rounded, which adds 4 u max (abs(scale x) + abs(mask)).
    16-bit data is rounded once more.

    If all elements are -inf, if none takes part, or if there are none, y is -inf. With +inf among
    them it is +inf, and with a NaN it is NaN.

    A y that leaves the range is infinite. Its gradient is still right, but NaN on a GPU.

    `forward` saves lse, which is y before it was rounded to x's dtype, and rest, which lse lost
    when it was rounded to the dtype in which x is computed. Both have that dtype.

    For nonnegative weights b, as in `scipy.special.logsumexp(x, b=b)`, use their logarithms as the
    mask: ``log(sum(b * exp(x)))`` is ``fa.logsumexp(x, mask=np.log(b))``, in the same pass.

    Examples
    --------
    >>> fa.logsumexp(np.array([[1000.0, 1000.0], [0.0, -np.inf]]))
    array([1000.6931...,    0.        ])
    >>> fa.logsumexp(np.zeros(2), mask=np.log([1.0, 3.0]))  # log(1 + 3)
    np.float64(1.3862...)
    >>> y, saved = fa.logsumexp.forward(np.zeros(2))
    >>> fa.logsumexp.backward(1.0, *saved)
    array([0.5, 0.5])
    """


@float32_under_autocast("cpu", "cuda")
@declared(CrossEntropy)
def cross_entropy(
    logits: Sliced[A],
    target: Array,
    /,
    *,
    weight: Array | None = None,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    reduction: str = "mean",
    axis: int | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Cross entropy of logits and a target, in one read of the logits.

    ``loss = sum(t * weight * (logsumexp(logits) - logits))`` over `axis`, with the smoothed target
    ``t = (1 - label_smoothing) * target + label_smoothing / C`` for C classes. A `z_loss` adds
    ``z_loss * logsumexp(logits)**2`` to each row that counts.

    Parameters
    ----------
    target : array
        The class of each row, of int32 or int64 and the shape of logits without `axis`; or a
        probability for each class, of logits' shape and dtype. Probabilities have a gradient under
        torch's autograd and in JAX.
    weight : array, optional
        The weight of each class, of any dtype; it is rounded to the dtype of the computation.
    ignore_index : int, default -100
        A class of the target that is ignored.
    label_smoothing : float, default 0.0
        How much of the target is spread over all classes, from 0 to 1.
    z_loss : float, default 0.0
        The factor of each row's squared logsumexp, which keeps logits near 0, like Liger's
        `lse_square_scale`; it must not be negative. It is not multiplied by `weight`, and an
        ignored row has none. The mean divides it like the rest, whereas Liger divides it by the
        number of rows, which differs if there are weights.
    reduction : str, default "mean"
        "mean", "sum", or "none" for the loss of each row. The mean divides by the sum of the
        weights of the targets that count; for probabilities, by the number of rows.
    axis : int, optional
        The axis of the classes, by default 1, or 0 if logits have one axis; -1 for language models.

    Returns
    -------
    array
        The loss, of logits' dtype and framework.

    Raises
    ------
    TypeError
        If target has neither classes of an integer dtype nor probabilities of logits' dtype and
        shape, if weight is no array of numbers, or if axis or ignore_index is no integer.
    ValueError
        If target holds a class that logits do not have, other than ignore_index. Nothing is written
        then, but a GPU, which does not wait for the answer, writes NaN for that row. Also if a
        shape does not fit, logits have no class, axis is out of range, label_smoothing is not from
        0 to 1, z_loss is negative or not finite, or reduction is not one of the three.

    See Also
    --------
    fastact.log_softmax : The logarithms of which the loss is the negative mean at the target.

    Notes
    -----
    ``lse - z = (m - z) + log1p(s)``, as for `logsumexp`, is a sum of nonnegative terms, so nothing
    cancels. A class whose t weight is 0 adds 0, even at a logit of -inf. A loss is within 8 u of
    the sum of t weight (m - z + log1p(s)), with u = 2**-24 (float64: 2**-53, and n / 32 more for n
    classes); a z_loss adds z_loss abs(lse) (abs(m) + log1p(s)) to that sum. Losses are added up in
    double, in the same order for any number of threads, and no loss depends on the other rows. No
    probability is stored: `backward` computes them again from logits, lse and rest, which lse lost
    when it was rounded, so that an offset of all logits costs no digits. Its `out` may be the
    logits. `forward` saves lse and rest in the dtype in which logits are computed, and the divisor
    of the sum of the losses, which is None without a reduction.

    References
    ----------
    C. Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", 2015 (label
    smoothing), https://arxiv.org/abs/1512.00567

    A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", 2022 (z loss),
    https://arxiv.org/abs/2204.02311

    Examples
    --------
    >>> logits, target = np.array([[2.0, 0.0], [0.0, 0.0]]), np.array([0, 1])
    >>> fa.cross_entropy(logits, target, reduction="none")
    array([0.1269..., 0.6931...])
    >>> loss, saved = fa.cross_entropy.forward(logits, target)
    >>> fa.cross_entropy.backward(1.0, *saved)
    array([[-0.0596...,  0.0596...],
           [ 0.25      , -0.25      ]])
    """
