"""Mean and variance over any axes, and moments that merge.

The statistics are computed in double by blocks of fixed size, whose means and squared deviations
merge by Chan's formula; order, error bound and derivation are in
`src/cpu/reductions/moment_kernels.h`.
"""

import math
from typing import Any

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes as _axes
from .bounds_docs import moments_backward, noted
from .moments import Moments
from .moments_docs import MEAN_VAR, MOMENT_BOUNDS, MOMENTS
from .op_before import QuickOp, Takes, register

_DOUBLE = _cpu.DTYPE_NAMES.index("float64")
_OVER = {"axis": None}


class _OverAxes(QuickOp):
    """The mean over some axes, and m2 over a divisor that ops of this kind tell by `_divisor`."""

    bounds = MOMENT_BOUNDS
    _factor: str  # of x - mean in dx, as the docstring of `backward` has it
    dtype: int | None  # of the results; None: as x

    def __init__(self, name: str, takes: Takes, doc: str) -> None:
        notes = moments_backward(self.bounds, self._factor)
        docs = {"call": doc, "backward": noted(type(self).backward, notes)}
        super().__init__(name, "reductions", ("x",), takes, docs)
        self._takes = takes
        self._takes_back = Takes(takes.either, takes.only, accumulates=True)

    def _divisor(self, count: int, options: Any) -> float:
        raise NotImplementedError

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _reduce(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[int, Any, Any, Any]:
        """The count, the mean, the other result, and x as it was computed on."""
        options = self._takes.bind(where, args, kwargs)
        with Call(where, options.stream, x=x) as call:
            view = call.views["x"]
            axes = _axes.axes(where, options.axis, view.ndim)
            count = math.prod(view.shape[axis] for axis in axes)
            divisor = self._divisor(count, options)
            shape = _axes.reduced(view.shape, axes, options.keepdims)
            (mean, made), (second, made_second) = (
                call.output(f"out[{i}]", out, "x", shape=shape, dtype=self.dtype, in_place=False)
                for i, out in enumerate(options.out)
            )
            validate.apart(where, "out[1]", second, {"out[0]": mean})
            dropped = () if options.keepdims else axes
            _compute(call, view, mean.with_axes(dropped), second.with_axes(dropped), axes, divisor)
            results = call.result(options.out[0], made), call.result(options.out[1], made_second)
            return count, *results, call.arrays["x"]

    def _back(self, dy: Any, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        where = self._where("backward")
        options = self._takes_back.bind(where, args, kwargs)
        if not isinstance(dy, tuple | list) or len(dy) != 2:
            raise TypeError(
                f"{where}: dy must be a tuple of two gradients, got {validate.describe(dy)}"
            )
        gradients = {f"dy[{i}]": 0.0 if part is None else part for i, part in enumerate(dy)}
        with Call(where, options.stream, x=x, **gradients) as call:
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
                    validate.same_dtype(where, name, part, "x", view)
                    _axes.has_shape(where, name, part, shape)
                    part = part.with_axes(dropped).broadcast_to(view.shape)
                broadcast.append(part)
            dx, made = call.output("out", options.out[0], "x")
            dx_apart = {name: call.views[name] for name in gradients if name in call.arrays}
            validate.apart(where, "out", dx, dx_apart)
            if view.size:
                kept = _axes.reduced(view.shape, axes, keepdims=True)
                # Of 16-bit data a low part of their own dtype would leave the mean 17 bits or 22.
                is_narrow = view.itemsize < 4
                mean = call.temporary("x", kept, _DOUBLE if is_narrow else None)
                low = None if is_narrow else call.temporary("x", kept)
                workspace = call.workspace(call.native.moments_workspace(view, mean, axes))
                call.run("moments", view, mean, low, None, axes, 1.0, workspace)
                call.run(
                    "moments_backward",
                    *broadcast,
                    view,
                    mean.broadcast_to(view.shape),
                    None if low is None else low.broadcast_to(view.shape),
                    dx,
                    1 / count,
                    2 / divisor if divisor else math.inf,
                    options.accumulate,
                )
            return call.result(options.out[0], made)


def _compute(
    call: Call, x: View, mean: View, second: View, axes: tuple[int, ...], divisor: float
) -> None:
    """Of no elements the mean is NaN, and the sum of squares 0, whatever it is divided by."""
    if not x.size:
        for result, value in ((mean, math.nan), (second, 0 / divisor if divisor else math.nan)):
            call.run("broadcast", call.repeated(value, result), result, False)
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
    _factor = "2 abs(dvar) / (n - correction)"

    def _divisor(self, count: int, options: Any) -> float:
        correction = validate.number(f"fastact.{self.name}", "correction", options.correction)
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
            What `forward` saved. Its mean is computed anew, and used unrounded: for that, memory of
            two arrays of the mean's shape is taken (for 16-bit data, of one of float64).
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
    _factor = "2 abs(dm2)"

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
            What `forward` saved. Its mean is computed anew, and used unrounded: for that, memory of
            two arrays of the mean's shape is taken (for 16-bit data, of one of float64).
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


_cpu.register_result_type(Moments, ("count", "mean", "m2"))

mean_var = register(
    MeanVar(
        "mean_var",
        Takes(_OVER, {"correction": 0, "keepdims": False}, outputs=2),
        MEAN_VAR,
    )
)
moments = register(MomentsOp("moments", Takes(_OVER, {"keepdims": False}, outputs=2), MOMENTS))
