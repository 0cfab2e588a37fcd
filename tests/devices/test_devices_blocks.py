"""How calls of many short channels, or of many examples, are laid out on a device: short channels
share blocks, and long sums are cut into several."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from arrays import finite
from conftest import assert_all_same_bits
from devices import DTYPES, emulated, needs_emulation, to_emulated

import fastact as fa

pytestmark = needs_emulation

CHANNELS = 2500
THREADS = 256  # of a block


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return finite(np.float32, shape, seed)


def on_device(call: Callable[..., Any], *arrays: np.ndarray) -> list[np.ndarray]:
    """What a call gives for these arrays on the emulated device; launches are counted anew."""
    given = map(to_emulated(emulated.ExchangeArray), arrays)
    emulated.clear_launches()
    made = call(*given)
    return [np.frombuffer(a.tobytes(), DTYPES[a.dtype]).reshape(a.shape) for a in made]


def blocks(parameter: str) -> int:
    """Of the one launch since then of a kernel with a parameter of this type."""
    (one,) = [one for one in emulated.launches() if parameter in one["kernel"]]
    return int(one["grid"][0])


def assert_close(found: list[np.ndarray], expected: Any) -> None:
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-5 * np.abs(two).max())


def bias_act(dy: Any, x: Any, of_channels: Any) -> Any:
    return fa.bias_act.backward(dy, x, of_channels, None, "silu", axis=1)


def batch_norm(dy: Any, x: Any, of_channels: Any) -> Any:
    options = {"training": True, "channel_axis": 1}
    return fa.batch_norm.backward(dy, x, *4 * (of_channels,), **options)


# A lane has up to 16 elements.
@pytest.mark.parametrize(("length", "lanes"), [(2, 1), (16, 1), (40, 4), (300, 32)])
def test_short_channels_of_batch_norm_share_blocks(length, lanes):
    """Of one launch, which has all elements of a channel at once."""
    channels = CHANNELS // length
    arrays = f32(1, channels, length), f32(1, channels, length, seed=1), f32(channels, seed=2)
    found = on_device(batch_norm, *arrays)
    assert blocks("BackwardCall") == -(-channels * lanes // THREADS)
    assert_close(found, batch_norm(*arrays))


def repeated(length: int) -> tuple[np.ndarray, ...]:
    """Channels of so many elements; in dy the first of them stand for all."""
    shape = (1, CHANNELS // length, length)
    dy = np.broadcast_to(f32(*shape)[..., :1], shape)
    return dy, f32(*shape, seed=1), f32(shape[1], seed=2)


@pytest.mark.parametrize(("length", "beside"), [(2, 32), (9, 16), (300, 1)])
def test_short_channels_of_any_strides_share_blocks(length, beside):
    """Of vectors of four channels, of which some lie beside each other in a block."""
    arrays = repeated(length)
    found = on_device(bias_act, *arrays)
    assert blocks("ChannelSums") == -(-len(arrays[2]) // (4 * beside))
    assert_close(found, bias_act(*arrays))


@pytest.mark.parametrize(("length", "lanes"), [(2, 1), (40, 4), (300, 32)])
def test_short_channels_of_batch_norm_of_any_strides_share_blocks(length, lanes):
    arrays = repeated(length)
    found = on_device(batch_norm, *arrays)
    grids = {int(one["grid"][0]) for one in emulated.launches() if "AnyStrips" in one["kernel"]}
    assert grids == {-(-len(arrays[2]) * lanes // THREADS)}
    assert_close(found, batch_norm(*arrays))


def test_short_channels_of_gated_activations_share_blocks():
    """Of vectors of four channels, of which 32 lie beside each other in a block."""

    def call(dy: Any, a: Any, b: Any, bias: Any) -> Any:
        return fa.gated.backward(dy, a, b, bias, "silu", axis=0)

    arrays = (*(f32(CHANNELS, 3, seed=k) for k in range(3)), f32(2 * CHANNELS, seed=3))
    found = on_device(call, *arrays)
    assert blocks("ChannelSums") == -(-CHANNELS // (4 * 32))
    assert_close(found, call(*arrays))


@pytest.mark.parametrize("examples", [1, 3, 70, 300])
def test_short_rows_with_weights_share_blocks(examples):
    """Rows of one vector, two lanes each: a block has as many at once as that leaves room for."""
    groups = min(CHANNELS, 30_000 // examples)

    def call(dy: Any, *saved: Any) -> Any:
        return fa.group_norm.backward(dy, *saved, activation="silu")

    x, weight = f32(examples, 3 * groups, 1), f32(3 * groups, seed=1)
    _, saved = fa.group_norm.forward(x, groups, weight, weight)
    arrays = f32(*x.shape, seed=2), *saved
    found = on_device(call, *arrays)
    assert blocks("NormSums") == -(-examples * groups // (THREADS // 2))
    assert_close(found, call(*arrays))


@pytest.mark.parametrize(("examples", "threads"), [(3, 32), (1000, 32), (1025, THREADS)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_many_examples_are_added_by_many_threads(examples, threads, dtype):
    """dweight and dbias of norms, channels last, with the same bits however blocks run."""
    x, dy = (finite(DTYPES[dtype], (examples, 3, 40), seed) for seed in (0, 1))
    weight = finite(DTYPES[dtype], (40,), 2)
    _, saved = fa.group_norm.forward(x, 5, weight, weight, channel_axis=-1)

    def call(*arrays: Any) -> Any:
        return fa.group_norm.backward(*arrays, channel_axis=-1)

    found = on_device(call, dy, *saved)
    assert blocks("FinishChannels") == 40 * threads // THREADS
    assert_close(found, call(dy, *saved))
    try:
        emulated.set_thread_order("shuffle", examples)
        assert_all_same_bits(on_device(call, dy, *saved), found)
    finally:
        emulated.set_thread_order("alternate")
