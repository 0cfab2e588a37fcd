"""`python -m fastact`: what a person types, what comes out, and how it fails."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from conftest import ISAS, by_representatives_first
from normed import NORMS
from processes import TIMEOUT

import fastact as fa
from fastact import _cpu, cli, terminal
from fastact.bench import cpu
from fastact.bench.workloads import FAMILIES, norms, work
from fastact.bench.workloads.activations import IDIOMS
from fastact.bench.workloads.work import Options
from fastact.measure import peers, shapes
from fastact.measure.peers import COPY, FRESH, OURS
from fastact.measure.sum_axes import is_sum
from fastact.ops.bounds import Bounds, SumBounds
from fastact.ops.engine import op as fa_op
from fastact.ops.engine.norm_rows import named_axes
from fastact.ops.engine.norm_rows import norm as norm_of
from fastact.runtime import config

SHAPED = [op for op in fa.ops.values() if op.family in ("reductions", "bias")]
GATES = [op for op in fa.ops.values() if op.family == "gates"]
SUMS = [op for op in SHAPED if is_sum(op)]


@pytest.fixture
def torch_threads():
    """Who is told a number of threads keeps it; other tests have their own."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_shapes(monkeypatch, torch_threads):
    """The tables with as many kinds of shapes, and few elements."""
    channels = shapes.Layout("nchw", (2, 3, 4, 5), ((0, 2, 3),), 1)
    matrix = shapes.Layout("matrix", (6, 10), ((0,), (1,), None), -1)
    monkeypatch.setattr(shapes, "REDUCED", (matrix, channels))
    monkeypatch.setattr(shapes, "BIASED", (matrix, channels))
    monkeypatch.setattr(shapes, "MIDDLE", (shapes.Layout("middle", (2, 6, 5), ((1,),)),))
    monkeypatch.setattr(shapes, "WEIGHTS", (shapes.Layout("weights", (3, 3, 8)),))
    monkeypatch.setattr(cpu, "_BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(cpu, "_TURN_SECONDS", 1e-6)


def fastact(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastact", *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def refused(*words: str) -> subprocess.CompletedProcess[str]:
    """What `fastact` gives of words that end the program, without a process to start for them.

    An exception that is no end of a program, which there would show its traceback, is the test's.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        cli.main(words)
    code = end.value.code
    if isinstance(code, str):
        print(code, file=err)
        code = 1
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


def test_info():
    done = fastact("info")
    assert done.returncode == 0, done.stderr
    assert fa.__version__ in done.stdout
    facts = json.loads(fastact("info", "--json").stdout)
    assert facts["isa"]["supported"] == list(_cpu.supported_isas())
    cuda = facts["cuda"]
    assert cuda["built"] is (find_spec("fastact._cuda") is not None)
    assert cuda["available"] is (cuda["why"] == "")


@by_representatives_first
def test_check_of_every_thousandth_input(op, tmp_path, capsys):
    report = tmp_path / "accuracy.md"
    words = ["check", op.name, "--exhaustive", "--stride", "1009", "--markdown", str(report)]
    assert cli.main([*words, "--isa", ",".join(ISAS)]) == 0
    assert "every bound holds" in capsys.readouterr().out
    rows = [line.split(" | ") for line in report.read_text().splitlines()]
    # forward and derivative, float32 and float64; one summary of either direction
    details = [row for row in rows if row[2:3] in (["float32"], ["float64"])]
    assert len(details) == 4 * len(ISAS) * len(op.variants)
    assert sum(row[1:2] in (["forward"], ["derivative"]) for row in rows) - len(details) == 2 * len(
        op.variants
    )


@by_representatives_first
def test_check_fails_on_a_violated_bound(op, monkeypatch, capsys):
    monkeypatch.setattr(op, "bounds", Bounds(-1.0, 4.0, 1.2e-7))
    assert cli.main(["check", op.name, "--stride", "97"]) == 1
    assert "VIOLATED" in capsys.readouterr().out


@pytest.mark.usefixtures("torch_threads")
def test_bench(op, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cpu, "_BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(cpu, "_TURN_SECONDS", 1e-6)
    numbers = tmp_path / "bench.json"
    words = ["bench", op.name, "--sizes", "64,1000", "--peers", "numpy,torch", "--seconds", "0.001"]
    assert cli.main([*words, "--json", str(numbers)]) == 0
    shown = capsys.readouterr().out
    for word in (op.name, "copy", "torch", "numpy"):
        assert word in shown
    rows = json.loads(numbers.read_text())["rows"]
    assert [(row["size"], row["what"]) for row in rows] == 2 * [(64, "64"), (1000, "1,000")]


def test_bench_goes_on_where_it_was_interrupted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cpu, "_BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(cpu, "_TURN_SECONDS", 1e-6)
    numbers, measured, measure = tmp_path / "bench.json", [], cpu.measure
    words = ["bench", "mish", "relu", "--sizes", "64", "--peers", "", "--seconds", "0.001"]
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
    every = [(op, way) for op in ("mish", "relu") for way in ("forward", "backward")]
    assert measured == [*every[:3], *every[2:]]
    rows = json.loads(numbers.read_text())["rows"]
    assert [(row["op"], row["direction"]) for row in rows] == every
    assert "relu, backward" in capsys.readouterr().out

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


@pytest.mark.usefixtures("torch_threads")
def test_a_peer_that_fails_is_left_out(monkeypatch, capsys):
    def fails(x):
        raise RuntimeError("not implemented for 'Half'\nand a back trace")

    monkeypatch.setattr(torch.nn.functional, "mish", fails)
    words = ["bench", "mish", "--sizes", "64", "--peers", "torch", "--seconds", "0.001"]
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
    words = ["bench", shaped.name, "--dtypes", "float32,float16", "--peers", "numpy,torch"]
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


@pytest.mark.parametrize("name", [*peers._OF_INPUT, *peers._OF_OUTPUT])
def test_torchs_backward_kernels_are_given_what_they_need(name):
    """They are called without their autograd: their arguments are ours to get right."""
    x, dy = (torch.linspace(-7, 7, 999, dtype=torch.float64) + shift for shift in (0, 0.1))
    # torch has 1/6 of hardsigmoid in float32
    kernel = peers.torch_backward(torch, name)
    saved = kernel.saved(x)
    ours, theirs = fa.ops[name].backward(dy, saved), kernel.function(dy, saved)
    torch.testing.assert_close(theirs, ours, rtol=1e-7, atol=1e-12)


@pytest.mark.usefixtures("small_shapes")
@pytest.mark.parametrize("shaped", SHAPED, ids=lambda op: op.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_peers_do_the_same_work(shaped, direction):
    float32 = np.dtype(np.float32)
    options = Options((), (float32,), (direction,), ("numpy", "torch"), (1,))
    for case in FAMILIES[shaped.family].on_cpu(shaped, direction, "float32", options):
        calls = cpu.workload(case, options.peers, 1).calls
        expected = as_arrays(calls[FRESH]())
        for name in set(calls) - {COPY}:
            for ours, theirs in zip(expected, as_arrays(calls[name]()), strict=True):
                np.testing.assert_allclose(theirs, ours, 1e-4, 1e-5, err_msg=f"{name}, {case}")


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("peer", ["torch", "torch.compile"])
@pytest.mark.parametrize("gates", GATES, ids=lambda op: op.name)
def test_peers_of_gates_do_the_same_work(gates, peer, direction, monkeypatch):
    def traced(torch, function):  # without the minute that a C++ compiler takes
        return torch.compile(function, fullgraph=True, dynamic=False, backend="aot_eager")

    monkeypatch.setattr(work, "compiled_by_torch", traced)
    float32 = np.dtype(np.float32)
    options = Options((), (float32,), (direction,), (peer,), (1,), shapes=(shapes.TINY,))
    (case,) = FAMILIES[gates.family].on_cpu(gates, direction, "float32", options)
    made = cpu.workload(case, [*peers.versions(options.peers)], 1)
    assert not made.left_out
    result = made.calls[FRESH]()
    results = result if isinstance(result, tuple) else (result,)
    expected = as_arrays(tuple(y for y in results if y is not None))
    found = as_arrays(made.calls[peer]())
    for ours in expected:  # in whichever order; torch has the recurrent projection's too
        assert any(
            ours.shape == theirs.shape and np.allclose(theirs, ours, 1e-4, 1e-5) for theirs in found
        ), (gates.name, ours.shape)
    for _ in range(2):  # it can be timed
        again = as_arrays(made.calls[peer]())
    for before, after in zip(found, again, strict=True):
        np.testing.assert_array_equal(before, after)


def test_what_takes_long_is_measured_on_request_alone():
    assert not set(peers.ON_REQUEST) & set(peers.PEERS)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize(
    "norm",
    [op for op in NORMS if not op.counts_elements],  # whose random numbers no peer draws
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
        made = cpu.workload(case, options.peers, 1)
        results = {name: call() for name, call in made.calls.items() if name != COPY}
        ours = results[FRESH] if isinstance(results[FRESH], tuple) else (results[FRESH],)
        assert "torch" in results
        assert set(made.left_out) <= (
            {"numpy"} if direction == "backward" or norm is fa.group_norm else set()
        )
        for name in set(results) - {FRESH, OURS}:
            theirs = results[name] if isinstance(results[name], tuple) else (results[name],)
            pairs = [(ours[0], np.asarray(theirs[0]))]
            if direction == "backward":  # of residual and x, torch has a gradient each
                weights = len(norm.weights)
                pairs += zip(ours[-weights:], theirs[-weights:], strict=True)
            for one, other in pairs:
                np.testing.assert_allclose(other, one, 1e-4, 1e-4, err_msg=f"{name}, {case}")


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("norm", [fa.batch_norm, fa.norm_apply], ids=lambda op: op.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_peers_normalise_channels_alike(norm, direction, monkeypatch):
    layouts = (
        shapes.Layout("nchw", (3, 4, 3, 5), channel=1),
        shapes.Layout("nhwc", (3, 3, 5, 4), channel=-1),
    )
    monkeypatch.setattr(shapes, "BATCHED", layouts)
    float32 = np.dtype(np.float32)
    options = Options((), (float32,), (direction,), ("numpy", "torch"), (1,))
    cases = FAMILIES["norms"].on_cpu(norm, direction, "float32", options)
    assert len(cases) == 4  # with an activation and without
    for case in cases:
        made = cpu.workload(case, options.peers, 1)
        assert set(made.left_out) <= ({"numpy"} if direction == "backward" else set())
        found = {name: call() for name, call in made.calls.items() if name != COPY}
        ours = found[FRESH] if isinstance(found[FRESH], tuple) else (found[FRESH],)
        for name in set(found) - {FRESH, OURS}:
            theirs = found[name] if isinstance(found[name], tuple) else (found[name],)
            for one, other in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(other, one, 1e-4, 1e-4, err_msg=f"{name}, {case}")


def test_shapes_that_are_measured():
    labels = {
        layout.name: [shapes.sum_label(layout.shape, axis) for axis in layout.axes]
        for layout in shapes.REDUCED
    }
    assert labels == {
        "tiny": ["8 × 8, axis 0", "8 × 8, axis all"],
        "matrix": [f"8,192 × 4,096, axis {axis}" for axis in (0, 1, "all")],
        "narrow": [f"1,000,000 × 3, axis {axis}" for axis in (0, 1)],
        "flat": [f"3 × 1,000,000, axis {axis}" for axis in (0, 1)],
        "nchw": ["32 × 64 × 56 × 56, axis 0, 2, 3"],
        "nhwc": ["32 × 56 × 56 × 64, axis 0, 1, 2"],
        "small": ["128 × 6 × 24 × 24, axis 0, 2, 3"],
        "tall": [f"65,536 × 512, axis {axis}" for axis in (0, 1)],
    }


@pytest.mark.usefixtures("small_shapes")
def test_bench_of_a_few_shapes(capsys):
    words = ["bench", "sum", "--shapes", "nchw", "--directions", "forward", "--seconds", "0.001"]
    assert cli.main([*words, "--peers", ""]) == 0
    assert "6 × 10" not in (shown := capsys.readouterr().out)
    assert "2 × 3 × 4 × 5, axis 0, 2, 3" in shown
    assert cli.main([*words[:3], "weights", *words[4:]]) == 0
    assert "sum: nothing to measure" in capsys.readouterr().out


@pytest.mark.parametrize("shaped", SUMS, ids=lambda op: op.name)
def test_check_of_sums(shaped, tmp_path, capsys, monkeypatch, torch_threads):
    report = tmp_path / "accuracy.md"
    words = ["check", shaped.name, "--stride", "1009", "--peers", "torch"]
    assert cli.main([*words, "--markdown", str(report)]) == 0
    assert "every bound holds" in capsys.readouterr().out
    rows = [line.split(" | ") for line in report.read_text().splitlines() if " | " in line][1:]
    layouts = 5 if shaped.family == "reductions" else 4  # a bias has an axis of its own
    for by in ("numpy", "torch"):
        assert len({(row[1], row[2]) for row in rows if row[3] == by}) == 4 * layouts
    ours = [row for row in rows if row[3] not in ("numpy", "torch")]
    assert {isa for row in ours for isa in row[3].split()} == set(_cpu.supported_isas())
    # Sums of 16 bits in a wide type are not what NumPy does, and the table shows it.
    assert max(float(row[4]) for row in rows if row[1] == "float16" and row[3] == "numpy") > 10

    monkeypatch.setattr(shaped, "bounds", SumBounds(0.1, 0.0))
    assert cli.main(words[:4]) == 1
    assert "VIOLATED" in capsys.readouterr().out


OF_MOMENTS = [fa.mean_var, fa.moments]
NORMALISING = [*NORMS, fa.batch_norm, fa.norm_apply]


# Norms of rows are checked by the same code, seconds each: a plain run has one of them.
@pytest.mark.parametrize(
    "checked",
    [
        pytest.param(op, marks=pytest.mark.thorough if op in NORMS[1:] else (), id=op.name)
        for op in [*OF_MOMENTS, *NORMALISING]
    ],
)
def test_check_of_moments_and_norms(checked, tmp_path, capsys, monkeypatch):
    words = ["check", checked.name, "--stride", "1009", "--isa", _cpu.isa()]
    report = tmp_path / "accuracy.md"
    assert cli.main([*words, "--markdown", str(report)]) == 0
    assert "every bound holds" in capsys.readouterr().out
    header, *rows = [line.split(" | ") for line in report.read_text().splitlines() if " | " in line]
    dtypes = {row[header.index("dtype")] for row in rows}
    assert dtypes == {"float64", "float32", "float16", "bfloat16"}
    tight = (
        {"mean": 0, "m2": 0, "m2_double": 0, "far": 0, "merged": 0.01}
        if checked in OF_MOMENTS
        else {"scaled": 0, "gradient": 0, "averaged": 0, "given": 0}
    )
    monkeypatch.setattr(checked, "bounds", replace(checked.bounds, **tight))
    assert cli.main(words) == 1
    assert "VIOLATED" in capsys.readouterr().out


def test_every_op_is_measured():
    options = Options((64,), (), (), (), (1,))
    for op in fa.ops.values():
        assert FAMILIES[op.family].on_cpu(op, "forward", "float32", options)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_norm_that_is_declared_is_measured(direction, monkeypatch):
    """By its declaration alone; torch takes part once it is known what it calls the norm."""

    def new_norm(
        x,
        residual,
        /,
        weight=None,
        *,
        axis=-1,
        eps=1e-5,
        activation="identity",
        out=None,
        stream=None,
        **parameters,
    ):
        pass

    monkeypatch.setattr(fa_op, "_ops", dict(fa_op._ops))
    new = norm_of(over=named_axes)(new_norm)
    options = Options((), (), (direction,), ("numpy", "torch"), (1,), shapes=(shapes.TINY,))
    for case in FAMILIES["norms"].on_cpu(new, direction, "float32", options):
        made = cpu.workload(case, options.peers, 1)
        assert made.left_out.pop("torch") == "it has no new_norm"
        assert set(made.left_out) == ({"numpy"} if direction == "backward" else set())
        for call in made.calls.values():
            call()
    (case, *_) = FAMILIES["norms"].on_gpu(new, direction, "float16", (4096,))
    assert (case.label, case.moved) == ("16 × 256", 4 * 2 * 4096)


@pytest.mark.thorough  # every activation, on every instruction set
def test_check_of_bias_act(capsys, monkeypatch):
    assert cli.main(["check", "bias_act"]) == 0
    shown = capsys.readouterr().out
    activations = [op for op in fa.ops.values() if op.family == "activations"]
    rows = {tuple(line.split()[1:3]) for line in shown.splitlines() if "bias_act  " in line}
    assert len(rows) == 4 * (1 + len(activations))
    tight = replace(fa.bias_act.bounds, dbias=SumBounds(0.1, 0.0))
    monkeypatch.setattr(type(fa.bias_act), "bounds", tight)
    assert cli.main(["check", "bias_act", "--isa", _cpu.isa()]) == 1
    assert "VIOLATED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "misch"], "mish"),
        (["bench", "misch"], "mish"),
        (["bench", "mish", "--sizes", "x"], "sizes"),
        (["bench", "sum", "--shapes", "nchv"], "nchw"),
        (["bench", "sum", "--seconds", "0"], "seconds"),
        (["check", "mish", "--isa", "v9"], "v9"),
        (["frobnicate"], "invalid choice"),
    ],
)
def test_bad_words(words, message):
    done = refused(*words)
    assert done.returncode != 0
    assert message in done.stderr + done.stdout


def test_another_name_of_an_op(monkeypatch):
    chosen = []
    monkeypatch.setattr("fastact.check.check.check", lambda ops, *_, **__: chosen.extend(ops))
    cli.main(["check", "swish", "silu"])
    assert chosen == [fa.silu]


@pytest.mark.parametrize("command", ["bench", "check"])
def test_a_missing_extra_is_named(command, tmp_path):
    """Plots need matplotlib, and say so before anything is computed."""
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('not installed')\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = fastact(command, "mish", "--plot", str(tmp_path / "plot.png"), PYTHONPATH=paths)
    assert done.returncode != 0
    assert "fastact[bench]" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("family", ["gated", "norms", "gates"])
def test_what_an_extra_would_judge_is_left_out_without_it(family, every, tmp_path):
    """A plain wheel has NumPy alone."""
    for missing in ("mpmath", "ml_dtypes"):
        (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError(name={missing!r})\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    checked = family if every else next(n for n, op in fa.ops.items() if op.family == family)
    words = ["check", checked, "--stride", "9973", "--isa", _cpu.isa()]
    done = fastact(*words, PYTHONPATH=paths)
    assert done.returncode == 0, done.stderr
    assert "every bound holds" in done.stdout


def test_nothing_but_numpy_is_imported():
    """Of what is not asked for; a plain wheel has none of it."""
    code = (
        "import sys; from fastact import cli; cli.main(['info']); "
        "cli.main(['check', 'relu', '--stride', '9973']); "
        "cli.main(['bench', 'relu', '--sizes', '64', '--peers', 'numpy', '--seconds', '0.001']); "
        "print({'torch', 'jax', 'matplotlib', 'rich'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize("command", [(), ("info",), ("check",), ("bench",)], ids=" ".join)
def test_help_fits_a_terminal_and_has_examples(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = refused(*command, "--help")
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    examples = [line.split()[3:] for line in done.stdout.partition("examples:\n")[2].splitlines()]
    assert len(examples) >= 2
    helps = {name: refused(name, "--help").stdout for name in {words[0] for words in examples}}
    for words in examples:  # of each, what stands before the words that explain it
        known = [word for word in words if word.startswith("--")]
        assert all(word in helps[words[0]] for word in known)


class Screen(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    """Call it to have a terminal from then on: what is written to its two streams."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)

    def look():  # in the test itself: pytest has streams of its own for each phase
        screens = Screen(), Screen()
        monkeypatch.setattr(sys, "stdout", screens[0])
        monkeypatch.setattr(sys, "stderr", screens[1])
        return screens

    return look


def plain(text):
    return re.sub(r"\x1b\[\d*[mK]", "", text)


@pytest.mark.parametrize("peers", ["numpy", "numpy,torch"])
@pytest.mark.usefixtures("torch_threads")
def test_a_terminal_has_colours_and_a_bar_and_no_line_beyond_it(screen, monkeypatch, peers):
    monkeypatch.setattr(cpu, "_BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(cpu, "_TURN_SECONDS", 1e-6)
    words = ["bench", "mish", "layer_norm", "--sizes", "64", "--shapes", "short", "--peers", peers]
    screens = screen()
    assert cli.main([*words, "--directions", "forward", "--seconds", "0.001"]) == 0
    shown, progress = (stream.getvalue() for stream in screens)
    assert "\x1b[1m" in shown
    assert max(map(len, plain(shown).splitlines())) <= 80
    assert "128 × 32" in shown
    assert "bench" in progress
    assert progress.endswith("\r\x1b[K")  # and the bar is gone
    assert max(len(plain(bar)) for bar in progress.split("\r")) < 80


def test_a_column_stays_with_the_one_before_it(screen):
    screen()
    header = ["name", *(f"{s}peer{i}" for i in range(9) for s in ("", "× "))]
    shown = terminal.table(
        header,
        [[*(4 * letter for letter in "abcdefghijklmnopqrs")]],
        style=lambda column, cell: "red",
    )
    parts = [plain(part).splitlines() for part in shown.split("\n\n")]
    assert len(parts) > 1
    for head, line in parts:
        name, *columns = head.split()
        assert name == "name"
        assert columns[0].startswith("peer")
        assert columns[-1] == "×"
        assert line.split()[0] == "aaaa"
        assert len(head) <= 80


def test_no_color_is_heard(screen, monkeypatch):
    screen()
    assert terminal.styled("text", "red") != "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.styled("text", "red") == "text"


@pytest.mark.parametrize(
    ("changed", "environ", "what", "cure"),
    [
        ({"isa": {"chosen": "v2"}}, {}, "it computes with v2", "unset FASTACT_ISA"),
        ({"openmp": "not built: serial"}, {}, "without OpenMP", "a compiler that has OpenMP"),
        (
            {"threads": {"limit": 1, "default_from": "OMP_NUM_THREADS"}},
            {"OMP_NUM_THREADS": "1"},
            "OMP_NUM_THREADS allows one thread of 8 cores",
            "unset OMP_NUM_THREADS",
        ),
        ({"call cache": "off"}, {}, "small calls take longer", "unset FASTACT_CALL_CACHE"),
        (
            {"cuda": {"available": False, "why": "no extension; build it"}},
            {},
            "there is a GPU here, and it is not used: no extension",
            "build it",
        ),
        ({"isa": {"built": ["v2"], "supported": ["v2"], "chosen": "v2"}}, {}, "v9", "a wheel"),
    ],
)
def test_what_is_wrong_is_told_with_its_cure(changed, environ, what, cure, monkeypatch, tmp_path):
    monkeypatch.setattr(config, "_NVIDIA", str(tmp_path))
    monkeypatch.setattr(config, "_ISA_FLAGS", {})
    monkeypatch.setattr(config, "_cores", lambda: 8)
    facts = {
        "isa": {"built": ["v2", "v3"], "supported": ["v2", "v3"], "chosen": "v3"},
        "openmp": "201511",
        "threads": {"limit": 8, "default_from": "CPU affinity"},
        "call cache": "on",
        "cuda": {"available": True, "why": ""},
    }
    assert config.problems(facts, {}) == []
    monkeypatch.setattr(config, "_ISA_FLAGS", {"v9": set()} if what == "v9" else {})
    for key, value in changed.items():
        facts[key] = facts[key] | value if isinstance(value, dict) else value
    ((found, cured),) = config.problems(facts, environ)
    assert what in found
    assert cure in cured


def test_errors_are_drawn(tmp_path, capsys, figures):
    """Of activations over x, beside a peer; of other ops in units of their bounds."""
    words = ["check", "relu", "softmax", "bias_act", "--stride", "9973", "--isa", _cpu.isa()]
    words += ["--peers", "numpy", "--plot", str(tmp_path / "errors.png")]
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    over_x, *others = figures
    assert [axes.get_title() for axes in over_x.axes] == ["relu, forward", "relu, derivative"]
    (legend,) = over_x.legends
    assert {text.get_text() for text in legend.get_texts()} == {_cpu.isa(), "numpy", "bound"}
    assert over_x.axes[0].get_yscale() == "log"
    assert len(others) == 2
    for figure in others:
        lowest, highest = figure.axes[0].dataLim.intervalx
        assert lowest > 0
        assert highest <= 1
    for family in ("activations", "softmax", "bias"):
        file = tmp_path / f"errors_{family}.png"
        assert file.stat().st_size > 10_000
        assert f"drawn: {file}" in shown
