"""Stated bounds are what is checked: docstrings, `op.bounds`, and results on which they are hard.

Every result is judged by the bounds of its op and the oracle's own error, `reference.BUDGET`.
"""

import math
import re
from typing import Any

import judged
import numpy as np
import pytest
from devices import DTYPES, FRAMEWORKS, KERNELS
from normed import Arrays, Setting, assert_right, for_every_norm
from recurrent import GATES, Step

import fastact as fa
from fastact.check import reference
from fastact.measure.norm_rows import traits
from fastact.ops.bounds import (
    BiasBounds,
    Bounds,
    CrossEntropyBounds,
    DivergenceBounds,
    DropoutBounds,
    GateBounds,
    GatedBounds,
    MomentBounds,
    NormBounds,
    NormRotaryBounds,
    ParametricBounds,
    RotaryBounds,
    SoftmaxBounds,
    SumBounds,
)

STATED = [op for op in fa.ops.values() if hasattr(op, "bounds")]
NORMS = [op for op in STATED if op.family == "norms"]
everywhere = pytest.mark.parametrize("where", [FRAMEWORKS[0], *KERNELS], ids=lambda f: f.name)


def shown(op: Any, entry: str = "") -> str:
    """A docstring as one line."""
    doc = (getattr(op, entry) if entry else op).__doc__
    return re.sub(r"\s+", " ", doc)


def text(value: float) -> str:
    """A constant as the docstrings write it: powers of two as such."""
    fraction, exponent = math.frexp(value)
    return f"2**{exponent - 1}" if fraction == 0.5 and not -2 < exponent < 8 else f"{value:g}"


def constants(bounds: Any, statistic: str = "") -> tuple[list[str], list[str]]:
    """What the docstrings of a call and of its backward have to say."""
    if isinstance(bounds, Bounds):
        stated = [f"{bounds.forward_ulp:g} ULP", f"within {bounds.narrow_ulp:g} ULP"]
        absolute = filter(None, (bounds.forward_abs, bounds.derivative_abs))
        return [*stated, *(f"or {a:g} (float64" for a in absolute)], []
    if isinstance(bounds, SumBounds):
        return [f"{bounds.ulp:g} ULP", text(bounds.absolute), text(bounds.narrow)], []
    if isinstance(bounds, MomentBounds):
        of_sums, of_dx = constants(bounds.sums)[0], [f"{bounds.gradient:g} u"]
        if statistic in ("sum", "mean"):
            return of_sums, of_dx
        shares, half = [bounds.m2, bounds.m2_double, bounds.far], 2 if statistic == "std" else 1
        of_mean = [] if statistic else [text(bounds.mean)]
        return [*of_mean, *(text(a / half) for a in shares)], of_dx + of_mean
    if isinstance(bounds, BiasBounds):
        z = f"{bounds.sums:g} u (abs(x) + abs(bias) + abs(residual))"
        return [z], [z, f"{bounds.dbias.ulp:g} ULP", text(bounds.dbias.absolute)]
    if isinstance(bounds, GatedBounds):
        z = f"{bounds.sums:g} u (abs(a) + abs(bias))"
        return [z], [f"{bounds.dbias.ulp:g} ULP", text(bounds.dbias.absolute)]
    if isinstance(bounds, GateBounds):
        states = f"{bounds.state_ulp:g} u (1 + {bounds.sums:g} S)"
        return [states], [f"{bounds.gradient_ulp:g} u (1 + {bounds.sums:g} S)"]
    if isinstance(bounds, ParametricBounds):
        derivatives = [f"{u:g} u" for u in (bounds.by_x, bounds.by_parameter) if u]
        sums = [text(bounds.sums.absolute), f"{bounds.sums.ulp:g} ULP"]
        return [f"within {bounds.value:g} u abs(", *derivatives], sums
    if isinstance(bounds, RotaryBounds):
        return [f"within {bounds.products:g} u (abs(a cos) + abs(b sin))"], []
    if isinstance(bounds, DivergenceBounds):
        backward = [f"within {text(bounds.share)} abs(dy)", f"{text(bounds.narrow_gradient)};"]
        return [f"and {text(bounds.share)} of the sum of"], backward
    if isinstance(bounds, SoftmaxBounds):
        back = {
            "logsumexp": "8 u abs(dx)",
            "log_softmax": "8 u abs(scale) (",
            "softmax": "4 u abs(",
        }
        return [f"within {bounds.ulps:g} ULP", f"n / {bounds.lanes:g} u"], [back[bounds.kind]]
    if isinstance(bounds, CrossEntropyBounds):
        return [f"within {bounds.constant:g} u of"], [f"{bounds.constant:g} u abs(g)"]
    if isinstance(bounds, DropoutBounds):
        scaled = f"{bounds.scale:g} u abs("
        return [f"{scaled}x) / (1 - p)", "u abs(y)"], [f"{scaled}dy) / (1 - p)"]
    assert isinstance(bounds, NormBounds)
    if isinstance(bounds, NormRotaryBounds):
        called, _ = constants(NormBounds(bounds.scaled))
        turned = f"{bounds.turned.products:g} u (abs("
        sums = f"{bounds.summed:g} u sum abs(p xhat)"
        return [*called, f"{turned}n_a cos)"], [f"{turned}dya cos)", sums]
    z = f"{bounds.scaled:g} u abs(xhat weight) + u abs(z)"
    sums = f"{bounds.summed:g} u sum abs(p)"
    return [z, text(bounds.moments)], [z.replace(" + u abs(z)", ""), sums]


@pytest.mark.parametrize("op", STATED, ids=lambda op: op.name)
def test_docstrings_state_the_bounds(op):
    called, back = constants(op.bounds, op.results[0] if op.family == "statistics" else "")
    if op.family == "bias" and isinstance(op.bounds, SumBounds):
        called = ["As accurate as `fastact.sum`"]
        assert op.bounds == fa.sum.bounds
    assert [c for c in called if c not in shown(op)] == []
    assert [c for c in back if c not in shown(op, "backward")] == []


@pytest.mark.parametrize("op", NORMS, ids=lambda op: op.name)
def test_docstrings_state_the_gradients_of_norms(op):
    said, kind = shown(op, "backward"), traits(op)
    b = op.bounds
    assert f"n / {1 / b.each:g}" in said
    of_moments = f"{b.gradient:g} abs(g) + {b.averaged:g} (mean abs(g)"
    assert of_moments in said
    assert (f"{b.given:g} u rstd abs(g)" in said) == kind.by_channel
    if kind.centred:
        assert text(b.far) in shown(op)
        assert text(b.far_double) in shown(op)


@pytest.mark.parametrize("op", [op for op in STATED if isinstance(op.bounds, Bounds)], ids=str)
def test_docstrings_state_the_second_derivatives(op):
    said = re.sub(r"\s+", " ", op.backward.backward.__doc__)
    assert f"within {op.bounds.second:g} u of the largest magnitude" in said


def test_rounding_of_every_dtype():
    """Half a unit in the last place, at a power of two, between, below the normal numbers."""
    from fastact.ops.bounds import rounding

    for name, unit, least in (
        ("float16", 2.0**-10, 2.0**-24),
        ("bfloat16", 2.0**-7, 2.0**-133),
        ("float32", 2.0**-23, 2.0**-149),
        ("float64", 2.0**-52, 5e-324),
    ):
        values = np.array([1.0, 1.99, -2.0, 0.0])
        expected = np.array([unit, unit, 2 * unit, least]) / 2
        np.testing.assert_array_equal(rounding(values, DTYPES[name]), expected)


# --- norms ----------------------------------------------------------------------------------------


def far(arrays: Arrays, rng: Any) -> None:
    arrays.x = (arrays.x.astype(float) + 1000).astype(arrays.x.dtype)


def one_huge(arrays: Arrays, rng: Any) -> None:
    """Beside which every other term of a sum is rounded."""
    arrays.x[..., 0], arrays.dy[..., 0] = 3e4, 300


def near_constant(arrays: Arrays, rng: Any) -> None:
    arrays.x[...] = 128
    arrays.x[..., -1] = 129


def orders(arrays: Arrays, rng: Any) -> None:
    for a in (arrays.x, arrays.dy):
        a[...] = (a.astype(float) * 10.0 ** rng.uniform(-3, 3, a.shape)).astype(a.dtype)


def one_way(arrays: Arrays, rng: Any) -> None:
    """Terms that are one number: their roundings go one way."""
    arrays.x[...] = 0.7
    arrays.x[..., ::2] *= -1
    arrays.dy[...] = 0.1


def near_root(arrays: Arrays, rng: Any) -> None:
    """A bias that takes away the first row's xhat weight: z is made of errors alone."""
    s = arrays.setting
    if not s.centred or s.parameter != arrays.x.shape[-1:]:
        return
    wide = arrays.normalised.astype(np.longdouble)
    mean, rstd = reference.statistics(wide, s.axes, s.eps, True)
    z = ((wide - mean) * rstd * arrays.weight.astype(wide.dtype)).reshape(-1, s.parameter[0])[0]
    arrays.bias = (-z).astype(arrays.x.dtype)


HARD = [far, one_huge, near_constant, orders, one_way, near_root]
HARD_SETTINGS = for_every_norm(
    [
        Setting("layer_norm", (40, 77), {"eps": 1e-12}),
        Setting("layer_norm", (2, 5000)),
        Setting("rms_norm", (3, 2500), {"eps": 1e-12}),
        Setting("group_norm", (9, 12, 23), groups=4),
        Setting("instance_norm", (3, 9, 70), {"channel_axis": -1}),
    ]
)
hard = pytest.mark.parametrize("make", HARD, ids=lambda make: make.__name__)
hard_settings = pytest.mark.parametrize("setting", HARD_SETTINGS, ids=str)


@hard
@hard_settings
@pytest.mark.parametrize("name", ["identity", "mish"])
@everywhere
def test_norms_of_hard_data(where, dtype, setting, make, name):
    arrays = Arrays(setting, dtype)
    with np.errstate(over="ignore"):
        make(arrays, np.random.default_rng(0))
    assert_right(arrays, name, where)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_moments_whose_roundings_add_up(op):
    """31 u of rstd, of float64: each lane's first term is huge, and rounds all that follow it.

    These are what 2**-46, 128 u, is for; other data have some u.
    """
    rng = np.random.default_rng(1)
    arrays = Arrays(Setting(op, (200, 2048), {"eps": 0.0}), np.dtype(np.float64))
    tops = rng.random((200, 1)) + 0.5
    arrays.x[...] = np.where(np.arange(2048) < 32, 1000 * tops, -tops)
    assert_right(arrays, "identity")


@pytest.mark.parametrize("fill", [0.1, pytest.param(0.7, marks=pytest.mark.thorough)])
def test_long_sums_of_float64(fill):
    """Each of n equal terms rounds alike: 80 u of 200 000 rows, 467 u in a row of 500 000."""
    for shape in ((200_000, 4), (2, 300_000)):
        arrays = Arrays(Setting("layer_norm", shape), np.dtype(np.float64))
        arrays.dy[...] = fill
        assert_right(arrays, "identity")


@everywhere
@pytest.mark.parametrize("kind", ["training", "running", "apply"])
@pytest.mark.parametrize("name", ["identity", "mish"])
@pytest.mark.parametrize("make", [None, far, one_huge, near_constant, orders, one_way])
def test_channels(where, dtype, kind, name, make):
    arrays = Arrays(Setting("instance_norm", (9, 12, 23)), dtype)
    if make is not None:
        with np.errstate(over="ignore"):
            make(arrays, np.random.default_rng(0))
    compute = np.promote_types(dtype, np.float32)
    mean, rstd = reference.statistics(arrays.x.astype(reference.wide(dtype)), (0, 2), 1e-5, True)
    # Given ones are in the type that is computed in.
    mean, var, rstd = (a.reshape(12).astype(compute) for a in (1 + mean / 2, rstd**-2, rstd))
    op, given = {
        "training": (fa.batch_norm, {"running_mean": None, "running_var": None, "training": True}),
        "running": (fa.batch_norm, {"running_mean": mean, "running_var": var, "training": False}),
        "apply": (fa.norm_apply, {"mean": mean, "rstd": rstd, "axis": 1}),
    }[kind]
    named = {"x": arrays.x, **given, **arrays.weights, "activation": name}
    found = judged.assert_right(op, named, [arrays.dy], where)
    assert {"y", "dx", "dweight", "dbias"} <= found.keys()


# --- bias_act -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["identity", "mish", "relu", "hardswish"])
def test_bias_act(backend, dtype, name):
    """Sums that cancel to kinks, too: the slope there belongs to some z within the bound."""
    rng = np.random.default_rng(0)
    x, dy, residual = (rng.normal(size=(67, 20)).astype(dtype) for _ in range(3))
    bias = rng.normal(size=20).astype(dtype)
    x[1:9] = (-(residual[1:9].astype(float) + bias.astype(float))).astype(dtype)
    named = {"x": x, "bias": bias, "residual": residual, "activation": name}
    assert {"y", "dx", "dbias"} <= judged.assert_right(fa.bias_act, named, [dy], backend).keys()


# --- gates ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("size", [1.0, 30.0, 1000.0])
def test_gates_whose_sums_cancel(dtype, size):
    """A pre-activation of some u of its terms, where sigmoid and tanh are steepest.

    Of gru_gates, too, whose reset gate then scales something as large.
    """
    rng = np.random.default_rng(0)
    for op in GATES:
        columns, rows, gates = 40, 50, op.count
        recurrent = (size * (1 + rng.random((rows, gates * columns)))).astype(dtype)
        bias = rng.normal(size=gates * columns).astype(dtype)
        near = rng.normal(size=recurrent.shape)
        x = -(recurrent.astype(float) + bias) + near
        if op.takes_recurrent:  # n: x + r q, with r near a half
            n = op.letters.index("n") * columns
            x[:, n : n + columns] /= 2
        made = lambda *shape: rng.normal(size=shape).astype(dtype)  # noqa: E731
        step = Step(
            op,
            x.astype(dtype),
            made(rows, columns),
            made(rows, columns),
            recurrent,
            bias,
            None,
            made(rows, columns) if "c" in op.results else None,
        )
        assert judged.assert_right(op, step.named, step.gradients, shape=(rows, columns))
