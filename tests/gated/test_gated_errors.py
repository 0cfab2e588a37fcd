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
    "gate": (lambda: fa.glu(X, gate="left"), ValueError, "glu: gate must be 'first' or 'second'"),
    "interleaved": (lambda: fa.glu(X, interleaved=1), TypeError, "interleaved must be True or"),
    "activation": (lambda: fa.gated(A, B, "misch"), ValueError, "activation must be .*'mish'"),
    "parameter": (lambda: fa.gated(A, B, "mish", alpha=1.0), TypeError, "unknown keyword 'alpha'"),
    "axis": (lambda: fa.swiglu(A, B, axis=2), ValueError, "swiglu: axis must be from -2 to 1"),
    "b's shape": (lambda: fa.swiglu(A, B[:2]), ValueError, r"swiglu: b must have shape \(4, 6\)"),
    "b's dtype": (lambda: fa.swiglu(A, B.astype(float)), TypeError, "b must have dtype float32"),
    "limit": (lambda: fa.swiglu(A, B, limit=0.0), ValueError, "limit must be above zero or None"),
    "limit is text": (lambda: fa.swiglu(A, B, limit="7"), TypeError, "limit must be a real number"),
    "offset": (lambda: fa.swiglu(A, B, offset=np.inf), ValueError, "offset must be finite"),
    "alpha": (lambda: fa.swiglu(A, B, alpha=-1.0), ValueError, "swiglu: alpha must be above zero"),
    "bias's shape": (
        lambda: fa.swiglu(A, B, bias=BIAS[:6]),
        ValueError,
        r"bias must have shape \(12,\)",
    ),
    "bias is a number": (
        lambda: fa.reglu(A, B, bias=1.0),
        TypeError,
        "bias must be an array",
    ),
    "bias is narrow": (
        lambda: fa.reglu(A, B, bias=BIAS.astype(np.float16)),
        TypeError,
        "bias must have dtype",
    ),
    "out is x": (
        lambda: fa.glu(X, out=X[:, :3]),
        ValueError,
        "out must not share memory with x",
    ),
    "out is bias": (
        lambda: fa.reglu(A[0], B[0], bias=BIAS, out=BIAS[:6]),
        ValueError,
        "out must not share",
    ),
    "out overlaps": (
        lambda: fa.reglu(BIAS[:6], B[0], out=BIAS[1:7]),
        ValueError,
        "must be a itself or share no",
    ),
    "dy's shape": (
        lambda: fa.glu.backward(X, X),
        ValueError,
        r"dy must have shape \(4, 3\), got",
    ),
    "dx is dy": (
        lambda: fa.glu.backward(X[:, :3], X * 1, out=X),
        ValueError,
        "must not share .* with dy",
    ),
    "da is db": (
        lambda: fa.reglu.backward(1.0, A, B, out=(A, A)),
        ValueError,
        "must not share memory with",
    ),
    "dbias without bias": (
        lambda: fa.reglu.backward(1.0, A, B, out=(A, None, BIAS)),
        ValueError,
        r"out\[2\] must be",
    ),
    "no gradient": (
        lambda: fa.reglu.backward(1.0, A, B, out=(None, None)),
        ValueError,
        "must have an array",
    ),
    "accumulate without out": (
        lambda: fa.glu.backward(1.0, X, accumulate=True),
        ValueError,
        "accumulate=True must",
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
