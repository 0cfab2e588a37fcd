"""Moments: their entry points, and merges; their bounds are in test_every_reduction.py."""

import math
import pickle
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import FRAMEWORKS, to_torch

import fastact as fa
from fastact import Moments
from fastact.check.expected import expected
from fastact.measure.cases import Case


def draw(dtype: Any, shape: tuple[int, ...], centre: float = 100, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 3, shape).astype(dtype)


def test_oracle_is_right():
    """Against 60 digits."""
    x = draw(np.float64, (50, 2), 1e6)
    case = Case(fa.moments, "call", x.shape, x.dtype, {"x": x, "axis": 0})
    mean, m2 = (expected(case)[name].exact for name in fa.moments.results)
    with mpmath.workdps(60):
        for column in range(2):
            terms = [mpmath.mpf(float(t)) for t in x[:, column]]
            exact = sum(terms) / 50
            assert abs(exact - mean[column]) < 1e-9
            assert abs(sum((t - exact) ** 2 for t in terms) / m2[column] - 1) < 1e-13


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
    for step in (1, 2):
        for _ in range(3):  # the slow path, then a plan
            out = of(np.full(shape, 7.0)), of(np.repeat(np.full(shape, 7.0), step, -1))[..., ::step]
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
@pytest.mark.parametrize("skipna", [False, True])
def test_buffer_and_pickle(of, skipna):
    for shape, axis in (((5, 3), 0), ((5,), None), ((5, 0), 0)):
        m = fa.moments(of(draw(np.float32, shape)), axis, skipna=skipna)
        buffer = m.to_buffer()
        assert skipna or buffer.shape == (3 + 2 * math.prod(m.mean.shape),)
        assert Moments.from_buffer(buffer, m.mean.shape) == m
        assert pickle.loads(pickle.dumps(m)) == m
    assert m != fa.moments(of(draw(np.float32, (6, 0))), 0)
    assert m != 3
