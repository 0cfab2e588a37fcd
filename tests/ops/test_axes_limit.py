"""Arrays of 64 axes, the most that there are: computed where they can be, and one more refused."""

import copy
import re

import numpy as np
import pytest
from arrangements import plain, reversed_, transposed
from conftest import assert_same_bits
from every import PLACES, Call, results
from judged import refused

import fastact as fa
from fastact import _cpu
from fastact._cpu import View
from fastact.ops.engine.op import arrays_of

MOST = 64
ONES = (1,) * MOST


def test_a_shape_that_is_too_long():
    for op in (fa.sum, fa.bias_grad, fa.unbroadcast):
        words = f"fastact.{op.name}.backward: shape must have at most 64 axes, got "
        for count in (65, 100, 1000):
            refused(re.escape(words + str(count)), op.backward, 1.0, (1,) * count, error=ValueError)
            with pytest.raises(ValueError, match=re.escape(words + str(count))):
                op.backward(np.ones(1), (1,) * count)
    with pytest.raises(ValueError, match=r"fastact.unbroadcast: shape must have at most 64 axes"):
        fa.unbroadcast(np.ones((2, 3)), (1,) * 65)


def test_groups_are_an_axis_more():
    x = np.ones((1, 4) + (1,) * 62, np.float32)
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


def squeezed(a: np.ndarray) -> np.ndarray:
    return a.reshape([n for n in a.shape if n != 1] or [1])


@few
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@pytest.mark.parametrize("lay", [plain, transposed, reversed_], ids=lambda lay: lay.__name__)
def test_every_op(place, shape, lay):
    """Results are those of the same arrays without their axes of length 1, as near as that is."""
    channel, compared = int(np.argmax(shape)), 0
    at = sum(n > 1 for n in shape[:channel])
    for op in fa.ops.values():
        defaults = op.entry_points["call"].defaults
        axis = next((name for name in ("axis", "channel_axis") if name in defaults), None)
        try:
            way = ({axis: channel} if axis else {}) | ({"sink": None} if "sink" in defaults else {})
            call = Call(op, way, shape, np.float32)
        except (TypeError, ValueError):
            continue  # groups are an axis more, and gates share the last one
        if {"shape", "cos", "target"} & {*defaults, *op.saves, *op.entry_points["call"].arrays}:
            continue  # it has as many axes, or lies along the last ones
        if op.family == "gates" and shape[-1] == 1:
            continue
        named = {n: squeezed(v) if isinstance(v, np.ndarray) else v for n, v in call.named.items()}
        small = copy.copy(call)
        small.named = named | ({axis: at} if axis else {})
        small.result, small.saved = op.bound("forward", small.named)()
        shapes = map(np.shape, arrays_of(small.result))
        small.dys = [np.reshape(dy, of) for dy, of in zip(call.dys, shapes, strict=True)]
        for run, other in zip(call.both, small.both, strict=True):
            pairs = zip(results(place, run, lay), results(PLACES[0], other), strict=True)
            for got, right in pairs:
                if right is not None:
                    np.testing.assert_allclose(got.reshape(right.shape), right, 1e-3, 1e-3)
        compared += 1
    assert compared > 40


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
        refused(words, call, error=ValueError)


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
        lambda v: View.from_numpy(np.zeros(1, np.uint8)).repeats(v),
    ],
)
def test_views_refuse_what_they_do_not_have(call):
    refused(r"\w", call, View.from_numpy(np.zeros((2, 4), np.float32)), error=ValueError)


def test_memory_of_a_size_that_is_not():
    with pytest.raises((MemoryError, ValueError)):
        _cpu.Memory(View.from_numpy(np.zeros(1)).shaped((2**50,)))
