"""The op object of an activation: the Python half of its three entry points."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import _cpu
from ..interop import validate
from ..interop.call import Call
from .activation_docs import Doc, docstring
from .op import Bounds, Op


class Activation(Op, _cpu.FastActivation):
    """An element-wise op, y = f(x).

    The compiled base class serves contiguous arrays of one dtype; this class serves and explains
    the rest. Data flows one way: check, choose the backend, allocate, run.

    choices : for a parameter that is a string, the native activation that each value stands for.
    rules : what must hold for the parameters that are numbers, in words and as a function of them.
    """

    bounds: Bounds

    def __init__(
        self,
        name: str,
        bounds: Bounds,
        doc: Doc,
        *,
        choices: Mapping[str, Mapping[str, str]] | None = None,
        rules: Sequence[tuple[str, Callable[..., bool]]] = (),
        **parameters: float | str,
    ) -> None:
        self._choices = choices or {}
        self._rules = rules
        names = [self._choices[p][str(v)] for p, v in parameters.items() if p in self._choices]
        numbers = tuple(v for v in parameters.values() if not isinstance(v, str))
        _cpu.FastActivation.__init__(
            self,
            names[0] if names else name,
            len(parameters),
            numbers,
        )
        self._introduce(name, "activations", ("x",), docstring(doc, bounds), **parameters)
        entries = ("_call", "_forward", "_backward")  # what the fast path does not serve
        self._cache_calls(*(_cpu.CachedCall(getattr(self, name), self, name) for name in entries))
        self.bounds = bounds

    @property
    def natives(self) -> list[str]:
        """The native activations behind this op: its own name, unless it has a choice of them."""
        chosen = [native for allowed in self._choices.values() for native in allowed.values()]
        return chosen or [self.name]

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """The formulas behind this op: how each is written, and the keyword that chooses it."""
        found: dict[str, dict[str, Any]] = {self.name: {}}
        for parameter, allowed in self._choices.items():
            for value in allowed:
                if value != self.parameters[parameter]:
                    found[f"{self.name}({parameter}={value!r})"] = {parameter: value}
        return found

    def _call(self, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self._map(f"fastact.{self.name}", x, args, kwargs, saves=False)[0]

    def _forward(self, x: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any]]:
        y, x = self._map(f"fastact.{self.name}.forward", x, args, kwargs, saves=True)
        return y, (x,)

    def _map(
        self, where: str, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, saves: bool
    ) -> tuple[Any, Any]:
        """y, and x as it was computed on."""
        allowed = {**self.parameters, "out": None, "stream": None}
        *values, out, stream = validate.bind(where, allowed, args, kwargs)
        (out,) = validate.outputs(where, out)
        which, numbers = self._native(where, values)
        with Call(where, stream, x=x) as call:
            y, made = call.output("out", out, "x", in_place=not saves)
            call.run("activation_forward", which, call.views["x"], y, numbers)
            return call.result(out, made), call.arrays["x"]

    def _backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        where = f"fastact.{self.name}.backward"
        allowed = {**self.parameters, "out": None, "accumulate": False, "stream": None}
        *values, out, accumulate, stream = validate.bind(where, allowed, args, kwargs)
        (out,) = validate.outputs(where, out)
        which, numbers = self._native(where, values)
        accumulate = validate.flag(where, "accumulate", accumulate)
        validate.needs_out(where, accumulate, out)
        with Call(where, stream, x=x, dy=dy) as call:
            validate.same_as(where, "dy", call.views["dy"], "x", call.views["x"])
            dx, made = call.output("out", out, "x")
            views = call.views
            call.run("activation_backward", which, views["dy"], views["x"], dx, numbers, accumulate)
            return call.result(out, made)

    def _native(self, where: str, values: list[Any]) -> tuple[int, tuple[float, ...]]:
        """The native activation that the parameters choose, and those that are numbers."""
        which, numbers = self._which, {}
        for name, value in zip(self.parameters, values, strict=True):
            if name in self._choices:
                chosen = validate.choice(where, name, value, self._choices[name])
                which = _cpu.ACTIVATIONS.index(chosen)
            else:
                numbers[name] = validate.number(where, name, value)
        for text, holds in self._rules:
            validate.rule(where, text, holds, numbers)
        return which, tuple(numbers.values())
