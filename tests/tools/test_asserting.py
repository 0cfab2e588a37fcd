"""That a test which asserts nothing fails, and one that asserts in any way does not."""

from pathlib import Path

import asserting
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


def test_hollow_tests_fail(tmp_path):
    (tmp_path / "test_some.py").write_text(HOLLOW)
    options = ["-q", "-p", "asserting", "-o", "enable_assertion_pass_hook=true", "-p", "no:xdist"]
    tests = str(Path(asserting.__file__).parent)
    code = f"import pytest; pytest.main({[*options, str(tmp_path)]})"
    done = run_python(code, PYTHONPATH=tests, PYTEST_ADDOPTS="")
    assert "2 failed, 5 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("the test asserted nothing") >= 2
