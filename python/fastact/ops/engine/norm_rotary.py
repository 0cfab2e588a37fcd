"""The op object of a norm with a rotary embedding behind it.

It has no kernels. The norm's run, and then rotary's, of so much at a time as stays in the caches:
memory sees x and y alone, or dy, x and dx.
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
from ..types import A, Array, Casting, Outs, Stream
from . import axes
from .fused import IDENTITY
from .moments import IDENTITY as ELEMENT
from .moments import fill
from .norm_rows import read_casting
from .op import COMPUTED, Makes, P, R, signature_of
from .parts import Part, Parts, begin_of, cut, part_of
from .reductions import add_up
from .rotary import Pairs, Turning
from .step import Step

#: Elements of a part, at most: of a thread of the CPU, and on a GPU; forward at least.
_PART, _PART_OF_GPU, _FEWEST = 1 << 15, 1 << 23, 1 << 13


class NormedPairs(NamedTuple):
    """The normalization rows of a call, which lie along the axis of the pairs, and these.

    statistics, parameter : the shapes of rstd and of the weight. The others are as `Rows` and
    `Pairs` have them.
    """

    of: Pairs
    pairs: tuple[int, ...]
    rows: tuple[int, ...]
    reduced: tuple[int, ...]
    of_parameter: tuple[int, ...]
    statistics: tuple[int, ...]
    parameter: tuple[int, ...]

    def seen_parameter(self, view: View) -> View:
        """The weight or its gradient with the axes of x."""
        return view.with_axes(axes.others(self.reduced, len(self.statistics)))


class NormRotary(Turning[P, R]):
    """A root-mean-square norm of rows along an axis, whose pairs are then turned, and backward."""

    bounds = NormRotaryBounds(scaled=6, rough=4, summed=19)
    saves = ("x", "rstd", "cos", "sin", "weight", "positions")
    besides = ("rstd",)
    gradients = ("dx", "dweight")
    roles = MappingProxyType(
        {
            **Turning.roles,
            **dict.fromkeys(("x", "dy"), validate.ARRAY),
            "rstd": validate.STATISTIC,
        }
    )
    makes = MappingProxyType({"rstd": Makes(shape="statistics", dtype=COMPUTED)})
    shapes = MappingProxyType({**Turning.shapes, "rstd": "statistics", "weight": "parameter"})

    # What the norm's kernels are told besides.
    norm = _cpu.ROW_NORMS.index("RmsNorm")
    which, parameters = _cpu.ACTIVATIONS.index(IDENTITY), ()
    gate_first, p, seed, offset = False, 0.0, 0, 0

    def __init__(self, function: Callable[P, R]) -> None:
        call = self._declare(function, "rotary")
        backward = signature_of(call, ("dy", "x"), self.saves[1:])
        self._enter_points(call, backward, extra=len(self.besides))

    def _check_options(self, where: str, options: SimpleNamespace) -> None:
        read_casting(where, options)

    def _shapes(self, call: Any, options: SimpleNamespace) -> NormedPairs:
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
        >>> x, weight, cos, sin = np.array([3.0, 4.0]), np.ones(2), np.array([0.8]), np.array([0.6])
        >>> y, saved = fa.rms_norm_rotary.forward(x, cos, sin, weight, eps=0)
        >>> y
        array([0.    , 1.4142...])
        """

    def _run_forward(self, now: Step) -> None:
        x, y, rstd = now.views["x"], now.view("y"), now.view("rstd")
        of, angles = self._checked(now)
        threads = _threads(now)

        def work(_: int, part: Part, thread: int) -> None:
            into, saved = part_of(y, part), None if rstd is None else part_of(rstd, part)
            now.run("norm_forward", x=part_of(x, part), y=into, rstd=saved)
            self._turn(now, of, _angles_of(angles, part), into, into, turns_back=False)

        _, parts = _parts(now, min(_PART, max(x.size // threads, _FEWEST)))
        _for_each(now, parts, threads, work)

    def backward(
        self,
        dy: A,
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

        Parameters
        ----------
        dy : array
            The gradient of the loss with respect to y, of its shape and dtype.

        Notes
        -----
        p has the error of `fastact.rotary.backward`, and a rounding to the dtype. By the same
        formulas dx and dweight follow, which else are as accurate as rms_norm's; the sum of dweight
        has one rounding more.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x, weight, cos, sin = np.array([3.0, 4.0]), np.ones(2), np.array([0.8]), np.array([0.6])
        >>> y, saved = fa.rms_norm_rotary.forward(x, cos, sin, weight, eps=0)
        >>> fa.rms_norm_rotary.backward(np.array([1.0, 0.0]), *saved)
        (array([ 0.2715..., -0.2036...]), array([ 0.6788..., -0.6788...]))
        """

    def _run_backward(self, now: Step) -> None:
        dy, x, rstd = (now.views[name] for name in ("dy", "x", "rstd"))
        dx, outer = now.view("dx"), x.order[0]
        of, angles = self._checked(now)
        lengths, parts = _parts(now, _PART)  # for any threads: dweight is a sum over parts
        count = sum(some.number for some in parts)
        threads = _threads(now) if count > 1 else 1
        whole = tuple(n * threads if axis == outer else n for axis, n in enumerate(lengths))
        scratch = now.call.temporary("x", whole)
        sums = self._sums(now, count) if count > 1 and now.view("dweight") is not None else None

        def work(i: int, part: Part, thread: int) -> None:
            own = scratch.sliced(outer, thread * lengths[outer], 1, lengths[outer])
            p, into = begin_of(own, part), None if dx is None else part_of(dx, part)
            self._turn(now, of, _angles_of(angles, part), part_of(dy, part), p, turns_back=True)
            arrays = {"x": part_of(x, part), "dy": p, "rstd": part_of(rstd, part), "dx": into}
            now.run("norm_backward", **arrays, **({} if sums is None else sums.of_part(i)))

        _for_each(now, parts, threads, work)
        if sums is not None:
            dweight = now.shapes.seen_parameter(now.view("dweight"))
            add_up(now.call, ELEMENT, sums.view, dweight, (sums.axis,), now.adds("dweight"))

    def _sums(self, now: Step, count: int) -> _Sums:
        """Memory for the sums of so many parts, in the type in which they are computed."""
        weight, axis = now.views["weight"], now.shapes.of.axis
        if weight.itemsize == 2:
            weight = now.call.temporary("weight", None, validate.computed_in(weight))
            now.call.run("widen", x=now.views["weight"], y=weight)
        weight, along = now.shapes.seen_parameter(weight), int(axis == 0)
        shape = tuple(count if a == along else n for a, n in enumerate(weight.shape))
        view = now.call.temporary("weight", shape, weight.dtype)
        if now.adds(""):  # as to dx
            fill(now.call, view, 0.0)
        return _Sums(weight, view, along)

    def _checked(self, now: Step) -> tuple[Pairs, Mapping[str, View | None]]:
        """The pairs and their angles; positions are compared before anything is written."""
        of, x = now.shapes.of, now.views["x"]
        angles = self._angles(now, of, "x")
        if angles["positions"] is not None and not now.call.is_on_gpu:
            none = {name: of.angles[i].sliced(1, 0, 1, 0) for i, name in enumerate(("cos", "sin"))}
            nothing = x.sliced(of.axis, 0, 1, 0)
            self._turn(now, of._replace(length=0), {**angles, **none}, nothing, nothing,
                       turns_back=False)  # fmt: skip
        return of, angles


class _Sums(NamedTuple):
    """The sums of parts for dweight, by number along an axis, and the weight of their dtype."""

    weight: View
    view: View
    axis: int

    def of_part(self, i: int) -> dict[str, View]:
        return {"weight": self.weight, "dweight": self.view.sliced(self.axis, i, 1, 1)}


def _threads(now: Step) -> int:
    """Those that share the parts; all of a GPU's have one part after the other."""
    return 1 if now.call.is_on_gpu else _cpu.get_thread_limit()


def _parts(now: Step, most: int) -> tuple[tuple[int, ...], list[Parts]]:
    """The shape of most parts, and all of them, of whole rows."""
    x, axis = now.views["x"], now.shapes.of.axis
    if not x.size:
        return x.shape, [Parts({})]
    most = _PART_OF_GPU if now.call.is_on_gpu else most
    return cut(x.shape, [a for a in x.order if a != axis], most, {})


def _for_each(
    now: Step, parts: list[Parts], threads: int, work: Callable[[int, Part, int], None]
) -> None:
    """Work for each part, which has a number."""
    first = 0
    for some in parts:

        def of_some(i: int, thread: int, some: Parts = some, first: int = first) -> None:
            some.of(partial(work, first + i), i, thread)

        now.call.repeat(of_some, some.number, threads)
        first += some.number


def _angles_of(angles: Mapping[str, View | None], part: Part) -> dict[str, View | None]:
    """Those of a part; tables of cosines and sines serve all."""
    of_rows = angles.keys() if angles["positions"] is None else ("positions",)
    return {
        name: part_of(view, part) if view is not None and name in of_rows else view
        for name, view in angles.items()
    }
