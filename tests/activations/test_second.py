"""`backward.backward` and `jvp` of every activation: f'' as it is stated, in every layout."""

from functools import lru_cache

import mpmath
import numpy as np
import pytest
from arrays import f32
from conftest import ACTIVATIONS, assert_all_same_bits, assert_same_bits, by_representatives, sample
from devices import DTYPES, FRAMEWORKS
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views

from fastact.check import reference
from fastact.measure import formulas
from fastact.ops.bounds import is_narrow, rounding, unit_roundoff

each_op = pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)

#: Away from corners, where a derivative jumps: no op has one at a multiple of 1/64 and 1/3.
POINTS = np.random.default_rng(0).uniform(-40, 40, 120) // (1 / 64) / 64 + 1 / 256
POINTS = np.concatenate([POINTS, POINTS / 16, [-1000.0, 1000.0, 2.0**-10, -(2.0**-10)]])


#: Where f'' is what it is at infinity.
ENDS = (1e30, -1e30)


@lru_cache
def exact(name: str, *parameters: tuple[str, float | str], points=tuple(POINTS)) -> np.ndarray:
    """Differences of the first derivative in 60 digits, by the saved array."""
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -20
        f = reference.derivative_by_saved_mp
        found = [
            (f(name, x + h, **dict(parameters)) - f(name, x - h, **dict(parameters))) / (2 * h)
            for x in map(mpmath.mpf, points)
        ]
    return np.array(found, dtype=np.float64)


def allowed_error(op, value: np.ndarray, dtype) -> np.ndarray:
    """The stated bound, by the largest magnitude of f'' among these values."""
    error = op.bounds.second * unit_roundoff(dtype) * np.abs(value).max()
    return error + rounding(value, dtype) * is_narrow(dtype)


#: The first of the values that each op is tried with.
OTHERS = {op.name: {n: values[0] for n, values in op.values.items()} for op in ACTIVATIONS}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["default", "other"])
@each_op
def test_accuracy(op, kind, dtype, backend):
    for chosen in op.variants.values():
        own = (OTHERS[op.name] if kind == "other" else {}) | chosen
        x = POINTS.astype(dtype)  # exact: few bits
        ones = np.ones_like(x)

        def dx(ones: np.ndarray, x: np.ndarray, own=own) -> np.ndarray:
            return op.backward.backward(ones, ones, x, **own)[1]

        found = backend.run(dx, ones, x)
        value = exact(op.name, *own.items())
        allowed = allowed_error(op, value, dtype)
        assert (np.abs(found - value) <= allowed).all()


@each_op
def test_16_bits_are_computed_in_float32(op, backend):
    for name in ("float16", "bfloat16"):
        dtype = DTYPES[name]
        x = POINTS.astype(dtype)
        wide = x.astype(np.float32)
        ones, wide_ones = np.ones_like(x), np.ones_like(wide)
        found = backend.run(lambda d, x: op.backward.backward(d, d, x)[1], ones, x)
        value = backend.run(lambda d, x: op.backward.backward(d, d, x)[1], wide_ones, wide)
        error = np.abs(found.astype(np.float64) - value)
        assert (error <= allowed_error(op, value, dtype)).all()


@pytest.mark.parametrize("op", [op for op in ACTIVATIONS if op.saves != ("y",)], ids=str)
def test_both_ends(op, dtype, backend):
    """Where x is infinite the limit, a NaN of a NaN; of y these are no values."""
    x = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32).astype(dtype)
    found = backend.run(lambda x: op.backward.backward(1.0, 1.0, x)[1], x).astype(np.float32)
    low, high = formulas.DERIVATIVE[op.name].limits  # a NaN: there is none
    limits = np.where(np.isnan([high, low]), np.nan, exact(op.name, points=ENDS))
    np.testing.assert_allclose(found[:2], limits, rtol=2.0**-8, atol=1e-30)  # rounded to bfloat16
    assert np.isnan(found[2])
    assert np.isfinite(found[3])


@each_op
def test_it_is_the_gradient_of_backward(op):
    """Of dy too; both are products, in this order."""
    ddx, dy, x = (sample(np.float32, 200, seed=i) for i in range(3))
    ddy, dsaved = op.backward.backward(ddx, dy, x)
    assert_same_bits(ddy, op.backward(ddx, x))
    _, slope = op.backward.backward(1.0, 1.0, x)
    with np.errstate(all="ignore"):
        assert_same_bits(dsaved, dy * (ddx * slope))
    if op.piecewise_linear:
        assert not slope[np.isfinite(x)].any()


@st.composite
def layouts(draw):
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=4)))
    made = [draw(views(shape)) for _ in range(3)]
    return shape, made, [draw(views(shape, writable=True)) for _ in range(2)]


@settings(max_examples=100, deadline=None)
@given(layouts(), st.sampled_from(sorted(DTYPES)), st.sampled_from(ACTIVATIONS))
def test_strided_is_contiguous(layout, name, op):
    shape, made, (view_ddy, view_dx) = layout
    size, dtype = int(np.prod(shape)), DTYPES[name]
    given = [view(sample(dtype, size, seed=i).reshape(shape)) for i, view in enumerate(made)]
    plain = [np.ascontiguousarray(a).reshape(shape) for a in given]
    expected = op.backward.backward(*plain)
    assert_all_same_bits(op.backward.backward(*given), expected)
    base = sample(dtype, size, seed=3).reshape(shape)
    base[np.isnan(base)] = 1  # a sum of two NaNs may be either
    sums = op.backward.backward(*plain, out=(base.copy(), base.copy()), accumulate=True)
    outs = view_ddy(base), view_dx(base.copy())
    op.backward.backward(*given, out=outs, accumulate=True)
    assert_all_same_bits(outs, sums)


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)
@by_representatives
def test_outputs(op, framework):
    """Skipped, given, added to; what is made is the caller's."""
    arrays = [framework.of(f32(5)) for _ in range(3)]
    ddy, dx = op.backward.backward(*arrays)
    assert type(ddy) is type(dx) is type(arrays[0])
    out = framework.of(np.zeros(5, np.float32))
    assert op.backward.backward(*arrays, out=(None, out)) == (None, out)
    assert_same_bits(framework.numpy(out), framework.numpy(dx))
    op.backward.backward(*arrays, out=(out, None), accumulate=True)
    np.testing.assert_allclose(
        framework.numpy(out), framework.numpy(ddy) + framework.numpy(dx), rtol=1e-6
    )
    for _ in range(4):  # as the call cache replays it
        again = op.backward.backward(*arrays)
        assert_same_bits(framework.numpy(again[1]), framework.numpy(dx))


# --- forward mode ---------------------------------------------------------------------------------


@each_op
def test_jvp(op, dtype):
    x, tangent = sample(dtype, 100), sample(dtype, 100, seed=1)
    y, dy = op.jvp(x, tangents=tangent)
    expected, saved = op.forward(x)
    assert_same_bits(y, expected)
    assert_same_bits(dy, op.backward(tangent, *saved))
    assert_same_bits(op.jvp(x, tangents=(tangent,))[1], dy)
    if op.parameters:
        own = op.parameters | OTHERS[op.name]
        _, dy = op.jvp(x, tangents=tangent, **own)
        assert_same_bits(dy, op.backward(tangent, *op.forward(x, **own)[1], **own))
