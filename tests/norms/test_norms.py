"""The norms against the oracle, with every activation, dtype, layout and instruction set."""

import judged
import numpy as np
import pytest
from conftest import ACTIVATIONS, DTYPES, assert_all_same_bits, assert_same_bits, on_backends
from devices import FRAMEWORKS, KERNELS
from normed import (
    BEHIND,
    CHANNELS,
    FEW,
    LAST,
    SETTINGS,
    Arrays,
    Setting,
    assert_right,
    run,
    several,
)

import fastact as fa
from fastact.check import reference

# What the kernels tell apart, counted in packs of 16 bytes (8, 4 or 2 elements): rows of one
# element; of 1 to 32 lanes; of more than a warp takes backward (64) and forward (256); of one, two
# and three packs a thread backward (from 257, 513 and 1025 on), and of several blocks (from 1025
# on, of float32 1537); and tails of each. Channels whose lines are shorter and longer than a pack,
# a warp and a block; groups without pixels; batches of more rows than a team adds up in float32
# (14).
KINDS = [
    *several("layer_norm", (7, 1), (67, 3)),
    Setting("rms_norm", (70, 8)),
    *several("layer_norm", (1500, 5), (37, 264)),
    Setting("add_layer_norm", (9, 1031)),
    Setting("rms_norm", (5, 4100)),
    *several("layer_norm", (2, 9001), (3, 5120), (3700, 72)),
    Setting("rms_norm", (4100, 260)),
    *several("group_norm", (300, 6, 3), (3, 4, 9), (2, 4, 700), groups=2),
    Setting("group_norm", (3, 6, 1), groups=3),
    Setting("group_norm", (2, 4, 5001), groups=2),
    Setting(
        "group_norm", (2, 64, 7, 7), groups=4
    ),  # whole packs, whose parameters change amid them
    Setting("group_norm", (2, 40, 14, 14), groups=2),
    *several("instance_norm", (40, 600, 7, 7), (3, 5, 14, 14)),
    Setting("group_norm", (5, 12, 3, 9), groups=6),
    *several("instance_norm", (2, 3, 3000), (700, 2, 3)),
]
# Channels that come last: groups of one channel and of all; channels that packs divide or not, few,
# and beyond a tile; one example and many; pixels of several chunks, of one, and so few that a block
# holds a group.
KINDS += [
    Setting("group_norm", (2, 9, 7, 12), LAST, groups=4),
    Setting("group_norm", (3, 5, 64), LAST, groups=8),
    Setting("group_norm", (1, 40, 40, 6), LAST, groups=1),
    Setting("group_norm", (2, 6, 600), LAST, groups=2),
    Setting("group_norm", (2, 50, 10), LAST, groups=5),
    Setting("group_norm", (33, 2, 8), LAST, groups=8),
    Setting("group_norm", (2, 700, 16), LAST, groups=4),
    *several("instance_norm", (3, 9, 7, 12), (2, 1500, 3), (2, 70, 264), channel_axis=-1),
]


@on_backends("setting", [(s,) for s in SETTINGS + CHANNELS], [(s,) for s in KINDS])
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_values(setting, name, dtype, backend):
    arrays = Arrays(setting, dtype)
    assert_right(arrays, name, backend)


@on_backends("setting", [(setting,) for setting in FEW + CHANNELS])
@pytest.mark.parametrize("weights", ["", "w", "b"])
def test_parameters_are_optional(setting, weights, dtype, backend):
    arrays = Arrays(setting, dtype, weights=weights)
    assert_right(arrays, "silu", backend)


# And rows of whole vectors and not, planes of which only together are whole vectors.
WIDER = [Setting("layer_norm", (20, 64)), Setting("layer_norm", (3, 77))]
WIDER += [*FEW, *CHANNELS, Setting("group_norm", (2, 32, 7, 7), groups=2)]


@on_backends("setting", [(setting,) for setting in WIDER])
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_wider_parameters(setting, name, backend):
    pairs = ("float16", "float32"), ("bfloat16", "float64"), ("float32", "float64")
    for dtype, parameter in pairs:
        arrays = Arrays(setting, DTYPES[dtype], parameter=DTYPES[parameter])
        assert_right(arrays, name, backend)


@pytest.mark.parametrize("setting", BEHIND, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda op: op.name)
@pytest.mark.parametrize("place", [FRAMEWORKS[0], *KERNELS], ids=lambda place: place.name)
def test_every_activation(setting, activation, place):
    """The bits of the activation itself; its derivative meets a gradient of no bits of ours."""
    arrays = Arrays(setting, np.dtype(np.float32))
    (y, _), gradients = run(arrays, place, activation=activation)
    (z, saved), _ = run(arrays, place)
    y, z = (a[0] if setting.adds else a for a in (y, z))
    np.testing.assert_allclose(y, activation(z), 1e-6, 1e-6)
    if place.exact:
        assert_same_bits(y, activation(z))
    p = activation.backward(arrays.dy, *activation.forward(z)[1])
    for one, plain in zip(gradients, arrays.op.backward(p, *saved, **setting.options), strict=True):
        assert (one is None) == (plain is None)
        if plain is not None:
            np.testing.assert_allclose(one, plain, 2e-5, 2e-5)


def test_parameters_of_activations():
    arrays = Arrays(SETTINGS[1], np.dtype(np.float32))
    z = arrays.call(fa.layer_norm)
    y = arrays.call(fa.layer_norm, activation="elu", alpha=0.5)
    assert_same_bits(y, fa.elu(z, 0.5))


def test_group_norm_between_layer_and_instance_norm():
    """One group is layer_norm over all but the batch, a group a channel is instance_norm."""
    x = np.random.default_rng(0).normal(size=(3, 6, 5, 4))
    np.testing.assert_allclose(fa.group_norm(x, 1), fa.layer_norm(x, axis=(1, 2, 3)), 1e-13)
    np.testing.assert_allclose(fa.group_norm(x, 6), fa.instance_norm(x), 1e-13)


# --- hard cases -----------------------------------------------------------------------------------


@on_backends("offset length", [(1e4, 100), (1e4, 3000), (1e6, 100)])
def test_far_from_zero(backend, offset, length):
    """100 values around 1e4: single-pass formulas give a mean of -87 here."""
    x = (np.random.default_rng(0).random((3, length)) + offset).astype(np.float32)
    y = judged.assert_right(fa.layer_norm, {"x": x}, place=backend)["y"]
    assert (abs(y.mean(1, dtype=np.float64)) < 1e-6).all()


@on_backends("kind", [("float32",), ("bfloat16",)])
def test_near_the_largest(kind, backend):
    rows = [Setting("layer_norm", (4, 300)), Setting("rms_norm", (4, 300))]
    channels = Setting("instance_norm", (3, 40, 70), LAST)
    for scale, settings in ((1e30, [*rows, channels]), (5e37, rows)):
        for setting in settings:
            arrays = Arrays(setting, DTYPES[kind])
            x = np.random.default_rng(0).normal(size=setting.shape).clip(-3, 3) * scale
            arrays.x = x.astype(DTYPES[kind])
            assert_right(arrays, "identity", backend)


@on_backends("op", [("layer_norm",), ("rms_norm",)])
@pytest.mark.parametrize("scale", [1e-37, 1e-25, 1e30])
def test_squares_that_float_does_not_hold(op, scale, backend):
    """Of bfloat16: one row of those that share a warp, and of those with a block each."""
    for length in (50, 3000):
        arrays = Arrays(Setting(op, (6, length), {"eps": 0.0}), DTYPES["bfloat16"])
        found = []
        for factor in (1, scale):
            arrays.x[2] = (arrays.x[2].astype(np.float64) * factor).astype(arrays.x.dtype)
            (y, saved), (dx, *_) = run(arrays, backend)
            statistics = saved[1 : -len(arrays.weights)]
            found.append([a[[0, 1, 3, 4, 5]] for a in (y, *statistics, dx)])
        assert_all_same_bits(*found)
        x = arrays.x.astype(np.float64)
        exact = reference.statistics(x, (1,), 0.0, arrays.setting.centred)
        np.testing.assert_allclose(statistics[-1].astype(np.float64), exact[1], 4 * 2.0**-24)


@on_backends("dtype", [(dtype,) for dtype in DTYPES.values()])
def test_nearly_constant_rows(dtype, backend):
    """The mean as a float misses the mean by a share of the deviation that shows."""
    arrays = Arrays(Setting("layer_norm", (2, 20000), {"eps": 1e-9}), dtype)
    arrays.x[...] = 128
    arrays.x[:, 3] = 129
    assert_right(arrays, "identity", backend)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4, 3e30])
@on_backends("setting", [(s,) for s in FEW + CHANNELS if s.centred and not s.adds])
def test_constant_rows_give_the_bias(setting, value, dtype, backend):
    arrays = Arrays(setting, dtype)
    arrays.x[...] = min(value, 6e4) if dtype == np.float16 else value
    (y, _), _ = run(arrays, backend)
    expected = np.broadcast_to(setting.along(arrays.bias), setting.split_shape)
    np.testing.assert_array_equal(setting.split(y), expected)


def test_no_number_stays_in_its_row(backend):
    x = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    clean = backend.run(fa.layer_norm, x)
    x[1, 3], x[4, 7] = np.nan, np.inf
    y = backend.run(fa.layer_norm, x)
    assert np.isnan(y[[1, 4]]).all()
    assert_same_bits(y[[0, 2, 3, 5]], clean[[0, 2, 3, 5]])
