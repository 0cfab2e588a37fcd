"""How the suite makes and reads each framework's arrays: CPU, GPU and emulated device.

`FRAMEWORKS` lists those that this machine has; conftest's fixture runs a test over them.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from fastact.interop import devices

# A run that forces an instruction set of the CPU is about that one: the others and the devices are
# left to a run that forces none.
FORCED_ISA = os.environ.get("FASTACT_ISA")

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


@dataclass(frozen=True)
class Framework:
    """A framework's arrays.

    of : NumPy's array as this framework's, with its strides and its misalignment. On the CPU it is
        the same memory.
    numpy : backward.
    exact : same bits as NumPy arrays give. Devices round 16-bit results from a float32 of their
        own, and fuse multiply-adds where the CPU may not.
    """

    name: str
    of: Callable[[np.ndarray], Any]
    numpy: Callable[[Any], np.ndarray]
    exact: bool = True

    def run(self, call: Callable[..., Any], *arrays: np.ndarray, **named: Any) -> np.ndarray:
        """The call's result for these arrays, as NumPy's."""
        return self.numpy(call(*map(self.of, arrays), **named))


def hull(array: np.ndarray) -> tuple[bytes, int]:
    """The bytes from the first to the last of an array, and where in them its first element is.

    As many bytes stand in front as make the copy miss a multiple of 16 bytes as the array does.
    """
    low = high = address = array.__array_interface__["data"][0]
    if array.size:
        for stride, length in zip(array.strides, array.shape, strict=True):
            low += min(stride * (length - 1), 0)
            high += max(stride * (length - 1), 0)
        high += array.itemsize
    front = low % 16
    return bytes(front) + ctypes.string_at(low, high - low), front + address - low


# --- NumPy and torch on the CPU -------------------------------------------------------------------


def _same(array: np.ndarray) -> np.ndarray:
    return array


def to_torch(array: np.ndarray) -> torch.Tensor:
    """A torch tensor of the same memory."""
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: torch.Tensor) -> np.ndarray:
    """A NumPy array of the same memory."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"])
    return tensor.numpy()


# --- the emulated device --------------------------------------------------------------------------


EMULATED = find_spec("fastact._cuda_emulated") is not None and not FORCED_ISA
emulated: Any = devices.emulate() if EMULATED else None
needs_emulation = pytest.mark.skipif(
    not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON, or FASTACT_ISA is set"
)


def _emulated() -> list[Framework]:
    if not EMULATED:
        return []
    return [
        Framework("emulated-exchange", to_emulated(emulated.ExchangeArray), _from_emulated, False),
        Framework("emulated-dlpack", _wrapped(to_emulated(emulated.Array)), _from_emulated, False),
    ]


def to_emulated(kind: Any, device: int = 0) -> Callable[[np.ndarray], Any]:
    """How arrays of one of the emulated device's types are made."""

    def of(array: np.ndarray) -> Any:
        data, offset = hull(array)
        missing = -len(data) % array.itemsize
        data += bytes(missing)
        held = kind.from_bytes(data, array.dtype.name, (len(data) // array.itemsize,), device)
        return held.view(array.shape, array.strides, offset)

    return of


def _from_emulated(array: Any) -> np.ndarray:
    return np.frombuffer(array.tobytes(), DTYPES.get(array.dtype, array.dtype)).reshape(array.shape)


@lru_cache
def _stream_of_framework(device: int) -> int:
    """The stream of `Plain` arrays, which they tell to nobody but a producer."""
    stream: int = devices.emulate().make_stream(device)
    return stream


def refuse_stream(stream: int | None) -> None:
    """Refuse what one framework or another does of a stream that it is to let wait."""
    if stream == -1:
        raise ValueError("JAX: CUDA_ERROR_INVALID_HANDLE")
    if stream == 0:
        raise AssertionError("torch and CuPy: stream 0 is ambiguous")


class Plain:
    """An array of the emulated device whose framework tells no more than the array API asks for."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)

    def __dlpack__(self, *, stream: int | None = None, **named: Any) -> Any:
        refuse_stream(stream)
        return self.held.__dlpack__(stream=stream, **named)

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self.held.__dlpack_device__()
        return device

    def __array_namespace__(self) -> Any:
        kind = type(self.held)
        stream = _stream_of_framework(self.held.device)

        def permute_dims(array: Plain, axes: tuple[int, ...]) -> Plain:
            shape = tuple(array.shape[axis] for axis in axes)
            return Plain(array.held.view(shape, tuple(array.strides[axis] for axis in axes)))

        return SimpleNamespace(
            uint8="uint8",
            **{name: name for name in DTYPES},
            empty=lambda shape, dtype, device: Plain(kind.empty(shape, dtype, device)),
            permute_dims=permute_dims,
            from_dlpack=lambda producer: Plain(kind.from_dlpack(producer, stream=stream)),
        )


def _wrapped(of: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray], Any]:
    return lambda array: Plain(of(array))


# --- a GPU ----------------------------------------------------------------------------------------


def _cuda() -> list[Framework]:
    if devices.cuda_why() or FORCED_ISA:
        return []
    found = []
    if torch.cuda.is_available():
        found.append(Framework("cuda-torch", torch_on("cuda"), _from_torch_cuda, False))
    if find_spec("cupy") is not None:
        found.append(Framework("cuda-cupy", cupy_by(import_module("cupy")), _from_cupy, False))
    return found


def torch_on(place: str) -> Callable[[np.ndarray], torch.Tensor]:
    """How tensors are made in new memory of a device."""

    def of(array: np.ndarray) -> torch.Tensor:
        if any(stride < 0 for stride in array.strides):
            pytest.skip("torch has no negative strides")
        dtype = getattr(torch, array.dtype.name)
        strides = [stride // array.itemsize for stride in array.strides]
        if array.size == 0:  # which may have strides, and no memory that they would fit in
            return torch.empty(16, dtype=dtype, device=place).as_strided(array.shape, strides)
        data, offset = hull(array)
        data += bytes(-len(data) % array.itemsize)
        held = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(place)
        return held.view(dtype).as_strided(array.shape, strides, offset // array.itemsize)

    return of


def _from_torch_cuda(tensor: torch.Tensor) -> np.ndarray:
    return from_torch(tensor.cpu())


def cupy_by(cupy: Any) -> Callable[[np.ndarray], Any]:
    """How arrays of CuPy's are made, by its module."""

    def of(array: np.ndarray) -> Any:
        if array.dtype == DTYPES["bfloat16"]:
            pytest.skip("CuPy has no bfloat16")
        data, offset = hull(array)
        held = cupy.asarray(np.frombuffer(data or bytes(16), np.uint8))
        return cupy.ndarray(array.shape, array.dtype, held.data + offset, strides=array.strides)

    return of


def _from_cupy(array: Any) -> np.ndarray:
    host: np.ndarray = array.get()
    return host


FRAMEWORKS = [
    Framework("numpy", _same, _same),
    Framework("torch", to_torch, from_torch),
    *_emulated(),
    *_cuda(),
]
DEVICES = [framework for framework in FRAMEWORKS if not framework.exact]
# One framework a device: the kernels behind them are the same.
KERNELS = [device for device in DEVICES if device.name != "emulated-dlpack"]
