"""The examples of pages for other libraries and of the bridges' docstrings."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs/translate.md"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

pytestmark = pytest.mark.filterwarnings("ignore")  # of imports

SECTIONS = PAGE.read_text("utf-8").split("\n## ") if PAGE.is_file() else []
ROWS = [
    (part, *row) for part in SECTIONS for row in re.findall(r"^\| `(.+?)` \| `(.+?)` ", part, re.M)
]


@pytest.mark.parametrize(("section", "theirs", "ours"), ROWS, ids=[row[1] for row in ROWS])
def test_translations(section, theirs, ours):
    """Both calls of a row give the same numbers."""
    names, lines = {}, "\n".join(re.findall(r"^(?:>>>|\.\.\.) (.*)", section, re.M))
    for imports in re.findall("^import (.*)", lines, re.M):
        for library in re.findall("(?:^|, )([a-z]+)", imports):
            pytest.importorskip(library)
    exec(lines, names)
    if (library := re.split(r"\W", theirs)[0]) not in names:
        names[library] = pytest.importorskip(library)
    np.testing.assert_allclose(eval(ours, names), eval(theirs, names), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["dask", "xarray", "sklearn"])
def test_docstrings(name):
    pytest.importorskip(f"{name}.array" if name == "dask" else name)
    done = doctest.testmod(import_module(f"fastact.{name}"), optionflags=FLAGS)
    assert done.attempted
    assert not done.failed
