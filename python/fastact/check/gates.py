"""The accuracy of the recurrent gates: states and gradients in units of their stated bounds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.bounds import GateBounds
from ..ops.engine.op import arrays_of
from .common import ErrorRow, Options, Report, check_by_cases, dtypes
from .expected.gates import Step, exact, of_backward, of_forward

_SHAPES = ((37, 300), (300, 20))
_MANY = 16  # times as many rows
_SCALES = (1.0, 30.0)  # of the summands: gates that open and shut, and gates that never move

Array = NDArray[Any]


def errors(step: Step) -> tuple[float, float, float]:
    """The largest errors of states, kept gates and gradients, in units of their bounds."""
    op, narrow = step.op, step.gates.dtype.itemsize < 4
    results, saved = op.forward(*step.arrays, **step.options)
    true = exact(step, saved if narrow and not step.recompute else ())
    states, gradients = of_forward(step, true), of_backward(step, true)
    made = zip(op.gradients, op.backward(*step.gradients, *saved, **step.again), strict=True)
    return (
        max(states[n].error(y) for n, y in zip(op.results, arrays_of(results), strict=True)),
        0.0 if step.recompute else states["gates"].error(saved[0]),
        max(gradients[name].error(dx) for name, dx in made if dx is not None),
    )


def random_step(
    op: Any,
    shape: tuple[int, ...],
    dtype: Any,
    scale: float = 1.0,
    seed: int = 0,
    *,
    recompute: bool = False,
) -> Step:
    """Normal numbers, with a recurrent projection and both biases."""
    rng = np.random.default_rng(seed)
    packed = (*shape[:-1], op.count * shape[-1])

    def normal(*of: int, times: float = 1.0) -> Array:
        return (rng.normal(size=of) * times).astype(dtype)

    return Step(
        op,
        normal(*packed, times=scale),
        normal(*shape),
        normal(*shape),
        normal(*packed, times=scale),
        normal(packed[-1]),
        normal(packed[-1]),
        normal(*shape) if "c" in op.results else None,
        recompute=recompute,
    )


def _steps(op: Any, dtype: Any, options: Options) -> Iterator[Step]:
    for (rows, columns), scale, recompute in product(_SHAPES, _SCALES, (False, True)):
        shape = (rows * _MANY if options.exhaustive else rows, columns)
        yield random_step(op, shape, dtype, scale, recompute=recompute)


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    for dtype in dtypes(report):
        yield ErrorRow((dtype.name,), partial(_steps, op, dtype, options), errors)


_LEGEND = """\
The worst errors of what a step gives, of the activated gates that it keeps and of the gradients,
dbias among them, in units of their bounds, which the docstrings tell, and the oracle's own error:
the rounding to the dtype is a part of them, and 16-bit results use all of it."""

CHECK = check_by_cases(
    _rows,
    ["dtype"],
    {"states": 1, "gates": 1, "gradients": 1},
    _LEGEND,
    of=GateBounds,
)
