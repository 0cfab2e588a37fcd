"""A new op is its functor, its declaration and its formula: nothing else names it.

Compiled lists, those in `src/common`, are read as text. Ops that are mere declarations, of kinds
that are there, are declared here once more.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import finite
from conftest import assert_same_bits

import fastact as fa
from fastact.ops.engine import op as registry
from fastact.ops.engine.axes import over_axes
from fastact.ops.gated import gated_op
from fastact.ops.norms import norm, single_channels
from fastact.ops.reductions import TermSum

SOURCES = Path(__file__).parents[2] / "src"

#: Where else a struct of a list stands, and why.
ELSEWHERE = {
    "Sigmoid": {"common/gates/gates.h"},  # the formulas of gates are made of both
    "Tanh": {"common/gates/gates.h"},
    # Its value and slope share a sigmoid where a kernel wants both.
    "Silu": {"cuda/activations/fixed.cuh"},
    # The CPU adds these terms by one instruction. A gradient of a sum of elements reads no x.
    "Itself": {
        "cpu/reductions/kernels.cpp",
        "cuda/reductions/gradients.cuh",
        "cuda/reductions/reductions.cu",
    },
    # Squares that vanish in float32.
    "Square": {"cpu/reductions/kernels.cpp", "cuda/reductions/kernels.cuh"},
    "Valid": {"cpu/reductions/kernels.cpp"},
    # softmax caps what it reads.
    "SoftCap": {"cuda/softmax/plan.cuh", "cuda/softmax/row_access.cuh"},
    # The one activation for which these norms, and gradients of a bias, have kernels of their own.
    "Unchanged": {"cuda/norms/channels/strip_forward.cuh", "cpu/bias/kernels.cpp"},
}


def _structs() -> dict[str, str]:
    """Of the lines of all lists, the structs, and the file that has struct and line."""
    lists = ("activations/*.h", "reductions/terms.h", "reductions/pairs.h", "gates/cells.h")
    return {
        struct: str(path.relative_to(SOURCES))
        for pattern in lists
        for path in SOURCES.glob(f"common/{pattern}")
        for struct in re.findall(r"^  X\(\w+, (\w+)\)", path.read_text(), re.M)
    }


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not there")
def test_a_functor_is_named_where_it_is_written():
    structs = _structs()
    assert {"SoftSign", "Square", "Gru"} <= structs.keys()
    found: dict[str, set[str]] = {struct: set() for struct in structs}
    for path in SOURCES.rglob("*.*"):
        code = re.sub(r"//.*", "", path.read_text())
        for word in set(re.findall(r"\w+", code)) & structs.keys():
            found[word].add(str(path.relative_to(SOURCES)))
    assert found == {s: {file} | ELSEWHERE.get(s, set()) for s, file in structs.items()}


#: Where an op is told from others by its name, how often, and why the spec can't say it.
BY_NAME = {
    # Results and options that are named as the ops are.
    "python/fastact/dask.py": 1,
    "python/fastact/masked.py": 2,
    "python/fastact/ops/moments.py": 1,
    "python/fastact/xarray.py": 2,
    "tests/statistics/test_groups.py": 1,
    # An exponential that overflows before its product with a parameter does.
    "python/fastact/check/expected/activations.py": 1,
    # Arguments and statistics that are named as an op is.
    "python/fastact/measure/cases.py": 1,
    "tools/fuzzing/calls.py": 1,
    "tests/ops/test_docstrings.py": 1,
    # Some of many, for time.
}

#: Where tables have ops by name, and what they say of them.
TABLES = {
    "benchmarks/": "what peers call them, and idioms of NumPy's",
    "python/fastact/check/reference.py": "formulas of gates",
    "python/fastact/derivatives/": "formulas",
    "python/fastact/measure/formulas.py": "formulas",
    "python/fastact/dask.py": "results of moments, which are named as ops are",
    "python/fastact/measure/peers.py": "torch's own gradients, and what peers call sums",
    "python/fastact/ops/reductions.py": "kinds of statistics, which are named as ops are",
    "python/fastact/ops/statistics.py": "kinds of statistics, which are named as ops are",
    "python/fastact/sklearn.py": "what scikit-learn calls activations",
    "tests/": "examples",
    "tools/": "what others call them, and examples",
}

FOLDERS = ("python/fastact", "tests", "tools", "benchmarks", "asv_bench", "docs/_ext")


def _has_name(node: ast.AST) -> bool:
    values = (n.value for n in ast.walk(node) if isinstance(n, ast.Constant))
    return any(isinstance(value, str) and value in fa.ops for value in values)


def _asks(node: ast.AST) -> bool:
    """An expression is an op's name, or may be."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("name", "__name__")
    return isinstance(node, ast.Name) and node.id in ("name", "op")


def _parsed() -> Iterator[tuple[str, list[ast.AST]]]:
    """Files with an op's name in quotes, for parsing takes long: no other has it as a string."""
    root, quoted = SOURCES.parent, re.compile(rf"""["']({"|".join(fa.ops)})["']""")
    for path in (path for folder in FOLDERS for path in (root / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if quoted.search(text):
            yield path.relative_to(root).as_posix(), [*ast.walk(ast.parse(text))]


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not there")
def test_no_op_is_told_from_others_by_its_name():
    found: Counter[str] = Counter()
    for file, nodes in _parsed():
        for node in nodes:
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                found[file] += any(map(_asks, sides)) and any(map(_has_name, sides))
    assert +found == BY_NAME


@pytest.mark.skipif(not SOURCES.is_dir(), reason="the sources are not there")
def test_tables_of_ops_are_known():
    found = {file for file, nodes in _parsed() if any(map(_is_table, nodes))}
    assert {f for f in found if not f.startswith(tuple(TABLES))} == set()
    assert {place for place in TABLES if not any(f.startswith(place) for f in found)} == set()


def _is_table(node: ast.AST) -> bool:
    keys = node.keys if isinstance(node, ast.Dict) else []
    return sum(isinstance(key, ast.Constant) and key.value in fa.ops for key in keys) > 1


@pytest.fixture(autouse=True)
def _no_op_stays() -> Iterator[None]:
    before = dict(registry._ops)
    yield
    for name in registry._ops.keys() - before.keys():
        del registry._ops[name]


def _assert_same(op: Any, known: Any, *arrays: Any, dy: Any, **options: Any) -> None:
    """Two ops that compute the same give the same bits by every entry point."""
    assert_same_bits(np.asarray(op(*arrays)), np.asarray(known(*arrays, **options)))
    of, of_known = (o.forward(*arrays, **w)[1] for o, w in ((op, {}), (known, options)))
    back, expected = op.backward(dy, *of), known.backward(dy, *of_known, **options)
    back, expected = (g if isinstance(g, tuple) else (g,) for g in (back, expected))
    for got, wanted in zip(back, expected, strict=True):
        assert (got is None) == (wanted is None)
        if got is not None:
            assert_same_bits(got, wanted)


def test_a_gated_activation(dtype):
    @gated_op(lambda where, options: fa.mish)
    def mishglu(a, b, /, *, axis=-1, bias=None, limit=None, offset=0.0, out=None, stream=None):
        """Mish of one array, times another one."""

    a, b, dy = (finite(dtype, (7, 70), seed=seed) for seed in range(3))
    _assert_same(mishglu, fa.gated, a, b, dy=dy, activation="mish")


def test_a_norm_of_rows(dtype):
    @norm(single_channels, "RmsNorm")
    def channel_rms_norm(
        x,
        /,
        weight=None,
        *,
        channel_axis=1,
        eps=1e-6,
        activation="identity",
        out=None,
        stream=None,
        **parameters,
    ):
        """Root-mean-square normalization of each channel of each example."""

    x, dy = (finite(dtype, (3, 5, 70), seed=seed) for seed in range(2))
    _assert_same(channel_rms_norm, fa.rms_norm, x, dy=dy)


def test_a_sum_of_a_term(dtype):
    def energy(x, /, axis=None, *, keepdims=False, out=None, stream=None):
        """Sum of squares over axes."""

    x = finite(dtype, (30, 70))
    _assert_same(TermSum(energy, "square", over_axes), fa.sum_squares, x, dy=0.5)
