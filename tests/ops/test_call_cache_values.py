"""Recorded calls never answer for another one: what looks alike is told apart, or not recorded."""

from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same_bits

import fastact as fa

TIMES = 5  # until a call is recorded


def f32(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def recorded(call: Any) -> Any:
    for _ in range(TIMES):
        result = call()
    return result


def test_a_keyword_is_not_text():
    """`axis=0` is a keyword and a value; `"axis", 0` are two values, and no op takes either."""
    x = f32(2, 3)
    recorded(lambda: fa.sum(x, axis=0))
    for _ in range(TIMES):
        with pytest.raises(TypeError, match=r"^fastact\.sum: "):
            fa.sum(x, "axis", 0)
    recorded(lambda: fa.sum(x, 0, keepdims=True))
    for _ in range(TIMES):
        with pytest.raises(TypeError, match=r"^fastact\.sum: "):
            fa.sum(x, 0, "keepdims", True)
    bias = f32(3)
    recorded(lambda: fa.bias_act(x, bias, activation="relu"))
    for _ in range(TIMES):
        with pytest.raises(ValueError, match=r"^fastact\.bias_act: .* got 'activation'"):
            fa.bias_act(x, bias, "activation", "relu")


def test_a_keywords_name_and_its_value_do_not_change_places():
    x, bias = f32(2, 3), f32(3)
    recorded(lambda: fa.bias_act(x, bias, activation="identity", axis=-1))
    with pytest.raises(TypeError, match="unknown keyword 'identity'"):
        fa.bias_act(x, bias, identity="activation", axis=-1)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_a_number_that_is_returned_twice_is_one_object(dtype):
    x = np.array(1.0, pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    for _ in range(TIMES):
        y, saved = fa.softmax.forward(x, axis=())
        assert type(y) is x.dtype.type
        assert y == 1
        assert y is saved[0]


@pytest.mark.parametrize(
    ("first", "second"), [(0, False), (1, True), (False, 0), (True, 1), (1, 1.0), ((1,), (True,))]
)
def test_equal_numbers_of_other_kinds(first, second):
    """An axis is an integer and a switch a bool, whatever equals one."""
    x = f32(2, 3)
    for options in ("axis", "keepdims"):
        good = isinstance(first, bool) if options == "keepdims" else type(first) in (int, tuple)
        if good:
            recorded(lambda options=options: fa.sum(x, **{options: first}))
            for _ in range(TIMES):
                with pytest.raises(TypeError, match=rf"^fastact\.sum: {options} must be"):
                    fa.sum(x, **{options: second})


def test_minus_zero_and_zero():
    """As parameters of an activation behind another op: the sign of what they multiply."""
    x, bias = -np.ones((2, 3), np.float32), np.zeros(3, np.float32)
    for slope in (0.0, -0.0, 0.0, -0.0):
        y = recorded(lambda slope=slope: fa.bias_act(x, bias, "leaky_relu", negative_slope=slope))
        assert (np.signbit(y) == (not np.signbit(slope))).all()


def test_none_and_nothing():
    x, w = f32(2, 3) + 1, f32(3)
    with_bias = recorded(lambda: fa.layer_norm(x, w, w))
    without = recorded(lambda: fa.layer_norm(x, w, None))
    other = recorded(lambda: fa.layer_norm(x, None, w))
    assert (recorded(lambda: fa.layer_norm(x, w, w)) == with_bias).all()
    assert (recorded(lambda: fa.layer_norm(x, w)) == without).all()
    assert (recorded(lambda: fa.layer_norm(x, bias=w)) == other).all()
    assert not (without == other).all()


@pytest.mark.parametrize("kind", [np.array, np.float64, np.float32], ids=lambda k: k.__name__)
def test_a_number_that_is_an_array_is_read_at_each_call(kind):
    """0-d arrays and NumPy's numbers are values, whatever an earlier call of their kind had."""
    x = f32(2, 3)
    for eps in (1e-5, 10.0, 1e-5, 3.0):
        expected = fa.layer_norm(x, eps=float(kind(eps)))
        for _ in range(TIMES):
            assert (fa.layer_norm(x, eps=kind(eps)) == expected).all()


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_numbers_of_two_dtypes_with_the_same_bits(of):
    """A float32 and a float64, which is next to nothing."""
    x, one = of(f32(2, 3)), np.float32(1)
    least = np.array(one.view(np.uint32), np.uint64).view(np.float64)[()]
    for scale in (one, least, one):
        expected = fa.softmax(x, scale=float(scale))
        for _ in range(TIMES):
            assert (fa.softmax(x, scale=scale) == expected).all()


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_outputs_that_come_to_overlap(of):
    """A call was recorded with an output of that kind apart: reversed ones begin at their end."""
    held, bias = f32(10, 4), of(f32(4))
    x, free = of(held[:8]), np.zeros((8, 4), np.float32)
    for turn in (slice(None), slice(None, None, -1)):
        if of is not np.asarray and turn.step:
            continue  # torch has no negative strides
        recorded(lambda turn=turn: fa.bias_act(x, bias, out=of(free[turn])))
        for over in (held[2:], held[1:9]):
            before = held.copy()
            with pytest.raises(ValueError, match="partial overlap"):
                fa.bias_act(x, bias, out=of(over[turn]))
            np.testing.assert_array_equal(held, before)


def test_a_number_that_changes_in_place():
    x, eps = f32(2, 3), np.array(1e-5)
    for value in (1e-5, 10.0, 0.5):
        eps[()] = value
        expected = fa.layer_norm(x, eps=value)
        for _ in range(TIMES):
            assert (fa.layer_norm(x, eps=eps) == expected).all()


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int32, np.int64])
def test_integers_are_converted_at_each_call(dtype):
    """A plan would read their memory as if it held what they were converted to."""
    x = (np.arange(12).reshape(3, 4) % 5).astype(dtype)
    for op in (fa.mish, fa.softmax, fa.logsumexp, fa.layer_norm, fa.sum):
        computed = np.float64 if op is fa.sum else np.tanh(x[:1, :1]).dtype
        of_floats = np.asarray(op(x.astype(computed)))
        for _ in range(5):
            assert_same_bits(np.asarray(op(x)), of_floats)
