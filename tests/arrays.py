"""Arrays that the tests of several families are fed with."""

import ctypes
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


@lru_cache(maxsize=128)
def _values(shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1, shape))


def finite(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values of mixed signs and magnitudes, whose sums stay within every dtype."""
    return _values(shape, seed).astype(dtype)


def ulp(y: np.ndarray) -> np.ndarray:
    """The unit in the last place of each element, in float64."""
    info = ml_dtypes.finfo(y.dtype)
    _, exponent = np.frexp(np.maximum(np.abs(y.astype(float)), float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


class Elsewhere:
    """What a producer on another device shows; nothing may follow its pointer."""

    def __init__(self, device_type: int) -> None:
        self.device = (device_type, 1)

    def __dlpack__(self, **_: Any) -> Any:
        capsule = f32(3).__dlpack__()
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        tensor = pointer(capsule, b"dltensor")  # a DLTensor: its data, then its device
        (ctypes.c_int32 * 2).from_address(tensor + 8)[:] = self.device
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device
