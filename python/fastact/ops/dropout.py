"""Dropout: elements of an array are dropped at random, by a mask that is never stored.

The generator and the formula are in `src/common/bias/dropout.h`, next to the other ops that add a
residual; the oracle's are in `check/reference.py`.
"""

from __future__ import annotations

from functools import partial
from typing import Any, SupportsIndex, Unpack

from ..interop import validate
from .bounds import DropoutBounds
from .engine import axes
from .engine.entry import Arg
from .engine.execute import Execution
from .engine.op import Kernels, P, R, Traits, declared, records
from .engine.served import CachedOp
from .types import A, ArrayOrNumber, Kwargs, Out, Stream


def _probability(where: str, name: str, value: Any) -> float:
    p = validate.number(where, name, value)
    validate.rule(where, f"{name} must be from 0 to 1", lambda p: 0 <= p <= 1, {name: p})
    return p


def _seed(where: str, name: str, value: Any) -> int:
    return axes.within(where, name, value, -(2**63), 2**64 - 1) % 2**64


class DropoutOp(CachedOp[P, R]):
    """Dropout by an element's number, and backward, which draws the mask again."""

    family = "dropout"
    bounds = DropoutBounds(scale=2)
    saves = ()
    args = records(residual=Arg(shares="y"))
    kernels = Kernels({"forward": "dropout"})
    checks = records(
        p=_probability, seed=_seed, offset=partial(axes.within, least=0, most=2**63 - 1)
    )
    traits = Traits(counts_elements=True)

    def backward(self, dy: ArrayOrNumber, /, *given: Any, **options: Unpack[Kwargs[Any]]) -> Any:
        """Compute the gradient with respect to x: ``dx = np.where(kept, dy / (1 - p), 0)``.

        It is dropout of dy with the same mask. The gradient with respect to the residual is dy.

        Notes
        -----
        Before it is rounded to dy's dtype, dx is within 2 u abs(dy) / (1 - p) of the true value.
        """

    def _run_backward(self, now: Execution) -> None:
        now.run("dropout", x=now.views["dy"], residual=None, y=now.view("dx"))


@declared(DropoutOp)
def dropout(
    x: A,
    /,
    p: float,
    *,
    seed: SupportsIndex,
    offset: SupportsIndex = 0,
    residual: ArrayOrNumber | None = None,
    out: Out[A] = None,
    stream: Stream = None,
) -> A:
    """Dropout, and a residual that is added to it.

    ``y = np.where(kept, x / (1 - p), 0) + residual``, where an element is kept with probability 1 -
    p.

    Parameters
    ----------
    offset : int, default 0
        The number of the first element, from 0 to 2**63 - 1. It lets the parts of an array have the
        mask of the whole.

    See Also
    --------
    add_layer_norm : A residual added before a norm.

    Notes
    -----
    Whether an element is kept depends only on seed, p and the element's number, which is its index
    in C order plus `offset`. It does not depend on the number of threads, the layout in memory, the
    dtype or the device. Element i has the word ``i % 4`` of the block ``i // 4`` of Philox 4x32-10,
    with the seed as the key (its lower 32 bits first), and ``i // 4`` as the lower 64 bits of the
    counter. It is kept where that word is at least ``round(p * 2**32)``.

    A dropped element gives 0, even where x is infinite or NaN. The others are multiplied by 1 / (1
    - p), which is rounded once. Before it is rounded to x's dtype, y is within 2 u abs(x) / (1 - p)
    of the true value, with u = 2**-24 (float64: 2**-53); a residual adds u abs(y).

    `dropout.forward` saves nothing; `dropout.backward` draws the mask again.

    References
    ----------
    J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, "Parallel Random Numbers: As Easy as 1,
    2, 3", SC 2011, https://doi.org/10.1145/2063384.2063405

    N. Srivastava, G. Hinton, A. Krizhevsky, I. Sutskever and R. Salakhutdinov, "Dropout: A Simple
    Way to Prevent Neural Networks from Overfitting", JMLR 15 (2014)

    Examples
    --------
    >>> fa.dropout(np.arange(1.0, 7.0), 0.5, seed=3)
    array([ 2.,  0.,  6.,  8.,  0., 12.])
    >>> fa.dropout(np.arange(4.0, 7.0), 0.5, seed=3, offset=3)
    array([ 8.,  0., 12.])
    >>> y, saved = fa.dropout.forward(np.arange(1.0, 7.0), 0.5, seed=3)
    >>> fa.dropout.backward(np.ones(6), *saved, 0.5, seed=3)
    array([2., 0., 2., 2., 0., 2.])
    """
