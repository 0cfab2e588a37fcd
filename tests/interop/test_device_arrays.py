"""Arrays on a device that tell where they are by `__cuda_array_interface__`, as Numba's do.

On the emulated device, by a stand-in for Numba with as much of `numba.cuda` as results are made by;
Numba's own functions are held to have those parameters.
"""

import inspect
import sys
from types import MappingProxyType, SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from calls import arguments_of
from devices import EMULATED, Plain, emulated, needs_emulation, refuse_stream, to_emulated
from judged import refused
from processes import TESTS, output_of, run_python

import fastact as fa
from fastact.interop import devices, streams
from fastact.ops.engine.op import arrays_of

DEVICE = 1  # not the first one, which is everybody's default
EXCHANGE = to_emulated(emulated.ExchangeArray, DEVICE) if EMULATED else None


class Interface:
    """An array as Numba has it; `told` replaces what its interface says."""

    __module__ = "numba.cuda.cudadrv.devicearray"

    def __init__(
        self, held: Any, stream: int = 0, readonly: bool = False, told: Any = MappingProxyType({})
    ) -> None:
        self.held, self.stream, self.readonly, self.told = held, stream, readonly, told
        self.shape, self.strides, self.dtype = held.shape, held.strides, np.dtype(held.dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "strides": self.strides,
            "data": (self.held.data_ptr if 0 not in self.shape else 0, self.readonly),
            "typestr": self.dtype.str,
            "stream": self.stream or None,
            "version": 3,
        } | dict(self.told)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("copied to the host")


class _Current:
    """Numba's guard of a device: new arrays are made there."""

    device = 0

    def __init__(self, device: int) -> None:
        self.wanted = device

    def __enter__(self) -> None:
        self.before, _Current.device = _Current.device, self.wanted

    def __exit__(self, *_: Any) -> None:
        _Current.device = self.before


def device_array(shape: Any, dtype: Any, strides: Any, stream: int) -> Interface:
    held = emulated.ExchangeArray.empty(shape, np.dtype(dtype).name, _Current.device)
    return Interface(held.view(shape, strides), stream)


@pytest.fixture(autouse=True)
def numba(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = SimpleNamespace(
        gpus=[_Current(n) for n in range(3)],
        device_array=device_array,
        external_stream=lambda stream: stream,
        legacy_default_stream=lambda: streams.LEGACY,
        per_thread_default_stream=lambda: streams.PER_THREAD,
    )
    config = SimpleNamespace(CUDA_PER_THREAD_DEFAULT_STREAM=0)
    monkeypatch.setitem(sys.modules, "numba", SimpleNamespace(config=config, cuda=cuda))
    monkeypatch.setitem(sys.modules, "numba.cuda", cuda)
    if EMULATED:
        emulated.clear_events()
        emulated.clear_launches()


def of(array: np.ndarray, on: int = 0, /, readonly: bool = False, **told: Any) -> Interface:
    """NumPy's array on the device, and on a stream."""
    return Interface(EXCHANGE(array), on, readonly, told)


def bits_of(result: Any, kind: Any) -> list[Any]:
    """The bytes of each array in a result, which are all of that kind."""
    found = []
    for one in arrays_of(result) if isinstance(result, tuple | fa.Moments) else (result,):
        if isinstance(one, tuple | fa.Moments):
            found += bits_of(one, kind)
        elif one is not None and not isinstance(one, int | float | bool):
            assert type(one) is kind
            held = one.held if kind is Interface else one
            found.append((held.shape, held.dtype, held.device, held.tobytes()))
    return found


@needs_emulation
@pytest.mark.parametrize("entry", ["call", "forward", "backward"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
def test_the_bits_of_arrays_with_dlpack(op, dtype, entry):
    """And the results are the caller's own, on the device where the arguments are."""
    args, kwargs = arguments_of(op, entry, dtype)
    function = op.entry_point(entry)

    def run(make: Any, kind: Any) -> Any:
        def made(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(made, value))
            # NumPy's scalars, as what a loss saves, are its arrays of no axes.
            return make(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value

        result = function(*map(made, args), **{name: made(v) for name, v in kwargs.items()})
        return bits_of(result, kind)

    assert run(of, Interface) == run(EXCHANGE, emulated.ExchangeArray)


@needs_emulation
def test_layouts_and_outputs():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    for seen in (x, x.T, x[::-1, ::-2], x[1], x[:0], np.asarray(x[0, 0])):
        y = fa.mish(of(seen))
        assert y.shape == seen.shape
        assert y.held.tobytes() == fa.mish(seen).tobytes()
        out = of(np.zeros_like(seen))
        assert fa.mish(of(seen), out=out) is out
        assert out.held.tobytes() == fa.mish(seen).tobytes()
    assert fa.mish(of(x.T)).strides == x.T.strides
    assert fa.mish(of(x, strides=None)).held.tobytes() == fa.mish(x).tobytes()
    refused("out must be writable", fa.mish, of(x), out=of(x, readonly=True), error=ValueError)


@needs_emulation
def test_streams():
    """A call works on its first array's stream; it waits for the others', and they for it."""
    x = np.ones(4, np.float32)
    first, other = emulated.make_stream(DEVICE), emulated.make_stream(DEVICE)
    y = fa.mish(of(x, first))
    assert [launch["stream"] for launch in emulated.launches()] == [first]
    assert y.stream == first
    assert emulated.events() == []
    out = of(x, other)
    fa.mish(of(x, first), out=out)
    order = [(event[0], event[2]) for event in emulated.events()]
    assert order == [("record", other), ("wait", first), ("record", first), ("wait", other)]
    for told, used in ((0, 1), (1, 1), (2, 2)):
        emulated.clear_launches()
        fa.mish(of(x, told))
        assert [launch["stream"] for launch in emulated.launches()] == [used]
    emulated.clear_launches()
    fa.mish(of(x, version=2, stream="of no meaning"))
    sys.modules["numba"].config.CUDA_PER_THREAD_DEFAULT_STREAM = 1
    fa.mish(of(x))
    fa.mish(of(x), stream=other)
    assert [launch["stream"] for launch in emulated.launches()] == [1, 2, other]


WRONG = {
    "a mask": ({"mask": 3}, "a mask, which would be lost"),
    "stream 0": ({"stream": 0}, "must be None, 1, 2 or the address of one, got 0"),
    "stream -1": ({"stream": -1}, "got -1"),
    "bfloat16": ({"typestr": "|V2"}, "bfloat16 has no typestr: such an array needs DLPack"),
    "a typestr": ({"typestr": 4}, "its typestr 4 names no dtype"),
    "byte order": ({"typestr": ">f4"}, "not of native byte order"),
    "no data": ({"data": (0, False)}, "it has no data"),
    "no pair": ({"data": 0}, "must be a dict with shape, typestr, data and version"),
    "no version": ({"version": None}, "has version None"),
    "a length": ({"shape": (-1,)}, "reach past all memory"),
    "half a length": ({"shape": (1.5,)}, r"has shape \(1.5,\)"),
    "many elements": ({"shape": (2**40, 2**40), "strides": None}, "reach past all memory"),
    "strides": ({"strides": (2**62,)}, "reach past all memory"),
    "few strides": ({"strides": ()}, r"and strides \(\)"),
    "its memory": ({"data": (64, False)}, "of no device that CUDA knows"),
}


@needs_emulation
@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_honoured_is_refused(name, monkeypatch):
    told, words = WRONG[name]
    if name == "its memory":  # where CUDA can be asked: without it, the error says that
        monkeypatch.setattr(devices, "cuda_why", lambda: "")
        monkeypatch.setattr(devices, "_module", lambda: emulated)
    emulated.clear_launches()
    x = np.ones(4, np.float32)
    refused(f"mish: x must be a dense array .*{words}", fa.mish, of(x, **told))
    assert emulated.launches() == []


def test_nothing_is_copied_to_the_host():
    """Not without a CUDA extension, not beside arrays of another framework, not in a list."""
    somewhere = SimpleNamespace(shape=(3,), strides=(4,), dtype="float32", data_ptr=4096)
    x = Interface(somewhere)
    if devices.cuda_why():
        refused(r"array on cuda:0, but .*copy_to_host", fa.mish, x, error=fa.CudaUnavailableError)
    ones = np.ones(3, np.float32)
    for call in (
        lambda: fa.layer_norm(ones, x),
        lambda: fa.mish([x, x]),
        lambda: fa.mish(ones, out=x),
        lambda: fa.layer_norm(ones, eps=x),
    ):
        with pytest.raises(TypeError):
            call()


@needs_emulation
def test_who_makes_no_arrays_is_given_them():
    """An array of an unknown package: computed on its device, into `out`."""

    class Unknown(Interface):
        __module__ = "somebody.arrays"

    x = np.ones(4, np.float32)
    refused(r"mish: out must be given, for somebody has no", fa.mish, Unknown(EXCHANGE(x)))
    out = Unknown(EXCHANGE(np.zeros(4, np.float32)))
    fa.mish(Unknown(EXCHANGE(x)), out=out)
    assert out.held.tobytes() == fa.mish(x).tobytes()


@needs_emulation
def test_negative_strides_of_who_has_both():
    """CuPy's capsules write them as unsigned; what it tells by its interface is right."""

    class Both(Plain):
        asked = 0

        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            Both.asked += 1
            return Interface(self.held).__cuda_array_interface__

        def __dlpack__(self, **named: Any) -> Any:
            assert min(self.strides) >= 0
            return super().__dlpack__(**named)

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for seen in (x, x[::-1], x[:, ::-1].T):
        assert fa.mish(Both(EXCHANGE(seen))).held.tobytes() == fa.mish(seen).tobytes()
    assert Both.asked == 2


@needs_emulation
def test_a_dtype_that_the_framework_lacks():
    """JAX makes float32 where float64 is asked for, unless it is told otherwise."""

    class Narrow(Plain):
        def __array_namespace__(self) -> Any:
            found = super().__array_namespace__()
            empty = found.empty
            found.empty = lambda shape, dtype, device: empty(
                shape, "float32" if dtype == "float64" else dtype, device
            )
            return found

    logits, target = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([0, 2])
    _, saved = fa.cross_entropy.forward(Narrow(EXCHANGE(logits)), Narrow(EXCHANGE(target)))
    assert np.frombuffer(saved[-1].held.tobytes()) == [2.0]


@needs_emulation
def test_only_documented_streams_are_asked_for():
    """By any op, of a producer that refuses what some framework refuses (`devices.Plain`)."""
    for stream in (-1, 0):
        with pytest.raises((ValueError, AssertionError)):
            refuse_stream(stream)
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for op in fa.ops.values():
        args, kwargs = arguments_of(op, "call", np.float32)
        args = [Plain(EXCHANGE(a)) if isinstance(a, np.ndarray) else a for a in args]
        kwargs = {
            k: Plain(EXCHANGE(a)) if isinstance(a, np.ndarray) else a for k, a in kwargs.items()
        }
        op(*args, **kwargs)
    emulated.set_current_stream(DEVICE, 0)
    emulated.clear_seen_streams()
    fa.mish(Plain(EXCHANGE(x)))
    assert set(emulated.seen_streams()) == {streams.LEGACY}


def test_numbas_own_functions_take_what_is_given(monkeypatch):
    monkeypatch.undo()
    cuda = pytest.importorskip("numba.cuda")
    inspect.signature(cuda.device_array).bind((3,), np.float32, strides=(4,), stream=0)
    for name in ("external_stream", "legacy_default_stream", "per_thread_default_stream", "gpus"):
        assert hasattr(cuda, name)
    numba = pytest.importorskip("numba")
    assert numba.config.CUDA_PER_THREAD_DEFAULT_STREAM in (0, False)


def test_bfloat16_has_no_typestr():
    assert np.dtype(ml_dtypes.bfloat16).str == "<V2"


# --- on a GPU alone -------------------------------------------------------------------------------

ON_A_GPU = {
    "jax": """
import jax
jax.config.update("jax_enable_x64", True)
if jax.default_backend() != "gpu":
    raise SystemExit(77)
kind, of, to_host = jax.Array, jax.numpy.asarray, np.asarray
""",
    "numba": """
from numba import cuda
if not cuda.is_available():
    raise SystemExit(77)
kind, of, to_host = type(cuda.device_array(3)), cuda.to_device, lambda array: array.copy_to_host()
""",
}


@pytest.mark.skipif(bool(devices.cuda_why()), reason=devices.cuda_why() or "-")
@pytest.mark.parametrize("name", ON_A_GPU)
def test_each_op_on_a_gpu(name):
    """In a process of its own: JAX starts threads, and other tests fork."""
    pytest.importorskip(name)
    code = f"""
import numpy as np, fastact as fa
from calls import arguments_of
from fastact.ops.engine.op import arrays_of
{ON_A_GPU[name]}
def made(value):
    if isinstance(value, tuple):
        return tuple(map(made, value))
    return of(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value

def found_in(value):
    parts = arrays_of(value) if isinstance(value, tuple | fa.Moments) else ()
    if not isinstance(value, tuple | fa.Moments):
        return [] if value is None or type(value) in (int, float) else [value]
    return [found for part in parts for found in found_in(part)]

for op in fa.ops.values():
    for entry in ("call", "forward", "backward"):
        args, kwargs = arguments_of(op, entry, np.float32)
        function = op.entry_point(entry)
        expected = found_in(function(*args, **kwargs))
        got = found_in(function(*made(tuple(args)), **{{n: made(v) for n, v in kwargs.items()}}))
        assert len(got) == len(expected), (op.name, entry)
        for one, wanted in zip(got, expected):
            assert isinstance(one, kind), (op.name, entry, type(one))
            # float32 sums of a dozen numbers, in another order
            np.testing.assert_allclose(to_host(one), wanted, 1e-5, 1e-5, err_msg=op.name)
"""
    done = run_python(code, PYTHONPATH=str(TESTS))
    if done.returncode == 77:
        pytest.skip(f"{name} finds no GPU")
    output_of(done)
