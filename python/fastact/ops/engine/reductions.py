"""Sums over axes and moments, which statistics need, too, with their gradients.

The order of the terms and the error bound are in `src/cpu/reductions/kernels.h`; the formulas with
weights and a mask are in `src/common/reductions/weights.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Unpack

import numpy as np

from ... import _cpu
from ..._cpu import View
from ...interop import foreign, validate
from ...interop.call import Call
from ..bounds import SumBounds
from ..types import Kwargs
from . import axes as _axes
from .axes import Over
from .entry import OF_X, TOLD, Arg, Output, positional
from .execute import Execution
from .op import Kernels, P, R, Traits, records
from .served import CachedOp
from .weighting import SAVED, by_groups

#: The number of the sum of the elements themselves.
IDENTITY = _cpu.TERMS.index("identity")

#: The number of the product of an element and its weight, among the terms of two arrays.
PRODUCT = _cpu.PAIRS.index("product")

_RESULTS = ("mean", "low", "second", "count")


def is_weighted(now: Execution) -> bool:
    """Tell whether weights or a mask say how often elements count, or labels for which group."""
    return not now.views.keys().isdisjoint(SAVED)


def over_x(now: Execution, view: View) -> View:
    """Repeat one number per result over x's shape; with groups nothing repeats."""
    grouped = now.shapes.grouped
    return view.broadcast_to(grouped or now.shapes.whole)


def reduce_moments(
    now: Execution,
    results: Mapping[str, View | None],
    of_m2: str,
    correction: float = 0.0,
    skips: bool = False,
    warning: str | None = None,
    term: int = IDENTITY,
    pair: int = PRODUCT,
) -> None:
    """Compute moments of x, which is not empty; totals by groups are of a term, others of a pair.

    results : where to write the mean, what its rounding lost ("low"), what m2 becomes ("second"),
    and the count. of_m2 : what kernels make of m2, one of `_cpu.OF_M2`.
    """
    given = {name: view for name, view in results.items() if view is not None}
    steps = [validate.steps(view) for view in given.values()]
    each = [given]
    if any(other != steps[0] for other in steps):  # it walks results by one set of strides
        each = [{name: view} for name, view in given.items()]
    options: Any = {"of_m2": _cpu.OF_M2.index(of_m2), "correction": correction}
    options |= {"skips": skips, "warning": warning}
    function, names = "moments", list(_RESULTS)
    kind: Any = {"pair": pair}
    if now.shapes.grouped:
        function, names = "grouped", [name for name in _RESULTS if name != "low"]
        kind = {"term": term, **_labels(now, now.views[now.leader])}
    for views in each:
        now.run(function, **{**options, **kind, **dict.fromkeys(names), **views})


def _labels(now: Execution, x: View) -> dict[str, Any]:
    """Find the further arguments of native functions with groups."""
    return {"labels": now.seen("by", x), "op": now.where}


def weighted_gradient(now: Execution, to: View, **given: Any) -> None:
    """Compute the gradient for x, or for the weights, by `src/common/reductions/weights.h`.

    slope : the factor of dy; 1 by default.
    of_mean : what the mean's gradient adds, or None.
    term : the term of a sum without a mean. pair : the pair of a sum of terms of x and the weights.
    to_weights : where a pair's gradient for the weights goes, beside x's, or None.
    """
    if "slope" not in given:
        shape = now.shapes.grouped or to.shape
        given["slope"] = now.call.repeated(1.0, to.shaped(shape).of_dtype(validate.DOUBLE))
    defaults: Any = {"mean": None, "of_mean": None, "term": IDENTITY}
    defaults |= {"of_weights": False, "skips": False}
    function = "weighted_gradient"
    if now.shapes.grouped and to.shape == now.shapes.whole:
        function = "grouped_gradient"
        defaults |= _labels(now, to)
    else:
        defaults |= {"pair": PRODUCT, "to_weights": None}
    now.run(function, to=to, **{**defaults, **given})


def spread_gradient(now: Execution, of_m2: str, **given: Any) -> None:
    """Compute the gradient for x on a GPU in one pass: by a mean, by what m2 becomes, or by both.

    share, scale : factors of dy and dsecond where both are given.
    """
    defaults: Any = {"dsecond": None, "share": 0.0, "scale": 0.0, "skips": False, "correction": 0.0}
    now.run("spread_backward", **{**defaults, **given}, of_m2=_cpu.OF_M2.index(of_m2))


def fill(call: Call, y: View, value: float) -> None:
    call.run("broadcast", x=call.repeated(value, y), y=y, accumulate=False)


#: The bounds of every sum of an array.
SUM_BOUNDS = SumBounds(ulp=0.5, absolute=2.0**-46, narrow=2.0**-21)

#: The bounds of sums of gradients that are added up before they are rounded.
GRADIENT_SUM_BOUNDS = SumBounds(ulp=0.5, absolute=2.0**-46)

#: The dtype of sums and statistics of integers: 16 bits would overflow.
INTEGERS = np.float64

#: The number of the sum of the elements that are not NaN.
VALID = _cpu.TERMS.index("valid")

Shape: TypeAlias = tuple[int, ...]


#: A function that finds the axes that options mean for a shape. The string begins messages.
OverOf: TypeAlias = Callable[[str, Any, Shape], Over]

#: Words that the docstrings of all sums and statistics share.
TEXTS = """
Parameters
----------
{data} : array
    Data of dtype float16, bfloat16, float32 or float64, with any shape and strides. Integers and
    booleans are computed as float64, which rounds integers beyond 2**53; lists and scalars are
    converted as in NumPy.
axis : int or tuple of int, optional
    The axes to reduce; negative axes count from the last. By default all axes are reduced; an empty
    tuple reduces none.
dtype : dtype, optional
    The dtype of the result: float16, bfloat16, float32 or float64, by name or as a dtype of NumPy,
    torch or JAX; by default x's. It may be wider or narrower than x. Only the result is rounded to
    it, once, whereas NumPy first rounds the elements.
initial : float, optional
    A finite number that the sum starts from; it is added before the sum is rounded.
correction : float
    A number that is subtracted from the number of elements, or from the sum of the weights; 1 gives
    the unbiased variance.
ddof : float, optional
    NumPy's name for `correction`; only one of the two may be given.
weights : array, optional
    How often each element counts: an array that broadcasts to x's shape, or one along the axes that
    `axis` names, in that order, as for np.average. It may have any dtype that x may have. An
    element with weight 0 does not count, whatever its value.
skipna : bool, default False
    If True, leave out elements that are NaN.
where : array of bool, or bool, optional
    A mask that broadcasts to x's shape and is True where an element counts. The other elements are
    ignored and may be NaN.
by : array of int, optional
    The group of each element, from 0 on and in any order, or -1 for none: an array that broadcasts
    to x's shape, or one along the axes that `axis` names, in that order. NumPy's bools are labels,
    too; ``names, labels = np.unique(x, return_inverse=True)`` makes labels of strings. The bits do
    not depend on the threads. Groups work only on the CPU.
groups : int, optional
    The number of groups, if `by` is given. The default is the largest label plus 1; it must be
    given where torch, JAX or dask traces the call. The result has a last axis of groups instead of
    the reduced axes. A group without elements gives the result for no elements.

Returns
-------
array
    The {called}, of {data}'s framework and of its dtype or the given `dtype`; for integers it is
    float64. {nothing}.

Raises
------
TypeError
    dtype: a `dtype` that is unknown or that `out` does not have
    initial: an initial number that is not real
    correction: a correction that is not real
    ddof: both `correction` and `ddof`
    where: a `where` that is not bool
    by: a `by` that is not of integers, is traced without `groups`, or is not on the CPU
ValueError
    initial: an initial number that is not finite
    correction: a correction that is not finite
    weights: weights of another shape
    where: a `where` of another shape
    by: a `by` of another shape or with a label that is not a group
    groups: negative `groups`
    groups: groups with `keepdims` or without an axis to reduce

References
----------
{reference}
"""

#: The reference of sums.
SUMS = """T. Ogita, S. M. Rump and S. Oishi, "Accurate Sum and Dot Product", SIAM J. Sci. Comput. 26
(2005), https://doi.org/10.1137/030601818

N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., chapter 4"""


def add_up(call: Call, x: View, y: View, axes: tuple[int, ...], accumulate: bool = False) -> None:
    """Sum x over `axes` into y, which has length 1 along them."""
    given: Any = {"x": x, "axes": axes, "y": y, "term": IDENTITY, "divisor": 1.0}
    call.run("sum", **given, initial=-0.0, accumulate=accumulate)


class AxisSum(CachedOp[P, R]):
    """A sum of a term of an array's elements over some axes.

    term : the term's number in the kernels' list (src/common/reductions/terms.h).
    over : finds the axes from the options of a call.
    """

    bounds = SUM_BOUNDS
    term = IDENTITY
    kernels = Kernels(numbers={"term": IDENTITY, "divisor": 1.0, "initial": -0.0})
    traits = Traits(integers=INTEGERS)
    args: Mapping[str, Arg] = records(
        dy=Arg(validate.OF_RESULT, "shape"),
        where=Arg(shape="whole"),
    )
    _over: OverOf

    def _texts(self) -> str:
        (data,) = self.differentiated
        nothing = "Over no elements it is 0"
        return TEXTS.format(data=data, called="sum", nothing=nothing, reference=SUMS)

    @property
    def differentiated(self) -> tuple[str, ...]:
        return self.entry_points["call"].arrays

    def _shapes(self, call: Any, options: Any, entry: str = "call") -> Over:
        (array,) = self.differentiated
        over = self._over(call.where, options, tuple(call.views[array].shape))
        return by_groups(call, options, over)

    def _run_forward(self, now: Execution) -> None:
        x = now.views[now.leader]
        if now.shapes.grouped and x.size:
            reduce_moments(now, {"mean": now.written("y")}, "total", term=self.term)
        elif now.shapes.grouped:
            fill(now.call, now.view("y"), 0.0 + now.options.initial)
        elif "where" not in now.views or not x.size:
            now.run("sum")
        elif self.term == IDENTITY:
            reduce_moments(now, {"mean": now.written("y")}, "total")
        else:
            left = now.call.temporary("x")
            weighted_gradient(now, left, dy=x)
            now.run("sum", x=left)


class PlainSum(AxisSum[P, R]):
    """A sum of the elements themselves, whose gradient repeats.

    lacks : finds the axes that gradients of other shapes than the sum's lack, if `backward` takes
        such gradients.
    """

    args = records(**AxisSum.args, shape=Arg(is_shape=True))

    def __init__(
        self,
        function: Callable[P, R],
        over: OverOf,
        family: str = "reductions",
        result: str = "y",
        lacks: Callable[[str, Shape, Shape], tuple[int, ...]] | None = None,
    ) -> None:
        self.family = family
        call = self._declare(function)
        self._over, self._lacks = over, lacks
        masks = [name for name in SAVED if name in call.parameters]
        self._saves_dtype = (OF_X,) if TOLD in call.parameters else ()
        self.results, self.saves = (result,), ("shape", *masks, *self._saves_dtype)
        self.kernels = self.kernels._replace(names={"x": positional(call)[0], "y": result})
        self.outs = {
            result: Output(shape="shape", dtype=TOLD),
            "backward.dx": Output(shape="whole", dtype=OF_X),
        }
        of_x = dict.fromkeys(self._saves_dtype)
        self._enter_points(front=("shape",), but=("initial",), told=of_x)

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        is_told = named.get(TOLD) is not None
        known = {**named, OF_X: foreign.dtype_name(named["x"]) if is_told else None}
        return (self.shape_of(named), *(known.get(name) for name in self.saves[1:]))

    def gradient_shape(self, name: str, named: Mapping[str, Any]) -> tuple[int, ...] | None:
        return tuple(named["shape"])

    def backward(self, dy: Any, /, *saved: Any, **options: Unpack[Kwargs[Any]]) -> Any:
        """Repeat the gradient along the axes that were summed over.

        ``dx = np.broadcast_to(np.expand_dims(dy, axes), shape)``, where axes are those that were
        summed over and that dy lacks: each element adds to one element of the sum, with factor 1.

        Parameters
        ----------
        dy : array or float
            The gradient with respect to the sum, of its shape; for `unbroadcast`, of any shape that
            broadcasts to `shape`.
        shape : tuple of int
            What `forward` saved.
        where : array of bool, or bool, optional
            What `forward` saved. Elements that were left out have a gradient of 0.
        by : array of int, optional
            What `forward` saved. Elements of no group have a gradient of 0.
        x_dtype : dtype, optional
            What `forward` saved: x's dtype, if the sum has another one.

        Returns
        -------
        array
            The result, of the shape `shape` and of dy's framework and dtype, or `x_dtype`. If dy is
            a number, they are those of `out`, or otherwise NumPy's float64, as for integers.

        Notes
        -----
        Values are rounded only to `x_dtype`, and with `accumulate` the sum is rounded once.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> dx = np.ones(3)
        >>> fa.sum.backward(0.5, (3,), out=dx, accumulate=True)
        array([1.5, 1.5, 1.5])
        >>> fa.bias_grad.backward(np.array([1.0, 2.0]), (2, 3), axis=0)
        array([[1., 1., 1.],
               [2., 2., 2.]])
        """

    def _shapes(self, call: Any, options: Any, entry: str = "call") -> Over:
        where = call.where
        if entry != "backward":
            return super()._shapes(call, options, entry)
        shape = _axes.lengths(where, "shape", options.shape)
        is_any = self._lacks is not None
        over = Over((), shape, (), shape) if is_any else self._over(where, options, shape)
        over = by_groups(call, options, over)
        told = getattr(options, TOLD, None)
        if isinstance(options.dy, bool | int | float):
            every = tuple(range(len(over.grouped or shape)))
            return over if "out" in call.views else over._replace(dropped=every)
        dy = call.views["dy"]
        if told is not None:
            validate.has_dtype(where, "dy", dy, "same", "the sum", dy.of_dtype(told))
        if self._lacks is not None:
            return over._replace(dropped=self._lacks(where, dy.shape, shape))
        _axes.has_shape(where, "dy", dy, over.shape)
        return over

    def _run_backward(self, now: Execution) -> None:
        dy, dx = over_x(now, now.seen("dy")), now.view("dx")
        if not is_weighted(now) and dy.dtype == dx.dtype:
            now.run("broadcast", x=dy, y=dx)
        elif dx.size:
            x = dx if now.shapes.grouped else dy  # of x's shape; its numbers do not matter
            weighted_gradient(now, dx, x=x, dy=dy)
