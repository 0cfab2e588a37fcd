"""Mean and variance over any axes, and moments that merge.

The statistics are computed in double by blocks of fixed size, whose means and squared deviations
merge by Chan's formula; order, error bound and derivation are in `src/cpu/moment_blocks.h`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _axes, _checks, _cpu
from ._arrays import namespace, repeated
from ._call import Call
from ._cpu import View
from ._docs import ARRAY, STREAM, paragraph
from ._op import QuickOp, Takes, register

_DOUBLE = _cpu.DTYPE_NAMES.index("float64")
_OVER = {"axis": None}


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """The number of values, their mean, and m2, the sum of the squared distances from it.

    Moments of parts merge into those of the whole without loss: a data set can be read in chunks,
    or lie on many machines.

    Attributes
    ----------
    count : int
        Values that each mean is of.
    mean, m2 : array
        Of float64 and of one shape.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.arange(12.0).reshape(4, 3)
    >>> a, b = fa.moments(x[:1], 0), fa.moments(x[1:], 0)
    >>> a.merge(b)
    Moments(count=4, mean=array([4.5, 5.5, 6.5]), m2=array([45., 45., 45.]))
    >>> a.merge(b).std(correction=1)
    array([3.8729..., 3.8729..., 3.8729...])
    """

    count: int
    mean: Any
    m2: Any

    def var(self, correction: float = 0) -> Any:
        """The variance m2 / (count - correction); where that is not positive, as NumPy has it."""
        left = max(self.count - _checks.number("fastact.Moments.var", "correction", correction), 0)
        if left > 0:
            return self.m2 / left
        with np.errstate(all="ignore"):
            return self.m2 * math.inf

    def std(self, correction: float = 0) -> Any:
        """The standard deviation, the square root of `var`."""
        return self.var(correction) ** 0.5

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of values together, by Chan's formula."""
        where = "fastact.Moments.merge"
        if not isinstance(other, Moments):
            raise TypeError(f"{where}: other must be Moments, got {type(other).__name__}")
        if tuple(other.mean.shape) != tuple(self.mean.shape):
            raise ValueError(
                f"{where}: other must have shape {tuple(self.mean.shape)}, got "
                f"{tuple(other.mean.shape)}"
            )
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        share = other.count / count
        xp = namespace(self.mean)
        with np.errstate(all="ignore"):
            delta = other.mean - self.mean
            # An infinite mean, or means too far apart for their difference, take the other road.
            mean = xp.where(
                xp.isfinite(delta),
                self.mean + delta * share,
                self.mean * (1 - share) + other.mean * share,
            )[()]
            m2 = self.m2 + (other.m2 + delta * delta * (self.count * share))
        return Moments(count, mean, m2)

    @staticmethod
    def merge_many(parts: Iterable[Moments]) -> Moments:
        """The moments of all values, merged in one tree: neighbours first, then pairs of pairs.

        The bits depend on the order of the parts alone, whoever computed them, and when.
        """
        left = list(parts)
        if not left:
            raise ValueError("fastact.Moments.merge_many: parts must not be empty")
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=False)
            left = [a.merge(b) for a, b in pairs] + left[len(left) & ~1 :]
        return left[0]

    def to_buffer(self) -> Any:
        """One flat float64 array: the count, the means, then m2; what an all-gather takes."""
        xp = namespace(self.mean)
        flat = [xp.reshape(part, (-1,)) for part in (self.mean, self.m2)]
        count = xp.full_like(flat[0][:1], self.count) if len(flat[0]) else xp.ones(1) * self.count
        return xp.concatenate([count, *flat])

    @staticmethod
    def from_buffer(buffer: Any, shape: tuple[int, ...]) -> Moments:
        """What `to_buffer` made a buffer of; shape: of the mean."""
        where = "fastact.Moments.from_buffer"
        shape = _axes.lengths(where, "shape", shape)
        size = math.prod(shape)
        if tuple(buffer.shape) != (1 + 2 * size,):
            raise ValueError(
                f"{where}: buffer must have shape {(1 + 2 * size,)} for moments of shape {shape}, "
                f"got {tuple(buffer.shape)}"
            )
        mean, m2 = (buffer[1 + i * size :][:size].reshape(shape)[()] for i in range(2))
        return Moments(int(buffer[0]), mean, m2)

    def __eq__(self, other: object) -> bool:
        """The same count and the same numbers; NaN is NaN."""
        if not isinstance(other, Moments):
            return NotImplemented
        if self.count != other.count or tuple(self.mean.shape) != tuple(other.mean.shape):
            return False
        pairs = ((self.mean, other.mean), (self.m2, other.m2))
        return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


class _OverAxes(QuickOp):
    """The mean over some axes and, by `_second`, what m2 is divided by to be the other result."""

    on_devices = False
    dtype: int | None  # of the results; None: as x

    def __init__(self, name: str, takes: Takes, doc: str) -> None:
        super().__init__(name, "reductions", ("x",), takes, {"call": doc})
        self._takes = takes
        self._takes_back = Takes(takes.either, takes.only, accumulates=True)

    def _divisor(self, count: int, options: Any) -> float:
        raise NotImplementedError

    def _reduce(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, Any, Any, Any]:
        """The count, the mean, the other result, and x as it was computed on."""
        options = self._takes.bind(where, args, kwargs)
        with Call(where, options.stream, x=x) as call:
            _checks.on_cpu(where, call.place.device)
            view = call.views["x"]
            axes = _axes.axes(where, options.axis, view.ndim)
            count = math.prod(view.shape[axis] for axis in axes)
            divisor = self._divisor(count, options)
            shape = _axes.reduced(view.shape, axes, options.keepdims)
            (mean, made), (second, made_second) = (
                call.output(f"out[{i}]", out, "x", shape=shape, dtype=self.dtype, in_place=False)
                for i, out in enumerate(options.out)
            )
            _checks.apart(where, "out[1]", second, {"out[0]": mean})
            dropped = () if options.keepdims else axes
            _compute(call, view, mean.with_axes(dropped), second.with_axes(dropped), axes, divisor)
            results = call.result(options.out[0], made), call.result(options.out[1], made_second)
            return count, *results, call.arrays["x"]

    def _back(self, dy: Any, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = self._where("backward")
        options = self._takes_back.bind(where, args, kwargs)
        if not isinstance(dy, tuple | list) or len(dy) != 2:
            raise TypeError(f"{where}: dy must be a tuple of two gradients, got {dy!r}")
        gradients = {f"dy[{i}]": 0.0 if part is None else part for i, part in enumerate(dy)}
        with Call(where, options.stream, x=x, **gradients) as call:
            _checks.on_cpu(where, call.place.device)
            view = call.views["x"]
            axes = _axes.axes(where, options.axis, view.ndim)
            count = math.prod(view.shape[axis] for axis in axes)
            divisor = self._divisor(count, options)
            shape = _axes.reduced(view.shape, axes, options.keepdims)
            dropped = () if options.keepdims else axes
            broadcast = []
            for name in gradients:
                part = call.views[name]
                if name in call.arrays:
                    _checks.same_dtype(where, name, part, "x", view)
                    _axes.has_shape(where, name, part, shape)
                    part = part.with_axes(dropped).broadcast_to(view.shape)
                broadcast.append(part)
            dx, made = call.output("out", options.out[0], "x")
            dx_apart = {name: call.views[name] for name in gradients if name in call.arrays}
            _checks.apart(where, "out", dx, dx_apart)
            if view.size:
                kept = _axes.reduced(view.shape, axes, keepdims=True)
                mean, low = (_like(call, view, kept) for _ in range(2))
                workspace = call.workspace(call.native.moments_workspace(view, mean, axes))
                call.run("moments", view, mean, low, None, axes, 1.0, workspace)
                call.run(
                    "moments_backward",
                    *broadcast,
                    view,
                    mean.broadcast_to(view.shape),
                    low.broadcast_to(view.shape),
                    dx,
                    1 / count,
                    2 / divisor if divisor else math.inf,
                    options.accumulate,
                )
            return call.result(options.out[0], made)


def _like(call: Call, x: View, shape: tuple[int, ...]) -> View:
    """An array for the time of the call, of x's dtype."""
    model = x.shaped(shape)
    view, made = call.framework.output(model, call.arrays["x"], call.place)
    call.scratch.append((view, made))
    return view


def _compute(
    call: Call, x: View, mean: View, second: View, axes: tuple[int, ...], divisor: float
) -> None:
    """Of no elements the results are NaN, but m2 is 0."""
    if not x.size:
        for result, value in ((mean, math.nan), (second, 0.0 if divisor == 1 else math.nan)):
            call.run("broadcast", repeated(value, result), result, False)
        return
    workspace = call.workspace(call.native.moments_workspace(x, mean, axes))
    steps = [
        [s for s, n in zip(view.strides, view.shape, strict=True) if n > 1]
        for view in (mean, second)
    ]
    if steps[0] == steps[1]:
        call.run("moments", x, mean, None, second, axes, divisor, workspace)
    else:  # the kernels walk both results by one set of strides
        call.run("moments", x, mean, None, None, axes, divisor, workspace)
        call.run("moments", x, None, None, second, axes, divisor, workspace)


class MeanVar(_OverAxes):
    """Mean and variance, in x's dtype."""

    dtype = None

    def _divisor(self, count: int, options: Any) -> float:
        correction = _checks.number(f"fastact.{self.name}", "correction", options.correction)
        return max(count - correction, 0.0)

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return self._reduce(self._where(), x, args, kwargs)[1:3]

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[tuple[Any, Any], tuple[Any]]:
        """forward(x, axis=None, *, correction=0, keepdims=False, out=None) -> ((mean, var), saved)

        Mean and variance, as calling the op gives them, and the tuple that `backward` needs.

        Returns
        -------
        (mean, var) : tuple of two arrays
        saved : tuple
            ``(x,)``. It is not copied: do not change it before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> (mean, var), saved = fa.mean_var.forward(np.array([1.0, 3.0]))
        >>> fa.mean_var.backward((0.0, 1.0), *saved)
        array([-1.,  1.])
        """
        _, mean, var, x = self._reduce(self._where("forward"), x, args, kwargs)
        return (mean, var), (x,)

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward((dmean, dvar), x, axis=None, *, correction=0, keepdims=False, out=None,
        accumulate=False) -> dx

        dx = dmean / n + 2 dvar (x - mean) / (n - correction), of n elements a mean.

        Parameters
        ----------
        (dmean, dvar) : tuple of two arrays, Python scalars or None
            The gradients of the loss with respect to mean and variance, of their shape and of x's
            dtype; None for 0.
        x : array
            What `forward` saved. Its mean is computed anew, and used unrounded.
        axis, correction, keepdims
            As told to `forward`.
        out : array, optional
            Where to write dx; it may be x itself, but not share memory with a gradient.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given, else a new array of x's dtype and framework.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
        >>> fa.mean_var.backward((None, np.ones(2)), x, axis=1, correction=1)
        array([[-2.,  2.],
               [ 0.,  0.]])
        """
        return self._back(dy, x, args, kwargs)


class MomentsOp(_OverAxes):
    """`Moments`, in float64."""

    dtype = _DOUBLE

    def _divisor(self, count: int, options: Any) -> float:
        return 1.0

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> Moments:
        return Moments(*self._reduce(self._where(), x, args, kwargs)[:3])

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Moments, tuple[Any]]:
        """forward(x, axis=None, *, keepdims=False, out=None) -> (moments, saved)

        The moments, as calling the op gives them, and the tuple that `backward` needs.

        Returns
        -------
        moments : Moments
        saved : tuple
            ``(x,)``. It is not copied: do not change it before `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> m, saved = fa.moments.forward(np.array([1.0, 3.0]))
        >>> fa.moments.backward((0.0, 1.0), *saved)
        array([-2.,  2.])
        """
        count, mean, m2, x = self._reduce(self._where("forward"), x, args, kwargs)
        return Moments(count, mean, m2), (x,)

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward((dmean, dm2), x, axis=None, *, keepdims=False, out=None, accumulate=False) -> dx

        dx = dmean / n + 2 dm2 (x - mean), of n elements a mean.

        Parameters
        ----------
        (dmean, dm2) : tuple of two arrays, Python scalars or None
            The gradients of the loss with respect to mean and m2, of their shape and of x's dtype;
            None for 0.
        x : array
            What `forward` saved. Its mean is computed anew, and used unrounded.
        axis, keepdims
            As told to `forward`.
        out : array, optional
            Where to write dx; it may be x itself, but not share memory with a gradient.
        accumulate : bool
            Add dx to `out` instead of overwriting it.

        Returns
        -------
        dx : array
            `out` where it was given, else a new array of x's dtype and framework.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.moments.backward((1.0, None), np.array([[1.0, 3.0], [4.0, 4.0]]))
        array([[0.25, 0.25],
               [0.25, 0.25]])
        """
        return self._back(dy, x, args, kwargs)


_AXIS = """\
axis : int or tuple of int, optional
    The axes to reduce, negative ones counted from the last; all of them without any. An empty tuple
    reduces none.
"""

_REST = f"""\
{STREAM}

Returns
-------
{{returns}}

Raises
------
TypeError
    For a dtype that is not supported, mixed frameworks, a tensor that requires grad, or an axis
    that is no integer.
ValueError
    For an axis out of range or named twice; an `out` of another shape or device, read-only, or that
    shares memory with x.
NotImplementedError
    For arrays that are not on the CPU.

Notes
-----
{{notes}}

Infinities and NaN give what NumPy gives, and so do no elements. The bits depend on the values and
on the lengths of the axes that are reduced alone: not on the number of threads, AVX2 or AVX-512,
or the other axes. (Which of several axes comes first depends on their strides.)

References
----------
T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing
Sample Variances", Stanford University, STAN-CS-79-773 (1979)

Examples
--------
>>> import numpy as np, fastact as fa
"""

mean_var = register(
    MeanVar(
        "mean_var",
        Takes(_OVER, {"correction": 0, "keepdims": False}, outputs=2),
        f"""\
mean_var(x, axis=None, *, correction=0, keepdims=False, out=None)

The mean of x and its variance over the axes `axis`, in one read of x.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
{_AXIS}correction : float
    The variance is m2 / (n - correction) of n elements: 1 for the unbiased one.
keepdims : bool
    Leave the axes that were reduced in the results, with length 1.
out : tuple of two arrays or None, optional
    Where to write mean and variance: their shape, and dtype, device and framework of x.
"""
        + _REST.format(
            returns="""\
mean, var : array
    Those of `out` where they were given, else new arrays of x's framework and dtype.""",
            notes="""\
Computed in double and rounded once. The mean errs by at most 0.5 ULP and 2**-46 of the mean of
abs(x); the variance by 0.5 ULP and a share of 2**-33 of itself (float64: 2**-44, and 2**-51 of
abs(mean) / std), also for data far from 0 and near the ends of the dtype's range. Of equal
values it is 0, and it is never negative.""",
        )
        + """\
>>> x = np.array([[1.0, 3.0], [4.0, 4.0]])
>>> fa.mean_var(x, axis=1, correction=1)
(array([2., 4.]), array([2., 0.]))
>>> fa.mean_var(np.float32([1e4, 1e4 + 1]))
(np.float32(10000.5), np.float32(0.25))
""",
    )
)

moments = register(
    MomentsOp(
        "moments",
        Takes(_OVER, {"keepdims": False}, outputs=2),
        f"""\
moments(x, axis=None, *, keepdims=False, out=None)

The moments of x over the axes `axis`, in one read of x: a `Moments`, which merges with others.

Parameters
----------
x : array
{paragraph(ARRAY, 4)}
{_AXIS}keepdims : bool
    Leave the axes that were reduced in the results, with length 1.
out : tuple of two arrays or None, optional
    Where to write mean and m2: float64, of their shape, and device and framework of x.
"""
        + _REST.format(
            returns="""\
moments : Moments
    count, mean and m2; of no elements, 0, NaN and 0.""",
            notes="""\
Computed and returned in double. The mean errs by at most 2**-53 of itself and 2**-46 of the mean of
abs(x), m2 by 2**-33 of itself (float64: 2**-44), and by 2**-51 of abs(mean) / std. Merging adds
roundings of double, whatever the split; the same split gives the same bits.""",
        )
        + """\
>>> fa.moments(np.float32([[1, 3], [4, 4]]), axis=1)
Moments(count=2, mean=array([2., 4.]), m2=array([2., 0.]))
""",
    )
)
