"""Arrays without values: ops called with them compute nothing, and tell what a call would give."""

from typing import Any

import numpy as np
import pytest
from calls import backward, forward

import fastact as fa
from fastact import _cpu
from fastact.interop.shapes import Shape
from fastact.ops.engine.op import arrays_of


def without_values(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(without_values, value))
    return Shape.of(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
def test_nothing_is_computed(op, monkeypatch):
    """Memory of arrays without values may be more than there is, and is never touched."""
    x, dy = (np.random.default_rng(k).normal(size=(6, 8)).astype(np.float32) for k in range(2))
    calls = [forward(op, x, dy), backward(op, x, dy)]
    expected = [arrays_of(call()) for call in calls]

    def compute(name: str, arguments: dict[str, Any]) -> None:
        raise AssertionError(f"{name} was called")

    monkeypatch.setattr(_cpu, "native_call", compute)
    for call, results in zip(calls, expected, strict=True):
        named = {name: without_values(value) for name, value in call.keywords.items()}
        found = arrays_of(call.func(*map(without_values, call.args), **named))
        for one, other in zip(found, results, strict=True):
            assert (one is None) == (other is None)
            assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype)
