"""The accuracy of the recurrent gates: states and gradients in units of their stated bounds."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..ops.bounds import GateBounds
from .common import ErrorRow, Options, Report, check_by_cases
from .reductions import dtypes

_SHAPES = ((37, 300), (300, 20))
_MANY = 16  # times as many rows
_SCALES = (1.0, 30.0)  # of the summands: gates that open and shut, and gates that never move

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
    recompute: bool = False

    @property
    def letters(self) -> str:
        """The gates in the order in which they are packed."""
        letters: str = self.op.letters
        return self.order.replace("c", "g") or letters

    @property
    def kept(self) -> str:
        """What forward keeps of them, in its order."""
        more: str = self.op.kept[self.op.count :]
        return self.letters + more

    @property
    def arrays(self) -> tuple[Array, ...]:
        """What the call takes by position."""
        found = self._by_name
        return tuple(found[name] for name in self.op.entry_points["call"].arrays)

    @property
    def options(self) -> dict[str, Any]:
        """What forward takes by keyword, and the call where nothing is recomputed."""
        by_position, found = self.op.entry_points["call"].arrays, self._by_name
        return {n: a for n, a in found.items() if n not in by_position} | self.again

    @property
    def again(self) -> dict[str, Any]:
        """What backward takes by keyword."""
        order = {"order": self.order} if self.order else {}
        return order | ({"recompute": True} if self.recompute else {})

    @property
    def _by_name(self) -> dict[str, Array]:
        """The arrays that the op is given."""
        named = {"gates": self.gates, "recurrent": self.recurrent, self.op.state: self.state}
        named |= {"bias": self.bias, "recurrent_bias": self.recurrent_bias}
        return {name: array for name, array in named.items() if array is not None}

    @property
    def gradients(self) -> tuple[Array | None, ...]:
        """What backward takes first."""
        return (self.dh, self.dc)[: len(self.op.results)]

    def apart(self, packed: Array | None, letters: str = "") -> dict[str, Any]:
        """A packed array's gates, by their letters, in the oracle's type."""
        letters = letters or self.letters
        made_in = importlib.import_module("fastact.check.reference").wide(self.gates.dtype)
        if packed is None:
            return dict.fromkeys(letters, made_in(0))
        parts = np.split(packed.astype(made_in), len(letters), axis=-1)
        return dict(zip(letters, parts, strict=True))

    def packed(self, parts: dict[str, Any], letters: str = "") -> Array:
        """The reverse of `apart`."""
        like = self.state.shape
        letters = letters or self.letters
        return np.concatenate([np.broadcast_to(parts[k], like) for k in letters], axis=-1)


@dataclass
class Exact:
    """What a call of a `Step` should give, and what the scales of the errors' bounds are of."""

    results: tuple[Array, ...]
    kept: Array
    dgates: Array
    drecurrent: Array
    dstate: Array
    sums: Array
    before: Array
    returned: Array
    reset: Array


def exact(step: Step, saved: tuple[Array, ...] = ()) -> Exact:
    """By the oracle, in its type. saved: what backward is given, where it is rounded."""
    oracle = importlib.import_module("fastact.check.reference")
    formulas, letters = oracle.GATES[step.op.name], step.letters
    x, u = step.apart(step.gates), step.apart(step.recurrent)
    of_x, of_u = step.apart(step.bias), step.apart(step.recurrent_bias)
    sums = sum(
        abs(step.apart(a)[k])
        for k in letters
        for a in (step.gates, step.recurrent, step.bias, step.recurrent_bias)
    )
    x, u = {k: x[k] + of_x[k] for k in letters}, {k: u[k] + of_u[k] for k in letters}
    made_in = oracle.wide(step.state.dtype)
    before, dh = step.state.astype(made_in), step.dh.astype(made_in)
    gates = formulas.activated(x, u)
    results = formulas.state(gates, before)
    cell: dict[str, Any] = {}
    returned = abs(dh)
    if "c" in step.op.saves:
        cell["c"] = saved[step.op.saves.index("c")].astype(made_in) if saved else results[1]
        if step.dc is not None:
            cell["dc"] = step.dc.astype(made_in)
            returned = returned + abs(cell["dc"])
    given = step.apart(saved[0], step.kept) if saved else gates
    dx, du, dbefore = formulas.gradients(given, before, dh, **cell)
    reset = 0 * before
    if step.op.takes_recurrent:
        u_n, b_n = step.apart(step.recurrent)["n"], step.apart(step.recurrent_bias)["n"]
        reset = reset + abs(u_n) + abs(b_n)
    return Exact(
        tuple(results),
        step.packed(gates, step.kept),
        step.packed(dx),
        step.packed(du),
        np.asarray(dbefore),
        np.asarray(sums),
        before,
        returned,
        np.asarray(reset),
    )


def repeated(part: Array, like: Array) -> Array:
    """An array of the state's shape once for each gate of a packed one."""
    return np.concatenate([part] * (like.shape[-1] // part.shape[-1]), axis=-1)


def errors(step: Step) -> tuple[float, float, float]:
    """The largest errors of states, kept gates and gradients, in units of their bounds."""
    oracle = importlib.import_module("fastact.check.reference")
    op, dtype, bounds = step.op, step.gates.dtype, step.op.bounds
    results, saved = op.forward(*step.arrays, **step.options)
    results = results if isinstance(results, tuple) else (results,)
    kept, narrow = saved[0], dtype.itemsize < 4
    true = exact(step, saved if narrow and not step.recompute else ())

    def of_state(result: Array, of: Array) -> float:
        scale = (repeated(part, of) for part in (true.sums, true.before, true.reset))
        sums, before, reset = scale
        allowed = bounds.allowed_state(of, sums, before, dtype, reset)
        return float(oracle.excess(result, of, (1 + oracle.BUDGET) * allowed))

    def of_gradient(result: Array, of: Array) -> float:
        parts = (true.sums, true.before, true.returned, true.reset)
        sums, before, returned, reset = (repeated(part, of) for part in parts)
        allowed = bounds.allowed_gradient(of, sums, before, returned, dtype, reset)
        return float(oracle.excess(result, of, (1 + oracle.BUDGET) * allowed))

    of_states = max(of_state(y, of) for y, of in zip(results, true.results, strict=True))
    of_kept = 0.0 if step.recompute else of_state(kept, true.kept)
    gradients = op.backward(*step.gradients, *saved, **step.again)
    exactly = {
        "dgates": true.dgates,
        "drecurrent": true.drecurrent,
        f"d{op.state}": true.dstate,
        "dbias": true.dgates,
        "drecurrent_bias": true.drecurrent,
    }
    worst = [
        _of_bias(step, true, made, exactly[name])
        if name.endswith("bias")
        else of_gradient(made, exactly[name])
        for name, made in zip(op.gradients, gradients, strict=True)
        if made is not None
    ]
    return of_states, of_kept, max(worst)


def _of_bias(step: Step, true: Exact, dbias: Array, of: Array) -> float:
    """The error of a bias's gradient; of: the gradients of all rows."""
    oracle = importlib.import_module("fastact.check.reference")
    dtype, width = step.gates.dtype, of.shape[-1]
    parts = (true.sums, true.before, true.returned, true.reset)
    sums, before, returned, reset = (repeated(part, of).reshape(-1, width) for part in parts)
    rows = of.reshape(-1, width)
    allowed = step.op.bounds.allowed_dbias(rows, sums, before, returned, dtype, dbias.dtype, reset)
    return float(oracle.excess(dbias, rows.sum(0), (1 + oracle.BUDGET) * allowed))


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
    for dtype, _ in dtypes(report):
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
