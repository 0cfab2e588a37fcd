"""The op object of an activation: the Python half of its three entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

from ... import _cpu
from ...interop import validate
from ..bounds import Bounds
from ..types import A, ArrayOrNumber, Out, Stream
from .elementwise import Elementwise
from .entry import Entry, signature_of
from .execute import Execution, execute
from .op import Kernels, P, R, Traits, register
from .quantized import Quantizes
from .second import no_third
from .served import enter_at, enter_cached

Choices = Mapping[str, Mapping[str, str]]
Rules = Sequence[tuple[str, Callable[..., bool]]]
Values = Mapping[str, Sequence[float]]


class Activation(Quantizes, Elementwise[P, R], _cpu.FastActivation):
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
    traits = Traits(is_diagonal=True)
    kernels = Kernels({"forward": "activation_forward", "backward": "activation_backward"})

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
        self.values = values
        self._is(piecewise_linear=piecewise_linear)
        names = {"saved": saves[0], "dsaved": f"d{saves[0]}"}
        self.kernels = self.kernels._replace(names=names)
        own = [p for p in call.parameters.values() if p.name not in ("x", "out", "stream")]
        self.parameters = MappingProxyType({p.name: p.default for p in own})
        second = {
            "signature": signature_of(call, ("ddx", "dy", *saves)),
            "gives": ("ddy", f"d{saves[0]}"),
        }
        self._enter_points(call, signature_of(call, ("dy", *saves)), second=second)

    def _enter(self, **entry_points: Entry) -> None:
        super()._enter(**entry_points)
        parameters, choices = self.parameters, self.choices
        native = [choices[n][str(v)] for n, v in parameters.items() if n in choices]
        numbers = tuple(v for v in parameters.values() if not isinstance(v, str))
        _cpu.FastActivation.__init__(
            self, native[0] if native else self.name, len(parameters), numbers
        )
        self._cache_calls(  # what the fast path does not serve
            _cpu.CachedCall(self._plain_call, self, "_plain_call", self._recorder),
            *(
                _cpu.CachedCall(partial(execute, entry_points[name]), self, name)
                for name in ("forward", "backward")
            ),
        )
        backward: Any = _cpu.backward_of(self)
        enter_at(self, "backward", backward, partial(execute, entry_points["backward"]))
        backward.__module__, backward.__qualname__ = "fastact", f"{self.name}.backward"  # to pickle
        backward.__doc__ = type(self).backward.__doc__
        enter_cached(self, "backward.backward")
        twice = self.entry_point("backward.backward")
        vars(twice)["backward"] = partial(no_third, self._where("backward.backward"))

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
    ) -> A:
        """The gradient with respect to x: ``dx = dy * f'(x)``.

        In one pass over dy and what was saved: x, or y of some ops.

        Parameters
        ----------
        dy : array, or Python scalar
            The gradient of the loss with respect to y; shape and dtype of x.
        saved : array
            The array that `forward` saved.
        *parameters : float or str
            The op's own parameters, as given to `forward`.
        out : array, optional
            Where to write dx; it may be dy or `saved` itself.
        accumulate : bool
            Add dx to `out` instead of overwriting it.
        stream : optional
            For arrays on a GPU: the stream to work on.
        **named : float or str
            Parameters by keyword.

        Returns
        -------
        dx : array
            `out` where it was given.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([-1.0, 0.0, 1.0])
        >>> dx = np.zeros(3)
        >>> fa.mish.backward(1.0, x, out=dx, accumulate=True)
        array([0.0592..., 0.6       , 1.0490...])
        """

    def _backward_backward(self) -> None:
        """The gradients of `backward`: of dy, and of what was saved.

        ``ddy = ddx * f'(x)`` and ``dx = dy * (ddx * f''(x))``. Where y was saved, its gradient
        comes instead, ``dy * ddx`` times the derivative of f' as a function of y.

        Notes
        -----
        f' is as accurate as in `backward`, and f'' is within 8 u of the largest magnitude that f''
        has, absolutely. Of an op that is linear in pieces it is 0.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([-1.0, 0.0, 1.0])
        >>> ddy, dx = fa.mish.backward.backward(1.0, 1.0, x)
        >>> ddy
        array([0.0592..., 0.6       , 1.0490...])
        """

    def _run_backward_backward(self, now: Execution) -> None:
        if now.view("ddy") is not None:
            now.run("activation_backward", dy=now.views["ddx"], dx=now.view("ddy"))
        if now.view(f"d{self.saves[0]}") is not None:
            now.run("activation_second")

    def _parts_along(self, now: Execution) -> tuple[int, ...]:
        return tuple(range(now.views["x"].ndim))

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

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        options.which, options.parameters = self.native(entry.where, options)

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
