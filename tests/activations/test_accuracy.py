"""Accuracy: each op against the oracle, on every backend; bounds are the ops' own."""

from functools import lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import get_type_hints

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
from conftest import ACTIVATIONS, assert_same_bits
from devices import DTYPES

import fastact as fa
from fastact import _cpu
from fastact.check import reference
from fastact.measure import formulas
from fastact.ops.activations import Parameters


def float32_sample() -> np.ndarray:
    """Each sign and exponent with 4096 mantissas, and 2^20 points where activations bend.

    4096 mantissas put one on every 2048th float32; the bend (-30, 30) gets some 30 000 a unit.
    `python -m fastact check --exhaustive` takes all of them.
    """
    mantissas = np.arange(0, 1 << 23, 1 << 11, dtype=np.uint32) | np.uint32(0x2A5)
    exponents = np.arange(0, 255, dtype=np.uint32) << 23
    positive = (exponents[:, None] | mantissas).ravel().view(np.float32)
    bend = np.linspace(-30, 30, 1 << 20, dtype=np.float32)
    return np.concatenate([positive, -positive, bend])


@lru_cache(maxsize=8)
def exact_float32(
    direction: str, name: str, every: int, *parameters: tuple[str, float | str]
) -> np.ndarray:
    """The oracle's values for `float32_sample`, once for all backends that follow each other."""
    oracle = getattr(reference, direction)
    x = float32_sample()[::every].astype(np.float64)
    exact: np.ndarray = oracle(name, x, **dict(parameters))
    return exact


def ulp_error(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|y - exact| in units of float32's spacing at the exact value."""
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32)
    spacing = np.spacing(np.abs(nearest)).astype(np.float64)
    same = nearest == y  # infinities, whose difference is no number
    with np.errstate(invalid="ignore"):
        return np.where(same & np.isinf(y), 0.0, np.abs(y - exact) / spacing)


def check_float32(x, y, exact, bounds, direction):
    """By so many units in the last place, or by the absolute bound near 0."""
    with np.errstate(invalid="ignore"):  # infinity from infinity
        ulp, absolute = ulp_error(y, exact), np.abs(y - exact)
    excess = np.where(absolute <= bounds.absolute(np.float32, direction), 0, ulp)
    worst = np.argmax(excess)
    limit = getattr(bounds, f"{direction}_ulp")
    assert excess[worst] <= limit, f"{ulp[worst]} ULP at {x[worst]!r}"


def check_forward_float32(op, backend, every=1, **parameters):
    x = float32_sample()[::every]
    exact = exact_float32("forward", op.name, every, *parameters.items())
    check_float32(x, backend.run(op, x, **parameters), exact, op.bounds, "forward")


def slope(op, backend, saved, **parameters):
    """The derivative as backward gives it, of x, or of y where the op saves y."""
    return backend.run(op.backward, np.ones_like(saved), saved, **parameters)


def check_derivative_float32(op, backend, every=1, **parameters):
    x = float32_sample()[::every]
    exact = exact_float32("derivative_by_saved", op.name, every, *parameters.items())
    dx = slope(op, backend, x, **parameters)
    check_float32(x, dx, exact, op.bounds, "derivative")


def share(backend):
    """Which of the inputs: all, or each fifth where 3 million take a second.

    On the emulated device, which has a GPU's formulas, the bits are the CPU's
    (test_devices_bits.py), for which all inputs were.
    """
    return 5 if backend.name.startswith("emulated") else 1


def test_forward_float32(op, backend):
    check_forward_float32(op, backend, share(backend))


def test_derivative_float32(op, backend):
    check_derivative_float32(op, backend, share(backend))


PARAMETERS = [(op.name, named) for op in ACTIVATIONS for named in op.trials]


def test_every_parameter_is_tried_and_annotated():
    """Each that is no choice has values, and type checkers know them all."""
    for op in ACTIVATIONS:
        assert set(op.parameters) == {*op.choices, *op.values}, op.name
    kinds = {n: type(v) for op in ACTIVATIONS for n, v in op.parameters.items()}
    assert get_type_hints(Parameters) == kinds


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS, ids=str)
def test_other_parameters(name, parameters, backend):
    check_forward_float32(fa.ops[name], backend, 7, **parameters)
    check_derivative_float32(fa.ops[name], backend, 7, **parameters)
    check_float64(fa.ops[name], backend, 3, **parameters)


def float64_sample() -> np.ndarray:
    """Every second binary exponent of both signs, and random points where activations bend."""
    rng = np.random.default_rng(0)
    powers = np.ldexp(rng.uniform(1, 2, 1049), np.arange(-1074, 1024, 2))
    bend = np.concatenate([rng.uniform(-800, 50, 400), rng.uniform(-5, 5, 600)])
    return np.concatenate([powers, -powers, bend])


class Exact:
    """mpmath's values, in units of the spacing there: a float64 and the rest, 106 bits together.

    So that results of many backends are compared with them as arrays.
    """

    def __init__(self, values: list[mpmath.mpf], dtype: type) -> None:
        self.nearest = np.array([float(value) for value in values]).astype(dtype)
        self.spacing = np.spacing(np.abs(self.nearest)).astype(np.float64)  # a power of two
        with mpmath.workdps(60):
            units = [v / mpmath.mpf(s) for v, s in zip(values, self.spacing.tolist(), strict=True)]
            self.whole = np.array([float(unit) for unit in units])
            self.rest = np.array([float(u - w) for u, w in zip(units, self.whole, strict=True)])

    def ulp(self, y: np.ndarray) -> np.ndarray:
        """The errors in units in the last place; NaN if the value is infinite and y is not."""
        with np.errstate(all="ignore"):
            error = np.abs((y.astype(np.float64) / self.spacing - self.whole) - self.rest)
        return np.where(np.isfinite(y), error, np.where(y == self.nearest, 0.0, np.inf))


@lru_cache
def exact_float64(
    direction: str, name: str, every: int, *parameters: tuple[str, float | str]
) -> Exact:
    oracle = getattr(reference, f"{direction}_mp")
    values = [oracle(name, x, **dict(parameters)) for x in float64_sample()[::every].tolist()]
    return Exact(values, np.float64)


def check_float64(op, backend, every=1, **parameters):
    """The absolute bound scales with the precision: 2^-29 of float32's."""
    x = float64_sample()[::every]
    y, dx = backend.run(op, x, **parameters), slope(op, backend, x, **parameters)
    for found, oracle, direction in (
        (y, "forward", "forward"),
        (dx, "derivative_by_saved", "derivative"),
    ):
        exact = exact_float64(oracle, op.name, every, *parameters.items())
        error = exact.ulp(found)
        with np.errstate(over="ignore"):
            near = error * exact.spacing <= op.bounds.absolute(np.float64, direction)
        good = near | (error <= getattr(op.bounds, f"{direction}_ulp"))
        assert good.all(), f"{direction}: {error[~good]} ULP at {x[~good]}"


def test_float64(op, backend):
    check_float64(op, backend)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_input_is_the_rounded_float32_result(op, isa, name):
    dtype = DTYPES[name]
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        y, dx = op(wide).astype(dtype), op.backward(1.0, wide).astype(dtype)
    for ours, rounded in ((op(x), y), (op.backward(1.0, x), dx)):
        nan = np.isnan(rounded.astype(np.float32))
        assert np.isnan(ours.astype(np.float32)[nan]).all()
        assert_same_bits(ours[~nan], rounded[~nan])


def check_every_16_bit_input(op, device, **parameters):
    """Half a ULP, and what the rougher functions of a GPU may add to it.

    Beside a root of a derivative the absolute bound holds instead. The tails of a derivative have
    no root, and what is far smaller than that bound there is right all the same.
    """
    for dtype in (DTYPES["float16"], DTYPES["bfloat16"]):
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        with np.errstate(all="ignore"):
            wide = x.astype(np.float64)
            if parameters:  # the oracle's values at infinity are for the defaults
                x, wide = x[np.isfinite(wide)], wide[np.isfinite(wide)]
            exact_y = reference.forward(op.name, wide, **parameters)
            exact_dx = reference.derivative_by_saved(op.name, wide, **parameters)
        for y, exact, allowed in (
            (device.run(op, x, **parameters), exact_y, op.bounds.forward_abs),
            (slope(op, device, x, **parameters), exact_dx, 4 * op.bounds.derivative_abs),
        ):
            with np.errstate(all="ignore"):
                y, rounded = y.astype(np.float64), exact.astype(dtype).astype(np.float64)
                absolute = np.abs(y - exact)
                ulp = absolute / spacing_16(exact, dtype)
            same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
            beside_root = absolute - spacing_16(exact, dtype) / 2 <= allowed
            is_tail = np.abs(exact) < TAIL
            close = (ulp <= op.bounds.narrow_ulp) | (beside_root & ~is_tail)
            worst = np.argmax(np.where(same, 0.0, ulp))
            assert (same | (np.isfinite(rounded) & close)).all(), (
                f"{ulp[worst]} ULP at {x[worst]}, {dtype}"
            )


def test_the_tail_of_gelus_derivative():
    """It is small and bounded absolutely; its docstring says how many digits are left."""
    for dtype, end, last in ((np.float32, -13.1, -9), (np.float64, -37.5, -24)):
        for lowest, bits in ((-5.0, -15), (end, last)):
            x = np.linspace(lowest, -2, 4000).astype(dtype)
            exact = reference.derivative("gelu", x.astype(reference.wide(x.dtype)))
            found = fa.gelu.backward(np.ones_like(x), x)
            assert np.max(np.abs(found / exact - 1)) < 2.0**bits


# Less than any derivative next to a root: of all float16 the nearest one to a root gives 8e-6.
TAIL = 4e-6


def test_every_16_bit_input_on_devices(op, device):
    check_every_16_bit_input(op, device)


@pytest.mark.parametrize(("name", "parameters"), PARAMETERS, ids=str)
def test_every_16_bit_input_with_other_parameters_on_devices(name, parameters, device):
    check_every_16_bit_input(fa.ops[name], device, **parameters)


def spacing_16(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The distance between neighbours of a 16-bit type around x."""
    info = ml_dtypes.finfo(dtype)
    exponent = np.maximum(np.frexp(np.abs(x))[1] - 1, info.minexp)
    return np.ldexp(float(info.eps), exponent)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit_backward_rounds_once(op, isa, name):
    """dy f'(x) is rounded after the product, and after the sum when it accumulates."""
    dtype = DTYPES[name]
    rng = np.random.default_rng(1)
    x, dy, base = (rng.normal(size=4099).astype(dtype) for _ in range(3))
    exact = op.backward(dy.astype(np.float32), x.astype(np.float32))
    assert_same_bits(op.backward(dy, x), exact.astype(dtype))
    total = (base.astype(np.float32) + exact).astype(dtype)
    assert_same_bits(op.backward(dy, x, out=base, accumulate=True), total)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_specials(op, backend, name):
    """Zeros with their signs, infinities and NaN, where the oracle has them."""
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan])
    y, dx = reference.forward(op.name, x), reference.derivative_by_saved(op.name, x)
    dtype = DTYPES[name]
    for repeats in (1, 37):  # alone: the tail of the loop; 37 times: its body
        many = np.repeat(x, repeats).astype(dtype)
        actual, expected = backend.run(op, many), np.repeat(y, repeats)
        np.testing.assert_allclose(actual, expected, rtol=2e-7)
        zero = expected == 0
        np.testing.assert_array_equal(np.signbit(actual[zero]), np.signbit(expected[zero]))
        np.testing.assert_allclose(slope(op, backend, many), np.repeat(dx, repeats), rtol=3e-7)


KINKS = {
    "relu": [0.0, -0.0],
    "relu6": [0.0, 6.0],
    "leaky_relu": [0.0, -0.0],
    "elu": [0.0, -0.0],
    "selu": [0.0, -0.0],
    "celu": [0.0, -0.0],
    "hardtanh": [-1.0, 1.0],
    "hardsigmoid": [-3.0, 3.0],
    "hardswish": [-3.0, 3.0],
    "softshrink": [-0.5, 0.0, 0.5],
    "hardshrink": [-0.5, 0.0, 0.5],
}


# Other parameters, at which a kink is elsewhere, is another one or is none.
MOVED_KINKS = [
    ("leaky_relu", {"negative_slope": 2.0}, [0.0, -0.0]),
    ("leaky_relu", {"negative_slope": -1.0}, [0.0, -0.0]),
    ("elu", {"alpha": 2.5}, [0.0, -0.0]),
    ("celu", {"alpha": 2.5}, [0.0, -0.0]),
    ("hardtanh", {"min_val": 0.0, "max_val": 4.0}, [-0.0, 0.0, 4.0]),
    ("softshrink", {"lambd": 0.0}, [-0.0, 0.0]),
    ("hardshrink", {"lambd": 0.0}, [-0.0, 0.0]),
    ("hardshrink", {"lambd": -0.5}, [-0.5, -0.0, 0.0, 0.25, 0.5, float("inf")]),
]


@pytest.mark.parametrize(
    ("name", "parameters", "kinks"), [*((n, {}, k) for n, k in KINKS.items()), *MOVED_KINKS]
)
def test_kinks_are_torchs(name, parameters, kinks, backend):
    x = torch.tensor(kinks, requires_grad=True)
    y = getattr(torch.nn.functional, name)(x, **parameters)
    (theirs,) = torch.autograd.grad(y.sum(), x)
    op, x, y = fa.ops[name], x.detach().numpy(), y.detach().numpy()
    np.testing.assert_allclose(backend.run(partial(op, **parameters), x), y, rtol=2e-7)
    ours = backend.run(partial(op.backward, **parameters), np.ones_like(x), x)
    np.testing.assert_allclose(ours, theirs, rtol=2e-7)


def test_every_piecewise_op_has_its_kinks_tested():
    """Those that torch has: whose derivative jumps somewhere, by the oracle on a fine grid."""
    x = np.arange(-8 * 64, 8 * 64 + 1) / 64
    for op in fa.ops.values():
        if op.family != "activations" or not hasattr(torch.nn.functional, op.name):
            continue
        jumps = np.abs(np.diff(reference.derivative(op.name, x))).max() > 0.1
        assert jumps <= (op.name in KINKS), op.name


def test_flush_to_zero_is_nobodys_business(op):
    """No floating-point mode is changed: subnormals survive before, in and after a call."""
    tiny = np.full(64, 1e-40, np.float32)
    before = tiny * np.float32(0.5)
    alive = reference.forward(op.name, tiny.astype(np.float64)).astype(np.float32) != 0
    np.testing.assert_array_equal(op(tiny) != 0, alive)
    assert_same_bits(tiny * np.float32(0.5), before)


# name in elementary.h: the exact function, and its range in float32 and float64
ELEMENTARY = {
    "exp": (mpmath.exp, (-87, 88), (-708, 709)),
    "expm1": (mpmath.expm1, (-87, 88), (-708, 709)),
    "log1p_of_unit": (mpmath.log1p, (0, 1), (0, 1)),
    "sigmoid_of": (lambda x: 1 / (1 + mpmath.exp(-x)), (-103, 50), (-740, 50)),
    "tanh_of_magnitude": (mpmath.tanh, (0, 20), (0, 40)),
}


@pytest.mark.parametrize("name", ELEMENTARY)
def test_elementary_functions(name):
    headers = pytest.importorskip(
        "fastact._cuda_emulated", reason="built without the emulated device"
    ).headers
    assert set(ELEMENTARY) == set(headers.bounds)
    function, *ranges = ELEMENTARY[name]
    for dtype, (low, high) in zip((np.float32, np.float64), ranges, strict=True):
        rng = np.random.default_rng(2)
        small = 10.0 ** rng.uniform(-30, 0, 300)
        x = np.concatenate([rng.uniform(low, high, 3000), small]).astype(dtype)
        found = getattr(headers, name)(x)
        assert found.dtype == dtype
        with mpmath.workdps(60):
            error = Exact([function(mpmath.mpf(a)) for a in x.tolist()], dtype).ulp(found)
        good = error <= headers.bounds[name]
        assert good.all(), f"{error[~good]} ULP at {x[~good]}"


def test_the_lists_agree():
    """The struct lists of the kernels, the registry and the oracle name the same activations."""
    names = {op.name for op in ACTIVATIONS}
    structs = {"identity"}
    for op in ACTIVATIONS:
        structs |= {one for of in op.choices.values() for one in of.values()} or {op.name}
    for native in filter(None, (find_spec("fastact._cuda"), find_spec("fastact._cuda_emulated"))):
        assert structs == set(import_module(native.name).ACTIVATIONS)
    assert structs == set(_cpu.ACTIVATIONS)
    assert names == set(formulas.FORWARD) == set(formulas.DERIVATIVE)
    save_value = {op.name for op in ACTIVATIONS if op.saves == ("y",)}
    assert save_value == set(formulas.DERIVATIVE_BY_VALUE)
    for op in ACTIVATIONS:  # by the fast path, which asks the kernels
        y, (saved,) = op.forward(np.ones(3))
        assert (saved is y) == (op.name in save_value)
