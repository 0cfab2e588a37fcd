"""That tests which assert nothing fail, and in CI those that are skipped for unknown reasons."""

from pathlib import Path

import asserting
import pytest
from processes import run_python

HOLLOW = """
import numpy as np, pytest, torch
from asserting import passes

def test_returns():
    if True:
        return
    assert True

def test_loops():
    for x in ():
        assert x

def test_asserts(): assert 1
def test_numpy(): np.testing.assert_allclose(1, 1)
def test_torch(): torch.testing.assert_close(1, 1)
def test_passes(): passes()
def test_skips(): pytest.skip("why")

def test_raises():
    with pytest.raises(ValueError):
        int("x")
"""


def run_tests(folder, code, **environ):
    """What pytest says of such tests, and its exit status."""
    (folder / "test_some.py").write_text(code)
    options = ["-q", "-p", "asserting", "-o", "enable_assertion_pass_hook=true", "-p", "no:xdist"]
    tests = str(Path(asserting.__file__).parent)
    code = f"import pytest, sys; sys.exit(pytest.main({[*options, str(folder)]}))"
    return run_python(code, PYTHONPATH=tests, PYTEST_ADDOPTS="", **environ)


def test_hollow_tests_fail(tmp_path):
    done = run_tests(tmp_path, HOLLOW)
    assert "2 failed, 5 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("the test asserted nothing") >= 2


@pytest.mark.parametrize(
    ("reason", "environ", "status"),
    [("of Linux", "1", 0), ("nobody knows", "", 0), ("nobody knows", "1", 1)],
)
def test_skips_are_accepted_by_their_reason(tmp_path, reason, environ, status):
    """In CI, of tests and of whole files."""
    for code in (
        f"import pytest\ndef test_skips(): pytest.skip({reason!r})\ndef test_is(): assert 1",
        f"import pytest\npytest.skip({reason!r}, allow_module_level=True)",
    ):
        done = run_tests(tmp_path, code, CI=environ)
        assert done.returncode in (status, status or pytest.ExitCode.NO_TESTS_COLLECTED)
        assert ("tests/skips.txt has no such reason" in done.stdout) == bool(status)
