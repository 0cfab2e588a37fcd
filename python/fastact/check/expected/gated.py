"""Gated activations, by the formula and the bounds that they state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...measure.cases import Case
from ...ops.bounds import Activation, computed_in, rounding
from ...ops.engine.fused import IDENTITY
from .. import reference
from .common import Expected, activation_of, wide

Array = NDArray[Any]


@dataclass(frozen=True)
class GatedCall:
    """A call of an op by arrays of its a and b, whatever it takes itself.

    y = act(z) c, with z = min(a, limit) and c = clip(b) + offset, of what was added to a and b.

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

    def _held(self, name: str) -> float:
        """The limit or the offset, as the kernels have it."""
        value = self.options[name]
        return math.inf if value is None else float(computed_in(self.a.dtype).type(value))

    @cached_property
    def act(self) -> Activation:
        activation, own = self.op.activation_of(self.named)
        if activation is None:
            return activation_of(IDENTITY)
        own = {} if own == dict(activation.parameters) else own
        return activation_of(activation.name, self.on_gpu, **own)

    @cached_property
    def sums(self) -> list[tuple[Any, Any]]:
        """a and b with their biases, and the magnitudes that were added up, 0 without any."""
        found = []
        for half, bias in zip((self.a, self.b), self.bias or (None, None), strict=True):
            x, size = wide(half, self.a.dtype), np.zeros(half.shape)
            if bias is not None:
                more = reference.along(wide(bias, self.a.dtype), x.ndim, self.axis)
                x, size = x + more, np.abs(x) + np.abs(more)
            found.append((x, size))
        return found

    @cached_property
    def z(self) -> Any:
        return np.minimum(self.sums[0][0], self._held("limit"))

    @cached_property
    def c(self) -> Any:
        limit = self._held("limit")
        return np.clip(self.sums[1][0], -limit, limit) + self._held("offset")

    @cached_property
    def judged(self) -> dict[str, tuple[Any, Any]]:
        """y, da, db and the halves of dbias, each with how far from it an op may be."""
        bounds, dtype, act, limit = self.op.bounds, self.a.dtype, self.act, self._held("limit")
        dy, z, c, ((a, of_a), (b, of_b)) = wide(self.dy, dtype), self.z, self.c, self.sums
        with np.errstate(all="ignore"):
            value, slope = act.value(z), act.slope(z)
            of_z = bounds.of_gate(of_a, dtype)
            of_c = bounds.of_factor(of_b, c if self._held("offset") else 0.0, dtype)
            found = {"y": (value * c, bounds.allowed_y(act, z, of_z, c, of_c, dtype))}
            # A sum that is at the limit within its error may have its gradient or 0.
            of_da = bounds.of_da(act, dy, z, of_z, c, of_c, dtype)
            of_da = of_da + np.where(np.abs(a - limit) <= of_z, np.abs(dy * c * slope), 0)
            of_db, at_limit = bounds.of_db(act, dy, z, of_z, dtype), np.abs(np.abs(b) - limit)
            of_db = of_db + np.where(at_limit <= bounds.of_gate(of_b, dtype), np.abs(dy * value), 0)
            da = np.where(a > limit, 0, dy * c) * slope
            db = np.where(np.abs(b) > limit, 0, dy * value)
            others = tuple(i for i in range(z.ndim) if i != self.axis % max(z.ndim, 1))
            for name, of, error in (("a", da, of_da), ("b", db, of_db)):
                found[f"d{name}"] = (of, error + rounding(of, dtype, error))
                if self.bias is not None:
                    exact, size, error = (np.sum(a, others) for a in (of, np.abs(of), error))
                    allowed = bounds.dbias.allowed(exact, size, self.bias[0].dtype, error)
                    found[f"dbias_{name}"] = (exact, allowed)
        return {
            name: (of, (1 + reference.BUDGET) * np.asarray(e)) for name, (of, e) in found.items()
        }


def expected(case: Case) -> dict[str, Expected]:
    """y, or the gradients."""
    op, dtype, axis = case.op, case.dtype, case.option("axis")
    arrays = ("x", "a", "b", "dy", "bias")
    options = {name: value for name, value in case.given.items() if name not in arrays}
    named = {**options, "axis": axis}
    nothing = np.zeros(1)
    shaped = GatedCall(op, nothing, nothing, nothing, named)
    if op.packed:
        a, b = shaped.parts(case.array("x"), axis)
    else:
        a, b = case.array("a"), case.array("b").astype(dtype)
    bias = shaped.parts(case.array("bias"), 0) if case.has("bias") else None
    dy = case.array("dy").astype(dtype) if case.has("dy") else np.ones(a.shape, dtype)
    call = GatedCall(op, a, b, dy, named, bias, case.on_gpu)
    judged, sums = call.judged, [total for total, _ in call.sums]
    # Elements that overflow on the way, and places where the oracle lacks a limit, are not judged.
    usual = np.isfinite(sums[0]) & np.isfinite(sums[1])
    if case.entry != "backward":
        y, error = judged["y"]
        nan = np.isnan(sums[0]) | np.isnan(sums[1])
        return {"y": Expected(y, error, False, usual & np.isfinite(y), nan)}
    # Products on the way that are too large, or that are subnormal numbers.
    info = np.finfo(computed_in(dtype))
    g, slope = wide(dy, dtype) * call.c, call.act.slope(call.z)
    tiny = float(info.smallest_subnormal) * (1 + np.abs(slope))
    usual = usual & (np.abs(g) < info.max) & np.isfinite(slope)
    parts = [(exact, error + tiny) for exact, error in (judged["da"], judged["db"])]
    of = [usual & (np.abs(exact) < info.max) for exact, _ in parts]
    if op.packed:
        exact, error = (call.packed(p, q, axis) for p, q in zip(*parts, strict=True))
        found = {"dx": Expected(exact, error, False, call.packed(of[0], of[1], axis))}
    else:
        each = zip(("da", "db"), parts, of, strict=True)
        found = {name: Expected(*part, False, where) for name, part, where in each}
    if bias is not None:
        found["dbias"] = _dbias(call, tiny, of[0] & of[1])
    return found


def _dbias(call: GatedCall, tiny: Any, usual: Any) -> Expected:
    """Sum the gradient of the bias of both halves over all axes but one."""
    others = tuple(i for i in range(tiny.ndim) if i != call.axis % tiny.ndim)
    total = tiny.sum(axis=others)  # a sum has the errors of all its terms, whatever its dtype
    halves = zip(call.judged["dbias_a"], call.judged["dbias_b"], strict=True)
    exact, error = (call.packed(p, q, 0) for p, q in halves)
    kept = usual.all(others)
    where = call.packed(kept, kept, 0) & (np.abs(exact) < 1e300)
    return Expected(exact, error + call.packed(total, total, 0), False, where)
