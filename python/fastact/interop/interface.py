"""`__cuda_array_interface__`: how device arrays say where they are that have no DLPack.

Version 3 of the protocol, and those before it, which know no stream. It names no device and no
dtype that NumPy has not. No framework is imported here.
"""

import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import foreign, streams

_MOST_BYTES = 2**62  # between the first byte of an array and its last: offsets have 64 bits


class Described(NamedTuple):
    """An array by NumPy's array of its memory, which NumPy must not touch, and a stream.

    stream : the one on which work on the array may still be queued; None: on none.
    """

    array: NDArray[Any]
    address: int
    stream: int | None


def described(
    address: int,
    shape: Sequence[int],
    strides: Sequence[int] | None,
    dtype: Any,
    readonly: bool,
    owner: Any,
) -> NDArray[Any]:
    """NumPy's array of memory that is elsewhere: for its numbers, its values are out of reach.

    The array keeps `owner` alive.
    """
    interface = {
        "shape": tuple(shape),
        "strides": None if strides is None else tuple(strides),
        "typestr": np.dtype(dtype).str,
        # NumPy 2.0 would take an address of 0, of no bytes, for a value that it has to store.
        "data": (address or np.dtype(dtype).itemsize, readonly),
        "version": 3,
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface, owner=owner))


def read(array: Any) -> Described:
    """Return the description that an array's interface gives; a BufferError names a fault of it."""
    told = getattr(array, foreign.INTERFACE)
    try:
        shape, typestr, (address, readonly) = told["shape"], told["typestr"], told["data"]
        version = told["version"]
    except (LookupError, TypeError, ValueError):
        raise BufferError(
            f"its {foreign.INTERFACE} must be a dict with shape, typestr, data and version"
        ) from None
    if told.get("mask") is not None:
        raise BufferError("it has a mask, which would be lost")
    strides = told.get("strides")
    numbers = (*shape, *(strides or ()))
    if not all(map(_is_whole, numbers)) or (strides is not None and len(strides) != len(shape)):
        raise BufferError(f"its {foreign.INTERFACE} has shape {shape!r} and strides {strides!r}")
    dtype = _dtype(typestr)
    if not _fits(shape, strides, dtype.itemsize):
        raise BufferError(f"its shape {shape!r} and strides {strides!r} reach past all memory")
    if 0 in shape:
        address = 0  # of no bytes, wherever they are
    elif not _is_whole(address) or address <= 0:
        raise BufferError("it has no data")
    made = described(address, shape, strides, dtype, bool(readonly), array)
    return Described(made, int(address), _stream(told, version))


def steps(shape: Sequence[int], order: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of an array without gaps, whose axes lie in memory in this order."""
    made, step = [0] * len(shape), itemsize
    for axis in reversed(order):
        made[axis] = step
        step *= shape[axis]
    return tuple(made)


def has_negative_strides(array: Any) -> bool:
    """Whether a device array with an interface says so of itself; of another nothing is known."""
    strides = getattr(array, "strides", None)
    return (
        isinstance(strides, tuple)
        and any(_is_whole(stride) and stride < 0 for stride in strides)
        and hasattr(type(array), foreign.INTERFACE)
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _dtype(typestr: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(typestr)
    except (TypeError, ValueError):
        dtype = np.dtype("V")
    if dtype.kind == "V":
        raise BufferError(
            f"its typestr {foreign.describe(typestr)} names no dtype of {foreign.DTYPES} "
            f"(bfloat16 has no typestr: such an array needs DLPack)"
        )
    if not dtype.isnative:
        raise BufferError(f"its typestr {typestr!r} is not of native byte order")
    return dtype


def _fits(shape: Sequence[int], strides: Sequence[int] | None, itemsize: int) -> bool:
    if any(length < 0 for length in shape):
        return False
    if strides is None:
        return int(np.prod([max(length, 1) for length in shape], dtype=object)) < _MOST_BYTES // 16
    steps = (abs(int(s)) * (int(n) - 1) for s, n in zip(strides, shape, strict=True) if n)
    return sum(steps) + itemsize < _MOST_BYTES


def _stream(told: dict[str, Any], version: Any) -> int | None:
    """The stream of version 3, where 0 is none: it might be either of the default streams."""
    if not _is_whole(version):
        raise BufferError(f"its {foreign.INTERFACE} has version {foreign.describe(version)}")
    stream = told.get("stream") if version >= 3 else None
    if stream is not None and (not _is_whole(stream) or stream < 1):
        raise BufferError(
            f"the stream of its {foreign.INTERFACE} must be None, 1, 2 or the address of one, got "
            f"{foreign.describe(stream)}"
        )
    return None if stream is None else int(stream)


# --- new arrays -----------------------------------------------------------------------------------


def _numba_stream(cuda: Any, stream: int) -> Any:
    if stream == streams.LEGACY:
        return cuda.legacy_default_stream()
    if stream == streams.PER_THREAD:
        return cuda.per_thread_default_stream()
    return cuda.external_stream(stream)


def _numba_empty(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: int, stream: int
) -> Any:
    cuda = sys.modules["numba.cuda"]
    with cuda.gpus[device]:
        stream = _numba_stream(cuda, stream)
        return cuda.device_array(shape, np.dtype(dtype), strides=strides, stream=stream)


#: Packages whose arrays have no other way, and by which function of theirs a new one is made.
MAKERS: dict[str, Callable[[tuple[int, ...], tuple[int, ...], str, int, int], Any]] = {
    "numba": _numba_empty
}
