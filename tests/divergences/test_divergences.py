"""Divergences: by their bounds, beside torch's, where terms cancel, and without a probability."""

import judged
import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES

import fastact as fa

each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_op = pytest.mark.parametrize("op", [fa.kl_div, fa.js_div], ids=lambda op: op.name)
LOG_2 = np.log(2.0)
INF = np.inf

#: Rows of a vocabulary, more than a block of terms, few terms, columns, several axes, one element.
SHAPES = [
    ((3, 700), -1), ((2, 5000), 1), ((300, 3), 1), ((70, 40), 0), ((4, 5, 6, 7), (1, 3)),
    ((9, 33), (0, 1)), ((5, 1), -1),
]  # fmt: skip
each_shape = pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)


def logs(shape, axis, dtype=np.float64, seed=0, scale=3.0):
    """Log-probabilities along an axis."""
    z = np.random.default_rng(seed).standard_normal(shape) * scale
    return fa.log_softmax(z, axis=axis).astype(dtype)


def gradients(backend, op, *arrays, **named):
    """Those of both arrays, as NumPy's."""
    return [*map(backend.numpy, op.backward(*map(backend.of, arrays), **named))]


@each_op
@each_shape
@each_dtype
def test_by_the_bounds(backend, op, shape, axis, dtype):
    log_q, log_p = (logs(shape, axis, dtype, seed) for seed in (1, 2))
    dy = np.asarray(np.random.default_rng(3).standard_normal(op(log_q, log_p, axis).shape), dtype)
    named = {"log_q": log_q, "log_p": log_p, "axis": axis}
    found = judged.assert_right(op, named, [dy], backend)
    assert {"y", "dlog_q", "dlog_p"} <= found.keys()


@each_op
def test_as_torch_has_it(op):
    """A float64 of torch, whose own formula cancels nowhere here."""
    log_q, log_p = (torch.from_numpy(logs((6, 50), 1, seed=s)).requires_grad_() for s in (1, 2))

    def kl(q, p):
        return torch.nn.functional.kl_div(q, p, reduction="none", log_target=True).sum(1)

    log_m = torch.logaddexp(log_q, log_p) - LOG_2
    theirs = kl(log_q, log_p) if op is fa.kl_div else (kl(log_m, log_p) + kl(log_m, log_q)) / 2
    ours = op(log_q, log_p)
    torch.testing.assert_close(ours, theirs)
    weight = torch.linspace(0.5, 2, 6, dtype=torch.float64)
    by_us = torch.autograd.grad((ours * weight).sum(), (log_q, log_p))
    by_them = torch.autograd.grad((theirs * weight).sum(), (log_q, log_p))
    torch.testing.assert_close(by_us, by_them)


@each_op
@each_dtype
def test_a_unit_apart(backend, op, dtype):
    """Differences of one unit in the last place come out right, and their squares."""
    log_p = logs((4, 1000), 1, dtype)
    log_q = log_p.copy()
    log_q[:, ::7] = np.nextafter(log_q[:, ::7], dtype.type(0))
    t = log_p.astype(np.longdouble)
    d = t - log_q.astype(np.longdouble)
    each = np.exp(t) * d if op is fa.kl_div else np.exp(t - d / 2) * d**2 / 8  # of a series
    exact = np.sum(each, 1)
    y = backend.run(op, log_q, log_p)
    least = 1e-28 if dtype == np.float64 and op is fa.js_div else 1e-7 * (dtype == np.float16)
    np.testing.assert_allclose(np.float64(y), np.float64(exact), rtol=2.0**-6, atol=least)


@each_dtype
def test_without_a_probability(backend, dtype):
    """Pairs of logarithms, of which one or both are of 0."""
    log_q = np.array([[-INF, 0], [-INF, 0], [0, -INF], [-INF, -INF], [-1, -INF]], dtype)
    log_p = np.array([[-INF, 0], [0, -INF], [0, -INF], [-INF, -INF], [-INF, -1]], dtype)
    e, ones = np.exp(-1.0), np.ones(5, dtype)
    kl, js = (backend.run(op, log_q, log_p) for op in (fa.kl_div, fa.js_div))
    assert_same_bits(kl, np.array([0, INF, 0, 0, INF], dtype))
    assert_same_bits(js, np.array([0, LOG_2, 0, 0, e * LOG_2], dtype))
    dq, dp = gradients(backend, fa.kl_div, ones, log_q, log_p)
    assert_same_bits(np.abs(dq), np.array([[0, 1], [1, 0], [1, 0], [0, 0], [0, e]], dtype))
    assert_same_bits(np.abs(dp), np.array([[0, 1], [INF, 0], [1, 0], [0, 0], [0, INF]], dtype))
    dq, dp = gradients(backend, fa.js_div, ones, log_q, log_p)
    half = LOG_2 / 2
    assert_same_bits(
        np.abs(dq), np.array([[0, 0], [0, half], [0, 0], [0, 0], [e * half, 0]], dtype)
    )
    assert_same_bits(
        np.abs(dp), np.array([[0, 0], [half, 0], [0, 0], [0, 0], [0, e * half]], dtype)
    )


@each_op
def test_nan_is_passed_on(backend, op):
    log_q, log_p = np.array([[np.nan, 0.0], [0.0, -1.0]]), np.array([[-INF, 0.0], [np.nan, -1.0]])
    assert np.isnan(backend.run(op, log_q, log_p)).all()
    for gradient in gradients(backend, op, np.ones(2), log_q, log_p):
        np.testing.assert_array_equal(np.isnan(gradient), [[True, False], [True, False]])


@each_dtype
def test_two_infinite_logarithms_have_no_distance(backend, dtype):
    """Of 1, 17 and 40 elements: one, a vector and a tail, several."""
    for n in (1, 17, 40):
        both = np.full((1, n), INF, dtype)
        assert np.isnan(backend.run(fa.kl_div, both, both)).all()
        assert np.isnan(backend.run(fa.js_div, both, both)).all()
        for gradient in gradients(backend, fa.js_div, np.ones(1, dtype), both, both):
            assert np.isnan(gradient).all()
        assert_same_bits(backend.run(fa.js_div, both, -both), np.array([INF], dtype))


@each_op
def test_of_nothing(backend, op):
    none = np.zeros((3, 0))
    assert_same_bits(backend.run(op, none, none), np.zeros(3))
    assert [d.shape for d in gradients(backend, op, np.ones(3), none, none)] == [(3, 0)] * 2


def test_a_nan_beside_a_number_is_passed_on():
    x, t = np.array([[np.nan, 1.3], [-np.inf, 0.5]]), np.array([[0.0, 0.01], [0.0, 0.5]])
    np.testing.assert_array_equal(fa.kl_div(x, t), [np.nan, np.inf])


@each_op
@pytest.mark.parametrize("near", [1.0, 1e-4, 0.0])
def test_derivatives_near_equality(op, near):
    """In float32 as in float64, where terms of both would cancel; and without a probability."""
    p, noise, v = (logs((3, 16), -1, np.float32, seed) for seed in range(3))
    q = (p + near * noise).astype(np.float32)
    p[0, 0] = q[0, 1] = p[0, 2] = q[0, 2] = -np.inf
    if op is fa.kl_div:
        q[0, 1] = -3.0  # else infinite
    dy = np.ones(3, np.float32)
    tangents, second = [], []
    for dtype in (np.float64, np.float32):
        x, t, by, back = (a.astype(dtype) for a in (q, p, v, dy))
        tangents.append(op.jvp(x, t, axis=-1, tangents=(by, None))[1])
        second.append(op.backward.backward(by, by, back, x, t, axis=-1))
    sizes = np.abs(op.backward(dy, q, p, axis=-1)[0] * v).sum(-1)  # magnitudes of the parts
    assert (np.abs(tangents[1] - tangents[0]) <= 16 * 2.0**-24 * sizes + 2.0**-126).all()
    for right, got in zip(*second, strict=True):
        assert (np.abs(got - right) <= 16 * 2.0**-24 * np.abs(v).max()).all()
