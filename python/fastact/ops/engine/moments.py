"""Parts that sums and statistics share: the moments of what counts, and gradients for it.

The order of the terms and the error bound are in `src/cpu/reductions/kernels.h`, the formulas with
weights and a mask in `src/common/reductions/weights.h`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ... import _cpu
from ..._cpu import View
from ...interop import validate
from ...interop.call import Call
from .execute import Execution
from .weighting import SAVED

#: The kernels make one of these of m2.
NOTHING, M2, VARIANCE, DEVIATION, MEAN_SLOPE, VARIANCE_SLOPE, DEVIATION_SLOPE, TOTAL, M2_OR_ROOT = (
    range(len(_cpu.OF_M2))
)

#: The number of the sum of the elements themselves.
IDENTITY = _cpu.TERMS.index("identity")

#: The number of the product of an element and its weight, among the terms of two arrays.
PRODUCT = _cpu.PAIRS.index("product")

_RESULTS = ("mean", "low", "second", "count")


def is_weighted(now: Execution) -> bool:
    """Whether weights or a mask say how often elements count, or labels for what."""
    return not now.views.keys().isdisjoint(SAVED)


def over_x(now: Execution, view: View) -> View:
    """A number of each result over x's shape; by groups it stays one of each."""
    grouped = now.shapes.grouped
    return view.broadcast_to(grouped or now.shapes.whole)


def reduce_moments(
    now: Execution,
    results: Mapping[str, View | None],
    of_m2: int,
    correction: float = 0.0,
    skips: bool = False,
    warning: str | None = None,
    term: int = IDENTITY,
    pair: int = PRODUCT,
) -> None:
    """Compute moments of x, which is not empty; a total by groups is of a term, others of a pair.

    results : where to write mean, what its rounding lost ("low"), what becomes of m2 ("second"),
    and the count.
    """
    given = {name: view for name, view in results.items() if view is not None}
    steps = [validate.steps(view) for view in given.values()]
    each = [given]
    if any(other != steps[0] for other in steps):  # it walks results by one set of strides
        each = [{name: view} for name, view in given.items()]
    options: Any = {"of_m2": of_m2, "correction": correction, "skips": skips, "warning": warning}
    function, names = "moments", list(_RESULTS)
    kind: Any = {"pair": pair}
    if now.shapes.grouped:
        function, names = "grouped", [name for name in _RESULTS if name != "low"]
        kind = {"term": term, **_labels(now, now.views[now.leader])}
    for views in each:
        now.run(function, **{**options, **kind, **dict.fromkeys(names), **views})


def _labels(now: Execution, x: View) -> dict[str, Any]:
    """Find what native functions by groups take besides."""
    return {"labels": now.seen("by", x), "op": now.where}


def weighted_gradient(now: Execution, to: View, **given: Any) -> None:
    """The gradient for x, or for the weights, by `src/common/reductions/weights.h`.

    slope : the factor of dy; 1 where none is given.
    of_mean : what the mean's gradient adds; None: nothing.
    term : of a sum without a mean. pair : of a sum of terms of x and the weights.
    to_weights : of a pair, where the weights' gradient goes beside x's; None: nowhere.
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


def fill(call: Call, y: View, value: float) -> None:
    """Write a number to an array."""
    call.run("broadcast", x=call.repeated(value, y), y=y, accumulate=False)
