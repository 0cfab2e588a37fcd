"""Liger as a peer of the GPU benchmark: by a stand-in of its functions, and by itself where it is.

The real kernels run without a GPU by Triton's interpreter, if liger-kernel and triton are installed
(``pip install --no-deps liger-kernel triton``).
"""

import importlib.util
import inspect
import json
import os
import subprocess
import sys
from types import ModuleType

import pytest
import torch
from benchmarks import cuda, liger
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.work import Work
from processes import TIMEOUT
from test_bench_cuda import StandIn, options, quick  # noqa: F401 - quick is a fixture

import fastact as fa
from fastact.measure.peers import LIGER, TORCH

FUNCTIONS = {
    "liger_layer_norm": ("X", "W", "B", "eps"),
    "liger_rms_norm": ("X", "W", "eps", "offset", "casting_mode", "in_place"),
    "liger_fused_add_rms_norm": ("X", "R", "W", "eps", "offset", "casting_mode", "in_place"),
    "liger_group_norm": (
        *("X", "affine_scaling_weight", "affine_shifting_bias", "num_channels", "num_groups"),
        "eps",
    ),
}
HAS_LIGER = all(importlib.util.find_spec(name) for name in (liger.PACKAGE, "triton"))


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
    done = cuda.bench(ops, few, numbers, page, StandIn(memory=2**20))
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


@pytest.mark.usefixtures("quick", "stand_in")
def test_another_result_is_told(monkeypatch):
    module = sys.modules["liger_kernel.transformers.functional"]
    monkeypatch.setattr(module, "liger_rms_norm", lambda X, W, eps, **_: X)
    few = options(peers=(LIGER,), dtypes=("float32",), directions=("forward",))
    problems = cuda.bench([fa.rms_norm], few, device=StandIn()).problems
    assert problems
    assert all("liger has another result" in problem for problem in problems)


@pytest.mark.usefixtures("quick")
@pytest.mark.skipif(bool(importlib.util.find_spec(liger.PACKAGE)), reason="it is installed")
def test_where_it_is_not_installed(tmp_path, capsys):
    """Named in what is printed and in what is written, once."""
    numbers, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    few = options(peers=("torch", LIGER), dtypes=("float32",), directions=("forward",))
    cuda.bench([fa.rms_norm], few, numbers, page, StandIn())
    said = "liger: left out, liger-kernel is not installed"
    assert json.loads(numbers.read_text())["absent"] == {LIGER: "liger-kernel is not installed"}
    assert capsys.readouterr().out.count(said) == 1
    assert page.read_text().count(said) == 1


def test_what_it_needs_may_be_missing(monkeypatch):
    def no_triton(name):
        raise ImportError("No module named 'triton'\nand more")

    monkeypatch.setattr(liger.importlib, "import_module", no_triton)
    family, device = FAMILIES["norms"], StandIn()
    case = family.on_gpu(fa.rms_norm, "forward", "float32", (4096,))[0]
    calls, left_out = cuda.bound(case, [Work(case, family, device)], device, (TORCH, LIGER))
    assert left_out == {LIGER: "it cannot be imported: No module named 'triton'"}
    assert set(calls) == {TORCH}


REAL = """
import importlib, inspect, json, sys
import torch
import triton.language as tl
import fastact as fa
from benchmarks import cuda, liger
from fastact.measure.peers import LIGER
from benchmarks.workloads import FAMILIES
from benchmarks.workloads.work import Work
from liger_kernel.transformers import functional

sys.path[:0] = sys.argv[1:]
from test_bench_cuda import StandIn

print(json.dumps({n: list(inspect.signature(getattr(functional, n)).parameters)
                  for n in dir(functional) if n.startswith("liger_")}))

# The interpreter has no libdevice, and gives a kernel plain numbers where Triton gives its own.
for name in ("layer_norm", "rms_norm", "fused_add_rms_norm", "group_norm"):
    importlib.import_module(f"liger_kernel.ops.{name}").rsqrt = lambda x: 1 / tl.sqrt(x)

class Number(float):
    def to(self, dtype):
        return self

liger._EPS, liger._RMS_EPS = Number(1e-5), Number(1e-6)
liger._RMS["offset"] = Number(0.0)
family, device = FAMILIES["norms"], StandIn()
for name in liger.OPS:
    for direction in ("forward", "backward"):
        case = family.on_gpu(fa.ops[name], direction, "float32", (2048,))[0]
        work = Work(case, family, device)
        calls, left_out = cuda.bound(case, [work], device, [LIGER])
        assert left_out == {}, left_out
        theirs, ours = cuda._largest(calls[LIGER][0]()), cuda._largest(work.ours())
        assert torch.allclose(theirs, ours, rtol=1e-4, atol=1e-4), (name, direction)
print("agree")
"""


@pytest.mark.skipif(not HAS_LIGER, reason="liger-kernel and triton are not installed")
def test_the_real_one():
    """Its functions have these parameters, and by the interpreter the results are ours."""
    done = subprocess.run(
        [sys.executable, "-c", REAL, os.path.dirname(__file__), *sys.path],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    signatures = json.loads(done.stdout.splitlines()[0])
    for name, parameters in FUNCTIONS.items():
        assert signatures[name][: len(parameters)] == list(parameters)
    assert done.stdout.splitlines()[-1] == "agree"
