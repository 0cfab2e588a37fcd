"""Sums and moments of what a mask leaves, and of weights; and what too few elements give."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES, FRAMEWORKS
from judged import refused

import fastact as fa

OPS = [op for op in fa.ops.values() if "where" in op.entry_points["call"].defaults]
#: Of the elements, or of a term of theirs.
SUMS = [op for op in OPS if op.family == "reductions" and op.results == ("y",)]
each_sum = pytest.mark.parametrize("op", SUMS, ids=lambda op: op.name)
SHAPE = (7, 30, 20)
AXES = [None, (1,), (0, 2), ()]
each_axes = pytest.mark.parametrize("axes", AXES, ids=str)

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")


def drawn(dtype: Any, shape: tuple[int, ...] = SHAPE) -> tuple[Any, Any]:
    """Values, NaN or infinite where they don't count, and where they count."""
    rng = np.random.default_rng(0)
    x, where = rng.normal(1, 1, shape).astype(dtype), rng.random(shape) < 0.7
    where[0] = False
    x[~where] = np.where(rng.random((~where).sum()) < 0.5, np.nan, np.inf)
    return x, where


# --- sums -----------------------------------------------------------------------------------------


@each_sum
@each_axes
def test_a_sum_of_what_counts(op, axes):
    """It has the bits of a sum in which the others are 0, in float32 and wider."""
    for dtype in (np.float32, np.float64):
        x, where = drawn(dtype)
        assert_same_bits(op(x, axes, where=where), op(np.where(where, x, 0).astype(dtype), axes))


@each_sum
def test_out_is_not_the_mask(op):
    where = np.ones(8, bool)
    x = np.ones(8)
    first = op.forward(x, where=where)[1][0]
    memory = np.ones(8)
    with pytest.raises(ValueError, match=rf"^fastact.{op.name}.backward: out must "):
        op.backward(1.0, first, memory.view(bool)[:8], out=memory)
    assert (memory == 1).all()


# --- gradients of 16 bits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "way"),
    [
        (op, way)
        for op in OPS
        for way in ("where", "weights", "where weights", "skipna")
        if {*way.split()} <= {*op.entry_points["backward"].defaults}
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@each_axes
def test_a_gradient_of_16_bits_is_rounded_once(op, way, dtype, axes, backend):
    """To half a ULP the gradient of the same numbers in float64, also where it is added."""
    ways = way.split()
    rng = np.random.default_rng(0)
    x, base = (rng.uniform(1, 3, SHAPE).astype(DTYPES[dtype]) for _ in range(2))
    counts = {"where": rng.random(SHAPE) < 0.7, "weights": rng.uniform(0.5, 2, SHAPE)}
    given = {name: counts[name] for name in ways if name in counts}
    named = {"axis": axes, "keepdims": True, **({"skipna": True} if "skipna" in ways else {})}
    shape = np.sum(x, axes, keepdims=True).shape
    dys = tuple(rng.uniform(1, 2, shape).astype(x.dtype) for _ in op.results[:2])

    def back(of: Any, wide: Any, out: Any = None) -> Any:
        held = [of(wide(dy)) for dy in dys]
        of_counts = [of(given[name]) if name in given else None for name in op.saves[1:]]
        dy = tuple(held) if len(held) > 1 else held[0]
        outs = (out, None) if len(op.gradients) > 1 and out is not None else out
        adds = {} if out is None else {"out": outs, "accumulate": True}
        saved = of(wide(x)) if "x" in op.saves else x.shape
        dx = op.backward(dy, saved, *of_counts, **named, **adds)
        return dx[0] if isinstance(dx, tuple) else dx

    exact = back(np.asarray, lambda a: a.astype(np.float64))
    out = backend.of(base.copy())
    back(backend.of, np.asarray, out)
    for found, expected in ((back(backend.of, np.asarray), exact), (out, base + exact)):
        found = backend.numpy(found)
        half = np.spacing(np.abs(found)).astype(np.float64) / 2
        # Where it is computed in float32: 6 u of terms up to 64.
        assert (np.abs(found.astype(np.float64) - expected) <= half + 2.0**-15).all()


# --- mean and variance, and averages --------------------------------------------------------------


@pytest.mark.parametrize("kind", ["weights", "where", "both"])
@each_axes
def test_mean_var_of_what_counts(dtype, backend, axes, kind):
    """The bits of the two statistics."""
    x, where = drawn(dtype)
    weights = np.random.default_rng(2).uniform(0, 2, x.shape).astype(dtype)
    weights[~where] = 0
    named = {"weights": weights, "where": where}
    named = named if kind == "both" else {kind: named[kind]}
    given = {n: backend.of(a) for n, a in named.items()}
    held = backend.of(x)
    for correction in (0, 1):
        mean, var = fa.mean_var(held, axes, correction=correction, **given)
        expected = fa.mean(held, axes, **given)
        np.testing.assert_allclose(
            *(backend.numpy(a).astype(float) for a in (mean, expected)), rtol=1e-14
        )
        assert_same_bits(
            backend.numpy(var), backend.numpy(fa.var(held, axes, correction=correction, **given))
        )


def test_an_average_with_its_sum_of_weights(framework):
    """As np.average: of the average's shape, the number of elements where there are no weights."""
    x = np.arange(12.0).reshape(3, 4)
    for of in ((4,), (3, 4), None):
        weights = None if of is None else np.arange(1.0, 1 + math.prod(of)).reshape(of)
        for keepdims in (False, True):
            expected = np.average(x, 1, weights, returned=True, keepdims=keepdims)
            given = None if weights is None else framework.of(weights)
            for _ in range(4):
                found = fa.average(
                    framework.of(x), 1, weights=given, returned=True, keepdims=keepdims
                )
                for a, b in zip(found, expected, strict=True):
                    assert framework.numpy(a).shape == b.shape
                    np.testing.assert_allclose(framework.numpy(a), b, rtol=1e-15)
    where = x > 1
    y, count = fa.average(framework.of(x), 1, where=framework.of(where), returned=True)
    np.testing.assert_array_equal(framework.numpy(count), where.sum(1))
    np.testing.assert_array_equal(framework.numpy(y), np.mean(x, 1, where=where))
    y, count = fa.average(framework.of(x[:, :0].copy()), 1, returned=True)
    assert np.isnan(framework.numpy(y)).all()
    assert (framework.numpy(count) == 0).all()


def test_a_gradient_of_an_average_is_not_recorded_beside_its_weights():
    x = torch.ones(3, requires_grad=True)
    refused("^fastact.average: returned must be False where torch", fa.average, x, returned=True)
    assert fa.average(x.detach(), returned=True)[1] == 3
    with pytest.raises(TypeError, match=r"^fastact.average: returned must be True or False, got"):
        fa.average(x, returned=torch.ones(2))  # torch does not know whether these are true


# --- too few elements -----------------------------------------------------------------------------

CORRECTED = [op for op in fa.ops.values() if "correction" in op.entry_points["call"].defaults]


def torchs(op: Any, x: Any, correction: float) -> Any:
    """What torch makes of the variances of rows."""
    if op.results[-1] == "std":
        return torch.std(x, 1, correction=correction)
    return torch.var(x, 1, correction=correction)


@pytest.mark.parametrize("op", CORRECTED, ids=lambda op: op.name)
@pytest.mark.parametrize("row", [[3.0], [1.0, 3.0], [2.0, 2.0]], ids=str)
@pytest.mark.parametrize("way", ["plain", "where", "weights"])
@pytest.mark.filterwarnings("ignore:var|std:UserWarning")
def test_gradients_of_too_few(op, row, backend, way):
    """NaN where the value is NaN for want of elements; what torch has, where it has a gradient."""
    for correction in (1, 2):
        given, named = {}, {"correction": correction}
        x = np.array([row, row])
        if way == "where":
            x = np.concatenate([x, [[9.0], [9.0]]], 1)
            given["where"] = np.array([[True] * len(row) + [False]] * 2)
        elif way == "weights":
            given["weights"] = np.ones(x.shape)
        held = {n: backend.of(a) for n, a in given.items()}
        y = op(backend.of(x), 1, **held, **named)
        y = backend.numpy(y[1] if isinstance(y, tuple) else y)
        dy = (None, 1.0) if len(op.results) > 1 else 1.0
        dx = backend.numpy(op.backward(dy, backend.of(x), **held, axis=1, **named))
        if way == "where":
            assert (dx[:, -1] == 0).all()
            dx = dx[:, :-1]
        assert np.isnan(dx).all() == np.isnan(y).any() or np.isinf(y).any()
        if len(row) < correction or getattr(op, "skips", False):
            continue  # torch's value is NaN there, and its gradient is not; it skips no NaN
        wide = torch.tensor([row, row], requires_grad=True, dtype=torch.float64)
        torchs(op, wide, correction).sum().backward()
        np.testing.assert_allclose(dx, wide.grad.numpy(), rtol=1e-14)


def test_a_mean_has_a_gradient_where_the_variance_has_none(backend):
    x = backend.of(np.array([[3.0], [4.0]]))
    for _ in range(4):
        dx = fa.mean_var.backward((1.0, None), x, axis=1, correction=1)
        np.testing.assert_array_equal(backend.numpy(dx), [[1.0], [1.0]])
    where = backend.of(np.ones((2, 1), bool))
    dx = fa.mean_var.backward((1.0, None), x, None, where, axis=1, correction=1)
    np.testing.assert_array_equal(backend.numpy(dx), [[1.0], [1.0]])


# --- weights --------------------------------------------------------------------------------------

WEIGHTED = [op for op in fa.ops.values() if "weights" in op.entry_points["call"].defaults]
each_weighted = pytest.mark.parametrize("op", WEIGHTED, ids=lambda op: op.name)


def parts(backend: Any, found: Any) -> list[Any]:
    found = (found.mean, found.m2) if hasattr(found, "m2") else found
    return [backend.numpy(a) for a in (found if isinstance(found, tuple) else (found,))]


@each_weighted
@pytest.mark.parametrize("terms", [3, 40, 5000])
def test_the_centre_is_none_of_weight_0(op, backend, terms):
    """Huge values that do not count: nothing is computed relative to one of them."""
    rng = np.random.default_rng(0)
    x = rng.normal(1, 1, (2, terms))
    w = np.ones(x.shape)
    huge = rng.random(x.shape) < 0.5
    huge[:, 0], huge[:, -1] = True, False
    expected = [parts(FRAMEWORKS[0], op(row[~out])) for row, out in zip(x, huge, strict=True)]
    for value in (1e300, -1e200, np.finfo(float).max, np.inf, np.nan):
        x[huge], w[huge] = value, 0
        ways = [{"weights": w}, {"where": ~huge}, {"weights": w, "where": ~huge}]
        for way in ways:
            named = {n: backend.of(a) for n, a in way.items()}
            found = parts(backend, op(backend.of(x), 1, **named))
            for k, part in enumerate(found):
                np.testing.assert_allclose(part, [e[k] for e in expected], rtol=1e-12)


@each_weighted
@pytest.mark.parametrize("bad", [-1.0, -1e-300, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("terms", [3, 3000])
@pytest.mark.filterwarnings("ignore:weights that are:RuntimeWarning")
def test_bad_weights_are_nan_everywhere(op, backend, bad, terms):
    """Wherever it stands, and a masked one does not count; gradients, too."""
    x, w = np.arange(2.0 * terms).reshape(2, terms), np.ones((2, terms))
    for at in (0, terms // 2, terms - 1):
        w[:] = 1
        w[1, at] = bad
        held, weights = backend.of(x), backend.of(w)
        for part in parts(backend, op(held, 1, weights=weights)):
            assert np.isfinite(part[0])
            assert np.isnan(part[1])
        dy: Any = (1.0, 1.0) if len(op.results) > 1 else 1.0
        dx = op.backward(dy, held, weights, axis=1)
        dx = backend.numpy(dx[0] if isinstance(dx, tuple) else dx)
        assert np.isfinite(dx[0]).all()
        assert np.isnan(dx[1]).all()
        where = backend.of(w == 1)
        for part in parts(backend, op(held, 1, weights=weights, where=where)):
            assert np.isfinite(part).all()


# --- a low part, and an order ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "way"),
    [
        (op, way)
        for op in (fa.sum, fa.nansum, fa.mean, fa.nanmean, fa.average, fa.mean_var)
        for way in ("plain", "where", "weights")
        if way == "plain" or way in op.entry_points["call"].defaults
    ],
    ids=str,
)
@pytest.mark.parametrize("terms", [2 * 2048, 40 * 2048, 40 * 2048 + 7])
def test_what_rounding_loses_is_added(op, backend, way, terms):
    """2**53 and as many ones as blocks of them: a plain sum of the blocks' sums loses each."""
    x = np.zeros(terms)
    x[0], x[2048::2048] = 2.0**53, 1.0
    named = {} if way == "plain" else {way: np.ones(terms, bool if way == "where" else float)}
    exact = math.fsum(x)
    is_sum = op in (fa.sum, fa.nansum)
    exact = exact if is_sum else exact / terms
    for array, more in (
        (x, named),
        (np.stack([x, x], 1), {n: np.stack([a, a], 1) for n, a in named.items()}),
    ):
        found = op(backend.of(array), 0, **{n: backend.of(a) for n, a in more.items()})
        found = backend.numpy(found[0] if isinstance(found, tuple) else found)
        # A mean is divided, and is rounded twice; 40 ones would be 2**-48 of it.
        # A device adds float64 in double, and promises its bound alone.
        rtol = fa.sum.bounds.absolute if not backend.exact else 0 if is_sum else 2.0**-51
        np.testing.assert_allclose(found, exact, rtol=rtol)


def by_pairs(parts: list[Any]) -> Any:
    """Chan's formula, neighbours first."""
    while len(parts) > 1:
        merged = []
        for i in range(0, len(parts) - 1, 2):
            (n, a, p), (k, b, q) = parts[i], parts[i + 1]
            share = k / (n + k)
            delta = b - a
            merged.append((n + k, a + delta * share, p + (q + delta * delta * (n * share))))
        parts = merged + parts[len(parts) // 2 * 2 :]
    return parts[0]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 12, 31])
def test_the_order_of_a_merge(count):
    """Bit for bit, of parts whose means differ so much that any other order shows."""
    rng = np.random.default_rng(count)
    rows = [
        rng.normal(10.0 ** rng.integers(-8, 8), 1, (int(n), 3)) for n in rng.integers(1, 9, count)
    ]
    found = [fa.moments(part, 0) for part in rows]
    n, mean, m2 = by_pairs([(m.count, m.mean, m.m2) for m in found])
    merged = fa.Moments.merge_many(found)
    assert merged.count == n
    assert_same_bits(merged.mean, mean)
    assert_same_bits(merged.m2, m2)
    if count > 2:  # another order has other bits
        other = fa.Moments.merge_many(found[::-1])
        assert not (np.array_equal(other.mean, mean) and np.array_equal(other.m2, m2))
