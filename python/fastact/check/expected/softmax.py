"""The softmax family: functions of rows under masks, and the loss behind them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...measure.cases import DOUBLE, Case, is_loss
from ...measure.sum_axes import reduces
from ...ops.bounds import (
    ROUGH_EXP,
    SoftmaxBounds,
    computed_in,
    ulp,
    unit_roundoff,
    with_rounding,
)
from ...ops.engine import axes
from .. import reference
from .common import Expected, finite, wide, widened

Found = dict[str, Expected]
_OF_LSE = SoftmaxBounds("logsumexp")


def expected(case: Case) -> dict[str, Expected]:
    """Give the results and saved arrays of rows, or the gradient for arrays that were saved."""
    back = case.entry == "backward"
    if is_loss(case.op):
        return _loss_gradient(case) if back else _loss(case)
    if not back:
        return _rows(case)
    return _lse_gradient(case) if reduces(case.op) else _rows_gradient(case)


def _is_rough(case: Case) -> bool:
    """Tell whether exponentials are rough, as a GPU has them for 16-bit data."""
    return case.on_gpu and case.dtype.itemsize == 2


def _tiny(case: Case) -> float:
    """Return the error of subnormal factors on the way; on a GPU they are 0, and it is larger."""
    info = np.finfo(computed_in(case.dtype))
    return float(info.smallest_normal if case.on_gpu else info.smallest_subnormal)


def _rough(case: Case, exponent: Any) -> Any:
    """Return the relative error of a rough exponential, in u."""
    return ROUGH_EXP + np.abs(exponent) if _is_rough(case) else 0.0


def _more_terms(case: Case, count: int) -> float:
    """Give what so many terms add to a constant: sums of float64 are added up in float64."""
    return count / case.op.bounds.lanes if case.dtype == DOUBLE else 0.0


def _rest(lse: Any, dtype: Any) -> Expected:
    """Allow whatever may be left of an lse that was rounded: gradients tell whether it is that."""
    lse = np.where(np.isfinite(lse), lse, 0)
    return Expected(np.zeros_like(lse), 4 * ulp(lse, dtype), False)


def _gradient(case: Case, exact: Any, error: Any, judged: Any, nan: Any = None) -> Found:
    return {case.op.gradients[0]: finite(exact, error, judged, rounds=False, nan=nan)}


# --- functions of rows ----------------------------------------------------------------------------


def over_of(case: Case) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the axes along which a row lies, and the shape of one number a row."""
    over = axes.axes("", case.option("axis"), len(case.shape))
    return over, axes.reduced(case.shape, over, keepdims=True)


class _Rows:
    """The logits z = scale x + mask of a call, which may be capped before the mask.

    out : the elements that the mask leaves out. size : the magnitudes that z adds up, 0 where one
    is not finite. fits : for each row whether nothing overflows on the way to z.
    """

    def __init__(self, case: Case) -> None:
        self.over, self.kept = over_of(case)
        x, mask, softcap = widened(case, "x"), case.given.get("mask"), case.option("softcap")
        scores = x * case.option("scale")
        scores = softcap * np.tanh(scores / softcap) if softcap else scores
        self.masked, parts = mask is not None, [scores]
        self.out: Any = np.bool_(False)
        if mask is not None:
            self.out = ~mask if mask.dtype == np.bool_ else np.isneginf(mask)
            if mask.dtype != np.bool_:
                parts.append(wide(mask.astype(computed_in(case.dtype)), case.dtype))
        self.z = np.where(self.out, -np.inf, sum(parts)) if self.masked else scores
        self.size = sum(np.abs(np.where(np.isfinite(part), part, 0)) for part in parts)
        largest = float(np.finfo(computed_in(case.dtype)).max) / 4
        too_large = (np.abs(scores) > largest) & np.isfinite(x)
        too_large = too_large | ((np.abs(self.z) > largest) & np.isfinite(self.z))
        self.fits = ~too_large.any(self.over, keepdims=True)


def _sink(case: Case, kept: tuple[int, ...]) -> Any:
    """Return the sink of each row, as it is computed; -inf where there is none."""
    if not case.has("sink"):
        return -np.inf
    sink = np.asarray(case.given["sink"]).astype(computed_in(case.dtype))
    rows = np.broadcast_to(sink, case.shapes["sink"])
    return wide(rows, case.dtype).reshape(kept)


def _rows(case: Case) -> dict[str, Expected]:
    op, rows = case.op, _Rows(case)
    z, over, masked, fits = rows.z, rows.over, rows.masked, rows.fits
    sink = _sink(case, rows.kept)
    exact = reference.softmax_row(op.name, z, over, masked, rows.out, sink)
    size = np.max(np.broadcast_to(rows.size, z.shape), over, keepdims=True, initial=0)
    size = np.maximum(size, np.where(np.isfinite(sink), np.abs(sink), 0))
    rounds = masked or case.option("scale") != 1
    moved = op.bounds.moved_and_capped if case.option("softcap") else op.bounds.moved * rounds
    count = math.prod(z.shape[a] for a in over)

    def of(exact: Any, to: np.dtype[Any], shape: tuple[int, ...]) -> Expected:
        error = op.bounds.allowed(exact, size, count, to, moved, _is_rough(case))
        return Expected(exact, error, False, fits).reshaped(shape)

    shapes, computed = case.shapes, computed_in(case.dtype)
    found = {"y": of(exact, case.dtype, shapes.get("y", case.shape))}
    if "lse" in op.saves:
        found["lse"] = of(exact, computed, shapes["y"])
        found["rest"] = _rest(exact, computed).reshaped(shapes["y"])
    if case.has("sink"):
        share = reference.softmax_row("share", z, over, masked, False, sink)
        of_share = of(share, computed, shapes["share"])
        least = _tiny(case) if _is_rough(case) else 0.0  # below it y is 0, which rounds so as well
        found["share"] = replace(of_share, allowed=of_share.allowed + least)
    return found


def _through(
    kind: str, dy: Any, y: Any, over: tuple[int, ...], scale: float
) -> tuple[Any, Any, Any, Any]:
    """Give dx = scale factor (dy - part of a sum) of softmax or log_softmax, of y as it was saved.

    Then the factor; the magnitudes of what an element and the others of its row have of dx; and
    those of the sum, which is added up in double.
    """
    total = partial(np.sum, axis=over, keepdims=True)
    if kind == "softmax":
        size = total(np.abs(dy * y))
        return scale * y * (dy - total(dy * y)), y, np.abs(dy) + size, size
    p, q = np.exp(y), -np.expm1(y)
    factor, size = np.where(np.isneginf(y), 0.0, 1.0), total(np.abs(dy))
    # Beside p = 1 what the others have is what counts, and the difference has that.
    exact = np.where(p > 0.5, dy * q - p * (total(dy) - dy), dy - p * total(dy))
    of_others = p * (size - np.abs(dy))
    return scale * factor * exact, factor, np.abs(q * dy) + of_others, p * size


def _rows_gradient(case: Case) -> dict[str, Expected]:
    """Give the gradient for the y that the case has."""
    op, dtype, scale = case.op, case.dtype, case.option("scale")
    over, _ = over_of(case)
    y, dy = widened(case, "y"), widened(case, "dy")
    exact, factor, parts, whole = _through(op.name, dy, y, over, scale)
    count, u, bounds = math.prod(y.shape[a] for a in over), unit_roundoff(dtype), op.bounds
    # The exponential of log_softmax is rough; of softmax there is none, and y is small.
    size = (4 if op.name == "softmax" else 8) * u * parts
    size = size + (_rough(case, y) + bounds.tree * case.on_gpu) * u * whole
    size = size + (4 + count / bounds.lanes) * unit_roundoff(DOUBLE) * whole
    error, tiny = 0.0, _tiny(case) * (np.abs(scale) + np.abs(dy) + whole)
    softcap = case.option("softcap")
    if softcap:
        x = np.where(y == 0, 0, widened(case, "x"))
        over_cap = np.abs(x * scale) / softcap
        slope = 1 / np.cosh(over_cap) ** 2  # 1 - tanh(over_cap)^2, without its cancellation
        least = float(np.finfo(computed_in(dtype)).smallest_normal)  # below it, a slope may be 0
        tiny = tiny * (1 + np.abs(scale)) + 4 * least * np.abs(exact)
        exact, factor = exact * slope, factor * slope
        error = (9 * u + 2.0**-52 * np.minimum(over_cap, 1000)) * np.abs(exact)
    error = with_rounding(exact, dtype, np.abs(scale * factor) * size + error) + tiny
    found = _gradient(case, exact, error, True)
    return found | _sink_gradient(case, dy, y, count) if case.has("sink") else found


def _sink_gradient(case: Case, dy: Any, y: Any, count: int) -> Found:
    """Give the gradient of the sink for the share that the case has."""
    over, kept = over_of(case)
    sink, rows = np.asarray(case.given["sink"]), case.shapes["sink"]
    share = widened(case, "share").reshape(kept)
    repeats = axes.unbroadcast("", sink.shape, rows)
    terms = share * dy * y
    exact, total = (
        np.sum(np.sum(part, over, keepdims=True).reshape(rows), repeats).reshape(sink.shape)
        for part in (-terms, np.abs(terms))
    )
    share_of = (4 + _more_terms(case, count)) * unit_roundoff(case.dtype) + 2.0**-46
    error = with_rounding(exact, sink.dtype, share_of * total)
    error = error + _tiny(case) * np.sum(np.abs(dy) + 1)
    return {"dsink": finite(exact, error, rounds=False, adds=DOUBLE)}


def _lse_gradient(case: Case) -> dict[str, Expected]:
    """Find the gradient for lse and rest as they are given."""
    rows, scale = _Rows(case), case.option("scale")
    z = rows.z
    lse, dy = (widened(case, name).reshape(rows.kept) for name in ("lse", "dy"))
    rest = widened(case, "rest").reshape(rows.kept) if case.has("rest") else 0.0
    exact = scale * dy * np.exp(z - lse - rest)
    void = np.isneginf(z) & np.isneginf(lse) & rows.masked
    exact = np.where(void | rows.out, 0, exact)
    # Without a scale and a mask lse + rest is within `absolute` u, at any lse (float64: n / lanes
    # more): that many more u of dx are dx's beside the exact one.
    units = 8 + np.abs(rows.size) + _rough(case, np.where(np.isfinite(z), z, 0) - lse)
    error = with_rounding(exact, case.dtype, units * unit_roundoff(case.dtype) * np.abs(exact))
    error = error + _tiny(case) * (1 + np.abs(scale) + np.abs(dy))
    return _gradient(case, exact, error, rows.fits)


# --- the loss -------------------------------------------------------------------------------------


class _Loss:
    """The loss of each row, its terms' magnitudes, the weight by which it counts, and t w."""

    def __init__(self, case: Case) -> None:
        self.x, axis = widened(case, "logits"), case.option("axis")
        self.axis = min(1, self.x.ndim - 1) if axis is None else axis % self.x.ndim
        self.target, self.ignored = case.array("target"), case.option("ignore_index")
        self.is_classes = self.target.dtype.kind == "i"
        self.smoothing = case.option("label_smoothing")
        self.is_one = case.option("reduction") != "none"
        self.kept = case.shapes["lse"]
        weight = widened(case, "weight") if case.has("weight") else None
        self.losses, self.terms, self.counts, self.tw = reference.cross_entropy(
            self.x, self.target, weight, self.axis, self.ignored, self.smoothing
        )
        self.z_loss = case.option("z_loss")
        if self.z_loss and case.entry != "backward":
            lse = reference.softmax_row("logsumexp", self.x, (self.axis,)).reshape(self.kept)
            most = np.max(self.x, self.axis)
            counts = self.target != self.ignored if self.is_classes else True
            self.losses = self.losses + np.where(counts, self.z_loss * lse**2, 0)
            size = self.z_loss * np.abs(lse) * (np.abs(most) + np.abs(lse - most))
            self.terms = self.terms + np.where(counts, size, 0)

    @property
    def wrong(self) -> Any:
        """Tell for each row whether its class does not exist."""
        if not self.is_classes:
            return np.zeros(self.kept, bool)
        out = (self.target < 0) | (self.target >= self.x.shape[self.axis])
        return out & (self.target != self.ignored)


def _loss(case: Case) -> dict[str, Expected]:
    op, dtype, of = case.op, case.dtype, _Loss(case)
    x, axis, many = of.x, of.axis, of.x.shape[of.axis]
    # Rows of numbers, some of them -inf; other rows are NaN, or depend on their target. A share
    # of 0 in a loss without bounds may be NaN too, as it is for torch.
    no_share = np.bool_(of.smoothing == 1) if of.is_classes else of.tw == 0
    usual = (np.isfinite(x) | (np.isneginf(x) & ~no_share)).all(axis) & np.isfinite(x).any(axis)
    losses, terms, wrong, rows = of.losses, of.terms, of.wrong, 1
    one: Any = np.sum(of.counts) if case.option("reduction") == "mean" else 1.0
    if of.is_one:
        losses, terms, rows = np.sum(losses) / one, np.sum(terms) / one, np.size(of.counts)
        usual, wrong = usual.all(), wrong.any()
    rough = _is_rough(case)
    error = op.bounds.allowed(losses, terms, many, dtype, rows, rough)
    lse = reference.softmax_row("logsumexp", x, (axis,)).reshape(of.kept)
    size = np.max(np.abs(np.where(np.isfinite(x), x, 0)), axis)
    of_lse = _OF_LSE.allowed(lse, size, many, computed_in(dtype), on_gpu=rough)
    found = {
        "loss": Expected(losses, error, False, usual & ~wrong, wrong),
        "lse": Expected(lse, of_lse, False),
        "rest": _rest(lse, computed_in(dtype)),
    }
    if of.is_one:
        error = 2.0**-52 * max(np.size(of.counts), 1) * np.abs(one)
        found["divisor"] = Expected(np.asarray(one), error, True, ~wrong)
    return found


def _loss_gradient(case: Case) -> dict[str, Expected]:
    dtype, of = case.dtype, _Loss(case)
    g = widened(case, "dloss")
    g = g / widened(case, "divisor") if of.is_one else np.expand_dims(g, of.axis)
    lse = np.expand_dims(widened(case, "lse"), of.axis)
    logs = of.x - lse
    if case.has("rest"):
        logs = logs - np.expand_dims(widened(case, "rest"), of.axis)
    ignored: Any = np.bool_(False)
    if of.is_classes:
        ignored = np.expand_dims(of.target == of.ignored, of.axis)
    slope = 2 * of.z_loss * lse if of.z_loss else 0.0
    target = of.target if of.is_classes else None
    exact, size = reference.loss_gradient(logs, of.tw, target, of.axis, of.smoothing, slope)
    exact, size = np.where(ignored, 0, g * exact), np.where(ignored, 0, np.abs(g) * size)
    rough = _rough(case, np.where(np.exp(logs) > 0, logs, 0))
    units = case.op.bounds.constant + _more_terms(case, of.x.shape[of.axis]) + rough
    error = with_rounding(exact, dtype, units * unit_roundoff(dtype) * size)
    error = error + np.where(ignored, 0, _tiny(case) * (1 + np.abs(g)))
    nan = np.broadcast_to(np.expand_dims(of.wrong, of.axis), of.x.shape)
    return _gradient(case, exact, error, ~nan, nan)
