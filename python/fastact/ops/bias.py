"""Bias: an activation of x + bias + residual in one pass, and the gradients of broadcasting.

`bias_grad` and `unbroadcast` are sums over axes (`reductions`) under the names that a network's
backward pass knows them by. `bias_act` (`bias_act.py`) fuses any activation of `fastact.ops`.
"""

from typing import Any

from .._cpu import View
from . import axes as _axes
from .bias_act import bias_act as bias_act
from .op_before import REQUIRED, Takes, register
from .reduction import AxisSum, Over, Shape
from .reduction_docs import SumDoc


class BiasGrad(AxisSum):
    """A sum over every axis but one, and backward."""

    def _over(self, where: str, options: Any, shape: Shape) -> Over:
        axis = _axes.one(where, options.axis, len(shape))
        others = _axes.all_but(axis, len(shape))
        return Over(others, (shape[axis],), others)


class Unbroadcast(AxisSum):
    """The gradient of broadcasting: a sum over the axes that broadcasting repeats."""

    def _over(self, where: str, options: Any, shape: Shape) -> Over:
        to = _axes.lengths(where, "shape", options.shape)
        axes = _axes.unbroadcast(where, to, shape)
        return Over(axes, to, tuple(range(len(shape) - len(to))))

    def _over_back(self, where: str, options: Any, shape: Shape, dy: View | None) -> Over:
        if dy is None:
            return Over((), (), tuple(range(len(shape))))
        if not _axes.broadcasts(dy.shape, shape):
            raise ValueError(
                f"{where}: dy must have a shape that broadcasts to {shape}, got {dy.shape}"
            )
        return Over((), dy.shape, tuple(range(len(shape) - dy.ndim)))


_AXIS = Takes(only={"axis": -1}, accumulates=True)

bias_grad = register(
    BiasGrad(
        "bias_grad",
        "bias",
        _AXIS,
        _AXIS,
        SumDoc(
            array="dy",
            result="dbias",
            summary="The gradient of a bias, 1-D: the sum of dy over every axis but `axis`.",
            parameters="""\
axis : int
    The bias's axis: -1 for rows and channels last, 1 for NCHW.
""",
            wrong_type="an axis that is no integer",
            wrong_value="an axis out of range",
            notes="""\
As accurate as `fastact.sum`, and always of the same bits: 1600 ones in bfloat16 are 1600. One read
of the data.""",
            example="""\
>>> fa.bias_grad(np.array([[1.0, 2.0], [3.0, 4.0]]))
array([4., 6.])
>>> fa.bias_grad(np.ones((2, 3, 5, 5), np.float32), axis=1)
array([50., 50., 50.], dtype=float32)""",
            forward_example="""\
>>> dbias, saved = fa.bias_grad.forward(np.ones((2, 3)))
>>> fa.bias_grad.backward(np.array([1.0, 2.0, 3.0]), *saved)
array([[1., 2., 3.],
       [1., 2., 3.]])""",
            gradient="dy, repeated along every axis but `axis`: what adding a bias does.",
            backward_example="""\
>>> fa.bias_grad.backward(np.array([1.0, 2.0]), (2, 3), axis=0)
array([[1., 1., 1.],
       [2., 2., 2.]])""",
        ),
    )
)

unbroadcast = register(
    Unbroadcast(
        "unbroadcast",
        "bias",
        Takes({"shape": REQUIRED}, accumulates=True),
        Takes(accumulates=True),
        SumDoc(
            array="dy",
            result="dx",
            summary="""\
The gradient of broadcasting an array of `shape` to the shape of dy: the sum of dy over the axes
that broadcasting repeats.""",
            parameters="""\
shape : tuple of int
    A shape that NumPy broadcasts to that of dy.
""",
            wrong_type="a shape that is no tuple of integers",
            wrong_value="a shape that does not broadcast to that of dy",
            notes="As accurate as `fastact.sum`, and always of the same bits.",
            references="""\
NumPy, "Broadcasting", https://numpy.org/doc/stable/user/basics.broadcasting.html""",
            example="""\
>>> fa.unbroadcast(np.ones((4, 2, 3)), (2, 1))
array([[12.],
       [12.]])""",
            forward_example="""\
>>> dx, saved = fa.unbroadcast.forward(np.ones((2, 3)), (2, 1))
>>> fa.unbroadcast.backward(dx, *saved)
array([[3., 3., 3.],
       [3., 3., 3.]])""",
            gradient="dy, broadcast to `shape` as NumPy does it.",
            backward_example="""\
>>> fa.unbroadcast.backward(np.array([1.0, 2.0]), (3, 2))
array([[1., 2.],
       [1., 2.],
       [1., 2.]])""",
        ),
    )
)
