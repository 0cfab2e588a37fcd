"""`python -m benchmarks`: the boards, what their peers compute, and runs that go on."""

import json
import subprocess

import numpy as np
import pytest
import torch
from benchmarks import cli, cpu, shapes
from benchmarks.workloads import FAMILIES, norms, work
from benchmarks.workloads.libraries import IDIOMS
from benchmarks.workloads.work import Options
from normed import NORMS
from test_cli import ended, short_turns  # noqa: F401 - short_turns is a fixture

import fastact as fa
from fastact.measure import peers
from fastact.measure.peers import COPY, FRESH, OURS

SHAPED = [op for op in fa.ops.values() if op.family in ("reductions", "bias")]
GATES = [op for op in fa.ops.values() if op.family == "gates"]

pytestmark = pytest.mark.usefixtures("short_turns")


def refused(*words: str) -> subprocess.CompletedProcess[str]:
    """What the command line gives of words that end the program."""
    return ended(cli.main, *words)


@pytest.fixture
def small_shapes(monkeypatch):
    """The tables with as many kinds of shapes, and few elements."""
    channels = shapes.Layout("nchw", (2, 3, 4, 5), ((0, 2, 3),), 1)
    matrix = shapes.Layout("matrix", (6, 10), ((0,), (1,), None), -1)
    monkeypatch.setattr(shapes, "REDUCED", (matrix, channels))
    monkeypatch.setattr(shapes, "BIASED", (matrix, channels))
    monkeypatch.setattr(shapes, "MIDDLE", (shapes.Layout("middle", (2, 6, 5), ((1,),)),))
    monkeypatch.setattr(shapes, "WEIGHTS", (shapes.Layout("weights", (3, 3, 8)),))


def test_bench(op, tmp_path, capsys):
    numbers = tmp_path / "bench.json"
    words = [op.name, "--sizes", "64,1000", "--peers", "numpy,torch", "--seconds", "0.001"]
    assert cli.main([*words, "--json", str(numbers)]) == 0
    shown = capsys.readouterr().out
    for word in (op.name, "copy", "torch", "numpy"):
        assert word in shown
    rows = json.loads(numbers.read_text())["rows"]
    assert [(row["size"], row["what"]) for row in rows] == 2 * [(64, "64"), (1000, "1,000")]


def test_bench_goes_on_where_it_was_interrupted(tmp_path, capsys, monkeypatch):
    numbers, measured, measure = tmp_path / "bench.json", [], cpu.measure
    words = ["relu", "mish", "--sizes", "64", "--peers", "", "--seconds", "0.001"]
    words += ["--json", str(numbers)]

    def interrupted(case, *args):
        measured.append((case.op.name, case.direction))
        if len(measured) == 3:
            raise KeyboardInterrupt
        return measure(case, *args)

    monkeypatch.setattr(cpu, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cli.main(words)
    assert len(json.loads(numbers.read_text())["rows"]) == 2
    assert cli.main([*words, "--resume"]) == 0
    every = [(op, way) for op in ("relu", "mish") for way in ("forward", "backward")]
    assert measured == [*every[:3], *every[2:]]
    rows = json.loads(numbers.read_text())["rows"]
    assert [(row["op"], row["direction"]) for row in rows] == every
    assert "mish, backward" in capsys.readouterr().out

    facts = json.loads(numbers.read_text())  # of another machine: it is put aside
    facts["machine"]["processor"] = "another"
    numbers.write_text(json.dumps(facts))
    assert cli.main([*words, "--resume"]) == 0
    assert "of another processor; it is now bench.json.before" in capsys.readouterr().out
    assert len(measured) == 9

    numbers.write_text("{}")
    with pytest.raises(SystemExit):
        cli.main([*words, "--resume"])
    assert "was not written by bench --json on a CPU" in capsys.readouterr().err


def test_numpys_idioms_are_the_ops():
    x = np.linspace(-8, 8, 1001)
    for name, idiom in IDIOMS.items():
        # log(2) is taken from a sum that is near to it: absolute, of float64
        np.testing.assert_allclose(idiom(x, np), fa.ops[name](x), rtol=1e-12, atol=1e-15)


def test_a_peer_that_fails_is_left_out(monkeypatch, capsys):
    def fails(x):
        raise RuntimeError("not implemented for 'Half'\nand a back trace")

    monkeypatch.setattr(torch.nn.functional, "mish", fails)
    words = ["mish", "--sizes", "64", "--peers", "torch", "--seconds", "0.001"]
    assert cli.main([*words, "--directions", "forward"]) == 0
    shown = capsys.readouterr().out
    assert "torch: left out, RuntimeError: not implemented for 'Half'\n" in shown
    assert "× copy" in shown


def as_arrays(result):
    """What a call gave, as arrays of float64: one, or two of a gradient."""
    if isinstance(result, fa.Moments):
        result = (result.mean, result.m2)
    results = result if isinstance(result, tuple) else (result,)
    return [np.asarray(array).astype(np.float64).reshape(-1) for array in results]


@pytest.mark.usefixtures("small_shapes")
@pytest.mark.parametrize("shaped", SHAPED, ids=lambda op: op.name)
def test_bench_of_shapes(shaped, tmp_path, capsys):
    numbers = tmp_path / "bench.json"
    words = [shaped.name, "--dtypes", "float32,float16", "--peers", "numpy,torch"]
    words += ["--seconds", "0.001", "--threads", "1", "--json", str(numbers)]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    rows = json.loads(numbers.read_text())["rows"]
    assert {row["dtype"] for row in rows} == {"float32", "float16"}
    for row in rows:
        assert {OURS, FRESH, COPY, "torch"} <= set(row["seconds"]) == set(row["ratios"])
        assert row["what"] in shown
    assert "2 × 3 × 4 × 5" in shown or "shape" in shaped.entry_points["call"].defaults
    assert "Sums are held against a copy of the array that they read" in shown


# Gradients that no peer has as a call of its own.
ALONE = {"bias_grad", "unbroadcast", "mean_var", "moments"}


@pytest.mark.usefixtures("small_shapes")
@pytest.mark.parametrize("shaped", SHAPED, ids=lambda op: op.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_peers_do_the_same_work(shaped, direction):
    compared: set[str] = set()
    float32 = np.dtype(np.float32)
    options = Options((), (float32,), (direction,), ("numpy", "torch"), (1,))
    for case in FAMILIES[shaped.family].on_cpu(shaped, direction, "float32", options):
        calls, _ = cpu.workload(case, options.peers, 1)
        expected = as_arrays(calls[FRESH]())
        for name in set(calls) - {COPY}:
            compared.add(name)
            for ours, theirs in zip(expected, as_arrays(calls[name]()), strict=True):
                np.testing.assert_allclose(theirs, ours, 1e-4, 1e-5, err_msg=f"{name}, {case}")
    assert compared or (direction == "backward" and shaped.name in ALONE)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("peer", ["torch", "torch.compile"])
@pytest.mark.parametrize("gates", GATES, ids=lambda op: op.name)
def test_peers_of_gates_do_the_same_work(gates, peer, direction, monkeypatch):
    def traced(torch, function):  # without the minute that a C++ compiler takes
        return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    monkeypatch.setattr(work, "compiled_by_torch", traced)
    float32 = np.dtype(np.float32)
    options = Options((512,), (float32,), (direction,), (peer,), (1,), small=True)
    (case,) = FAMILIES[gates.family].on_cpu(gates, direction, "float32", options)
    calls, left_out = cpu.workload(case, [*peers.versions(options.peers)], 1)
    assert not left_out
    result = calls[FRESH]()
    results = result if isinstance(result, tuple) else (result,)
    expected = as_arrays(tuple(y for y in results if y is not None))
    found = as_arrays(calls[peer]())
    for ours in expected:  # in whichever order; torch has the recurrent projection's too
        assert any(
            ours.shape == theirs.shape and np.allclose(theirs, ours, 1e-4, 1e-5) for theirs in found
        ), (gates.name, ours.shape)
    for _ in range(2):  # it can be timed
        again = as_arrays(calls[peer]())
    for before, after in zip(found, again, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "norm",
    [op for op in NORMS if not op.traits.counts_elements],  # whose random numbers no peer draws
    ids=lambda op: op.name,
)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_peers_normalise_alike(norm, direction, monkeypatch):
    rows = (shapes.Layout("matrix", (6, 10)),)
    images = [shapes.Layout("nchw", (2, 4, 3, 5), channel=1)]
    images += [shapes.Layout("nhwc", (2, 3, 5, 4), channel=-1)]
    monkeypatch.setattr(shapes, "NORMED_ROWS", rows)
    monkeypatch.setattr(shapes, "NORMED_IMAGES", images)
    monkeypatch.setattr(norms, "_GROUPS", 2)
    float32 = np.dtype(np.float32)
    options = Options((), (float32,), (direction,), ("numpy", "torch"), (1,))
    for case in FAMILIES["norms"].on_cpu(norm, direction, "float32", options):
        calls, left_out = cpu.workload(case, options.peers, 1)
        results = {name: call() for name, call in calls.items() if name != COPY}
        ours = results[FRESH] if isinstance(results[FRESH], tuple) else (results[FRESH],)
        assert "torch" in results
        assert set(left_out) <= (
            {"numpy"} if direction == "backward" or norm is fa.group_norm else set()
        )
        for name in set(results) - {FRESH, OURS}:
            theirs = results[name] if isinstance(results[name], tuple) else (results[name],)
            pairs = [(ours[0], np.asarray(theirs[0]))]
            if direction == "backward":  # of residual and x, torch has a gradient each
                weights = sum(name in norm.saves for name in ("weight", "bias"))
                pairs += zip(ours[-weights:], theirs[-weights:], strict=True)
            for one, other in pairs:
                np.testing.assert_allclose(other, one, 1e-4, 1e-4, err_msg=f"{name}, {case}")
