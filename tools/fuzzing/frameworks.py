"""How arrays in memory become NumPy's, torch's, a plain producer's, an emulated device's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from devices import DTYPES, FRAMEWORKS, from_torch, to_torch  # of the tests


class Plain:
    """An array that tells no more than DLPack and the array API ask for."""

    def __init__(self, held: Any) -> None:
        self.held, self.shape, self.dtype = held, tuple(held.shape), held.dtype

    def __dlpack__(self, **named: Any) -> Any:
        return self.held.__dlpack__(**named)

    def __dlpack_device__(self) -> Any:
        return (1, 0)

    def __array_namespace__(self) -> Any:
        return PLAIN


# In torch's memory, since NumPy cannot hold bfloat16.
PLAIN = SimpleNamespace(from_dlpack=lambda producer: Plain(torch.from_dlpack(producer)))


def _to_plain(array: Any) -> Plain:
    return Plain(to_torch(array) if array.dtype == DTYPES["bfloat16"] else array)


def _from_plain(array: Any) -> Any:
    return array.held if isinstance(array.held, np.ndarray) else from_torch(array.held)


_KNOWN = {one.name.removesuffix("-exchange"): one for one in FRAMEWORKS}
#: By name: NumPy's array as this framework's, on the CPU in the same memory; and backward.
OF = {"plain": _to_plain, **{name: one.of for name, one in _KNOWN.items()}}
BACK = {"plain": _from_plain, **{name: one.numpy for name, one in _KNOWN.items()}}


def back(framework: str, value: Any) -> Any:
    """A result as NumPy's array; what is none stays."""
    if isinstance(value, np.ndarray | np.generic):
        return np.asarray(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return BACK[framework](value)


#: A number as an object of each kind (`cases.NUMBERS`).
NUMBERS: dict[str, Any] = {
    "float": float,
    "int": int,
    "bool": bool,
    "float32": np.float32,
    "float64": np.float64,
    "int64": lambda value: np.int64(int(value)),
    "0-d": np.array,
    "tensor": torch.tensor,
}
