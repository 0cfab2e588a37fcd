"""NumPy's protocol for ufuncs (NEP 13): objects of other libraries carry an element-wise op out.

A class with an `__array_ufunc__` of its own (dask, xarray, pandas, polars, sparse, ...) is
given the op, as a ufunc is given to it, and answers in its own kind. A subclass of ndarray without
one (np.matrix, a masked array) is computed as the array it is, and its `__array_wrap__` makes one
of its kind of the result. Arrays with DLPack are served where they lie, by the op itself.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from . import foreign
from .foreign import name_of

_ORDINARY = np.ndarray.__array_ufunc__

# Packages whose objects take another function in the op's place, and who makes it: `as_ufunc`.
_BRIDGES = {"dask": "fastact.dask", "astropy": "fastact.astropy", "polars": "fastact.frames"}


def concerns(inputs: Sequence[Any]) -> bool:
    """Tell whether the protocol has a say in a call on these."""
    return any(_is_foreign(type(value)) for value in inputs)


def _is_foreign(cls: type) -> bool:
    if cls is np.ndarray or cls is np.memmap or not hasattr(cls, "__array_ufunc__"):
        return False
    return issubclass(cls, np.ndarray) or not hasattr(cls, "__dlpack__")


def call(where: str, ufunc: Any, inputs: Sequence[Any], outs: tuple[Any, ...]) -> Any:
    """Return the result that an input makes of the op; outs: its outputs, each an array or None."""
    for i, out in enumerate(outs):
        if out is not None and not _is_foreign(type(out)):
            foreign.plain(where, "out" if len(outs) == 1 else f"out[{i}]", out)
    given: dict[str, Any] = {} if all(out is None for out in outs) else {"out": outs}
    asked = _in_order([x for x in inputs if _has_own(type(x))])
    for value in asked:
        cls: Any = type(value)
        if cls.__array_ufunc__ is None:
            raise TypeError(f"{where}: {name_of(cls)} does not support ufuncs")
        result = cls.__array_ufunc__(value, _as_ufunc(cls, ufunc), "__call__", *inputs, **given)
        if result is not NotImplemented:
            return result
    if asked:
        for value, name in zip(inputs, ufunc.names, strict=True):
            foreign.plain(where, name, value)  # whose message names the way
        raise TypeError(f"{where}: not implemented by {', '.join(name_of(type(x)) for x in asked)}")
    return _wrapped(where, ufunc, inputs, given)


def _has_own(cls: type) -> bool:
    return _is_foreign(cls) and getattr(cls, "__array_ufunc__", None) is not _ORDINARY


def _in_order(values: Sequence[Any]) -> list[Any]:
    """One of each class: from left to right, but a subclass before its bases."""
    found: list[Any] = []
    for value in values:
        cls = type(value)
        if any(type(other) is cls for other in found):
            continue
        bases = (i for i, other in enumerate(found) if issubclass(cls, type(other)))
        found.insert(next(bases, len(found)), value)
    return found


def _as_ufunc(cls: type, ufunc: Any) -> Any:
    bridge = _BRIDGES.get(cls.__module__.partition(".")[0])
    return ufunc if bridge is None else import_module(bridge).as_ufunc(ufunc)


def _wrapped(where: str, ufunc: Any, inputs: Sequence[Any], given: Mapping[str, Any]) -> Any:
    """Wrap a ufunc's result for subclasses of ndarray, in the class with the highest priority."""
    special = [x for x in inputs if isinstance(x, np.ndarray) and type(x) is not np.ndarray]
    if given and any(map(foreign.is_masked, special)):
        raise foreign.loses_mask(where)
    plain = [np.asarray(x) if isinstance(x, np.ndarray) else x for x in inputs]
    result = ufunc(*plain, **given)
    if given:
        return result
    wrapping = max(special, key=lambda x: x.__array_priority__)
    made: Any = wrapping.__array_wrap__(np.asarray(result), (ufunc, tuple(inputs), 0))
    if foreign.is_masked(made) and np.shape(made.mask):
        # NumPy leaves it the operand's own, which an assignment to the result would unmask.
        own = made.mask.copy()
        made = sys.modules["numpy.ma"].array(made, mask=own, copy=False, keep_mask=False)
    return made
