"""From an array's device to the native module that computes there."""

from types import ModuleType

from . import _cpu
from ._checks import CudaUnavailableError, device_name

_CPU, _CUDA, _CUDA_MANAGED = 1, 2, 13


def native(where: str, device: tuple[int, int]) -> ModuleType:
    """The native module for a DLPack device. All of them have the functions of `_cpu`."""
    if device[0] == _CPU:
        return _cpu
    if device[0] in (_CUDA, _CUDA_MANAGED):
        raise CudaUnavailableError(
            f"{where}: got an array on {device_name(device)}, but {cuda_why()}; move the array to "
            f"the CPU (torch: x.cpu(), cupy: x.get())"
        )
    raise ValueError(
        f"{where}: arrays must be on the CPU or a CUDA device, got {device_name(device)}"
    )


def cuda_why() -> str:
    """Why no GPU can be used."""
    return "this version of fastact has no CUDA extension"
