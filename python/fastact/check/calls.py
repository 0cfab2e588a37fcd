"""The accuracy of ops, call by call: results and gradients in units of the bounds that they state.

A kind of op says on which data and in which ways it is called; one generator makes all calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from ..measure.cases import Case, Drawn, Shape, arguments, is_loss, needed
from ..measure.norm_rows import traits
from ..measure.sum_axes import reduces
from ..ops.bounds import (
    BiasBounds,
    CrossEntropyBounds,
    GateBounds,
    GatedBounds,
    NormBounds,
    NormRotaryBounds,
    SoftmaxBounds,
    computed_in,
)
from ..ops.engine.axes import others
from ..ops.engine.fused import IDENTITY, activations
from ..terminal import Progress
from .common import (
    Check,
    Float64s,
    Options,
    Report,
    add_rows,
    dtypes,
    mixed,
    near_1e30,
    uniform_at_1e4,
)
from .expected import Call, expected
from .expected.bias import expected_dx, expected_y

Draw = Callable[..., Float64s]
Named = dict[str, Any]
#: The options of calls that share a row of the table, by its names.
Ways = Iterable[tuple[tuple[str, ...], Sequence[Named]]]

_MANY = 16  # times as many rows, if the check is exhaustive


@dataclass(frozen=True)
class Kind:
    """A kind of op, and how it is called."""

    ways: Callable[[Any], Ways]  # to call an op
    shapes: Callable[[Any], Sequence[Shape]]  # the shapes of an op's data
    #: Draws for the first array, where its dtype has all of that, and for the first gradient;
    #: others are `mixed`.
    data: Sequence[tuple[Draw, Draw]] = ((mixed, mixed),)
    #: Arrays that may be left out and are not.
    optional: Callable[[Any], Sequence[Sequence[str]]] = lambda op: [op.differentiated]
    #: The arguments of calls, by those that were drawn.
    finished: Callable[[Any, Named], Iterable[Named]] = lambda op, given: [given]
    #: How a call is judged, by the names of its row.
    call: Callable[[tuple[str, ...]], type[Call]] = lambda names: Call

    def calls(
        self,
        op: Any,
        row: int,
        names: tuple[str, ...],
        ways: Sequence[Named],
        dtype: Any,
        options: Options,
    ) -> Iterator[Call]:
        """Make the calls of a row; all rows together have every call."""
        every = [*product(self.shapes(op), self.data, ways, self.optional(op))]
        step = min(options.stride, len(every))
        for (rows, *rest), (draw, draw_gradient), named, optional in every[row % step :: step]:
            shape = (rows * (_MANY if options.exhaustive else 1), *rest)
            arrays = partial(arguments, op, "call", shape, dtype.name, named, optional=optional)
            drawn, gradient = (Drawn(first, mixed) for first in (draw, draw_gradient))
            given = arrays(make=drawn)
            if not drawn.fits:
                given = arrays(make=Drawn(mixed, mixed))
            dys = arguments(op, "backward", shape, dtype.name, named, gradient)
            for each in self.finished(op, {**given, **named}):
                yield self.call(names)(op, shape, each, dys)


def check_of(
    kind: Kind,
    names: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    legend: str,
    of: type | tuple[type, ...],
    but: tuple[type, ...] = (),
    allowed: Mapping[str, float] = MappingProxyType({}),
) -> Check:
    """Return a check whose table has the worst errors over calls: a row for each way and dtype.

    names : what tells a way from the others. columns : the arrays whose errors are judged together:
    "results" are all of the op's, and so are "saves" and "gradients". allowed : the largest error
    that a column may have, where that is not 1.
    """

    def run(op: Any, options: Options, report: Report) -> None:
        every = [*product(kind.ways(op), dtypes(report))]
        with Progress(op.name, len(every)) as progress:
            for row, ((labels, ways), dtype) in enumerate(every):
                calls = [*kind.calls(op, row, labels, ways, dtype, options)]
                found, case = worst(op, calls, options), [op.name, *labels, dtype.name]
                add_rows(report, case, found, columns, options.isas, allowed=allowed)
                progress.advance(1)

    def worst(op: Any, calls: Sequence[Call], options: Options) -> dict[str, dict[str, float]]:
        """Return the worst error of each column, by the instruction set."""
        arrays = {
            column: {n for name in names for n in getattr(op, name, (name,))}
            for column, names in columns.items()
        }
        found: dict[str, dict[str, float]] = {}
        for isa in options.isas:
            _cpu.select_isa(isa)
            each = [(name, error) for call in calls for name, error in call.errors().items()]
            of_columns = {
                column: [error for name, error in each if name in judged]
                for column, judged in arrays.items()
            }
            found[isa] = {column: max(errors) for column, errors in of_columns.items() if errors}
        return found

    header = ["op", *names, "dtype", "by", *columns]
    return Check(run, header, len(names) + 3, legend, of=of, allowed=allowed, but=but)


# --- bias + activation ----------------------------------------------------------------------------


def _differ(result: NDArray[Any], expected: NDArray[Any]) -> int:
    """How many elements have other bits than what is expected, rounded once."""
    unsigned = f"u{result.itemsize}"
    rounded = expected.astype(result.dtype)
    return int(np.count_nonzero(result.view(unsigned) != rounded.view(unsigned)))


class _BitsOfSums(Call):
    """A call whose results have the bits of the activation itself."""

    def errors(self, *_: Any) -> dict[str, float]:
        """Count the wrong elements of y and dx; give the share of the bound that dbias has."""
        op, given = self.op, {**self.named, **self.incoming}
        y, (dx, dbias) = op.bound("call", self.named)(), op.bound("backward", given)()
        exact = expected(Case(op, "backward", self.shape, dx.dtype, given))["dbias"]
        name = self.named["activation"]
        of: list[Any] = [self.named.get(n) for n in ("x", "bias", "axis", "residual")]
        of_dx = expected_dx(name, self.incoming["dy"], *of)
        return {
            "y": _differ(y, expected_y(name, *of)),
            "dx": _differ(dx, of_dx),
            "dbias": exact.error(dbias),
        }


BIAS = check_of(
    Kind(
        ways=lambda op: [
            ((name,), [{"activation": name, "axis": axis} for axis in (-1, 1)])
            for name in (IDENTITY, *(each.name for each in activations()))
        ],
        shapes=lambda op: [(301, 77), (9, 13, 23, 5)],  # a layer's rows, and channels first
        optional=lambda op: [(), ("residual",)],
        call=lambda names: _BitsOfSums,
    ),
    ["activation"],
    {"y": ["y"], "dx": ["dx"], "dbias": ["dbias"]},
    """\
y, dx: elements that have not the bits of the activation itself, of x + bias + residual in the type
that is computed in, rounded once. dbias: its worst error in units of the bound of a sum.""",
    of=BiasBounds,
    allowed={"y": 0, "dx": 0},
)

# --- gated activations ----------------------------------------------------------------------------

# Ops that take any activation get none, a kink, a bounded and two unbounded ones: each activation
# is checked by an op of its own.
_ACTIVATIONS = (IDENTITY, "relu", "sigmoid", "silu", "mish")


def variants(op: Any) -> Iterator[tuple[str, Named]]:
    """Give arguments for an op: some activations, or the choices of an op that names its own."""
    takes = op.entry_points["call"].defaults
    if "activation" in takes:
        yield from ((name, {"activation": name}) for name in _ACTIVATIONS)
    else:
        yield op.activation_of({})[0].name, {}
        for named in op.trials:
            yield ", ".join(f"{name}={value}" for name, value in named.items()), named


GATED = check_of(
    Kind(
        ways=lambda op: [
            ((label,), [named, {**named, "limit": 1.5, "offset": 1.0}])
            for label, named in variants(op)
        ],
        shapes=lambda op: [(33, 19)],
        optional=lambda op: [(), ("bias",)],
    ),
    ["activation"],
    {"y": ["y"], "dx": ["dx", "da", "db"], "dbias": ["dbias"]},
    """\
The worst errors of y and of the gradients (dx, or da and db) in units of their bounds, with
and without a bias, a limit and an offset. The activation's bound is the largest part of them.""",
    of=GatedBounds,
)

# --- recurrent gates ------------------------------------------------------------------------------


def _normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> Float64s:
    return scale * rng.standard_normal(shape)


GATES = check_of(
    Kind(
        ways=lambda op: [((), [{"recompute": False}, {"recompute": True}])],
        shapes=lambda op: [(37, 300), (300, 20)],
        # Gates that open and shut, and gates that never move.
        data=[(_normal, _normal), (partial(_normal, scale=30.0), _normal)],
    ),
    [],
    {"states": ["results"], "gates": ["gates"], "gradients": ["gradients"]},
    """\
The worst errors of what a step gives, of the activated gates that it keeps and of the gradients,
dbias among them, in units of their bounds, which the docstrings tell, and the oracle's own error:
the rounding to the dtype is a part of them, and 16-bit results use all of it.""",
    of=GateBounds,
)

# --- norms ----------------------------------------------------------------------------------------


def _constant(rng: np.random.Generator, *shape: int) -> Float64s:
    """Repeat one number: after the norm only the bias is left."""
    return np.full(shape, -7.7)


def _nearly_constant(rng: np.random.Generator, *shape: int) -> Float64s:
    """One element off by a unit in the last place of bfloat16."""
    x = np.full(shape, 128.0)
    x[..., -1] = 129.0
    return x


def _one_huge(rng: np.random.Generator, *shape: int) -> Float64s:
    """Beside which the sums of the others are rounded."""
    x = rng.normal(size=shape)
    x[..., 0] = 3e4
    return x


def _biased(rng: np.random.Generator, *shape: int) -> Float64s:
    """Repeat one magnitude, so that sums round one way."""
    x = np.full(shape, rng.random() + 0.5)
    x[..., ::2] *= -1
    return x


def _norm_options(op: Any) -> dict[str, Named]:
    """The options of the ways to call an op, by the label of each where there are several."""
    kind = traits(op)
    usual: Named = ({kind.channels: 1} if kind.channels else {}) | (
        {"num_groups": 3} if kind.groups else {}
    )
    if kind.drops:
        return {"": {**usual, **needed(op)}}
    if kind.gated:
        return {"": usual, "gate first": {**usual, "gate_first": True}}
    if not kind.moves:
        return {"": usual}
    nobody = {**usual, "running_mean": None, "running_var": None, "training": True}
    ways = {"training": nobody, "halves": nobody, "running": usual}
    if "backward_reduce" not in op.entry_points:
        ways.pop("halves")
    return ways


def _with_statistics(op: Any, given: Named) -> Iterator[Named]:
    """Take the statistics that a call is given from the first half of x: they are not quite its."""
    kind, x = traits(op), given["x"]
    if kind.by_channel and "training" not in given:
        half = x[: (len(x) + 1) // 2].astype(np.float64)
        over = others((1,), x.ndim)
        mean, var = half.mean(over), 1.0 + half.var(over)
        if kind.moves:
            given |= {"running_mean": mean, "running_var": var}
        else:
            wide = computed_in(x.dtype)
            given |= {"mean": mean.astype(wide), "rstd": (1 / np.sqrt(var)).astype(wide)}
    yield given


class _Halves(Call):
    """A call whose backward is in two parts."""

    def errors(self, *_: Any) -> dict[str, float]:
        """Give the errors of dx, and those of the sums that it is made by."""
        of_dx = super().errors(backward_of=_by_halves)
        return of_dx | super().errors("backward_reduce")


def _by_halves(op: Any, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """dx by way of the sums."""
    x = given["x"]
    names = op.entry_points["backward_reduce"].gives
    sums = dict(zip(names, op.bound("backward_reduce", given)(), strict=True))
    count = x.size // x.shape[1]
    return (op.bound("backward_apply", {**given, **sums, "count": count})(),)


NORMS = check_of(
    Kind(
        ways=lambda op: [
            ((label, name), [{**named, "activation": name}])
            for (label, named), name in product(_norm_options(op).items(), (IDENTITY, "mish"))
        ],
        shapes=lambda op: (
            [(9, 12, 23, 5), (3, 6, 40, 41), (4, 6, 1, 1)]
            if traits(op).channels
            else [(301, 77), (9, 2500), (5, 1)]
        ),
        data=[
            *((draw, mixed) for draw in (_nearly_constant, mixed, _constant)),
            *((draw, mixed) for draw in (uniform_at_1e4, near_1e30)),
            *((draw, draw) for draw in (_one_huge, _biased)),
        ],
        finished=_with_statistics,
        call=lambda names: _Halves if "halves" in names else Call,
    ),
    ["call", "activation"],
    {
        "y": ["y"],
        "dx": ["dx", "dresidual"],
        "dweight": ["dweight", "sum_dy_xhat"],
        "dbias, dgate": ["dbias", "dgate", "sum_dy"],
    },
    """\
y, dx (dresidual, too), dweight, and dbias or dgate: the worst error in units of the stated
bound and the oracle's own, over data of both signs and four orders of magnitude, 1e4 + rand,
near 1e30 (where the dtype has that), constant, nearly constant, with one huge element, and such
whose roundings add up; rows of one element among them. The gradients are those for the
statistics that forward saved. Half a unit in the last place is a part of the bound: 16-bit
results use all of it.""",
    of=NormBounds,
    but=(NormRotaryBounds,),  # which wants angles
)

# --- softmax --------------------------------------------------------------------------------------


def _softmax_ways(op: Any) -> Ways:
    if is_loss(op):
        yield (), [{"reduction": "none", "label_smoothing": share} for share in (0.0, 0.1)]
    else:
        kept = {"keepdims": True} if reduces(op) else {}
        yield (), [{"axis": axis, **kept} for axis in (-1, 0)]  # 0: tiles of rows


def _with_targets(op: Any, given: Named) -> Iterator[Named]:
    """Let a loss have a weight for each class, and classes or probabilities."""
    if is_loss(op):
        rng, x = np.random.default_rng(1), given["logits"]
        given["weight"] = rng.uniform(0.5, 2, x.shape[1]).astype(computed_in(x.dtype))
        probable = rng.uniform(0, 2 / x.shape[1], x.shape).astype(x.dtype)
        yield {**given, "target": probable}
    yield given


SOFTMAX = check_of(
    Kind(
        ways=_softmax_ways,
        shapes=lambda op: [(301, 77), (9, 2500), (3, 9), (2, 70_001), (2500, 9)],
        # Normal data, whose exponentials are alike, or far apart.
        data=[(partial(_normal, scale=scale), _normal) for scale in (0.01, 3.0, 30.0, 2000.0)],
        finished=_with_targets,
    ),
    [],
    {"y": ["results"], "dx": ["gradients"]},
    """\
The worst errors of results and gradients in units of their bounds, which the docstrings tell, over
rows whose elements are alike or far apart, along the last axis and along the first. Gradients are
those for what forward saved.""",
    of=(SoftmaxBounds, CrossEntropyBounds),
)

# --- all others -----------------------------------------------------------------------------------


def _axes(op: Any) -> Ways:
    """Call an op along each axis that it may have."""
    has_axis = "axis" in op.entry_points["call"].defaults
    yield (), [{**needed(op), **({"axis": axis} if has_axis else {})} for axis in range(2)]


OTHER = check_of(
    Kind(ways=_axes, shapes=lambda op: [(34, 38)]),
    [],
    {"results": ["results", "saves"], "gradients": ["gradients"]},
    "The worst errors of results and of gradients, in units of their bounds.",
    of=object,
)
