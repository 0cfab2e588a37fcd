"""Liger as a peer of the GPU benchmark: by a stand-in of its functions, and by itself where it is.

The real kernels run without a GPU by Triton's interpreter, if liger-kernel and triton are installed
(``pip install --no-deps liger-kernel triton``).
"""

import importlib.util
import inspect
import json
import sys
from types import ModuleType

import pytest
import torch
from benchmarks import liger
from test_bench_cuda import StandIn, bench, options, quick  # noqa: F401 - quick is a fixture

import fastact as fa
from fastact.measure.peers import LIGER

FUNCTIONS = {
    "liger_layer_norm": ("X", "W", "B", "eps"),
    "liger_rms_norm": ("X", "W", "eps", "offset", "casting_mode", "in_place"),
    "liger_fused_add_rms_norm": ("X", "R", "W", "eps", "offset", "casting_mode", "in_place"),
    "liger_group_norm": (
        *("X", "affine_scaling_weight", "affine_shifting_bias", "num_channels", "num_groups"),
        "eps",
    ),
}


def rms_norm(X, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    assert (offset, casting_mode, in_place) == (0.0, "gemma", False)
    return torch.nn.functional.rms_norm(X, X.shape[-1:], W, eps)


def add_rms_norm(X, R, W, eps, offset=0.0, casting_mode="llama", in_place=True):
    assert R.shape == X.shape
    return rms_norm(X + R, W, eps, offset, casting_mode, in_place), X + R


def layer_norm(X, W, B, eps):
    if X.shape[-1] > 1000:
        raise RuntimeError("Cannot launch such a kernel\nand a trace")
    return torch.nn.functional.layer_norm(X, X.shape[-1:], W, B, eps)


def group_norm(X, affine_scaling_weight, affine_shifting_bias, num_channels, num_groups, eps):
    assert X.shape[1] == num_channels
    norm = torch.nn.functional.group_norm
    return norm(X, num_groups, affine_scaling_weight, affine_shifting_bias, eps)


@pytest.fixture
def stand_in(monkeypatch):
    """Liger's functions with their parameters, by torch."""
    module = ModuleType("liger_kernel.transformers.functional")
    made = (layer_norm, rms_norm, add_rms_norm, group_norm)
    for name, function in zip(FUNCTIONS, made, strict=True):
        assert tuple(inspect.signature(function).parameters) == FUNCTIONS[name]
        setattr(module, name, function)
    parents = (ModuleType("liger_kernel"), ModuleType("liger_kernel.transformers"))
    for parent in parents:
        parent.__spec__ = importlib.util.spec_from_loader(parent.__name__, None)
    for one in (*parents, module):
        monkeypatch.setitem(sys.modules, one.__name__, one)


@pytest.mark.usefixtures("quick", "stand_in")
def test_it_takes_part_in_what_it_has(tmp_path, capsys):
    numbers, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    norms = [op for op in fa.ops.values() if op.family == "norms"]
    ops = [op for op in norms if op.name in liger.OPS] + [norms[-1], fa.mish]
    assert norms[-1].name not in liger.OPS
    few = options(peers=("torch", LIGER), dtypes=("float32", "float64"))
    done = bench(ops, few, numbers, page, device=StandIn(memory=2**20))
    assert done.problems == []
    rows = json.loads(numbers.read_text())["rows"]
    for row in rows:
        says = row["left_out"].get(LIGER)
        if row["op"] not in liger.OPS:
            assert says is None
        elif row["dtype"] == "float64":
            assert says == "it computes in float32"
        elif "channels -1" in row["what"]:
            assert says == "its channels come first"
        elif row["op"] == "layer_norm" and not row["what"].endswith(" 256"):
            assert says == "RuntimeError: Cannot launch such a kernel"
        else:
            assert says is None
            assert LIGER in row["ratios"], row["op"]
        assert (LIGER in row["ratios"]) is (row["op"] in liger.OPS and says is None)
    took_part = {(row["op"], row["direction"]) for row in rows if LIGER in row["ratios"]}
    assert took_part == {(op, way) for op in liger.OPS for way in ("forward", "backward")}
    shown = capsys.readouterr().out
    assert "liger: left out, it computes in float32" in shown
    assert "Triton's tutorial" in shown
    assert "Triton's tutorial" in page.read_text()
