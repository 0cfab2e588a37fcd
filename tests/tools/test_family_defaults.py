"""What a family gets that no table names: tried on families that have entries of their own."""

from typing import Any

import pytest
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.other import OTHER

import fastact as fa
from fastact import _cpu
from fastact.check import calls
from fastact.check.common import Options, Report
from fastact.measure.cases import shapes_of

# Two arrays of one shape, an axis and a bias; and rows.
OPS = [op for op in fa.ops.values() if op.family == "gated" and not op.packed]
OPS += [fa.layer_norm, fa.add_rms_norm]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


@each_op
@pytest.mark.parametrize("axis", [0, -1])
def test_shapes(op: Any, axis: int) -> None:
    shape = (6, 4)
    found = shapes_of(op, "call", shape, {"axis": axis})
    name, length = ("weight", shape[axis]) if op.family == "norms" else ("bias", 2 * shape[axis])
    assert found[name] == found[f"d{name}"] == (length,)


@each_op
@pytest.mark.parametrize("factor", [1.0, 1e-3])
def test_check(op: Any, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound holds, and a thousandth of it does not."""
    errors = calls.Call.errors
    scaled = lambda call: {name: e / factor for name, e in errors(call).items()}  # noqa: E731
    monkeypatch.setattr(calls.Call, "errors", scaled)
    report = Report(quiet=True)
    calls.OTHER.run(op, Options((_cpu.isa(),)), report)
    assert {row[1] for row in report.rows} >= {"float64", "float32", "float16"}
    assert bool(report.failures) == (factor < 1)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_workloads(direction: str) -> None:
    """As many arrays of a call move as the gated family says."""
    cases = (of.on_gpu(fa.reglu, direction, "float32", None) for of in (FAMILIES["gated"], OTHER))
    own, default = ([(c.label, c.shape, c.moved) for c in each] for each in cases)
    assert own == default
