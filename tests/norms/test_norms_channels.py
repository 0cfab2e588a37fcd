"""group_norm and instance_norm where the channels come last, which walk pixels instead of rows."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import DTYPES, assert_same_bits, on_backends
from normed import (
    Arrays,
    Setting,
    assert_all_same_bits,
    assert_right,
    layouts,
    run,
    run_at,
)

import fastact as fa
from fastact.check.expected import expected

LAST = {"channel_axis": -1}

# Groups of one, three, eight and all channels; channels by which pixels are joined (fewer than 64)
# and are not, of no vector's multiple, of more than one piece (128) and of more than one tile
# (512); one example and more than there are rows of sums (64); fewer pixels than a call takes (8),
# more than moments are taken of at once (256 rows, of 16 pixels each where there are 6 channels),
# and along any number of axes.
SETTINGS = [
    Setting("group_norm", (3, 5, 7, 12), LAST, groups=12),
    Setting("group_norm", (3, 5, 7, 12), LAST, groups=4),
    Setting("group_norm", (2, 9, 7, 24), LAST, groups=3),
    Setting("group_norm", (2, 11, 13, 21), LAST, groups=7),
    Setting("group_norm", (2, 11, 13, 21), LAST, groups=1),
    Setting("group_norm", (2, 70, 70, 6), LAST, groups=2),
    Setting("group_norm", (1, 21, 17, 130), LAST, groups=13),
    Setting("group_norm", (3, 4, 5, 200), LAST, groups=25),
    Setting("group_norm", (2, 3, 3, 1100), LAST, groups=1),
    Setting("group_norm", (2, 3, 3, 1100), LAST, groups=2),
    Setting("group_norm", (2, 3, 3, 1100), LAST, groups=1100),
    Setting("group_norm", (130, 2, 3, 6), LAST, groups=2),
    Setting("instance_norm", (3, 9, 7, 12), LAST),
    Setting("instance_norm", (2, 50, 3), LAST),
    Setting("instance_norm", (3, 2, 5, 4, 70), LAST),
    Setting("instance_norm", (1, 1, 9, 65), LAST),
    Setting("instance_norm", (2, 5, 7, 513), LAST),
    Setting("instance_norm", (70, 4, 9), LAST),
]
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)
NAMES = ("identity", "mish")


# Groups of one channel and of all; channels that packs divide or not, few, and beyond a tile; one
# example and many; pixels of several chunks, of one, and so few that a block holds a group.
ON_DEVICES = [
    Setting("group_norm", (2, 9, 7, 12), LAST, groups=4),
    Setting("group_norm", (3, 5, 64), LAST, groups=8),
    Setting("group_norm", (1, 40, 40, 6), LAST, groups=1),
    Setting("group_norm", (2, 6, 600), LAST, groups=2),
    Setting("group_norm", (2, 50, 10), LAST, groups=5),
    Setting("group_norm", (33, 2, 8), LAST, groups=8),
    Setting("group_norm", (2, 700, 16), LAST, groups=4),
    Setting("instance_norm", (3, 9, 7, 12), LAST),
    Setting("instance_norm", (2, 1500, 3), LAST),
    Setting("instance_norm", (2, 70, 264), LAST),
]
each_place = on_backends("setting", [(s,) for s in SETTINGS], [(s,) for s in ON_DEVICES])


@each_place
@pytest.mark.parametrize("name", NAMES)
def test_values(setting, name, dtype, backend):
    arrays = Arrays(setting, dtype)
    assert_right(arrays, name, *run_at(backend, arrays, activation=name))


@each_place
@pytest.mark.parametrize("weights", ["", "w", "b"])
def test_parameters_are_optional(setting, weights, backend):
    arrays = Arrays(setting, np.dtype(np.float32), weights=weights)
    assert_right(arrays, "silu", *run_at(backend, arrays, activation="silu"))


@each_place
@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_wider_parameters(setting, name, backend):
    arrays = Arrays(setting, DTYPES[name], parameter=np.float64)
    assert_right(arrays, "mish", *run_at(backend, arrays, activation="mish"))


@each_place
@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_far_from_zero(setting, offset, backend):
    """Where the mean's low part counts, and where merging channels could cancel."""
    arrays = Arrays(setting, np.dtype(np.float32))
    arrays.x = (arrays.x + np.float32(offset)).astype(np.float32)
    (y, _), _ = run_at(backend, arrays)
    assert expected(arrays.case("identity"))["y"].error(y) <= 1


@each_setting
@pytest.mark.parametrize("value", [0.1, 3e30])
def test_constant_channels_give_the_bias(setting, value):
    arrays = Arrays(setting, np.dtype(np.float32))
    arrays.x[...] = value
    y = arrays.call(arrays.op)
    np.testing.assert_array_equal(y, np.broadcast_to(arrays.bias, y.shape))


def test_near_the_largest(isa):
    """No product of factors that are out of range each by itself."""
    x = (np.random.default_rng(0).normal(size=(3, 40, 70)) * 1e30).astype(np.float32)
    y, saved = fa.instance_norm.forward(x, channel_axis=-1)
    wide = x.astype(float)
    exact = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True)
    np.testing.assert_allclose(y, exact, 1e-6, 1e-6)
    dx = fa.instance_norm.backward(np.ascontiguousarray(x[::-1]), *saved, channel_axis=-1)[0]
    assert np.isfinite(dx).all()
    assert abs(dx).max() > 0.1


def test_no_number_stays_in_its_group():
    x = np.random.default_rng(0).normal(size=(3, 9, 12)).astype(np.float32)
    clean = fa.group_norm(x, 4, **LAST)
    x[1, 3, 4] = np.nan
    y = fa.group_norm(x, 4, **LAST)
    assert np.isnan(y[1, :, 3:6]).all()
    y[1, :, 3:6] = clean[1, :, 3:6]
    assert_same_bits(y, clean)


def gradients_in_float64(
    x: np.ndarray, dy: np.ndarray, weight: np.ndarray, bias: np.ndarray, groups: int, slope: float
) -> list[np.ndarray]:
    """dx, dweight and dbias of leaky_relu(norm(x)); groups: of each example, or 0: of the batch."""
    examples, channels = len(x), x.shape[-1]
    split = (examples, -1, groups or channels, channels // (groups or channels))
    axes = (1, 3) if groups else (0, 1)
    wide, g = (a.astype(np.float64).reshape(split) for a in (x, dy))
    w, b = (a.astype(np.float64).reshape(split[2:]) for a in (weight, bias))
    rstd = 1 / np.sqrt(wide.var(axes, keepdims=True) + 1e-5)
    xhat = (wide - wide.mean(axes, keepdims=True)) * rstd
    p = np.where(w * xhat + b > 0, g, slope * g)
    mean_g, mean_gx = ((w * a).mean(axes, keepdims=True) for a in (p, p * xhat))
    dx = rstd * (w * p - mean_g - xhat * mean_gx)
    return [dx.reshape(x.shape), (p * xhat).sum((0, 1)).ravel(), p.sum((0, 1)).ravel()]


# (2, 8, 8, 64): whole vectors, eight pixels at a time, read and written where they lie; more
# channels than a piece of a row has, and a last pixel by itself; joined pixels.
MANY_PIXELS = [(2, 8, 8, 64), (2, 5, 5, 192), (2, 12, 12, 16)]


def test_gradients_of_16_bits(backend):
    """Of each norm of channels, in both 16-bit types: within their rounding of the true gradient.

    All in one test, for each is a kernel of its own: a plain run tries a few of a product only.
    """
    rng = np.random.default_rng(5)
    for shape, name, slope in product(MANY_PIXELS, ("float16", "bfloat16", "float32"), (1.0, 0.25)):
        channels = shape[-1]
        weight, bias = (1 + 0.5 * rng.normal(size=(2, channels))).astype(np.float32)
        x, dy = (rng.normal(size=shape).astype(DTYPES[name]) for _ in range(2))
        act = {"activation": "leaky_relu", "negative_slope": slope} if slope < 1 else {}
        given = {n: backend.of(a) for n, a in (("weight", weight), ("bias", bias))}
        there, gradient = backend.of(x), backend.of(dy)
        for op, positional, groups in (
            (fa.group_norm, (4,), 4),
            (fa.instance_norm, (), channels),
            (fa.batch_norm, (), 0),
        ):
            if groups:
                _, saved = op.forward(there, *positional, **given, **LAST, **act)
                found = op.backward(gradient, *saved, **LAST, **act)
            else:
                _, saved = op.forward(
                    there, None, None, given["weight"], given["bias"], True, **LAST, **act
                )
                found = op.backward(gradient, *saved, True, **LAST, **act)
            exact = gradients_in_float64(x, dy, weight, bias, groups, slope)
            # dx is rounded once, to half an epsilon; sums are of float32, of terms of about 1.
            epsilon = float(ml_dtypes.finfo(DTYPES[name]).eps)
            for a, b, relative, absolute in zip(
                map(backend.numpy, found), exact, (epsilon, 1e-5, 1e-5), (1e-5, 1e-3, 1e-3),
                strict=True,
            ):  # fmt: skip
                np.testing.assert_allclose(a.astype(np.float64), b, relative, absolute)


# --- layouts and outputs --------------------------------------------------------------------------


def views(a: np.ndarray) -> list[np.ndarray]:
    """The same values with channels inside the pixels still, but otherwise laid out."""
    steps = np.zeros((*a.shape[:-2], 2 * a.shape[-2], a.shape[-1] + 3), a.dtype)[..., ::2, 1:-2]
    turned = np.ascontiguousarray(a[:, ::-1])[:, ::-1]
    inner = np.ascontiguousarray(np.moveaxis(a, 0, -2))  # examples between pixels and channels
    apart = np.zeros((2 * a.shape[0], *a.shape[1:]), a.dtype)[::-2]
    steps[...] = apart[...] = a
    return [steps, turned, np.moveaxis(inner, -2, 0), apart, *layouts(a)]


@each_setting
@pytest.mark.parametrize("name", NAMES)
def test_any_layout(setting, name):
    """x, dy and outputs may lie anyhow, each in its own way."""
    arrays = Arrays(setting, np.dtype(np.float32))
    plain_x, plain_dy = arrays.x, arrays.dy
    for k, x in enumerate(views(plain_x)):
        arrays.x, arrays.dy = x, views(plain_dy)[k - 3]
        got, gradients = run(arrays, activation=name)
        assert_right(arrays, name, got, gradients)
        y, dx = views(np.zeros_like(plain_x))[k - 5], views(np.zeros_like(plain_x))[k - 6]
        _, saved = arrays.call(arrays.op.forward, activation=name, out=(y, None, None))
        outs = (dx, *(np.empty_like(g) for g in gradients[1:]))
        options = {**setting.options, "activation": name}
        arrays.op.backward(arrays.dy, *saved, out=outs, **options)
        assert_same_bits(y, got[0])
        assert_all_same_bits(list(outs), list(gradients))


@pytest.mark.parametrize("setting", [s for s in SETTINGS if len(s.shape) == 4], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_tensors_in_the_format_channels_last(setting, kind):
    """NCHW by their axes, NHWC in memory: the bits of NHWC, and outputs in the same format."""
    arrays = Arrays(setting, np.dtype(np.float32))
    op, positional = arrays.op, setting.positional
    x, dy, w, b = (
        torch.from_numpy(a).to(kind) for a in (arrays.x, arrays.dy, arrays.weight, arrays.bias)
    )
    y, saved = op.forward(x, *positional, w, b, activation="mish", **LAST)
    gradients = op.backward(dy, *saved, activation="mish", **LAST)
    turned_x, turned_dy = (t.permute(0, 3, 1, 2) for t in (x, dy))
    assert turned_x.is_contiguous(memory_format=torch.channels_last)
    turned_y, saved = op.forward(turned_x, *positional, w, b, activation="mish")
    turned = op.backward(turned_dy, *saved, activation="mish")
    for made in (turned_y, turned[0]):
        assert made.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(turned_y.permute(0, 2, 3, 1), y)
    assert torch.equal(turned[0].permute(0, 2, 3, 1), gradients[0])
    assert torch.equal(turned[1], gradients[1])
    assert torch.equal(turned[2], gradients[2])
