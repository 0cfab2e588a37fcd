"""The handler for GPUs, on the emulated device: call frames are made by hand, as XLA makes them.

What JAX does before a call, and what needs no device, is tested on the CPU (test_jax.py).
"""

import ctypes
import json
import shutil
from math import prod
from pathlib import Path
from textwrap import dedent
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import arguments_of
from devices import EMULATED, emulated, needs_emulation, to_emulated
from jax_calls import QUANTIZE, jax, with_float64
from processes import output_of, python_output, run_program

import fastact as fa
from fastact import _jax
from fastact.interop import devices
from fastact.jax import bridge, device
from fastact.ops.engine.op import arrays_of

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
CALLS = [(op, name) for op in fa.ops.values() for name in ("call", "forward", "backward")]
CALLS += [(op, "quantized") for op in QUANTIZE]
DEVICE = 1  # not the first one, which is everybody's default
EXECUTE, PREPARE, BUFFER, TEXT = 3, 1, 1, 4

# --- XLA's structures, as far as the handler reads them (src/jax/ffi.h) ---------------------------

Pointer, Int, Size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
HEAD: list[Any] = [("struct_size", Size), ("extensions", Pointer)]


def structure(name: str, *fields: tuple[str, Any]) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": [*HEAD, *fields]})


Stream = structure("Stream", ("context", Pointer), ("stream", Pointer))
Allocation = structure(
    "Allocation", ("context", Pointer), ("size", Size), ("alignment", Size), ("data", Pointer)
)
Release = structure("Release", ("context", Pointer), ("size", Size), ("data", Pointer))
Failure = structure("Failure", ("message", ctypes.c_char_p), ("code", ctypes.c_int))


def function(of: Any) -> Any:
    return ctypes.CFUNCTYPE(Pointer, ctypes.POINTER(of))


Api = structure(
    "Api",
    *[("version_size", Size), ("version_extensions", Pointer)],
    *[("major", ctypes.c_int), ("minor", ctypes.c_int), ("internal", Pointer)],
    *[("create_error", function(Failure)), ("of_errors_and_handlers", Pointer * 3)],
    *[("get_stream", function(Stream)), ("of_types_and_state", Pointer * 4)],
    *[("allocate", function(Allocation)), ("free", function(Release))],
)
Buffer = structure(
    "Buffer", ("dtype", ctypes.c_int), ("data", Pointer), ("rank", Int), ("shape", Pointer)
)
Buffers = structure("Buffers", ("count", Int), ("kinds", Pointer), ("buffers", Pointer))
Attributes = structure(
    "Attributes", ("count", Int), ("kinds", Pointer), ("names", Pointer), ("values", Pointer)
)
CallFrame = structure(
    "CallFrame",
    *[("api", ctypes.POINTER(Api)), ("context", Pointer), ("stage", ctypes.c_int)],
    *[("inputs", Buffers), ("outputs", Buffers), ("attributes", Attributes)],
)
NUMBERS = dict(zip(("float16", "float32", "float64", "bfloat16"), (10, 11, 12, 16), strict=True))
NUMBERS |= {"bool": 1, "int32": 4, "int64": 5}


class Xla:
    """What XLA offers a handler: a stream, memory of the device, errors. `failing` fails."""

    def __init__(self, failing: str = "") -> None:
        self.stream = emulated.make_stream(DEVICE)
        self.lent: dict[int, Any] = {}  # by address
        self.messages: list[str] = []
        self.made: list[Any] = []  # what structures point to
        self.api = Api(
            create_error=function(Failure)(self.create_error),
            get_stream=function(Stream)(self.failed if failing == "stream" else self.get_stream),
            allocate=function(Allocation)(self.failed if failing == "memory" else self.allocate),
            free=function(Release)(self.free),
        )

    def create_error(self, failure: Any) -> int:
        self.messages.append(failure[0].message.decode())
        return len(self.messages)

    def failed(self, arguments: Any) -> int:
        self.messages.append("XLA's own words")
        return len(self.messages)

    def get_stream(self, arguments: Any) -> None:
        assert arguments[0].struct_size == ctypes.sizeof(Stream)
        arguments[0].stream = self.stream

    def allocate(self, arguments: Any) -> int | None:
        """XLA promises 16 bytes and refuses to be asked for more, whatever its allocator gives."""
        assert arguments[0].struct_size == ctypes.sizeof(Allocation)
        if arguments[0].alignment not in (1, 2, 4, 8, 16):
            self.messages.append(f"Unsupported alignment: {arguments[0].alignment}")
            return len(self.messages)
        memory = emulated.ExchangeArray.empty((arguments[0].size,), "uint8", DEVICE)
        self.lent[memory.data_ptr] = memory
        arguments[0].data = memory.data_ptr
        return None

    def free(self, arguments: Any) -> None:
        assert arguments[0].struct_size == ctypes.sizeof(Release)
        memory = self.lent.pop(arguments[0].data)
        assert memory.shape == (arguments[0].size,)

    def array(self, kind: Any, values: Any) -> Any:
        made = (kind * max(len(values), 1))(*values)
        self.made.append(made)
        return ctypes.cast(made, Pointer).value

    def buffers(self, arrays: Any) -> Any:
        made = [
            Buffer(
                dtype=NUMBERS[a.dtype],
                data=a.data_ptr if prod(a.shape) else None,
                rank=len(a.shape),
                shape=self.array(Int, a.shape),
            )
            for a in arrays
        ]
        self.made += made
        return Buffers(
            count=len(made),
            kinds=self.array(ctypes.c_int, [BUFFER] * len(made)),
            buffers=self.array(Pointer, [ctypes.addressof(buffer) for buffer in made]),
        )

    def frame(self, text: str, inputs: Any, outputs: Any, stage: int = EXECUTE) -> Any:
        data = text.encode()
        span = self.array(Size, [self.array(ctypes.c_char, data), len(data)])
        return CallFrame(
            api=ctypes.pointer(self.api),
            stage=stage,
            inputs=self.buffers(inputs),
            outputs=self.buffers(outputs),
            attributes=Attributes(
                count=1, kinds=self.array(ctypes.c_int, [TEXT]), values=self.array(Pointer, [span])
            ),
        )

    def error_of(self, frame: Any) -> str | None:
        """Of a call by the handler."""
        of_capsule = ctypes.pythonapi.PyCapsule_GetPointer
        of_capsule.restype, of_capsule.argtypes = Pointer, [ctypes.py_object, ctypes.c_char_p]
        address = of_capsule(_jax.device_handler(), None)
        number = ctypes.CFUNCTYPE(Pointer, ctypes.POINTER(CallFrame))(address)(frame)
        assert not self.lent
        return None if number is None else self.messages[number - 1]


float64 = pytest.fixture(autouse=True)(with_float64)


@pytest.fixture(autouse=True)
def on_the_emulated_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if EMULATED:
        monkeypatch.setattr(
            device, "device_of", lambda s: (devices.EMULATED, emulated.device_of_stream(s))
        )


to_device = to_emulated(emulated.ExchangeArray if EMULATED else None, DEVICE)


def to_host(array: Any) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, array.dtype, array.dtype))
    return np.frombuffer(array.tobytes(), dtype).reshape(array.shape)


@needs_emulation
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "entry"), CALLS, ids=lambda part: getattr(part, "name", part))
def test_the_bits_of_a_call_without_jax(op, dtype, entry, monkeypatch):
    """Queued on XLA's stream, with memory that XLA gave and got back."""
    args, kwargs = arguments_of(op, entry, dtype)
    if entry == "quantized":  # the emulated device has bool in the place of XLA's int8
        monkeypatch.setitem(NUMBERS, "bool", 2)
    template, arrays = bridge._taken_apart(bridge._point_of(op, entry), args, kwargs)
    traced = bridge.Traced(op, entry, template, arrays)
    inputs = [to_device(array) for array in arrays]
    models = [(o.shape, o.dtype.name.replace("int8", "bool")) for o in traced.outputs]
    outputs = [emulated.ExchangeArray.empty(*each, DEVICE) for each in models]
    function = op.entry_point(entry)
    args, kwargs = template.filled(inputs.__getitem__)
    given = set(map(id, inputs))
    made = {id(array): array for array in found_in(function(*args, **kwargs))}
    expected = [to_host(array) for number, array in made.items() if number not in given]
    emulated.clear_launches()
    xla = Xla()
    assert xla.error_of(xla.frame(traced.text, inputs, outputs)) is None
    assert {launch["stream"] for launch in emulated.launches()} == {xla.stream}
    assert len(outputs) == len(expected)
    for got, wanted in zip(map(to_host, outputs), expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.tobytes() == wanted.tobytes()


def found_in(value: Any) -> list[Any]:
    """The arrays of the emulated device in a result, as the trace finds them."""
    if isinstance(value, emulated.ExchangeArray):
        return [value]
    parts = arrays_of(value) if isinstance(value, tuple | fa.Moments) else ()
    return [found for part in parts for found in found_in(part)]


def call_of_mish(shape: Any = (3, 4), dtype: str = "float32") -> tuple[str, list[Any], list[Any]]:
    """A text, inputs and outputs."""
    text = json.dumps(["mish", "call", [{"buffer": 0}], {"out": {"buffer": 1}}, []])
    x = np.linspace(-2, 2, int(np.prod(shape)), dtype=dtype).reshape(shape)
    return text, [to_device(x)], [emulated.ExchangeArray.empty(shape, dtype, DEVICE)]


@needs_emulation
@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (5, 0)])
def test_small_arrays(shape):
    text, inputs, outputs = call_of_mish(shape)
    xla = Xla()
    assert xla.error_of(xla.frame(text, inputs, outputs)) is None
    assert to_host(outputs[0]).tobytes() == fa.mish(to_host(inputs[0])).tobytes()


@needs_emulation
def test_saved_float64_that_is_switched_off():
    jax.config.update("jax_enable_x64", False)
    logits = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    point = fa.cross_entropy.entry_points["forward"]
    template, arrays = bridge._taken_apart(point, (logits, np.array([0, 2, 1], np.int32)), {})
    traced = bridge.Traced(fa.cross_entropy, "forward", template, arrays)
    _, (*_, divisor) = fa.cross_entropy.forward(*arrays)
    assert [o.dtype for o in traced.outputs][-1] == np.uint32
    outputs = [
        emulated.ExchangeArray.empty(o.shape, o.dtype.name.replace("uint", "int"), DEVICE)
        for o in traced.outputs
    ]
    xla = Xla()
    assert xla.error_of(xla.frame(traced.text, list(map(to_device, arrays)), outputs)) is None
    assert outputs[-1].tobytes() == np.float64(divisor).tobytes()


@needs_emulation
def test_failures_are_errors_of_the_call():
    text, inputs, outputs = call_of_mish()
    total = json.dumps(["sum", "call", [{"buffer": 0}], {"out": {"buffer": 1}}, []])
    scalar = emulated.ExchangeArray.empty((), "float32", DEVICE)
    for made, failing, words in (
        ((text, inputs, [scalar]), "", "ValueError: fastact.mish: out must have shape (3, 4), got"),
        ((text, [], outputs), "", "IndexError"),
        ((text.replace("mish", "mush"), inputs, outputs), "", "KeyError: 'mush'"),
        ((text, inputs, outputs), "stream", "XLA's own words"),
        ((total, [to_device(np.ones(1 << 16, "f"))], [scalar]), "memory", "XLA's own words"),
    ):
        xla = Xla(failing)
        error = xla.error_of(xla.frame(*made))
        assert error is not None
        assert error.startswith(words)
        assert len(xla.messages) == 1


@needs_emulation
def test_what_is_no_call_computes_nothing():
    text, inputs, outputs = call_of_mish()
    emulated.clear_launches()
    xla = Xla()
    assert xla.error_of(xla.frame(text, inputs, outputs, PREPARE)) is None
    assert not emulated.launches()


def test_memory_of_a_call_that_is_over_is_refused():
    with pytest.raises(RuntimeError, match=r"fastact\.jax: the call .* is over"):
        _jax.DeviceMemory().empty((3,), np.float32)


def test_it_is_registered_where_the_extension_is():
    """Under the name that programs call on the CPU, too; here the extension is any module."""
    code = dedent("""
        import importlib.util as util, jax
        jax.config.update("jax_platforms", "cpu")
        find, seen = util.find_spec, []
        util.find_spec = lambda name, *more: name == "fastact._cuda" or find(name, *more)
        jax.ffi.register_ffi_target = lambda name, handler, platform: seen.append((name, platform))
        import fastact.jax
        assert seen == [("fastact", "cpu"), ("fastact", "CUDA")], seen
    """)
    python_output(code)


# Our structures and fields, with XLA's names where those differ.
SAME = {
    "CallFrame": ("CallFrame", "api context=ctx stage inputs=args outputs=rets attributes=attrs"),
    "Api": (
        "Api",
        "create_error=XLA_FFI_Error_Create get_stream=XLA_FFI_Stream_Get "
        "allocate=XLA_FFI_DeviceMemory_Allocate free=XLA_FFI_DeviceMemory_Free",
    ),
    "Buffer": ("Buffer", "dtype data rank shape=dims"),
    "Buffers": ("Args", "count=size kinds=types buffers=args"),
    "Attributes": ("Attrs", "count=size kinds=types names values=attrs"),
    "Text": ("ByteSpan", "data=ptr size=len"),
    "Metadata": ("Metadata", "version=api_version traits"),
    "Version": ("Api_Version", "major_version minor_version"),
    "ErrorArguments": ("Error_Create_Args", "message code=errc"),
    "StreamArguments": ("Stream_Get_Args", "context=ctx stream"),
    "AllocateArguments": ("DeviceMemory_Allocate_Args", "context=ctx size alignment data"),
    "FreeArguments": ("DeviceMemory_Free_Args", "context=ctx size data"),
}


def test_the_structures_are_those_of_jaxlib(tmp_path):
    """Of the one that is installed, by its own header."""
    compiler, sources = shutil.which("c++"), Path(__file__).parents[2] / "src"
    include = Path(pytest.importorskip("jaxlib").__file__).parent / "include"
    if compiler is None or not sources.is_dir() or not (include / "xla/ffi/api/c_api.h").exists():
        pytest.skip("needs a compiler, the sources and jaxlib's header")
    lines = ['#include "jax/ffi.h"', '#include "xla/ffi/api/c_api.h"']
    for name, (theirs, fields) in SAME.items():
        for pair in fields.split():
            field, _, of_theirs = pair.partition("=")
            lines.append(
                f"static_assert(offsetof(fastact::xla::{name}, {field}) == "
                f'offsetof(XLA_FFI_{theirs}, {of_theirs or field}), "{name}.{field}");'
            )
    lines.append("static_assert(fastact::xla::kExecute == XLA_FFI_ExecutionStage_EXECUTE);")
    source = tmp_path / "same.cpp"
    source.write_text("\n".join([*lines, ""]))
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{sources}", f"-I{include}", source]
    output_of(run_program(*command))
