"""The op object: what every op has, whatever its family.

An op is a callable with three doors, as a NumPy ufunc is one with several methods::

    y        = op(x)                   # inference
    y, saved = op.forward(x)           # training
    dx       = op.backward(dy, *saved)

`ops` maps each op's name to the op; tests, benchmarks and framework wrappers iterate over it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import MappingProxyType
from typing import Any, TypeVar

_ops: dict[str, "Op"] = {}

#: Every op by its name.
ops: Mapping[str, Any] = MappingProxyType(_ops)


@dataclass(frozen=True)
class Bounds:
    """Stated accuracy in float32 over all inputs, and in float64 on samples of all exponents.

    forward_ulp : units in the last place of the result.
    derivative_ulp, derivative_abs : one of the two holds; near a root of the derivative a relative
        error means nothing.
    16-bit results are the float32 results, rounded once; on a GPU, where they come of faster and
    rougher functions, they are within narrow_ulp of the true value, or within 4 derivative_abs.
    """

    forward_ulp: float
    derivative_ulp: float
    derivative_abs: float
    narrow_ulp: float = 0.51


@dataclass(frozen=True)
class SumBounds:
    """Stated accuracy of a sum, of any dtype: |y - exact| <= ulp ULP of y + absolute sum|x|."""

    ulp: float
    absolute: float


class Op:
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

    def _takes(
        self,
        arguments: tuple[str, ...],
        options: Mapping[str, Any],
        keyword_only: frozenset[str],
        more: str = "",
    ) -> None:
        """Its signature, where it is not one of plain numbers; more: what `**` gathers."""
        either, only = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        named = options.items()
        self.__signature__ = Signature(
            [Parameter(a, Parameter.POSITIONAL_ONLY) for a in arguments]
            + [Parameter(n, either, default=v) for n, v in named if n not in keyword_only]
            + [Parameter(n, only, default=v) for n, v in named if n in keyword_only]
            + ([Parameter(more, Parameter.VAR_KEYWORD)] if more else [])
        )

    def __reduce__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<fastact op {self.name!r}>"


AnyOp = TypeVar("AnyOp", bound=Op)


def register(op: AnyOp) -> AnyOp:
    """Enter an op into `ops`, under its name."""
    if op.name in _ops:
        raise RuntimeError(f"two ops are named {op.name!r}")
    _ops[op.name] = op
    return op
