"""Moments: mean and variance over any axes of any layout, within their bounds, and merges."""

import math
import pickle
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from conftest import assert_same_bits, needs_two_fused_isas, on_fused_isas
from devices import DTYPES, FRAMEWORKS, Framework, to_torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views
from processes import peak
from sums import case, exact_moments

import fastact as fa
from fastact import Moments
from fastact.check import reference

OPS = [fa.mean_var, fa.moments]
LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "backwards": lambda x: x[..., ::-1],
    "apart": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "turned": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(
        -1, *range(x.ndim - 1)
    ),
}


def draw(dtype: Any, shape: tuple[int, ...], centre: float = 100, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 3, shape).astype(dtype)


def close(
    x: np.ndarray,
    axes: tuple[int, ...],
    correction: float = 0,
    framework: Framework = FRAMEWORKS[0],
    **named: Any,
) -> None:
    """mean_var and moments within the bounds that their docstrings state."""
    given = framework.of(x)
    parts = fa.mean_var(given, axes, correction=correction, **named)
    mean, var = map(framework.numpy, parts)
    m = fa.moments(given, axes, **named)
    m = Moments(m.count, framework.numpy(m.mean), framework.numpy(m.m2))
    wide = x.astype(np.longdouble)
    exact_mean, exact_m2 = exact_moments(wide, axes, **named)
    magnitude = np.abs(wide).mean(axes, **named)
    divisor = m.count - correction
    spread = np.sqrt(exact_m2 / m.count)
    bounds = fa.moments.bounds
    for of_mean, of_second, scale in ((m.mean, m.m2, 1), (mean, var, divisor)):
        to, second = np.asarray(of_mean).dtype, exact_m2 / scale
        of = (second, exact_mean, spread, x.dtype, to)
        for y, exact, allowed in (
            (of_mean, exact_mean, bounds.allowed_mean(exact_mean, magnitude, to)),
            (of_second, second, bounds.allowed_second(*of)),
        ):
            assert reference.excess(y, exact, (1 + reference.BUDGET) * allowed) <= 1


@case
def test_within_the_bounds(dtype, backend, many_threads, shape, axes):
    close(draw(dtype, shape), axes, 1, backend)


@case
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "C"])
def test_layouts_within_the_bounds(dtype, many_threads, shape, axes, layout):
    """By the kernels of one instruction set: which ones a layout takes does not depend on it."""
    close(LAYOUTS[layout](draw(dtype, shape)), axes, 1)


def test_oracle_is_right():
    """Against 60 digits."""
    x = draw(np.float64, (50, 2), 1e6)
    mean, m2 = exact_moments(x, (0,))
    with mpmath.workdps(60):
        for column in range(2):
            terms = [mpmath.mpf(float(t)) for t in x[:, column]]
            exact = sum(terms) / 50
            assert abs(exact - mean[column]) < 1e-9
            assert abs(sum((t - exact) ** 2 for t in terms) / m2[column] - 1) < 1e-13


def assert_all_the_same(results: list[Moments]) -> None:
    for a, b in pairwise(results):
        assert_same_bits(a.mean, b.mean)
        assert_same_bits(a.m2, b.m2)


@case
def test_same_bits_for_any_threads(isa, dtype, shape, axes):
    x = draw(dtype, shape)
    results = []
    for threads in (1, 2, 5):
        with fa.num_threads(threads):
            results.append(fa.moments(x, axes))
    assert_all_the_same(results)


@needs_two_fused_isas
@case
def test_avx2_and_avx512_have_the_same_bits(dtype, shape, axes):
    x = draw(dtype, shape)
    assert_all_the_same(on_fused_isas(lambda: fa.moments(x, axes)))


@pytest.mark.parametrize("terms", [1, 2, 7, 8, 9, 32, 33, 200, 2048, 2049, 300_000])
def test_same_bits_in_every_walk(dtype, terms):
    """Along rows, down columns, narrow or strided: a set of values has one result."""
    row = draw(dtype, (terms,), seed=terms)
    m = fa.moments(row)
    wide = 70 if terms < 10_000 else 2
    for x, axis in (
        (np.tile(row, (3, 1)), 1),
        (np.tile(row, (3, 1)).T.copy(), 0),
        (np.tile(row, (wide, 1)).T.copy(), 0),
        (np.tile(np.repeat(row, 2)[::2], (3, 1)), 1),
        (np.repeat(row[:, None], 6, 1)[:, ::2], 0),
    ):
        found = fa.moments(x, axis)
        assert_same_bits(found.mean, np.full_like(found.mean, m.mean))
        assert_same_bits(found.m2, np.full_like(found.m2, m.m2))


@given(st.data(), st.sampled_from(sorted(DTYPES)))
@settings(max_examples=100, deadline=None)  # a first call may load a library
def test_any_layout(data, name):
    """Misaligned, repeated by strides of 0, turned, in any order of axes."""
    shape = data.draw(st.lists(st.integers(1, 40), max_size=4).map(tuple))
    x = data.draw(views(shape))(draw(DTYPES[name], shape))
    axes = tuple(data.draw(st.sets(st.integers(0, max(len(shape) - 1, 0)), max_size=len(shape))))
    close(x, axes)


# --- hard data ------------------------------------------------------------------------------------


def test_few_elements_and_none():
    """By the entry points of `Moments`; mean_var has its own in test_moments_hard."""
    with np.errstate(all="ignore"):
        for correction in (0, 1, 2, 0.5):
            for count in (1, 2, 3):
                x = draw(np.float64, (count,))
                expected = fa.mean_var(x, correction=correction)[1]
                np.testing.assert_allclose(fa.moments(x).var(correction), expected)
    m = fa.moments(np.zeros((0, 3)), 0)
    assert m.count == 0
    assert (m.m2 == 0).all()


# --- entry points ---------------------------------------------------------------------------------


def test_results_belong_to_the_caller(dtype):
    x = draw(dtype, (6, 5))
    mean, var = fa.mean_var(x, 1)
    assert mean.dtype == var.dtype == dtype
    m = fa.moments(x, 1, keepdims=True)
    assert m.mean.dtype == m.m2.dtype == np.float64
    assert m.mean.shape == (6, 1)
    tensor = to_torch(x)
    theirs = fa.mean_var(tensor, 1)
    assert all(isinstance(part, torch.Tensor) and part.dtype == tensor.dtype for part in theirs)
    assert fa.moments(tensor).mean.dtype == torch.float64
    assert_same_bits(fa.moments(tensor, 1).m2.numpy(), fa.moments(x, 1).m2)


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint16, np.int64])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_integers_are_reduced_as_float64(op, kind):
    x = (np.arange(15).reshape(3, 5) % 7).astype(kind)
    for like in (x, x.astype(np.float64)):
        parts, saved = op.forward(like, 1)
        mean, second = parts[-2:] if isinstance(parts, tuple) else (parts.mean, parts.m2)
        dx = op.backward((mean, second), *saved, axis=1)
        if like is x:
            expected = mean, second, dx
    for part, of_floats in zip(expected, (mean, second, dx), strict=True):
        assert_same_bits(part, of_floats)


def test_out(dtype):
    x = draw(dtype, (4, 300, 70))
    mean, var = fa.mean_var(x, 1)
    for layout in LAYOUTS.values():
        out = (np.zeros((4, 70), dtype), layout(np.zeros((4, 70), dtype)))
        for _ in range(3):
            assert fa.mean_var(x, 1, out=out) == out
        assert_same_bits(out[0], mean)
        assert_same_bits(np.ascontiguousarray(out[1]), var)
    only = np.zeros((4, 70), dtype)
    assert_same_bits(fa.mean_var(x, 1, out=(None, only))[0], mean)
    assert_same_bits(only, var)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(dtype, layout, many_threads):
    """Against torch's autograd in float64."""
    x = LAYOUTS[layout](draw(dtype, (7, 30, 20)))
    for axes in ((1,), (0, 2), (0, 1, 2)):
        wide = torch.tensor(x.astype(np.float64), requires_grad=True)
        var, mean = torch.var_mean(wide, axes, correction=1)
        dmean, dvar = (draw(dtype, tuple(mean.shape), 0, seed) for seed in (1, 2))
        loss = (mean * torch.tensor(dmean.astype(float))).sum()
        loss = loss + (var * torch.tensor(dvar.astype(float))).sum()
        loss.backward()
        dx = fa.mean_var.backward((dmean, dvar), x, axis=axes, correction=1)
        scale = float(wide.grad.abs().max())
        eps = {2: 2.0**-7, 4: 2.0**-22, 8: 2.0**-42}[x.itemsize]
        np.testing.assert_allclose(
            dx.astype(np.float64), wide.grad.numpy(), rtol=eps, atol=eps * scale
        )
        twice = dx.copy()
        fa.mean_var.backward((dmean, dvar), x, axis=axes, correction=1, out=twice, accumulate=True)
        np.testing.assert_allclose(twice.astype(float), 2 * dx.astype(float), rtol=2 * eps)


def test_gradient_of_moments():
    x = draw(np.float64, (5, 4))
    dx = fa.moments.backward((None, np.ones(5)), x, axis=1)
    np.testing.assert_allclose(dx, 2 * (x - x.mean(1, keepdims=True)), rtol=1e-9)
    dx = fa.moments.backward((1.0, None), x, axis=1, out=x)
    assert dx is x
    np.testing.assert_allclose(dx, np.full((5, 4), 0.25))


def test_no_gradient_of_too_few_values():
    """Nothing comes back by a variance of no degrees of freedom, whose slope is infinite."""
    x = np.ones((1, 3))
    dx = fa.mean_var.backward((np.full(3, 2.0), None), x, axis=0, correction=1)
    np.testing.assert_array_equal(dx, np.full((1, 3), 2.0))


# --- merging --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("centre", [0, 1e4])
def test_any_split_merges_to_the_whole(pieces, centre):
    x = draw(np.float32, (20_000, 3), centre)
    whole = fa.moments(x, 0)
    parts = [fa.moments(part, 0) for part in np.array_split(x, pieces)]
    merged = Moments.merge_many(parts)
    assert merged.count == 20_000
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=2.0**-50, atol=2.0**-50)
    np.testing.assert_allclose(merged.m2, whole.m2, rtol=2.0**-37)
    assert merged == Moments.merge_many(parts)
    assert merged == Moments.merge_many(iter(parts))


def test_the_tree_is_fixed():
    parts = [fa.moments(draw(np.float32, (10,), seed=seed)) for seed in range(5)]
    a, b, c, d, e = parts
    assert Moments.merge_many(parts) == a.merge(b).merge(c.merge(d)).merge(e)


def test_merging_with_nothing():
    nothing, some = fa.moments(np.zeros((0, 2)), 0), fa.moments(np.ones((3, 2)), 0)
    assert nothing.merge(some) is some
    assert some.merge(nothing) is some
    assert nothing.merge(nothing).count == 0


@pytest.mark.parametrize(
    "other",
    [fa.moments(np.float64(x)) for x in ([1, 3], [1e200, -1e200], [1e-200, -1e-200])]
    + [Moments(2, np.float64(np.inf), np.float64(1))],
    ids=["near", "large", "small", "infinite"],
)
def test_a_missing_m2_stays_missing(other):
    """Beside numbers whose squares leave the range of float64, and beside infinities."""
    missing = Moments(2, np.float64(0), np.float64(np.nan))
    for merged in (missing.merge(other), other.merge(missing)):
        assert np.isnan(merged.m2)


def test_merging_what_is_infinite():
    a, b = fa.moments(np.float64([1e308])), fa.moments(np.float64([-1e308]))
    assert a.merge(b).mean == 0  # though their distance overflows
    for values in ([np.inf], [np.inf, np.inf]):
        one, other = fa.moments(np.float64(values[:1])), fa.moments(np.float64([*values[1:], 1]))
        with np.errstate(all="ignore"):
            expected = np.mean(np.float64([*values, 1]))
        np.testing.assert_allclose(one.merge(other).mean, expected)
        np.testing.assert_allclose(other.merge(one).mean, expected)


def test_a_tiny_m2_of_any_framework(framework):
    """Beyond 2**-900 moments keep its root; arrays without arithmetic could not undo that."""
    m = fa.moments(framework.of(1e-144 * np.float64([1, 2, 4])))
    np.testing.assert_allclose(float(framework.numpy(m.m2)), 14e-288 / 3)


#: Rows whose squares overflow, vanish, are in range, or are none.
FAR = np.outer([1e160, 1e-165, 1e-140, 1.0, 0.0, np.nan, 1e300], [1.0, -1.0, 0.25, 0.0])
COUNTS: list[dict[str, Any]] = [
    {}, {"skipna": True}, {"weights": np.array([1.0, 2, 0, 3])},
    {"by": np.array([0, 1, 0, 1]), "groups": 2},
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Mean of empty:RuntimeWarning")
@pytest.mark.parametrize("named", COUNTS, ids=lambda named: "-".join(named) or "plain")
@pytest.mark.parametrize("framework", FRAMEWORKS[:2], ids=lambda f: f.name)
def test_out_has_the_range_that_results_have(framework, named):
    """`out` gets m2 itself, and the moments the same numbers as without it."""
    of, numpy = framework.of, framework.numpy
    given = {n: of(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    x = of(FAR)
    expected = fa.moments(x, 1, **given)
    shape = tuple(expected.mean.shape)
    for layout in (LAYOUTS["C"], LAYOUTS["apart"]):
        for _ in range(3):  # the slow path, then a plan
            out = of(np.full(shape, 7.0)), of(layout(np.full(shape, 7.0)))
            m = fa.moments(x, 1, out=out, **given)
            assert (m.mean, m.m2) == out
            assert m == expected
            for found, right in ((out[1], expected.m2), (m.std(), expected.std())):
                assert_same_bits(np.ascontiguousarray(numpy(found)), numpy(right))
            assert m.merge(m) == expected.merge(expected)
            assert Moments.from_buffer(m.to_buffer(), shape) == expected
    only = of(np.full(shape, 7.0))
    assert fa.moments(x, 1, out=(None, only), **given) == expected
    assert_same_bits(numpy(only), numpy(expected.m2))


@pytest.mark.parametrize("framework", [f for f in FRAMEWORKS if "exchange" in f.name] or [None])
def test_a_device_writes_m2_and_keeps_its_root(framework, monkeypatch):
    if framework is None:
        pytest.skip("there is no emulated device")
    x, cpu = framework.of(FAR), fa.moments(FAR, 1)
    # An array with arithmetic, as torch's and CuPy's on a device are.
    monkeypatch.setattr(type(x), "__mul__", None, raising=False)
    for _ in range(3):
        out = tuple(framework.of(np.full(len(FAR), 7.0)) for _ in range(2))
        m = fa.moments(x, 1, out=out)
        assert m.m2 is out[1]
        squares, m2 = map(framework.numpy, (m.squares, m.m2))
        np.testing.assert_allclose(squares, cpu.squares, rtol=1e-14)
        np.testing.assert_allclose(m2, cpu.m2, rtol=1e-13)


def test_a_tangent_of_m2_may_be_negative():
    x, t = np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.0, -1.0])
    _, tangent = fa.moments.jvp(x, tangents=t)
    assert tangent.m2 == pytest.approx(2 * (t * (x - x.mean())).sum())


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy])
def test_buffer_and_pickle(of):
    for shape, axis in (((5, 3), 0), ((5,), None), ((5, 0), 0)):
        m = fa.moments(of(draw(np.float32, shape)), axis)
        buffer = m.to_buffer()
        assert buffer.shape == (3 + 2 * math.prod(m.mean.shape),)
        assert Moments.from_buffer(buffer, m.mean.shape) == m
        assert pickle.loads(pickle.dumps(m)) == m
    assert m != fa.moments(of(draw(np.float32, (6, 0))), 0)
    assert m != 3


# --- errors and memory ----------------------------------------------------------------------------

f32 = np.zeros((2, 3), np.float32)
ERRORS: dict[str, tuple[Any, type[Exception], str]] = {
    "axis": (lambda: fa.mean_var(f32, 2), ValueError, "mean_var: axis must be from -2 to 1"),
    "twice": (lambda: fa.moments(f32, (0, -2)), ValueError, "moments: axis must name each axis on"),
    "dtype": (lambda: fa.moments(f32.astype(complex)), TypeError, "moments: x must have dtype"),
    "correction": (
        lambda: fa.mean_var(f32, correction="one"), TypeError, "correction must be a real number"
    ),
    "keepdims": (lambda: fa.moments(f32, keepdims=1), TypeError, "keepdims must be True or False"),
    "out": (lambda: fa.mean_var(f32, out=f32), ValueError, "out must be a tuple of 2"),
    "shape": (
        lambda: fa.mean_var(f32, 0, out=(f32[0].copy(), f32[:, 0].copy())),
        ValueError,
        r"out\[1\] must have shape \(3,\)",
    ),
    "shared": (
        lambda: fa.mean_var(f32, 0, out=(f32[0].copy(),) * 2), ValueError, r"out\[1\] must not shar"
    ),
    "x": (lambda: fa.mean_var(f32, 0, out=(f32[0], None)), ValueError, "not share memory with x"),
    "gradient": (
        lambda: fa.mean_var.backward((f32, None), f32, axis=0),
        ValueError,
        r"dy\[0\] must have shape",
    ),
    "gradients": (
        lambda: fa.mean_var.backward(f32, f32, axis=0),
        TypeError,
        "a tuple of two gradients",
    ),
    "merge": (
        lambda: fa.moments(f32, 0).merge(fa.moments(f32, 1)),
        ValueError,
        r"Moments.merge: other must have shape \(3,\), got \(2,\)",
    ),
    "merged": (lambda: fa.moments(f32).merge(f32), TypeError, "other must be Moments, got ndarray"),
    "none": (lambda: Moments.merge_many([]), ValueError, "parts must not be empty"),
    "buffer": (
        lambda: Moments.from_buffer(Moments(1, 0.0, 0.0).to_buffer(), (2,)),
        ValueError,
        r"must have shape \(7,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, error, words = ERRORS[name]
    for _ in range(2):
        with pytest.raises(error, match=words):
            call()
    assert not f32.any()


@pytest.mark.parametrize(
    ("shape", "axis"), [((4_000_000,), 0), ((2000, 2000), 0), ((2000, 2000), 1)]
)
def test_no_memory_that_grows(dtype, many_threads, shape, axis):
    x = np.ones((*shape, 2), dtype)[..., 0]
    outs = tuple(np.zeros(np.delete(shape, axis), dtype) for _ in range(2))
    assert peak(lambda: fa.mean_var(x, axis, out=outs)) < 20_000 + math.prod(shape) // 64
