"""group_norm and instance_norm where the channels come last, which walk pixels instead of rows."""

from itertools import product

import judged
import numpy as np
import pytest
import torch
from conftest import DTYPES, assert_same_bits, on_backends
from normed import CHANNELS, LAST, Arrays, assert_right

import fastact as fa


@on_backends("setting", [(setting,) for setting in CHANNELS])
@pytest.mark.parametrize("offset", [1e4, -1e6])
def test_far_from_zero(setting, offset, backend):
    """Where the mean's low part counts, and where merging channels could cancel."""
    arrays = Arrays(setting, np.dtype(np.float32))
    arrays.x = (arrays.x + np.float32(offset)).astype(np.float32)
    assert_right(arrays, "identity", backend)


def test_no_number_stays_in_its_group():
    x = np.random.default_rng(0).normal(size=(3, 9, 12)).astype(np.float32)
    clean = fa.group_norm(x, 4, **LAST)
    x[1, 3, 4] = np.nan
    y = fa.group_norm(x, 4, **LAST)
    assert np.isnan(y[1, :, 3:6]).all()
    y[1, :, 3:6] = clean[1, :, 3:6]
    assert_same_bits(y, clean)


# (2, 8, 8, 64): whole vectors, eight pixels at a time, read and written where they lie; more
# channels than a piece of a row has, and a last pixel by itself; joined pixels.
MANY_PIXELS = [(2, 8, 8, 64), (2, 5, 5, 192), (2, 12, 12, 16)]


def test_16_bits_and_wider_parameters(backend):
    """Of each norm of channels, in both 16-bit types, which have kernels of their own.

    All in one test: a plain run tries a few of a product only.
    """
    rng = np.random.default_rng(5)
    batch = {"running_mean": None, "running_var": None, "training": True}
    norms = [(fa.batch_norm, batch), (fa.group_norm, {"num_groups": 4}), (fa.instance_norm, {})]
    for shape, name, activation, (op, more) in product(
        MANY_PIXELS, ("float16", "bfloat16", "float32"), ("identity", "leaky_relu"), norms
    ):
        weight, bias = (1 + 0.5 * rng.normal(size=(2, shape[-1]))).astype(np.float32)
        x, dy = (rng.normal(size=shape).astype(DTYPES[name]) for _ in range(2))
        named = {"x": x, **more, "weight": weight, "bias": bias, "activation": activation, **LAST}
        found = judged.assert_right(op, named, [dy], backend)
        assert {"y", "rstd", "dx", "dweight", "dbias"} <= found.keys()


# --- layouts and outputs --------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [s for s in CHANNELS if len(s.shape) == 4], ids=str)
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
