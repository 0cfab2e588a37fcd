"""DLPack capsules made by hand: right ones, and ones that no consumer should believe.

`Producer` is an object with `__dlpack__` and `__dlpack_device__` whose capsule says exactly what it
was told. The memory that a capsule describes is the producer's.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

CPU, CUDA = 1, 2
FLOAT, BFLOAT = 2, 4
READ_ONLY = 1


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

# A tensor keeps its producer alive, as a framework's does: until its deleter has been called, and
# has returned.
_held: set[Any] = set()
_released: list[Any] = []

_DTYPES = {
    "float16": (FLOAT, 16, 1),
    "bfloat16": (BFLOAT, 16, 1),
    "float32": (FLOAT, 32, 1),
    "float64": (FLOAT, 64, 1),
}


def _lengths(values: Sequence[int] | None) -> Any:
    return None if values is None else (ctypes.c_int64 * max(len(values), 1))(*values)


class Producer:
    """An array of float32, or of another dtype, that leaves by a capsule.

    Without arguments all is as it ought to be; each of them replaces one field of the tensor.

    shape, strides : in elements; None is a null pointer. `ndim` is shape's, unless given.
    data : an address; None a null pointer. Else memory of the producer's own, which is large.
    dtype : its name, or (code, bits, lanes).
    device : what the capsule says, and `told` what __dlpack_device__ does.
    name : the capsule's. versioned : which of both kinds it is, with this version and these flags.
    has_deleter : else the deleter is null. `deleted` counts its calls.
    """

    def __init__(
        self,
        shape: Sequence[int] | None = (2, 3),
        *,
        strides: Sequence[int] | None = None,
        ndim: int | None = None,
        data: Any = "own",
        byte_offset: int = 0,
        dtype: Any = "float32",
        device: tuple[int, int] = (CPU, 0),
        told: Any = (CPU, 0),
        name: bytes | None = None,
        versioned: bool = True,
        version: tuple[int, int] = (1, 1),
        flags: int = 0,
        has_deleter: bool = True,
        twice: bool = False,
    ) -> None:
        _held.difference_update(_released)
        _released.clear()
        self.memory = np.zeros(4096, np.uint8)
        self.told = told
        self.deleted = 0
        self.asked = 0
        self._shape, self._strides = _lengths(shape), _lengths(strides)
        code = _DTYPES[dtype] if isinstance(dtype, str) else dtype
        address = self.memory.ctypes.data if isinstance(data, str) else data
        pointer = ctypes.POINTER(ctypes.c_int64)
        tensor = Tensor(
            address,
            Device(*device),
            (len(shape) if shape is not None else 0) if ndim is None else ndim,
            DataType(*code),
            ctypes.cast(self._shape, pointer) if self._shape is not None else None,
            ctypes.cast(self._strides, pointer) if self._strides is not None else None,
            byte_offset,
        )
        self._delete = DELETER(self._deleted)
        deleter = ctypes.cast(self._delete, ctypes.c_void_p) if has_deleter else None
        self._managed: Any = (
            Versioned(*version, None, deleter, flags, tensor)
            if versioned
            else Managed(tensor, None, deleter)
        )
        # A capsule keeps no copy of its name.
        self._name = name or (b"dltensor_versioned" if versioned else b"dltensor")
        self._versioned, self._twice, self._capsule = versioned, twice, None

    def _deleted(self, _: Any) -> None:
        self.deleted += 1
        _released.append(self)

    def __dlpack_device__(self) -> Any:
        return self.told

    def __dlpack__(self, **_: Any) -> Any:
        self.asked += 1
        _held.add(self)
        if not self._twice or self._capsule is None:
            self._capsule = new_capsule(ctypes.addressof(self._managed), self._name, None)
        return self._capsule

    def __array_namespace__(self, **_: Any) -> Any:
        return np


def right() -> dict[str, Producer]:
    """Capsules that say what is so."""
    return {
        "versioned": Producer(),
        "unversioned": Producer(versioned=False),
        "no-deleter": Producer(has_deleter=False),
        "no-deleter-unversioned": Producer(has_deleter=False, versioned=False),
        "strides": Producer(strides=(1, 2)),
        "negative-strides": Producer(strides=(-3, -1), byte_offset=400),
        "repeated": Producer(strides=(0, 0)),
        "offset": Producer(byte_offset=64),
        "misaligned": Producer(byte_offset=1),
        "empty": Producer((0, 3), data=None),
        "empty-and-wide": Producer((0, 2**40), data=None),
        "scalar": Producer(()),
        "scalar-without-a-shape": Producer(None),
        "float64": Producer(dtype="float64"),
        "float16": Producer(dtype="float16"),
        "64-axes": Producer((1,) * 62 + (2, 3)),
    }


def wrong() -> dict[str, Producer]:
    """Capsules that would make a trusting consumer read or write what is not there."""
    huge = 2**32
    return {
        "no-data": Producer(data=None),
        "no-data-unversioned": Producer(data=None, versioned=False),
        "no-data-but-an-offset": Producer(data=None, byte_offset=4096),
        "no-shape": Producer(None, ndim=2),
        "no-shape-with-strides": Producer(None, ndim=2, strides=(3, 1)),
        "negative-ndim": Producer(ndim=-1),
        "least-ndim": Producer(ndim=-(2**31)),
        "65-axes": Producer((1,) * 65),
        "most-ndim": Producer((1,) * 65, ndim=2**31 - 1),
        "negative-length": Producer((-1, 3)),
        "negative-lengths": Producer((-2, -3)),
        "least-length": Producer((-(2**63), 1)),
        "size-wraps-to-0": Producer((huge, huge)),
        "size-wraps-to-0-with-strides": Producer((huge, huge), strides=(0, 0)),
        "bytes-wrap": Producer((2**61,)),
        "most-lengths": Producer((2**63 - 1, 2**63 - 1, 2**63 - 1)),
        "strides-wrap": Producer((2, 2), strides=(2**62, 2**62)),
        "least-stride": Producer((2, 2), strides=(-(2**63), 1)),
        "reach-wraps": Producer((2**20, 2), strides=(2**50, 1)),
        "below-address-0": Producer((3,), strides=(-(2**57),)),
        "offset-wraps": Producer(byte_offset=2**64 - 1),
        "offset-and-address-wrap": Producer(byte_offset=2**63, data=2**63 + 64),
        "no-bits": Producer(dtype=(FLOAT, 0, 1)),
        "odd-bits": Producer(dtype=(FLOAT, 33, 1)),
        "4-bits": Producer(dtype=(FLOAT, 4, 1)),
        "no-lanes": Producer(dtype=(FLOAT, 32, 0)),
        "4-lanes": Producer(dtype=(FLOAT, 32, 4)),
        "unknown-kind": Producer(dtype=(200, 32, 1)),
        "bfloat-32": Producer(dtype=(BFLOAT, 32, 1)),
        "on-a-gpu": Producer(device=(CUDA, 0)),
        "on-a-gpu-unversioned": Producer(device=(CUDA, 0), versioned=False),
        "on-an-unknown-device": Producer(device=(77, 0)),
        "told-a-gpu": Producer(told=(CUDA, 0)),
        "used": Producer(name=b"used_dltensor_versioned"),
        "used-unversioned": Producer(name=b"used_dltensor", versioned=False),
        "of-another-name": Producer(name=b"something else"),
        "version-2": Producer(version=(2, 0)),
        "version-0": Producer(version=(0, 8)),
    }
