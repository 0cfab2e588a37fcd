"""Norms of a sum whose first summand is dropped in part: the bits of dropout and of the norm."""

import re

import numpy as np
import pytest
from conftest import assert_same_bits
from judged import refused
from normed import NORMS

import fastact as fa
from fastact.measure.norm_rows import traits

DROPPING = [op for op in NORMS if traits(op).drops]
each_op = pytest.mark.parametrize("op", DROPPING, ids=lambda op: op.name)
TOLD = {"p": 0.25, "seed": -7, "offset": 3}


def plain(op):
    """The norm without a sum, and its weights."""
    return (fa.layer_norm, 2) if traits(op).centred else (fa.rms_norm, 1)


def arrays(op, dtype, shape):
    rng = np.random.default_rng(0)
    made = [rng.normal(size=shape).astype(dtype) for _ in range(4)]
    return *made, [rng.normal(size=shape[-1:]).astype(dtype) for _ in range(plain(op)[1])]


# Rows that are no whole blocks of numbers, that share a buffer, and that take several chunks.
@each_op
@pytest.mark.parametrize("shape", [(9, 7), (5, 3, 256), (3, 5001)], ids=str)
@pytest.mark.parametrize("how", [{}, {"activation": "mish"}, {"casting": "llama"}], ids=str)
def test_the_bits_of_two_ops(backend, dtype, op, shape, how):
    if "casting" in how and traits(op).centred:
        pytest.skip("it has no casting")
    x, residual, dy, dtotal, weights = arrays(op, dtype, shape)
    of = backend.of
    given_weights = [*map(of, weights)]
    (y, total), saved = op.forward(of(x), of(residual), *given_weights, **TOLD, **how)
    assert_same_bits(
        backend.numpy(total), backend.numpy(fa.dropout(of(x), residual=of(residual), **TOLD))
    )
    norm, _ = plain(op)
    expected, kept = norm.forward(
        total, *given_weights, eps=op.entry_points["call"].defaults["eps"], **how
    )
    assert_same_bits(backend.numpy(y), backend.numpy(expected))
    dx, dresidual, *rest = op.backward(of(dy), *saved, **TOLD, **how)
    of_total, *others = norm.backward(of(dy), *kept, **how)
    for a, b in zip((dresidual, *rest), (of_total, *others), strict=True):
        assert_same_bits(backend.numpy(a), backend.numpy(b))
    assert_same_bits(backend.numpy(dx), backend.numpy(fa.dropout.backward(dresidual, **TOLD)))

    dx, dresidual, *_ = op.backward(of(dy), *saved, dtotal=of(dtotal), **TOLD, **how)
    assert_same_bits(backend.numpy(dx), backend.numpy(fa.dropout.backward(dresidual, **TOLD)))
    wide = np.float64
    near = backend.numpy(of_total).astype(wide) + dtotal.astype(wide)
    np.testing.assert_allclose(backend.numpy(dresidual).astype(wide), near, 2e-2, 2e-2)


@each_op
def test_all_and_nothing(backend, dtype, op):
    x, residual, dy, _, _ = arrays(op, dtype, (4, 40))
    without = fa.add_layer_norm if traits(op).centred else fa.add_rms_norm
    found = op(backend.of(x), backend.of(residual), p=0, seed=1)
    for a, b in zip(found, without(backend.of(x), backend.of(residual)), strict=True):
        assert_same_bits(backend.numpy(a), backend.numpy(b))
    x[:] = np.nan
    _, total = op(backend.of(x), backend.of(residual), p=1, seed=1)
    assert_same_bits(backend.numpy(total), residual)
    _, saved = op.forward(*map(backend.of, (x, residual)), p=1, seed=1)
    dx, dresidual, *_ = map(backend.numpy, op.backward(backend.of(dy), *saved, p=1, seed=1)[:2])
    assert not dx.any()
    assert dresidual.any()


@each_op
def test_what_must_be_given(op):
    x = np.ones((2, 3))
    for named, lacking in (({"p": 0.5}, "seed"), ({"seed": 1}, "p")):
        refused(re.escape(f"fastact.{op.name}: {lacking} must be given"), op, x, x, **named)


# --- torch ----------------------------------------------------------------------------------------
