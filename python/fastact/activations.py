"""Activations: one row each.

The row gives the name, the parameters with their defaults (as `torch.nn.functional` has them), the
stated accuracy and the documentation; the formula stands in `src/common/activations.h`, the oracle
in `tests/reference.py`.
"""

from typing import Any

from . import _checks, _cpu
from ._call import Call
from ._op import Bounds, Op, register


class Activation(Op, _cpu.FastActivation):
    """An element-wise op, y = f(x).

    The compiled base class serves contiguous arrays of one dtype; this class serves and explains
    the rest. Data flows one way: check, choose the backend, allocate, run.
    """

    bounds: Bounds

    def __init__(self, name: str, bounds: Bounds, doc: str, **parameters: float) -> None:
        _cpu.FastActivation.__init__(self, name, tuple(parameters.values()))
        self._introduce(name, "activations", ("x",), doc, **parameters)
        self.bounds = bounds

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
        *values, out, stream = _checks.bind(where, allowed, args, kwargs)
        (out,) = _checks.outputs(where, out)
        parameters = self._numbers(where, values)
        with Call(where, stream, x=x) as call:
            y, made = call.output("out", out, "x", in_place=not saves)
            call.native.activation_forward(self._which, call.views["x"], y, parameters, call.stream)
            return call.result(out, made), call.arrays["x"]

    def _backward(self, dy: Any, x: Any, /, *args: Any, **kwargs: Any) -> Any:
        where = f"fastact.{self.name}.backward"
        allowed = {**self.parameters, "out": None, "accumulate": False, "stream": None}
        *values, out, accumulate, stream = _checks.bind(where, allowed, args, kwargs)
        (out,) = _checks.outputs(where, out)
        parameters = self._numbers(where, values)
        accumulate = _checks.flag(where, "accumulate", accumulate)
        _checks.needs_out(where, accumulate, out)
        with Call(where, stream, x=x, dy=dy) as call:
            _checks.same_as(where, "dy", call.views["dy"], "x", call.views["x"])
            dx, made = call.output("out", out, "x")
            call.native.activation_backward(
                self._which,
                call.views["dy"],
                call.views["x"],
                dx,
                parameters,
                accumulate,
                call.stream,
            )
            return call.result(out, made)

    def _numbers(self, where: str, values: list[Any]) -> tuple[float, ...]:
        named = zip(self.parameters, values, strict=True)
        return tuple(_checks.number(where, name, value) for name, value in named)


mish = register(
    Activation(
        "mish",
        Bounds(forward_ulp=3.0, derivative_ulp=4.0, derivative_abs=1.2e-7),
        """Mish: x tanh(softplus(x)) = x tanh(log(1 + exp(x))).

        Parameters
        ----------
        x : array
            Any shape and strides; float16, bfloat16, float32 or float64, a NumPy array or an array
            of any framework with DLPack. Integers, lists and scalars are taken as np.tanh takes
            them.
        out : array, optional
            Where to write y: shape, dtype, device and framework of x. It may be x itself. As in
            NumPy, a tuple of one is the same.

        Returns
        -------
        y : array
            `out` where it was given, else a new array of x's framework, in x's layout.

        Raises
        ------
        TypeError
            For a dtype that is not supported, mixed frameworks, or a tensor that requires grad.
        ValueError
            For an `out` of another shape or device, read-only, or that overlaps x in part.

        Notes
        -----
        float32 and float64: at most 3 ULP from the true value, for every input. The derivative
        that `backward` uses is within 4 ULP or 1.2e-7 (float32; 2.3e-16 for float64) absolute.
        float16 and bfloat16: the float32 result, correctly rounded.
        mish(-inf) = -0, mish(inf) = inf, and a NaN gives a NaN.

        References
        ----------
        D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", BMVC 2020,
        https://arxiv.org/abs/1908.08681

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> fa.mish(np.array([-1.0, 0.0, 1.0]))
        array([-0.3034...,  0.        ,  0.8650...])
        """,
    )
)
