"""What the norms refuse, with which words; and that nothing is written before they do."""

from typing import Any

import numpy as np
import pytest

import fastact as fa


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


X, W = ones(4, 6), ones(6)
IMAGE, C = ones(2, 6, 3), ones(6)
FROZEN = ones(4, 6)
FROZEN.flags.writeable = False

# call, what the message says beside the name of the op
BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "weight of a tuple": (
        lambda: fa.layer_norm(IMAGE, ones(6), axis=(1, 2)),
        ValueError,
        r"weight must have shape \(6, 3\), got \(6,\)",
    ),
    "axis twice": (lambda: fa.rms_norm(X, axis=(0, -2)), ValueError, "name each axis once"),
    "channels": (lambda: fa.instance_norm(W), ValueError, "axis must be from -1 to 0"),
    "groups": (
        lambda: fa.group_norm(IMAGE, 4),
        ValueError,
        "num_groups must divide the 6 channels along axis 1, got 4",
    ),
    "no axes": (
        lambda: fa.layer_norm(np.float32(1)),
        ValueError,
        r"layer_norm: x must have an axis to normalize along, got shape \(\)",
    ),
    "out of weight": (
        lambda: fa.layer_norm(X, X[0], out=X),
        ValueError,
        "out must be weight itself or share no memory|must not share memory with weight",
    ),
    "saved": (
        lambda: fa.layer_norm.forward(X, out=X),
        ValueError,
        "must not share memory with x, which is still needed",
    ),
    "statistics of groups": (
        lambda: fa.group_norm.backward(IMAGE, IMAGE, ones(2, 3), ones(2, 2)),
        ValueError,
        r"mean must have shape \(2, 2\), got \(2, 3\)",
    ),
    "groups along several axes": (
        lambda: fa.gated_rms_norm(X, X, axis=(0, 1), group_size=2),
        TypeError,
        "axis must be an integer with group_size, got ",
    ),
    "weight of a group": (
        lambda: fa.gated_rms_norm(X, X, ones(3), group_size=3),
        ValueError,
        r"weight must have shape \(6,\), got \(3,\)",
    ),
    "statistics of the whole axis": (
        lambda: fa.gated_rms_norm.backward(X, X, X, ones(4, 1), group_size=3),
        ValueError,
        r"rstd must have shape \(4, 2\), got \(4, 1\)",
    ),
}


@pytest.mark.parametrize(("call", "error", "words"), BAD.values(), ids=BAD.keys())
def test_message(call, error, words):
    with pytest.raises(error, match=r"^fastact\.\w+") as raised:
        call()
    assert raised.match(words)


def test_groups_of_no_channels_are_no_more_than_int64_counts():
    with pytest.raises(ValueError, match="num_groups must be an integer from -"):
        fa.group_norm(np.ones((2, 0)), num_groups=10**400)
