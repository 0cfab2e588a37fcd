"""Fixtures: the dtypes, the frameworks and the instruction sets over which the suite runs.

Tests iterate over `fastact.ops`: an op that is registered is tested, without a line here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fastact as fa
from fastact import _cpu

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}

ACTIVATIONS = [op for op in fa.ops.values() if op.family == "activations"]


@pytest.fixture(params=DTYPES.values(), ids=DTYPES.keys())
def dtype(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=ACTIVATIONS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=_cpu.supported_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    before = _cpu.isa()
    _cpu.select_isa(request.param)
    yield request.param
    _cpu.select_isa(before)


@pytest.fixture
def many_threads() -> Iterator[int]:
    """More threads than one, whatever the machine has: results may not depend on it."""
    before = fa.get_num_threads()
    fa.set_num_threads(4)
    yield 4
    fa.set_num_threads(before)


@dataclass(frozen=True)
class Framework:
    """How the suite makes and reads a framework's arrays; strides and memory are kept."""

    name: str
    of: Any
    numpy: Any


def _to_torch(array: np.ndarray) -> torch.Tensor:
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _from_torch(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"])
    return tensor.numpy()


def _same(array: np.ndarray) -> np.ndarray:
    return array


FRAMEWORKS = [Framework("numpy", _same, _same), Framework("torch", _to_torch, _from_torch)]


@pytest.fixture(params=FRAMEWORKS, ids=lambda f: f.name)
def framework(request: pytest.FixtureRequest) -> Framework:
    return request.param


def bits(array: Any) -> np.ndarray:
    """An array's bits as integers: equality that tells -0 from 0 and one NaN from another."""
    array = np.asarray(array)
    return array.view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert np.asarray(actual).dtype == np.asarray(expected).dtype
    np.testing.assert_array_equal(bits(actual), bits(expected))


def sample(dtype: Any, size: int = 1000, seed: int = 0) -> np.ndarray:
    """Values of every magnitude that matters to an activation, and the specials."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=size) * 10.0 ** rng.uniform(-3, 1.5, size)
    specials = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40]
    count = min(len(specials), size)
    if count:
        x[rng.permutation(size)[:count]] = specials[:count]
    with np.errstate(all="ignore"):
        return x.astype(dtype)
