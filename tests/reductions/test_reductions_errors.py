"""Sums and bad input: clear errors, nothing is written."""

from typing import Any

import numpy as np
import pytest
import torch
from arrays import f32, read_only
from sums import SUMS

import fastact as fa


@pytest.fixture(params=SUMS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Any:
    return request.param


square = f32(4, 4)

# arguments, keywords, error, words of the message
ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "complex": ((np.ones(3, complex),), {}, TypeError, "x must have dtype .* got complex128"),
    "axis too large": (
        (f32(2, 3), 2), {}, ValueError, "axis must be from -2 to 1 for an array with 2 axes, got 2",
    ),
    "axis too small": ((f32(2, 3), -3), {}, ValueError, "axis must be from -2 to 1.*got -3"),
    "axis of a scalar": ((f32(), 1), {}, ValueError, r"axis must be 0, -1, None or \(\).*got 1"),
    "axis repeated": (
        (f32(2, 3), (0, -2)), {}, ValueError, r"axis must name each axis once, got \(0, -2\)",
    ),
    "float axis": ((f32(2, 3), 1.0), {}, TypeError, "axis must be None, an integer or .*got 1.0"),
    "bool axis": ((f32(2, 3), True), {}, TypeError, "axis must be None, an integer .*got True"),
    "string axis": ((f32(2, 3),), {"axis": "0"}, TypeError, "axis must be None, .*got '0'"),
    "keepdims": ((f32(3), 0), {"keepdims": 1}, TypeError, "keepdims must be True or False, got 1"),
    "keepdims by position": ((f32(3), 0, True), {}, TypeError, "dtype must be given by key"),
    "misspelt": ((f32(3),), {"keepdim": True}, TypeError, "did you mean 'keepdims'"),
    "out of x's shape": (
        (f32(2, 3), 0), {"out": f32(2, 3)}, ValueError, r"out must have shape \(3,\), got \(2, 3\)",
    ),
    "out without keepdims": (
        (f32(2, 3), 0), {"keepdims": True, "out": f32(3)}, ValueError, r"shape \(1, 3\), got",
    ),
    "out of wrong dtype": (
        (f32(2, 3), 0), {"out": np.ones(3)}, TypeError, "out must have dtype float32.*got float64",
    ),
    "out of another framework": ((f32(2, 3), 0), {"out": torch.ones(3)}, TypeError, "got torch"),
    "read-only out": ((f32(2, 3), 0), {"out": read_only(3)}, ValueError, "out must be writable"),
    "out in x": ((square, 0), {"out": square[1]}, ValueError, "out must not share memory with x"),
    "stream": ((f32(3),), {"stream": 1}, ValueError, "stream must be None for arrays on the CPU"),
}  # fmt: skip

BACKWARD_ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "shape of dy": ((f32(2), (2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got \(2,\)"),
    "no broadcasting": ((f32(1), (2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got"),
    "keepdims": ((f32(3), (2, 3), 0), {"keepdims": True}, ValueError, r"shape \(1, 3\), got \(3,"),
    "axis": ((f32(3), (2, 3), 5), {}, ValueError, "axis must be from -2 to 1"),
    "float shape": ((f32(3), (2.0, 3), 0), {}, TypeError, "shape must be a tuple of integers, got"),
    "no shape": ((f32(3), 3, 0), {}, TypeError, "shape must be a tuple of integers, got 3"),
    "negative": ((f32(3), (-2, 3), 0), {}, ValueError, "shape must have no negative length"),
    "accumulate": ((f32(3), (2, 3), 0), {"accumulate": True}, ValueError, "come with out="),
    "out": ((f32(3), (2, 3), 0), {"out": f32(3)}, ValueError, r"out must have shape \(2, 3\), got"),
    "out is dy": ((square[0], (4, 4), 0), {"out": square}, ValueError, "not share memory with dy"),
    "dtype": ((f32(3), (2, 3), 0), {"out": np.ones((2, 3))}, TypeError, "out must have dtype"),
}  # fmt: skip

SQUARE_ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "shape": ((f32(2), f32(2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got \(2,\)"),
    "dtype": ((np.ones(3), f32(2, 3), 0), {}, TypeError, "dy must have dtype float32, as x has"),
    "axis": ((f32(3), f32(2, 3), 5), {}, ValueError, "axis must be from -2 to 1"),
    "accumulate": ((f32(3), f32(2, 3), 0), {"accumulate": True}, ValueError, "come with out="),
    "out": ((f32(3), f32(2, 3), 0), {"out": f32(3)}, ValueError, r"out must have shape \(2, 3\)"),
    "out has dy": ((square[0], f32(4, 4), 0), {"out": square}, ValueError, "no memory with it"),
}  # fmt: skip


def test_errors(op):
    for arguments, keywords, error, words in ERRORS.values():
        for entry, name in ((op, op.name), (op.forward, rf"{op.name}\.forward")):
            with pytest.raises(error, match=f"^fastact.{name}: .*{words}"):
                entry(*arguments, **keywords)
    errors = SQUARE_ERRORS if "x" in op.saves else BACKWARD_ERRORS
    saved = [None] * (len(op.saves) - 1)  # no mask and no groups
    for arguments, keywords, error, words in errors.values():
        with pytest.raises(error, match=rf"^fastact.{op.name}.backward: .*{words}"):
            op.backward(*arguments[:2], *saved, *arguments[2:], **keywords)
    assert (square == 1).all()


def test_value_and_grad_names_what_it_does_not_know():
    with pytest.raises(
        TypeError, match=r"fastact\.sum_squares\.value_and_grad: unknown keyword 'axis'"
    ):
        fa.sum_squares.value_and_grad(np.ones(3), axis=0)
