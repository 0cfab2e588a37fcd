"""How the suite makes a device's arrays (tests/devices.py): what a GPU runs, on the CPU."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from devices import (
    DTYPES,
    cupy_by,
    emulated,
    from_torch,
    hull,
    needs_emulation,
    to_emulated,
    torch_on,
)


def layouts(dtype: np.dtype) -> dict[str, np.ndarray]:
    """Arrays as tests of devices have them, by what is special about them."""
    x = np.arange(60).astype(dtype).reshape(5, 12)
    bytes_of = np.zeros(x.nbytes + 4 * dtype.itemsize, np.uint8)
    misaligned = bytes_of[3 * dtype.itemsize :][: x.nbytes].view(dtype)
    misaligned[...] = x.ravel()
    made = {
        "0-d": x[2, 3, None].reshape(()),
        "empty": x[:0],
        "empty, of three axes": np.empty((4, 0, 3), dtype),
        "empty, repeated": np.broadcast_to(x[:1, :0], (7, 0)),
        "one element, repeated": np.broadcast_to(x[:1, :1], (7, 3)),
        "a row, repeated": np.broadcast_to(x[1], (7, 12)),
        "a column, repeated": np.broadcast_to(x[:, :1], (5, 7)),
        "transposed": x.T,
        "with gaps": x[1::2, 1::3],
        "misaligned": misaligned,
        "backwards": x[::-1, ::-2],
    }
    read_only = x.copy()
    read_only.flags.writeable = False
    return made | {"read-only": read_only}


NAMES = list(layouts(np.dtype(np.float32)))
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)


def same(got: np.ndarray, array: np.ndarray) -> None:
    assert got.shape == array.shape
    assert got.dtype == array.dtype
    assert got.tobytes() == array.tobytes()


@each_dtype
@pytest.mark.parametrize("name", NAMES)
def test_torch(name, dtype):
    """In memory of its own, with the strides and the misalignment; nothing warns."""
    array = layouts(dtype)[name]
    if name == "backwards":
        with pytest.raises(pytest.skip.Exception, match="torch has no negative strides"):
            torch_on("cpu")(array)
        return
    tensor = torch_on("cpu")(array)
    same(from_torch(tensor), array)
    assert tuple(s * array.itemsize for s in tensor.stride()) == array.strides
    if array.size:
        assert tensor.data_ptr() != array.__array_interface__["data"][0]
        at = tensor.storage_offset() * array.itemsize
        assert at == hull(array)[1]


class _Address:
    """CuPy's pointer: memory and where in it."""

    def __init__(self, memory: Any, offset: int = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, offset: int) -> "_Address":
        return _Address(self.memory, self.offset + offset)


def _cupy() -> Any:
    """As much of CuPy as arrays are made by, on NumPy."""
    return SimpleNamespace(
        asarray=lambda array: SimpleNamespace(data=_Address(bytearray(array))),
        ndarray=lambda shape, dtype, data, strides: np.ndarray(
            shape, dtype, data.memory, data.offset, strides
        ),
    )


@each_dtype
@pytest.mark.parametrize("name", NAMES)
def test_cupy(name, dtype):
    array = layouts(dtype)[name]
    if dtype == DTYPES["bfloat16"]:
        with pytest.raises(pytest.skip.Exception, match="CuPy has no bfloat16"):
            cupy_by(_cupy())(array)
        return
    made = cupy_by(_cupy())(array)
    same(made, array)
    assert made.strides == array.strides


@needs_emulation
@each_dtype
@pytest.mark.parametrize("name", NAMES)
def test_emulated(name, dtype):
    array = layouts(dtype)[name]
    made = to_emulated(emulated.ExchangeArray)(array)
    assert made.tobytes() == array.tobytes()
    assert (made.shape, made.strides) == (array.shape, array.strides)
