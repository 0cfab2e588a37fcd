"""NumPy's own tests of its nan-functions, run against ours.

    python tools/numpy_nanfunctions.py

numpy.lib.tests.test_nanfunctions is collected with `nansum`, `nanmean`, `nanvar` and `nanstd`
replaced by ours under NumPy's signature. What deviates, and why, stands in DEVIATIONS: any other
failure ends the script with an error.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import fastact as fa

#: A part of a failure's message, or of a test's name, and why ours deviates.
DEVIATIONS: dict[str, str] = {
    "float64, got complex": "complex data are refused, in words",
    "float64, got float128": "there are no kernels of long double",
    "float64, got object": "objects are refused, in words",
    "unknown keyword 'dtype'": "no dtype=: sums are of double, and rounded once to x's dtype",
    "unknown keyword 'initial'": "no initial=",
    "unknown keyword 'where'": "no where=",
    "unknown keyword 'mean'": "no mean= that was computed before: there is one pass",
    "must be a plain array": "subclasses, which mean something by their memory, are refused",
    "test_signature_match": "fastact's signatures: keyword-only where torch lacks them",
    "int64') = np.": "sums of integers are of float64",
    "test_dtype_from_input": "the list of dtypes begins with complex ones",
    "test_dtype_from_char": "no dtype=",
    "test_nanfunc_ddof[nanstd-1d-f]": "NumPy's own float32 result is the less accurate one",
    # Complex, and extended precision, where the message is that of a warning that did not come.
    **{
        f"test_allnans[{shape}-{kind}": "no kernels for it"
        for shape in ("0d", "2d")
        for kind in "DFGg"
    },
}


def under_numpys_signature(op: Any) -> Callable[..., Any]:
    """Ours, called as NumPy's; what it does not take is a TypeError that says so."""

    def function(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, **more: Any
    ) -> Any:
        if "correction" in more:
            if ddof != 0:
                raise ValueError("ddof and correction can't be provided simultaneously.")
            ddof = more.pop("correction")
        named = {"correction": ddof} if "correction" in op.entry_points["call"].defaults else {}
        named |= {} if dtype is None else {"dtype": dtype}
        more = {name: v for name, v in more.items() if v is not np._NoValue}
        return op(a, axis, out=out, **named, **more)

    function.__name__ = op.name
    return function


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


def main() -> int:
    """Run them, and print the list."""
    for name in ("nansum", "nanmean", "nanvar", "nanstd"):
        setattr(np, name, under_numpys_signature(fa.ops[name]))
    chosen = "not median and not percentile and not quantile and not ArgminArgmax and not MinMax"
    return run("numpy.lib.tests.test_nanfunctions", chosen, DEVIATIONS)


def run(file: str, chosen: str, deviations: dict[str, str]) -> int:
    """Run the tests of an installed module that `chosen` names, and print what deviates and why."""
    outcomes = Outcomes()
    options = [
        *("--pyargs", file, "-k", chosen, "-q", "-p", "no:cacheprovider", "-c", "/dev/null"),
        *("--tb=line", "--no-header", "--no-summary", "-W", "ignore::pytest.PytestWarning"),
    ]
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):  # not our conftest
        pytest.main(options, plugins=[outcomes])
    unexplained = 0
    for name, message in sorted(outcomes.failed.items()):
        text = f"{name}: {message}"
        reason = next((why for part, why in deviations.items() if part in text), "")
        unexplained += not reason
        print(f"{'deviates' if reason else 'FAILED'}: {name}: {reason or message}")
    print(
        f"{len(outcomes.passed)} passed, {len(outcomes.failed)} deviate, {unexplained} unexplained"
    )
    return min(unexplained, 1)


if __name__ == "__main__":
    sys.exit(main())
