"""Moments on devices: the CPU's bounds, on hard data and in any layout; bits know no address."""

import math
from typing import Any

import numpy as np
import pytest
from conftest import assert_same_bits
from devices import DTYPES, KERNELS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sums import case
from test_layouts import _views as views
from test_layouts import is_aligned
from test_moments import LAYOUTS, close, draw

import fastact as fa

devices = pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
pytestmark = devices


def mean_var(device: Any, x: np.ndarray, *args: Any, **named: Any) -> tuple[np.ndarray, np.ndarray]:
    mean, var = fa.mean_var(device.of(x), *args, **named)
    return device.numpy(mean), device.numpy(var)


def moments(device: Any, x: np.ndarray, *args: Any, **named: Any) -> tuple[np.ndarray, np.ndarray]:
    m = fa.moments(device.of(x), *args, **named)
    return device.numpy(m.mean), device.numpy(m.m2)


# Besides the shapes of sums: a block of few rows, a row of one pack, a row of many chunks and
# columns of several, and data whose last pack or folded row is not whole.
MORE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 1), (0,)),
    ((5, 2), (1,)),
    ((1, 300_001), (1,)),
    ((2, 40_000, 3), (1,)),
    ((2500, 129), (0,)),
    ((1001, 5), (0,)),
    ((2, 33, 7), (1,)),
]


@pytest.mark.parametrize(("shape", "axes"), MORE, ids=str)
def test_within_the_bounds(device, dtype, shape, axes):
    close(draw(dtype, shape), axes, 0, device)


@case
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "C"])
def test_layouts_within_the_bounds(device, shape, axes, layout):
    close(LAYOUTS[layout](draw(np.float32, shape)), axes, 1, device)


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)))
def test_any_layout(device, data, name):
    shape = data.draw(st.lists(st.integers(1, 20), max_size=4).map(tuple))
    x = data.draw(views(shape))(draw(DTYPES[name], shape))
    assume(is_aligned(x))
    axes = tuple(data.draw(st.sets(st.integers(0, max(len(shape) - 1, 0)), max_size=len(shape))))
    close(x, axes, 0, device)


@case
def test_addresses_and_other_rows_do_not_show(device, dtype, shape, axes):
    """The innermost axis decides as well how rows are cut, so it is left whole."""
    x = draw(dtype, shape)
    found = moments(device, x, axes, keepdims=True)
    whole = (*axes, x.ndim - 1)
    at = tuple(slice(None) if i in whole else slice(1, 2) for i in range(x.ndim))
    for offset in (1, 3):
        held = np.zeros(x.size + offset, x.dtype)[offset:].reshape(shape)
        held[...] = x
        for one, other in zip(moments(device, held, axes, keepdims=True), found, strict=True):
            assert_same_bits(one, other)
    for one, other in zip(moments(device, x[at], axes, keepdims=True), found, strict=True):
        assert_same_bits(one, other[at])


# --- hard data ------------------------------------------------------------------------------------


def test_far_from_zero(device):
    x = (np.random.default_rng(0).random(100) + 1e4).astype(np.float32)
    mean, var = mean_var(device, x)
    normalised = (x.astype(np.float64) - mean) / math.sqrt(float(var) + 1e-5)
    assert abs(normalised.mean()) < 1e-2
    x = np.random.default_rng(0).normal(1e4, 1, 200_000).astype(np.float32)
    for axes, y in (((0,), x), ((0, 1), x.reshape(500, 400)), ((0,), x[:, None]), ((1,), x[None])):
        var = np.ravel(mean_var(device, y, axes)[1])[0]
        assert abs(var / x.astype(np.float64).var() - 1) < 1e-6


def test_near_the_ends_of_the_range(device):
    x = np.float32([1e30, 1.1e30, 1.2e30, 0.9e30])
    for y, axis in ((x, 0), (np.repeat(x[:, None], 5, 1), 0)):
        mean, var = mean_var(device, y, axis)
        assert (mean == np.float32(1.05e30)).all()
        assert np.isinf(var).all()  # 1.25e58, and no NaN
        m2 = moments(device, y, axis)[1]
        np.testing.assert_allclose(np.sqrt(m2 / 4), y.astype(float).std(axis), rtol=1e-12)
    tiny = np.float64([5e-324, 1e-310, 3e-320])
    np.testing.assert_allclose(moments(device, tiny)[0], tiny.mean(), rtol=1e-12)
    mean, var = mean_var(device, np.float64([1e200, -1e200, 3e200]))
    assert math.isclose(mean, 1e200)
    assert np.isinf(var)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4, 3e-5, -7.7])
@pytest.mark.parametrize("count", [1, 3, 2047, 5000, 100_001])
def test_constant_data_have_no_variance(device, dtype, value, count):
    x = np.full((count, 2), value, dtype)
    for axes in ((0,), (0, 1)):
        mean, var = mean_var(device, x, axes)
        assert np.all(var == 0)
        assert np.all(mean == x[0, 0])


@pytest.mark.parametrize("size", [40, 2048, 70_000])
def test_outlier_first(device, size):
    """What is subtracted is amid the data, but far from most of them."""
    for dtype in (np.float32, np.float64):
        x = draw(dtype, (size,), 0)
        x[0] = 1e6
        close(x, (0,), 0, device)
        close(np.repeat(x[:, None], 3, 1), (0,), 0, device)
        close(np.repeat(x[:, None], 70, 1)[:4000], (0,), 0, device)


def test_like_numpy_on_what_is_no_number(device):
    with np.errstate(all="ignore"):
        for values in ([np.inf, 1, 2], [1, np.inf], [np.inf, -np.inf], [np.nan, 1], [np.inf] * 40):
            for repeats in (1, 3000):
                x = np.tile(np.float32(values), repeats)
                expected = [x.mean(), x.var()]
                np.testing.assert_equal(mean_var(device, x), expected)
                for part, exact in zip(
                    mean_var(device, np.repeat(x[:, None], 5, 1), 0), expected, strict=True
                ):
                    np.testing.assert_equal(part, np.full(5, exact))


def test_few_and_no_elements(device):
    with np.errstate(all="ignore"):
        for correction in (0, 1, 2):
            for count in (1, 2, 3):
                x = draw(np.float64, (count,))
                expected = x.var(ddof=correction) if count > correction else np.float64(0) / 0
                if count > 1 and count <= correction:
                    expected = np.inf
                found = mean_var(device, x, correction=correction)[1]
                np.testing.assert_allclose(found, expected)
    mean, var = mean_var(device, np.zeros((0, 3), np.float32), 0)
    assert np.isnan(mean).all()
    assert np.isnan(var).all()
    assert mean_var(device, np.zeros((0, 3)), 1)[0].shape == (0,)
    assert (moments(device, np.zeros((0, 3)), 0)[1] == 0).all()


# --- doors ----------------------------------------------------------------------------------------


def test_out(device, dtype):
    x = draw(dtype, (4, 300, 70))
    of_cpu = fa.mean_var(x, 1)
    mean, var = mean_var(device, x, 1)
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}.get(dtype.name, 1e-14)
    for one, other in zip((mean, var), of_cpu, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=eps)
    for layout in LAYOUTS.values():
        out = (device.of(np.zeros((4, 70), dtype)), device.of(layout(np.zeros((4, 70), dtype))))
        for _ in range(2):
            assert fa.mean_var(device.of(x), 1, out=out) == out
        assert_same_bits(device.numpy(out[0]), mean)
        assert_same_bits(device.numpy(out[1]), var)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)], ids=str)
def test_gradients_are_the_cpus(device, dtype, layout, axes):
    """Whose own are held to torch's autograd."""
    x = LAYOUTS[layout](draw(dtype, (7, 30, 20)))
    shape = fa.moments(x, axes).mean.shape
    gradients = [draw(dtype, shape, 0, seed) for seed in (1, 2)]
    expected = fa.mean_var.backward(tuple(gradients), x, axes, correction=1).astype(float)
    given = tuple(map(device.of, gradients))
    dx = fa.mean_var.backward(given, device.of(x), axes, correction=1)
    eps = {2: 2.0**-7, 4: 2.0**-22, 8: 2.0**-42}[x.itemsize]
    scale = float(np.abs(expected).max())
    found = device.numpy(dx).astype(float)
    np.testing.assert_allclose(found, expected, rtol=eps, atol=eps * scale)
    fa.mean_var.backward(given, device.of(x), axes, correction=1, out=dx, accumulate=True)
    np.testing.assert_allclose(device.numpy(dx).astype(float), 2 * found, rtol=2 * eps)


def test_gradient_of_moments_in_place(device):
    x = draw(np.float64, (5, 4))
    held = device.of(x)
    assert fa.moments.backward((1.0, device.of(np.ones(5))), held, 1, out=held) is held
    expected = 0.25 + 2 * (x - x.mean(1, keepdims=True))
    np.testing.assert_allclose(device.numpy(held), expected, rtol=1e-9)
