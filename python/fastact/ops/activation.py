"""The op object of an activation: the Python half of its three entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from .. import _cpu
from ..interop import validate
from ..interop.call import Call
from .bounds import Bounds
from .elementwise import Elementwise
from .op import EntryPoint, P, R, register, signature_of
from .types import A, ArrayOrNumber, Out, Stream

Choices = Mapping[str, Mapping[str, str]]
Rules = Sequence[tuple[str, Callable[..., bool]]]


class Activation(Elementwise[P, R], _cpu.FastActivation):
    """An element-wise op, y = f(x).

    The compiled base class serves contiguous arrays of one dtype; this class serves and explains
    the rest. Data flows one way: check, choose the backend, allocate, run.

    saves : x, or y where the derivative is plain arithmetic of it (`derivative_by_value` of the
        functor): backward then computes no exponential, and `forward` may work in place.
    choices : for a parameter that is a string, the native activation that each value stands for.
    rules : what must hold for the parameters that are numbers, in words and as a function of them.
    piecewise_linear : whether the derivative is constant between corners, and its own is 0.
    """

    bounds: Bounds

    @staticmethod
    def sample(x: Any, dy: Any) -> dict[str, Any]:
        return {"x": x}

    def __init__(
        self,
        function: Callable[P, R],
        bounds: Bounds,
        saves: tuple[str, ...],
        choices: Choices,
        rules: Rules,
        piecewise_linear: bool,
    ) -> None:
        call = self._declare(function, "activations")
        self.bounds, self.saves, self.choices, self.rules = bounds, saves, choices, rules
        self.piecewise_linear = piecewise_linear
        own = [p for p in call.parameters.values() if p.name not in ("x", "out", "stream")]
        self.parameters = MappingProxyType({p.name: p.default for p in own})
        self.entry_points = MappingProxyType(
            {
                "call": EntryPoint(f"fastact.{self.name}", call),
                "forward": EntryPoint(f"fastact.{self.name}.forward", call),
                "backward": EntryPoint(
                    f"fastact.{self.name}.backward", signature_of(call, ("dy", *saves))
                ),
            }
        )
        native = [self.choices[n][str(v)] for n, v in self.parameters.items() if n in choices]
        numbers = tuple(v for v in self.parameters.values() if not isinstance(v, str))
        _cpu.FastActivation.__init__(
            self, native[0] if native else self.name, len(self.parameters), numbers
        )
        self._cache_calls(  # what the fast path does not serve
            _cpu.CachedCall(self._plain_call, self, "_plain_call", self._recorder),
            _cpu.CachedCall(self._forward, self, "_forward"),
            _cpu.CachedCall(self._backward, self, "_backward"),
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

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map(self.entry_points["call"], args, kwargs, saves=False)[0]

    def _forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any]]:
        y, x = self._map(self.entry_points["forward"], args, kwargs, saves="x" in self.saves)
        return y, (x if "x" in self.saves else y,)

    def _map(
        self, entry: EntryPoint, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, Any]:
        """The result, and x as it was computed on."""
        options, where = entry.bind(args, kwargs), entry.where
        (out,) = options.out
        which, numbers = self.native(where, options)
        with Call(where, options.stream, x=options.x) as call:
            x = call.views["x"]
            y, made = call.output("out", out, "x", in_place=not saves)
            call.run("activation_forward", x=x, y=y, which=which, parameters=numbers)
            return call.result(out, made), call.arrays["x"]

    def _backward(self, *args: Any, **kwargs: Any) -> Any:
        entry = self.entry_points["backward"]
        options, where = entry.bind(args, kwargs), entry.where
        (out,) = options.out
        which, numbers = self.native(where, options)
        (name,) = self.saves
        with Call(where, options.stream, **{name: getattr(options, name)}, dy=options.dy) as call:
            saved, dy = call.views[name], call.views["dy"]
            validate.same_as(where, "dy", dy, name, saved)
            dx, made = call.output("out", out, name)
            call.run(
                "activation_backward",
                saved=saved,
                dy=dy,
                dx=dx,
                which=which,
                parameters=numbers,
                accumulate=options.accumulate,
            )
            return call.result(out, made)

    def _understood(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[EntryPoint, SimpleNamespace]:
        entry = self.entry_points["call"]
        options = entry.bind(args, kwargs)
        self.native(entry.where, options)
        return entry, options

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
    piecewise_linear: bool = False,
) -> Callable[[Callable[P, R]], Activation[P, R]]:
    """The activation that a function declares; its formula is in src/common/activations."""
    return lambda function: register(
        Activation(function, bounds, saves, choices or {}, rules, piecewise_linear)
    )
