"""Statistics of elements that are weighted or masked; bounds: tests/reductions."""

import functools
import warnings
from itertools import permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES, FRAMEWORKS
from judged import refused
from sums import case, drawn

import fastact as fa
from fastact import Moments
from fastact.check.expected import expected
from fastact.measure.cases import Case
from fastact.ops.engine.op import arrays_of

OPS = [op for op in fa.ops.values() if op.family == "statistics"]
WEIGHTED = [op for op in OPS if "weights" in op.entry_points["call"].defaults]
MASKED = [op for op in OPS if "where" in op.entry_points["call"].defaults]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_weighted = pytest.mark.parametrize("op", WEIGHTED, ids=lambda op: op.name)
each_masked = pytest.mark.parametrize("op", MASKED, ids=lambda op: op.name)
each_corrected = pytest.mark.parametrize(
    "op", [op for op in MASKED if op.of in ("var", "std")], ids=lambda op: op.name
)

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")


# A mean adds all elements as if they counted, and a block's elements anew where it finds that some
# do not. Elements lie on both sides of a block (2048), the odd one at its beginning, middle or end.
@pytest.mark.parametrize("terms", [5, 100, 5000])
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("x_there", [0.0, -0.0, -3.0, np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("weight", [0.0, -0.0, 1.0, -1.0, np.inf, np.nan])
@pytest.mark.parametrize("others", [-0.0, 2.0])
@pytest.mark.filterwarnings("ignore:weights that are negative:RuntimeWarning")
def test_an_odd_element_among_others(isa, terms, dtype, x_there, weight, others):
    """Weights of another dtype, which are looked at one by one, give the same bits."""
    x, w = np.full((3, terms), others, dtype), np.ones((3, terms), dtype)
    for row, k in enumerate((0, terms // 2, terms - 1)):
        x[row, k], w[row, k] = x_there, weight
    looked_at = w.astype(np.float32 if dtype == np.float64 else np.float64)
    expected = fa.average(x, 1, weights=looked_at)
    assert_same_bits(fa.average(x, 1, weights=w), expected)
    assert_same_bits(fa.average(x.T.copy(), 0, weights=w.T.copy()), expected)
    if weight == 0:
        assert_same_bits(expected, np.full(3, others + 0.0 * abs(others), dtype))


@case
@each_masked
def test_a_mask_of_true_changes_no_mean(op, dtype, shape, axes):
    x = drawn(op, dtype, shape)
    found, plain = op(x, axes, where=np.ones(shape, bool)), op(x, axes)
    if op.of in ("sum", "mean"):
        assert_same_bits(found, plain)
    else:
        rtol = {2: 2e-2, 4: 2e-6, 8: 1e-13}[x.itemsize]
        np.testing.assert_allclose(found.astype(float), plain.astype(float), rtol=rtol)
    assert_same_bits(op(x, axes, where=True), plain)


# --- what counts ----------------------------------------------------------------------------------


@each_masked
def test_what_counts_is_seen(op):
    x = np.array([1.0, np.nan, 4.0, np.inf])
    where = np.array([True, True, True, False])
    expected = op(x[:3])
    np.testing.assert_allclose(op(x, where=where), expected, rtol=1e-15)
    assert np.isnan(op(x, where=where)) == (not op.skips)
    # An infinity makes no more of itself than it does without a mask.
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(op(x[2:], where=np.array([True, True])), op(x[2:]))


@each_weighted
def test_weights_are_frequencies(op, dtype):
    rng = np.random.default_rng(0)
    x, times = rng.normal(10, 3, 900).astype(dtype), rng.integers(0, 5, 900)
    often = np.repeat(x, times)
    for named in ({}, {"correction": 1}) if op.of in ("var", "std") else ({},):
        expected = op(often.astype(float), **named)
        for kind in (np.int64, np.int32, np.uint8, np.float32, ml_dtypes.bfloat16):
            found = op(x, weights=times.astype(kind), **named)
            eps = {2: 2e-2, 4: 2e-6, 8: 1e-13}[x.itemsize]
            np.testing.assert_allclose(float(found), float(expected), rtol=eps)


@pytest.mark.parametrize(
    ("shape", "axis", "of"),
    [
        ((4, 6), 0, (4,)),
        ((6, 6), 0, (6,)), ((4, 6), -1, (6,)), ((3, 4, 5), (0, 2), (3, 5)),
        ((3, 4, 5), (2, 0), (5, 3)), ((3, 3, 3), (1, 0), (3, 3)), ((3, 3, 3), (-1, 0), (3, 3)),
        ((2, 2, 2, 2), (3, 0, 1), (2, 2, 2)), ((2, 2, 2), (2, 1, 0), (2, 2, 2)),
        ((3, 4, 5), 1, (4,)), ((3, 4, 5), None, (3, 4, 5)), ((3, 4, 5), (0, 2), (3, 4, 5)),
        ((7,), None, (7,)),
    ],
)  # fmt: skip
def test_average_is_numpys(shape, axis, of):
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=shape), rng.uniform(0.5, 2, of)
    for keepdims in (False, True):
        expected = np.average(x, axis, weights, keepdims=keepdims)
        np.testing.assert_allclose(
            fa.average(x, axis, weights=weights, keepdims=keepdims), expected, rtol=1e-13
        )
        assert_same_bits(
            fa.average(x, axis, weights=weights, keepdims=keepdims),
            fa.mean(x, axis, weights=weights, keepdims=keepdims),
        )
    assert fa.average(x, axis).shape == np.average(x, axis).shape
    assert_same_bits(fa.average(x, axis), fa.mean(x, axis))


@pytest.mark.parametrize("op", WEIGHTED, ids=lambda op: op.name)
@pytest.mark.parametrize("axis", [(1, 0), (2, 0), (-1, 1), [1, -3], (2, 1, 0)], ids=str)
@pytest.mark.parametrize("shape", [(2, 2, 2), (2, 3, 4)], ids=str)
def test_weights_lie_in_the_order_of_the_axes(op, axis, shape):
    """Results and gradients are those of sorted axes; weights of x's shape are of its elements."""
    rng, of = np.random.default_rng(0), tuple(shape[a] for a in axis)
    x, is_whole = rng.normal(size=shape), len(axis) == len(shape)
    w = rng.uniform(0.5, 2, shape if is_whole else of)
    order = range(len(axis)) if is_whole else np.argsort([a % 3 for a in axis])
    ways = [(axis, w), (tuple(sorted(a % 3 for a in axis)), w.transpose(order))]
    (y, saved), (other, others) = (op.forward(x, axis=a, weights=b) for a, b in ways)
    pairs = list(zip(arrays_of(y), arrays_of(other), strict=True))
    dy = tuple(rng.normal(size=np.shape(a)) for a, _ in pairs)[: len(op.results)]
    found = []
    for (a, _), kept in zip(ways, (saved, others), strict=True):
        given = {**dict(zip(op.saves, kept, strict=True)), "axis": a}
        found.append(op.bound("backward", {**given, "dy": dy if len(dy) > 1 else dy[0]})())
    pairs += zip(*(arrays_of(one) for one in found), strict=True)
    for a, b in pairs:
        is_turned = np.shape(a) == w.shape and not is_whole and a is arrays_of(found[0])[-1]
        assert_same_bits(np.asarray(a.transpose(order) if is_turned else a), np.asarray(b))


@pytest.mark.parametrize("axis", [(1, 0), (-1, 0)], ids=str)
def test_weights_in_any_order_have_derivatives(axis):
    """Of gradients too, for which a formula stands."""
    x = torch.randn(2, 2, 3, dtype=torch.float64, requires_grad=True)
    w = torch.rand([x.shape[a] for a in axis], dtype=torch.float64) + 0.5
    given = (x, w.requires_grad_())
    of = functools.partial(fa.average, axis=axis)
    assert torch.autograd.gradcheck(lambda x, w: of(x, weights=w), given, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: of(x, weights=w), given)


def test_reliability_weights():
    """With the correction that the docstring names, the variance is unbiased at any scale."""
    rng = np.random.default_rng(0)
    w = rng.uniform(0.1, 3, 40)
    x = rng.normal(0, 2, (20_000, 40))
    for scale in (1.0, 7.0):
        weights = scale * w
        correction = float(np.sum(weights**2) / np.sum(weights))
        found = fa.var(x, 1, weights=weights, correction=correction)
        assert abs(found.mean() - 4) < 0.05
    np.testing.assert_allclose(found[0], np.cov(x[0], aweights=w), rtol=1e-12)


@each_weighted
def test_constant(op):
    x = np.full((3000, 3), 0.1, np.float32)
    w = np.random.default_rng(0).uniform(size=3000)
    expected = {"mean": np.float32(0.1)}.get(op.of, 0)
    assert (op(x, 0, weights=w) == expected).all()


def test_one_weight_outweighs_the_rest():
    """A first element far off that hardly counts takes nothing from the variance of the others."""
    x = np.random.default_rng(0).normal(0, 1, 2000)
    x[0] = 1e9
    w = np.ones(2000)
    w[0] = 1e-30
    np.testing.assert_allclose(fa.var(x, weights=w), np.var(x[1:]), rtol=1e-11)


# --- little, and bad ------------------------------------------------------------------------------


def caught(function: Any) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function()
    assert all(w.filename == __file__ for w in found)
    return result, [str(w.message) for w in found]


@each_op
def test_all_that_counts_is_nothing(op):
    """NaN, and NumPy's warning, in recorded calls too."""
    x = np.arange(6.0).reshape(2, 3)
    none = np.array([[True, True, False], [False] * 3])
    ways = [{"weights": none.astype(float)}] if op in WEIGHTED else []
    ways += [{"where": none}] if op in MASKED else []
    for named in ways:
        for _ in range(4):
            y, said = caught(lambda named=named: op(x, 1, **named))
            assert np.isfinite(y[0])
            if op.of == "sum":
                assert y[1] == 0
                assert not said
            else:
                assert np.isnan(y[1])
                assert len(said) == 1
                assert said[0].startswith("Mean of" if op.of == "mean" else "Degrees")


@pytest.mark.filterwarnings("ignore:invalid value|divide by zero:RuntimeWarning")
@each_corrected
@pytest.mark.parametrize("correction", [0, 1, 2, 3, 2.5])
def test_few_elements(op, correction):
    x = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 9.0], [1.0, 2.0, 4.0]])
    where = np.array([[True, False, True], [False, True, False], [False] * 3])
    expected = getattr(np, op.name)(x, 1, ddof=correction, where=where)
    np.testing.assert_allclose(op(x, 1, correction=correction, where=where), expected, rtol=1e-14)


@each_weighted
@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, -np.inf])
def test_what_is_no_weight(op, bad):
    """NaN, and a warning that says why."""
    x, w = np.arange(6.0).reshape(2, 3), np.ones((2, 3))
    w[1, 1] = bad
    for _ in range(4):
        y, said = caught(lambda: op(x, 1, weights=w))
        assert np.isfinite(y[0])
        assert np.isnan(y[1])
        assert said == ["weights that are negative or not finite; what they are part of is NaN"]


# --- integers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint32, np.uint64])
def test_other_integers(kind):
    x = np.array([0, 3, np.iinfo(kind).max], kind)
    assert fa.mean(x) == np.mean(x.astype(np.float64))
    m = fa.moments(x)
    np.testing.assert_allclose(m.mean, np.mean(x.astype(np.float64)), rtol=1e-3)


# --- moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 5])
def test_parts_merge(pieces):
    rng = np.random.default_rng(0)
    x, w = rng.normal(100, 3, (500, 7)), rng.uniform(0, 2, (500, 7))
    w[:100, 0] = 0
    where = rng.random((500, 7)) < 0.6
    x[:3] = np.nan
    named = {"skipna": True}
    whole = fa.moments(x, 0, weights=w, where=where, **named)
    cut = zip(*(np.array_split(a, pieces) for a in (x, w, where)), strict=True)
    parts = [fa.moments(a, 0, weights=b, where=c, **named) for a, b, c in cut]
    for m in (Moments.merge_many(parts), Moments.from_buffer(whole.to_buffer(), (7,))):
        np.testing.assert_allclose(m.count, whole.count, rtol=1e-14)
        np.testing.assert_allclose(m.mean, whole.mean, rtol=1e-14)
        np.testing.assert_allclose(m.m2, whole.m2, rtol=1e-11)
    first = fa.moments(x[:200], 0, weights=w[:200], where=where[:200], **named)
    m = first.update(x[200:], weights=w[200:], where=where[200:], **named)
    np.testing.assert_allclose(m.var(1), whole.var(1), rtol=1e-11)


def test_many_small_weights_add_up():
    """The count is compensated, as mean and m2 are."""
    w = np.full(3_000_000, 0.1)
    m = fa.moments(np.ones(3_000_000, np.float32), weights=w)
    assert abs(float(m.count) - 0.1 * 3_000_000) < 1e-9
    assert m.mean == 1
    assert m.m2 == 0


# --- gradients ------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [(30,), (1, 30), (20, 30), (20, 1)], ids=str)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_gradients_of_weights_that_repeat(backend, of, kind):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(20, 30)).astype(np.float32), rng.uniform(1, 2, of).astype(kind)
    a = torch.tensor(x.astype(float), requires_grad=True)
    b = torch.tensor(w.astype(float), requires_grad=True)
    full = torch.broadcast_to(b, (20, 30))
    dy = rng.normal(size=20).astype(np.float32)
    y = (a * full).sum(1) / full.sum(1)
    y.backward(torch.tensor(dy.astype(float)))
    given = [backend.of(array) for array in (dy, x, w)]
    dx, dw = fa.average.backward(*given, axis=1)
    np.testing.assert_allclose(backend.numpy(dx), a.grad.numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(backend.numpy(dw), b.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert backend.numpy(dw).dtype == kind
    assert backend.numpy(dw).shape == of
    if backend is FRAMEWORKS[0]:
        out = np.zeros_like(x), np.ones_like(w)
        fa.average.backward(*given, axis=1, out=out, accumulate=True)
        np.testing.assert_allclose(out[1], 1 + b.grad.numpy(), rtol=1e-4, atol=1e-5)
        only = np.zeros_like(w)
        assert fa.average.backward(*given, axis=1, out=(None, only))[0] is None
        assert_same_bits(only, dw)


@pytest.mark.parametrize("dtypes", list(permutations((np.float16, ml_dtypes.bfloat16))), ids=str)
def test_gradients_of_weights_of_the_other_16_bits(dtypes):
    """They are added up from memory of the weights' dtype, though x has as many bytes."""
    of_x, of_weights = dtypes
    x = np.random.default_rng(0).normal(size=(8, 30)).astype(of_x)
    w = np.ones((1, 30), of_weights)
    dw = fa.average.backward(np.ones(8, of_x), x, w, axis=1)[1]
    wide = x.astype(float)
    each = ((wide - wide.mean(1, keepdims=True)) / 30).astype(of_weights).astype(float)
    assert dw.dtype == of_weights
    np.testing.assert_array_equal(dw[0], each.sum(0).astype(of_weights))


@each_corrected
def test_a_correction_of_nearly_all_weights(op):
    """The error of the weights' sum grows by that sum over the part that correction leaves."""
    x, weights = drawn(op, np.float64, (40, 3)), np.random.default_rng(0).uniform(0, 1, (40, 3))
    counted = np.where(np.isnan(x), 0, weights).sum(0)
    for left in (1e-3, 1e-6, 1e-9):
        correction = counted[1] - left
        y = op(x, 0, correction=correction, weights=weights)[1]
        one = np.s_[:, 1:2]
        options = {"correction": correction, "weights": weights[one]}
        of = expected(Case(op, "call", x[one].shape, x.dtype, {"x": x[one], "axis": 0, **options}))
        assert of[op.results[0]].error(np.array([y])) <= 1


def test_gradients_without_weights():
    dx, dw = fa.average.backward(1.0, np.array([1.0, 3.0]), None)
    np.testing.assert_array_equal(dx, [0.5, 0.5])
    assert dw is None


@each_weighted
def test_autograd(op):
    x = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    w = torch.linspace(1, 3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: op(t, 1, weights=w), (x,))
    if op.gradients == ("dx", "dweights"):
        w.requires_grad_()
        assert torch.autograd.gradcheck(lambda t, w: op(t, 1, weights=w), (x, w))
    else:
        refused("weights", op, x, 1, weights=w.requires_grad_())


def test_compiled_by_torch():
    x, w = torch.randn(3, 4), torch.rand(3, 4)
    compiled = torch.compile(lambda x, w: fa.mean(x, 1, weights=w), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x, w), fa.mean(x, 1, weights=w))


@pytest.mark.parametrize("exponent", [530, -530])
def test_light_weights_of_a_far_deviation(exponent, backend):
    """The variance leaves the range of float64, and neither m2 nor its root does."""
    x = np.random.default_rng(0).normal(size=(4, 50))
    weights = np.full(x.shape, 2.0 ** (-70 if exponent > 0 else 70))
    found = backend.run(lambda x, w: fa.std(x, axis=1, weights=w), x * 2.0**exponent, weights)
    np.testing.assert_allclose(found, x.std(1) * 2.0**exponent, 1e-13)


def test_what_does_not_count_has_no_gradient(backend):
    """Be it, or what comes back, infinite or NaN."""
    x, weights = np.array([[np.nan, 1, 2], [np.inf, 1, 2]]), np.array([0.0, 1, 2])
    for dy in (np.full(2, np.inf), np.full(2, np.nan)):
        given = [backend.of(a) for a in (dy, x, np.broadcast_to(weights, x.shape).copy())]
        dx = backend.numpy(fa.average.backward(*given, axis=1)[0])
        assert (dx[:, 0] == 0).all()
