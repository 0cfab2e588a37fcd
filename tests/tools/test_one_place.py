"""A new op of a kind that is there is its declaration alone: some are declared here once more."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from arrays import finite
from conftest import assert_same_bits

import fastact as fa
from fastact.ops.engine import op as registry
from fastact.ops.gated import GatedOfTwo
from fastact.ops.norms import NormOp, single_channels
from fastact.ops.reductions import SquareSum


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
    @registry.declared(GatedOfTwo, lambda where, options: fa.mish)
    def mishglu(a, b, /, *, axis=-1, bias=None, limit=None, offset=0.0, out=None, stream=None):
        """Mish of one array, times another one."""

    a, b, dy = (finite(dtype, (7, 70), seed=seed) for seed in range(3))
    _assert_same(mishglu, fa.gated, a, b, dy=dy, activation="mish")


def test_a_norm_of_rows(dtype):
    @registry.declared(NormOp, single_channels, "RmsNorm")
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
    _assert_same(SquareSum(energy), fa.sum_squares, x, dy=0.5)
