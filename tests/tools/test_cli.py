"""`python -m fastact`: what a person types, what comes out, and how it fails."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest
from conftest import ACTIVATIONS, ISAS, first_of_families
from normed import NORMS
from processes import output_of, python_output, python_path, run_program

import fastact as fa
from fastact import _cpu, cli
from fastact.bench import bench, turns
from fastact.bench.turns import asked
from fastact.measure.sum_axes import is_sum
from fastact.ops.bounds import Bounds, SumBounds
from fastact.ops.engine.op import arrays_of
from fastact.runtime import config

SHAPED = [op for op in fa.ops.values() if op.family in ("reductions", "bias")]
GATES = [op for op in fa.ops.values() if op.family == "gates"]
SUMS = [op for op in SHAPED if is_sum(op)]


def fastact(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return run_program(sys.executable, "-m", "fastact", *words, env={**os.environ, **environ})


def refused(*words: str) -> subprocess.CompletedProcess[str]:
    """What `fastact` gives of words that end the program."""
    return ended(cli.main, *words)


def ended(main, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command line gives of words that end it, without a process to start for them.

    An exception that is no end of a program, which there would show its traceback, is the test's.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(words)
    code = end.value.code
    if isinstance(code, str):
        print(code, file=err)
        code = 1
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


def test_info():
    assert fa.__version__ in output_of(fastact("info"))
    facts = json.loads(fastact("info", "--json").stdout)
    assert facts["isa"]["supported"] == list(_cpu.supported_isas())
    cuda = facts["cuda"]
    assert cuda["built"] is (find_spec("fastact._cuda") is not None)
    assert cuda["available"] is (cuda["why"] == "")


@pytest.mark.parametrize("op", first_of_families(ACTIVATIONS))
def test_check_of_every_thousandth_input(op, tmp_path, capsys):
    report = tmp_path / "accuracy.md"
    words = ["check", op.name, "--exhaustive", "--stride", "1009", "--markdown", str(report)]
    assert cli.main([*words, "--isa", ",".join(ISAS)]) == 0
    assert "every bound holds" in capsys.readouterr().out
    rows = [line.split(" | ") for line in report.read_text().splitlines()]
    # forward and derivative, float32 and float64; one summary of either direction
    details = [row for row in rows if row[2:3] in (["float32"], ["float64"])]
    assert len(details) == 4 * len(ISAS) * len(op.variants)
    of_a_direction = sum(row[1:2] in (["forward"], ["derivative"]) for row in rows)
    assert of_a_direction - len(details) == 2 * len(op.variants)


@pytest.mark.parametrize("op", first_of_families(ACTIVATIONS))
def test_check_fails_on_a_violated_bound(op, monkeypatch, capsys):
    monkeypatch.setattr(op, "bounds", Bounds(-1.0, 4.0, 1.2e-7))
    assert cli.main(["check", op.name, "--stride", "97"]) == 1
    assert "VIOLATED" in capsys.readouterr().out


@pytest.mark.parametrize("shaped", SUMS, ids=lambda op: op.name)
def test_check_of_sums(shaped, tmp_path, capsys, monkeypatch):
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
    monkeypatch.setattr(checked, "bounds", checked.bounds._replace(**tight))
    assert cli.main(words) == 1
    assert "VIOLATED" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "misch"], "mish"),
        (["bench", "misch"], "mish"),
        (["bench", "mish", "--sizes", "x"], "sizes"),
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
    words = (command, "mish", "--plot", str(tmp_path / "plot.png"))
    done = fastact(*words, PYTHONPATH=python_path(tmp_path))
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
    checked = family if every else next(n for n, op in fa.ops.items() if op.family == family)
    words = ["check", checked, "--stride", "9973", "--isa", _cpu.isa()]
    done = output_of(fastact(*words, PYTHONPATH=python_path(tmp_path)))
    assert "every bound holds" in done


def test_nothing_but_numpy_is_imported():
    """Of what is not asked for; a plain wheel has none of it."""
    code = (
        "import sys; from fastact import cli; cli.main(['info']); "
        "cli.main(['check', 'relu', '--stride', '9973']); "
        "cli.main(['bench', 'relu', '--sizes', '64', '--peers', 'numpy', '--seconds', '0.001']); "
        "print({'torch', 'jax', 'matplotlib', 'rich'} & {*sys.modules})"
    )
    assert python_output(code).endswith("set()\n")


@pytest.fixture
def short_turns(monkeypatch):
    """Turns that last a moment, whose times tell nothing."""
    monkeypatch.setattr(turns, "_BATCH_SECONDS", 1e-6)
    monkeypatch.setattr(turns, "_TURN_SECONDS", 1e-6)


def test_bench_measures_every_op(short_turns, tmp_path, capsys):
    """Both ways, beside a copy and the peers that have a function of the op's name."""
    numbers = tmp_path / "bench.json"
    words = ["--sizes", "64", "--peers", "numpy,torch", "--seconds", "0.0001"]
    assert cli.main(["bench", *words, "--json", str(numbers)]) == 0
    assert "× torch" in capsys.readouterr().out
    rows = json.loads(numbers.read_text())["rows"]
    found = {(row["op"], row["direction"]) for row in rows}
    assert {name for name, way in found if way == "forward"} == {*fa.ops}
    backward = {name for name, op in fa.ops.items() if "backward" in op.entry_points}
    assert {name for name, way in found if way == "backward"} == backward
    beside = {row["op"] for row in rows if "torch" in row["ratios"]}
    assert {"mish", "layer_norm", "group_norm", "softmax", "sum", "cross_entropy"} <= beside


@pytest.mark.parametrize("entry", ["call", "backward"])
def test_benchs_peers_compute_the_op(entry):
    """Whichever function of torch's or formula of NumPy's bears its name."""
    seen = set()
    same = [
        op for op in fa.ops.values() if not op.traits.counts_elements
    ]  # others draw other numbers
    for op in same:
        direction = "forward" if entry == "call" else entry
        work = bench.timed_call(op, direction, "float64", bench.shape_of(op, 4 * bench._COLUMNS))
        found, _ = asked(bench.PEERS, partial(bench.call_of_peer, work, 2))
        ours = arrays_of(work.fresh())
        for peer, call in found.items():
            theirs = [np.asarray(a) for a in arrays_of(call()) if a is not None]
            like = [a for a in ours if a is not None][: len(theirs)]
            if [np.shape(a) for a in like] != [a.shape for a in theirs[: len(like)]]:
                continue
            seen.add((op.name, peer))
            for one, other in zip(like, theirs, strict=False):
                np.testing.assert_allclose(other, one, 1e-6, 1e-6, err_msg=f"{peer}, {op.name}")
    assert {("mish", "torch"), ("layer_norm", "torch"), ("softmax", "torch")} <= seen


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
    assert len(figures) == 3
    for family in ("activations", "softmax", "bias"):
        assert f"drawn: {tmp_path / f'errors_{family}.png'}" in shown
