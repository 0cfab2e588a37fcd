"""Bad input: each a clear error that names op, argument, allowed and given; nothing is written."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from arrays import Elsewhere, f32

import fastact as fa
from fastact.runtime.threads import MOST


def self_overlapping() -> np.ndarray:
    return np.lib.stride_tricks.as_strided(f32(4), (3,), (0,), writeable=True)


t3 = torch.ones(3)
SQUARE = f32(4, 4)

# arguments of fa.mish, keywords, error, words of the message
CALLS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "too large": (2**70, {}, TypeError, "x must have dtype .* got 1180591620717411303424"),
    "nothing in it": ([0.5, None], {}, TypeError, r"x must have dtype .* got \[0.5, None\]"),
    "longdouble": (np.ones(3, np.longdouble), {}, TypeError, "got (longdouble|float128)"),
    "out in front": (SQUARE[1:], {"out": SQUARE[:3]}, ValueError, "partial overlap"),
    "out behind": (SQUARE[:3], {"out": SQUARE[1:]}, ValueError, "partial overlap"),
    "self-overlapping out": (
        f32(3), {"out": self_overlapping()}, ValueError, "out must not overlap itself",
    ),
    "conjugated": (
        torch.ones(3, dtype=torch.complex64).conj(), {}, TypeError, "not lazily conjugated",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLS)
def test_call(case):
    x, keywords, error, words = CALLS[case]
    out = keywords.get("out")
    before = None if not isinstance(out, np.ndarray) else out.copy()
    for entry, name in ((fa.mish, "mish"), (fa.mish.forward, r"mish\.forward")):
        with pytest.raises(error, match=f"^fastact.{name}: .*{words}"):
            entry(x, **keywords)
    if before is not None:
        np.testing.assert_array_equal(out, before)


# arguments of fa.mish.backward(dy, x, ...)
BACKWARD: dict[str, tuple[Any, Any, dict[str, Any], type[Exception], str]] = {
    "list with tensors": ([1, 2, 3], t3, {}, TypeError, "dy must come from torch.*got list"),
    "bfloat16 with float16": (
        np.ones(3, ml_dtypes.bfloat16), np.ones(3, np.float16), {}, TypeError,
        "dtype float16, .*got bfloat16",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BACKWARD)
def test_backward(case):
    dy, x, keywords, error, words = BACKWARD[case]
    with pytest.raises(error, match=rf"^fastact.mish.backward: .*{words}"):
        fa.mish.backward(dy, x, **keywords)


# op, its parameters, words of the message
PARAMETERS: list[tuple[str, dict[str, Any], str]] = [
    ("softplus", {"beta": 0.0}, r"beta must be above zero, got beta=0\.0"),
    ("softplus", {"beta": -1}, r"beta must be above zero, got beta=-1\.0"),
    ("celu", {"alpha": 0}, "alpha must not be zero"),
    ("elu", {"alpha": float("nan")}, "alpha must be finite, got nan"),
    ("leaky_relu", {"negative_slope": float("inf")}, "negative_slope must be finite"),
    ("softshrink", {"lambd": -0.5}, "lambd must not be negative"),
    (
        "hardtanh", {"min_val": 2.0, "max_val": 1.0},
        r"min_val must not exceed max_val, got min_val=2\.0, max_val=1\.0",
    ),
    ("gelu", {"approximate": "erf"}, "approximate must be 'none' or 'tanh', got 'erf'"),
    ("gelu", {"approximate": None}, "approximate must be 'none' or 'tanh', got None"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "parameters", "words"), PARAMETERS)
def test_parameters(name, parameters, words):
    op, x = fa.ops[name], f32(3)
    for _ in range(2):  # refused the second time too
        for entry, args in ((op, (x,)), (op.forward, (x,)), (op.backward, (x, x))):
            with pytest.raises(ValueError, match=rf"^fastact\.{name}.*: {words}"):
                entry(*args, **parameters)


def test_missing_arguments():
    with pytest.raises(TypeError):
        fa.mish()
    with pytest.raises(TypeError):
        fa.mish.backward(f32(3))
    with pytest.raises(TypeError, match="takes at most"):
        fa.mish(f32(3), f32(3), f32(3))
    with pytest.raises(TypeError, match="by position and by keyword"):
        fa.mish(f32(3), f32(3), out=f32(3))


def test_gpu_arrays_name_the_reason_and_the_cure():
    assert issubclass(fa.CudaUnavailableError, RuntimeError)
    reason = r"^fastact.mish: got an array on cuda:1, but .*move the array to the CPU"
    with pytest.raises(fa.CudaUnavailableError, match=reason):
        fa.mish(Elsewhere(2))
    with pytest.raises(ValueError, match="on the CPU or a CUDA device, got metal:1"):
        fa.mish(Elsewhere(8))


@pytest.mark.parametrize("n", [0, -1, MOST + 1, 2**31, 1.5, "2.5", None, "x"])
def test_thread_counts(n):
    before = fa.get_num_threads()
    error = ValueError if isinstance(n, int) else TypeError
    for take in (fa.set_num_threads, fa.num_threads):
        words = rf"^fastact\.{take.__name__}: n must be an integer from 1 to {MOST}, got {n!r}$"
        with pytest.raises(error, match=words):
            take(n)
    assert fa.get_num_threads() == before
