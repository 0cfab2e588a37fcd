"""From an array's device to the native module that computes there, or to the reason why not."""

import os
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol, cast

from .. import _cpu
from .validate import CudaUnavailableError, device_name

#: DLPack's device types. The extension type is the emulated device of the tests.
CPU, CUDA, EMULATED = 1, 2, 12

_emulated: ModuleType | None = None


def emulate() -> ModuleType:
    """From now on compute arrays of the emulated device; for tests, in builds that have it."""
    global _emulated
    _emulated = import_module("fastact._cuda_emulated")
    return _emulated


class Device(Protocol):
    """A device's module, as Python uses it. Calls of native functions reach it by its table."""

    def device_of_stream(self, stream: int) -> int: ...

    def device_of_memory(self, address: int) -> int: ...

    def make_wait(self, device: int, stream: int, ours: int) -> None: ...


_OF_CPU = cast(Device, _cpu)


def native(where: str, device: tuple[int, int]) -> Device:
    """Return the native module for a DLPack device; the CPU's is asked for nothing."""
    if device[0] == CPU:
        return _OF_CPU
    if device[0] == CUDA:
        module = _module() if not (reason := cuda_why()) else None
    elif device[0] == EMULATED and _emulated is not None:
        module, reason = _emulated, ""
    else:
        raise ValueError(
            f"{where}: arrays must be on the CPU or a CUDA device, got {device_name(device)}"
        )
    reason = reason or _problem(module, device)
    if reason:
        raise CudaUnavailableError(
            f"{where}: got an array on {device_name(device)}, but {reason}; or move the array to "
            f"the CPU (torch: x.cpu(), cupy: x.get(), numba: x.copy_to_host())"
        )
    return cast(Device, module)


def of_memory(address: int) -> tuple[int, int] | None:
    """DLPack's pair of the device on which memory is; None for memory of no device.

    Of no memory the current device. Where no GPU can be used nobody can tell: then it is the first
    one, for which `native` says why.
    """
    missing = bool(cuda_why())
    if not missing and (ordinal := _module().device_of_memory(address)) >= 0:
        return CUDA, ordinal
    if _emulated is not None and (ordinal := _emulated.device_of_memory(address)) >= 0:
        return EMULATED, ordinal
    return (CUDA, 0) if missing else None


_usable: set[tuple[int, int]] = set()


def _problem(module: Any, device: tuple[int, int]) -> str:
    """Why a device can't be used, asked until it can; from then on it may take the short cut."""
    if device in _usable:
        return ""
    problem: str = module.problem_of_device(device[1])
    if not problem:
        _cpu.register_device(device, module.table)
        _usable.add(device)
    return problem


def _module() -> Any:
    return import_module("fastact._cuda")


@lru_cache(maxsize=1)
def _why_not_built() -> str:
    try:
        _module()
    except ModuleNotFoundError:
        return (
            "this build of fastact has no CUDA extension; pip install 'fastact[cuda]', or from "
            "source where nvcc is: pip install . -C cmake.define.FASTACT_CUDA=ON"
        )
    except ImportError as error:
        return f"the CUDA extension does not load: {error}"
    return ""


@lru_cache(maxsize=1)
def _why_not_here() -> str:
    return str(_module().problem_of_machine())


def cuda_why() -> str:
    """Why no GPU can be used; empty if one can. The first to look at the driver."""
    if os.environ.get("FASTACT_DISABLE_CUDA", "0") not in ("", "0"):
        return "FASTACT_DISABLE_CUDA is set; unset it"
    return _why_not_built() or _why_not_here()


def cuda_config() -> dict[str, Any]:
    """Return the part of `show_config` about CUDA."""
    built = not _why_not_built()
    why = cuda_why()
    facts: dict[str, Any] = {"built": built, "available": not why}
    if built:
        module = _module()
        facts |= module.build_info()
        facts["driver"] = module.driver_version()
        if not why:
            facts["devices"] = [f"{d['name']} ({d['capability']})" for d in module.devices()]
    return facts | {"why": why}
