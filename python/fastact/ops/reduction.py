"""The op object of a sum over axes: what is summed, and the Python half of its entry points."""

from typing import Any, NamedTuple

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from . import axes as _axes
from .bounds import SumBounds
from .op_before import QuickOp, Takes
from .reduction_docs import SumDoc, docstrings

#: Of every sum, those of gradients among them.
SUM_BOUNDS = SumBounds(ulp=0.5, absolute=2.0**-46)

IDENTITY, SQUARE = (_cpu.TERMS.index(term) for term in ("identity", "square"))

Shape = tuple[int, ...]


class Over(NamedTuple):
    """What a sum does to the shape of an array.

    axes : those that are summed over.
    shape : the sum's.
    dropped : the axes that it lacks; where it keeps one of `axes`, it has length 1 there.
    """

    axes: tuple[int, ...]
    shape: Shape
    dropped: tuple[int, ...]


def add_up(
    call: Call, term: int, x: View, y: View, axes: tuple[int, ...], accumulate: bool = False
) -> None:
    """y = the sum of a term of x over `axes`, along which y has length 1."""
    workspace = call.workspace(call.native.sum_workspace(term, x, y, axes))
    call.run("sum", term, x, y, axes, workspace, accumulate)


class AxisSum(QuickOp):
    """A sum over some axes, and backward: a gradient repeated along them.

    An op of this kind tells by `_over` which axes its options mean.
    """

    bounds = SUM_BOUNDS
    term = IDENTITY

    def __init__(self, name: str, family: str, takes: Takes, back: Takes, doc: SumDoc) -> None:
        super().__init__(name, family, (doc.array,), takes, docstrings(name, takes, back, doc))
        self._takes, self._takes_back = takes, back
        self._array = doc.array

    def _over(self, where: str, options: Any, shape: Shape) -> Over:
        raise NotImplementedError

    def _over_back(self, where: str, options: Any, shape: Shape, dy: View | None) -> Over:
        """The same for the saved shape, to which dy must fit; None: it is a number."""
        over = self._over(where, options, shape)
        if dy is not None:
            _axes.has_shape(where, "dy", dy, over.shape)
        return over

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._reduce(self._where(), x, args, kwargs)[0]

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any]]:
        """forward(array, ...) -> (sum, saved)"""
        y, _, shape = self._reduce(self._where("forward"), x, args, kwargs)
        return y, (shape,)

    def _reduce(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any, Shape]:
        """y, and x as it was computed on and its shape."""
        options = self._takes.bind(where, args, kwargs)
        (out,) = options.out
        accumulate = self._takes.accumulates and options.accumulate
        with Call(where, options.stream, **{self._array: x}) as call:
            view = call.views[self._array]
            over = self._over(where, options, view.shape)
            y, made = call.output("out", out, self._array, shape=over.shape, in_place=False)
            add_up(call, self.term, view, y.with_axes(over.dropped), over.axes, accumulate)
            return call.result(out, made), call.arrays[self._array], view.shape

    def backward(self, dy: Any, shape: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward(dy, shape, ...) -> dx"""
        where = self._where("backward")
        options = self._takes_back.bind(where, args, kwargs)
        (out,) = options.out
        shape = _axes.lengths(where, "shape", shape)

        # A number has no dtype of its own: it takes that of `out`, or else float64.
        is_number = isinstance(dy, bool | int | float)
        arrays = {"out": out, "dy": dy} if is_number and out is not None else {"dy": dy}
        with Call(where, options.stream, **arrays) as call:
            gradient = call.views["dy"]
            over = self._over_back(where, options, shape, None if is_number else gradient)
            if not is_number:
                gradient = gradient.with_axes(over.dropped)
            elif out is None:
                gradient = gradient.with_axes(tuple(range(len(shape))))
            dx, made = call.output("out", out, next(iter(arrays)), shape=shape, in_place=is_number)
            call.run("broadcast", gradient.broadcast_to(shape), dx, options.accumulate)
            return call.result(out, made)


class SquareSum(AxisSum):
    """A sum of squares over some axes, whose way back needs x."""

    term = SQUARE

    def forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any]]:
        """forward(x, ...) -> (y, saved)"""
        y, x, _ = self._reduce(self._where("forward"), x, args, kwargs)
        return y, (x,)

    def backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        """backward(dy, x, ...) -> dx"""
        where = self._where("backward")
        options = self._takes_back.bind(where, args, kwargs)
        (out,) = options.out
        with Call(where, options.stream, x=x, dy=dy) as call:
            view, gradient = call.views["x"], call.views["dy"]
            over = self._over(where, options, view.shape)
            if "dy" in call.arrays:
                validate.same_dtype(where, "dy", gradient, "x", view)
                _axes.has_shape(where, "dy", gradient, over.shape)
                gradient = gradient.with_axes(over.dropped).broadcast_to(view.shape)
            dx, made = call.output("out", out, "x")
            call.run("square_backward", gradient, view, dx, options.accumulate)
            return call.result(out, made)
