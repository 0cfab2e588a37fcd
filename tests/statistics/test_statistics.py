"""Statistics over any axes of any layout, with NaN left out or not.

Within their bounds, and as NumPy has them where there is little or nothing left.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same_bits
from sums import case

import fastact as fa
from fastact.check.sums import with_gaps

# Those whose weights have a gradient are in test_weights.py.
OPS = [op for op in fa.ops.values() if op.family == "statistics" and op.gradients == ("dx",)]
SKIPPING = [op for op in OPS if op.skips]
CORRECTED = [op for op in OPS if op.of in ("var", "std")]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_skipping = pytest.mark.parametrize("op", SKIPPING, ids=lambda op: op.name)
each_corrected = pytest.mark.parametrize("op", CORRECTED, ids=lambda op: op.name)

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")


# Of 5 MB and more, which come from memory, NaN is skipped as it is met; a row by itself, which is
# in a cache, is asked first whether it has one.
@each_skipping
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_from_memory_are_as_rows_alone(op, dtype):
    x = np.random.default_rng(0).normal(10, 3, (300, 4096 + 700)).astype(dtype)
    x[::3][np.random.default_rng(1).random((100, x.shape[1])) < 0.01] = np.nan
    x[5, 1024:2048] = np.nan  # a block
    x[7, 0] = x[8, 1024] = np.inf  # where a block begins
    x[9] = np.nan
    rows = [op(row) for row in x]
    for threads in (1, 2):
        with fa.num_threads(threads):
            assert_same_bits(op(x, 1), np.array(rows, dtype))


# Of a mean one sum is divided by a count that is added up, but of the same terms.
@pytest.mark.parametrize("op", [op for op in SKIPPING if op.of != "mean"], ids=str)
@case
def test_without_nan_the_bits_are_those_of_all(op, dtype, shape, axes):
    plain = fa.ops[op.name.removeprefix("nan")]
    x = np.random.default_rng(0).normal(10, 3, shape).astype(dtype)
    assert_same_bits(op(x, axes), plain(x, axes))


# Numbers of any size, some of which underflow, and of one size; more outputs than a tile has.
@pytest.mark.parametrize("sizes", ["any", "alike"])
@pytest.mark.parametrize("terms", range(1, 9))
@pytest.mark.parametrize("gaps", [0, 7])
def test_a_mean_is_rounded_as_a_division(isa, sizes, terms, gaps):
    """Where all outputs have one count it is a product and an fma that give it."""
    rng = np.random.default_rng(terms)
    bits = rng.integers(0, 2**64, 5003, dtype=np.uint64).view(np.float64)
    x = np.zeros((terms, bits.size))
    x[0] = rng.normal(size=bits.size) if sizes == "alike" else np.where(np.isfinite(bits), bits, 3)
    if gaps:
        x[1:, ::gaps] = np.nan
    expected = x[0] / (~np.isnan(x)).sum(0)
    assert_same_bits(fa.nanmean(x, 0), expected)
    assert_same_bits(fa.nanmean(x.T.copy(), 1), expected)


# --- hard data, and little of it ------------------------------------------------------------------


@pytest.mark.parametrize("terms", [1, 19, 2048 + 37])  # less than a vector, a block and some more
def test_the_only_nan_is_seen_wherever_it_is(isa, dtype, terms):
    x = (np.arange(terms) % 3).astype(dtype)
    total = int(x.astype(np.int64).sum())
    for at in {*range(0, terms, 61), *range(max(terms - 80, 0), terms)}:
        was, x[at] = x[at], np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a mean of nothing
            sums = fa.nansum(x), fa.nanmean(x), fa.nansum(np.stack([x, x]), axis=1)[1]
        x[at] = was
        assert sums[0] == sums[2] == np.asarray(total - int(was), dtype), at
        assert terms == 1 or sums[1] == np.asarray((total - int(was)) / (terms - 1), dtype), at


def test_far_from_zero(backend):
    """Where a first term that is NaN says nothing of where the data lie."""
    x = np.random.default_rng(0).normal(1e4, 1, 100_000).astype(np.float32)
    x[::2048] = np.nan
    x[4096:6144] = np.nan
    x[8192:8292] = np.nan
    exact = np.nanvar(x.astype(np.float64))
    for y in (x, np.stack([x] * 3, 1), np.stack([x] * 80, 1)):
        found = np.ravel(backend.numpy(fa.nanvar(backend.of(y), 0)))
        np.testing.assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize("size", [2.0**100, 2.0**-70], ids=["large", "small"])
def test_deviations_whose_squares_bfloat16_lacks(backend, size):
    """A standard deviation has numbers where its square is infinite, or 0."""
    x = (np.random.default_rng(0).normal(size=(5, 70)) * size).astype(ml_dtypes.bfloat16)
    exact = x.astype(np.float64)
    for few in (slice(None), slice(0, 3)):  # which devices hold in registers
        rows = np.ascontiguousarray(x[:, few])
        found = backend.run(lambda a: fa.std(a, axis=1), rows)
        expected = exact[:, few].std(1)
        np.testing.assert_allclose(found.astype(float), expected, 2.0**-8)
        variances = backend.run(lambda a: fa.var(a, axis=1), rows)
        assert (variances == (np.inf if size > 1 else 0)).all()


@each_op
def test_nothing(op):
    for shape in ((0,), (0, 3), (3, 0)):
        with warnings.catch_warnings(record=True) as ours, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            found = op(np.zeros(shape), 0)
        with warnings.catch_warnings(record=True) as theirs, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            expected = getattr(np, op.name)(np.zeros(shape), 0)
        np.testing.assert_array_equal(found, expected)
        assert bool(ours) == bool([w for w in theirs if "invalid" not in str(w.message)])


@each_op
@pytest.mark.parametrize("many", [False, True])
def test_warnings(op, many):
    """In each of many calls, the recorded ones too, and at the caller's line."""
    few = np.array([[1.0, np.nan, np.nan], [np.nan] * 3, [1.0, 2.0, 3.0]])
    few = np.repeat(few, 3000, 1) if many else few
    if not op.skips:
        few = few[2:, :1]
    named = {"correction": 1} if op in CORRECTED else {}
    is_few = op.of != "sum" and not (op.of == "mean" and not op.skips)
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            op(few, 1, **named)
        assert len(caught) == is_few
        for warning in caught:
            assert warning.category is RuntimeWarning
            assert warning.filename == __file__
            assert str(warning.message).removesuffix(".") in (  # NumPy has both
                "Mean of empty slice",
                "Degrees of freedom <= 0 for slice",
            )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert np.isfinite(op(np.arange(6.0).reshape(2, 3), 1, **named)).all()


@each_corrected
@pytest.mark.parametrize("correction", [0, 1, 2, 3, 2.5, -1])
def test_few_elements(op, correction):
    x = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan], [1.0, 2.0, 4.0]])
    x = x if op.skips else x[2:]
    with np.errstate(all="ignore"):
        expected = getattr(np, op.name)(x, 1, ddof=correction)
    np.testing.assert_allclose(op(x, 1, correction=correction), expected, rtol=1e-14)


# --- gradients ------------------------------------------------------------------------------------


@each_op
def test_gradients_of_equal_values_and_infinities(op):
    dx = op.backward(1.0, np.full(4, 3.0))
    assert (dx == {"sum": 1, "mean": 0.25}.get(op.of, 0.0)).all()
    if op.of in ("sum", "mean"):
        np.testing.assert_array_equal(
            op.backward(2.0, np.array([np.inf, 1])), 2 * dx[:2] * (2 if op.of == "mean" else 1)
        )


def test_gaps_are_what_they_say():
    rows = with_gaps(np.ones((9, 100)))
    assert np.isnan(rows[0]).all()
    assert np.isnan(rows[1, :50]).all()
    assert not np.isnan(rows[2]).all()


@pytest.mark.parametrize(("count", "correction"), [(1, 1), (3, 3), (2, 5)])
def test_a_deviation_of_too_few_elements_has_no_gradient(count, correction, backend):
    """It is NaN, though m2 is 0; of enough equal elements it is 0."""
    for more in (correction, 0):
        dx = backend.run(lambda x, c=more: fa.std.backward(1.0, x, correction=c), np.ones(count))
        assert (np.isnan(dx) if more else dx == 0).all()
