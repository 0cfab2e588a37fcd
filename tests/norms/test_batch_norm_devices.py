"""batch_norm and norm_apply on devices: the CPU's bounds, and what only a device can get wrong."""

import itertools
from typing import Any

import numpy as np
import pytest
from conftest import assert_same_bits
from devices import KERNELS
from normed import exact_batch_norm
from sums import exact_moments
from test_batch_norm import (
    SHAPES,
    assert_as_torch,
    draw,
    parameters,
    ways,
)

import fastact as fa
from fastact import Moments
from fastact.check import reference

pytestmark = pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)

# Lines of a channel that no pack divides, that several chunks share, and that a warp or a block
# takes; shorter than a pack, and whole packs in one dtype but not in another; columns that no pack
# divides, that a tile is too narrow for, and of several chunks.
MORE: list[tuple[tuple[int, ...], int]] = [
    ((3, 1, 7), 1),
    ((1, 1, 9001), 1),
    ((2, 2, 20_003), 1),
    ((64, 5, 7, 7), 1),
    ((9, 5, 2), 1),
    ((40, 5, 12), 1),
    ((3000, 3), 1),
    ((700, 7), 1),
    ((130, 264), 1),
    ((5, 6, 7, 8), 2),
    # Planes that only together are whole vectors: that a block holds, the last tile with fewer, and
    # of several rounds and chunks.
    ((19, 24, 7, 7), 1),
    ((40, 40, 3, 3), 1),
    ((300, 8, 7, 7), 1),
    ((7, 8, 15, 15), 1),
]


# A device's tile is narrower than the CPU's, and the elements of columns beyond it are emulated.
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((300, 262), 1) if shape == (300, 1030) else (shape, axis) for shape, axis in SHAPES],
    ids=str,
)
@ways
def test_against_torch_in_float64(device, dtype, shape, axis, layout, training, name):
    assert_as_torch(device, dtype, shape, axis, layout, training, name)


@pytest.mark.parametrize(("shape", "axis"), MORE, ids=str)
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_more_shapes(device, dtype, shape, axis, name):
    assert_as_torch(device, dtype, shape, axis, "C", True, name)


def test_lines_that_only_a_large_block_holds(device, dtype):
    """Kernels that take lines in rounds have smaller blocks."""
    for pixels, training in itertools.product([2500, 2501, 5000], [True, False]):
        assert_as_torch(device, dtype, (2, 2, pixels), 1, "C", training, "identity")


def test_so_many_chunks_that_they_are_merged_apart(device):
    """32 channels of 266 chunks each are more than a block merges for itself."""
    assert_as_torch(device, np.float64, (17_000, 32), 1, "C", True, "identity")


@pytest.mark.parametrize("shape", [(3, 2, 2000), (2, 3, 70), (400, 8), (90, 7)])
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_squares_beyond_float(device, shape, size):
    """Which float32 cannot represent: of one channel alone, and beside ordinary ones."""
    x = draw(shape, np.float32, 0)
    x[:, 0] *= np.float32(size)
    y, saved = fa.batch_norm.forward(device.of(x), None, None, None, None, True, eps=0.0)
    exact, *_ = exact_batch_norm(
        "identity", x.astype(float), 1, np.ones(shape[1]), np.zeros(shape[1]), 0.0
    )
    np.testing.assert_allclose(device.numpy(y), exact, 2e-6, 2e-6)
    wide = np.moveaxis(x.astype(float), 1, 0).reshape(shape[1], -1)
    np.testing.assert_allclose(device.numpy(saved[2]).ravel(), 1 / wide.std(1), 1e-6)


def test_the_first_elements_lie_apart(device):
    """A shift that is the mean of numbers far from all the rest."""
    x = (draw((4, 3, 9000), np.float32, 0) + 1e4).astype(np.float32)
    x[:, :, :40] = 0
    y = device.numpy(fa.batch_norm(device.of(x), None, None, training=True))
    exact, *_ = exact_batch_norm("identity", x.astype(float), 1, np.ones(3), np.zeros(3), 1e-5)
    np.testing.assert_allclose(y, exact, 2e-6, 2e-6)


def everything(device: Any, x: Any, dy: Any, weights: Any, axis: int, **named: Any) -> list[Any]:
    weight, bias, *_ = map(device.of, weights)
    named["channel_axis"] = axis
    y, saved = fa.batch_norm.forward(device.of(x), None, None, weight, bias, True, **named)
    back = fa.batch_norm.backward(device.of(dy), *saved, True, **named)
    return [device.numpy(a) for a in (y, *saved[1:3], *back)]


def moved(a: np.ndarray, offset: int) -> np.ndarray:
    """The same values, `offset` elements further from where memory is aligned."""
    held = np.zeros(a.size + offset, a.dtype)[offset:].reshape(a.shape)
    held[...] = a
    return held


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0, None])
def test_running_statistics_wider_than_the_data(device, momentum):
    x = draw((8, 3), np.float16, 0)
    mean, var = device.of(np.full(3, 0.5)), device.of(np.ones(3))
    fa.batch_norm(device.of(x), mean, var, training=True, momentum=momentum, num_batches=3)
    of_mean, m2 = exact_moments(x.astype(float), (0,))
    share = 0.25 if momentum is None else momentum
    for one, before, new in ((mean, 0.5, of_mean), (var, 1.0, m2 / (len(x) - 1))):
        expected = reference.moved(before, new, share)
        np.testing.assert_allclose(device.numpy(one), expected, 1e-13, 1e-15)


def test_failing_calls_leave_running_statistics_alone(device):
    x = device.of(draw((8, 3), np.float32, 0))
    mean, var = device.of(np.full(3, 0.5, np.float32)), device.of(np.ones(3, np.float32))
    for named in ({"out": device.of(np.zeros((8, 4), np.float32))}, {"eps": -1.0}):
        with pytest.raises(ValueError, match="batch_norm"):
            fa.batch_norm(x, mean, var, training=True, **named)
    assert (device.numpy(mean) == 0.5).all()
    assert (device.numpy(var) == 1).all()


def test_without_weight_or_bias(device):
    x, dy = draw((6, 3, 4), np.float64, 0), draw((6, 3, 4), np.float64, 1)
    weight, one, zero = draw((3,), np.float64, 2), np.ones(3), np.zeros(3)
    of = lambda a: None if a is None else device.of(a)  # noqa: E731
    for given_ in ((None, None), (weight, None), (None, weight)):
        full = (one if given_[0] is None else weight, zero if given_[1] is None else weight)
        y, saved = fa.batch_norm.forward(device.of(x), None, None, *map(of, given_), True)
        expected, all_saved = fa.batch_norm.forward(device.of(x), None, None, *map(of, full), True)
        assert_same_bits(device.numpy(y), device.numpy(expected))
        found = fa.batch_norm.backward(device.of(dy), *saved, True)
        wanted = fa.batch_norm.backward(device.of(dy), *all_saved, True)
        assert_same_bits(device.numpy(found[0]), device.numpy(wanted[0]))
        assert [g is None for g in found[1:]] == [w is None for w in given_]


def test_given_statistics_and_infinite_data(device):
    """By running statistics dx is dy scale, whatever x is."""
    x = np.float32([[np.inf, 1], [np.nan, 2]])
    dy, two = np.ones((2, 2), np.float32), np.full(2, 2, np.float32)
    given_ = map(device.of, (dy, x, two, two, two))
    dx = fa.norm_apply.backward(*given_, axis=1, out=(device.of(dy), None, None))[0]
    assert (device.numpy(dx) == 4).all()
    y = device.run(fa.norm_apply, x, two, two, axis=1)
    np.testing.assert_array_equal(y, (x - 2) * 2)


def test_halves_over_two_machines(device):
    """Moments merged, sums added: what one machine with all of the data has."""
    x, dy = draw((9, 3, 5), np.float64, 0), draw((9, 3, 5), np.float64, 1)
    weights = parameters(3, np.float64)
    weight, bias, *_ = map(device.of, weights)
    y, _, _, dx, dweight, dbias = everything(device, x, dy, weights, 1, activation="mish")
    parts = [slice(0, 4), slice(4, 9)]
    found = [fa.moments(device.of(x[part]), (0, 2), keepdims=True) for part in parts]
    m = Moments.merge_many(
        Moments(f.count, device.numpy(f.mean), device.numpy(f.m2)) for f in found
    )
    mean, rstd = device.of(m.mean), device.of(1 / np.sqrt(m.var() + 1e-5))
    named = {"activation": "mish"}
    sums = []
    for part in parts:
        pair = fa.batch_norm.backward_reduce(
            device.of(dy[part]), device.of(x[part]), mean, rstd, weight, bias, **named
        )
        sums.append([device.numpy(p) for p in pair])
    total = [a + b for a, b in zip(*sums, strict=True)]
    np.testing.assert_allclose(total[0].ravel(), dbias, rtol=1e-12)
    np.testing.assert_allclose(total[1].ravel(), dweight, rtol=1e-12)
    for part in parts:
        of_part = fa.norm_apply(device.of(x[part]), mean, rstd, weight, bias, axis=1, **named)
        np.testing.assert_allclose(device.numpy(of_part), y[part], rtol=1e-12, atol=1e-14)
        back = fa.batch_norm.backward_apply(
            device.of(dy[part]), device.of(x[part]), mean, rstd, weight,
            *map(device.of, total), m.count, bias, **named,
        )  # fmt: skip
        np.testing.assert_allclose(device.numpy(back), dx[part], rtol=1e-10, atol=1e-13)
