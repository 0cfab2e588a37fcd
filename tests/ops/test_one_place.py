"""A new op is its functor, its declaration and its formula: nothing else names it.

What is compiled is read as text: the lists of `src/common`. What is declared alone, of kinds that
are there, is declared here once more.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from arrays import finite
from conftest import assert_same_bits

import fastact as fa
from fastact.ops import op as registry
from fastact.ops.gated_op import gated_op
from fastact.ops.norm import norm, single_channels
from fastact.ops.reduction import term_reduction
from fastact.ops.reductions import _over_axes

SOURCES = Path(__file__).parents[2] / "src"

#: Where else a struct of a list stands, and why.
ELSEWHERE = {
    "Sigmoid": {"common/gates/gates.h"},  # the formulas of gates are made of both
    "Tanh": {"common/gates/gates.h"},
    # The CPU adds these terms by one instruction.
    "Itself": {"cpu/reductions/kernels.cpp"},
    "Square": {"cpu/reductions/kernels.cpp", "cuda/reductions/reductions.cu"},  # value_and_grad
    "Valid": {"cpu/reductions/kernels.cpp"},
}


def _structs() -> dict[str, str]:
    """Of the lines of all lists, the structs, and the file that has struct and line."""
    lists = ("activations/*.h", "reductions/terms.h", "gates/cells.h")
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
    @norm(over=single_channels)
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
    @term_reduction("square", _over_axes)
    def energy(x, /, axis=None, *, keepdims=False, out=None, stream=None):
        """Sum of squares over axes."""

    x = finite(dtype, (30, 70))
    _assert_same(energy, fa.sum_squares, x, dy=0.5)
