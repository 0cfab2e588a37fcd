"""Arrays of any framework: seen as `View`s on the way in, made by their framework on the way out.

No framework is ever imported here. NumPy is native; a type with `__dlpack_c_exchange_api__` (torch)
is borrowed and made through that C API; anything else with `__dlpack__` comes in by a capsule and
goes out by `from_dlpack` of its own `__array_namespace__`; what has `__cuda_array_interface__`
alone comes in by that (interface.py). Lists, scalars and the like are NumPy's.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import _cpu
from .._cpu import View
from . import devices, foreign, interface, streams, validate
from .devices import CPU
from .foreign import OF_INTERPRETER

T = TypeVar("T")

#: Frameworks whose arrays nobody writes.
IMMUTABLE = frozenset({"jax", "tensorflow"})
# Packages whose arrays' types live in another one.
_OWNERS = {"jaxlib": "jax"}


class Place(NamedTuple):
    """The place where a call computes: DLPack's device pair, and the stream (None on the CPU)."""

    device: tuple[int, int]
    stream: int | None


class Framework:
    """One way for arrays in and out. What is not said otherwise is as on the CPU."""

    name: str
    computes = True  # False: its arrays have no values
    makes_arrays = True  # whether it has a way to an array of memory that was made here

    def device(self, array: Any) -> tuple[int, int]:
        """DLPack's device pair of an array; the CPU's of one with a fault, which `view` names."""
        try:
            return self.tell_device(array)
        except OF_INTERPRETER:
            raise
        except Exception:  # each framework has errors of its own for this; a tracer has any
            return (CPU, 0)

    def tell_device(self, array: Any) -> tuple[int, int]:
        """Ask the framework for it; it may raise anything."""
        return (CPU, 0)

    def stream(self, device: tuple[int, int], array: Any) -> int:
        """Return the stream on which the framework now works on an array's device, not the CPU."""
        return streams.LEGACY

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        """See an array of this framework."""
        raise NotImplementedError

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        """New memory as `model` describes it, to be filled; `finish` makes the array of it.

        like: an array of the framework on the device of the model, and of its dtype unless that
        has another size.
        """
        raise NotImplementedError

    def scratch(self, nbytes: int, like: Any, place: Place) -> tuple[View, Any]:
        """Memory for the time of a call, and what holds it."""
        memory = np.empty(nbytes, np.uint8)
        return View.from_numpy(memory), memory

    def finish(self, made: Any, wait: Callable[[Any], None], kept: tuple[Any, ...]) -> Any:
        """Return the framework's array for memory that is filled, or will be, on the call's stream.

        wait: lets a stream of the framework's wait for the call's. kept: what the kernels read.
        """
        return made

    def has_run(self, arrays: Iterable[Any], place: Place) -> None:
        """Kernels that read or write these arrays are queued: the framework's work comes after."""


def _dtype_of_numpy(name: str) -> Any:
    if name != "bfloat16":
        return name
    if "ml_dtypes" not in sys.modules:
        raise TypeError("fastact: NumPy has no bfloat16; import ml_dtypes, which adds it")
    dtype = np.dtype(name)
    _cpu.learn_bfloat16(dtype)
    return dtype


class _NumPy(Framework):
    name = "numpy"

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        dtype = array.dtype
        if dtype.kind == "V" and dtype.name == "bfloat16":
            _cpu.learn_bfloat16(dtype)
        return View.from_numpy(np.asarray(array))

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        order, shape = model.order, model.shape
        kind = "V" if model.dtype_name == "bfloat16" else "f"  # cheaper than NumPy's `dtype.name`
        is_like = like.dtype.kind == kind and like.dtype.itemsize == model.itemsize
        dtype = like.dtype if is_like else _dtype_of_numpy(model.dtype_name)
        made = np.empty([shape[axis] for axis in order], dtype)
        if len(order) > 1:
            made = made.transpose(inverse(order))
        return View.from_numpy(made), made

    def finish(self, made: Any, wait: Callable[[Any], None], kept: tuple[Any, ...]) -> Any:
        is_number = made.ndim == 0 and made.dtype != np.bool_  # bytes may be seen as another dtype
        return made[()] if is_number else made


class _Exchange(Framework):
    def __init__(self, tensor_type: type, api: Any) -> None:
        self.name = _root(tensor_type)
        self.api = api

    def tell_device(self, array: Any) -> tuple[int, int]:
        return View.from_exchange(array, self.api).device

    def stream(self, device: tuple[int, int], array: Any) -> int:
        return _cpu.exchange_stream(self.api, device) or streams.LEGACY

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        view = _asked(where, argument, array, View.from_exchange, array, self.api)
        if view.size and view.address == 0:
            raise _not_exportable(where, argument, array, "it has no data")
        return view

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        memory = _cpu.Memory(model, self.api)
        return memory.view(), memory

    def scratch(self, nbytes: int, like: Any, place: Place) -> tuple[View, Any]:
        if place.device[0] == CPU:
            return super().scratch(nbytes, like, place)
        model = View.on_device(np.empty(nbytes, np.uint8), place.device)
        memory = _cpu.Memory(model, self.api)
        return memory.view(), memory

    def finish(self, made: Any, wait: Callable[[Any], None], kept: tuple[Any, ...]) -> Any:
        return made.to_exchange(self.api)


class _Seen(NamedTuple):
    """New memory of a framework's on a device, and the array that the framework has of it."""

    view: View
    array: Any


class _DLPack(Framework):
    def __init__(self, array_type: type) -> None:
        self.name = _root(array_type)
        self.namespace: Any = None

    @property
    def makes_arrays(self) -> bool:  # type: ignore[override]
        return hasattr(self.namespace, "from_dlpack")

    def tell_device(self, array: Any) -> tuple[int, int]:
        return _cpu.plain_device(*array.__dlpack_device__())

    def stream(self, device: tuple[int, int], array: Any) -> int:
        return streams.current(self.name, device[1]) or streams.LEGACY

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        if argument.startswith("out") and self.name in IMMUTABLE:
            raise TypeError(
                f"{where}: out must be an array that can be written, got one of {self.name}, whose "
                f"arrays are immutable"
            )
        self.namespace = self.namespace or namespace(array)
        if place.device[0] != CPU and interface.has_negative_strides(array):
            return _by_interface(where, argument, array, place)  # CuPy's capsules can't say them
        return _asked(where, argument, array, _by_capsule, array, place.stream)

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        if place.device[0] == CPU:
            memory = _cpu.Memory(model)
            return memory.view(), memory
        order, shape = model.order, model.shape
        same = str(like.dtype).rpartition(".")[2] == model.dtype_name
        if not same and streams.current(self.name, place.device[1]) is None:
            return self._of_bytes(model, like, place)
        dtype = like.dtype if same else getattr(self.namespace, model.dtype_name)
        made = self._empty(tuple(shape[axis] for axis in order), dtype, like)
        if order != tuple(range(len(order))):
            permute = getattr(self.namespace, "permute_dims", None) or self.namespace.transpose
            made = permute(made, inverse(order))
        view = self.view("fastact", "the output", made, place)
        return view, _Seen(view, made)

    def _of_bytes(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        """New memory for a wider dtype, which the framework may lack: JAX has float64 if told so.

        `from_dlpack` then takes it as it takes any other framework's.
        """
        memory, made = self.scratch(model.size * model.itemsize, like, place)
        steps = interface.steps(model.shape, model.order, model.itemsize)
        seen = interface.described(
            memory.address, model.shape, steps, model.dtype_name, False, memory
        )
        view = View.on_device(seen, place.device)
        return view, _Seen(view, made)

    def scratch(self, nbytes: int, like: Any, place: Place) -> tuple[View, Any]:
        if place.device[0] == CPU:
            return super().scratch(nbytes, like, place)
        made = self._empty((nbytes,), self.namespace.uint8, like)
        return self.view("fastact", "the workspace", made, place), made

    def _empty(self, shape: tuple[int, ...], dtype: Any, like: Any) -> Any:
        """New memory on the device of `like`: as the array API has it, or as CuPy, by a guard."""
        if hasattr(like.device, "__enter__"):
            with like.device:
                return self.namespace.empty(shape, dtype=dtype)
        return self.namespace.empty(shape, dtype=dtype, device=like.device)

    def finish(self, made: Any, wait: Callable[[Any], None], kept: tuple[Any, ...]) -> Any:
        if isinstance(made, _cpu.Memory):
            return self.namespace.from_dlpack(made)
        if streams.current(self.name, made.view.device[1]) is not None:
            return made.array  # the framework goes on on the stream that was used
        # By the view that the kernels had: asked again, the framework would have to know a stream
        # that nothing waits for, and JAX knows none.
        return self.namespace.from_dlpack(_cpu.Memory(made.view, None, wait, (made.array, *kept)))


def _by_capsule(array: Any, stream: int | None) -> View:
    """Return a view by DLPack."""
    told = {} if stream is None else {"stream": stream}
    try:
        capsule = array.__dlpack__(max_version=(1, 1), **told)
    except TypeError:  # a producer from before DLPack 1.0 knows no max_version
        capsule = array.__dlpack__(**told)
    return View.from_capsule(capsule)


def _by_interface(where: str, argument: str, array: Any, place: Place) -> View:
    """Return a view by `__cuda_array_interface__`; the call's stream waits for the named one."""
    told = _asked(where, argument, array, interface.read, array)
    device = devices.of_memory(told.address)
    if device is None:
        raise _not_exportable(where, argument, array, "its memory is of no device that CUDA knows")
    if told.stream is not None and place.stream is not None:
        native = devices.native(where, place.device)
        native.make_wait(place.device[1], place.stream, told.stream)
    return View.on_device(told.array, device)


class _Interface(Framework):
    """Device arrays that have no DLPack, but `__cuda_array_interface__`.

    The framework knows one stream, which an array may name. A call works on the stream of its first
    array, after the streams of the other arrays and before what is queued on them next.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def makes_arrays(self) -> bool:  # type: ignore[override]
        return self.name in interface.MAKERS

    def tell_device(self, array: Any) -> tuple[int, int]:
        return devices.of_memory(interface.read(array).address) or (CPU, 0)

    def stream(self, device: tuple[int, int], array: Any) -> int:
        told = interface.read(array).stream
        return told or streams.current(self.name, device[1]) or streams.LEGACY

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        return _by_interface(where, argument, array, place)

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        steps = interface.steps(model.shape, model.order, model.itemsize)
        made = self._empty(model.shape, steps, model.dtype_name, place)
        return self.view("fastact", "the output", made, place), made

    def scratch(self, nbytes: int, like: Any, place: Place) -> tuple[View, Any]:
        made = self._empty((nbytes,), (1,), "uint8", place)
        return self.view("fastact", "the workspace", made, place), made

    def _empty(
        self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, place: Place
    ) -> Any:
        if not self.makes_arrays:
            raise TypeError(
                f"fastact: this call needs further memory, which cannot be allocated by "
                f"{self.name} here; pass the arrays by DLPack"
            )
        assert place.stream is not None
        return interface.MAKERS[self.name](shape, strides, dtype, place.device[1], place.stream)

    def has_run(self, arrays: Iterable[Any], place: Place) -> None:
        ours = place.stream or streams.LEGACY
        for theirs in {interface.read(array).stream or ours for array in arrays} - {ours}:
            native = devices.native("fastact", place.device)
            native.make_wait(place.device[1], theirs, ours)


def inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(order.index, range(len(order))))


def _root(array_type: type) -> str:
    """Return the package that a type's arrays belong to."""
    package = array_type.__module__.partition(".")[0]
    return _OWNERS.get(package, package)


def namespace(array: Any) -> Any:
    """Return the functions of an array's framework, as the array API names them, about."""
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[_root(type(array))]


def is_traced(array: Any) -> bool:
    """Tell whether JAX traces an array, which has no values then."""
    return _root(type(array)) == "jax" and "Tracer" in type(array).__name__


def _asked(where: str, argument: str, array: Any, ask: Callable[..., T], *args: Any) -> T:
    """Ask something of an array; whatever that raises becomes an error that names the argument."""
    try:
        return ask(*args)
    except OF_INTERPRETER:
        raise
    except Exception as error:
        raise _not_exportable(where, argument, array, error) from None


def _not_exportable(where: str, argument: str, array: Any, reason: object) -> TypeError:
    if is_traced(array):
        bridge = where.replace("fastact", "fastact.jax", 1)
        return TypeError(
            f"{where}: {argument} must be an array with values, got one that JAX traces; in what "
            f"JAX compiles, differentiates or batches use {bridge}"
        )
    reason = str(reason).partition("\n")[0]  # torch appends a C++ back trace
    return TypeError(
        f"{where}: {argument} must be a dense array whose memory can be shared, got "
        f"{type(array).__module__}.{type(array).__name__}: {reason}"
    )


NUMPY = _NumPy()


_of_interface = lru_cache(maxsize=64)(_Interface)


@lru_cache(maxsize=64)
def _of_type(array_type: Any) -> Framework:
    """Return the framework of a type that shares memory; types of one framework share it."""
    own: Framework | None = getattr(array_type, "__fastact_framework__", None)
    if own is not None:
        return own
    if not hasattr(array_type, "__dlpack__"):
        return _of_interface(_root(array_type))
    api = getattr(array_type, "__dlpack_c_exchange_api__", None)
    if api is None:
        return _DLPack(array_type)
    base: Any
    for base in array_type.__mro__[1:]:
        if getattr(base, "__dlpack_c_exchange_api__", None) is api:
            return _of_type(base)
    return _Exchange(array_type, api)


def framework_of(array: Any) -> Framework | None:
    """Return the framework an array belongs to; None for what NumPy has yet to convert."""
    if issubclass(type(array), np.ndarray):  # an object may say another __class__
        return NUMPY
    array_type: Any = type(array)
    if isinstance(array, np.generic) or not foreign.is_shared(array_type):
        return None
    return _of_type(array_type)


# Lazy states of a tensor in which its memory does not hold its values: attribute, words, cure.
_LAZY = (
    ("is_conj", "that is not lazily conjugated", "resolve_conj"),
    ("is_neg", "that is not lazily negated", "resolve_neg"),
)


def _has_its_values(where: str, argument: str, array: Any) -> None:
    if foreign.requires_grad(array) and not foreign.is_tensor(array):
        raise foreign.gets_no_gradient(where, argument)
    for attribute, words, cure in _LAZY:
        state = getattr(array, attribute, False)
        if state is True or (callable(state) and state()):
            raise TypeError(
                f"{where}: {argument} must be an array {words}; use {argument}.{cure}()"
            )


def see(
    where: str,
    argument: str,
    array: Any,
    framework: Framework,
    place: Place,
    also: Sequence[str] = (),
) -> View:
    """Return a view of an array, after the checks that depend on no other argument.

    also : dtypes that it may have beside those that are computed.
    """
    if framework is not NUMPY:
        _has_its_values(where, argument, array)
        validate.same_device(where, argument, framework.device(array), place.device)
    view = framework.view(where, argument, array, place)
    if view.device != place.device:
        raise ValueError(
            f"{where}: {argument} must be on the device that its __dlpack_device__ tells, "
            f"{validate.device_name(place.device)}, "
            f"got memory on {validate.device_name(view.device)}"
        )
    validate.supported_dtype(where, argument, view, also)
    if place.device[0] != CPU:
        validate.aligned(where, argument, view)
    return view


def whole_numbers(
    where: str, argument: str, array: NDArray[Any], also: Sequence[str]
) -> NDArray[Any]:
    """Integers of other sizes, and bools that are labels, as int64; none may change its value."""
    kinds = "biu" if isinstance(also, validate.Labels) else "iu"
    if array.dtype.kind not in kinds or array.dtype.name in also or "int64" not in also:
        return array
    made = array.astype(np.int64)
    if array.dtype.kind == "u" and np.any(made < 0):
        raise _not_held(where, argument, array, made)
    return made


def _not_held(where: str, argument: str, value: Any, made: NDArray[Any]) -> ValueError:
    return ValueError(
        f"{where}: {argument} must have values that {made.dtype.name} holds, got "
        f"{validate.describe(value)}"
    )


def in_native_order(array: NDArray[Any]) -> NDArray[Any]:
    """Return a NumPy array in the byte order that kernels read, itself or as a copy."""
    dtype = array.dtype
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="), subok=False)


def to_numpy(
    where: str,
    argument: str,
    value: Any,
    dtype: Any = None,
    also: Sequence[str] = (),
    integers: Any = None,
    allowed: Sequence[str] | None = None,
) -> NDArray[Any]:
    """Make a NumPy array from a list, a scalar, integers or anything else that NumPy converts.

    also : dtypes that it may have beside those that are computed.

    integers : the dtype that they get; None: the one that np.tanh would compute in.

    allowed : what a message says in the place of `also`.

    To a dtype real numbers are rounded, and no finite one to infinity.
    """
    if dtype is None and type(value) is np.ndarray and value.dtype.kind not in "biu":
        return value  # soon, for most
    try:
        array: NDArray[Any] = np.asanyarray(value)
    except OF_INTERPRETER:
        raise
    except Exception as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"{where}: {argument} must be an array or convertible by NumPy, got "
            f"{validate.describe(value)}: {error}"
        ) from None
    foreign.plain(where, argument, array)  # an `__array__` may return anything
    said = also if allowed is None else allowed
    if array.dtype.kind == "O" and not hasattr(value, "dtype"):  # None, say, or a number too large
        raise validate.wrong_dtype(where, argument, validate.describe(value), said)
    if also and array.dtype.name in also:
        return array
    if dtype is None:
        if array.dtype.kind not in "biu":
            return array
        return array.astype(integers or np.tanh.resolve_dtypes((array.dtype, None))[0])
    kept = whole_numbers(where, argument, array, also)
    if kept.dtype.name in also:
        return kept
    if array.dtype.kind not in "biuf" and array.dtype != dtype:
        raise validate.wrong_dtype(where, argument, array.dtype.name, said)
    with np.errstate(all="ignore"):
        made = array.astype(dtype)
        if np.any(np.isinf(made) & np.isfinite(array)):
            raise _not_held(where, argument, value, made)
    return made


def one_element(value: float, dtype: str) -> NDArray[Any]:
    """Make a Python number an element of a dtype: its bits, for bfloat16."""
    with np.errstate(all="ignore"):  # a number of NumPy's may be rounded to nothing, and tell
        if dtype != "bfloat16":
            return np.array(value, dtype)
        # Rounded to nearest even; NumPy itself has no bfloat16.
        bits = int(np.float32(value).view(np.uint32))
        rounded = bits + 0x7FFF + (bits >> 16 & 1) if np.isfinite(value) else bits
        return np.array(rounded >> 16, np.uint16)
