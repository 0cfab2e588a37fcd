"""The accuracy of the recurrent gates: states and gradients in units of their stated bounds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _cpu
from ._check_common import Check, Options, Report
from ._check_reductions import dtypes
from ._gates_op import GatesOp
from ._terminal import Progress

_LETTERS = {"lstm_gates": "ifgo", "gru_gates": "rzn", "gru_reset": "r", "gru_blend": "zn"}
_SHAPES = ((37, 300), (300, 20))
_MANY = 16  # times as many rows
_SCALES = (1.0, 30.0)  # of what is added up: gates that are open and shut, and such as never move

Array = NDArray[Any]


@dataclass
class Step:
    """The arrays of a call of an op, in one dtype, packed in `order`."""

    op: Any
    gates: Array
    state: Array
    dh: Array
    recurrent: Array | None = None
    bias: Array | None = None
    recurrent_bias: Array | None = None
    dc: Array | None = None
    order: str = ""
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def letters(self) -> str:
        """The gates in the order in which they are packed."""
        return self.order.replace("c", "g") if self.order else _LETTERS[self.op.name]

    @property
    def options(self) -> dict[str, Any]:
        """What the call is told by keyword."""
        named = {"recurrent": self.recurrent} if self.op.name != "gru_gates" else {}
        named |= {"bias": self.bias, "recurrent_bias": self.recurrent_bias}
        return {**{k: v for k, v in named.items() if v is not None}, **self.told, **self.named}

    @property
    def named(self) -> dict[str, Any]:
        """What every door is told."""
        return {"order": self.order} if self.order else {}

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What the call takes by position."""
        if self.op.name == "gru_gates":
            assert self.recurrent is not None
            return self.gates, self.recurrent, self.state
        return self.gates, self.state

    @property
    def gradients(self) -> tuple[Array | None, ...]:
        """What backward takes first."""
        return (self.dh, self.dc) if self.op.name == "lstm_gates" else (self.dh,)

    def apart(self, packed: Array | None, letters: str = "") -> dict[str, Any]:
        """A packed array's gates, by their letters, in float64."""
        letters = letters or self.letters
        if packed is None:
            return dict.fromkeys(letters, np.float64(0))
        parts = np.split(packed.astype(np.float64), len(letters), axis=-1)
        return dict(zip(letters, parts, strict=True))

    def packed(self, parts: dict[str, Any], letters: str = "") -> Array:
        """The reverse of `apart`."""
        like = self.state.shape
        letters = letters or self.letters
        return np.concatenate([np.broadcast_to(parts[k], like) for k in letters], axis=-1)


@dataclass
class Exact:
    """What a call of a `Step` should give, in float64, and the scales of the errors' bounds."""

    results: tuple[Array, ...]
    kept: Array
    dgates: Array
    drecurrent: Array
    dstate: Array
    of_states: Array
    of_gradients: Array


def exact(step: Step, saved: tuple[Array, ...] = ()) -> Exact:
    """By the oracle. saved: what backward is given, where it is rounded."""
    oracle = importlib.import_module("fastact._reference")
    name, letters = step.op.name, step.letters
    x, u = step.apart(step.gates), step.apart(step.recurrent)
    of_x, of_u = step.apart(step.bias), step.apart(step.recurrent_bias)
    sums = sum(
        abs(step.apart(a)[k])
        for k in letters
        for a in (step.gates, step.recurrent, step.bias, step.recurrent_bias)
    )
    x, u = {k: x[k] + of_x[k] for k in letters}, {k: u[k] + of_u[k] for k in letters}
    before, dh = step.state.astype(np.float64), step.dh.astype(np.float64)
    gates = oracle.activated(name, x, u)
    results = oracle.gated(name, gates, before)
    every = letters + ("q" if name == "gru_gates" else "")
    told: dict[str, Any] = {}
    returned = abs(dh)
    if name == "lstm_gates":
        told["c"] = saved[2].astype(np.float64) if saved else results[1]
        if step.dc is not None:
            told["dc"] = step.dc.astype(np.float64)
            returned = returned + abs(told["dc"])
    given = step.apart(saved[0], every) if saved else gates
    dx, du, dbefore = oracle.gate_gradients(name, given, before, dh, **told)
    scale = (1 + sums) * (1 + abs(before))
    return Exact(
        tuple(results),
        step.packed(gates, every),
        step.packed(dx),
        step.packed(du),
        np.asarray(dbefore),
        scale,
        scale * (1 + abs(before)) * returned,
    )


def unit(dtype: Any) -> float:
    """The unit roundoff of the type that a dtype is computed in; the oracle is float64 itself."""
    return 3 * 2.0**-53 if dtype == np.float64 else 2.0**-24


def error(result: Array, true: Array, allowed: Array, info: Any) -> float:
    """The largest error in units of the bound: `allowed`, and the rounding to the dtype."""
    rounding = float(info.eps) / 2 * np.abs(true) + float(info.smallest_subnormal)
    repeated = np.concatenate([allowed] * (result.shape[-1] // allowed.shape[-1]), axis=-1)
    return float(np.max(np.abs(result - true) / (repeated + rounding), initial=0.0))


def errors(step: Step, info: Any) -> tuple[float, float, float]:
    """The largest errors of states, kept gates and gradients, in units of their bounds."""
    op, bounds = step.op, step.op.bounds
    results, saved = op.forward(*step.arrays, **step.options)
    results = results if isinstance(results, tuple) else (results,)
    kept, narrow = saved[0], step.gates.dtype.itemsize < 4
    true = exact(step, saved if narrow and not step.told else ())
    u = unit(step.gates.dtype)
    states = u * bounds.state_ulp * true.of_states
    of_states = max(error(y, of, states, info) for y, of in zip(results, true.results, strict=True))
    of_kept = 0.0 if step.told else error(kept, true.kept, states, info)
    made = op.backward(*step.gradients, *saved, **step.told, **step.named)
    dgates, *rest = made
    expected = [(dgates, true.dgates)]
    if op.name == "gru_gates":
        expected.append((rest.pop(0), true.drecurrent))
    expected.append((rest.pop(0), true.dstate))
    allowed = u * bounds.gradient_ulp * true.of_gradients
    return of_states, of_kept, max(error(d, of, allowed, info) for d, of in expected)


def random_step(
    op: Any, shape: tuple[int, ...], dtype: Any, scale: float = 1.0, seed: int = 0, **told: Any
) -> Step:
    """Normal numbers, with a recurrent projection and both biases."""
    rng = np.random.default_rng(seed)
    count = len(_LETTERS[op.name])
    packed = (*shape[:-1], count * shape[-1])

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
        normal(*shape) if op.name == "lstm_gates" else None,
        told=told,
    )


def _steps(op: Any, dtype: Any, options: Options) -> Iterator[Step]:
    for (rows, columns), scale, recompute in product(_SHAPES, _SCALES, (False, True)):
        shape = (rows * _MANY if options.exhaustive else rows, columns)
        told = {"recompute": True} if recompute else {}
        yield random_step(op, shape, dtype, scale, **told)


def _check(op: Any, options: Options, report: Report) -> None:
    kinds = dtypes(report)
    with Progress(op.name, len(kinds)) as progress:
        for dtype, info in kinds:
            steps = list(_steps(op, dtype, options))
            alike: dict[tuple[float, ...], list[str]] = {}
            for isa in options.isas:
                _cpu.select_isa(isa)
                found = [errors(step, info) for step in steps]
                worst = tuple(max(parts) for parts in zip(*found, strict=True))
                alike.setdefault(worst, []).append(isa)
            for worst, isas in alike.items():
                case = [op.name, dtype.name, " ".join(isas)]
                report.rows.append([*case, *(f"{part:.3g}" for part in worst)])
                if not max(worst) <= 1.0:
                    report.fail(f"{' '.join(case)}: {max(worst):.4g} times the bound")
            progress.advance(1)


_LEGEND = """\
The worst errors of what a step gives, of the activated gates that it keeps and of the gradients, in
units of their bounds: 20 and 40 u times the scales that the docstrings tell, and the rounding to
the dtype."""

CHECK = Check(
    _check,
    ["op", "dtype", "by", "states", "gates", "gradients"],
    3,
    _LEGEND,
    knows=lambda op: isinstance(op, GatesOp),
)
