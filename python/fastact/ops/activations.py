"""Activations: y = f(x), element by element.

Defaults are those of `torch.nn.functional`, and `declared` adds the stated accuracy. The formulas
are in `src/common/activations/`, the oracle is in `check/reference.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypedDict, Unpack

import numpy as np

from .. import _cpu
from ..interop import validate
from .bounds import Bounds, Other, scaling
from .engine.elementwise import Elementwise
from .engine.entry import Entry, signature_of
from .engine.execute import Execution
from .engine.op import Kernels, P, R, Traits, alias, declared, float32_under_autocast
from .engine.quantized import Quantizes
from .engine.second import no_third
from .types import A, ArrayOrNumber, Kwargs, Out, Stream

Choices = Mapping[str, Mapping[str, str]]
Rules = Sequence[tuple[str, Callable[..., bool]]]
Values = Mapping[str, Sequence[float]]


#: Words that the docstrings of all activations share.
_TEXTS = """
Parameters
----------
out : array, optional
    Where to write y; it may be x itself{in_forward}.

{raises}

Notes
-----
In float32 and float64 the result is {value} from the true value for every input, and the derivative
is {slope}. In float16 and bfloat16 both are the float32 values, correctly rounded; on a GPU they
are within {narrow:g} ULP.{other} A NaN gives a NaN.

[own]
"""


def _near(ulp: float, absolute: Callable[[str], float], exact: str, within: str) -> str:
    """Say a bound in words: units in the last place, or an absolute error."""
    text = f"{within} {ulp:g} ULP" if ulp else exact
    if absolute("float32"):
        text += f" or {absolute('float32'):g} (float64: {absolute('float64'):.3g}) absolute"
    return text


class Activation(Quantizes, Elementwise[P, R]):
    """An element-wise op, y = f(x).

    A fast path in compiled code serves contiguous arrays of one dtype; this class serves and
    explains the rest.

    saves : x, or y where the derivative is plain arithmetic of y (`derivative_by_value` of the
        functor): backward then computes no exponential, and `forward` may work in place.
    choices : for a parameter that is a string, the native activation that each value stands for.
    rules : what must hold for the parameters that are numbers, in words and as a function of them.
    values : values of these parameters that tests and checks try beside the default: the first ones
        together, and so on. float32 must hold them exactly, or the oracle judges another function.
    piecewise_linear : whether the derivative is constant between corners, and its own is 0.
    """

    family = "activations"
    bounds: Bounds
    traits = Traits(is_diagonal=True)
    kernels = Kernels({"forward": "activation_forward", "backward": "activation_backward"})

    def __init__(
        self,
        function: Callable[P, R],
        bounds: Bounds,
        saves: tuple[str, ...] = ("x",),
        choices: Choices | None = None,
        rules: Rules = (),
        values: Values | None = None,
        piecewise_linear: bool = False,
    ) -> None:
        call = self._declare(function)
        self.bounds, self.saves, self.rules = bounds, saves, rules
        self.choices, self.values = choices or {}, values or {}
        self._is(piecewise_linear=piecewise_linear)
        names = {"saved": saves[0], "dsaved": f"d{saves[0]}"}
        self.kernels = self.kernels._replace(names=names)
        own = [p for p in call.parameters.values() if p.name not in ("x", "out", "stream")]
        self.parameters = MappingProxyType({p.name: p.default for p in own})
        name, taken = "backward.backward", signature_of(call, ("ddx", "dy", *saves))
        second = self._entry(name, taken, ("ddy", f"d{saves[0]}"), skips=True)
        more: dict[str, Any] = {name: second}
        self._enter_points(**more)

    def _texts(self) -> str:
        b = self.bounds
        rules = [text for text, _ in self.rules]
        for name, allowed in self.choices.items():
            rules.append(f"{name} must be {' or '.join(map(repr, allowed))}")
        return _TEXTS.format(
            in_forward="" if "x" in self.saves else ", in `forward` too",
            raises=f"Raises\n------\nValueError\n    {', and '.join(rules)}." if rules else "",
            value=_near(b.forward_ulp, partial(b.absolute, of="forward"), "0 ULP", "at most"),
            slope=_near(b.derivative_ulp, b.absolute, "exact", "within"),
            narrow=b.narrow_ulp,
            other=f" {b.other.text}, with u = 2**-24 (float64: 2**-53)." if b.other else "",
        )

    def _gives(self) -> str:
        return "dx = dy y'(x)" + ("" if "x" in self.saves else ", computed from y")

    def _enter(self, **entry_points: Entry) -> None:
        super()._enter(**entry_points)
        parameters, choices = self.parameters, self.choices
        native = [choices[n][str(v)] for n, v in parameters.items() if n in choices]
        numbers = tuple(v for v in parameters.values() if not isinstance(v, str))
        fast = native[0] if native else self.name
        self._which = _cpu.ACTIVATIONS.index(fast)
        self._take_fast_path(self._which, len(parameters), numbers)
        twice = self.entry_point("backward.backward")
        vars(twice)["backward"] = partial(no_third, self._where("backward.backward"))

    def backward(
        self, dy: ArrayOrNumber, saved: A, /, *parameters: Any, **options: Unpack[FusedKwargs[A]]
    ) -> A:
        """Compute the gradient with respect to x: ``dx = dy * f'(x)``.

        This takes one pass over dy and what was saved, which is x, or y for some ops.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> x = np.array([-1.0, 0.0, 1.0])
        >>> dx = np.zeros(3)
        >>> fa.mish.backward(1.0, x, out=dx, accumulate=True)
        array([0.0592..., 0.6       , 1.0490...])
        """

    def _backward_backward(self) -> None:
        """Compute the gradients of `backward` with respect to dy and to what was saved.

        These are ``ddy = ddx * f'(x)`` and ``dx = dy * (ddx * f''(x))``. Where y was saved, its
        gradient replaces dx: ``dy * ddx`` times the derivative of f' as a function of y.

        Notes
        -----
        f' is as accurate as in `backward`. The absolute error of f'' is within 8 u of the largest
        magnitude that f'' has. For a piecewise linear op f'' is 0.

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
        """Return the formulas behind this op, each with the keyword that chooses it."""
        others = ((n, v) for n, allowed in self.choices.items() for v in allowed)
        chosen = {f"{self.name}({n}={v!r})": {n: v} for n, v in others if v != self.parameters[n]}
        return {self.name: {}, **chosen}

    @property
    def trials(self) -> list[dict[str, Any]]:
        """List parameters other than the defaults that are worth a trial, by keyword."""
        numbers = zip(*self.values.values(), strict=True)
        chosen = [named for named in self.variants.values() if named]
        return chosen + [dict(zip(self.values, row, strict=True)) for row in numbers]

    def _check_options(self, entry: Entry, options: SimpleNamespace) -> None:
        options.which, options.parameters = self.native(entry.where, options)

    def native(self, where: str, options: Any) -> tuple[int, tuple[float, ...]]:
        """Find the native activation that the parameters choose, and those that are numbers."""
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


class Parameters(TypedDict, total=False):
    """The activations' own parameters, which ops with an activation behind them take too."""

    alpha: float
    alpha_n: float
    alpha_p: float
    approximate: str
    beta: float
    cap: float
    lambd: float
    max_val: float
    min_val: float
    negative_slope: float


class FusedKwargs(Kwargs[A], Parameters, total=False):
    """The options that `backward` of an op with an activation behind it takes."""


@declared(Activation, Bounds(0, 0, 0), piecewise_linear=True)
def relu(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Rectified linear unit.

    ``y = max(x, 0)``.

    Notes
    -----
    The derivative at 0 is 0.

    References
    ----------
    V. Nair and G. E. Hinton, "Rectified Linear Units Improve Restricted Boltzmann Machines", ICML
    2010.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 2.0])
    >>> fa.relu(x)
    array([0., 0., 2.])
    >>> y, saved = fa.relu.forward(x)
    >>> fa.relu.backward(1.0, *saved)
    array([0., 0., 1.])
    """


@declared(Activation, Bounds(0, 0, 0), piecewise_linear=True)
def relu6(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Rectified linear unit, capped.

    ``y = min(max(x, 0), 6)``.

    Notes
    -----
    The derivative is 0 at 0 and at 6.

    References
    ----------
    M. Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", CVPR 2018,
    https://arxiv.org/abs/1801.04381

    Examples
    --------
    >>> x = np.array([-1.0, 2.0, 7.0])
    >>> fa.relu6(x)
    array([0., 2., 6.])
    >>> y, saved = fa.relu6.forward(x)
    >>> fa.relu6.backward(1.0, *saved)
    array([0., 1., 0.])
    """


@declared(Activation, Bounds(0.5, 0, 0))
def relu2(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Squared rectified linear unit.

    ``y = max(x, 0)**2``.

    References
    ----------
    D. R. So et al., "Primer: Searching for Efficient Transformers for Language Modeling", NeurIPS
    2021, https://arxiv.org/abs/2109.08668

    Examples
    --------
    >>> x = np.array([-1.0, 0.5, 2.0])
    >>> fa.relu2(x)
    array([0.  , 0.25, 4.  ])
    >>> y, saved = fa.relu2.forward(x)
    >>> fa.relu2.backward(1.0, *saved)
    array([0., 1., 4.])
    """


@declared(
    Activation, Bounds(1, 0.5, 0), values={"negative_slope": (0.25, -3.0)}, piecewise_linear=True
)
def leaky_relu(
    x: A, /, negative_slope: float = 0.01, out: Out[A] = None, *, stream: Stream = None
) -> A:
    """Leaky rectified linear unit.

    ``y = x if x > 0 else negative_slope * x``.

    Parameters
    ----------
    negative_slope : float, default 0.01
        The slope below zero.

    Notes
    -----
    The derivative at 0 is negative_slope.

    References
    ----------
    A. L. Maas et al., "Rectifier Nonlinearities Improve Neural Network Acoustic Models", ICML 2013.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 2.0])
    >>> fa.leaky_relu(x)
    array([-0.01,  0.  ,  2.  ])
    >>> y, saved = fa.leaky_relu.forward(x)
    >>> fa.leaky_relu.backward(1.0, *saved)
    array([0.01, 0.01, 1.  ])
    """


@declared(Activation, Bounds(2, 4, 1.2e-07), values={"alpha": (2.5, -0.75)})
def elu(x: A, /, alpha: float = 1.0, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Exponential linear unit.

    ``y = x if x > 0 else alpha * (exp(x) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
        The negative of the limit on the left: elu(x) tends to -alpha as x goes to -inf.

    Notes
    -----
    elu(-inf) is -alpha. The derivative at 0 is alpha.

    References
    ----------
    D.-A. Clevert et al., "Fast and Accurate Deep Network Learning by Exponential Linear Units
    (ELUs)", ICLR 2016, https://arxiv.org/abs/1511.07289

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 2.0])
    >>> fa.elu(x)
    array([-0.6321...,  0.        ,  2.        ])
    >>> y, saved = fa.elu.forward(x)
    >>> fa.elu.backward(1.0, *saved)
    array([0.3678..., 1.        , 1.        ])
    """


@declared(Activation, Bounds(2.5, 4, 1.2e-07))
def selu(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Scaled exponential linear unit.

    ``y = 1.0507... * elu(x, 1.6732...)``.

    Notes
    -----
    The derivative at 0 is the left derivative, 1.758.

    References
    ----------
    G. Klambauer et al., "Self-Normalizing Neural Networks", NeurIPS 2017,
    https://arxiv.org/abs/1706.02515

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 2.0])
    >>> fa.selu(x)
    array([-1.1113...,  0.        ,  2.1014...])
    >>> y, saved = fa.selu.forward(x)
    >>> fa.selu.backward(1.0, *saved)
    array([0.6467... , 1.7580..., 1.0507...])
    """


@declared(
    Activation,
    Bounds(2, 4, 1.2e-07, other=scaling("alpha", "x / alpha", lambda x, alpha: x / alpha)),
    rules=[("alpha must not be zero", lambda alpha: alpha != 0)],
    values={"alpha": (4.0, -1.0)},
)
def celu(x: A, /, alpha: float = 1.0, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Continuously differentiable exponential linear unit.

    ``y = x if x > 0 else alpha * (exp(x / alpha) - 1)``.

    Parameters
    ----------
    alpha : float, default 1.0
        Any number but zero.

    Notes
    -----
    celu(-inf) is -alpha for a positive alpha. For a negative alpha the result is -inf where exp(x /
    alpha) overflows, which begins at x / alpha = 89 (float64: 710).

    References
    ----------
    J. T. Barron, "Continuously Differentiable Exponential Linear Units",
    https://arxiv.org/abs/1704.07483

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 2.0])
    >>> fa.celu(x, 2.0)
    array([-0.7869...,  0.        ,  2.        ])
    >>> y, saved = fa.celu.forward(x, 2.0)
    >>> fa.celu.backward(1.0, *saved, 2.0)
    array([0.6065..., 1.        , 1.        ])
    """


@declared(
    Activation,
    Bounds(
        *(3, 4, 1.2e-07),
        forward_abs=2.4e-07,
        other=Other(
            ("alpha_n", "beta"),
            "Below 0, parameters other than the default add 2 u (alpha_n + beta) min(abs(x), 1)",
            lambda x, exact, alpha_n=0.8, beta=0.5: (
                np.where(x < 0, np.minimum(abs(x), 1), 0) * (alpha_n + beta)
            ),
        ),
    ),
    rules=[
        ("alpha_p must be above zero", lambda alpha_p, alpha_n, beta: alpha_p > 0),
        ("alpha_n must not be below beta", lambda alpha_p, alpha_n, beta: alpha_n >= beta),
        ("beta must be above zero", lambda alpha_p, alpha_n, beta: beta > 0),
    ],
    values={"alpha_p": (0.25, 2.0), "alpha_n": (0.75, 1.0), "beta": (0.5, 0.75)},
)
def xielu(
    x: A,
    /,
    alpha_p: float = 0.8,
    alpha_n: float = 0.8,
    beta: float = 0.5,
    out: Out[A] = None,
    *,
    stream: Stream = None,
) -> A:
    """Expanded integral of the exponential linear unit.

    ``y = alpha_p * x**2 + beta * x if x > 0 else alpha_n * (expm1(min(x, -1e-6)) - x) + beta * x``.

    Parameters
    ----------
    alpha_p : float, default 0.8
        How fast the derivative rises; it must be above zero. In the published module, whose
        parameters are a_p and a_n, it is softplus(a_p).
    alpha_n : float, default 0.8
        It must not be below beta. In that module it is beta + softplus(a_n).
    beta : float, default 0.5
        The derivative to the right of 0, above zero.

    Notes
    -----
    The derivative is that of the formula, as autograd of the published code gives it: from -1e-6 to
    0, including 0, it is beta - alpha_n. The parameters are numbers and have no gradient.

    References
    ----------
    A. H. Huang and I. Schlag, "Deriving Activation Functions Using Integration",
    https://arxiv.org/abs/2411.13010

    Examples
    --------
    >>> x = np.array([-1.0, 0.5, 2.0])
    >>> fa.xielu(x)
    array([-0.2056...,  0.45     ,  4.2      ])
    >>> y, saved = fa.xielu.forward(x)
    >>> fa.xielu.backward(1.0, *saved)
    array([-0.0056...,  1.3      ,  3.7      ])
    """


@declared(
    Activation,
    Bounds(3, 4, 1.2e-07),
    choices={"approximate": {"none": "gelu", "tanh": "gelu_tanh"}},
)
def gelu(x: A, /, approximate: str = "none", out: Out[A] = None, *, stream: Stream = None) -> A:
    """Gaussian error linear unit.

    ``y = x * Phi(x)``, with Phi the distribution function of the normal distribution.

    Parameters
    ----------
    approximate : {'none', 'tanh'}, default 'none'
        "tanh" computes x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), which differs by up to 5e-4.
        It is not faster here.

    Notes
    -----
    gelu(-inf) is -0. The bounds hold for both choices, each against its own formula. Left of -2 the
    derivative of "none" is small, and only the absolute bound holds: the relative error grows to
    2**-15 at -5 and to 2**-9 at -13, where the derivative ends (float64: 2**-24 at -37).

    References
    ----------
    D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units (GELUs)",
    https://arxiv.org/abs/1606.08415

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.gelu(x)
    array([-0.1586...,  0.        ,  0.8413...])
    >>> y, saved = fa.gelu.forward(x)
    >>> fa.gelu.backward(1.0, *saved)
    array([-0.0833...,  0.5       ,  1.0833...])
    """


@declared(Activation, Bounds(3, 4, 1.2e-07))
def silu(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Sigmoid linear unit, also named swish.

    ``y = x * sigmoid(x) = x / (1 + exp(-x))``.

    Notes
    -----
    silu(-inf) is -0. `fastact.swish` is the same op.

    References
    ----------
    S. Elfwing et al., "Sigmoid-Weighted Linear Units for Neural Network Function Approximation in
    Reinforcement Learning", Neural Networks 107, 2018, https://arxiv.org/abs/1702.03118

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.silu(x)
    array([-0.2689...,  0.        ,  0.7310...])
    >>> y, saved = fa.silu.forward(x)
    >>> fa.silu.backward(1.0, *saved)
    array([0.0723..., 0.5       , 0.9276...])
    """


swish = alias("swish", silu)


@declared(
    Activation,
    Bounds(3, 4, 1.2e-07, other=scaling("alpha", "alpha x", lambda x, alpha: alpha * x)),
    rules=[("alpha must be above zero", lambda alpha: alpha > 0)],
    values={"alpha": (1.0, 0.0625)},
)
def quick_gelu(x: A, /, alpha: float = 1.702, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Gelu approximated by a sigmoid, which is silu with a slope.

    ``y = x * sigmoid(alpha * x) = x / (1 + exp(-alpha * x))``.

    Parameters
    ----------
    alpha : float, default 1.702
        How sharp the bend is, above zero. With 1 the op is `silu`.

    Notes
    -----
    quick_gelu(-inf) is -0.

    References
    ----------
    D. Hendrycks and K. Gimpel, "Gaussian Error Linear Units (GELUs)",
    https://arxiv.org/abs/1606.08415

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.quick_gelu(x)
    array([-0.1542...,  0.        ,  0.8457...])
    >>> y, saved = fa.quick_gelu.forward(x)
    >>> fa.quick_gelu.backward(1.0, *saved)
    array([-0.0677...,  0.5       ,  1.0677...])
    """


@declared(Activation, Bounds(3, 4, 1.2e-07))
def mish(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Mish.

    ``y = x * tanh(softplus(x)) = x * tanh(log(1 + exp(x)))``.

    Notes
    -----
    mish(-inf) is -0, and mish(inf) is inf.

    References
    ----------
    D. Misra, "Mish: A Self Regularized Non-Monotonic Activation Function", BMVC 2020,
    https://arxiv.org/abs/1908.08681

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.mish(x)
    array([-0.3034...,  0.        ,  0.8650...])
    >>> y, saved = fa.mish.forward(x)
    >>> fa.mish.backward(1.0, *saved)
    array([0.0592..., 0.6       , 1.0490...])
    """


@declared(Activation, Bounds(2.5, 4, 1.2e-07), saves=("y",))
def sigmoid(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Logistic sigmoid.

    ``y = 1 / (1 + exp(-x))``.

    Notes
    -----
    `sigmoid.backward` computes y'(x) as y (1 - y), within 0.5 ULP for float32 and float64.

    References
    ----------
    P.-F. Verhulst, "Recherches mathematiques sur la loi d'accroissement de la population", 1845.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.sigmoid(x)
    array([0.2689..., 0.5       , 0.7310...])
    >>> y, saved = fa.sigmoid.forward(x)
    >>> fa.sigmoid.backward(1.0, *saved)
    array([0.1966..., 0.25      , 0.1966...])
    """


@declared(Activation, Bounds(2.5, 4, 1.2e-07))
def logsigmoid(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Logarithm of the logistic sigmoid.

    ``y = -log(1 + exp(-x))``.

    Notes
    -----
    logsigmoid(inf) is -0.

    References
    ----------
    The log-likelihood of logistic regression: D. R. Cox, "The Regression Analysis of Binary
    Sequences", J. R. Stat. Soc. B 20, 1958.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.logsigmoid(x)
    array([-1.3132..., -0.6931..., -0.3132...])
    >>> y, saved = fa.logsigmoid.forward(x)
    >>> fa.logsigmoid.backward(1.0, *saved)
    array([0.7310..., 0.5       , 0.2689...])
    """


@declared(Activation, Bounds(1.5, 0.5, 0), piecewise_linear=True)
def hardsigmoid(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Piecewise linear sigmoid.

    ``y = min(max(x + 3, 0), 6) / 6``.

    Notes
    -----
    The derivative is 0 at -3 and at 3.

    References
    ----------
    A. Howard et al., "Searching for MobileNetV3", ICCV 2019, https://arxiv.org/abs/1905.02244

    Examples
    --------
    >>> x = np.array([-4.0, 0.0, 1.5])
    >>> fa.hardsigmoid(x)
    array([0.  , 0.5 , 0.75])
    >>> y, saved = fa.hardsigmoid.forward(x)
    >>> fa.hardsigmoid.backward(1.0, *saved)
    array([0.        , 0.1666..., 0.1666...])
    """


@declared(Activation, Bounds(2.75, 4, 1.2e-07), saves=("y",))
def tanh(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Hyperbolic tangent.

    ``y = tanh(x)``.

    Notes
    -----
    `tanh.backward` computes y'(x) as 1 - y^2, within 0.5 ULP for float32 and float64.

    References
    ----------
    Y. LeCun et al., "Efficient BackProp", in Neural Networks: Tricks of the Trade, 1998.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.tanh(x)
    array([-0.7615...,  0.        ,  0.7615...])
    >>> y, saved = fa.tanh.forward(x)
    >>> fa.tanh.backward(1.0, *saved)
    array([0.4199..., 1.        , 0.4199...])
    """


@declared(
    Activation,
    Bounds(0, 0, 0),
    rules=[("min_val must not exceed max_val", lambda min_val, max_val: min_val <= max_val)],
    values={"min_val": (-0.25, 1.5), "max_val": (3.0, 1.5)},
    piecewise_linear=True,
)
def hardtanh(
    x: A,
    /,
    min_val: float = -1.0,
    max_val: float = 1.0,
    out: Out[A] = None,
    *,
    stream: Stream = None,
) -> A:
    """Piecewise linear tanh.

    ``y = min(max(x, min_val), max_val)``.

    Parameters
    ----------
    min_val, max_val : float, default -1.0, 1.0
        The limits.

    Notes
    -----
    The derivative at the limits is 0.

    References
    ----------
    R. Collobert, "Large Scale Machine Learning", PhD thesis, Universite Paris VI, 2004.

    Examples
    --------
    >>> x = np.array([-2.0, 0.5, 2.0])
    >>> fa.hardtanh(x)
    array([-1. ,  0.5,  1. ])
    >>> y, saved = fa.hardtanh.forward(x)
    >>> fa.hardtanh.backward(1.0, *saved)
    array([0., 1., 0.])
    """


@declared(
    Activation,
    Bounds(3, 4, 1.2e-07),
    rules=[("cap must be above zero", lambda cap: cap > 0)],
    values={"cap": (50.0, 2.0**-130, 2.0**120)},
)
def softcap(x: A, /, cap: float = 30.0, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Soft cap of logits.

    ``y = cap * tanh(x / cap)``.

    Parameters
    ----------
    cap : float, default 30.0
        The limit of abs(y), above zero. Gemma 2 uses 30 for its final logits and 50 for attention.

    Notes
    -----
    However small or large x and cap are, no intermediate step overflows or loses bits.

    References
    ----------
    Gemma Team, "Gemma 2: Improving Open Language Models at a Practical Size",
    https://arxiv.org/abs/2408.00118

    Examples
    --------
    >>> x = np.array([-100.0, 0.0, 10.0])
    >>> fa.softcap(x)
    array([-29.9237...,   0.        ,   9.6453...])
    >>> y, saved = fa.softcap.forward(x, 50.0)
    >>> fa.softcap.backward(1.0, *saved, 50.0)
    array([0.0706..., 1.        , 0.9610...])
    """


@declared(Activation, Bounds(3, 4, 1.2e-07))
def tanhshrink(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Subtract tanh(x) from x.

    ``y = x - tanh(x)``.

    Notes
    -----
    Nothing cancels near 0, where the result is about x^3/3.

    References
    ----------
    A shrinkage, as in wavelet denoising: D. L. Donoho and I. M. Johnstone, "Ideal Spatial
    Adaptation by Wavelet Shrinkage", Biometrika 81, 1994.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.tanhshrink(x)
    array([-0.2384...,  0.        ,  0.2384...])
    >>> y, saved = fa.tanhshrink.forward(x)
    >>> fa.tanhshrink.backward(1.0, *saved)
    array([0.5800..., 0.        , 0.5800...])
    """


@float32_under_autocast("cuda")
@declared(
    Activation,
    Bounds(3, 4, 1.2e-07, other=scaling("beta", "beta x", lambda x, beta: beta * x)),
    rules=[("beta must be above zero", lambda beta: beta > 0)],
    values={"beta": (0.375, 3.0)},
)
def softplus(x: A, /, beta: float = 1.0, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Smooth rectifier.

    ``y = log(1 + exp(beta * x)) / beta``.

    Parameters
    ----------
    beta : float, default 1.0
        How sharp the bend is, above zero.

    Notes
    -----
    There is no threshold above which the result is x, because none is needed.

    References
    ----------
    C. Dugas et al., "Incorporating Second-Order Functional Knowledge for Better Option Pricing",
    NeurIPS 2000.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.softplus(x)
    array([0.3132..., 0.6931..., 1.3132...])
    >>> y, saved = fa.softplus.forward(x)
    >>> fa.softplus.backward(1.0, *saved)
    array([0.2689..., 0.5       , 0.7310...])
    """


@declared(Activation, Bounds(2, 4, 1.2e-07))
def softsign(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Soft sign.

    ``y = x / (1 + abs(x))``.

    References
    ----------
    J. Turian et al., "Quadratic Features and Deep Architectures for Chunking", NAACL 2009.

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 3.0])
    >>> fa.softsign(x)
    array([-0.5 ,  0.  ,  0.75])
    >>> y, saved = fa.softsign.forward(x)
    >>> fa.softsign.backward(1.0, *saved)
    array([0.25  , 1.    , 0.0625])
    """


@declared(
    Activation,
    Bounds(0.5, 0, 0),
    rules=[("lambd must not be negative", lambda lambd: lambd >= 0)],
    values={"lambd": (0.0, 3.5)},
    piecewise_linear=True,
)
def softshrink(x: A, /, lambd: float = 0.5, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Soft shrinkage.

    ``y = x - lambd * sign(x) if abs(x) > lambd else 0``.

    Parameters
    ----------
    lambd : float, default 0.5
        How much is subtracted; it must not be below zero.

    Notes
    -----
    Zeros have the sign of x. The derivative at +-lambd is 0.

    References
    ----------
    D. L. Donoho, "De-noising by Soft-Thresholding", IEEE Trans. Inf. Theory 41, 1995.

    Examples
    --------
    >>> x = np.array([-2.0, 0.25, 2.0])
    >>> fa.softshrink(x)
    array([-1.5,  0. ,  1.5])
    >>> y, saved = fa.softshrink.forward(x)
    >>> fa.softshrink.backward(1.0, *saved)
    array([1., 0., 1.])
    """


@declared(Activation, Bounds(0, 0, 0), values={"lambd": (2.0,)}, piecewise_linear=True)
def hardshrink(x: A, /, lambd: float = 0.5, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Hard shrinkage.

    ``y = x if abs(x) > lambd else 0``.

    Parameters
    ----------
    lambd : float, default 0.5
        The threshold. With one below zero nothing is shrunk, and y is x.

    Notes
    -----
    Zeros have the sign of x. The derivative at +-lambd is 0.

    References
    ----------
    D. L. Donoho and I. M. Johnstone, "Ideal Spatial Adaptation by Wavelet Shrinkage", Biometrika
    81, 1994.

    Examples
    --------
    >>> x = np.array([-2.0, 0.25, 2.0])
    >>> fa.hardshrink(x)
    array([-2.,  0.,  2.])
    >>> y, saved = fa.hardshrink.forward(x)
    >>> fa.hardshrink.backward(1.0, *saved)
    array([1., 0., 1.])
    """


@declared(Activation, Bounds(2.5, 4, 1.2e-07))
def hardswish(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Piecewise parabolic swish.

    ``y = x * min(max(x + 3, 0), 6) / 6``.

    Notes
    -----
    hardswish(-inf) is -0. The derivative is 0 at -3 and 1 at 3.

    References
    ----------
    A. Howard et al., "Searching for MobileNetV3", ICCV 2019, https://arxiv.org/abs/1905.02244

    Examples
    --------
    >>> x = np.array([-4.0, -1.5, 3.0])
    >>> fa.hardswish(x)
    array([-0.   , -0.375,  3.   ])
    >>> y, saved = fa.hardswish.forward(x)
    >>> fa.hardswish.backward(1.0, *saved)
    array([0.0000...e+00, 2.7755..., 1.0000...e+00])
    """


@declared(Activation, Bounds(1.5, 0.5, 0))
def hardmish(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Piecewise parabolic Mish.

    ``y = x * min(max(x + 2, 0), 2) / 2``.

    Notes
    -----
    hardmish(-inf) is -0. The derivative is 0 at -2 and 1 at 0.

    References
    ----------
    D. Misra, "H-Mish", 2020, https://github.com/digantamisra98/H-Mish

    Examples
    --------
    >>> x = np.array([-3.0, -1.0, 2.0])
    >>> fa.hardmish(x)
    array([-0. , -0.5,  2. ])
    >>> y, saved = fa.hardmish.forward(x)
    >>> fa.hardmish.backward(1.0, *saved)
    array([0., 0., 1.])
    """


@declared(Activation, Bounds(2.5, 4, 1.2e-07))
def lisht(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Linearly scaled hyperbolic tangent.

    ``y = x * tanh(x)``.

    References
    ----------
    S. K. Roy et al., "LiSHT: Non-Parametric Linearly Scaled Hyperbolic Tangent Activation Function
    for Neural Networks", https://arxiv.org/abs/1901.05894

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.lisht(x)
    array([0.7615..., 0.        , 0.7615...])
    >>> y, saved = fa.lisht.forward(x)
    >>> fa.lisht.backward(1.0, *saved)
    array([-1.1815...,  0.       ,  1.1815...])
    """


@declared(Activation, Bounds(2.5, 4, 1.2e-07))
def logcosh(x: A, /, out: Out[A] = None, *, stream: Stream = None) -> A:
    """Logarithm of the hyperbolic cosine.

    ``y = log(cosh(x))``.

    Notes
    -----
    Nothing overflows, and nothing cancels near 0, where the result is about x^2/2.

    References
    ----------
    R. A. Saleh and A. K. M. E. Saleh, "Statistical Properties of the log-cosh Loss Function Used in
    Machine Learning", https://arxiv.org/abs/2208.04564

    Examples
    --------
    >>> x = np.array([-1.0, 0.0, 1.0])
    >>> fa.logcosh(x)
    array([0.4337..., 0.        , 0.4337...])
    >>> y, saved = fa.logcosh.forward(x)
    >>> fa.logcosh.backward(1.0, *saved)
    array([-0.7615...,  0.        ,  0.7615...])
    """
