"""group_norm and instance_norm on devices where the channels come last in memory."""

from typing import Any

import numpy as np
import pytest
from devices import DTYPES, KERNELS
from normed import Arrays, Setting, assert_right

import fastact as fa

pytestmark = pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)

LAST = {"channel_axis": -1}
# Groups of one channel and of all; channels that packs divide or not, few, and beyond a tile; one
# example and many; pixels of several chunks, of one, and so few that a block holds a group.
SETTINGS = [
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
settings = pytest.mark.parametrize("setting", SETTINGS, ids=str)
names = pytest.mark.parametrize("name", ["identity", "mish"])


def moved(a: np.ndarray) -> np.ndarray:
    """The same values, an element beyond where memory is aligned."""
    held = np.zeros(a.size + 1, a.dtype)[1:].reshape(a.shape)
    held[...] = a
    return held


def gaps(a: np.ndarray) -> np.ndarray:
    held = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2]
    held[...] = a
    return held


def padded(a: np.ndarray) -> np.ndarray:
    """Rows of pixels with room behind each."""
    held = np.zeros((a.shape[0], a.shape[1] + 1, *a.shape[2:]), a.dtype)[:, :-1]
    held[...] = a
    return held


def backwards(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1]


LAYOUTS = {"moved": moved, "gaps": gaps, "padded": padded, "backwards": backwards}


def run(device: Any, arrays: Arrays, **named: Any) -> tuple[Any, Any]:
    """(y, saved) and the gradients, as NumPy's."""
    arrays.on_gpu = True
    given = [None if a is None else device.of(a) for a in (arrays.weight, arrays.bias)]
    options = {**arrays.setting.options, **named}
    positional = arrays.setting.positional
    y, saved = arrays.op.forward(
        device.of(arrays.x),
        *positional,
        **options,
        **dict(zip(("weight", "bias"), given, strict=True)),
    )
    back = arrays.op.backward(device.of(arrays.dy), *saved, **options)
    of = lambda a: None if a is None else device.numpy(a)  # noqa: E731
    return (of(y), tuple(map(of, saved))), tuple(map(of, back))


@settings
@names
def test_right(device, dtype, setting, name):
    arrays = Arrays(setting, dtype)
    assert_right(arrays, name, *run(device, arrays, activation=name))


def test_so_many_chunks_that_they_are_merged_apart(device):
    """64 channels of 133 chunks each are more than a block merges for itself."""
    arrays = Arrays(Setting("group_norm", (1, 17_000, 64), LAST, groups=1), np.float32)
    assert_right(arrays, "identity", *run(device, arrays))


@pytest.mark.thorough  # 5 s; test_devices_blocks.py has so many examples of group_norm
def test_so_many_examples_that_a_block_adds_up_their_gradients(device):
    """More than a warp does: 1024."""
    arrays = Arrays(Setting("instance_norm", (1100, 2, 4), LAST), np.float32)
    assert_right(arrays, "identity", *run(device, arrays))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("setting", [SETTINGS[0], SETTINGS[2], SETTINGS[7]], ids=str)
@names
def test_layouts(device, dtype, setting, name, layout):
    arrays = Arrays(setting, dtype)
    arrays.x = LAYOUTS[layout](arrays.x)
    assert_right(arrays, name, *run(device, arrays, activation=name))
    arrays.x, arrays.dy = np.ascontiguousarray(arrays.x), LAYOUTS[layout](arrays.dy)
    assert_right(arrays, name, *run(device, arrays, activation=name))


def test_torchs_channels_last(device, dtype):
    """The channels are axis 1, but lie innermost."""
    for setting in (
        Setting("group_norm", (3, 8, 5, 6), groups=2),
        Setting("instance_norm", (3, 5, 5, 6)),
    ):
        arrays = Arrays(setting, dtype)
        arrays.x, arrays.dy = (
            np.ascontiguousarray(np.moveaxis(a, 1, -1)).transpose(0, 3, 1, 2)
            for a in (arrays.x, arrays.dy)
        )
        assert_right(arrays, "mish", *run(device, arrays, activation="mish"))


@pytest.mark.parametrize("weights", ["", "w", "b"])
def test_without_weight_or_bias(device, weights):
    for setting in (SETTINGS[0], SETTINGS[7]):
        arrays = Arrays(setting, np.float32, weights=weights)
        assert_right(arrays, "mish", *run(device, arrays, activation="mish"))


def test_wider_parameters(device):
    for name in ("float16", "bfloat16", "float32"):
        arrays = Arrays(SETTINGS[0], DTYPES[name], parameter=np.float64)
        assert_right(arrays, "identity", *run(device, arrays))


def test_far_from_zero(device):
    rng = np.random.default_rng(0)
    x = rng.normal(1e4, 1, (2, 500, 6)).astype(np.float32)
    y = device.numpy(fa.group_norm(device.of(x), 2, channel_axis=-1, eps=0.0))
    split = x.astype(float).reshape(2, 500, 2, 3)
    exact = split - split.mean((1, 3), keepdims=True)
    exact /= np.sqrt((exact**2).mean((1, 3), keepdims=True))
    np.testing.assert_allclose(y, exact.reshape(x.shape), atol=2e-6)
