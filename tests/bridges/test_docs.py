"""The examples of docs/numpy_world.md and of the bridges' docstrings."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/numpy_world.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

pytestmark = pytest.mark.filterwarnings("ignore")  # of imports


def test_page():
    for name in ("dask.array", "pandas", "polars", "xarray", "sklearn"):
        pytest.importorskip(name)
    if not PAGE.is_file():
        pytest.skip("tests away from the source tree")
    done = doctest.testfile(str(PAGE), module_relative=False, optionflags=FLAGS)
    assert done.attempted > 10
    assert not done.failed


@pytest.mark.parametrize("name", ["dask", "xarray", "sklearn"])
def test_docstrings(name):
    pytest.importorskip(f"{name}.array" if name == "dask" else name)
    done = doctest.testmod(import_module(f"fastact.{name}"), optionflags=FLAGS)
    assert done.attempted
    assert not done.failed
