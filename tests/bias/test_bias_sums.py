"""bias_grad and unbroadcast: sums over axes under other names."""

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import finite, ulp
from biased import call
from conftest import DTYPES, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views

import fastact as fa


@pytest.mark.parametrize(
    ("shape", "axis"), [((7,), 0), ((40, 768), -1), ((9, 6, 23, 25), 1)], ids=str
)
def test_bias_grad(dtype, framework, shape, axis):
    """The sum over the other axes, whose every walk is tested as such."""
    dy = finite(dtype, shape)
    others = tuple(i for i in range(dy.ndim) if i != axis % dy.ndim)
    dbias = call(framework, fa.bias_grad, dy, axis=axis)
    assert_same_bits(dbias, call(framework, fa.sum, dy, axis=others))


def test_16_bit_counts(framework):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        ones = np.ones((1600, 3), dtype)
        assert (call(framework, fa.bias_grad, ones) == 1600).all()
        _, dbias = call(framework, fa.bias_act.backward, ones, None, np.zeros(3, dtype))
        assert (dbias == 1600).all()


def test_accumulating_rounds_once(framework):
    """The old value of `out` is added in double: 1 + 2^-12 + 2^-12 in float16 is not 1."""
    tiny = np.full((2, 1), 2.0**-12, np.float16)
    out = framework.of(np.ones(1, np.float16))
    fa.bias_grad(framework.of(tiny + tiny), out=out, accumulate=True)
    assert framework.numpy(out)[0] == np.float16(1 + 2.0**-10)
    y = framework.of(np.full((2, 1), 1e8, np.float32))
    total = framework.of(np.full(1, -2e8, np.float32))
    assert framework.numpy(fa.bias_grad(y, out=total, accumulate=True))[0] == 0


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)))
def test_unbroadcast_any_pair(data, dtype_name):
    dtype = DTYPES[dtype_name]
    to = tuple(data.draw(st.lists(st.integers(0, 5), max_size=4)))
    first = data.draw(st.integers(0, len(to)))
    shape = tuple(1 if data.draw(st.booleans()) else n for n in to[first:])
    dy = data.draw(views(to))(finite(dtype, to))
    dx, saved = fa.unbroadcast.forward(dy, shape)
    assert np.shape(dx) == shape
    assert saved == (to,)
    axes = tuple(i for i, n in enumerate(to) if i < first or shape[i - first] != n)
    expected = fa.sum(dy, axes, keepdims=True)
    assert_same_bits(dx, np.asarray(expected).reshape(shape))
    out = data.draw(views(shape, writable=True))(np.zeros(shape, dtype))
    assert fa.unbroadcast(dy, shape, out=out) is out
    assert_same_bits(out, dx)
    fa.unbroadcast(dy, shape, out=out, accumulate=True)
    double = dx.astype(np.float64) * 2
    assert (np.abs(np.asarray(out, np.float64) - double) <= 2 * ulp(np.asarray(out))).all()
    back = fa.unbroadcast.backward(np.asarray(dx, dtype), *saved)
    assert_same_bits(back, np.broadcast_to(np.asarray(dx, dtype), to))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (4, 1), (1, 3), (2, 4, 3), (2, 1, 1)], ids=str)
def test_unbroadcast_is_torchs(framework, shape):
    dy = finite(np.float64, (2, 4, 3))
    x = torch.ones(shape, dtype=torch.float64, requires_grad=True)
    x.expand(2, 4, 3).backward(torch.from_numpy(dy))
    dx = call(framework, fa.unbroadcast, dy, shape)
    np.testing.assert_allclose(dx, x.grad.numpy(), rtol=1e-13)


def test_the_way_back(framework):
    dy = np.arange(3, dtype=np.float32)
    dx = call(framework, fa.bias_grad.backward, dy, (2, 3, 4), axis=1)
    assert_same_bits(dx, np.broadcast_to(dy[:, None], (2, 3, 4)))
    out = framework.of(np.ones((2, 3), np.float32))
    assert fa.unbroadcast.backward(framework.of(dy), (2, 3), out=out, accumulate=True) is out
    assert_same_bits(framework.numpy(out), 1 + np.broadcast_to(dy, (2, 3)))
    _, saved = fa.bias_grad.forward(framework.of(np.ones((2, 3), np.float32)), axis=0)
    assert saved == ((2, 3),)
