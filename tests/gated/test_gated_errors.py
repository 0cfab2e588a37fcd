"""Gated activations: what is refused, and in which words."""

import numpy as np
import pytest

import fastact as fa

X = np.ones((4, 6), np.float32)
A, B = X.copy(), X.copy()
BIAS = np.ones(12, np.float32)

ERRORS = {
    "odd": (lambda: fa.glu(X[:, :5]), ValueError, "glu: x must have an even length along"),
    "no axis": (lambda: fa.glu(np.float32(1)), ValueError, "glu: x must have an axis, got"),
    "alpha": (lambda: fa.swiglu(A, B, alpha=-1.0), ValueError, "swiglu: alpha must be above zero"),
    "bias's shape": (
        lambda: fa.swiglu(A, B, bias=BIAS[:6]),
        ValueError,
        r"bias must have shape \(12,\)",
    ),
    "out is x": (
        lambda: fa.glu(X, out=X[:, :3]),
        ValueError,
        "out must not share memory with x",
    ),
    "dx is dy": (
        lambda: fa.glu.backward(X[:, :3], X * 1, out=X),
        ValueError,
        "must not share .* with dy",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_refused(name):
    call, kind, words = ERRORS[name]
    before = [a.copy() for a in (X, A, B, BIAS)]
    with pytest.raises(kind, match=words) as caught:
        call()
    assert str(caught.value).startswith("fastact.")
    for array, same in zip((X, A, B, BIAS), before, strict=True):
        np.testing.assert_array_equal(array, same)
