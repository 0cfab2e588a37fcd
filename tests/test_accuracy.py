"""Accuracy: each op against the oracle, on every backend; bounds are the ops' own."""

from importlib import import_module
from importlib.util import find_spec

import ml_dtypes
import mpmath
import numpy as np
import pytest
import reference
from conftest import ACTIVATIONS, assert_same_bits
from devices import DTYPES

import fastact as fa
from fastact import _cpu


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


def ulp_error(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """|y - exact| in units of float32's spacing at the exact value."""
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32)
    spacing = np.spacing(np.abs(nearest)).astype(np.float64)
    same = nearest == y  # infinities, whose difference is no number
    with np.errstate(invalid="ignore"):
        return np.where(same & np.isinf(y), 0.0, np.abs(y - exact) / spacing)


def test_forward_float32(op, backend):
    x = float32_sample()
    error = ulp_error(backend.run(op, x), reference.forward(op.name, x.astype(np.float64)))
    worst = np.argmax(error)
    assert error[worst] <= op.bounds.forward_ulp, f"{error[worst]} ULP at {x[worst]!r}"


def slope(op, backend, x):
    """The derivative as backward gives it."""
    return backend.run(op.backward, np.ones_like(x), x)


def test_derivative_float32(op, backend):
    x = float32_sample()
    exact = reference.derivative(op.name, x.astype(np.float64))
    dx = slope(op, backend, x)
    ulp, absolute = ulp_error(dx, exact), np.abs(dx - exact)
    ratio = np.minimum(ulp / op.bounds.derivative_ulp, absolute / op.bounds.derivative_abs)
    worst = np.argmax(ratio)
    assert ratio[worst] <= 1, f"{ulp[worst]} ULP, {absolute[worst]} at {x[worst]!r}"


def float64_sample() -> np.ndarray:
    """Every binary exponent of both signs, and random points where activations bend."""
    rng = np.random.default_rng(0)
    powers = np.ldexp(rng.uniform(1, 2, 2098), np.arange(-1074, 1024))
    bend = np.concatenate([rng.uniform(-800, 50, 400), rng.uniform(-5, 5, 600)])
    return np.concatenate([powers, -powers, bend])


def ulp_error_mp(y: float, exact: mpmath.mpf) -> float:
    if not np.isfinite(y):
        return 0.0 if y == float(exact) else np.inf
    return float(abs(mpmath.mpf(y) - exact) / mpmath.mpf(float(np.spacing(abs(float(exact))))))


def test_forward_float64(op, backend):
    x = float64_sample()
    y = backend.run(op, x)
    errors = [
        ulp_error_mp(float(b), reference.forward_mp(op.name, float(a)))
        for a, b in zip(x, y, strict=True)
    ]
    worst = int(np.argmax(errors))
    assert errors[worst] <= op.bounds.forward_ulp, f"{errors[worst]} ULP at {x[worst]!r}"


def test_derivative_float64(op, backend):
    """The absolute bound scales with the precision: 2^-29 of float32's."""
    x = float64_sample()
    dx = slope(op, backend, x)
    for a, b in zip(x, dx, strict=True):
        exact = reference.derivative_mp(op.name, float(a))
        absolute = float(abs(mpmath.mpf(float(b)) - exact))
        assert (
            ulp_error_mp(float(b), exact) <= op.bounds.derivative_ulp
            or absolute <= op.bounds.derivative_abs * 2.0**-29
        ), f"{b!r} for {exact} at {a!r}"


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


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_16_bit_input_on_devices(op, device, name):
    """Half a ULP, and what the rougher functions of a GPU may add to it."""
    dtype = DTYPES[name]
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
    for y, exact, allowed in (
        (device.run(op, x), reference.forward(op.name, wide), 0.0),
        (slope(op, device, x), reference.derivative(op.name, wide), 4 * op.bounds.derivative_abs),
    ):
        with np.errstate(all="ignore"):
            y, rounded = y.astype(np.float64), exact.astype(dtype).astype(np.float64)
            absolute = np.abs(y - exact)
            ulp = absolute / spacing_16(exact, dtype)
        same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
        close = (ulp <= op.bounds.narrow_ulp) | (absolute <= allowed)
        assert (same | (np.isfinite(rounded) & close)).all(), f"{np.nanmax(ulp[~same])} ULP"


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
def test_specials_of_mish(backend, name):
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], DTYPES[name])
    expected = np.array([0.0, -0.0, np.inf, -0.0, np.nan, -np.nan], DTYPES[name])
    for repeats in (1, 37):  # alone: the tail of the loop; 37 times: its body
        y = backend.run(fa.mish, np.repeat(x, repeats))
        np.testing.assert_array_equal(y, np.repeat(expected, repeats))
        np.testing.assert_array_equal(np.signbit(y), np.signbit(np.repeat(expected, repeats)))
        dx = slope(fa.mish, backend, np.repeat(x, repeats))
        np.testing.assert_allclose(
            dx, np.repeat([0.6, 0.6, 1.0, 0.0, np.nan, np.nan], repeats), rtol=2e-7
        )


def test_flush_to_zero_is_nobodys_business(op):
    """No floating-point mode is changed: subnormals survive before, in and after a call."""
    tiny = np.full(64, 1e-40, np.float32)
    before = tiny * np.float32(0.5)
    assert (op(tiny) != 0).all()
    assert_same_bits(tiny * np.float32(0.5), before)


def test_exponential_of_math_h(isa):
    for dtype, low, high in ((np.float32, -87, 88), (np.float64, -708, 709)):
        x = np.random.default_rng(2).uniform(low, high, 3000).astype(dtype)
        y = np.empty_like(x)
        _cpu.exponential(_cpu.View.from_numpy(x), _cpu.View.from_numpy(y))
        for a, b in zip(x, y, strict=True):
            exact = mpmath.exp(mpmath.mpf(float(a)))
            spacing = float(np.spacing(dtype(float(exact))))
            assert float(abs(mpmath.mpf(float(b)) - exact)) / spacing <= _cpu.exponential_bound()


def test_the_lists_agree():
    """The struct list of activations.h, the registry and the oracle name the same activations."""
    names = {op.name for op in ACTIVATIONS}
    structs = names | {"identity"}  # for fused ops alone
    for native in filter(None, (find_spec("fastact._cuda"), find_spec("fastact._cuda_emulated"))):
        assert structs == set(import_module(native.name).ACTIVATIONS)
    assert structs == set(_cpu.ACTIVATIONS)
    assert names == set(reference.FORWARD) == set(reference.DERIVATIVE)
