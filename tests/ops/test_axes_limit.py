"""Arrays of 64 axes, the most that there are: computed where they can be, and one more refused."""

import re

import numpy as np
import pytest
from conftest import assert_same_bits
from devices import KERNELS

import fastact as fa
from fastact import _cpu
from fastact._cpu import View

MOST = 64
ONES = (1,) * MOST


def test_a_shape_that_is_too_long():
    for op in (fa.sum, fa.bias_grad, fa.unbroadcast):
        words = f"fastact.{op.name}.backward: shape must have at most 64 axes, got "
        for count in (65, 100, 1000):
            with pytest.raises(ValueError, match=re.escape(words + str(count))):
                op.backward(1.0, (1,) * count)
            with pytest.raises(ValueError, match=re.escape(words + str(count))):
                op.backward(np.ones(1), (1,) * count)
    with pytest.raises(ValueError, match=r"fastact.unbroadcast: shape must have at most 64 axes"):
        fa.unbroadcast(np.ones((2, 3)), (1,) * 65)


def test_a_shape_that_is_too_large():
    for shape in ((2**32, 2**32), (2**62,), (2**40, 0, 2**40)):
        with pytest.raises(ValueError, match=r"sum.backward: shape must be of less than 2\*\*58"):
            fa.sum.backward(1.0, shape)


def test_groups_are_an_axis_more():
    x = np.ones((1, 4) + (1,) * 62, np.float32)
    with pytest.raises(ValueError, match=r"group_norm: x must have at most 63 axes, got 64"):
        fa.group_norm(x, 2)
    with pytest.raises(ValueError, match=r"group_norm.backward: x must have at most 63 axes"):
        fa.group_norm.backward(x, x, np.ones((1, 2), np.float32), np.ones((1, 2), np.float32))
    y = fa.group_norm(x[..., 0], 2)
    assert_same_bits(y.reshape(1, 4, 1), fa.group_norm(x.reshape(1, 4, 1), 2))


def wide(*lengths: tuple[int, int]) -> tuple[int, ...]:
    """64 axes, of length 1 but for some."""
    shape = list(ONES)
    for axis, length in lengths:
        shape[axis] = length
    return tuple(shape)


SHAPES = [ONES, wide((0, 2), (31, 3), (63, 5)), wide(*((axis, 2) for axis in range(0, 64, 6)))]
few = pytest.mark.parametrize("shape", SHAPES, ids=["ones", "three", "eleven"])


@pytest.fixture(params=["numpy", *KERNELS], ids=lambda k: getattr(k, "name", k))
def there(request):
    """From NumPy to where kernels run and back again."""
    if request.param == "numpy":
        return lambda x: x, lambda y: y
    return request.param.of, request.param.numpy


def values(shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@few
@pytest.mark.parametrize("layout", ["C", "F", "reversed"])
def test_every_family(there, shape, layout):
    """With the results of the same arrays without their axes of length 1, as near as that is."""
    to, back = there
    x, dy = values(shape), values(shape, 1)
    if layout == "F":
        x = np.asfortranarray(x)
    elif layout == "reversed":
        x = x[(slice(None, None, -1),) * MOST]
    channel = int(np.argmax(shape))
    keep = tuple(n for n in shape if n > 1) or (1,)
    small, at = x.reshape(keep), sum(n > 1 for n in shape[:channel])
    one = values((shape[channel],), 2)
    kept = tuple(1 if axis != channel else n for axis, n in enumerate(shape))

    def same(y, expected):
        got = np.asarray(back(y))
        np.testing.assert_allclose(got.reshape(expected.shape), expected, 2e-5, 2e-5)

    same(fa.mish(to(x)), fa.mish(small))
    same(fa.mish.backward(to(dy), to(x)), fa.mish.backward(dy.reshape(keep), small))
    same(fa.sum(to(x)), fa.sum(small))
    same(fa.sum(to(x), channel), fa.sum(small, at))
    same(fa.sum(to(x), channel, keepdims=True), fa.sum(small, at))
    same(fa.bias_grad(to(x), axis=channel), fa.bias_grad(small, axis=at))
    same(fa.unbroadcast(to(x), kept), fa.bias_grad(small, axis=at))
    moments, expected = fa.moments(to(x), channel), fa.moments(small, at)
    same(moments.mean, expected.mean)
    same(moments.m2, expected.m2)
    same(
        fa.bias_act(to(x), to(one), "mish", axis=channel),
        fa.bias_act(small, one, "mish", axis=at),
    )
    dx, dbias = fa.bias_act.backward(to(dy), to(x), to(one), None, "mish", axis=channel)
    wanted = fa.bias_act.backward(dy.reshape(keep), small, one, None, "mish", axis=at)
    same(dx, wanted[0])
    same(dbias, wanted[1])
    y, saved = fa.layer_norm.forward(to(x), to(one), to(one), axis=channel)
    wanted, state = fa.layer_norm.forward(small, one, one, axis=at)
    same(y, wanted)
    for got, expected in zip(
        fa.layer_norm.backward(to(dy), *saved, axis=channel),
        fa.layer_norm.backward(dy.reshape(keep), *state, axis=at),
        strict=True,
    ):
        np.testing.assert_allclose(
            np.asarray(back(got)).reshape(expected.shape), expected, 1e-3, 1e-3
        )
    same(fa.rms_norm(to(x), axis=channel), fa.rms_norm(small, axis=at))
    if max(shape) > 1:
        y, saved = fa.batch_norm.forward(
            to(x), None, None, to(one), training=True, channel_axis=channel
        )
        wanted, state = fa.batch_norm.forward(
            small, None, None, one, training=True, channel_axis=at
        )
        same(y, wanted)
        fa.batch_norm.backward(to(dy), *saved, training=True, channel_axis=channel)
    fa.instance_norm(to(x), channel_axis=channel)


@few
def test_gates(there, shape):
    to, back = there
    packed = (*shape[:-1], 4 * shape[-1])
    gates, before = values(packed), values(shape, 1)
    (h, c), saved = fa.lstm_gates.forward(to(gates), to(before))
    keep = (-1, shape[-1])
    flat = fa.lstm_gates(gates.reshape(-1, packed[-1]), before.reshape(keep))
    np.testing.assert_allclose(np.asarray(back(h)).reshape(flat[0].shape), flat[0], 1e-5, 1e-6)
    fa.lstm_gates.backward(h, c, *saved)


def test_gradients_of_64_axes():
    for shape in SHAPES:
        assert fa.sum.backward(1.0, shape).shape == shape
        assert fa.unbroadcast.backward(np.ones(1), shape).shape == shape


def test_views_refuse_one_more():
    view = View.from_numpy(np.zeros(ONES, np.float32))
    small = View.from_numpy(np.zeros((2, 4), np.float32))
    words = "at most 64 axes, got"
    for call in (
        lambda: view.with_axes((0,)),
        lambda: small.with_axes(tuple(range(63))),
        lambda: view.split_axis(0, 1),
        lambda: view.shaped((1,) * 65),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda v: v.with_axes((2, 1)),
        lambda v: v.with_axes((0, 0)),
        lambda v: v.with_axes((5,)),
        lambda v: v.with_axes((-1,)),
        lambda v: v.split_axis(2, 1),
        lambda v: v.split_axis(-1, 1),
        lambda v: v.split_axis(1, 3),
        lambda v: v.split_axis(1, -2),
        lambda v: v.split_axis(1, 0),
        lambda v: v.shaped((-1,)),
        lambda v: v.shaped((2**32, 2**32)),
        lambda v: v.broadcast_to((2,)),
        lambda v: v.broadcast_to((3, 4)),
        lambda v: v.of_dtype(7),
        lambda v: v.of_dtype(-1),
        lambda v: View.bytes(-1, (1, 0)),
        lambda v: View.repeated(np.zeros((), np.float16), v),
        lambda v: View.from_numpy(np.zeros(1, np.uint8)).repeats(v),
    ],
)
def test_views_refuse_what_they_do_not_have(call):
    with pytest.raises(ValueError, match=r"\w"):
        call(View.from_numpy(np.zeros((2, 4), np.float32)))


def test_memory_of_a_size_that_is_not():
    with pytest.raises((MemoryError, ValueError)):
        _cpu.Memory(View.from_numpy(np.zeros(1)).shaped((2**50,)))
