"""tools/gpu_steps.py: steps that several runs share, of commands that need no GPU."""

import json
import re
import subprocess
import sys
import threading
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from devices import EMULATED
from processes import TIMEOUT

import fastact as fa

TOOLS = Path(__file__).resolve().parents[2] / "tools"
if not TOOLS.exists():
    pytest.skip("the tools are in the source tree only", allow_module_level=True)
sys.path.insert(0, str(TOOLS))
gpu_steps = import_module("gpu_steps")

FACTS = {"gpu": "a GPU", "commit": "1234567"}


def step(name, code, also=()):
    return gpu_steps.Step("test", name, (sys.executable, "-S", "-c", code), also)


GOOD = step("good", "print('3 passed')")
BAD = step("bad", "print('1 | failed'); raise SystemExit(1)")
NONE = step("none", "raise SystemExit(5)", (gpu_steps.NOTHING_COLLECTED,))
SLOW = step("slow", "import time; time.sleep(1e6)")


@pytest.fixture
def clock(monkeypatch):
    """Time that slow steps take alone, each all that it was given, once another one has ended."""
    now, ended, real = [0.0], threading.Event(), gpu_steps.run

    def run(step, seconds, jobs):
        if not step.name.startswith("slow"):
            outcome = real(step, TIMEOUT, jobs)
            ended.set()
            return outcome
        ended.wait()
        now[0] += seconds
        return None

    monkeypatch.setattr(gpu_steps, "run", run)
    monkeypatch.setattr(gpu_steps, "time", SimpleNamespace(monotonic=lambda: now[0]))


def run(tmp_path, steps, seconds=TIMEOUT, facts=FACTS):
    """The exit status, and what the file has then."""
    file = tmp_path / "gpu_checks.json"
    status = gpu_steps.go_on(steps, file, tmp_path / "gpu_checks.md", facts, seconds)
    found = json.loads(file.read_text()) if file.exists() else {"steps": []}
    return status, [(one["name"], one["verdict"], one["said"]) for one in found["steps"]]


def test_steps_pass_or_fail(tmp_path, capsys):
    status, found = run(tmp_path, [GOOD, BAD, NONE])
    assert status == 1
    assert found == [
        ("good", "passed", "3 passed"),
        ("bad", "FAILED (1)", "1 | failed"),
        ("none", "passed", ""),
    ]
    assert "3 of 3 steps are done, 1 failed" in capsys.readouterr().out
    page = (tmp_path / "gpu_checks.md").read_text()
    assert "gpu a GPU; commit 1234567." in page
    assert r"| test | bad | FAILED (1) | 0 | 1 \| failed |" in page


def test_what_is_done_is_not_done_again(tmp_path, capsys):
    """Nor what has failed; without time nothing is begun."""
    assert run(tmp_path, [GOOD], seconds=0.0) == (gpu_steps.LEFT, [])
    run(tmp_path, [GOOD, BAD])
    capsys.readouterr()
    status, found = run(tmp_path, [GOOD, BAD, NONE])
    assert status == 1
    assert [name for name, _, _ in found] == ["good", "bad", "none"]
    out = capsys.readouterr().out
    assert "-- none" in out
    assert "-- good" not in out
    assert "-- bad" not in out


def test_a_step_over_time_is_ended():
    assert gpu_steps.run(SLOW, 0.1) is None


@pytest.mark.usefixtures("clock")
def test_a_step_over_time_is_left_to_the_next_run_and_fails_there(tmp_path):
    """There it has all the time that a run has."""
    status, found = run(tmp_path, [GOOD, SLOW, NONE], seconds=2.0)
    assert (status, [name for name, _, _ in found]) == (gpu_steps.LEFT, ["good"])
    status, found = run(tmp_path, [GOOD, SLOW, NONE], seconds=1.0)
    assert status == gpu_steps.LEFT
    assert found[-1] == ("slow", "FAILED (time)", "")
    assert run(tmp_path, [GOOD, SLOW, NONE])[0] == 1


def test_steps_side_by_side(tmp_path, capsys):
    """Each waits for all of the others: together they end, one after another they would not."""
    meet = """
import pathlib, sys, time
here = pathlib.Path({here!r})
(here / "{name}").touch()
while len(list(here.glob("step*"))) < 3:
    time.sleep(0.01)
print("met", __import__("os").environ["OMP_NUM_THREADS"])
"""
    names = ("step1", "step2", "step3")
    steps = [step(name, meet.format(here=str(tmp_path), name=name)) for name in names]
    file = tmp_path / "gpu_checks.json"
    assert gpu_steps.go_on([*steps, GOOD], file, None, FACTS, TIMEOUT, jobs=3) == 0
    found = json.loads(file.read_text())
    assert {one["name"] for one in found["steps"]} == {*names, "good"}
    assert "-- step2 said:\nmet" in capsys.readouterr().out


@pytest.mark.usefixtures("clock")
def test_who_has_not_had_all_of_the_time_is_left(tmp_path):
    """And stands on the page as not reached, with who was not begun."""
    slow = [step(f"slow {n}", "") for n in range(3)]
    file = tmp_path / "gpu_checks.json"
    steps = [slow[0], GOOD, slow[1], slow[2]]
    page = tmp_path / "gpu_checks.md"
    assert gpu_steps.go_on(steps, file, page, FACTS, 2.0, jobs=2) == gpu_steps.LEFT
    found = json.loads(file.read_text())
    assert {one["name"]: one["verdict"] for one in found["steps"]} == {
        "good": "passed",
        "slow 0": "FAILED (time)",
    }
    assert page.read_text().endswith("\nNot reached:\n\n- test, slow 1\n- test, slow 2\n")


def test_a_program_that_is_not_there_fails(tmp_path):
    lacking = gpu_steps.Step("sanitize", "memcheck", ("no-such-program-here",))
    status, found = run(tmp_path, [lacking, GOOD])
    assert status == 1
    assert found[0][:2] == ("memcheck", "FAILED (not begun)")
    assert found[1][:2] == ("good", "passed")


def test_another_commit_begins_anew(tmp_path):
    run(tmp_path, [BAD])
    status, found = run(tmp_path, [GOOD], facts={**FACTS, "commit": "another"})
    assert (status, [name for name, _, _ in found]) == (0, ["good"])
    assert (tmp_path / "gpu_checks.json.before").exists()


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "gpu_checks.json").write_text('{"rows": []}')
    with pytest.raises(ValueError, match=r"was not written by tools/gpu_steps\.py"):
        run(tmp_path, [GOOD])


@pytest.mark.parametrize("quick", [False, True])
def test_the_parts(quick):
    """Each has every op, tool and file that reaches a GPU, each once."""
    names = {part: [s.name for s in steps(quick, ())] for part, steps in gpu_steps.PARTS.items()}
    for found in names.values():
        assert len(set(found)) == len(found)
    activations = [op.name for op in fa.ops.values() if op.family == "activations"]
    parts = 1 if quick else gpu_steps.BITS_PARTS
    assert [name.partition(",")[0] for name in names["bits"]] == activations * parts
    assert sorted(names["checks"]) == sorted(names["test"] + names["sanitize"] + names["bits"])
    families = {op.family for op in fa.ops.values()}
    some = -(-len(activations) // gpu_steps.OPS_OF_STEP) * len(gpu_steps.DTYPES)
    if quick:
        assert len(names["sanitize"]) == 2 * len(families)
    else:  # where a tool is slow, activations go by some ops and a dtype
        assert len(names["sanitize"]) == 4 * len(families) + 2 * (some - 1)
    of_tests = names["test"]
    assert "tests/devices/test_devices.py" in of_tests
    assert gpu_steps.EVERY_KERNEL not in of_tests
    assert ("tests/norms/test_norms_devices.py" in of_tests) is not quick


def test_what_tells_most_comes_first():
    steps = [(one.part, one.name) for one in gpu_steps.checks(False, ())]
    of_files = [name for part, name in steps if part == "test"]
    for_devices = ["/devices/" in name or name.endswith("_devices.py") for name in of_files]
    assert for_devices == sorted(for_devices, reverse=True)
    order = [name.partition(",")[0] if part == "sanitize" else part for part, name in steps]
    kinds = ["alone", "test", "memcheck", "racecheck", "bits"]
    assert sorted(kinds, key=order.index) == kinds
    assert order.index("initcheck") > max(i for i, kind in enumerate(order) if kind == "bits")
    assert steps[0] == ("sanitize", "alone, activations")


@pytest.mark.parametrize("quick", [False, True])
def test_the_sanitizers_see_every_op_in_every_dtype(quick):
    """Under each tool, however it is cut into steps."""
    seen = {}
    for one in gpu_steps.sanitizers(quick, ()):
        cases = [re.search(r"\[cuda-torch-(.+)-(.+)\]$", word) for word in one.command]
        found = [(case[2], case[1]) for case in cases if case]
        seen.setdefault(one.name.split(",")[0], []).extend(found)
    every = sorted((name, dtype) for name in fa.ops for dtype in gpu_steps.DTYPES)
    assert set(seen) == {"alone", *gpu_steps.SANITIZERS[: 1 if quick else 3]}
    assert all(sorted(found) == every for found in seen.values())


def test_only_some():
    steps = {part: make(False, ["relu", "gates"]) for part, make in gpu_steps.PARTS.items()}
    assert {one.name.partition(",")[0] for one in steps["bits"]} == {"relu"}
    assert {one.name.split(", ")[1] for one in steps["sanitize"]} == {"activations", "gates"}
    assert {one.name.split("/")[1] for one in steps["test"]} == {"activations", "gates"}


@pytest.mark.skipif(not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON")
def test_the_cases_that_steps_name_are_there():
    """Under the emulated device's name."""
    steps = gpu_steps.sanitizers(True, ["relu"])[:1]
    for quick in (False, True):
        steps += gpu_steps.bits(quick, ["relu"])
    cases = [word for one in steps for word in one.command if "[" in word and "float16" not in word]
    here = [case.replace("cuda-torch", "emulated-exchange") for case in cases]
    here = [case for case in here if "float64" not in case]
    command = [*gpu_steps.PYTEST, "-m", "", "--collect-only", *here]
    done = subprocess.run(command, cwd=gpu_steps.ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(here)} tests collected" in done.stdout
    assert len(here) == 2 + gpu_steps.BITS_PARTS
