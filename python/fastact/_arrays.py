"""Arrays of any framework: seen as `View`s on the way in, made by their framework on the way out.

No framework is ever imported here. NumPy is native; a type with `__dlpack_c_exchange_api__` (torch)
is borrowed and made through that C API; anything else with `__dlpack__` comes in by a capsule and
goes out by `from_dlpack` of its own `__array_namespace__`. Lists, scalars and the like are NumPy's.
"""

import sys
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import _checks, _cpu
from ._cpu import View

_IMMUTABLE = frozenset({"jax", "tensorflow"})
# Packages whose arrays' types live in another one.
_OWNERS = {"jaxlib": "jax"}


class Framework(Protocol):
    """One way for arrays in and out."""

    name: str

    def view(self, where: str, argument: str, array: Any) -> View:
        """See an array of this framework."""

    def output(self, like: View) -> tuple[View, Any]:
        """New memory in `like`'s layout, to be filled; `finish` makes the array of it."""

    def finish(self, made: Any) -> Any:
        """The framework's array for filled memory."""


class _NumPy:
    name = "numpy"

    def view(self, where: str, argument: str, array: Any) -> View:
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError(
                f"{where}: {argument} must be a plain array, got a masked one; fill or compress it"
            )
        dtype = array.dtype
        if not dtype.isnative:
            raise TypeError(
                f"{where}: {argument} must be in native byte order, got dtype {dtype.str!r}"
            )
        if dtype.name == "bfloat16" and dtype.itemsize == 2:
            _cpu.learn_bfloat16(dtype)
        return View.from_numpy(np.asarray(array))

    def output(self, like: View) -> tuple[View, Any]:
        made = np.empty_like(like.owner)
        return View.from_numpy(made), made

    def finish(self, made: Any) -> Any:
        return made[()] if made.ndim == 0 else made


class _Exchange:
    def __init__(self, tensor_type: type, api: Any) -> None:
        self.name = _root(tensor_type)
        self.api = api

    def view(self, where: str, argument: str, array: Any) -> View:
        try:
            view = View.from_exchange(array, self.api)
        except (BufferError, RuntimeError, NotImplementedError) as error:
            raise _not_exportable(where, argument, array, error) from None
        if view.size and view.address == 0:
            raise _not_exportable(where, argument, array, "it has no data")
        return view

    def output(self, like: View) -> tuple[View, Any]:
        memory = _cpu.Memory(like)
        return memory.view(), memory

    def finish(self, made: Any) -> Any:
        return made.to_exchange(self.api)


class _DLPack:
    def __init__(self, array_type: type) -> None:
        self.name = _root(array_type)
        self.namespace: Any = None

    def view(self, where: str, argument: str, array: Any) -> View:
        if argument == "out" and self.name in _IMMUTABLE:
            raise TypeError(
                f"{where}: out must be an array that can be written, got one of {self.name}, whose "
                f"arrays are immutable"
            )
        self.namespace = self.namespace or _namespace(array)
        try:
            try:
                capsule = array.__dlpack__(max_version=(1, 1))
            except TypeError:  # a producer from before DLPack 1.0 knows no max_version
                capsule = array.__dlpack__()
        except Exception as error:  # each framework has errors of its own for this
            raise _not_exportable(where, argument, array, error) from None
        return View.from_capsule(capsule)

    def output(self, like: View) -> tuple[View, Any]:
        memory = _cpu.Memory(like)
        return memory.view(), memory

    def finish(self, made: Any) -> Any:
        return self.namespace.from_dlpack(made)


def _root(array_type: type) -> str:
    """The package that a type's arrays belong to."""
    package = array_type.__module__.partition(".")[0]
    return _OWNERS.get(package, package)


def _namespace(array: Any) -> Any:
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    return sys.modules[_root(type(array))]


def _not_exportable(where: str, argument: str, array: Any, reason: object) -> TypeError:
    reason = str(reason).partition("\n")[0]  # torch appends a C++ back trace
    return TypeError(
        f"{where}: {argument} must be a dense array whose memory can be shared, got "
        f"{type(array).__module__}.{type(array).__name__}: {reason}"
    )


NUMPY = _NumPy()


@lru_cache(maxsize=64)
def _foreign(array_type: Any) -> Framework:
    """The framework of a type with `__dlpack__`; types of one framework share it."""
    api = getattr(array_type, "__dlpack_c_exchange_api__", None)
    if api is None:
        return _DLPack(array_type)
    base: Any
    for base in array_type.__mro__[1:]:
        if getattr(base, "__dlpack_c_exchange_api__", None) is api:
            return _foreign(base)
    return _Exchange(array_type, api)


def framework_of(array: Any) -> Framework | None:
    """The framework an array belongs to; None for what NumPy has yet to convert."""
    if isinstance(array, np.ndarray):
        return NUMPY
    array_type: Any = type(array)
    if isinstance(array, np.generic) or not hasattr(array_type, "__dlpack__"):
        return None
    return _foreign(array_type)


# Lazy states of a tensor in which its memory does not hold its values: attribute, words, cure.
_LAZY = (
    ("requires_grad", "that does not require grad", "detach"),
    ("is_conj", "that is not lazily conjugated", "resolve_conj"),
    ("is_neg", "that is not lazily negated", "resolve_neg"),
)


def see(where: str, argument: str, array: Any, framework: Framework) -> View:
    """A view of an array, after the checks that depend on no other argument."""
    for attribute, words, cure in _LAZY:
        state = getattr(array, attribute, False)
        if state is True or (callable(state) and state()):
            raise TypeError(
                f"{where}: {argument} must be an array {words}; use {argument}.{cure}()"
            )
    view = framework.view(where, argument, array)
    _checks.supported_dtype(where, argument, view)
    return view


def to_numpy(value: Any, dtype: Any = None) -> NDArray[Any]:
    """A NumPy array from a list, a scalar, integers or anything else that NumPy converts.

    Without a dtype, integers get the one that np.tanh would compute in.
    """
    array: NDArray[Any] = np.asanyarray(value)
    if dtype is None and array.dtype.kind in "biu":
        dtype = np.tanh.resolve_dtypes((array.dtype, None))[0]
    return array if dtype is None else array.astype(dtype)


def repeated(value: float, like: View) -> View:
    """A Python number as an array of `like`'s shape and dtype, without memory of that size."""
    if like.dtype_name == "bfloat16":  # rounded to nearest even; NumPy itself has no bfloat16
        bits = int(np.float32(value).view(np.uint32))
        rounded = bits + 0x7FFF + (bits >> 16 & 1) if np.isfinite(value) else bits
        return View.repeated(np.array(rounded >> 16, np.uint16), like)
    return View.repeated(np.array(value, like.dtype_name), like)
