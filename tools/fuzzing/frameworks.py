"""How arrays in memory become NumPy's, torch's, a plain producer's, an emulated device's."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from devices import DTYPES, from_torch, to_emulated, to_torch  # of the tests

_BFLOAT16 = DTYPES["bfloat16"]


class Plain:
    """An array that tells no more than DLPack and the array API ask for."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def __dlpack__(self, **named: Any) -> Any:
        return self.held.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __array_namespace__(self) -> Any:
        return _PLAIN

    @property
    def shape(self) -> Any:
        return tuple(self.held.shape)

    @property
    def dtype(self) -> Any:
        return self.held.dtype


def _plain_from_dlpack(producer: Any) -> Plain:
    """torch's memory, since NumPy cannot hold bfloat16."""
    return Plain(torch.from_dlpack(producer))


_PLAIN = SimpleNamespace(from_dlpack=_plain_from_dlpack)


def _to_plain(array: Any) -> Plain:
    return Plain(to_torch(array) if array.dtype == _BFLOAT16 else array)


def _from_plain(array: Any) -> Any:
    return array.held if isinstance(array.held, np.ndarray) else from_torch(array.held)


def _same(array: Any) -> Any:
    return array


@cache
def _emulated() -> Any:
    from fastact.interop import devices

    return devices.emulate()


def _to_emulated(array: Any) -> Any:
    return to_emulated(_emulated().ExchangeArray)(array)


def _from_emulated(array: Any) -> Any:
    dtype = _BFLOAT16 if array.dtype == "bfloat16" else np.dtype(array.dtype)
    return np.frombuffer(array.tobytes(), dtype).reshape(array.shape)


#: By name: NumPy's array as this framework's, on the CPU in the same memory; and backward.
OF = {"numpy": _same, "torch": to_torch, "plain": _to_plain, "emulated": _to_emulated}
BACK = {"numpy": _same, "torch": from_torch, "plain": _from_plain, "emulated": _from_emulated}


def back(framework: str, value: Any) -> Any:
    """A result as NumPy's array; what is none stays."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return BACK[framework](value)


def zero_d(kind: str, value: float) -> Any:
    """A number as an object of that kind (`cases.NUMBERS`)."""
    makes: dict[str, Any] = {
        "float": float,
        "int": int,
        "bool": bool,
        "float32": np.float32,
        "float64": np.float64,
        "int64": lambda v: np.int64(int(v)),
        "0-d": np.array,
        "tensor": lambda v: torch.tensor(v),
    }
    return makes[kind](value)
