"""The op object of a norm with a rotary embedding behind it.

It has no kernels: the norm's run, and then rotary's in place, of so much at a time as stays in the
caches. Backward rotary's run first, and then the norm's, each over the whole: in parts that took as
long, for the norm's prefetch what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ..bounds import NormRotaryBounds
from ..types import A, Array, ArrayOrNumber, Casting, Outs, Stream
from . import axes
from .entry import COMPUTED, Arg, Entry, Output, untyped
from .execute import Execution
from .fused import IDENTITY
from .norm_rows import PLAIN, Rows, read_casting
from .op import Kernels, P, R
from .parts import Part, Parts, cut, part_of
from .rotary import Pairs, Turning

#: Elements of a part, at most: of a thread of the CPU, and on a GPU. So few that each of the CPU's
#: threads has some, unless there are fewer than are worth a thread.
_PART, _PART_OF_GPU, _FEWEST = 1 << 15, 1 << 23, 1 << 13


class NormedPairs(NamedTuple):
    """The normalization rows of a call, which lie along the axis of the pairs, and these.

    statistics, parameter : the shapes of rstd and of the weight. The others are as `Rows` and
    `Pairs` have them.
    """

    of: Pairs
    pairs: tuple[int, ...]
    rows: tuple[int, ...]
    axes: tuple[int, ...]
    of_parameter: tuple[int, ...]
    statistics: tuple[int, ...]
    parameter: tuple[int, ...]

    @property
    def normed(self) -> Rows:
        """The rows alone, as of a norm without a rotary embedding."""
        (axis,), shape = self.axes, list(self.statistics)
        shape[axis] = self.parameter[0]
        return Rows(tuple(shape), self.axes, self.of_parameter, self.statistics, self.parameter)

    def seen_parameter(self, view: View) -> View:
        """The weight or its gradient with the axes of x."""
        return view.with_axes(axes.others(self.axes, len(self.statistics)))


class NormRotary(Turning[P, R]):
    """A root-mean-square norm of rows along an axis, whose pairs are then turned, and backward."""

    bounds = NormRotaryBounds(scaled=6, rough=4)
    saves = ("x", "rstd", "cos", "sin", "weight", "positions")
    gradients = ("dx", "dweight")
    args = MappingProxyType(
        {
            **Turning.args,
            "x": Arg(validate.ARRAY),
            "rstd": Arg(validate.STATISTIC, "statistics"),
            "weight": Arg(shape="parameter"),
        }
    )
    outs = MappingProxyType({"rstd": Output(shape="statistics", dtype=COMPUTED)})
    kernels = Kernels(
        numbers={
            **PLAIN,
            "norm": _cpu.ROW_NORMS.index("RmsNorm"),
            "which": _cpu.ACTIVATIONS.index(IDENTITY),
            "parameters": (),
        },
        names={"reduced": "axes"},
    )

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "rotary")
        self._enter_points(call, untyped(self.backward), besides=("rstd",))

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        read_casting(entry.where, options)

    def _shapes(self, call: Any, options: SimpleNamespace, entry: str = "call") -> NormedPairs:
        of, shape = self._pairs(call, options), tuple(call.views["x"].shape)
        along = (of.axis,)
        statistics = axes.reduced(shape, along, keepdims=True)
        parameter = (shape[of.axis],)
        return NormedPairs(of, of.pairs, of.rows, along, along, statistics, parameter)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The op's value, as calling the op gives it, and the tuple that `backward` needs.

        Parameters
        ----------
        out : array or tuple, optional
            As for the call, or a tuple of an array for y and one for rstd.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, cos, sin = np.array([3.0, 4.0]), np.array([0.6]), np.array([0.8])
        >>> y, saved = fa.rms_norm_rotary.forward(x, cos, sin, np.ones(2), eps=0)
        >>> y
        array([-0.3959...,  1.3576...])
        """

    def _run_forward(self, now: Execution) -> None:
        x, y, rstd = now.views["x"], now.view("y"), now.view("rstd")
        of, angles = self._checked(now, y)

        def work(part: Part, _: int) -> None:
            into, saved = part_of(y, part), None if rstd is None else part_of(rstd, part)
            now.run("norm_forward", x=part_of(x, part), y=into, rstd=saved)
            if of.length:
                self._turn(now, of, _angles_of(angles, part), into, into, turns_back=False)

        threads, most = 1, _PART_OF_GPU
        if not now.call.is_on_gpu:
            threads = _cpu.get_thread_limit()
            most = min(_PART, max(x.size // threads, _FEWEST))
        order = [axis for axis in x.order if axis != of.axis]
        for some in cut(x.shape, order, most)[1] if x.size else [Parts({})]:
            now.call.repeat(partial(some.of, work), some.number, threads)

    def backward(
        self,
        dy: ArrayOrNumber,
        x: A,
        /,
        rstd: Array,
        cos: Array,
        sin: Array,
        weight: Array | None = None,
        positions: Array | None = None,
        *,
        axis: int = -1,
        eps: float = 1e-6,
        weight_offset: float | None = None,
        casting: Casting = "exact",
        interleaved: bool = False,
        out: Outs[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> tuple[A | None, Array | None]:
        """The gradients with respect to x and weight.

        p is dy, turned back by the same angles (`fastact.rotary.backward`). From it come ``dx =
        rstd * (g - xhat * mean(g * xhat))`` with ``xhat = x * rstd`` and ``g = p * weight``, and
        ``dweight = sum(p * xhat)``, as of `fastact.rms_norm`.

        Notes
        -----
        They have the bits of the two ops' backwards: p has an error of at most 3 u (abs(dya cos) +
        abs(dyb sin)), and is rounded to the dtype. By that p, dx has one of at most u rstd (6
        abs(g) + 18 abs(xhat) mean abs(g xhat)), and dweight one of 18 u sum abs(p xhat), for
        float64 as `fastact.rms_norm.backward` has it; by the same formulas the errors of p count.
        p is made in dx, or, where that is added to, is x, or is not wanted, in memory of its own.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, cos, sin = np.array([3.0, 4.0]), np.array([0.6]), np.array([0.8])
        >>> y, saved = fa.rms_norm_rotary.forward(x, cos, sin, np.ones(2), eps=0)
        >>> fa.rms_norm_rotary.backward(np.array([1.0, 0.0]), *saved)
        (array([ 0.2172..., -0.1629...]), array([ 0.5091..., -0.9050...]))
        """

    def _run_backward(self, now: Execution) -> None:
        dy, x, dx = now.views["dy"], now.views["x"], now.view("dx")
        is_kept = dx is None or now.adds("") or dx.address == x.address
        p = now.call.temporary("x") if is_kept else dx
        of, angles = self._checked(now, p)
        self._turn(now, of, angles, dy, p, turns_back=True)
        now.run("norm_backward", dy=p)

    def _checked(self, now: Execution, into: View) -> tuple[Pairs, Mapping[str, View | None]]:
        """The pairs and their angles; positions are compared before anything is written `into`."""
        of, angles = now.shapes.of, self._angles(now, now.shapes.of, "x")
        if angles["positions"] is not None and not now.call.is_on_gpu:
            tables = {n: of.angles[i].sliced(1, 0, 1, 0) for i, n in enumerate(("cos", "sin"))}
            none, nothing = of._replace(length=0), into.sliced(of.axis, 0, 1, 0)
            self._turn(now, none, {**angles, **tables}, nothing, nothing, turns_back=False)
        return of, angles


def _angles_of(angles: Mapping[str, View | None], part: Part) -> dict[str, View | None]:
    """Cut angles to those of a part; tables of cosines and sines serve all."""
    of_rows = angles.keys() if angles["positions"] is None else ("positions",)
    return {
        name: part_of(view, part) if view is not None and name in of_rows else view
        for name, view in angles.items()
    }
