"""The op object of an activation: the Python half of its three entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ... import _cpu
from ...interop import validate
from ..bounds import Bounds
from ..types import A, ArrayOrNumber, Out, Stream
from .elementwise import Elementwise
from .op import EntryPoint, P, R, register, signature_of
from .step import serve

Choices = Mapping[str, Mapping[str, str]]
Rules = Sequence[tuple[str, Callable[..., bool]]]
Values = Mapping[str, Sequence[float]]


class Activation(Elementwise[P, R], _cpu.FastActivation):
    """An element-wise op, y = f(x).

    The compiled base class serves contiguous arrays of one dtype; this class serves and explains
    the rest.

    saves : x, or y where the derivative is plain arithmetic of it (`derivative_by_value` of the
        functor): backward then computes no exponential, and `forward` may work in place.
    choices : for a parameter that is a string, the native activation that each value stands for.
    rules : what must hold for the parameters that are numbers, in words and as a function of them.
    values : of these parameters, what tests and checks try beside the default, the first of each
        together, and so on. float32 has them exactly, or an oracle would judge another function.
    piecewise_linear : whether the derivative is constant between corners, and its own is 0.
    """

    bounds: Bounds
    runs = MappingProxyType({"forward": "activation_forward", "backward": "activation_backward"})

    def __init__(
        self,
        function: Callable[P, R],
        bounds: Bounds,
        saves: tuple[str, ...],
        choices: Choices,
        rules: Rules,
        values: Values,
        piecewise_linear: bool,
    ) -> None:
        call = self._declare(function, "activations")
        self.bounds, self.saves, self.choices, self.rules = bounds, saves, choices, rules
        self.values, self.piecewise_linear = values, piecewise_linear
        self.fields = {"saved": saves[0]}
        own = [p for p in call.parameters.values() if p.name not in ("x", "out", "stream")]
        self.parameters = MappingProxyType({p.name: p.default for p in own})
        self._enter_points(call, signature_of(call, ("dy", *saves)))

    def _enter(self, **entry_points: EntryPoint) -> None:
        super()._enter(**entry_points)
        parameters, choices = self.parameters, self.choices
        native = [choices[n][str(v)] for n, v in parameters.items() if n in choices]
        numbers = tuple(v for v in parameters.values() if not isinstance(v, str))
        _cpu.FastActivation.__init__(
            self, native[0] if native else self.name, len(parameters), numbers
        )
        self._cache_calls(  # what the fast path does not serve
            _cpu.CachedCall(self._plain_call, self, "_plain_call", self._recorder),
            *(_cpu.CachedCall(partial(serve, self, n), self, n) for n in ("forward", "backward")),
        )

    if TYPE_CHECKING:

        def backward(
            self,
            dy: ArrayOrNumber,
            saved: A,
            /,
            *parameters: float | str,
            out: Out[A] = None,
            accumulate: bool = False,
            stream: Stream = None,
            **named: float | str,
        ) -> A: ...

    @property
    def natives(self) -> list[str]:
        """The native activations behind this op: its own name, unless it has a choice of them."""
        chosen = [native for allowed in self.choices.values() for native in allowed.values()]
        return chosen or [self.name]

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """The formulas behind this op: how each is written, and the keyword that chooses it."""
        found: dict[str, dict[str, Any]] = {self.name: {}}
        for parameter, allowed in self.choices.items():
            for value in allowed:
                if value != self.parameters[parameter]:
                    found[f"{self.name}({parameter}={value!r})"] = {parameter: value}
        return found

    @property
    def trials(self) -> list[dict[str, Any]]:
        """Parameters other than the defaults that are worth a trial, by keyword."""
        numbers = zip(*self.values.values(), strict=True)
        chosen = [named for named in self.variants.values() if named]
        return chosen + [dict(zip(self.values, row, strict=True)) for row in numbers]

    def _check_options(self, where: str, options: SimpleNamespace) -> None:
        options.which, options.parameters = self.native(where, options)

    def native(self, where: str, options: Any) -> tuple[int, tuple[float, ...]]:
        """The native activation that the parameters choose, and those that are numbers."""
        which, numbers = self._which, {}
        for name in self.parameters:
            value = getattr(options, name)
            if name in self.choices:
                chosen = validate.choice(where, name, value, self.choices[name])
                which = _cpu.ACTIVATIONS.index(chosen)
            else:
                numbers[name] = validate.number(where, name, value)
        for text, holds in self.rules:
            validate.rule(where, text, holds, numbers)
        return which, tuple(numbers.values())


def activation(
    bounds: Bounds,
    *,
    saves: tuple[str, ...] = ("x",),
    choices: Choices | None = None,
    rules: Rules = (),
    values: Values | None = None,
    piecewise_linear: bool = False,
) -> Callable[[Callable[P, R]], Activation[P, R]]:
    """The activation that a function declares; its formula is in src/common/activations."""
    return lambda function: register(
        Activation(function, bounds, saves, choices or {}, rules, values or {}, piecewise_linear)
    )
