"""Calls of any op whose second derivatives and tangents are compared with differences."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from differences import Call, slopes

from fastact.ops.engine.entry import TOLD
from fastact.ops.engine.op import arrays_of

from . import calls
from .campaign import Settings
from .cases import FLOAT64, Array, Draw, Number, Request
from .hostile import HostileWorker
from .judge import Wrong

STEP = 1e-6  # and twice that: by how much the two differ, differences are off


class DerivativesCase:
    """A call in float64, of values where results are smooth."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.r = Random(f"derivatives {settings.seed}/{number}")
        rng = np.random.default_rng([settings.seed, number])
        self.op = self.r.choice(calls.ops(settings.family, settings.op))
        self.request = self._request()
        while self.request.entry != "forward" or not _is_fit(self.request):
            self.request = self._request()
        values = calls.fill(self.request, rng)
        named = {n: _value(v, values, rng) for n, v in self.request.given.items()}
        named.pop("returned", None)
        named.pop(TOLD, None)  # differences are of float64
        self.call = Call(self.op, named, rng)
        if self.r.random() < 0.5:  # to dx alone, for which there may be a kernel
            self.call.ddx[1:] = [None] * (len(self.call.ddx) - 1)

    def _request(self) -> Request:
        draw = Draw(self.r)
        draw.framework, draw.dtype = "numpy", FLOAT64
        return calls.sample(self.op, draw)

    @property
    def kind(self) -> str:
        return f"derivatives of {self.request.label}"

    def __str__(self) -> str:
        return str(self.request)

    def run(self) -> str:
        self._second()
        self._forward_mode()
        return "computed"

    def _second(self) -> None:
        call = self.call
        found = call.second(np.asarray)
        (got, right), (other, twice) = (call.both_sides(found, h) for h in (STEP, 2 * STEP))
        size = sum(np.abs(d).sum() for d in found if d is not None)
        _close("second derivatives", got, right, abs(right - twice) + abs(got - other), size)

    def _forward_mode(self) -> None:
        call, op = self.call, self.op
        bound = op.bound("call", call.moved(0.0))
        _, moved = op.jvp(*bound.args, tangents=(*call.tangents.values(),), **bound.keywords)

        def results(by: float) -> tuple[Any, ...]:
            return arrays_of(op.bound("call", call.moved(by))())

        pairs = zip(*(slopes(results, h) for h in (STEP, 2 * STEP)), strict=True)
        for got, (right, twice) in zip(arrays_of(moved), pairs, strict=True):
            size = np.abs(right).max(initial=0.0)
            _close("tangents", got, right, np.abs(right - twice), size)


def _is_fit(request: Request) -> bool:
    notes = request.notes
    if request.given.get("by") is not None:  # which has no second derivative
        return False
    is_right = not (request.refused or notes.get("wrong") or notes.get("may be refused"))
    return is_right and all(array.form != "number" for array in request.arrays)


def _value(value: Any, values: dict[str, Any], rng: np.random.Generator) -> Any:
    if isinstance(value, Number):
        return bool(value.value) if value.kind == "bool" else value.value
    if not isinstance(value, Array):
        return value
    drawn = np.array(np.broadcast_to(values[value.name], value.shape))
    if value.name == "mask" or value.dtype.kind in "biu":
        return drawn
    if value.values in ("positive", "small integers", "bits"):
        return rng.uniform(0.5, 1.5, value.shape)
    return rng.standard_normal(value.shape)


def _close(what: str, got: Any, right: Any, off: Any, size: float) -> None:
    """Compare, where differences say anything: they do not at a corner, nor of infinities."""
    is_smooth = np.isfinite(right) & (off <= 1e-3 * max(1.0, size))
    wrong = is_smooth & ~(np.abs(got - right) <= 10 * off + 1e-5 * max(1.0, size))
    if np.any(wrong):
        raise Wrong(what, f"{np.asarray(got)[wrong][:3]}, by differences {right[wrong][:3]}")


class DerivativesWorker(HostileWorker):
    """Runs them as hostile calls are run."""

    case = DerivativesCase
