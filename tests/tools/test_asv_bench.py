"""The benchmarks of asv_bench that judge: what they call an error is one."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

import fastact as fa

BENCHMARKS = Path(__file__).parents[2] / "asv_bench"
if not BENCHMARKS.is_dir():
    pytest.skip("the benchmarks' sources are not here", allow_module_level=True)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ["mish", "sigmoid", "tanh"])  # the last two save y
def test_worst_errors_are_within_the_bounds(name, direction, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    benchmark = import_module("suite.calls").Accuracy()
    bounds = fa.ops[name].bounds
    allowed = bounds.forward_ulp if direction == "forward" else bounds.derivative_ulp
    assert benchmark.track_worst_ulp(name, direction) <= allowed
