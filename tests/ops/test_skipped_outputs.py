"""Gradients that `out` skips by None: what is made beside them is what it is with all of them.

On the emulated device reading memory that nobody wrote is a fault, so that nothing is added to what
stands for a skipped gradient.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from arrays import finite
from calls import OPS, backward
from conftest import assert_same_bits
from devices import FRAMEWORKS, KERNELS, Framework

HERE = [FRAMEWORKS[0], *KERNELS]
BEFORE = 0.5


X, DY = (finite(np.float32, (5, 6), seed) for seed in (1, 2))


def skips(op: Any) -> bool:
    """Whether an op has several gradients, of which one may choose."""
    made = backward(op, X, DY)()
    return isinstance(made, tuple) and sum(g is not None for g in made) > 1


def on(here: Framework, call: Callable[..., Any]) -> Callable[..., Any]:
    """A partial call of NumPy arrays as one of this framework's."""
    seen: dict[int, Any] = {}

    def moved(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return seen.setdefault(id(value), here.of(value))
        if isinstance(value, tuple) and any(isinstance(part, np.ndarray) for part in value):
            return tuple(map(moved, value))
        return value

    partial: Any = call
    args = tuple(map(moved, partial.args))
    keywords = {name: moved(value) for name, value in partial.keywords.items()}
    return lambda **named: partial.func(*args, **keywords, **named)


# Few rows and columns; and so many that sums are cut among threads and blocks.
@pytest.mark.parametrize("shape", [(5, 6), (300, 34)], ids=str)
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("here", HERE, ids=lambda f: f.name)
@pytest.mark.parametrize("op", [op for op in OPS if skips(op)], ids=lambda op: op.name)
def test_skipped(op: Any, here: Framework, accumulate: bool, shape: tuple[int, ...]) -> None:
    x, dy = (finite(np.float32, shape, seed) for seed in (1, 2))
    on_cpu = backward(op, x, dy)
    call = on(here, on_cpu)
    models = on_cpu()

    def outs(wanted: tuple[bool, ...]) -> tuple[Any, ...]:
        return tuple(
            here.of(np.full(model.shape, BEFORE, model.dtype))
            if model is not None and want
            else None
            for model, want in zip(models, wanted, strict=True)
        )

    every = outs(tuple(True for _ in models))
    call(out=every, accumulate=accumulate)
    there = [model is not None for model in models]
    for wanted in product((False, True), repeat=len(models)):
        if not any(w and t for w, t in zip(wanted, there, strict=True)):
            continue
        for _ in range(2):  # the second by what the first has noted
            out = outs(wanted)
            made = call(out=out, accumulate=accumulate)
            for given, result, expected in zip(out, made, every, strict=True):
                assert result is given
                if given is not None:
                    assert_same_bits(here.numpy(given), here.numpy(expected))
