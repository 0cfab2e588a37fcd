"""What users of other libraries reported of sums, means and variances, against long doubles."""

import numpy as np
import pytest

import fastact as fa

HALF = 2.0**-24 + 2.0**-33  # of an ULP, by which a result is rounded, and what sums err by


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.longdouble)


def repeated(row: np.ndarray, times: int) -> np.ndarray:
    """The row so many times, in the memory of one."""
    return np.broadcast_to(row, (times, *row.shape))


@pytest.mark.parametrize("op", [fa.nanmean, fa.mean], ids=lambda op: op.name)
def test_mean_of_100_million_float32(op, many_threads):
    """pydata/bottleneck#462: 0.168."""
    row = np.random.default_rng(462).random(1000, np.float32)
    x = repeated(row, 100_000)
    np.testing.assert_allclose(float(op(x)), float(wide(row).mean()), HALF)


@pytest.mark.parametrize("op", [fa.nanstd, fa.std], ids=lambda op: op.name)
def test_deviation_of_100_million_float32(op, many_threads):
    """pydata/bottleneck#462: 0.387 for 0.289."""
    row = np.random.default_rng(462).random(1000, np.float32)
    np.testing.assert_allclose(float(op(repeated(row, 100_000))), float(wide(row).std()), HALF)


def test_large_sums(many_threads):
    """pydata/bottleneck#193: the sum of 4e7 float32 7 % too small; xarray#1346: a mean of 0.5."""
    row = np.float32(2e5) * np.random.default_rng(193).random(1000, np.float32)
    exact = float(wide(row).sum() * 40_000)
    np.testing.assert_allclose(float(fa.nansum(repeated(row, 40_000))), exact, HALF)
    assert fa.nanmean(repeated(np.ones(32, np.float32), 2**20)) == 1


@pytest.mark.parametrize("layout", ["C", "F"])
def test_mean_down_two_columns(layout, many_threads):
    """numpy/numpy#29772: 6 % off."""
    part = np.random.default_rng(29772).uniform(250, 320, (1024, 2)).astype(np.float32)
    x = np.asarray(np.tile(part, (10_240, 1)), order=layout)
    exact = wide(part).mean(0).astype(float)
    for op in (fa.mean, fa.nanmean):
        np.testing.assert_allclose(op(x, 0), exact, HALF)
    np.testing.assert_allclose(fa.moments(x, 0).mean, exact, 2.0**-45)


def test_mean_of_ones(many_threads):
    """numpy/numpy#22956 and #8869: 0.84 and 0.42."""
    ones = np.broadcast_to(np.float32(1), (20_000_000, 2))
    assert (fa.mean(ones, 0) == 1).all()
    assert (fa.nanmean(ones.reshape(-1, 4, 5), (0, 1)) == 1).all()


def test_skewed_data():
    """pydata/xarray#2401: 1.52 for 1.65, by the shape of the array."""
    row = np.random.default_rng(42).lognormal(size=(500, 50)).astype(np.float32)
    exact = float(wide(row).mean())
    for axes in (None, (0, 1, 2, 3), (3, 2, 1, 0)):
        found = fa.nanmean(repeated(row, 1000).reshape(10, 100, 500, 50), axes)
        np.testing.assert_allclose(found, exact, HALF)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_variance_far_from_zero(dtype):
    """numpy/numpy#6231: one pass that does not cancel."""
    x = np.random.default_rng(6231).normal(1e4, 1, (100_000, 3)).astype(dtype)
    exact = wide(x).var(0).astype(float)
    whole = fa.moments(x, 0)
    merged = fa.Moments.merge_many(fa.moments(part, 0) for part in np.array_split(x, 13))
    running = fa.moments(x[:7], 0)
    for part in np.array_split(x[7:], 13):
        running = running.update(part)
    rounding = HALF if dtype == np.float32 else 2.0**-44
    for found, bound in (
        (fa.var(x, 0), rounding),
        (fa.nanvar(x, 0), rounding),
        (whole.var(), 2.0**-33),
        (merged.var(), 2.0**-32),
        (running.var(), 2.0**-32),
    ):
        np.testing.assert_allclose(found, exact, bound + 2.0**-50 * 1e4)
