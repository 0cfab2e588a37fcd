"""Sums, moments and statistics on devices: hard rows, and which kernels run."""

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrangements import shifted
from conftest import on_kernels
from devices import emulated, needs_emulation, to_emulated
from sums import DEVICE_CASES

import fastact as fa

MOST = 8  # weighted terms that a thread takes


@on_kernels
@pytest.mark.parametrize("op", [fa.sum, fa.nansum, fa.sum_squares], ids=str)
@pytest.mark.parametrize(("shape", "axes"), DEVICE_CASES[:14], ids=str)
def test_bfloat16_beyond_what_float32_holds(op, device, shape, axes):
    """Two of the largest overflow in float32, and squares below 2^-150 vanish."""
    x = np.full(shape, 2.0**-70 if op is fa.sum_squares else ml_dtypes.finfo("bfloat16").max)
    x *= np.where(np.arange(x.size).reshape(shape) // 2 % 2, -1, 1)
    x = x.astype(ml_dtypes.bfloat16)
    found = device.numpy(op(device.of(x), axis=axes)).astype(float)
    np.testing.assert_array_equal(found, np.asarray(op(x, axis=axes), float))


@on_kernels
def test_gradient_of_few_touching_terms_in_place(device):
    """Neighbours' terms are stored by a warp together, when all were read."""
    x = np.asfortranarray(np.random.default_rng(0).normal(100, 3, (5, 2)).astype(np.float16))
    where, dy = np.ones((5, 2), bool), np.ones(2, np.float16)
    expected = fa.nanvar.backward(dy, x, axis=0, where=where)
    held = device.of(x)
    fa.nanvar.backward(device.of(dy), held, axis=0, where=device.of(where), out=held)
    np.testing.assert_allclose(device.numpy(held), expected, rtol=2e-3)


def symbols(call: Any) -> list[str]:
    """The kernels that a call on the emulated device launches."""
    emulated.clear_launches()
    call()
    return [launch["symbol"] for launch in emulated.launches()]


@needs_emulation
@pytest.mark.parametrize("op", [fa.sum, fa.mean, fa.var, fa.nanmean], ids=str)
@pytest.mark.parametrize("elements", [2, 3, 4])
def test_rows_of_few_elements_stay_in_registers(op, elements, dtype):
    """Where x begins at a multiple of 16 bytes, whatever the rows do; float64 nowhere."""
    of, x = to_emulated(emulated.ExchangeArray), np.ones((515, elements), dtype)
    for view, expected in ((x, x.itemsize < 8), (shifted(x), False)):
        first = symbols(lambda view=view: op(of(view), axis=1))[0]
        assert ("few_rows" in first) == expected


@needs_emulation
@pytest.mark.parametrize("terms", [1, 3, 4, 5, MOST, MOST + 1])
def test_few_weighted_terms_belong_to_a_thread(dtype, terms):
    """A block has as many results as threads, and else as a warp has."""
    device = emulated
    of, x = to_emulated(device.ExchangeArray), np.ones((300, terms), dtype)
    given = {"weights": of(x), "where": of(np.ones(x.shape, bool))}
    device.clear_launches()
    fa.average(of(x), axis=1, **given)
    (launch,) = device.launches()
    assert "weighted_blocks" in launch["symbol"]
    assert launch["grid"][0] == -(-300 // (256 if terms <= MOST else 32))


@on_kernels
def test_few_elements_of_which_some_are_nan(device, dtype):
    """One in each place of a row, or all but one."""
    skipping = [op for op in fa.ops.values() if getattr(op, "skips", False)]
    for op, terms in product(skipping, (2, 3, 4)):
        x = np.random.default_rng(0).normal(3, 1, (2 * terms, terms)).astype(dtype)
        at = np.arange(2 * terms)[:, None] % terms == np.arange(terms)
        x[np.where(np.arange(2 * terms)[:, None] < terms, at, ~at)] = np.nan
        expected = op(x.astype(float), axis=1)
        found = device.numpy(op(device.of(x), axis=1)).astype(float)
        eps = {2: 2.0**-6, 4: 2.0**-20, 8: 2.0**-40}[np.dtype(dtype).itemsize]
        np.testing.assert_allclose(found, expected, eps, eps)
