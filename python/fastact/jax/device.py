"""Arrays on a GPU, as XLA's handler shows them: memory that XLA owns, for the time of one call.

Ops take them like arrays of any framework. The other memory of a call, its workspace and results
that `out` has no place for, is XLA's too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from .._cpu import View
from .._jax import DeviceMemory
from ..interop import devices
from ..interop.frameworks import Framework, Place, inverse
from .calls import function_of


@dataclass(frozen=True)
class Work:
    """Shared by the arrays of a call: DLPack's pair of the device, XLA's stream and memory."""

    device: tuple[int, int]
    stream: int
    memory: DeviceMemory


class DeviceArray:
    """An array of XLA's on a device. `described` is NumPy's, of memory that NumPy can't touch."""

    __slots__ = ("described", "work")
    __dlpack__ = None  # by which `frameworks.framework_of` knows arrays
    __fastact_framework__: "_Xla"

    def __init__(self, described: NDArray[Any], work: Work) -> None:
        self.described, self.work = described, work

    def seen(self) -> View:
        return View.on_device(self.described, self.work.device)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.described.dtype

    def view(self, dtype: Any) -> "DeviceArray":
        return DeviceArray(self.described.view(dtype), self.work)

    def __getitem__(self, key: Any) -> "DeviceArray":
        return DeviceArray(self.described[key], self.work)

    def __setitem__(self, key: Any, value: "DeviceArray") -> None:
        """Queue a copy of an array of this shape and dtype; `key` selects all of it."""
        arrays = {"x": value.seen(), "y": self.seen(), "accumulate": False}
        _cpu.native_call("broadcast", arrays).run(None, self.work.stream)


class _Xla(Framework):
    """Arrays of one call; the stream is told to the op, as a caller would."""

    name = "XLA"

    def device(self, array: Any) -> tuple[int, int]:
        device: tuple[int, int] = array.work.device
        return device

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        view: View = array.seen()
        return view

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        order, shape = model.order, model.shape
        same = like.described.dtype.itemsize == model.itemsize
        dtype = like.described.dtype if same else model.dtype_name
        memory = like.work.memory.empty(tuple(shape[axis] for axis in order), dtype)
        made = DeviceArray(memory.transpose(inverse(order)), like.work)
        return made.seen(), made

    def scratch(self, nbytes: int, like: Any, place: Place) -> tuple[View, Any]:
        made = DeviceArray(like.work.memory.empty((nbytes,), np.uint8), like.work)
        return made.seen(), made


DeviceArray.__fastact_framework__ = _Xla()


def device_of(stream: int) -> tuple[int, int]:
    """DLPack's pair for the device of a stream."""
    return devices.CUDA, import_module("fastact._cuda").device_of_stream(stream)


def device_function_of(text: bytes) -> Callable[[Sequence[Any], int, DeviceMemory], object]:
    """Make the function of a text, as `calls.function_of`; it queues work on a device's stream."""
    call = function_of(text, with_stream=True)

    def queue(buffers: Sequence[Any], stream: int, memory: DeviceMemory) -> None:
        work = Work(device_of(stream), stream, memory)
        call([DeviceArray(buffer, work) for buffer in buffers], stream)

    return queue
