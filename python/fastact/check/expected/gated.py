"""Gated activations, by the formula and the bounds that they state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...measure.cases import Case
from ...ops.bounds import (
    Activation,
    computed_in,
    is_narrow,
    rounding,
    unit_roundoff,
    unless_beyond,
)
from ...ops.engine.fused import IDENTITY
from .. import reference
from .common import Expected, activation_of, wide

Array = NDArray[Any]
Options = Mapping[str, Any]


def packed(op: Any, options: Options, a: Array, b: Array, axis: int) -> Array:
    """Lay two halves along an axis as the op has them in one array."""
    length, shape = a.shape[axis], list(a.shape)
    shape[axis] = 2 * length
    made = np.empty(shape, a.dtype)
    halves = op.halves({**op.entry_points["call"].defaults, **options}, 2 * length)
    for half, (first, step) in zip((a, b), halves, strict=True):
        np.moveaxis(made, axis, 0)[first::step][:length] = np.moveaxis(half, axis, 0)
    return made


def parts(op: Any, options: Options, array: Array, axis: int) -> tuple[Array, Array]:
    """Give the two halves of such an array."""
    moved = np.moveaxis(array, axis, 0)
    halves = op.halves({**op.entry_points["call"].defaults, **options}, len(moved))
    a, b = (np.moveaxis(moved[first::step][: len(moved) // 2], 0, axis) for first, step in halves)
    return a, b


class _Gated:
    """A call by its a and b, whatever it takes itself.

    y = act(z) c, with z = min(a, limit) and c = clip(b) + offset, of what was added to a and b.
    """

    def __init__(self, case: Case) -> None:
        op, dtype, axis = case.op, case.dtype, case.option("axis")
        self.case, self.bounds, self.dtype, self.axis = case, op.bounds, dtype, axis
        self.info = np.finfo(computed_in(dtype))
        self.act, given = _activation(case), ("limit", "offset")
        self.limit, offset = (self._held(case.option(name)) for name in given)
        self.biases: Any = (None, None)
        if case.has("bias"):
            self.biases = parts(op, case.given, case.array("bias"), 0)
        if op.packed:
            halves = parts(op, case.given, case.array("x"), axis)
        else:
            halves = case.array("a"), case.array("b").astype(dtype)
        (self.a, of_a), (self.b, of_b) = map(self._added, halves, self.biases)
        self.z = np.minimum(self.a, self.limit)
        self.c = np.clip(self.b, -self.limit, self.limit) + offset
        self.u = unit_roundoff(dtype)
        self.of_z, self.of_b = (self.bounds.sums * self.u * size for size in (of_a, of_b))
        self.of_c = self.of_b + self.u * np.abs(self.c if offset else 0.0)
        self.of_act = self.act.of_value(self.z, self.of_z, dtype)
        # Elements that overflow on the way, and places where the oracle lacks a limit.
        self.usual = np.isfinite(self.a) & np.isfinite(self.b)

    def _held(self, number: float | None) -> float:
        """Give the limit or the offset as the kernels have it."""
        return math.inf if number is None else float(self.info.dtype.type(number))

    def _added(self, half: Array, bias: Array | None) -> tuple[Any, Any]:
        """Give a half with its bias, and the magnitudes that were added up, 0 without any."""
        x = wide(half, self.dtype)
        if bias is None:
            return x, np.zeros(half.shape)
        more = reference.along(wide(bias, self.dtype), x.ndim, self.axis)
        return x + more, np.abs(x) + np.abs(more)

    def y(self) -> Expected:
        value, nan = self.act.value(self.z), np.isnan(self.a) | np.isnan(self.b)
        y = value * self.c
        error = np.abs(self.c) * self.of_act + (np.abs(value) + self.of_act) * self.of_c
        narrow = self.u * (np.abs(y) + error) if is_narrow(self.dtype) else 0.0
        error = error + narrow + rounding(y, self.dtype, error)
        fits = np.abs(value) <= self.info.max  # beyond, it is infinite before it is scaled
        return Expected(y, error, False, self.usual & fits & np.isfinite(y), nan)

    def gradients(self) -> dict[str, Expected]:
        case, bounds, act, dtype = self.case, self.bounds, self.act, self.dtype
        a, b, z, c, limit = self.a, self.b, self.z, self.c, self.limit
        dy = wide(case.array("dy").astype(dtype), dtype)
        value, slope = act.value(z), act.slope(z)
        da = np.where(a > limit, 0, dy * c) * slope
        db = np.where(np.abs(b) > limit, 0, dy * value)
        g, u = dy * c, self.u
        of_g = np.abs(dy) * self.of_c + u * np.abs(g)
        of_da = act.of_gradient(np.abs(g) + of_g, z, self.of_z, dtype) + of_g * np.abs(slope)
        of_da = unless_beyond(g, dtype, of_da)
        of_db = np.abs(dy) * (self.of_act + u * (np.abs(value) + self.of_act))
        # A sum that is at the limit within its error may have its gradient or 0.
        of_da = of_da + np.where(np.abs(a - limit) <= self.of_z, np.abs(g * slope), 0)
        at_limit = np.abs(np.abs(b) - limit)
        of_db = of_db + np.where(at_limit <= self.of_b, np.abs(dy * value), 0)
        # Products on the way that are too large, or that are subnormal numbers.
        usual = self.usual & (np.abs(dy * c) < self.info.max) & np.isfinite(slope)
        tiny = float(self.info.smallest_subnormal) * (1 + np.abs(slope))
        judged = [usual & (np.abs(d) < self.info.max) for d in (da, db)]
        others = tuple(i for i in range(z.ndim) if i != self.axis % max(z.ndim, 1))
        total, each, sums = partial(np.sum, axis=others), [], []
        kept = (judged[0] & judged[1]).all(others)
        for d, of_d, fits, bias in zip((da, db), (of_da, of_db), judged, self.biases, strict=True):
            each.append((d, of_d + rounding(d, dtype, of_d) + tiny, fits))
            if bias is not None:  # a sum has the errors of all its terms, whatever its dtype
                exact, size, of_terms = map(total, (d, np.abs(d), of_d))
                error = bounds.dbias.allowed(exact, size, bias.dtype, of_terms)
                judged_sum = kept & (np.abs(exact) < 1e300)
                sums.append((exact, error + total(tiny), judged_sum))
        found = {
            n: Expected(*of[:2], False, of[2]) for n, of in zip(("da", "db"), each, strict=True)
        }
        if case.op.packed:
            found = {"dx": self._both(each, self.axis)}
        return found | ({"dbias": self._both(sums, 0)} if sums else {})

    def _both(self, halves: Sequence[Any], axis: int) -> Expected:
        case = self.case
        exact, error, judged = (
            packed(case.op, case.given, a, b, axis) for a, b in zip(*halves, strict=True)
        )
        return Expected(exact, error, False, judged)


def _activation(case: Case) -> Activation:
    op, own = case.op.activation_of(case.given)
    if op is None:
        return activation_of(IDENTITY)
    return activation_of(op.name, case.on_gpu, **({} if own == dict(op.parameters) else own))


def expected(case: Case) -> dict[str, Expected]:
    call = _Gated(case)
    return call.gradients() if case.entry == "backward" else {"y": call.y()}
