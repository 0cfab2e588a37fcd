"""The accuracy of gated activations: against the formula in higher precision, by their bounds."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.bounds import Activation, GatedBounds, computed_in
from .common import ErrorRow, Options, Report, check_by_cases
from .reductions import dtypes, mixed

_ROWS, _MANY, _COLUMNS = 33, 16, 19  # rows, times as many
_HELD = {"limit": 1.5, "offset": 1.0}
_IDENTITY = "identity"
# Of ops that take any: nothing, a kink, what is bounded, what is not. Each is checked as itself.
_ACTIVATIONS = (_IDENTITY, "relu", "sigmoid", "silu", "mish")

Array = NDArray[Any]
_JUDGED = ("y", "da", "db", "dbias")


@dataclass(frozen=True)
class Case:
    """A call of an op by arrays of its a and b, whatever it takes itself.

    named : its options. bias : what is added to a and to b along `axis`; None: nothing.
    """

    op: Any
    a: Array
    b: Array
    dy: Array
    named: Mapping[str, Any]
    bias: tuple[Array, Array] | None = None
    on_gpu: bool = False

    @property
    def axis(self) -> int:
        return int(self.named.get("axis", -1))

    @property
    def options(self) -> dict[str, Any]:
        """All of the call's, defaults too."""
        return {**self.op.entry_points["call"].defaults, **self.named}

    def packed(self, a: Array, b: Array, axis: int) -> Array:
        """Two halves as the op has them in one array."""
        length = a.shape[axis]
        shape = list(a.shape)
        shape[axis] = 2 * length
        made = np.empty(shape, a.dtype)
        for half, (first, step) in zip(
            (a, b), self.op.halves(self.options, 2 * length), strict=True
        ):
            np.moveaxis(made, axis, 0)[first::step][:length] = np.moveaxis(half, axis, 0)
        return made

    def parts(self, packed: Array, axis: int) -> tuple[Array, Array]:
        """Such an array's two halves."""
        moved = np.moveaxis(packed, axis, 0)
        length = len(moved) // 2
        a, b = (
            np.moveaxis(moved[first::step][:length], 0, axis)
            for first, step in self.op.halves(self.options, 2 * length)
        )
        return a, b

    @cached_property
    def arrays(self) -> tuple[Array, ...]:
        """What the op takes by position."""
        return (self.packed(self.a, self.b, self.axis),) if self.op.packed else (self.a, self.b)

    @cached_property
    def packed_bias(self) -> Array | None:
        return None if self.bias is None else self.packed(*self.bias, 0)

    def call(self, of: Callable[[Array], Any] = lambda a: a) -> Any:
        """y. of: makes an array of another framework of NumPy's."""
        bias = {} if self.packed_bias is None else {"bias": of(self.packed_bias)}
        return self.op(*map(of, self.arrays), **self.named, **bias)

    def backward(self, of: Callable[[Array], Any] = lambda a: a, **more: Any) -> tuple[Any, ...]:
        """The gradients: dx, or da and db, and perhaps dbias."""
        bias = None if self.packed_bias is None else of(self.packed_bias)
        made = self.op.backward(of(self.dy), *map(of, self.arrays), bias, **self.named, **more)
        return made if isinstance(made, tuple) else (made,)

    def gradients(self, made: tuple[Array, ...]) -> dict[str, Array]:
        """da, db and the halves of dbias, of what backward gave."""
        found = dict(
            zip(
                ("da", "db"),
                self.parts(made[0], self.axis) if self.op.packed else made[:2],
                strict=True,
            )
        )
        if self.bias is not None:
            found |= dict(zip(("dbias_a", "dbias_b"), self.parts(made[-1], 0), strict=True))
        return found

    # --- what is right ----------------------------------------------------------------------------

    @cached_property
    def oracle(self) -> Any:
        """`reference.Gated`, of numbers as the kernels have them."""
        reference = importlib.import_module("fastact.check.reference")
        options, dtype = self.options, self.a.dtype
        compute, wide = computed_in(dtype), reference.wide(dtype)
        activation, own = self.op.activation_of(self.named)
        a, b = self.a.astype(wide), self.b.astype(wide)
        if self.bias is not None:
            a, b = (
                x + reference.along(half.astype(wide), x.ndim, self.axis)
                for x, half in zip((a, b), self.bias, strict=True)
            )
        limit = math.inf if options["limit"] is None else float(compute.type(options["limit"]))
        offset = float(compute.type(options["offset"]))
        name = _IDENTITY if activation is None else activation.name
        own = {} if activation is None or own == dict(activation.parameters) else own
        return reference.Gated(name, a, b, limit, offset, own)

    @cached_property
    def judged(self) -> dict[str, tuple[Any, Any]]:
        """y, da, db and the halves of dbias, each with how far from it an op may be."""
        reference = importlib.import_module("fastact.check.reference")
        exact, bounds, dtype = self.oracle, self.op.bounds, self.a.dtype
        activation, _ = self.op.activation_of(self.named)
        own = None if activation is None else activation.bounds
        act = Activation(own, exact.value, exact.slope, self.on_gpu)
        dy = self.dy.astype(exact.a.dtype)
        with np.errstate(all="ignore"):
            of_a, of_b = (
                np.zeros(x.shape)
                if self.bias is None
                else np.abs(x) + reference.along(np.abs(half.astype(float)), x.ndim, self.axis)
                for x, half in zip(
                    (self.a.astype(float), self.b.astype(float)),
                    self.bias or (self.a, self.b),
                    strict=True,
                )
            )
            z, c = exact.z, exact.c
            of_z = bounds.of_gate(of_a, dtype)
            of_c = bounds.of_factor(of_b, c if exact.offset else 0.0, dtype)
            found = {"y": (exact.y, bounds.allowed_y(act, z, of_z, c, of_c, dtype))}
            of_da = bounds.of_da(act, dy, z, of_z, c, of_c, dtype)
            of_db = bounds.of_db(act, dy, z, of_z, dtype)
            # Where a sum is at the limit but for its error, its gradient may be there or 0.
            of_da = np.where(
                np.abs(exact.a - exact.limit) <= of_z,
                of_da + np.abs(dy * c * exact.slope(z)),
                of_da,
            )
            of_db = np.where(
                np.abs(np.abs(exact.b) - exact.limit) <= bounds.of_gate(of_b, dtype),
                of_db + np.abs(dy * exact.value(z)),
                of_db,
            )
            others = tuple(i for i in range(z.ndim) if i != self.axis % max(z.ndim, 1))
            for name, of, error in (("a", exact.da(dy), of_da), ("b", exact.db(dy), of_db)):
                found[f"d{name}"] = (of, bounds.allowed_gradient(of, error, dtype))
                if self.bias is not None:
                    to, total = self.bias[0].dtype, partial(np.sum, axis=others)
                    allowed = bounds.allowed_dbias(of, error, to, total)
                    found[f"dbias_{name}"] = (total(of), allowed)
        return {
            name: (of, (1 + reference.BUDGET) * np.asarray(e)) for name, (of, e) in found.items()
        }

    def errors(self, y: Array, made: tuple[Array, ...]) -> dict[str, float]:
        """The worst errors, each divided by its bound."""
        reference = importlib.import_module("fastact.check.reference")
        found = {"y": y, **self.gradients(made)}
        return {name: reference.excess(found[name], *self.judged[name]) for name in found}


def variants(op: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """What to call an op with: some activations, or the choices of one that names its own."""
    takes = op.entry_points["call"].defaults
    if "activation" in takes:
        yield from ((name, {"activation": name}) for name in _ACTIVATIONS)
    else:
        yield op.activation_of({})[0].name, {}
    for name, values in (("alpha", (1.702,)), ("approximate", ("tanh",))):
        if name in takes:
            yield from ((f"{name}={value}", {name: value}) for value in values)


def _cases(op: Any, named: dict[str, Any], dtype: Any, options: Options) -> Iterator[Case]:
    rng = np.random.default_rng(0)
    rows = _ROWS * _MANY if options.exhaustive else _ROWS
    for held, has_bias in product(({}, _HELD), (False, True)):
        a, b, dy = (mixed(rng, rows, _COLUMNS).astype(dtype) for _ in range(3))
        bias = tuple(mixed(rng, _COLUMNS).astype(dtype) for _ in range(2)) if has_bias else None
        yield Case(op, a, b, dy, {**named, **held}, bias)  # type: ignore[arg-type]


def _errors(case: Case) -> tuple[float, ...]:
    found = dict.fromkeys(_JUDGED, 0.0)
    for name, error in case.errors(case.call(), case.backward()).items():
        short = name.split("_")[0]
        found[short] = max(found[short], error)
    return tuple(found.values())


def _rows(op: Any, options: Options, report: Report) -> Iterator[ErrorRow]:
    for (label, named), (dtype, _) in product(variants(op), dtypes(report)):
        yield ErrorRow((label, dtype.name), partial(_cases, op, named, dtype, options), _errors)


_LEGEND = """\
The worst errors of y and of the gradients in units of their bounds and the oracle's own error, with
and without a bias, a limit and an offset. The activation's bound is the largest part of them."""

CHECK = check_by_cases(
    _rows, ["activation", "dtype"], dict.fromkeys(_JUDGED, 1), _LEGEND, of=GatedBounds
)
