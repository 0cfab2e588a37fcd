"""batch_norm and norm_apply on devices: the CPU's bounds, and what only a device can get wrong."""

import itertools

import judged
import numpy as np
import pytest
from arrangements import shifted
from conftest import assert_same_bits, on_kernels
from test_batch_norm import assert_right, draw

import fastact as fa

pytestmark = on_kernels
TRAINING = {"running_mean": None, "running_var": None, "training": True}


def test_lines_that_only_a_large_block_holds(device, dtype):
    """Kernels that take lines in rounds have smaller blocks."""
    for pixels, training in itertools.product([2500, 2501, 5000], [True, False]):
        assert_right(device, dtype, (2, 2, pixels), 1, "C", training, "identity")


def test_so_many_chunks_that_they_are_merged_apart(device):
    """32 channels of 266 chunks each are more than a block merges for itself."""
    assert_right(device, np.float64, (17_000, 32), 1, "C", True, "identity")


@pytest.mark.parametrize("shape", [(3, 2, 2000), (2, 3, 70), (400, 8), (90, 7)])
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_squares_beyond_float(device, shape, size):
    """Which float32 cannot represent: of one channel alone, and beside ordinary ones."""
    x = draw(shape, np.float32, 0)
    x[:, 0] *= np.float32(size)
    found = judged.assert_right(fa.batch_norm, {"x": x, **TRAINING, "eps": 0.0}, place=device)
    assert {"y", "rstd"} <= found.keys()


def test_the_first_elements_lie_apart(device):
    """A shift that is the mean of numbers far from all the rest."""
    x = (draw((4, 3, 9000), np.float32, 0) + 1e4).astype(np.float32)
    x[:, :, :40] = 0
    judged.assert_right(fa.batch_norm, {"x": x, **TRAINING}, place=device)


def test_given_statistics_and_infinite_data(device):
    """By running statistics dx is dy scale, whatever x is."""
    x = np.float32([[np.inf, 1], [np.nan, 2]])
    dy, two = np.ones((2, 2), np.float32), np.full(2, 2, np.float32)
    given_ = map(device.of, (dy, x, two, two, two))
    dx = fa.norm_apply.backward(*given_, axis=1, out=(device.of(dy), None, None))[0]
    assert (device.numpy(dx) == 4).all()
    y = device.run(fa.norm_apply, x, two, two, axis=1)
    np.testing.assert_array_equal(y, (x - 2) * 2)


@pytest.mark.parametrize("shape", [(4, 3, 64), (64, 24), (3, 7, 33)], ids=str)
def test_results_alone_begin_elsewhere(device, dtype, shape):
    """All that is read is aligned, and what is written is not: the same bits."""
    x, dy = draw(shape, dtype, 0), draw(shape, dtype, 1)
    for training in (True, False):
        running = (np.zeros(shape[1], dtype), np.ones(shape[1], dtype))
        given = [device.of(x), *(None if training else device.of(a) for a in running)]
        y, saved = fa.batch_norm.forward(*given, training=training)
        out = device.of(shifted(np.zeros_like(x)))
        fa.batch_norm(*given, training=training, out=out)
        assert_same_bits(device.numpy(out), device.numpy(y))
        dx = fa.batch_norm.backward(device.of(dy), *saved, training=training)[0]
        out = device.of(shifted(np.zeros_like(x)))
        given = [device.of(dy), *saved]
        fa.batch_norm.backward(*given, training=training, out=(out, None, None))
        assert_same_bits(device.numpy(out), device.numpy(dx))
