"""tools/gpu_check.py: its steps, of commands that need no GPU."""

import re
import sys
import time

from devices import needs_emulation
from processes import TIMEOUT, output_of, run_program
from source_tree import import_tool

gpu_check = import_tool("gpu_check")


def step(name, code):
    return gpu_check.Step(name, (sys.executable, "-S", "-c", code))


GOOD = step("good", "print('3 passed')")


def test_steps_pass_fail_or_have_no_time(tmp_path, capsys):
    """The page has each, and a step that failed is printed."""
    steps = [
        GOOD,
        step("bad", "print('an error'); raise SystemExit(1)"),
        step("none collected", "print('no tests'); raise SystemExit(5)"),
        gpu_check.Step("lacking", ("no-such-program-here",)),
    ]
    page = tmp_path / "page.md"
    assert not gpu_check.check(steps, time.monotonic() + TIMEOUT, 2, page)
    said = page.read_text()
    assert "| good | passed: 3 passed |" in said
    assert "| bad | FAILED (1) |" in said
    assert "| none collected | passed: no tests |" in said
    assert "| lacking | FAILED ([Errno 2]" in said
    assert "an error" in capsys.readouterr().out
    assert gpu_check.check([GOOD], time.monotonic() - 1, 1, page)
    assert "| good | not reached |" in page.read_text()


@needs_emulation
def test_the_cases_that_steps_name_are_there():
    """Under the emulated device's name, which has every kernel in float32."""
    steps = [*gpu_check.kernels("", ["relu"]), *gpu_check.bits(["relu"])]
    cases = [word for one in steps for word in one.command if "[" in word]
    cases = [case for case in cases if not re.search("float(16|64)-", case)]
    here = [case.replace("cuda-torch", "emulated-exchange") for case in cases]
    command = [*gpu_check.PYTEST, "-m", "", "--collect-only", *here]
    told = output_of(run_program(*command, cwd=gpu_check.ROOT))
    assert f"{len(here)} tests collected" in told
