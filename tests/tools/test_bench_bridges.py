"""The benchmark of the bridges: what it compares is the same, and pages are made in pieces."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("fastact.jax", exc_type=ImportError)  # of a JAX that is too old

from benchmarks.bench_bridges import (  # noqa: E402
    MODELS,
    PROGRAMS,
    SECTIONS,
    both,
    of_numbers,
    squared,
)
from benchmarks.pages import marked, put  # noqa: E402

from fastact.terminal import markdown_table  # noqa: E402


def assert_close(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_the_same(name):
    arguments = of_numbers(0, 8, 16), of_numbers(1, 8, 16), jax.numpy.arange(8)
    calls = [partial(PROGRAMS[name], ops) for ops in both().values()]
    assert_close(*(jax.value_and_grad(squared(call))(*arguments) for call in calls))


@pytest.mark.thorough  # compiles six gradients
@pytest.mark.parametrize("name", MODELS)
def test_models_are_the_same(name):
    found = []
    for ops in both().values():
        loss, arguments = MODELS[name](ops)
        found.append(jax.jit(jax.value_and_grad(loss))(*arguments))
    assert_close(*found)


def test_a_page_in_pieces(tmp_path):
    page = tmp_path / "page.md"
    rows = markdown_table(["a", "b"], [["x", marked(0.5)], ["y", marked(1.5)]])
    assert rows.splitlines()[2:] == ["| x | **0.50** |", "| y | 1.50 |"]
    for heading, text in [("One", "first"), ("Two", rows), ("One", "second")]:
        put(page, SECTIONS["calls"]._replace(heading=heading), text)
    assert page.read_text() == (
        f"# JAX with and without fastact\n\n## One\n\nsecond\n\n## Two\n\n{rows}\n"
    )
