"""The op object: what every op has, whatever its family.

An op is a callable with three entry points, as a NumPy ufunc is one with several methods::

    y        = op(x)                   # inference
    y, saved = op.forward(x)           # training
    dx       = op.backward(dy, *saved)

`ops` maps each op's name to the op; tests, benchmarks and framework wrappers iterate over it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from inspect import Parameter, Signature
from types import MappingProxyType, SimpleNamespace
from typing import Any

from .. import _cpu
from ..interop import validate
from . import op as _op
from .bounds import Bounds as Bounds
from .bounds import MomentBounds as MomentBounds
from .bounds import NormBounds as NormBounds
from .bounds import SumBounds as SumBounds
from .op import ops as ops
from .op import register as register

REQUIRED: Any = Parameter.empty


@dataclass(frozen=True)
class Takes:
    """The options of an entry point, which follow its arrays, with their defaults.

    either : by position or by keyword; REQUIRED in place of a default: there is none.
    only : by keyword alone, as the three that every entry point has.
    accumulates : the entry point can add to its outputs.
    outputs : how many arrays `out` stands for.
    extra : how many more may follow them in a tuple.
    skips : the outputs are gradients, of which one that is None in a tuple is not made
        (`docs.SKIPPED`); `wanted` tells which ones are.
    """

    either: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    accumulates: bool = False
    outputs: int = 1
    extra: int = 0
    skips: bool = False

    #: `only`, and what it does not name.
    by_keyword: dict[str, Any] = field(init=False, repr=False)
    _defaults: dict[str, Any] = field(init=False, repr=False)
    _switches: list[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Here, not at the first use by functools.cached_property: that one holds a lock (Python
        # 3.11), and a process that forks while another thread has it leaves its child waiting.
        accumulate = {"accumulate": False} if self.accumulates else {}
        by_keyword = {**self.only, "out": None, **accumulate, "stream": None}
        defaults = {**self.either, **by_keyword}
        switches = [name for name, value in defaults.items() if isinstance(value, bool)]
        for name, value in (
            ("by_keyword", by_keyword),
            ("_defaults", defaults),
            ("_switches", switches),
        ):
            object.__setattr__(self, name, value)

    def also(self, **only: Any) -> "Takes":
        """With more options."""
        return replace(self, only={**self.only, **only})

    def bind(self, where: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> SimpleNamespace:
        """The options of a call, checked as far as that takes no array.

        An option whose default is a bool is a switch. `out` becomes a tuple of all outputs.
        """
        defaults = self._defaults
        bound = validate.bind(where, defaults, args, kwargs, frozenset(self.by_keyword))
        values = dict(zip(defaults, bound, strict=True))
        for name in defaults:
            if values[name] is REQUIRED:
                raise TypeError(f"{where}: {name} must be given")
        for name in self._switches:
            values[name] = validate.flag(where, name, values[name])
        given = values["out"]
        if isinstance(given, tuple) and len(given) == self.outputs + self.extra:
            values["out"] = given
        else:
            values["out"] = validate.outputs(where, given, self.outputs) + (None,) * self.extra
        values["wanted"] = [True] * len(values["out"])
        if self.skips and given is not None:
            values["wanted"] = [out is not None for out in values["out"]]
            validate.wants_one(where, given)
        else:
            validate.needs_out(where, values.get("accumulate", False), *values["out"])
        return SimpleNamespace(**values)

    def signature(self, arguments: Sequence[str], more: str = "") -> Signature:
        """That of an entry point with these arrays; more: what `**` gathers."""
        either, only = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        return Signature(
            [Parameter(a, Parameter.POSITIONAL_ONLY) for a in arguments]
            + [Parameter(n, either, default=v) for n, v in self.either.items()]
            + [Parameter(n, only, default=v) for n, v in self.by_keyword.items()]
            + ([Parameter(more, Parameter.VAR_KEYWORD)] if more else [])
        )


class Op(_op.Op):
    """Name, family, signature and pickling."""

    name: str
    family: str
    parameters: Mapping[str, float | str]

    def _introduce(
        self, name: str, family: str, arguments: tuple[str, ...], doc: str, **defaults: float | str
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.family = family
        self.parameters = MappingProxyType(defaults)
        # pickle and inspect look these up on the instance, as they do for ufuncs
        self.__module__ = "fastact"
        self.__doc__ = doc
        kind = Parameter.POSITIONAL_OR_KEYWORD
        self.__signature__ = Signature(
            [Parameter(a, Parameter.POSITIONAL_ONLY) for a in arguments]
            + [Parameter(p, kind, default=value) for p, value in defaults.items()]
            + [Parameter("out", kind, default=None)]
            + [Parameter("stream", Parameter.KEYWORD_ONLY, default=None)]
        )

    def __reduce__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<fastact op {self.name!r}>"


class QuickOp(Op, _cpu.CachedOp):
    """An op whose repeated calls skip this layer (src/cpu/binding/call_cache.pyx).

    `_call` is what calling the op does; every public method is a cached entry point as well.

    docs : the docstring of the op ("call"), and of entry points that have none of their own.
    """

    def __init__(
        self,
        op: str,
        family: str,
        arguments: Sequence[str],
        takes: Takes,
        docs: Mapping[str, str],
        *,
        more: str = "",
    ) -> None:
        self._introduce(op, family, (), docs["call"])
        self.__signature__ = takes.signature(arguments, more)
        self._cache_calls(_cpu.CachedCall(self._call, self, "__call__"))
        for name in dir(type(self)):
            method = None if name.startswith("_") else getattr(self, name, None)
            if callable(method):
                entry = _cpu.CachedCall(method, self, name)
                vars(self)[name] = update_wrapper(entry, method)
                entry.__doc__ = docs.get(name, method.__doc__)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _where(self, entry: str = "") -> str:
        """How messages name an entry point."""
        return f"fastact.{self.name}.{entry}" if entry else f"fastact.{self.name}"
