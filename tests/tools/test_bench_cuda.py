"""The GPU benchmark: what it runs and concludes, on a stand-in that makes up its times.

The stand-in computes on the CPU; a test at the end runs the real thing where there is a GPU.
"""

import json

import pytest
import torch
from benchmarks import board, cli, cuda_device
from benchmarks import cuda as _bench_cuda
from benchmarks.workloads import FAMILIES, work

import fastact as fa
from fastact.interop import devices
from fastact.measure.peers import COPY, FRESH, OURS, TORCH

FACTS = {
    "gpu": "no GPU",
    "capability": "0.0",
    "multiprocessors": 0,
    "memory": 0,
    "l2": 0,
    "driver": "",
    "torch": torch.__version__,
    "torch_cuda": "none",
    "fastact": fa.__version__,
    "cuda": {"built": False},
    "python": "",
}


class StandIn(cuda_device.Gpu):
    """Every call takes a millisecond, says this device, and its graphs are the calls themselves."""

    def __init__(self, memory: int = 2**22) -> None:
        self.memory = memory
        self.torch = torch
        self.device = torch.device("cpu")
        self.l2 = 1000
        self.replays_wrongly = False

    def free(self):
        return self.memory

    def synchronize(self):
        pass

    def seconds(self, calls, times):
        for i in range(times):
            calls[i % len(calls)]()
        return 1e-3

    def capture(self, call):
        return (lambda: None) if self.replays_wrongly else call

    def facts(self):
        return FACTS


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(_bench_cuda, "_SAMPLE_SECONDS", 1e-6)
    monkeypatch.setattr(_bench_cuda, "_LATENCY_ROUNDS", 2)
    monkeypatch.setattr(_bench_cuda, "_TINY_CALLS", 3)
    monkeypatch.setattr(_bench_cuda, "_FEWEST_ROUNDS", 2)


def options(**changed):
    told = {
        "sizes": (4096,),
        "dtypes": tuple(work.ITEM),
        "directions": ("forward", "backward"),
        "peers": (TORCH,),
        "seconds": 0.0,
    }
    return _bench_cuda.Options(**(told | changed))


def bench(ops, told, *files, device=None):
    return board.run(_bench_cuda.Gpus(told, device or StandIn()), ops, told, *files)


def measurable():
    ops = [op for op in fa.ops.values() if op.family in FAMILIES]
    return [op for op in ops if FAMILIES[op.family].on_gpu(op, "forward", "float32", None)]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("dtypes", "memory"),
    [(("float32",), 2**20), pytest.param(tuple(work.ITEM), 2**22, marks=pytest.mark.thorough)],
    ids=["float32", "all"],
)
def test_every_op_runs_and_is_reported(dtypes, memory, tmp_path, capsys):
    """All but the activations for every type; those are one loop, and differ by their formula.

    In a plain run one op of each family for float32 alone, which needs less memory for all cases to
    fit.
    """
    numbers, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    ops = list(fa.ops.values())
    if len(dtypes) == 1:
        ops = [*{op.family: op for op in ops}.values(), fa.mish]
    measured = [op for op in measurable() if op in ops]
    others = [op for op in ops if op.family != "activations" or op is fa.mish]
    done = bench(others, options(dtypes=dtypes), numbers, page, device=StandIn(memory))
    assert done.problems == []
    more = options(dtypes=("float32",), goes_on=True)
    done = bench(ops, more, numbers, page, device=StandIn(memory))
    assert done.problems == []
    results = json.loads(numbers.read_text())
    shown = capsys.readouterr().out
    for op in measured:
        rows = [row for row in results["rows"] if row["op"] == op.name]
        assert {row["dtype"] for row in rows} == (set(dtypes) if op in others else {"float32"})
        assert op.name in shown
        assert f"## {op.name}, forward, float32" in page.read_text()
    for row in results["rows"]:
        assert {OURS, FRESH, COPY} <= set(row["seconds"])
        # torch takes part wherever it has the op, or the op is a chain of its sums
        namespaces = {"activations": torch.nn.functional, "statistics": torch}
        namespaces["parametric"] = torch.nn.functional
        op = fa.ops[row["op"]]
        namespace = namespaces.get(op.family) if "dweights" not in op.gradients else None
        lacks = namespace is not None and not hasattr(namespace, op.name)
        assert (TORCH in row["seconds"]) is not lacks, row["op"]
        assert row["graph"] == ""
        assert row["ratios"][OURS] == 1
        assert row["rate"] == row["bytes"] / row["seconds"][OURS]
    assert {one["op"] for one in results["latency"]} == {op.name for op in measured}
    assert "% of copy" in shown


def test_bytes_that_have_to_move():
    cases = FAMILIES["activations"].on_gpu
    (forward,) = cases(fa.mish, "forward", "bfloat16", (1000,))
    (backward,) = cases(fa.mish, "backward", "float32", (1000,))
    assert (forward.moved, backward.moved) == (4000, 12000)
    of = {
        op.name: {
            case.label: case for case in FAMILIES["reductions"].on_gpu(op, "forward", d, (1000,))
        }
        for op, d in ((fa.sum, "float64"), (fa.moments, "float32"))
    }
    rows, pair = (of[name]["500 × 3, axis 1"] for name in of)
    assert (rows.moved, pair.moved) == (12000 + 500 * 8, 6000 + 500 * 2 * 8)
    cases = FAMILIES["gates"].on_gpu
    shapes = [case.shape for case in cases(fa.lstm_gates, "forward", "float32", None)]
    assert (shapes[0], shapes[-1]) == ((256, 64), (4096, 4096))
    assert (1024, 2048) in shapes
    moved = [cases(fa.lstm_gates, d, "float32", (5120,))[0].moved for d in ("forward", "backward")]
    assert moved == [640 * 4 * 11, 640 * 4 * 13]


def test_every_op_has_cases():
    assert measurable() == list(fa.ops.values())


@pytest.mark.usefixtures("quick")
def test_what_goes_wrong_is_told(monkeypatch, capsys):
    device = StandIn()
    device.replays_wrongly = True
    monkeypatch.setattr(torch.nn.functional, "mish", torch.relu)
    few = options(dtypes=("float32",), directions=("forward",))
    problems = bench([fa.mish], few, device=device).problems
    assert any("CUDA graph: replaying it gives other bits" in problem for problem in problems)
    assert any("torch has another result" in problem for problem in problems)
    assert "WRONG: mish forward" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_a_peer_that_fails_is_left_out(monkeypatch, capsys):
    def fails(x):
        raise RuntimeError("no compiler\nand a back trace")

    monkeypatch.setattr(work, "compiled_by_torch", lambda torch, function: fails)
    few = options(dtypes=("float32",), directions=("forward",), peers=(TORCH, "torch.compile"))
    assert bench([fa.mish], few).problems == []
    assert "torch.compile: left out, RuntimeError: no compiler\n" in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_what_does_not_fit_is_passed_over(capsys):
    few = options(sizes=(2**20,), dtypes=("float32",), directions=("forward",))
    assert bench([fa.mish], few).problems == []
    assert " are free" in capsys.readouterr().out


def test_without_a_gpu_of_fastact(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("FASTACT_DISABLE_CUDA", "1")
    with pytest.raises(SystemExit, match="needs a GPU: FASTACT_DISABLE_CUDA is set"):
        cuda_device.open_gpu()


@pytest.mark.skipif(
    torch.version.cuda is None or bool(devices.cuda_why()), reason="there is no GPU"
)
def test_on_a_gpu(tmp_path):
    numbers = tmp_path / "gpu.json"
    words = ["mish", "--device", "cuda", "--sizes", "65536", "--dtypes", "float32,bfloat16"]
    words += ["--peers", "torch", "--json", str(numbers), "--markdown", str(tmp_path / "gpu.md")]
    assert cli.main(words) == 0
    for row in json.loads(numbers.read_text())["rows"]:
        assert row["graph"] == ""
        assert row["rate"] > 0
