"""Moments of data on which they are hard: far from zero, near the ends of the range, constant.

Wherever kernels run: on each instruction set of the CPU, and on each device.
"""

import math
from typing import Any

import judged
import numpy as np
import pytest
from devices import Framework
from test_moments import draw

import fastact as fa


def mean_var(
    device: Framework, x: np.ndarray, *args: Any, **named: Any
) -> tuple[np.ndarray, np.ndarray]:
    mean, var = fa.mean_var(device.of(x), *args, **named)
    return device.numpy(mean), device.numpy(var)


def moments(
    device: Framework, x: np.ndarray, *args: Any, **named: Any
) -> tuple[np.ndarray, np.ndarray]:
    m = fa.moments(device.of(x), *args, **named)
    return device.numpy(m.mean), device.numpy(m.m2)


def test_far_from_zero(backend):
    """Where E[x^2] - E[x]^2 in float32 has no digit left."""
    x = (np.random.default_rng(0).random(100) + 1e4).astype(np.float32)
    mean, var = mean_var(backend, x)
    normalised = (x.astype(np.float64) - mean) / math.sqrt(float(var) + 1e-5)
    assert abs(normalised.mean()) < 1e-2
    x = np.random.default_rng(0).normal(1e4, 1, 200_000).astype(np.float32)
    for axes, y in (((0,), x), ((0, 1), x.reshape(500, 400)), ((0,), x[:, None]), ((1,), x[None])):
        var = np.ravel(mean_var(backend, y, axes)[1])[0]
        assert abs(var / x.astype(np.float64).var() - 1) < 1e-6


def test_near_the_ends_of_the_range(backend):
    x = np.float32([1e30, 1.1e30, 1.2e30, 0.9e30])
    for y, axis in ((x, 0), (np.repeat(x[:, None], 5, 1), 0)):
        mean, var = mean_var(backend, y, axis)
        assert (mean == np.float32(1.05e30)).all()
        assert np.isinf(var).all()  # 1.25e58, and no NaN
        m2 = moments(backend, y, axis)[1]
        np.testing.assert_allclose(np.sqrt(m2 / 4), y.astype(float).std(axis), rtol=1e-12)
    tiny = np.float64([5e-324, 1e-310, 3e-320])
    np.testing.assert_allclose(moments(backend, tiny)[0], tiny.mean(), rtol=1e-12)
    mean, var = mean_var(backend, np.float64([1e200, -1e200, 3e200]))
    assert math.isclose(mean, 1e200)
    assert np.isinf(var)


def test_1e8_elements(backend):
    """The pattern repeats, so that the exact moments are known."""
    if backend.name.startswith("emulated"):
        pytest.skip("1e8 elements take an emulated device minutes")
    row = draw(np.float32, (10_000,), 1e4)
    x = np.lib.stride_tricks.as_strided(row, (10_000, 10_000), (0, 4))
    m, one = fa.moments(backend.of(x)), fa.moments(row)
    assert m.count == 10**8
    assert math.isclose(backend.numpy(m.mean), one.mean, rel_tol=2**-51)
    assert math.isclose(backend.numpy(m.m2), one.m2 * 10_000, rel_tol=2**-40)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e4, 3e-5, -7.7])
@pytest.mark.parametrize("count", [1, 3, 2047, 5000, 300_001])
def test_constant_data_have_no_variance(backend, dtype, value, count):
    x = np.full((count, 2), value, dtype)
    for axes in ((0,), (0, 1)):
        mean, var = mean_var(backend, x, axes)
        assert np.all(var == 0)
        assert np.all(mean == x[0, 0])


@pytest.mark.parametrize("size", [40, 2048, 70_000])
def test_outlier_first(backend, size):
    """The shift is amid the data, but far from most of them."""
    for dtype in (np.float32, np.float64):
        x = draw(dtype, (size,), 0)
        x[0] = 1e6
        for y in (x, np.repeat(x[:, None], 3, 1), np.repeat(x[:, None], 70, 1)[:4000]):
            for op in (fa.moments, fa.mean_var):
                judged.assert_right(op, {"x": y, "axis": (0,)}, place=backend)


def test_like_numpy_on_what_is_no_number(backend):
    with np.errstate(all="ignore"):
        for values in ([np.inf, 1, 2], [1, np.inf], [np.inf, -np.inf], [np.nan, 1], [np.inf] * 40):
            for repeats in (1, 3000):
                x = np.tile(np.float32(values), repeats)
                expected = [x.mean(), x.var()]
                np.testing.assert_equal(mean_var(backend, x), expected)
                for part, exact in zip(
                    mean_var(backend, np.repeat(x[:, None], 5, 1), 0), expected, strict=True
                ):
                    np.testing.assert_equal(part, np.full(5, exact))


def test_few_and_no_elements(backend):
    with np.errstate(all="ignore"):
        for correction in (0, 1, 2, 0.5):
            for count in (1, 2, 3):
                x = draw(np.float64, (count,))
                expected = x.var(ddof=correction) if count > correction else np.float64(0) / 0
                if count > 1 and count <= correction:
                    expected = np.inf
                found = mean_var(backend, x, correction=correction)[1]
                np.testing.assert_allclose(found, expected)
                np.testing.assert_allclose(fa.moments(x).var(correction), expected)
    assert fa.moments(np.zeros((0, 3)), 0).count == 0
    mean, var = mean_var(backend, np.zeros((0, 3), np.float32), 0)
    assert np.isnan(mean).all()
    assert np.isnan(var).all()
    assert mean_var(backend, np.zeros((0, 3)), 1)[0].shape == (0,)
    assert (moments(backend, np.zeros((0, 3)), 0)[1] == 0).all()
