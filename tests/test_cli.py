"""`python -m fastact`: what a person types, what comes out, and how it fails."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from test_threads import TIMEOUT

import fastact as fa
from fastact import _cpu


def fastact(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fastact", *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=4 * TIMEOUT,
        check=False,
    )


def test_info():
    done = fastact("info")
    assert done.returncode == 0, done.stderr
    assert fa.__version__ in done.stdout
    facts = json.loads(fastact("info", "--json").stdout)
    assert facts["isa"]["supported"] == list(_cpu.supported_isas())
    cuda = facts["cuda"]
    assert cuda["built"] is (find_spec("fastact._cuda") is not None)
    assert cuda["available"] is (cuda["why"] == "")


def test_check_of_every_thousandth_input(op, tmp_path):
    report = tmp_path / "accuracy.md"
    done = fastact("check", op.name, "--exhaustive", "--stride", "1009", "--markdown", str(report))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every bound holds" in done.stdout
    rows = [line for line in report.read_text().splitlines() if f"| {op.name} " in line]
    # forward and derivative, float32 and float64
    assert len(rows) == 4 * len(_cpu.supported_isas())


def test_check_fails_on_a_violated_bound(op, monkeypatch, capsys):
    from fastact import __main__
    from fastact._op import Bounds

    monkeypatch.setattr(op, "bounds", Bounds(0.1, 4.0, 1.2e-7))
    assert __main__.main(["check", op.name, "--stride", "97"]) == 1
    assert "VIOLATED" in capsys.readouterr().out


def test_bench(op, tmp_path):
    numbers = tmp_path / "bench.json"
    done = fastact(
        *("bench", op.name, "--sizes", "64,1000", "--peers", "numpy,torch"),
        *("--json", str(numbers)),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for word in (op.name, "copy", "torch", "numpy"):
        assert word in done.stdout
    assert json.loads(numbers.read_text())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "misch"], "mish"),
        (["bench", "misch"], "mish"),
        (["bench", "mish", "--sizes", "x"], "sizes"),
        (["check", "mish", "--isa", "v9"], "v9"),
        (["frobnicate"], "invalid choice"),
    ],
)
def test_bad_words(words, message):
    done = fastact(*words)
    assert done.returncode != 0
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("missing", ["rich", "matplotlib"])
def test_a_missing_extra_is_named(missing, tmp_path):
    """Plots need matplotlib; without rich everything is plain text."""
    (tmp_path / missing).mkdir()
    (tmp_path / missing / "__init__.py").write_text("raise ImportError('not installed')\n")
    words = ["bench", "mish", "--sizes", "64", "--peers", "numpy"]
    if missing == "matplotlib":
        words += ["--plot", str(tmp_path / "plot.png")]
    done = fastact(*words, PYTHONPATH=str(tmp_path))
    assert "Traceback" not in done.stderr
    if missing == "matplotlib":
        assert done.returncode != 0
        assert "fastact[bench]" in done.stderr + done.stdout
    else:
        assert done.returncode == 0, done.stderr
        assert "× copy" in done.stdout
