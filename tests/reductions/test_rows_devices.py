"""Sums, moments and statistics on devices by every way in which rows and columns are read."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from arrangements import padded, shifted
from conftest import assert_same_bits
from devices import EMULATED, KERNELS, to_emulated

import fastact as fa
from fastact.interop.devices import emulate

OPS = [op for op in fa.ops.values() if op.family in ("reductions", "statistics")]

# More rows than a block takes, of few elements, of one vector, of some that end within one, and of
# as many as a lane has of each dtype; columns of few rows, of whole vectors and not, between others
# and not; rows of a lane, of a warp, of two, and of more than one chunk in few chunks and in many.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((515, 2), (1,)),
    ((515, 3), (1,)),
    ((1030, 4), (1,)),
    ((515, 1, 8), (2,)),
    ((300, 16), (1,)),
    ((260, 31), (1,)),
    ((3, 2049), (0,)),
    ((3, 2048), (0,)),
    ((8, 2048), (0,)),
    ((32, 100), (0,)),
    ((4, 5, 24), (1,)),
    ((3, 4097), (1,)),
    ((2, 9001), (1,)),
    ((1, 70_000), (1,)),
    ((1, 540_000), (1,)),
]


def results(y):
    return (y.count, y.mean, y.m2) if isinstance(y, fa.Moments) else y


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_results_are_the_cpus(op, device, dtype, shape, axes):
    """One layout is held to an oracle; every other has the same bits."""
    draw = np.random.default_rng(0)
    x = draw.normal(100, 1, shape).astype(dtype)
    if getattr(op, "skips", False):
        missing = draw.random(shape) < 0.2
        missing[tuple(slice(0, 1 if i in axes else n) for i, n in enumerate(shape))] = False
        x[missing] = np.nan

    def found(view):
        y = results(op(device.of(view), axis=axes))
        return [
            device.numpy(part) if not isinstance(part, int) else np.array(part)
            for part in (y if isinstance(y, tuple) else (y,))
        ]

    expected = results(op(x, axis=axes))
    first = found(x)
    # Both sides' errors: half a ULP of the dtype, and a share that only double's ULP is near.
    eps = {2: 2.0**-7, 4: 2.0**-22, 8: 2.0**-42}[np.dtype(dtype).itemsize]
    for one, other in zip(
        first, expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        np.testing.assert_allclose(one.astype(float), np.asarray(other, float), rtol=eps)
    for view in (shifted(x), shifted(x, 3)):
        for one, other in zip(found(view), first, strict=True):
            assert_same_bits(one, other)
    for one, other in zip(found(padded(x)), first, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=eps)


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", [fa.sum, fa.nansum, fa.sum_squares], ids=str)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_bfloat16_beyond_what_float32_holds(op, device, shape, axes):
    """Two of the largest overflow in float32, and squares below 2^-150 vanish."""
    x = np.full(shape, 2.0**-70 if op is fa.sum_squares else ml_dtypes.finfo("bfloat16").max)
    x *= np.where(np.arange(x.size).reshape(shape) // 2 % 2, -1, 1)
    x = x.astype(ml_dtypes.bfloat16)
    found = device.numpy(op(device.of(x), axis=axes)).astype(float)
    np.testing.assert_array_equal(found, np.asarray(op(x, axis=axes), float))


@pytest.mark.skipif(not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON")
@pytest.mark.parametrize("op", [fa.sum, fa.mean, fa.var, fa.nanmean], ids=str)
@pytest.mark.parametrize("elements", [2, 3, 4])
def test_rows_of_few_elements_stay_in_registers(op, elements, dtype):
    """Where x begins at a multiple of 16 bytes, whatever the rows do, and nowhere else.

    Moments of float64 never do: they go through tiles, as other short rows do.
    """
    device = emulate()
    of = to_emulated(device.ExchangeArray)
    x = np.ones((515, elements), dtype)
    has_kernel = op in (fa.sum, fa.mean) or dtype != np.float64
    for view, expected in ((x, has_kernel), (shifted(x), False)):
        device.clear_launches()
        op(of(view), axis=1)
        first = device.launches()[0]
        stays = any(kernel in first["symbol"] for kernel in ("reduce_few_of_row", "few_rows"))
        assert stays == expected


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
def test_few_elements_of_which_some_are_nan(device, dtype):
    """One in each place of a row, or all but one."""
    for op, terms in product([op for op in OPS if getattr(op, "skips", False)], (2, 3, 4)):
        x = np.random.default_rng(0).normal(3, 1, (2 * terms, terms)).astype(dtype)
        at = np.arange(2 * terms)[:, None] % terms == np.arange(terms)
        x[np.where(np.arange(2 * terms)[:, None] < terms, at, ~at)] = np.nan
        expected = op(x.astype(float), axis=1)
        found = device.numpy(op(device.of(x), axis=1)).astype(float)
        eps = {2: 2.0**-6, 4: 2.0**-20, 8: 2.0**-40}[np.dtype(dtype).itemsize]
        np.testing.assert_allclose(found, expected, eps, eps)
