"""What the recurrent gates refuse, with which words; and that nothing is written before they do."""

# ruff: noqa: E501  a case is a line
from typing import Any

import numpy as np
import pytest
from arrays import f32

import fastact as fa

L, G = fa.lstm_gates, fa.gru_gates


SAVED: dict[str, Any] = {
    "lstm": L.forward(f32(2, 12), f32(2, 3))[1],
    "gru": G.forward(f32(2, 9), f32(2, 9), f32(2, 3))[1],
}

BAD: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (L, (f32(2, 10), f32(2, 3)), {}, ValueError, r"fastact.lstm_gates: gates must have a last axis of 4"),
    (G, (f32(2, 10), f32(2, 10), f32(2, 3)), {}, ValueError, "gates must have a last axis of 3 gates"),
    (L, (f32(2, 12), f32(2, 3)), {"recurrent_bias": f32(1, 12)}, ValueError, r"recurrent_bias must have shape"),
    (L.backward, (f32(2, 3),), {}, TypeError, "fastact.lstm_gates.backward: dc must be given"),
    (L.backward, (f32(2, 3), None, f32(2, 12), f32(2, 3)), {}, TypeError, "c must be given"),
    (L.backward, (f32(2, 3), None, f32(2, 12), f32(2, 3), None), {}, TypeError, "c must be an array, as forward saved it with recompute=False"),
    (L.backward, (f32(2, 3), None, None, *SAVED["lstm"][1:]), {}, TypeError, "gates must be an array, as forward"),
    (G.backward, (f32(2, 3), f32(2, 9), *SAVED["gru"][1:]), {}, ValueError, "a last axis of 4 gates"),
    (G.backward, (f32(2, 3), *SAVED["gru"]), {"recompute": True}, TypeError, "recurrent must be an array, as forward saved it with recompute=True"),
    (L.backward, (f32(2, 3), None, *SAVED["lstm"]), {"out": (None, None, f32(12))}, ValueError, r"out\[2\] must be None, for there is no bias"),
]  # fmt: skip


@pytest.mark.parametrize("case", BAD, ids=lambda case: case[-1][:40])
def test_refused(case):
    entry, arguments, options, error, words = case
    with pytest.raises(error, match=words):
        entry(*arguments, **options)


def test_overlaps():
    memory = np.zeros((4, 24), np.float32)
    gates, c = memory[:2, :12], f32(2, 3)
    with pytest.raises(ValueError, match="partial overlap"):
        L(gates, c, out=(memory[:2, 1:4], f32(2, 3)))
    with pytest.raises(
        ValueError, match=r"out\[1\] must not share memory with c_prev, which is still"
    ):
        L.forward(gates, c, out=(f32(2, 3), c, None))
    with pytest.raises(
        ValueError, match=r"must not share memory with gates, which is still needed"
    ):
        L.forward(gates, c, out=(gates[:, :3], f32(2, 3), None), recompute=True)
    bias = f32(12)
    with pytest.raises(ValueError, match="must not share memory with bias"):
        L(gates[:1], c[:1], bias=bias, out=(bias[:3].reshape(1, 3), f32(1, 3)))
