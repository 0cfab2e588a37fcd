"""A test that passes without an assertion is an error: whoever reads its name thinks that it holds.

pytest's assertions count, and `np.testing`'s, torch's, `pytest.raises` and a program that is run. A
test whose point is that nothing is raised says so by `passes`. Where CI is set, a test that is
skipped for a reason that nobody accepted is an error, too.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from _pytest.assertion import rewrite

# Asserts of the modules beside this one count, and are explained, as tests' own do and are.
HELPERS = [path.stem for path in Path(__file__).parent.glob("*.py")]
pytest.register_assert_rewrite(*(name for name in HELPERS if name not in sys.modules))

made = 0  # assertions, since the process began


def passes(*_: Any) -> None:
    """Count as an assertion that what stands before raised nothing."""
    global made
    made += 1


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        passes()
        return function(*args, **named)

    return call


def _is_implemented() -> bool:
    """Count a plain `assert` that held; nobody asks for its explanation, which takes time."""
    passes()
    return False


rewrite._check_if_assertion_pass_impl = _is_implemented  # by enable_assertion_pass_hook
for module in (np.testing, torch.testing):
    for name in (n for n in dir(module) if n.startswith("assert_")):
        setattr(module, name, _counted(getattr(module, name)))
pytest.raises, pytest.warns = _counted(pytest.raises), _counted(pytest.warns)
subprocess.run = _counted(subprocess.run)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[Any]:
    """Fail a test that asserted nothing."""
    before = made
    result = yield
    if made == before:
        pytest.fail("the test asserted nothing", pytrace=False)
    return result


class Skips:
    """Fails a run in which a test is skipped for a reason that tests/skips.txt does not have."""

    def __init__(self) -> None:
        lines = Path(__file__).with_name("skips.txt").read_text(encoding="utf-8").splitlines()
        self.accepted = [line for line in lines if not line.startswith("#")]
        self.unknown: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2].removeprefix("Skipped: ")
            if not any(fnmatchcase(reason, pattern) for pattern in self.accepted):
                self.unknown.append(f"{report.nodeid}: {reason}")

    pytest_collectreport = pytest_runtest_logreport

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unknown:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self.unknown:
            terminalreporter.write_line(f"FAILED: tests/skips.txt has no such reason: {line}")


def pytest_configure(config: pytest.Config) -> None:
    """Register what reads the skips of all of pytest-xdist's workers."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Skips())
