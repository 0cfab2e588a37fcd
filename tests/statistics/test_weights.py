"""Statistics of elements that are weighted or masked, and of integers."""

import functools
import warnings
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import assert_same_bits, needs_two_fused_isas, on_fused_isas
from devices import DTYPES, FRAMEWORKS
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views
from processes import peak
from sums import case, statistic_error

import fastact as fa
from fastact import Moments
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


def draw(op: Any, dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(10, 3, shape).astype(dtype)
    if op.skips and x.size > 1:
        x[np.random.default_rng(seed + 1).random(shape) < 0.2] = np.nan
    return x


def weighting(
    op: Any, dtype: Any, shape: tuple[int, ...], axes: tuple[int, ...], kind: str
) -> dict[str, Any]:
    """Weights of four orders of magnitude and a mask: some are 0, and all of some outputs'."""
    rng, made = np.random.default_rng(2), {}
    kept = tuple(1 if a in axes else n for a, n in enumerate(shape))
    hidden = rng.random(kept) < 0.1
    if kind in ("weights", "both", "along") and "weights" in op.entry_points["call"].defaults:
        along = tuple(n if a in axes else 1 for a, n in enumerate(shape))
        of = along if kind == "along" else shape
        w = 10.0 ** rng.uniform(-2, 2, of) * (rng.random(of) < 0.8)
        made["weights"] = (w if kind == "along" else np.where(hidden, 0, w)).astype(dtype)
    if kind in ("where", "both") and "where" in op.entry_points["call"].defaults:
        made["where"] = (rng.random(shape) < 0.7) & ~hidden
    return made


KINDS = {
    "weights": {"weights"},
    "where": {"where"},
    "both": {"weights", "where"},
    "along": {"weights"},  # of the axes that are reduced alone
}


def each_pair(*kinds: str) -> Any:
    """Each op with each kind that it has arguments for."""
    pairs = [
        (op, kind)
        for op in OPS
        for kind in kinds
        if KINDS[kind] <= op.entry_points["call"].defaults.keys()
    ]
    ids = [f"{op.name}-{kind}" for op, kind in pairs]
    return pytest.mark.parametrize(("op", "kind"), pairs, ids=ids)


@case
@each_pair(*KINDS)
def test_within_the_bounds(op, dtype, backend, many_threads, shape, axes, kind):
    x, made = draw(op, dtype, shape), weighting(op, dtype, shape, axes, kind)
    y = backend.numpy(op(backend.of(x), axes, **{n: backend.of(a) for n, a in made.items()}))
    assert y.dtype == x.dtype
    assert statistic_error(op, y, x, axes, **made) <= 1


@given(
    st.data(), st.sampled_from(sorted(DTYPES)), st.sampled_from(OPS), st.sampled_from(list(KINDS))
)
@settings(max_examples=100, deadline=None)
def test_any_layout(data, name, op, kind):
    """Of x, weights and mask, each by itself: misaligned, repeated, turned."""
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple))
    axes = tuple(data.draw(st.sets(st.integers(0, len(shape) - 1), max_size=len(shape))))
    lay = lambda a: data.draw(views(a.shape))(a) if a.ndim else a  # noqa: E731
    x = lay(draw(op, DTYPES[name], shape))
    made = {n: lay(a) for n, a in weighting(op, DTYPES[name], shape, axes, kind).items()}
    assert statistic_error(op, op(x, axes, **made), x, axes, **made) <= 1


@case
@each_pair(*KINDS)
def test_same_bits_for_any_threads(isa, op, dtype, shape, axes, kind):
    x, made = draw(op, dtype, shape), weighting(op, dtype, shape, axes, kind)
    results = []
    for threads in (1, 2, 5):
        with fa.num_threads(threads):
            results.append(op(x, axes, **made))
    for other in results[1:]:
        assert_same_bits(other, results[0])


@needs_two_fused_isas
@case
@each_pair(*KINDS)
def test_avx2_and_avx512_have_the_same_bits(op, dtype, shape, axes, kind):
    x, made = draw(op, dtype, shape), weighting(op, dtype, shape, axes, kind)
    first, *others = on_fused_isas(lambda: op(x, axes, **made))
    for other in others:
        assert_same_bits(other, first)


@pytest.mark.parametrize("terms", [1, 2, 7, 31, 33, 255, 256, 2048, 2049, 70_000])
@each_pair("both", "weights", "where")
def test_same_bits_in_every_layout(op, dtype, terms, kind):
    """A set of values and weights has one result, whatever lies beside it, and how."""
    row = draw(op, dtype, (terms,))
    made = weighting(op, dtype, (terms,), (), kind)
    y = op(row, **made)
    wide = 70 if terms < 10_000 else 3
    for n in (2, wide):
        stack = lambda a: np.stack([a] * n)  # noqa: B023, E731
        rows, beside = stack(row), {name: stack(a) for name, a in made.items()}
        assert_same_bits(op(rows, 1, **beside), np.full(n, y))
        columns = {name: a.T.copy() for name, a in beside.items()}
        assert_same_bits(op(rows.T.copy(), 0, **columns), np.full(n, y))
        turned = {name: a[:, ::-1].copy()[:, ::-1] for name, a in beside.items()}
        assert_same_bits(op(rows[:, ::-1].copy()[:, ::-1], 1, **turned), np.full(n, y))
        if "weights" not in made:
            continue
        along = {**beside, "weights": made["weights"][None]}
        assert_same_bits(op(rows, 1, **along), np.full(n, y))


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
    x = draw(op, dtype, shape)
    found, plain = op(x, axes, where=np.ones(shape, bool)), op(x, axes)
    if op.of in ("sum", "mean"):
        assert_same_bits(found, plain)
    else:
        rtol = {2: 2e-2, 4: 2e-6, 8: 1e-13}[x.itemsize]
        np.testing.assert_allclose(found.astype(float), plain.astype(float), rtol=rtol)
    assert_same_bits(op(x, axes, where=True), plain)


# --- what counts ----------------------------------------------------------------------------------


@each_masked
def test_what_does_not_count_is_not_seen(op, backend):
    """NaN, infinities: masked, or of weight 0."""
    x = np.array([[1.0, np.nan, 4.0, np.inf, 2.0], [5.0, 1.0, -np.inf, 2.0, np.nan]])
    mask = np.isfinite(x)
    expected = [op(row[there]) for row, there in zip(x, mask, strict=True)]
    found = backend.numpy(op(backend.of(x), 1, where=backend.of(mask)))
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    if op in WEIGHTED:
        found = backend.numpy(op(backend.of(x), 1, weights=backend.of(mask.astype(np.float32))))
        np.testing.assert_allclose(found, expected, rtol=1e-15)


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
        ((6, 6), 0, (6,)),
        ((4, 6), -1, (6,)),
        ((3, 4, 5), (0, 2), (3, 5)),
        ((3, 4, 5), (2, 0), (5, 3)),
        ((3, 3, 3), (1, 0), (3, 3)),
        ((3, 3, 3), (-1, 0), (3, 3)),
        ((2, 2, 2, 2), (3, 0, 1), (2, 2, 2)),
        ((2, 2, 2), (2, 1, 0), (2, 2, 2)),
        ((3, 4, 5), 1, (4,)),
        ((3, 4, 5), None, (3, 4, 5)),
        ((3, 4, 5), (0, 2), (3, 4, 5)),
        ((7,), None, (7,)),
    ],
)
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


def each_error() -> Iterator[Any]:
    x, ones = np.zeros((2, 3)), np.ones(2)
    weights, where = "weights must broadcast to x's shape", "where must broadcast to x's shape"
    yield x, {"weights": np.ones(4)}, ValueError, rf"{weights} \(2, 3\), got \(4,\)"
    yield (
        x,
        {"weights": np.ones(4), "axis": 0},
        ValueError,
        r"or be along axis 0 \(2,\), got \(4,\)",
    )
    two, three = np.ones((3, 2)), np.ones((2, 3, 4))
    in_order = r"or be along axes \(0, 1\), in this order, \(2, 3\), got \(3, 2\)"
    yield three, {"weights": two, "axis": (0, 1)}, ValueError, in_order
    yield three, {"weights": two.T}, ValueError, r"the lengths along the axes that axis= names"
    yield x, {"weights": np.ones((3, 2)), "axis": (0, 1)}, ValueError, weights
    yield x, {"weights": ones}, ValueError, weights
    yield x, {"weights": 2.0}, TypeError, "weights must be an array, got 2.0"
    yield x, {"weights": np.ones((2, 3), complex)}, TypeError, "weights must have dtype"
    yield x, {"weights": torch.ones(2, 3)}, TypeError, "one framework"
    yield x, {"where": np.ones(4, bool)}, ValueError, where
    yield x, {"where": np.ones((5, 2, 3), bool)}, ValueError, where
    yield x, {"where": np.ones((2, 3))}, TypeError, "where must have dtype bool, got float64"
    yield x, {"where": np.ones((2, 3), int)}, TypeError, "where must have dtype bool, got int64"
    yield x, {"where": 0}, TypeError, "where must have dtype bool, got 0"
    yield x, {"where": np.ma.ones((2, 3))}, TypeError, "where"


@each_weighted
def test_errors(op):
    for x, named, kind, words in each_error():
        if not op.entry_points["call"].defaults.keys() >= named.keys():
            continue
        for _ in range(2):
            with pytest.raises(kind, match=f"fastact.{op.name}: .*{words}"):
                op(x, **named)


def test_out_is_not_the_weights():
    w = np.ones(3)
    with pytest.raises(ValueError, match="out must not share memory with weights"):
        fa.mean(np.zeros((3, 3)), 0, weights=w[:, None], out=w)


@each_op
@pytest.mark.parametrize(
    ("shape", "axis"), [((4_000_000,), 0), ((2000, 2000), 0), ((2000, 2000), 1)]
)
def test_no_memory_that_grows(op, dtype, many_threads, shape, axis):
    x = np.ones((*shape, 2), dtype)[..., 0]
    out = np.zeros(np.delete(shape, axis), dtype)
    named = weighting(op, dtype, shape, (axis,), "both")
    assert peak(lambda: op(x, axis, out=out, **named)) < 20_000 + x.size // 64


# --- integers -------------------------------------------------------------------------------------


@each_op
@pytest.mark.parametrize("kind", [bool, np.int32, np.int64])
def test_integers_are_read_as_they_are(op, kind, many_threads):
    x = np.random.default_rng(0).integers(0, 2 if kind is bool else 1000, (2000, 1000)).astype(kind)
    for axis in (0, 1, None):
        out = np.zeros(() if axis is None else x.shape[1 - axis])
        grown = peak(lambda axis=axis, out=out: op(x, axis, out=out))
        assert grown < 20_000 + x.size // 64
        np.testing.assert_allclose(op(x, axis), op(x.astype(float), axis), rtol=1e-13)
    assert op(x[:, ::-2], 1).dtype == np.float64
    np.testing.assert_allclose(op(x[:, ::-2], 1), op(x[:, ::-2].astype(float), 1), rtol=1e-13)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint32, np.uint64])
def test_other_integers(kind):
    x = np.array([0, 3, np.iinfo(kind).max], kind)
    assert fa.mean(x) == np.mean(x.astype(np.float64))
    m = fa.moments(x)
    np.testing.assert_allclose(m.mean, np.mean(x.astype(np.float64)), rtol=1e-3)


# --- moments --------------------------------------------------------------------------------------


def test_weighted_moments(backend, dtype):
    rng = np.random.default_rng(0)
    x, w = rng.normal(100, 3, (500, 7)).astype(dtype), rng.uniform(0, 2, 500).astype(dtype)
    m = fa.moments(backend.of(x), 0, weights=backend.of(w))
    wide, weights = x.astype(float), w.astype(float)[:, None]
    mean = np.average(wide, 0, weights[:, 0])
    count, found, m2 = (backend.numpy(part) for part in (m.count, m.mean, m.m2))
    np.testing.assert_allclose(count, np.full(7, weights.sum()), rtol=1e-13)
    np.testing.assert_allclose(found, mean, rtol=1e-13)
    np.testing.assert_allclose(m2, (weights * (wide - mean) ** 2).sum(0), rtol=1e-9)


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


def torchs(op: Any, x: Any, w: Any, counts: Any, axes: tuple[int, ...]) -> Any:
    """The statistic by operations that torch differentiates; a correction of 1."""
    held = torch.where(counts, x, 0.0)
    w = torch.where(counts, w, 0.0)
    count, total = w.sum(axes, keepdim=True), (w * held).sum(axes, keepdim=True)
    if op.of == "sum":
        return total
    mean = total / count
    if op.of == "mean":
        return mean
    d = torch.where(counts, x - mean, 0.0)
    var = (w * d * d).sum(axes, keepdim=True) / (count - 1)
    return var if op.of == "var" else var.sqrt()


@each_pair("weights", "where", "both")
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)], ids=str)
def test_gradients(op, dtype, backend, kind, axes):
    """Against torch's autograd in float64."""
    shape = (7, 30, 20)
    x = draw(op, dtype, shape)
    made = weighting(op, dtype, shape, (0, 1, 2), kind)
    wide = torch.tensor(x.astype(float), requires_grad=True)
    w = torch.tensor(np.asarray(made.get("weights", np.ones(shape))).astype(float))
    counts = torch.from_numpy(made.get("where", np.ones(shape, bool)))
    counts = counts & (w != 0) & (~torch.isnan(wide) if op.skips else True)
    y = torchs(op, wide, w.requires_grad_(), counts, axes)
    dy = np.random.default_rng(2).normal(size=tuple(y.shape)).astype(dtype)
    y.backward(torch.tensor(dy.astype(float)))
    named = {"correction": 1} if op.of in ("var", "std") else {}
    given = [backend.of(dy), backend.of(x)]
    given += [backend.of(made[n]) if n in made else None for n in op.saves[1:]]
    found = op.backward(*given, axis=axes, keepdims=True, **named)
    eps = {2: 2.0**-7, 4: 2.0**-21, 8: 2.0**-40}[x.itemsize]

    def close(gradient: Any, expected: Any) -> None:
        expected = np.nan_to_num(expected.numpy())
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(
            backend.numpy(gradient).astype(float), expected, rtol=eps, atol=eps * scale
        )

    if len(op.gradients) == 1:
        close(found, wide.grad)
        if backend is FRAMEWORKS[0]:
            twice = found.copy()
            op.backward(*given, axis=axes, keepdims=True, out=twice, accumulate=True, **named)
            np.testing.assert_allclose(twice.astype(float), 2 * found.astype(float), rtol=2 * eps)
        return
    close(found[0], wide.grad)
    if "weights" not in made:
        assert found[1] is None
        return
    there = torch.from_numpy(made["weights"].astype(float) != 0)  # where torch's w counts
    dw = torch.from_numpy(np.where(there, backend.numpy(found[1]).astype(float), 0))
    close(backend.of(dw.numpy()), torch.where(there, w.grad, 0.0))


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
    x, weights = draw(op, np.float64, (40, 3)), np.random.default_rng(0).uniform(0, 1, (40, 3))
    counted = np.where(np.isnan(x), 0, weights).sum(0)
    for left in (1e-3, 1e-6, 1e-9):
        correction = counted[1] - left
        y = op(x, 0, correction=correction, weights=weights)[1]
        one = np.s_[:, 1:2]
        options = {"correction": correction, "weights": weights[one]}
        assert statistic_error(op, y, x[one], (0,), **options) <= 1


def test_gradients_without_weights():
    dx, dw = fa.average.backward(1.0, np.array([1.0, 3.0]), None)
    np.testing.assert_array_equal(dx, [0.5, 0.5])
    assert dw is None


def test_moments_backward(backend):
    rng = np.random.default_rng(0)
    x, w = rng.normal(10, 3, (50, 8)), rng.uniform(0, 2, (50, 8))
    where = rng.random((50, 8)) < 0.7
    a = torch.tensor(x, requires_grad=True)
    v = torch.tensor(np.where(where, w, 0))
    mean = (v * a).sum(0) / v.sum(0)
    m2 = (v * (a - mean) ** 2).sum(0)
    dmean, dm2 = rng.normal(size=8), rng.normal(size=8)
    (torch.tensor(dmean) * mean + torch.tensor(dm2) * m2).sum().backward()
    given = [backend.of(array) for array in (x, w, where)]
    dx = fa.moments.backward((backend.of(dmean), backend.of(dm2)), *given, axis=0)
    np.testing.assert_allclose(backend.numpy(dx), a.grad.numpy(), rtol=1e-10, atol=1e-12)


@each_weighted
def test_autograd(op):
    x = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    w = torch.linspace(1, 3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda t: op(t, 1, weights=w), (x,))
    if op.gradients == ("dx", "dweights"):
        w.requires_grad_()
        assert torch.autograd.gradcheck(lambda t, w: op(t, 1, weights=w), (x, w))
    else:
        with pytest.raises(TypeError, match="weights"):
            op(x, 1, weights=w.requires_grad_())


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
