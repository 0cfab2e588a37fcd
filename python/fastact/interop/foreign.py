"""Objects with more to them than an array's memory: which are taken, and which refused, by name.

What can't be honoured is never dropped without a word: a mask, labels, a unit, values that are not
computed yet, a tangent, a gradient. No framework is imported here; torch is asked only where the
caller has imported it.
"""

import ctypes
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from math import prod
from numbers import Real
from typing import Any

import numpy as np

from .. import _cpu

#: The dtypes that kernels take, in words.
DTYPES = ", ".join(_cpu.DTYPE_NAMES[:-1]) + " or " + _cpu.DTYPE_NAMES[-1]

_LONGEST = 80  # characters of a value in a message
_DEEPEST = 64  # lists in lists: more axes than NumPy has

# Why a package's objects are refused, and how to get a plain array from one.
_PACKAGES = {
    "dask": ("whose values are not computed yet", "{}.compute()"),
    "xarray": ("whose labels would be lost", "{}.to_numpy()"),
    "pandas": ("whose labels would be lost", "{}.to_numpy()"),
    "modin": ("whose labels would be lost", "{}.to_numpy()"),
    "polars": ("whose labels would be lost", "{}.to_numpy()"),
    "astropy": ("whose unit would be lost", "{}.value"),
    "pint": ("whose unit would be lost", "{}.magnitude"),
    "unyt": ("whose unit would be lost", "{}.value"),
    "sparse": ("which is not dense", "{}.todense()"),
    "scipy.sparse": ("which is not dense", "{}.toarray()"),
}

# These names tell a class that is more than an array: it answers ufuncs, or holds tables or tasks.
_PROTOCOLS = ("__array_ufunc__", "__dataframe__", "__dask_graph__", "compute")

#: Errors that tell of the interpreter and not of an argument: whoever asks an argument anything
#: lets them pass, as KeyboardInterrupt and SystemExit do by themselves.
OF_INTERPRETER = (MemoryError, RecursionError)

#: How device arrays say where they are that have no DLPack (interface.py).
INTERFACE = "__cuda_array_interface__"

_NUMBERS = frozenset({float, int, bool})
_TEXT = (str, bytes, bytearray)
_ADDRESS: Any = object.__repr__


# --- words ----------------------------------------------------------------------------------------


def describe(value: Any) -> str:
    """Describe a value in a message: an array by dtype and shape, others in 80 characters."""
    if isinstance(value, np.generic):
        value = value if isinstance(value, np.void) else value.item()
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    if hasattr(type(value), "shape") and hasattr(type(value), "dtype"):
        try:
            return f"{type(value).__name__} of {dtype_name(value)}, shape {tuple(value.shape)}"
        except OF_INTERPRETER:
            raise
        except Exception:  # an array in a state that has neither
            return f"{type(value).__name__}"
    if type(value) in (list, tuple):
        return _described_items(value)
    cls = type(value)
    if not isinstance(value, _TEXT):
        if issubclass(cls, Collection) and len(value) > 8:
            return f"a {name_of(cls)} of {len(value)}"
        if any(hasattr(cls, a) for a in ("__array__", "shape", "typecode", "tobytes")):
            return name_of(cls)  # arrays and buffers of other kinds
        if getattr(cls, "__repr__", None) is _ADDRESS:  # which prints an address
            return name_of(cls)
    try:
        text = " ".join(repr(value[: 2 * _LONGEST] if isinstance(value, _TEXT) else value).split())
    except Exception:  # of a dict too deep for the interpreter, say: it is no array, and refused
        return name_of(type(value))
    return _shortened(text)


def _described_items(values: Any) -> str:
    if len(values) > 8:
        return f"a {type(values).__name__} of {len(values)}"
    inside = [
        f"a {type(v).__name__} of {len(v)}" if type(v) in (list, tuple) and v else describe(v)
        for v in values
    ]
    if type(values) is list:
        return _shortened(f"[{', '.join(inside)}]")
    return _shortened(f"({', '.join(inside)}{',' if len(inside) == 1 else ''})")


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def dtype_name(array: Any) -> str:
    """Return the dtype of an array by its name, without the framework's."""
    return str(array.dtype).rpartition(".")[2]  # torch.float32


def name_of(cls: type) -> str:
    """Return a class by its full name."""
    module = cls.__module__
    return cls.__qualname__ if module == "builtins" else f"{module}.{cls.__qualname__}"


# --- arrays ---------------------------------------------------------------------------------------


def plain(where: str, argument: str, value: Any) -> None:
    """Refuse what an array of the same memory, or values, would not stand for.

    Taken are exact NumPy arrays and memory maps, dense tensors and other arrays with DLPack,
    numbers, lists of numbers, and what NumPy converts: buffers, sequences, images. Their dtypes are
    checked elsewhere.
    """
    cls = type(value)
    if cls is np.ndarray or cls in _NUMBERS or value is None or cls is np.memmap:
        return
    if is_tensor(value):
        plain_tensor(where, argument, value)
        return
    if is_masked(value):
        cure = f"{argument}.data" if argument.startswith("out") else f"{argument}.filled(...)"
        raise TypeError(f"{where}: {argument} must be a plain array, got a masked one; use {cure}")
    if isinstance(value, _TEXT):
        raise TypeError(f"{where}: {argument} must be an array, got {describe(value)}")
    if isinstance(value, list | tuple):
        _plain_items(where, argument, value, 0)
    elif issubclass(type(value), np.ndarray) or not (
        isinstance(value, np.generic) or hasattr(cls, "__dlpack__")
    ):
        _no_meaning(where, argument, cls)


def is_shared(cls: type) -> bool:
    """Tell whether a class shows its memory to others, so that nobody has to copy it to NumPy's."""
    return hasattr(cls, "__dlpack__") or hasattr(cls, INTERFACE)


def is_masked(value: Any) -> bool:
    """Tell whether a value is an array with a mask."""
    # The name np.ma would import the module, at somebody's first call: slow, and with a lock that a
    # process forked meanwhile would wait for. Without the module there is no masked array.
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def loses_mask(where: str) -> TypeError:
    """Return the error for an output beside a masked array."""
    return TypeError(f"{where}: out must be None for a masked array, whose mask it would lose")


def _no_meaning(where: str, argument: str, cls: type) -> None:
    package = cls.__module__.partition(".")[0]
    if cls.__module__.startswith("scipy.sparse"):
        package = "scipy.sparse"
    known = _PACKAGES.get(package)
    if known is None:
        if issubclass(cls, np.ndarray):
            known = ("whose class would be lost", "np.asarray({})")
        elif any(hasattr(cls, protocol) for protocol in _PROTOCOLS):
            known = ("which is more than an array", "np.asarray({})")
        else:
            return
    what, way = known
    # Computing or converting makes another array, which is of no use as an output.
    cure = "" if argument.startswith("out") else f"; use {way.format(argument)}"
    raise TypeError(f"{where}: {argument} must be a plain array, got {name_of(cls)}, {what}{cure}")


def _plain_items(where: str, argument: str, values: Any, depth: int) -> None:
    """Refuse a list of other items than numbers, or lists or NumPy arrays of them."""
    if depth == _DEEPEST:
        raise ValueError(f"{where}: {argument} must be no deeper than {_DEEPEST} lists")
    for cls in set(map(type, values)) - _NUMBERS:
        is_list = issubclass(cls, list | tuple)
        for item in values:
            if type(item) is not cls:
                continue
            if is_list:
                _plain_items(where, argument, item, depth + 1)
                continue
            plain(where, argument, item)
            if is_shared(cls) and not isinstance(item, np.ndarray | np.generic):
                raise TypeError(
                    f"{where}: {argument} must be an array or a list of numbers, got a list with "
                    f"{name_of(cls)}; stack it into one array"
                )


# --- torch ----------------------------------------------------------------------------------------


def _torch() -> Any:
    """Return the module, if the caller has imported it."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "Tensor") else None


def is_tensor(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def requires_grad(array: Any) -> bool:
    """Tell whether what is done to an array would have to be recorded for its gradient.

    Not where torch records nothing: under `no_grad` and in inference mode parameters are ordinary.
    """
    if getattr(array, "requires_grad", False) is not True:
        return False
    return not is_tensor(array) or bool(sys.modules["torch"].is_grad_enabled())


def gets_no_gradient(where: str, argument: str) -> TypeError:
    """Return the error for an array that requires grad, for which no gradient is recorded."""
    return TypeError(
        f"{where}: {argument} gets no gradient and must not require grad; use {argument}.detach(), "
        f"or call it under torch.no_grad()"
    )


def is_for_torch(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call is torch's to carry out: it records gradients, or a tensor has no memory."""
    return any(requires_grad(one) or is_for_dispatcher(one) for one in tensors(args, kwargs))


def tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Return the tensors of a call, in tuples too."""
    torch = _torch()
    if torch is not None:
        for one in flat(args, kwargs):
            if isinstance(one, torch.Tensor):
                yield one


def flat(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Return the arguments of a call, with what is in tuples one by one."""
    for value in (*args, *kwargs.values()):
        yield from value if type(value) is tuple else (value,)


def is_cast(devices: Collection[str], args: Sequence[Any]) -> bool:
    """Tell whether torch's autocast is on for tensors of these devices, of which one is given."""
    torch = _torch()
    if torch is None:
        return False
    kinds = {value.device.type for value in args if isinstance(value, torch.Tensor)}
    return any(kind in devices and torch.is_autocast_enabled(kind) for kind in kinds)


def is_for_dispatcher(tensor: Any) -> bool:
    """Tell whether torch's dispatcher is to carry out what is done to a tensor.

    That is any while somebody looks at each operation, else one that is more than its memory.
    """
    return is_watched() or is_more_than_memory(tensor)


def is_more_than_memory(tensor: Any) -> bool:
    """Tell whether a tensor has no memory of its own, or a tangent beside it."""
    return lacks_memory(tensor) or has_tangent(tensor)


def lacks_memory(tensor: Any) -> bool:
    """Tell whether a tensor has no memory of its own.

    That is a fake tensor or one of the meta device, one that a transform of torch.func works on, or
    of a class that answers operations by itself.
    """
    cls: Any = type(tensor)
    wrapped = sys.modules["torch"]._C._functorch.is_functorch_wrapped_tensor
    return _dispatches(cls) or bool(tensor.is_meta or wrapped(tensor))


# Functions of torch's libraries that have no fixed place in Python: whether this thread's
# dispatch has a key, whether a profiler looks at operations, and whether there is a mode of
# functions. Beside each is what Python has, for libraries without it.
_IS_INCLUDED = "_ZN3c104impl28tls_is_dispatch_key_includedENS_11DispatchKeyE"
_HAS_CALLBACKS = "_ZN2at12hasCallbacksEv"
_HAS_FUNCTION_MODE = "_ZN2at4impl27torch_function_mode_enabledEv"

_kept: list[Any] = []  # functions that compiled code calls


@lru_cache(maxsize=1)  # of the one torch there is
def _ask_torch(torch: Any) -> None:
    """Tell compiled code how to ask torch whether somebody looks at each operation."""
    c = torch._C
    libraries = ctypes.CDLL(c.__file__)

    def address(symbol: str, function: Any, *takes: Any) -> int:
        found = getattr(libraries, symbol, None)
        if found is None:
            found = ctypes.PYFUNCTYPE(ctypes.c_bool, *takes)(function)
            _kept.append(found)
        return ctypes.cast(found, ctypes.c_void_p).value or 0

    def is_included(key: int) -> bool:
        return bool(c._dispatch_tls_is_dispatch_key_included(c.DispatchKey(key)))

    def looks() -> bool:
        """Tell whether a mode of functions is more than a default device, which concerns no op."""
        modes = map(c._get_function_stack_at, range(c._len_torch_function_stack()))
        return any(type(mode) is not torch.utils._device.DeviceContext for mode in modes)

    _cpu.ask_torch(
        address(_IS_INCLUDED, is_included, ctypes.c_uint16),
        int(c._parse_dispatch_key("Python")),  # of modes
        int(c._parse_dispatch_key("Tracer")),  # of torch.jit
        address(_HAS_CALLBACKS, torch.autograd._profiler_enabled),
        address(_HAS_FUNCTION_MODE, c._is_torch_function_mode_enabled),
        looks,
    )


def is_watched() -> bool:
    """Whether a mode, a tracer or a profiler looks at each of torch's operations in this thread.

    While an operator computes nobody looks: who does has seen the operator.
    """
    torch = _torch()
    if torch is None:
        return False
    _ask_torch(torch)
    return _cpu.is_watched()


def is_traced() -> bool:
    """Whether a tracer that runs the program with values keeps its operations, and only these."""
    torch = _torch()
    if torch is None or not is_watched():
        return False
    proxies = sys.modules.get("torch.fx.experimental.proxy_tensor")
    return bool(torch._C._is_tracing() or (proxies and proxies.get_proxy_mode() is not None))


def is_overridden(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether one that is no tensor answers torch's functions, as what torch.fx traces does."""
    torch = _torch()
    return torch is not None and any(
        hasattr(type(one), "__torch_function__") and not isinstance(one, torch.Tensor)
        for one in flat(args, kwargs)
    )


def has_tangent(*values: Any) -> bool:
    """Tell whether a tensor among them has a tangent, of torch's forward mode."""
    forward_ad: Any = sys.modules["torch"].autograd.forward_ad
    if getattr(forward_ad, "_current_level", -1) < 0 or _cpu.is_inside_operator():
        return False
    return any(
        forward_ad.unpack_dual(value).tangent is not None for value in values if is_tensor(value)
    )


@lru_cache(maxsize=64)
def _dispatches(cls: Any) -> bool:
    """Tell whether a class of tensors answers operations itself."""
    ordinary = sys.modules["torch"].Tensor.__torch_dispatch__
    return cls.__torch_dispatch__ is not ordinary


def mark_written(array: Any) -> None:
    """Tell torch, if the array is its, that the values have changed: autograd may have saved them.

    An in-place operation of torch's own does the same; `backward` then refuses what was saved.
    """
    if is_tensor(array):
        marker()((array,))


@cache
def marker() -> Any:
    """Give a function that raises the version counters of tensors; inference tensors have none."""
    torch = sys.modules["torch"]
    # The public function takes three times as long: it asks whether it got one tensor or many.
    quick: Any = getattr(torch._C, "_increment_version", None)
    try:
        with torch.inference_mode():
            probe = torch.empty(0, device="cpu")
        quick((probe,))
    except Exception:  # of older versions of torch: one tensor, or no inference tensors
        return _mark_each
    return quick


def _mark_each(tensors: tuple[Any, ...]) -> None:
    for tensor in tensors:
        if not tensor.is_inference():
            sys.modules["torch"].autograd.graph.increment_version(tensor)


def torch_state(tensor_type: type) -> tuple[Any, ...] | None:
    """Give the functions of torch that a compiled call asks; None if the type is not its.

    The function that marks a tuple of tensors as written, those that tell whether gradients are
    recorded and whether autocast is on, and the dictionary in which `_current_level` is 0 or more
    while tensors may have tangents.
    """
    torch = _torch()
    if torch is None or not issubclass(tensor_type, torch.Tensor):
        return None
    casts = torch._C._is_any_autocast_enabled
    return marker(), torch.is_grad_enabled, casts, vars(torch.autograd.forward_ad)


def is_plain_class(tensor_type: type) -> bool:
    """torch's own two classes of tensors: Parameter differs in nothing that a kernel could lose."""
    torch = _torch()
    return torch is not None and tensor_type in (torch.Tensor, torch.nn.Parameter)


@lru_cache(maxsize=64)
def _overrides(cls: Any) -> bool:
    """A class of tensors that answers torch's functions itself, for its memory is not all of it."""
    torch = sys.modules["torch"]
    function = getattr(cls.__torch_function__, "__func__", cls.__torch_function__)
    ordinary = (
        torch.Tensor.__torch_function__.__func__,
        torch._C._disabled_torch_function_impl,  # Parameter's
    )
    return function not in ordinary or _dispatches(cls)


def plain_tensor(where: str, argument: str, tensor: Any) -> None:
    """Refuse a tensor that is more than its memory, or has none."""
    torch = sys.modules["torch"]
    came = _special_tensor(torch, argument, tensor)
    if came:
        raise TypeError(
            f"{where}: {argument} must be a dense array whose memory can be shared, got {came}"
        )
    if has_tangent(tensor):
        raise TypeError(
            f"{where}: {argument} must be a tensor without a forward-mode tangent, which would be "
            f"lost; use {argument}.detach()"
        )


def _special_tensor(torch: Any, argument: str, tensor: Any) -> str:
    """In words, what a tensor is that is not plain, and the way; empty if it is plain."""
    if tensor.is_nested:
        padded = f"torch.nested.to_padded_tensor({argument}, 0)"
        is_jagged = tensor.layout is torch.jagged
        return f"a nested tensor; use {f'{argument}.values()' if is_jagged else padded}"
    cls: Any = type(tensor)
    if _overrides(cls):
        way = f"; use {argument}.to_local()" if hasattr(cls, "to_local") else ""
        return f"{name_of(cls)}, which answers torch's functions itself{way}"
    functorch = torch._C._functorch
    if functorch.is_functorch_wrapped_tensor(tensor):
        kind = "vmap" if functorch.is_batchedtensor(tensor) else "grad, jvp or functionalize"
        return (
            f"a tensor that stands for another one inside torch.func.{kind}; call fastact outside "
            f"of it"
        )
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}; use {argument}.to_dense()"
    if tensor.is_quantized:
        return f"a quantized tensor; use {argument}.dequantize()"
    if tensor.is_meta:
        return "a meta tensor, which has no data"
    if tensor._is_zerotensor():
        return f"a zero tensor, which has no data; use {argument}.clone()"
    return ""


def promoted(array: Any, dtype: Any) -> Any:
    """Return a tensor of integers in the dtype in which it is computed; anything else as it is.

    dtype : NumPy's; None: torch's default one, as of `torch.tanh`.
    """
    if not is_tensor(array) or array.dtype.is_floating_point or array.dtype.is_complex:
        return array
    torch = sys.modules["torch"]
    wide = torch.get_default_dtype() if dtype is None else getattr(torch, np.dtype(dtype).name)
    return array.to(wide)


# --- dask -----------------------------------------------------------------------------------------


def is_lazy(value: Any) -> bool:
    """Tell whether a value is an array of dask's."""
    return isinstance(value, getattr(sys.modules.get("dask.array"), "Array", ()))


# --- numbers --------------------------------------------------------------------------------------


def real(where: str, name: str, value: Any) -> Any:
    """Check a real number that `float` keeps: Python's, NumPy's, or an array of one element."""
    wrong = TypeError(f"{where}: {name} must be a real number, got {describe(value)}")
    cls = type(value)
    if isinstance(value, np.generic):
        if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
            raise wrong
        return value
    if isinstance(value, Real):
        return value
    if value is None or isinstance(value, (*_TEXT, complex, list, tuple)):
        raise wrong
    if issubclass(cls, np.ndarray) or hasattr(cls, "__dlpack__"):
        plain(where, name, value)
        dtype = dtype_name(value) if hasattr(value, "dtype") else ""
        if prod(value.shape) != 1 or not dtype.startswith(("bool", "int", "uint", "float", "bfl")):
            raise wrong
        return value.item() if hasattr(cls, "item") else value
    plain(where, name, value)
    if not hasattr(cls, "__float__"):
        raise wrong
    return value
