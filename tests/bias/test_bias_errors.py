"""The bias family and bad input: clear errors, nothing is written."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays import f32

import fastact as fa

held = f32(9, 4)
x4, b4 = held[:8], f32(4)
Case = tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]

ACT_ERRORS: dict[str, Case] = {
    "bias too long": (
        (x4, f32(8)), {}, ValueError,
        r"bias must have shape \(4,\), the length of axis -1 of x, got \(8,\)",
    ),
    "the other 16 bits": (
        (np.ones((2, 4), np.float16), np.ones(4, ml_dtypes.bfloat16)), {}, TypeError,
        "bias must have dtype float16, .*got bfloat16",
    ),
    "an op of another family": ((x4, b4, "sum"), {}, ValueError, "activation must be 'identity'"),
    "axis by position": ((x4, b4, "mish", 1), {}, TypeError, "axis must be given by keyword"),
    "overlaps the residual": (
        (f32(8, 4), b4), {"residual": x4, "out": held[1:]}, ValueError, "residual|not share",
    ),
    "overlaps the bias": (
        (f32(1, 4), b4), {"out": b4.reshape(1, 4)}, ValueError, "(bias|not share memory)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", ACT_ERRORS)
def test_errors(words):
    arguments, keywords, error, message = ACT_ERRORS[words]
    for entry, name in ((fa.bias_act, "bias_act"), (fa.bias_act.forward, r"bias_act\.forward")):
        with pytest.raises(error, match=rf"^fastact\.{name}: .*{message}"):
            entry(*arguments, **keywords)
    assert (held == 1).all()
    assert (b4 == 1).all()


BACKWARD_ERRORS: dict[str, Case] = {
    "x is gone": ((x4, None, b4, None, "mish"), {}, TypeError, "x must be an array, as forward"),
    "one out": ((x4, x4, b4), {"out": f32(8, 4)}, ValueError, "a tuple of 2, got one ndarray"),
    "dx in bias": (
        (f32(1, 4), f32(1, 4), b4), {"out": (b4.reshape(1, 4), None)}, ValueError,
        r"out\[0\] must",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", BACKWARD_ERRORS)
def test_backward_errors(words):
    arguments, keywords, error, message = BACKWARD_ERRORS[words]
    with pytest.raises(error, match=rf"^fastact\.bias_act\.backward: .*{message}"):
        fa.bias_act.backward(*arguments, **keywords)
    assert (held == 1).all()
    assert (b4 == 1).all()


SUM_ERRORS: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "scalar": (fa.bias_grad, (f32(),), {}, ValueError, "dy must have an axis, got"),
    "by position": (fa.bias_grad.backward, (b4, (3, 5)), {}, ValueError, r"shape \(5,\), got"),
    "in dy": (fa.bias_grad, (x4,), {"out": x4[0]}, ValueError, "out must not share memory"),
    "shape": (
        fa.unbroadcast, (x4, (3,)), {}, ValueError,
        r"shape must broadcast to \(8, 4\), the shape of dy, got \(3,\)",
    ),
    "longer": (fa.unbroadcast, (x4, (1, 8, 4)), {}, ValueError, r"\(8, 4\), .*got \(1, 8, 4\)"),
    "no shape": (fa.unbroadcast, (x4, 4), {}, TypeError, "shape must be a tuple of integers"),
    "back": (
        fa.unbroadcast.backward, (b4, (2, 3)), {}, ValueError,
        r"dy must have a shape that broadcasts to \(2, 3\), got \(4,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", SUM_ERRORS)
def test_errors_of_sums(words):
    entry, arguments, keywords, error, message = SUM_ERRORS[words]
    with pytest.raises(error, match=rf"^fastact\.\w+(\.\w+)?: .*{message}"):
        entry(*arguments, **keywords)
    with pytest.raises(TypeError, match="got 1; axis must be given by keyword"):
        fa.bias_grad(x4, 1)
