"""Streams: the one on which a call's kernels run, and how a framework is told of it.

No framework is imported: the functions here get the module that the caller has imported.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from .foreign import describe

#: The legacy default stream, by the name that DLPack gives it on CUDA (where 0 is not allowed).
LEGACY = 1
#: The default stream of each thread, by the same.
PER_THREAD = 2


def pointer(where: str, stream: Any) -> int:
    """Return a stream as an integer: one already, or any framework's stream object.

    Understood are `__cuda_stream__` (cuda.core, CuPy), `cuda_stream` (torch) and `ptr` (CuPy).
    """
    if hasattr(stream, "__cuda_stream__"):
        stream = stream.__cuda_stream__()[1]
    for attribute in ("cuda_stream", "ptr"):
        stream = getattr(stream, attribute, stream)
    if isinstance(stream, bool) or not isinstance(stream, int) or stream < 0:
        raise TypeError(
            f"{where}: stream must be a CUDA stream, as an object of its framework or as its "
            f"address, got {describe(stream)}"
        )
    return stream or LEGACY


def _cupy_current(cupy: Any, device: int) -> int:
    with cupy.cuda.Device(device):
        return int(cupy.cuda.get_current_stream().ptr)


#: Frameworks whose current stream only they themselves can tell: module, device -> address.
_CURRENT: dict[str, Callable[[Any, int], int]] = {
    "cupy": _cupy_current,
    "numba": lambda numba, _: numba.config.CUDA_PER_THREAD_DEFAULT_STREAM and PER_THREAD,
}


def current(framework: str, device: int) -> int | None:
    """Return the stream on which a framework now works on a device; None if it does not tell."""
    ask = _CURRENT.get(framework)
    return None if ask is None else ask(sys.modules[framework], device) or LEGACY


def _torch_on(torch: Any, device: int, stream: int) -> Any:
    return torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device))


@contextmanager
def _cupy_on(cupy: Any, device: int, stream: int) -> Iterator[None]:
    with cupy.cuda.Device(device), cupy.cuda.ExternalStream(stream, device):
        yield


_ON: dict[str, Any] = {"torch": _torch_on, "cupy": _cupy_on}


def on(framework: str, device: int, stream: int) -> Any:
    """Return a context in which the framework itself works, and allocates, on a stream."""
    enter = _ON.get(framework)
    return nullcontext() if enter is None else enter(sys.modules[framework], device, stream)
