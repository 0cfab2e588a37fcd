"""Reductions: sums over any axes, of the elements or of their squares.

Every dtype is summed in double, in one order whatever the layout, the threads and the instruction
set; the order and its error bound are derived in `src/cpu/reductions/kernels.h`.
"""

from typing import Any

from ..interop import validate
from ..interop.call import Call
from . import axes as _axes
from .bounds_docs import sum_notes
from .docs import OGITA
from .mean_var import mean_var as mean_var
from .mean_var import moments as moments
from .moments import Moments as Moments
from .op_before import Takes, register
from .reduction import SQUARE, SUM_BOUNDS, AxisSum, Over, Shape, SquareSum
from .reduction_docs import SumDoc

_TAKES = Takes({"axis": None}, {"keepdims": False})
_TAKES_BACK = Takes({"axis": None}, {"keepdims": False}, accumulates=True)

_PARAMETERS = """\
axis : int or tuple of int, optional
    The axes to sum over, negative ones counted from the last; all of them without any. An empty
    tuple sums over none.
keepdims : bool
    Leave the axes that were summed over in y, with length 1.
"""


class _OverAxes(AxisSum):
    """A sum over the axes that `axis` names."""

    def __init__(self, name: str, doc: SumDoc) -> None:
        super().__init__(name, "reductions", _TAKES, _TAKES_BACK, doc)

    def _over(self, where: str, options: Any, shape: Shape) -> Over:
        axes = _axes.axes(where, options.axis, len(shape))
        left = _axes.reduced(shape, axes, options.keepdims)
        return Over(axes, left, () if options.keepdims else axes)


class Sum(_OverAxes):
    """The sum itself, and backward: a gradient repeated along the axes."""


class SumSquares(_OverAxes, SquareSum):
    """The sum of the squares, and backward."""

    def value_and_grad(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """value_and_grad(x, out=None) -> (value, grad)

        The sum of the squares of all of x, and its gradient 2 x, in one pass over x.

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
            With the bits of calling the op.
        grad : array

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> value, grad = fa.sum_squares.value_and_grad(np.array([1.0, 2.0, 3.0]))
        >>> print(value, grad)
        14.0 [2. 4. 6.]
        """
        where = self._where("value_and_grad")
        out, stream = validate.bind(where, {"out": None, "stream": None}, args, kwargs)
        outs = validate.outputs(where, out, 2)
        with Call(where, stream, x=x) as call:
            view = call.views["x"]
            axes = tuple(range(view.ndim))
            y, value = call.output("out[0]", outs[0], "x", shape=(), in_place=False)
            grad, made = call.output("out[1]", outs[1], "x")
            validate.apart(where, "out[1]", grad, {"out[0]": y})
            kept = y.with_axes(axes)
            workspace = call.workspace(call.native.sum_workspace(SQUARE, view, kept, axes))
            call.run("square_value_and_grad", view, kept, grad, workspace)
            return call.result(outs[0], value), call.result(outs[1], made)


sum = register(
    Sum(
        "sum",
        SumDoc(
            array="x",
            result="y",
            summary="y = the sum of x over the axes `axis`, accumulated in double.",
            parameters=_PARAMETERS,
            takes_numbers=True,
            wrong_type="an axis that is no integer",
            wrong_value="an axis out of range or named twice",
            notes=f"""\
{sum_notes(SUM_BOUNDS, "the sum of abs(x)")}, for up to 2**40
terms: float16, bfloat16 and float32 are summed in double and rounded once, blocks of 2048 terms are
added with compensation. 2**28 ones in bfloat16 sum to 2**28, and ``[3e38, 3e38, -3e38]`` in float32
to 3e38. Infinities and NaN propagate as in a plain sum.

Terms are added up in the order of the axes; where memory holds the axes that are summed over in
another order, as those of a transposed array, in memory's. But for that the bits depend on the
values and on the lengths that are summed over alone: they are the same for any number of threads,
on AVX2 and AVX-512, alone and in any batch, wherever x begins, however far and whichever way its
axes step. (On a GPU the strides of several axes that are summed over, and how the result lies in
memory, may count.)""",
            references=f"""\
{OGITA}
N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., chapter 4""",
            example="""\
>>> fa.sum(np.ones((2, 3), np.float32), axis=0)
array([2., 2., 2.], dtype=float32)
>>> fa.sum(np.array([[3e38], [3e38], [-3e38]], np.float32), axis=0)
array([3.e+38], dtype=float32)""",
            forward_example="""\
>>> y, saved = fa.sum.forward(np.ones((2, 3)), axis=0)
>>> fa.sum.backward(np.array([1.0, 2.0, 3.0]), *saved, axis=0)
array([[1., 2., 3.],
       [1., 2., 3.]])""",
            gradient="dy, repeated along the axes that were summed over.",
            backward_example="""\
>>> dx = np.ones(3)
>>> fa.sum.backward(0.5, (3,), out=dx, accumulate=True)
array([1.5, 1.5, 1.5])""",
        ),
    )
)

sum_squares = register(
    SumSquares(
        "sum_squares",
        SumDoc(
            array="x",
            result="y",
            summary="y = the sum of x**2 over the axes `axis`, squared and accumulated in double.",
            parameters=_PARAMETERS,
            takes_numbers=True,
            wrong_type="an axis that is no integer",
            wrong_value="an axis out of range or named twice",
            notes=f"""\
{sum_notes(SUM_BOUNDS, "the true sum")}, for up to 2**40
terms: the squares of float16, bfloat16 and float32 are exact in double, those of float64 are
rounded (and overflow from 1.3e154, vanish below 1.6e-162). The order of addition is that of
`fastact.sum`, and the bits are as independent of threads, instruction set and batch.""",
            example="""\
>>> fa.sum_squares(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1)
array([ 5., 25.])""",
            saved="x",
            forward_example="""\
>>> y, saved = fa.sum_squares.forward(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=0)
>>> fa.sum_squares.backward(np.array([1.0, 0.5]), *saved, axis=0)
array([[2., 2.],
       [6., 4.]])""",
            gradient="2 x dy, with dy repeated along the axes that were summed over; rounded once\n"
            "to float32 or float64, and then to x's dtype.",
            backward_example="""\
>>> fa.sum_squares.backward(1.0, np.array([1.0, 2.0, 3.0]))
array([2., 4., 6.])""",
        ),
    )
)
