"""The emulated device's arrays, by DLPack and its C exchange API, and instructions, by PTX's."""

import ctypes
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from capsules import Tensor
from judged import refused

emulated = pytest.importorskip(
    "fastact._cuda_emulated", reason="built with FASTACT_CUDA_EMULATION=ON only"
)
pytestmark = pytest.mark.usefixtures("held")  # no test leaves an array there


@pytest.fixture(params=["Array", "ExchangeArray"])
def kind(request: pytest.FixtureRequest) -> Any:
    return getattr(emulated, request.param)


def make(kind: Any, array: np.ndarray, device: int = 0) -> Any:
    contiguous = np.ascontiguousarray(array)
    return kind.from_bytes(contiguous.tobytes(), array.dtype.name, array.shape, device)


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "uint8"])
def test_array(kind: Any, dtype: str, device: int, held: Any) -> None:
    x = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    a = make(kind, x, device)
    assert (a.shape, a.strides, a.dtype, a.device) == (x.shape, x.strides, dtype, device)
    assert a.__dlpack_device__() == (12, device)
    assert a.data_ptr % 256 == 0
    assert a.tobytes() == x.tobytes()
    assert held() == x.nbytes
    assert make(kind, x[:0]).tobytes() == b""
    assert kind.from_bytes(memoryview(b"\0\0"), "bfloat16", ()).shape == ()


def test_views(kind: Any) -> None:
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    a = make(kind, x)
    for view in [x.T, x[::-1, 1::2], x[2], np.broadcast_to(x[1], (3, 6)), x[3:, 5:]]:
        offset = view.__array_interface__["data"][0] - x.__array_interface__["data"][0]
        seen = a.view(view.shape, view.strides, offset)
        assert (seen.shape, seen.strides) == (view.shape, view.strides)
        assert seen.data_ptr == a.data_ptr + offset
        assert seen.tobytes() == view.tobytes()
    del a
    assert seen.tobytes() == x[3:, 5:].tobytes()
    refused("part of an element", seen.view, (2,), (3,), error=ValueError)


def test_uninitialised_array(kind: Any) -> None:
    a = kind.empty((2, 3), "float32", device=1)
    assert a.device == 1
    refused("uninitialised global memory: the host reads", a.tobytes, error=emulated.Fault)
    refused("out of bounds", a.view((7,), (4,)).tobytes, error=emulated.Fault)


def test_bad_arguments(kind: Any) -> None:
    refused("no dtype complex64", kind.empty, (), "complex64")
    refused("device 3", kind.empty, (), "float32", 3, error=ValueError)
    refused("takes 8 bytes, got 4", kind.from_bytes, b"1234", "float32", (2,), error=ValueError)


@pytest.mark.parametrize("old", [False, True])
def test_dlpack(kind: Any, old: bool, held: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    stream = emulated.make_stream(0)

    class Producer:
        def __init__(self) -> None:
            self.array = make(kind, x).view((3, 2), (4, 12))

        def __dlpack__(self, stream: Any, max_version: Any) -> Any:
            assert max_version == (1, 1)
            return self.array.__dlpack__(stream=stream, max_version=None if old else max_version)

    emulated.clear_seen_streams()
    b = kind.from_dlpack(Producer(), stream)
    assert emulated.seen_streams() == [stream]
    assert (b.shape, b.strides) == ((3, 2), (4, 12))
    assert b.tobytes() == x.T.tobytes()
    del b
    assert held() == 0


def test_capsules_are_released(kind: Any, held: Any) -> None:
    a = kind.empty((4,), "float32")
    capsules = [a.__dlpack__(), a.__dlpack__(max_version=(1, 0), stream=None)]
    assert "dltensor" in repr(capsules[0])
    assert "dltensor_versioned" in repr(capsules[1])
    del a
    assert held() == 16
    del capsules
    assert held() == 0


def test_refused_exports(kind: Any) -> None:
    a = kind.empty((4,), "float32")
    refused("does not copy", a.__dlpack__, copy=True, error=BufferError)
    refused("does not move", a.__dlpack__, dl_device=(12, 1), error=BufferError)
    refused("read-only", a.view((4,), (4,), readonly=True).__dlpack__, error=BufferError)
    refused("device type 1", kind.from_dlpack, np.zeros(3), error=BufferError)


def test_exchange_api_is_not_inherited() -> None:
    assert not hasattr(emulated.Array, "__dlpack_c_exchange_api__")
    assert not issubclass(emulated.ExchangeArray, emulated.Array)
    assert '"dlpack_exchange_api"' in repr(emulated.ExchangeArray.__dlpack_c_exchange_api__)


def test_current_stream() -> None:
    stream = emulated.make_stream(1)
    assert stream != 0
    emulated.set_current_stream(1, stream)
    assert (emulated.current_stream(0), emulated.current_stream(1)) == (0, stream)
    emulated.set_current_stream(1, 0)
    assert emulated.current_stream(1) == 0


# --- The C exchange API ------------------------------------------------------------------------


Out = ctypes.POINTER(ctypes.c_void_p)
SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class ExchangeApi(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        (
            "allocate",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(Tensor), Out, ctypes.c_void_p, SetError),
        ),
        ("managed_from_object", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, Out)),
        (
            "object_from_managed",
            ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object)),
        ),
        ("borrow", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))),
        ("current_stream", ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, Out)),
    )


@pytest.fixture
def api() -> ExchangeApi:
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype = ctypes.c_void_p
    pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
    capsule = emulated.ExchangeArray.__dlpack_c_exchange_api__
    return ExchangeApi.from_address(pointer_of(capsule, b"dlpack_exchange_api"))


def object_of(api: ExchangeApi, managed: ctypes.c_void_p) -> Any:
    made = ctypes.py_object()
    assert api.object_from_managed(managed, ctypes.byref(made)) == 0
    result = made.value  # a second reference: ctypes does not own the one that was written
    ctypes.pythonapi.Py_DecRef(made)
    return result


def test_exchange(api: ExchangeApi, held: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    a = make(emulated.ExchangeArray, x, device=1).view((3, 2), (4, 12))
    assert api.version[0] == 1
    managed = ctypes.c_void_p()
    assert api.managed_from_object(a, ctypes.byref(managed)) == 0
    b = object_of(api, managed)
    assert type(b) is emulated.ExchangeArray
    assert (b.shape, b.strides, b.device, b.data_ptr) == ((3, 2), (4, 12), 1, a.data_ptr)
    del a
    assert b.tobytes() == x.T.tobytes()

    borrowed = Tensor()
    assert api.borrow(b, ctypes.byref(borrowed)) == 0
    assert borrowed.data + borrowed.byte_offset == b.data_ptr
    assert (borrowed.device.type, borrowed.device.id, borrowed.ndim) == (12, 1, 2)
    assert (*borrowed.shape[:2], *borrowed.strides[:2]) == (3, 2, 1, 3)

    assert api.allocate(ctypes.byref(borrowed), ctypes.byref(managed), None, SetError()) == 0
    c = object_of(api, managed)
    assert (c.shape, c.strides, c.device, c.dtype) == ((3, 2), (8, 4), 1, "float32")
    del b, c
    assert held() == 0


def test_exchange_current_stream(api: ExchangeApi) -> None:
    stream = emulated.make_stream(1)
    emulated.set_current_stream(1, stream)
    seen = ctypes.c_void_p()
    assert api.current_stream(12, 1, ctypes.byref(seen)) == 0
    assert seen.value == stream
    emulated.set_current_stream(1, 0)
    with pytest.raises(ValueError, match="not an emulated device"):
        api.current_stream(2, 1, ctypes.byref(seen))


def test_exchange_errors(api: ExchangeApi) -> None:
    with pytest.raises(RuntimeError):
        api.borrow(3, ctypes.byref(Tensor()))
    told: list[bytes] = []
    prototype = Tensor(device=(2, 0))
    report = SetError(lambda _, kind, message: told.extend([kind, message]))
    managed = ctypes.c_void_p()
    assert api.allocate(ctypes.byref(prototype), ctypes.byref(managed), None, report) == -1
    assert told == [b"ValueError", b"not an emulated device"]


emulated: Any = pytest.importorskip(
    "fastact._cuda_emulated", reason="built with FASTACT_CUDA_EMULATION=ON only"
)
of: Any = emulated.selftest
TINY = float(np.finfo(np.float32).tiny)


def apart(found: float, exact: float) -> float:
    """In units of float32's last place."""
    return abs(found - exact) / float(np.spacing(np.float32(abs(exact))))


def test_powers_of_two() -> None:
    """Within 2 ULP, and not always the nearest; exact where they can be; flushed below 2^-126."""
    x = np.random.default_rng(0).uniform(-126, 127, 5000).astype(np.float32).tolist()
    errors = [apart(of.power_of_two(a), 2.0**a) for a in x]
    assert 0.5 < max(errors) <= 2
    assert all(of.power_of_two(float(k)) == 2.0**k for k in range(-126, 128))
    assert of.power_of_two(-126.5) == of.power_of_two(-math.inf) == 0
    assert of.power_of_two(1e-40) == of.power_of_two(-1e-40) == 1  # flushed itself
    assert of.power_of_two(128.0) == math.inf
    assert math.isnan(of.power_of_two(math.nan))


@pytest.mark.parametrize(
    ("name", "bits", "end"), [("reciprocal", 23, 2.0**126), ("reciprocal64", 20, 2.0**1022)]
)
def test_reciprocals(name: str, bits: int, end: float) -> None:
    """As many bits, and zero or infinity in place of subnormal numbers: 1 / x beyond 2^126."""
    reciprocal: Callable[[float], float] = getattr(of, name)
    x = (10.0 ** np.random.default_rng(1).uniform(-30, 30, 5000)).astype(np.float32).tolist()
    errors = [abs(reciprocal(a) * a - 1) for a in x]
    assert 0 < max(errors) <= 2.0**-bits
    for sign in (1.0, -1.0):
        assert reciprocal(sign * end) == sign / end
        for zero in (reciprocal(sign * end * 1.5), reciprocal(sign * math.inf)):
            assert (zero, math.copysign(1, zero)) == (0, sign)
        subnormal = 1e-40 if bits == 23 else 1e-310
        assert reciprocal(sign * subnormal) == reciprocal(sign * 0.0) == sign * math.inf
    assert math.isnan(reciprocal(math.nan))


def test_minimum_and_maximum() -> None:
    """-0 is below +0; of a number and a NaN it is the number."""
    for a, b in ((0.0, -0.0), (-0.0, 0.0)):
        assert math.copysign(1, of.minimum(a, b)) == -1
        assert math.copysign(1, of.maximum(a, b)) == 1
    for a, b in ((1.5, math.nan), (math.nan, 1.5)):
        assert of.minimum(a, b) == of.maximum(a, b) == 1.5
    assert (of.minimum(2.0, -3.0), of.maximum(2.0, -3.0)) == (-3, 2)
    assert math.isnan(of.minimum(math.nan, math.nan))
