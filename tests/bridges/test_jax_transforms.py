"""Transformations of JAX: the page's table of them, and types of arrays over several devices."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from conftest import REPRESENTATIVES
from processes import output_of, run_program

import fastact as fa

jax = pytest.importorskip("jax")
if not hasattr(jax.sharding, "ManualAxisType"):
    pytest.skip("an older JAX, whose types say less", allow_module_level=True)

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/jax.md"
in_tree = pytest.mark.skipif(not PAGE.is_file(), reason="tests away from the source tree")


def run(name: str, *arguments: str, stdin: str = "") -> str:
    """What a script beside this test writes, which has two devices."""
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    return output_of(run_program(sys.executable, HERE / name, *arguments, env=env, input=stdin))


def rows(page: str) -> Iterator[list[str]]:
    """The rows of the table of transformations, the one with the names of columns first."""
    table = page.partition("## What works under which transformation")[2].partition("\n## ")[0]
    for line in table.splitlines():
        if line.startswith("|") and not line.startswith("|-"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


@in_tree
def test_the_examples():
    blocks = re.findall("```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    given = {"x": jax.numpy.ones((3, 4)), "weight": jax.numpy.ones(4)}
    exec("\n".join(map(dedent, blocks)), given)
    assert given["y"].shape == (3, 4)


@in_tree
@pytest.mark.parametrize(
    "computed",
    [
        ("call", "gradients"),
        # Ten seconds each, of compilation; test_jax_derivatives.py has them of every op.
        pytest.param(("tangents",), marks=pytest.mark.thorough),
        pytest.param(("gradients of gradients",), marks=pytest.mark.thorough),
    ],
)
def test_the_table(computed):
    """A cell says yes, or quotes the error."""
    (_, *columns), *body = rows(PAGE.read_text())
    asked = {(name.strip("`"), of): cell for name, *cells in body
             for of, cell in zip(columns, cells, strict=True) if of in computed}  # fmt: skip
    found = json.loads(run("jax_transforms.py", stdin=json.dumps([*asked])))
    assert {of for _, of in asked} == {*computed}
    for (of, cell), said in zip(asked.items(), found, strict=True):
        words = "yes" if cell == "yes" else re.search("`(.*)`", cell).group(1)
        assert words in said, of


# Activations go one way, as their first one does.
NAMES = [op.name for op in fa.ops.values() if op.family != "activations" or op in REPRESENTATIVES]


def test_types():
    """Of results and of gradients of every op, inside `shard_map` and over explicit axes."""
    run("jax_types.py", "traced", *NAMES)


@pytest.mark.parametrize(
    "names",
    [
        ["mish", "rms_norm", "sum"],
        pytest.param(NAMES, marks=pytest.mark.thorough),  # a minute, of compilation
    ],
    ids=len,
)
def test_values_over_devices(names):
    """The gradients of arrays that do not vary are added up, of those that do they are parts."""
    run("jax_types.py", "computed", *names)
