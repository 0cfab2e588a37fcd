"""What the norms refuse, with which words; and that nothing is written before they do."""

from typing import Any

import numpy as np
import pytest
import torch

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
    "weight on another device": (
        lambda: fa.layer_norm(torch.ones(4, 6), torch.ones(6, device="meta")),
        ValueError,
        "all arrays must be on one device, cpu, got weight on meta",
    ),
    "axis twice": (lambda: fa.rms_norm(X, axis=(0, -2)), ValueError, "name each axis once"),
    "channels": (lambda: fa.instance_norm(W), ValueError, "axis must be from -1 to 0"),
    "groups": (
        lambda: fa.group_norm(IMAGE, 4),
        ValueError,
        "num_groups must divide the 6 channels along axis 1, got 4",
    ),
    "no groups": (lambda: fa.group_norm(IMAGE, 0), ValueError, "num_groups must divide"),
    "groups left out": (lambda: fa.group_norm(IMAGE), TypeError, "num_groups must be given"),
    "half a group": (lambda: fa.group_norm(IMAGE, 1.5), TypeError, "num_groups must be an integer"),
    "no axes": (
        lambda: fa.layer_norm(np.float32(1)),
        ValueError,
        r"layer_norm: x must have an axis to normalize along, got shape \(\)",
    ),
    "no residual": (lambda: fa.add_rms_norm(X), TypeError, "residual must be given"),
    "out of weight": (
        lambda: fa.layer_norm(X, X[0], out=X),
        ValueError,
        "out must be weight itself or share no memory|must not share memory with weight",
    ),
    "one for two": (lambda: fa.add_layer_norm(X, X, out=X.copy()), ValueError, "a tuple of 2"),
    "y on the sum": (
        lambda: fa.add_layer_norm(X, X.copy(), out=(W2 := ones(4, 6), W2)),
        ValueError,
        r"out\[1\] must not share memory with out\[0\]",
    ),
    "saved": (
        lambda: fa.layer_norm.forward(X, out=X),
        ValueError,
        "must not share memory with x, which is still needed",
    ),
    "statistics": (
        lambda: fa.layer_norm.backward(X, X, ones(4), ones(4, 1)),
        ValueError,
        r"mean must have shape \(4, 1\), got \(4,\)",
    ),
    "statistics of groups": (
        lambda: fa.group_norm.backward(IMAGE, IMAGE, ones(2, 3), ones(2, 2)),
        ValueError,
        r"mean must have shape \(2, 2\), got \(2, 3\)",
    ),
    "wide statistics": (
        lambda: fa.rms_norm.backward(X, X, ones(4, 1, dtype=np.float64)),
        TypeError,
        "rstd must have dtype float32, in which x is computed, got float64",
    ),
    "statistics of 16 bits": (
        lambda: fa.rms_norm.backward(*[ones(4, 6, dtype=np.float16)] * 2, ones(4, 1)[::1] > 0),
        TypeError,
        "rstd must have dtype",
    ),
    "no statistics": (
        lambda: fa.layer_norm.backward(X, X),
        TypeError,
        "mean must be given",
    ),
    "None for a statistic": (
        lambda: fa.layer_norm.backward(X, X, None, ones(4, 1)),
        TypeError,
        "mean must be an array, got None",
    ),
    "out of nothing": (
        lambda: fa.rms_norm.backward(X, X, ones(4, 1), out=(None, ones(6))),
        ValueError,
        r"out\[1\] must be None, for there is no weight",
    ),
    "no gradient": (
        lambda: fa.rms_norm.backward(X, X, ones(4, 1), W, out=(None, None)),
        ValueError,
        "out must have an array for one gradient at least",
    ),
    "groups of a size that does not divide": (
        lambda: fa.gated_rms_norm(X, X, group_size=4),
        ValueError,
        "group_size must divide the 6 elements along axis -1, got 4",
    ),
    "groups of no size": (
        lambda: fa.gated_rms_norm(X, X, group_size=0),
        ValueError,
        "group_size must divide the 6 elements along axis -1, got 0",
    ),
    "groups of no whole size": (
        lambda: fa.gated_rms_norm(X, X, group_size=1.5),
        TypeError,
        "group_size must be an integer, got 1.5",
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
    "integers": (
        lambda: fa.layer_norm(torch.ones(4, 6), torch.ones(6, dtype=torch.int64)),
        TypeError,
        "weight must have",
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
