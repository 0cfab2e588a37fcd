"""Sums of 16 bits before they are rounded: a few terms are added in float32."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same_bits, needs_two_fused_isas, on_fused_isas
from devices import DTYPES
from sums import SUMS

import fastact as fa
from fastact.check.expected.reductions import term_of
from fastact.ops.bounds import is_narrow

NARROW = {name: dtype for name, dtype in DTYPES.items() if is_narrow(dtype)}
LANES, TOGETHER, BLOCK = 32, 8, 2048  # src/cpu/reductions/kernels.h
BAND = LANES * TOGETHER

#: Of a lane, a band and a block, and beside these.
LENGTHS = [*range(1, 101), 224, 225, 255, 256, 257, 287, 288, 289, 511, 512, 513, 2047, 2048, 2049]

narrow = pytest.mark.parametrize("dtype", NARROW.values(), ids=NARROW.keys())
sums = pytest.mark.parametrize("op", SUMS, ids=lambda op: op.name)


def unrounded(op: Any, x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """The sum in float64: 16 bits would hide in which order it was made."""
    return np.asarray(op(x, axes, dtype=np.float64)).reshape(-1)


# --- data -----------------------------------------------------------------------------------------


def mixed(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    return rng.normal(size=n) * 10.0 ** rng.uniform(-3, 1, n)


def every_exponent(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """Any bits of a finite number: huge beside subnormal."""
    infinity = int(np.array(np.inf, dtype).view(np.uint16))
    return (
        (rng.integers(0, infinity, n) | rng.integers(0, 2, n) << 15).astype(np.uint16).view(dtype)
    )


def largest(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """Of which two of bfloat16 overflow in float32."""
    return np.full(n, float(ml_dtypes.finfo(dtype).max))


def alternating(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """Of which lanes overflow, in both directions, and their sum does not."""
    return largest(rng, n, dtype) * np.where(np.arange(n) % 2, -1, 1)


def cancelling(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """Each lane's huge terms cancel, and leave the small ones behind them."""
    x = rng.normal(size=n)
    x[: n // 2] *= 2.0**12
    x[n - n // 2 :] = np.where(np.arange(n // 2) % 2, x[n - n // 2 :], -x[: n // 2])
    return x


def tiny(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """Whose squares leave float32's range, of bfloat16; subnormal numbers of float16."""
    return rng.normal(size=n) * (2.0**-20 if dtype == np.float16 else 2.0**-74)


def one_first(rng: np.random.Generator, n: int, dtype: Any) -> np.ndarray:
    """What a float32 loses of each term behind a huge one."""
    return np.where(np.arange(n) % BAND < LANES, 1.0, 2.0**-24 * 0.75)


DATA = [mixed, every_exponent, largest, alternating, cancelling, tiny, one_first]
each_data = pytest.mark.parametrize("make", DATA, ids=lambda make: make.__name__)


def drawn(make: Any, n: int, dtype: Any) -> np.ndarray:
    return np.asarray(make(np.random.default_rng(n), n, dtype)).astype(dtype)


# --- the order and the bound ----------------------------------------------------------------------


def in_order(op: Any, x: np.ndarray) -> float:
    """One block's sum as src/cpu/reductions/kernels.h has it."""
    with np.errstate(all="ignore"):
        exact = term_of(op)(x.astype(np.float64))
        lanes = np.full(LANES, -0.0)
        for band in range(0, len(x), BAND):
            for lane in range(min(LANES, len(x) - band)):
                terms = exact[band + lane : band + BAND : LANES]
                added, fine = np.float32(-0.0), True
                for term in terms:  # a square is exact, or the sum is made in double
                    added = np.float32(added + np.float32(term))
                fine = np.isfinite(added)
                if op is fa.sum_squares and x.dtype != np.float16:
                    fine = fine and added >= 2.0**-100
                part = float(added) if fine else float(np.add.accumulate(terms)[-1])
                lanes[lane] += part
        for half in (16, 8, 4, 2, 1):
            lanes[:half] += lanes[half : 2 * half]
    return float(lanes[0])


@narrow
@sums
@each_data
def test_the_order(op, dtype, make, isa):
    for n in (1, 31, 33, 200, 256, 300, 777, 2048):
        x = drawn(make, n, dtype)
        assert unrounded(op, x, (0,)) == in_order(op, x), n


@narrow
@sums
@each_data
def test_within_the_bound(op, dtype, make, isa):
    """Along rows and down columns; |y - exact| <= 2**-21 sum|x|, and half a ULP once rounded."""
    for n in LENGTHS:
        x = drawn(make, n, dtype)
        terms = term_of(op)(x.astype(np.float64))
        exact, size = math.fsum(terms), float(np.abs(terms).sum())
        found = unrounded(op, x, (0,))[0]
        # The sum of sizes and its share are rounded as well.
        assert abs(found - exact) <= op.bounds.share(dtype) * size * (1 + 2.0**-40), n
        if abs(exact) < float(ml_dtypes.finfo(dtype).max):
            y = float(np.asarray(op(x, 0)))
            assert abs(y - exact) <= float(op.bounds.allowed(exact, size, np.dtype(dtype))), n


@narrow
@sums
@each_data
def test_every_layout_has_the_same_bits(op, dtype, make, isa):
    for n in (7, 33, 250, 256, 300, 2048, 5000):
        row = drawn(make, n, dtype)
        expected = unrounded(op, row, (0,))[0]
        wide = 200 if n < 1000 else 70
        held = np.zeros(2 * (n + 1), np.uint8)[1 : 2 * n + 1]
        misaligned = np.ndarray((n,), dtype, held)
        misaligned[...] = row
        views: list[tuple[np.ndarray, tuple[int, ...]]] = [
            (misaligned, (0,)),
            (row[::-1].copy()[::-1], (0,)),
            (np.repeat(row, 2)[::2], (0,)),
            (np.repeat(row, 3)[::-3][::-1], (0,)),
            (np.tile(row, (5, 1)), (1,)),
            (np.tile(row[::-1], (5, 1))[:, ::-1], (1,)),
            (np.broadcast_to(row, (4, n)), (1,)),
            (np.broadcast_to(row[:, None], (n, 3)), (0,)),
        ]
        for columns in (1, 3, 50, wide):
            tall = np.tile(row, (columns, 1)).T.copy()
            views += [(tall, (0,)), (tall[::-1].copy()[::-1], (0,))]
            views.append((np.repeat(tall, 2, 1)[:, ::2], (0,)))
        for pieces in (2, 5, 10, 25):
            if n % pieces == 0:
                cut = row.reshape(pieces, 1, n // pieces)
                views.append((np.tile(cut, (1, 3, 1)), (0, 2)))
                views.append((np.tile(cut, (1, 70, 1)), (0, 2)))
        for threads in (1, 3):
            with fa.num_threads(threads):
                for x, axes in views:
                    found = unrounded(op, x, axes)
                    assert_same_bits(found, np.full_like(found, expected))


@needs_two_fused_isas
@narrow
@sums
@each_data
def test_avx2_and_avx512_have_the_same_bits(op, dtype, make):
    x = np.stack([drawn(make, 3001, dtype)] * 3)
    for view, axes in ((x, (1,)), (x.T.copy(), (0,)), (x.reshape(3, 1, 3001), (0, 2))):
        first, *others = on_fused_isas(lambda view=view, axes=axes: unrounded(op, view, axes))
        for other in others:
            assert_same_bits(other, first)


# --- what is no number, and what leaves float32's range ------------------------------------------


@narrow
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99, 1.0])
@pytest.mark.filterwarnings("ignore:Mean of empty:RuntimeWarning")
def test_nan_are_not_counted(dtype, share, isa):
    """However many: among ones the mean is 1, and the sum their number."""
    rng = np.random.default_rng(0)
    for shape, axis in (((3, 5000), 1), ((600, 70), 0), ((600, 5), 0), ((7, 3, 100), (0, 2))):
        x = np.where(rng.random(shape) < share, np.nan, 1.0).astype(dtype)
        count = (~np.isnan(x.astype(float))).sum(axis)
        counted = np.asarray(fa.nansum(x, axis)).astype(float)
        np.testing.assert_array_equal(counted, count.astype(dtype).astype(float))
        mean = np.asarray(fa.nanmean(x, axis)).astype(float)
        np.testing.assert_array_equal(mean, np.where(count > 0, 1.0, np.nan))


def test_sums_that_overflow_on_the_way(isa):
    """Two of the largest bfloat16 are more than a float32 holds."""
    largest = float(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    for n in (64, 512, 4096):
        x = np.full(n, largest)
        x[n // 2 :] = -largest
        x[0] = 1.0
        x = x.astype(ml_dtypes.bfloat16)
        for array in (x, np.tile(x, (70, 1)).T.copy()):
            found = np.asarray(fa.sum(array, 0)).astype(float)
            np.testing.assert_array_equal(found, -largest)
            skipped = np.asarray(fa.nansum(array, 0)).astype(float)
            np.testing.assert_array_equal(skipped, -largest)
            mean = np.asarray(fa.mean(array, 0)).astype(float)
            np.testing.assert_array_equal(mean, -largest / n)


@pytest.mark.parametrize("exponent", [-80, -76, -75, -74, -70, -63, -62, 0, 40, 63])
def test_squares_that_leave_the_range_of_float(exponent, isa):
    """In double they are there: 2**18 squares of 2**-76 are 2**-134."""
    for n in (100, 2048, 1 << 16):
        x = np.full(n, 1.5 * 2.0**exponent).astype(ml_dtypes.bfloat16)
        exact = n * 2.25 * 2.0 ** (2 * exponent)
        for array in (x, np.broadcast_to(x[:, None], (n, 70))):
            found = unrounded(fa.sum_squares, array, (0,))
            np.testing.assert_allclose(found, exact, rtol=fa.sum_squares.bounds.narrow)
        value, _ = fa.sum_squares.value_and_grad(x)
        assert_same_bits(np.asarray(value), np.asarray(fa.sum_squares(x)))


@narrow
def test_zeros_keep_their_sign(dtype, isa):
    for n in LENGTHS[::7]:
        zeros = np.full(n, -0.0).astype(dtype)
        for x in (zeros, np.tile(zeros, (70, 1)).T.copy()):
            assert np.signbit(np.asarray(fa.sum(x, 0)).astype(float)).all()
            assert np.signbit(np.asarray(fa.nansum(x, 0)).astype(float)).all()
            assert not np.signbit(np.asarray(fa.sum_squares(x, 0)).astype(float)).any()
