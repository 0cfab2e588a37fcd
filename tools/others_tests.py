"""Tests that other packages ship, run against ours: what failed, and why that may be.

A tool puts our functions in the place of the package's, calls `run`, and returns `report`, which
compares what failed with the tool's list of deviations and their reasons.
"""

from __future__ import annotations

import contextlib
import tempfile
from typing import Any

import pytest


class Outcomes:
    """What pytest reports of each test."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        self.passed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = report.nodeid.partition("::")[2]
        if report.failed:
            self.failed[name] = str(report.longrepr).strip().splitlines()[-1]
        elif report.when == "call" and report.passed:
            self.passed.append(name)


def run(outcomes: Outcomes, *options: str) -> None:
    """pytest of another package's tests, and without our conftest."""
    options += ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--tb=line", "--no-header")
    options += ("--no-summary", "-W", "ignore::pytest.PytestWarning")
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        pytest.main(["--pyargs", *options], plugins=[outcomes])


def report(outcomes: Outcomes, deviations: dict[str, str]) -> int:
    """Print the list; 1 where something deviates for no reason that is known, or nothing ran."""
    unexplained = 0
    for name, message in sorted(outcomes.failed.items()):
        text = f"{name}: {message}"
        reason = next((why for part, why in deviations.items() if part in text), "")
        unexplained += not reason
        print(f"{'deviates' if reason else 'FAILED'}: {name}: {reason or message}")
    passed, failed = len(outcomes.passed), len(outcomes.failed)
    print(f"{passed} passed, {failed} deviate, {unexplained} unexplained")
    return int(unexplained > 0 or not passed)
