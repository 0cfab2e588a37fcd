"""Softmax and losses on devices, where their kernels have ways that the CPU does not have."""

import numpy as np
import pytest
from conftest import each_long, on_kernels
from devices import DTYPES
from test_softmax import assert_gradient_right, assert_right, by_op, data

import fastact as fa

each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


@each_long
@by_op
@on_kernels
def test_rows_of_several_blocks(op, dtype, device):
    """From 8192 packs of 16 bytes on: the last chunk is one element, or nearly whole."""
    size = 8192 * 16 // dtype.itemsize
    for more in (1, 4096 * 16 // dtype.itemsize - 1):
        x = data((2, size + more), dtype.name)
        x[1, 5], x[0, -1] = 90, 60  # the largest in the first chunk, and in the last
        x[0, :4097] = -np.inf  # a chunk, or a part of one, of nothing
        assert_right(op, x, 1, device)
    assert_right(op, x, 1, device, mask=data((1, size + more), dtype.name, seed=3))
    assert_gradient_right(op, data((2, size + 3), dtype.name), 1, device)


# Columns that a block has as a whole: at least 64 blocks, of 64 or 128 bytes of an element, and
# more elements than a chunk has; of 4-byte elements the last round of two is a single one.
LONG = 257


def long_columns(
    dtype: np.dtype, less: int = 0, spread: float = 3.0, strip: int = 128
) -> np.ndarray:
    return data((LONG, 64 * strip // dtype.itemsize - less), dtype.name, spread)


@pytest.mark.parametrize("strip", [64, 128])
@pytest.mark.parametrize("less", [0, 3], ids=["whole", "cut"])
@by_op
@each_dtype
@on_kernels
def test_long_columns(less, strip, op, dtype, device):
    """Those that are near and far from zero, that rise and fall, and that are not finite."""
    for spread, scale in ((3.0, 1.0), (30.0, -2.0), (3000.0, 1.0)):
        x = long_columns(dtype, less, spread, strip)
        x[:, 0], x[:, 1] = np.linspace(-50, 50, LONG), np.linspace(50, -50, LONG)
        x[:, 2], x[3, 2] = -80, 0
        x[:, 3], x[:, 4], x[:200, 5] = 1, -np.inf, -np.inf
        x[5, 6], x[LONG - 1, 7] = 90, 90
        x[7, 8], x[8, 9], x[9, 10] = np.nan, np.inf, -np.inf
        x[:, 11] = np.linspace(1900, 2200, LONG)  # the first of them move, and the last ones do not
        y = assert_right(op, x, 0, device, scale=scale)
        if op is not fa.logsumexp and spread == 3:
            place = device.of(x)
            op(place, axis=0, scale=scale, out=place)
            np.testing.assert_array_equal(device.numpy(place).astype(float), y.astype(float))


@pytest.mark.parametrize("name", ["float32", "float16"])
@on_kernels
def test_long_columns_of_far_scores(name, device):
    assert_right(fa.softmax, long_columns(DTYPES[name], spread=1e3), 0, device, scale=1e34)


@pytest.mark.parametrize("less", [0, 3], ids=["whole", "cut"])
@by_op
@each_dtype
@on_kernels
def test_gradients_of_long_columns(less, op, dtype, device):
    assert_gradient_right(op, long_columns(dtype, less), 0, device)
    if op is fa.softmax:  # dx is 0 wherever y is 0, whatever dy is
        y = op(long_columns(dtype, less), axis=0)
        y[5, 3] = 0
        dy = data(y.shape, dtype.name, 1.0, seed=1)
        plain = device.run(lambda *a: op.backward(*a, axis=0), dy, y)
        dy[5, 3] = np.inf
        found = device.run(lambda *a: op.backward(*a, axis=0), dy, y)
        np.testing.assert_array_equal(found, plain)


@pytest.mark.parametrize(("shape", "axis"), [((12, 40), 1), ((40, 12), 0)], ids=str)
@by_op
@each_dtype
@on_kernels
def test_what_is_not_finite_stays_in_its_row(shape, axis, op, dtype, device):
    """NaN, infinities, nothing but -inf, and numbers whose difference overflows."""
    x = data(shape, dtype.name)
    rows = x if axis == 1 else x.T
    largest = float(np.finfo(np.float16).max) if dtype == np.float16 else 3e38
    rows[1, 3], rows[2, 5], rows[3, 7] = np.nan, np.inf, -np.inf
    rows[4] = -np.inf
    rows[5, ::2], rows[5, 1::2] = largest, -largest
    rows[6, 4], rows[6, 5] = np.inf, np.nan
    rows[7] = -largest
    assert_right(op, x, axis, device)


@on_kernels
def test_indices_that_name_no_class(device):
    """NaN in their rows alone."""
    logits = data((6, 10), "float32")
    target = np.array([3, 10, -1, -100, 2**40, 9])
    given = device.of(logits), device.of(target)
    result, saved = fa.cross_entropy.forward(*given, reduction="none")
    losses = device.numpy(result)
    np.testing.assert_array_equal(np.isnan(losses), [False, True, True, False, True, False])
    assert losses[3] == 0
    dy = device.of(np.ones(6, np.float32))
    dlogits = device.numpy(fa.cross_entropy.backward(dy, *saved, reduction="none"))
    np.testing.assert_array_equal(np.isnan(dlogits).any(1), np.isnan(losses))
    assert (dlogits[3] == 0).all()


@on_kernels
def test_losses_of_rows_of_several_blocks(device):
    logits, target = data((3, 2 * 8192 + 3), "float64"), np.array([5, 2 * 8192 + 2, -100])
    for smoothing in (0.0, 0.1):
        options = {"label_smoothing": smoothing}
        expected, kept = fa.cross_entropy.forward(logits, target, **options)
        loss, saved = fa.cross_entropy.forward(device.of(logits), device.of(target), **options)
        np.testing.assert_allclose(device.numpy(loss), expected, 1e-14)
        one = device.of(np.ones(()))
        found = device.numpy(fa.cross_entropy.backward(one, *saved, **options))
        right = fa.cross_entropy.backward(1.0, *kept, **options)
        np.testing.assert_allclose(found, right, 1e-13, 1e-16)


@on_kernels
def test_no_rows(device):
    for reduction, expected in (("mean", np.nan), ("sum", 0.0)):
        given = device.of(np.zeros((0, 4))), device.of(np.zeros(0, np.int64))
        loss = device.numpy(fa.cross_entropy(*given, reduction=reduction))
        np.testing.assert_array_equal(loss, expected)
    y = device.run(fa.logsumexp, np.zeros((3, 0), np.float32))
    assert (y == -np.inf).all()


@on_kernels
@pytest.mark.parametrize(("shape", "axis"), [((3000, 3), 0), ((2, 20_000), 1)], ids=str)
@pytest.mark.parametrize("gap", [5.3, 10.1, 20.0, 20.37])
def test_chunks_of_float64_merge_exactly(device, shape, axis, gap):
    """Where one element is far above all others, which are in another chunk."""
    x = np.moveaxis(np.full(shape, -60.0), axis, 0)
    half = len(x) // 2
    x[:half] = -gap
    x[half + 17] = 1.7
    y = device.numpy(fa.log_softmax(device.of(np.moveaxis(x, 0, axis)), axis=axis))
    wide = x.astype(np.longdouble) - np.longdouble(1.7)
    expected = -np.log1p(np.exp(np.delete(wide, half + 17, 0)).sum(0))
    top = np.moveaxis(y, axis, 0)[half + 17]
    error = np.abs(top - expected) / np.spacing(np.abs(expected.astype(float)))
    assert error.max() <= fa.log_softmax.bounds.ulps
