"""A new op of a kind that is there is its declaration alone; a family gets what no table names."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from arrays import finite
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.other import OTHER
from conftest import assert_same_bits

import fastact as fa
from fastact import _cpu
from fastact.check import calls
from fastact.check.common import Options, Report
from fastact.measure.cases import shapes_of
from fastact.ops.engine import op as registry
from fastact.ops.gated import GatedOfTwo
from fastact.ops.norms import NormOp, single_channels
from fastact.ops.reductions import SquareSum


@pytest.fixture(autouse=True)
def _no_op_stays() -> Iterator[None]:
    before = dict(registry._ops)
    yield
    for name in registry._ops.keys() - before.keys():
        del registry._ops[name]


def _assert_same(op: Any, known: Any, *arrays: Any, dy: Any, **options: Any) -> None:
    """Two ops that compute the same give the same bits by every entry point."""
    assert_same_bits(np.asarray(op(*arrays)), np.asarray(known(*arrays, **options)))
    of, of_known = (o.forward(*arrays, **w)[1] for o, w in ((op, {}), (known, options)))
    back, expected = op.backward(dy, *of), known.backward(dy, *of_known, **options)
    back, expected = (g if isinstance(g, tuple) else (g,) for g in (back, expected))
    for got, wanted in zip(back, expected, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            assert_same_bits(got, wanted)


def test_a_gated_activation(dtype):
    @registry.declared(GatedOfTwo, lambda where, options: fa.mish)
    def mishglu(a, b, /, *, axis=-1, bias=None, limit=None, offset=0.0, out=None, stream=None):
        """Mish of one array, times another one."""

    a, b, dy = (finite(dtype, (7, 70), seed=seed) for seed in range(3))
    _assert_same(mishglu, fa.gated, a, b, dy=dy, activation="mish")


def test_a_norm_of_rows(dtype):
    @registry.declared(NormOp, single_channels, "RmsNorm")
    def channel_rms_norm(
        x,
        /,
        weight=None,
        *,
        channel_axis=1,
        eps=1e-6,
        activation="identity",
        out=None,
        stream=None,
        **parameters,
    ):
        """Root-mean-square normalization of each channel of each example."""

    x, dy = (finite(dtype, (3, 5, 70), seed=seed) for seed in range(2))
    _assert_same(channel_rms_norm, fa.rms_norm, x, dy=dy)


def test_a_sum_of_a_term(dtype):
    def energy(x, /, axis=None, *, keepdims=False, out=None, stream=None):
        """Sum of squares over axes."""

    x = finite(dtype, (30, 70))
    _assert_same(SquareSum(energy), fa.sum_squares, x, dy=0.5)


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
