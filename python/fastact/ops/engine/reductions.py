"""The op object of a sum over axes: what is summed, and the Python half of its entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeAlias, overload

import numpy as np

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from ..bounds import SumBounds
from ..types import A, ArrayOrNumber, Axes, Out, Outs, Stream
from . import axes as _axes
from .axes import Over
from .op import CachedOp, EntryPoint, Makes, P, R, register, signature_of, untyped
from .step import step
from .weighting import (
    ROLES,
    TOTAL,
    Weighting,
    arrays_with_weights,
    mask_of,
    reduce_moments,
    weighted_gradient,
    weighting_of,
)

#: Of every sum of an array.
SUM_BOUNDS = SumBounds(ulp=0.5, absolute=2.0**-46, narrow=2.0**-21)

#: Of sums of gradients that are added up as they are computed, before they are rounded.
GRADIENT_SUM_BOUNDS = SumBounds(ulp=0.5, absolute=2.0**-46)

#: The dtype of sums and statistics of integers: 16 bits would overflow.
INTEGERS = np.float64

#: The numbers of sums of the elements themselves, and of those that are not NaN.
IDENTITY, VALID = (_cpu.TERMS.index(term) for term in ("identity", "valid"))

Shape: TypeAlias = tuple[int, ...]


#: What an op's options say of an array of a shape. The string begins messages.
OverOf: TypeAlias = Callable[[str, Any, Shape], Over]

#: The axes that a gradient of one shape lacks to be one of another, once that is checked.
LacksOf: TypeAlias = Callable[[str, Shape, Shape], tuple[int, ...]]


def add_up(
    call: Call,
    term: int,
    x: View,
    y: View,
    axes: tuple[int, ...],
    accumulate: bool = False,
    divisor: float = 1.0,
) -> None:
    """Sum a term of x over `axes` into y, which has length 1 along them, over a divisor."""
    call.run("sum", x=x, axes=axes, y=y, term=term, divisor=divisor, accumulate=accumulate)


def total(where: str, term: int, x: Any, axes: tuple[int, ...]) -> Any:
    """The sum of a term of a NumPy array over sorted axes, which stay, with length 1: in float64.

    It is added to the totals of other parts: rounded to x's dtype it would cancel, or overflow.
    """
    with Call(where, integers=INTEGERS, x=x) as call:
        view = call.views["x"]
        kept = _axes.reduced(view.shape, axes, keepdims=True)
        y, made = call.output("out", None, "x", shape=kept, dtype=validate.DOUBLE)
        add_up(call, term, view, y, axes)
        return np.asarray(call.result(None, made))


class AxisSum(CachedOp[P, R]):
    """A sum of a term of an array's elements over some axes.

    term : its name in the kernels' list (src/common/reductions/terms.h).
    over : which axes the options of a call mean.
    others : the entry points that the kinds of sums do not have in common.
    """

    bounds = SUM_BOUNDS
    term: int
    integers = INTEGERS
    roles = MappingProxyType({"dy": validate.DATA})
    shapes = MappingProxyType({"dy": "shape"})

    def __init__(
        self,
        function: Callable[P, R],
        family: str,
        term: str,
        over: OverOf,
        **others: EntryPoint,
    ) -> None:
        call = self._declare(function, family)
        self.term = _cpu.TERMS.index(term)
        self._over: OverOf = over
        self.makes = {name: Makes(shape="shape") for name in self.results}
        self._enter(
            call=EntryPoint(self._where(), call),
            forward=EntryPoint(self._where("forward"), call),
            **others,
        )

    @property
    def differentiated(self) -> tuple[str, ...]:
        return self.entry_points["call"].arrays

    def _shapes(self, call: Any, options: Any) -> Over:
        (array,) = self.differentiated
        return self._over(call.where, options, tuple(call.views[array].shape))

    def _map(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with step(self, name, args, kwargs) as now:
            call, x, over = now.call, now.views[now.leader], now.shapes
            accumulate = getattr(now.options, "accumulate", False)  # which not every sum has
            kept = now.view(self.results[0]).with_axes(over.dropped)
            weighting = weighting_of(call, None)
            if weighting.given and x.size:
                self._add_what_counts(call, kept, over.axes, weighting)
            else:
                add_up(call, self.term, x, kept, over.axes, accumulate)
            return now.results()

    def _add_what_counts(
        self, call: Call, y: View, axes: tuple[int, ...], weighting: Weighting
    ) -> None:
        """Sum the term of those elements of x that a mask leaves."""
        if self.term == IDENTITY:
            reduce_moments(call, axes, y, of_m2=TOTAL, weighting=weighting)
            return
        x, left = call.views["x"], call.temporary("x")
        one = call.repeated(1.0, x.of_dtype(validate.DOUBLE))
        weighted_gradient(call, x, one, left, weighting, False)
        add_up(call, self.term, left, y, axes)


class PlainSum(AxisSum[P, R]):
    """A sum of the elements themselves: its gradient repeats.

    lacks : where `backward` takes gradients of other shapes than the sum's, which axes they lack.
    """

    def __init__(
        self,
        function: Callable[P, R],
        family: str,
        over: OverOf,
        result: str,
        lacks: LacksOf | None,
    ) -> None:
        self.results = (result,)
        self._lacks = lacks
        call = untyped(function)
        masks = [name for name in ROLES if name in call.parameters]
        self.saves = ("shape", *masks)
        either = [name for name in (*masks, "axis") if masks]
        of_backward = signature_of(call, ("dy", "shape"), either)
        backward = EntryPoint(f"fastact.{function.__name__}.backward", of_backward)
        super().__init__(function, family, "identity", over, backward=backward)

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        return (self.shape_of(named), *(named.get(name) for name in self.saves[1:]))

    def gradient_shape(self, name: str, named: Mapping[str, Any]) -> tuple[int, ...] | None:
        return tuple(named["shape"])

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The sum, and what `backward` needs of the array.

        The gradient of a sum depends on the array's shape, and of `sum` on the mask.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.sum.forward(np.ones((2, 3)), axis=0)
        >>> saved
        ((2, 3), None)
        >>> dbias, saved = fa.bias_grad.forward(np.ones((2, 3)))
        >>> fa.bias_grad.backward(np.array([1.0, 2.0, 3.0]), *saved)
        array([[1., 2., 3.],
               [1., 2., 3.]])
        """

    @overload
    def backward(self, dy: A, shape: Shape, /, *args: Any, **kwargs: Any) -> A: ...

    @overload
    def backward(self, dy: float, shape: Shape, /, *args: Any, **kwargs: Any) -> Any: ...

    def backward(self, dy: ArrayOrNumber, shape: Shape, /, *args: Any, **kwargs: Any) -> Any:
        """The gradient, repeated along the axes that were summed over.

        ``dx = np.broadcast_to(np.expand_dims(dy, axes), shape)``, with the axes that were summed
        over and that dy lacks: each element adds to one element of the sum alone, by a factor of 1.

        Parameters
        ----------
        dy : array or float
            The gradient with respect to the sum, of its shape; of `unbroadcast`, of any shape that
            broadcasts to `shape`.
        shape : tuple of int
            What `forward` saved.
        where : array of bool, or bool, optional
            What `forward` saved. Elements that were left out have a gradient of 0.
        out : array, optional
            Where to write dx, which may not share memory with dy.

        Returns
        -------
        array
            The result: of the shape `shape`, and of dy's dtype and framework. For a number they are
            `out`'s, or else NumPy's float64, as for integers.

        Notes
        -----
        No value is rounded; with `accumulate` the sum is, once.

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

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        options, where = entry.bind(args, kwargs), entry.where
        dy, (out,) = options.dy, options.out
        shape = _axes.lengths(where, "shape", options.shape)

        # A number has no dtype of its own: it takes `out`'s, or else float64.
        is_number = isinstance(dy, bool | int | float)
        leader = {"out": out, "dy": dy} if is_number and out is not None else {"dy": dy}
        arrays = arrays_with_weights(where, options, **leader)
        with Call(where, options.stream, ROLES, INTEGERS, **arrays) as call:
            gradient = call.views["dy"]
            lacks = self._lacking(where, options, None if is_number else gradient, shape)
            if not is_number:
                gradient = gradient.with_axes(lacks)
            elif out is None:
                gradient = gradient.with_axes(tuple(range(len(shape))))
            dx, made = call.output("out", out, next(iter(arrays)), shape=shape, in_place=is_number)
            repeated = gradient.broadcast_to(shape)
            mask = mask_of(call, shape)
            if mask is None:
                call.run("broadcast", x=repeated, y=dx, accumulate=options.accumulate)
            elif dx.size:
                validate.apart(where, "out", dx, {"where": mask})
                one = call.repeated(1.0, dx.of_dtype(validate.DOUBLE))
                weighted_gradient(
                    call,
                    repeated,
                    one,
                    dx,
                    Weighting(None, mask),
                    False,
                    x=repeated,
                    accumulate=options.accumulate,
                )
            return call.result(out, made)

    def _lacking(self, where: str, options: Any, dy: View | None, shape: Shape) -> tuple[int, ...]:
        """The axes of `shape` that dy lacks, to which it must fit; None: it is a number."""
        if self._lacks is not None:
            return () if dy is None else self._lacks(where, dy.shape, shape)
        over = self._over(where, options, shape)
        if dy is not None:
            _axes.has_shape(where, "dy", dy, over.shape)
        return over.dropped


class TermSum(AxisSum[P, R]):
    """A sum of a term t(x) over the axes `axis`, whose gradient needs x."""

    def __init__(
        self,
        function: Callable[P, R],
        term: str,
        over: OverOf,
        **others: EntryPoint,
    ) -> None:
        taken = untyped(function).parameters
        self.saves = ("x", *(name for name in ROLES if name in taken))
        backward = EntryPoint(f"fastact.{function.__name__}.backward", untyped(self.backward))
        super().__init__(function, "reductions", term, over, backward=backward, **others)

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The sum, and what `backward` needs.

        The derivative of a term depends on x.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, saved = fa.sum_squares.forward(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
        >>> fa.sum_squares.backward(np.array([1.0, 0.5]), *saved, axis=0)
        array([[2., 2.],
               [6., 4.]])
        """

    def backward(
        self,
        dy: ArrayOrNumber,
        x: A,
        /,
        where: ArrayOrNumber | None = None,
        axis: Axes = None,
        *,
        keepdims: bool = False,
        out: Out[A] = None,
        accumulate: bool = False,
        stream: Stream = None,
    ) -> A:
        """The gradient with respect to x.

        ``dx = dy * t'(x)``, with dy repeated along the axes that were summed over: each element
        adds its term t(x) to one element of the sum alone. Of `sum_squares` it is ``2 * x * dy``.

        Parameters
        ----------
        where : array of bool, or bool, optional
            What `forward` saved. Elements that were left out have a gradient of 0.
        out : array, optional
            Where to write dx; it may be x itself, but not share memory with dy or with `where`.

        Returns
        -------
        array
            The result, of x's shape, dtype and framework; for integers of float64.

        Notes
        -----
        Rounded once to float32 or float64, and then to x's dtype.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.sum_squares.backward(1.0, np.array([1.0, 2.0, 3.0]))
        array([2., 4., 6.])
        """

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        with step(self, "backward", args, kwargs) as now:
            call, x, dx, options = now.call, now.views["x"], now.view("dx"), now.options
            dy = now.shapes.spread(now.views["dy"], x)
            weighting = weighting_of(call, None)
            if weighting.given and x.size:
                self._of_what_counts(call, dy, dx, weighting, options.accumulate)
            else:
                call.run(
                    "sum_backward", x=x, dy=dy, dx=dx, term=self.term, accumulate=options.accumulate
                )
            return now.results()

    def _of_what_counts(
        self, call: Call, dy: View, dx: View, weighting: Weighting, accumulate: bool
    ) -> None:
        x = call.views["x"]
        each = call.temporary("x") if accumulate else dx
        call.run("sum_backward", x=x, dy=dy, dx=each, term=self.term, accumulate=False)
        one = call.repeated(1.0, x.of_dtype(validate.DOUBLE))
        weighted_gradient(call, each, one, dx, weighting, False, accumulate=accumulate)


class SquareSum(TermSum[P, R]):
    """A sum of squares, which has its gradient in the same pass, too."""

    def __init__(self, function: Callable[P, R], over: OverOf) -> None:
        where = f"fastact.{function.__name__}.value_and_grad"
        both = EntryPoint(where, untyped(self.value_and_grad), outputs=2)
        super().__init__(function, "square", over, value_and_grad=both)
        self.makes = {**self.makes, "value": Makes(shape="all"), "grad": Makes(in_place=True)}

    def outputs_of(self, entry: str, options: Any) -> tuple[str, ...]:
        is_both = entry == "value_and_grad"
        return ("value", "grad") if is_both else super().outputs_of(entry, options)

    def _shapes(self, call: Any, options: Any) -> Any:
        if hasattr(options, "axis"):
            return super()._shapes(call, options)
        return SimpleNamespace(all=())

    def value_and_grad(self, x: A, /, out: Outs[A] = None, *, stream: Stream = None) -> tuple[A, A]:
        """The sum of the squares of all of x and its gradient, in one pass over x.

        ``value = np.sum(x**2)`` and ``grad = 2 * x``, which is what `backward` gives for dy = 1.

        Parameters
        ----------
        x : array
            As for the call.
        out : tuple of two arrays or None, optional
            Where to write the value, of shape (), and the gradient, of x's shape; both of x's
            dtype; one that is None is allocated. The gradient's may be x itself.

        Returns
        -------
        value : array
            What calling the op on x without an axis gives.
        grad : array
            Of x's shape, dtype and framework; for integers of float64.

        Notes
        -----
        The value has the bits of calling the op, the gradient the bits of `backward`.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> value, grad = fa.sum_squares.value_and_grad(np.array([1.0, 2.0, 3.0]))
        >>> print(value, grad)
        14.0 [2. 4. 6.]
        """

    def _value_and_grad(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        with step(self, "value_and_grad", args, kwargs) as now:
            call, x, dx = now.call, now.views["x"], now.view("grad")
            y = now.view("value")
            call.run("square_value_and_grad", x=x, y=y, grad=dx)
            return now.results()  # type: ignore[no-any-return]


def reduction(
    over: OverOf,
    *,
    family: str = "reductions",
    result: str = "y",
    lacks: LacksOf | None = None,
) -> Callable[[Callable[P, R]], PlainSum[P, R]]:
    """The sum over axes that a function declares."""
    return lambda function: register(PlainSum(function, family, over, result, lacks))


def term_reduction(term: str, over: OverOf) -> Callable[[Callable[P, R]], TermSum[P, R]]:
    """The sum of a term over axes that a function declares."""
    return lambda function: register(TermSum(function, term, over))


def square_reduction(over: OverOf) -> Callable[[Callable[P, R]], SquareSum[P, R]]:
    """The sum of squares over axes that a function declares."""
    return lambda function: register(SquareSum(function, over))
