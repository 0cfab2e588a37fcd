"""Sums and bad input: what tests/invariants/test_refused.py does not ask of every op."""

from typing import Any

import pytest
from arrays import f32
from sums import SUMS

square = f32(4, 4)

# arguments, keywords, error, words of the message
ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "axis of a scalar": ((f32(), 1), {}, ValueError, r"axis must be 0, -1, None or \(\).*got 1"),
    "axis repeated": ((f32(2, 3), (0, -2)), {}, ValueError, "axis must name each axis once"),
    "keepdims by position": ((f32(3), 0, True), {}, TypeError, "dtype must be given by key"),
    "misspelt": ((f32(3),), {"keepdim": True}, TypeError, "did you mean 'keepdims'"),
    "out without keepdims": (
        (f32(2, 3), 0), {"keepdims": True, "out": f32(3)}, ValueError, r"shape \(1, 3\), got",
    ),
    "out in x": ((square, 0), {"out": square[1]}, ValueError, "out must not share memory with x"),
}  # fmt: skip
#: Of backward: dy and what was saved instead of x.
BACKWARD_ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "no broadcasting": ((f32(1), (2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got"),
    "keepdims": ((f32(3), (2, 3), 0), {"keepdims": True}, ValueError, r"shape \(1, 3\), got \(3,"),
    "float shape": ((f32(3), (2.0, 3), 0), {}, TypeError, "shape must be a tuple of integers"),
    "no shape": ((f32(3), 3, 0), {}, TypeError, "shape must be a tuple of integers"),
    "negative": ((f32(3), (-2, 3), 0), {}, ValueError, "shape must have no negative length"),
    "out is dy": ((square[0], (4, 4), 0), {"out": square}, ValueError, "not share memory with dy"),
}  # fmt: skip


@pytest.mark.parametrize("op", SUMS, ids=lambda op: op.name)
def test_errors(op):
    for arguments, keywords, error, words in ERRORS.values():
        for entry, name in ((op, op.name), (op.forward, rf"{op.name}\.forward")):
            with pytest.raises(error, match=f"^fastact.{name}: .*{words}"):
                entry(*arguments, **keywords)
    errors = {} if "x" in op.saves else BACKWARD_ERRORS
    saved = [None] * (len(op.saves) - 1)  # no mask and no groups
    for arguments, keywords, error, words in errors.values():
        with pytest.raises(error, match=rf"^fastact.{op.name}.backward: .*{words}"):
            op.backward(*arguments[:2], *saved, *arguments[2:], **keywords)
    assert (square == 1).all()
