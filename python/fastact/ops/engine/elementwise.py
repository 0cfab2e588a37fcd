"""Element-wise ops behave like NumPy's ufuncs: their attributes, and whom they ask first."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any

import numpy as np

from ...interop import foreign, handlers, ufuncs
from .entry import Entry, with_parameters
from .execute import options_of
from .op import P, R
from .served import CachedOp


class _Told:
    """The attributes of a ufunc."""

    #: The operands.
    names: tuple[str, ...]
    nout = 1
    signature: None = None  # of a generalized ufunc alone
    identity: None = None

    @property
    def nin(self) -> int:
        """The number of inputs."""
        return len(self.names)

    @property
    def nargs(self) -> int:
        """The number of inputs and outputs."""
        return self.nin + self.nout

    @property
    def types(self) -> list[str]:
        """The loops in NumPy's letters, which lack bfloat16, although it is computed, too."""
        return [f"{letter * self.nin}->{letter * self.nout}" for letter in "efd"]

    @property
    def ntypes(self) -> int:
        """The number of loops that have letters."""
        return len(self.types)

    def resolve_dtypes(self, dtypes: tuple[Any, ...]) -> tuple[np.dtype[Any], ...]:
        """Return the dtypes of a call, from those of its inputs and None for each output."""
        given = [np.dtype(dtype) for dtype in dtypes[: self.nin]]
        dtype = np.result_type(*given)
        if dtype.kind in "biu":
            dtype = np.tanh.resolve_dtypes((dtype, None))[0]
        return (dtype,) * self.nargs


class Elementwise(_Told, CachedOp[P, R]):
    """An op whose result at each place depends only on its operands there.

    If the class of an operand answers ufuncs, that class handles the call.
    """

    def _enter(self, **entry_points: Entry) -> None:
        super()._enter(**entry_points)
        self.names = entry_points["call"].arrays

    def is_ufuncs(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Tell whether an operand answers ufuncs, or has a class of NumPy's kinds."""
        return ufuncs.concerns(args[: self.nin])

    def call_as_ufunc(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Let the operands carry out the op."""
        entry = self.entry_points["call"]
        op, _ = options_of(entry, args, kwargs)
        entry = entry if op is None else with_parameters(entry, op)
        options = entry.bind(args, kwargs)
        if options.stream is not None:
            raise ValueError(f"{entry.where}: stream must be None for arrays on the CPU")
        now = {
            name: _as_now(entry.where, name, getattr(options, name))
            for name in entry.defaults
            if name not in ("out", "stream")
        }
        told = {name: value for name, value in now.items() if value != entry.defaults[name]}
        ufunc = Bound(self, told) if told else self
        return ufuncs.call(entry.where, ufunc, args[: self.nin], options.out)


handlers.register(
    handlers.Handler(
        lambda op, args, kwargs: isinstance(op, Elementwise) and op.is_ufuncs(args, kwargs),
        Elementwise.call_as_ufunc,
    ),
    first=True,
)


def _as_now(where: str, name: str, value: Any) -> Any:
    """Return an option's value; for an array of one element, which may change, its number."""
    if isinstance(value, Real) or not hasattr(type(value), "__float__"):
        return value
    number = foreign.real(where, name, value)
    return number if isinstance(number, Real) else float(number)


class Bound(_Told):
    """An element-wise op with given options: a function of arrays alone, like a ufunc.

    Two of them are equal if they have the same op and equal options.
    """

    def __init__(self, op: Any, options: Mapping[str, Any]) -> None:
        self.op, self.options = op, MappingProxyType(dict(options))
        self.names = op.names
        self.__name__ = self.__qualname__ = op.name
        self.__doc__ = op.__doc__

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        return self.op(*inputs, **self.options, **kwargs)

    def __reduce__(self) -> Any:
        return Bound, (self.op, dict(self.options))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bound):
            return NotImplemented
        return self.op is other.op and self.options == other.options

    def __hash__(self) -> int:
        return hash((self.op, *sorted(self.options)))  # a wrong value may have no hash

    def __repr__(self) -> str:
        told = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"<fastact op {self.op.name!r}{told}>"
