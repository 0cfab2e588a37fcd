"""Sums and statistics of masked arrays, beside np.ma's."""

import warnings
from typing import Any

import numpy as np
import pytest
from judged import refused

import fastact as fa

OF_AXES = [op for op in fa.ops.values() if op.family in ("reductions", "statistics")]
MASKED = [op for op in OF_AXES if op.results in (("sum",), ("mean",), ("var",), ("std",))]
AXES: Any = [None, 0, 1, -1, (0, 2), (), (0, 1, 2)]
WITH_WHERE = [op for op in MASKED if "where" in op.entry_points["call"].defaults]
each_op = pytest.mark.parametrize("op", MASKED, ids=lambda op: op.name)
with_where = pytest.mark.parametrize("op", WITH_WHERE, ids=lambda op: op.name)


def values(dtype: Any = np.float32, mask: Any = "some") -> Any:
    x = np.random.default_rng(7).normal(1e3, 2, (4, 5, 6)).astype(dtype)
    if mask == "some":
        mask = np.random.default_rng(8).random(x.shape) < 0.4
        mask[1, 2] = mask[:, 3, 4] = True
        mask[0, 0, 1:] = True  # one is left
        x[mask] = np.nan if np.issubdtype(dtype, np.floating) else 77
    return np.ma.array(x, mask=mask)


def theirs(op: Any, x: Any, axis: Any, keepdims: bool, correction: float) -> Any:
    """np.ma's own, given a whole mask: without one its `var` leaves as NaN what its `std` masks."""
    named = {"ddof": correction} if op.of in ("var", "std") else {}
    wide = np.ma.array(x.data.astype(np.float64), mask=np.ma.getmaskarray(x))
    with np.errstate(all="ignore"):
        return getattr(np.ma, op.of)(wide, axis, keepdims=keepdims, **named)


@each_op
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("mask", ["some", True, False, np.ma.nomask], ids=str)
def test_as_np_ma_has_them(op, mask, axis, keepdims):
    correction = 1 if op.of in ("var", "std") else 0
    named: dict[str, Any] = {"correction": 1} if correction else {}
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        x = values(dtype, mask)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            y = op(x, axis, keepdims=keepdims, **named)
        like = theirs(op, x, axis, keepdims, correction)
        assert isinstance(y, np.ma.MaskedArray) == isinstance(like, np.ma.MaskedArray)
        assert (y is np.ma.masked) == (like is np.ma.masked)
        assert (np.ma.getmaskarray(y) == np.ma.getmaskarray(like)).all()
        eps = 1e-10 if dtype in (np.float64, np.int32) else 2 * np.finfo(dtype).eps
        if dtype == np.float16 and op.of == "sum":
            continue  # more than it holds
        found, expected = (np.ma.filled(part.astype(np.float64), 0.0) for part in (y, like))
        np.testing.assert_allclose(found, expected, eps, 1e-9)


#: What np.ma has of those whose result has another name than the function.
OTHERS: dict[str, Any] = {
    "sum": lambda x, axis, **kept: (x.sum(axis, **kept),),
    "sum_squares": lambda x, axis, **kept: ((x * x).sum(axis, **kept),),
    "mean_var": lambda x, axis, **kept: (x.mean(axis, **kept), x.var(axis, ddof=1, **kept)),
}


def test_all_that_reduce_axes_are_tried():
    assert {op.name for op in OF_AXES} == {op.name for op in MASKED} | {*OTHERS, "moments"}


@pytest.mark.parametrize("mask", ["some", True, False, np.ma.nomask], ids=str)
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", OTHERS)
def test_sums_and_several_results(name, axis, mask):
    is_corrected = "correction" in fa.ops[name].entry_points["call"].defaults
    named = {"correction": 1} if is_corrected else {}
    for dtype in (np.float32, np.float64, np.int32):
        for keepdims in (False, True):
            x = values(dtype, mask)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                y = fa.ops[name](x, axis, keepdims=keepdims, **named)
            wide = np.ma.array(x.data.astype(np.float64), mask=np.ma.getmaskarray(x))
            with np.errstate(all="ignore"):
                like = OTHERS[name](wide, axis, keepdims=keepdims)
            for a, b in zip(y if isinstance(y, tuple) else (y,), like, strict=True):
                assert isinstance(a, np.ma.MaskedArray) == isinstance(b, np.ma.MaskedArray)
                assert (a is np.ma.masked) == (b is np.ma.masked)
                assert (np.ma.getmaskarray(a) == np.ma.getmaskarray(b)).all()
                assert a is np.ma.masked or a.dtype == (dtype if dtype != np.int32 else np.float64)
                found, expected = (np.ma.filled(part.astype(np.float64), 0.0) for part in (a, b))
                np.testing.assert_allclose(found, expected, 2 * np.finfo(np.float32).eps, 1e-9)


@pytest.mark.parametrize("op", [op for op in OF_AXES if op is not fa.moments], ids=str)
@pytest.mark.parametrize("mask", [np.ma.nomask, np.zeros((0, 3), bool)], ids=["none", "empty"])
@pytest.mark.parametrize("axis", [None, 0, 1, (0, 1)], ids=str)
def test_of_nothing(op, mask, axis):
    """Sums are 0 and the others NaN, which np.ma shows where there is no mask, but for its std."""
    x = np.ma.array(np.zeros((0, 3)), mask=mask)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = op(x, axis)
    of = [getattr(op, "of", "sum")] if len(op.results) == 1 else op.results
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        like = [getattr(np.ma, name)(x, axis) for name in of]
    for found, expected in zip(y if isinstance(y, tuple) else (y,), like, strict=True):
        assert type(found) is type(expected)
        masks = (np.ma.getmaskarray(part) for part in (found, expected))
        np.testing.assert_array_equal(*masks)
        values = (np.ma.filled(part, 7.0) for part in (found, expected))
        np.testing.assert_array_equal(*values)


@each_op
def test_nan_is_no_mask(op):
    y = op(np.ma.array([[1.0, np.nan, 3.0], [2.0, 4.0, np.nan]], mask=[[0, 0, 1], [0, 0, 1]]), 1)
    assert np.isnan(y.data[0]) == (not op.skips)
    assert not np.ma.getmaskarray(y).any()


@with_where
def test_where_and_mask(op):
    x = np.ma.array([1.0, 2.0, 4.0, 9.0], mask=[0, 0, 0, 1])
    assert op(x, where=np.array([False, True, True, True])) == op(np.array([2.0, 4.0]))


def test_weights_count_beside_a_mask():
    """Frequencies: 2 thrice is three elements, whose variance with correction is 0."""
    x = np.ma.array([[2.0, 9.0], [2.0, 9.0]], mask=[[0, 1], [1, 1]])
    y = fa.var(x, 1, weights=np.array([3.0, 1.0]), correction=1)
    np.testing.assert_array_equal(np.ma.getmaskarray(y), [False, True])
    assert y[0] == fa.var(np.array([2.0]), weights=np.array([3.0]), correction=1) == 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fa.mean(x, 1, weights=np.ones((2, 2))).count() == 1
    with pytest.warns(RuntimeWarning, match="negative or not finite"):
        fa.mean(x, 1, weights=-np.ones((2, 2)))


@pytest.mark.parametrize("op", [op for op in MASKED if op.skips], ids=lambda op: op.name)
def test_rows_of_nan_alone(op):
    """Nothing is left that counts: masked, without a warning; but a sum of nothing is 0."""
    x = np.ma.array([[np.nan, 1.0], [1.0, 2.0]], mask=[[0, 1], [0, 0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        y = op(x, 1)
    assert np.ma.getmaskarray(y).tolist() == [op is not fa.nansum, False]


def test_moments_count_what_is_there():
    x = values()
    m = fa.moments(x, 0)
    assert (m.count == x.count(0)).all()
    there = m.count > 0
    wide = x.astype(np.longdouble)
    np.testing.assert_allclose(m.mean[there], wide.mean(0).data[there].astype(float), 1e-14)
    np.testing.assert_allclose(m.var()[there], wide.var(0).data[there].astype(float), 1e-9, 1e-20)
    parts = fa.Moments.merge_many(fa.moments(part, 0) for part in (x[:1], x[1:3], x[3:]))
    assert (parts.count == m.count).all()
    np.testing.assert_allclose(parts.m2, m.m2, 1e-9, 1e-20)


@each_op
def test_refused(op):
    x = values()
    with pytest.raises(TypeError, match="out must be None for a masked array, whose mask"):
        op(x, 0, out=np.zeros((5, 6), np.float32))
    saved = [None] * (len(op.entry_points["backward"].arrays) - 2)
    for call in (op.forward, lambda x: op.backward(1.0, x, *saved)):
        refused("x must be a plain array, got a masked one", call, x)
    refused("axis must be from -3 to 2", op, x, 3, error=ValueError)
