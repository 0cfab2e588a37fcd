"""Statistics of labelled arrays."""

import warnings
from inspect import signature
from itertools import product
from typing import Any

import numpy as np
import pytest
from judged import refused

xr = pytest.importorskip("xarray")
fx = pytest.importorskip("fastact.xarray")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=["eager", "lazy"])
def x(request):
    made = xr.DataArray(
        np.arange(24.0).reshape(2, 3, 4) ** 2,
        {"a": ["p", "q"], "c": [1, 2, 3, 4], "m": ("b", [1, 2, 3])},
        ["a", "b", "c"],
        attrs={"unit": "K"},
        name="t",
    )
    if request.param == "lazy":
        pytest.importorskip("dask")
        made = made.chunk(b=2, c=3)
    return made


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom|invalid:RuntimeWarning")
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("skipna", [None, True, False])
@pytest.mark.parametrize("dim", [None, "a", ("c", "a"), ..., ()], ids=str)
def test_as_xarray_s_own(x, dim, skipna, missing):
    if x.chunks and dim == ():
        pytest.skip("xarray's own fails")
    x = given_and_missing(x, missing)
    own = {"skipna": skipna, "keep_attrs": False}
    kept = {"skipna": skipna, "keep_attrs": True}
    for ours, theirs in (
        (fx.mean(x, dim, **kept), x.mean(dim, **kept)),
        (fx.var(x, dim, ddof=1, skipna=skipna), x.var(dim, ddof=1, **own)),
        (fx.std(x, dim, skipna=skipna), x.std(dim, **own)),
        (fx.mean_var(x, dim, skipna=skipna)[0], x.mean(dim, **own)),
        (fx.mean_var(x, dim, ddof=1, skipna=skipna)[1], x.var(dim, ddof=1, **own)),
        (fx.sum(x, dim, skipna=skipna), x.sum(dim, **own)),
        (fx.sum_squares(x, dim, skipna=skipna), (x**2).sum(dim, **own)),
    ):
        assert (ours.chunks is None) == (x.chunks is None)
        if dim == () and missing:
            theirs = theirs.where(theirs.notnull() | ours.isnull(), 0.0)  # NumPy's sum of NaN alone
        xr.testing.assert_allclose(ours, theirs)
        assert ours.attrs in (theirs.attrs, x.attrs)
        assert set(ours.coords) == set(theirs.coords)


def test_no_function_tells_missing_values_apart():
    """The same elements count, whichever way a statistic is asked for, and no warning is given."""
    x = xr.DataArray(
        np.array([[1.0, np.nan, 4.0], [np.nan] * 3], np.float32), {"g": ("a", [0, 1])}, ["a", "b"]
    )
    ones = xr.ones_like(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("mean", "var", "std", "sum"):
            for skipna in (None, True, False, np.False_):
                alone = getattr(fx, name)(x, "b", skipna=skipna)
                assert alone.dtype == np.float32
                weighted = getattr(fx.weighted(x, ones), name)("b", skipna=skipna)
                grouped = getattr(fx.groupby(x, "g"), name)(["a", "b"], skipna=skipna)
                np.testing.assert_allclose(alone, weighted)
                np.testing.assert_allclose(alone, grouped)
        assert fx.mean(xr.full_like(x, 2, int), "b").values.tolist() == [2, 2]


def test_datasets(x):
    ds = xr.Dataset({"x": x, "y": ("a", [1.0, 2.0]), "text": ("a", ["u", "v"])})
    by_b = fx.mean(ds, "b")
    xr.testing.assert_allclose(by_b["x"], x.mean("b"))
    assert by_b["y"].to_numpy().tolist() == [1.0, 2.0]
    assert by_b["text"].to_numpy().tolist() == ["u", "v"]
    assert fx.var(ds[["x", "y"]])["y"].item() == 0.25
    assert fx.mean_var(ds[["y"]])[1]["y"].item() == 0.25
    refused(r"\.mean: 'text' of the Dataset: .*got str", fx.mean, ds, "a")


def test_refused(x):
    refused(r"mean: obj must be a DataArray, .*, got ndarray of", fx.mean, np.ones(3))
    refused(r"var: dim must be of 'a', 'b', 'c', got 'z'", fx.var, x, ["a", "z"], error=ValueError)
    twice = ("b", "b")
    for call in (
        lambda: fx.mean(x, twice),
        lambda: fx.sum_squares(x.variable, twice),
        lambda: fx.nanvar(x, twice),
        lambda: fx.groupby(x.compute(), "m").mean(twice),
    ):
        refused(r"dim must name each dimension once, got \('b', 'b'\)", call, error=ValueError)
    both = xr.Dataset({"x": x})
    np.testing.assert_allclose(fx.mean(both, twice)["x"], both.mean(twice)["x"])
    for call in (
        lambda: fx.mean(x, skipna=0),
        lambda: fx.weighted(x, x.b).sum(skipna="no"),
        lambda: fx.groupby(x.compute(), "m").sum(skipna=1),
    ):
        refused(r"(mean|sum): skipna must be True or False, got", call)


def test_statistics_of_ops_are_there_by_their_names():
    import fastact as fa

    x = xr.DataArray(np.array([[1.0, np.nan], [3.0, 4.0]]), dims=["a", "b"])
    for name in ("nanmean", "nanvar", "nanstd", "nansum"):
        if name in fa.ops:
            assert getattr(fx, name)(x, "a").dims == ("b",)
            np.testing.assert_allclose(getattr(fx, name)(x, "a"), getattr(np, name)(x, axis=0))


#: Weights along some of x's dimensions, along others, in another order, with other labels, named.
WEIGHTS = {
    "some": xr.DataArray([1.0, 2.0, 0.5], {"m": ("b", [1, 2, 3])}, ["b"]),
    "another order": xr.DataArray(np.arange(1.0, 9).reshape(4, 2), {"c": [1, 2, 3, 4]}, ["c", "a"]),
    "one more": xr.DataArray(
        np.arange(1.0, 16).reshape(5, 3), {"d": list("vwxyz")}, ["d", "b"], name="w"
    ),
    "none of x's": xr.DataArray([1.0, 3.0], dims=["d"], attrs={"unit": "kg"}),
    "other labels": xr.DataArray([1.0, 2.0, 3.0], {"c": [2, 4, 9]}, ["c"], name="t"),
    "no label of x's": xr.DataArray([1.0], {"c": [7]}, ["c"]),
    "negative": xr.DataArray([1.0, -0.25, 2.0], dims=["b"]),
    "mostly negative": xr.DataArray([-1.0, -2.0], {"a": ["p", "q"]}, ["a"]),
    "zeros": xr.DataArray([0.0, 0.0], {"a": ["p", "q"]}, ["a"]),
    "bools": xr.DataArray([True, False, True], dims=["b"]),
    "no dimension": xr.DataArray(2.0),
    "a label beside": xr.DataArray([2.0, 1.0, 1.0], {"m": ("b", [3, 2, 1]), "at": 5}, ["b"]),
}
RESULTS = ["mean", "var", "std", "sum", "sum_of_squares", "sum_of_weights"]


def given_and_missing(x: Any, missing: bool) -> Any:
    """With one element missing, and all of a row."""
    return x.where((x != 9) & (x.b != 1)) if missing else x


@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("missing", [False, True])
def test_weighted_as_xarray_s_own(x, missing, weights, name):
    """Values, dimensions in their order, labels, names and attributes, of arrays and Datasets."""
    w = WEIGHTS[weights]
    if x.chunks and "negative" not in weights:  # those that are not computed yet are not looked at
        w = w.chunk()
    x = given_and_missing(x.assign_coords(b=[0, 1, 2]) if "m" in w.coords else x, missing)
    both = xr.Dataset({"x": x, "y": ("b", [1.0, 3.0, 4.0])}, attrs={"made": "here"})
    dims: list[Any] = [None, "b", ["c", "a"]]  # of lazy arrays fewer, each of which takes longer
    dims += [] if x.chunks else [..., "a", [], *w.dims[:1], ["b", *w.dims[:1]]]
    for obj, dim, (keep_attrs, skipna) in product(
        (x, both), dims, ((None, None), (True, True), (False, False))
    ):
        if missing and skipna is False and weights in ("zeros", "bools"):
            continue  # test_weight_zero_does_not_count
        named: dict[str, Any] = {"keep_attrs": keep_attrs}
        if name != "sum_of_weights":
            named["skipna"] = skipna
        own = obj.weighted(w)
        has = {*own.obj.dims, *w.dims}
        if dim is ...:  # which xarray itself does not take
            ours, dim = ..., None
        elif {*([dim] if isinstance(dim, str) else dim or [])} <= has:
            ours = dim
        else:
            continue
        try:
            expected = getattr(own, name)(dim, **named)
        except ValueError:  # a variable of a Dataset lacks a dimension, or others are left
            assert obj is both
            continue
        found = getattr(fx.weighted(obj, w), name)(ours, **named)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = found.compute()
        expected = expected.compute()
        xr.testing.assert_allclose(found, expected, 1e-9, 1e-9)
        assert xr.Dataset.equals(coords_of(found), coords_of(expected))
        for a, b in zip(variables_of(found), variables_of(expected), strict=True):
            assert (a.name, a.dims, a.attrs) == (b.name, b.dims, b.attrs)
        assert found.attrs == expected.attrs


def coords_of(obj: Any) -> Any:
    return obj.coords.to_dataset()


def variables_of(obj: Any) -> Any:
    return [obj] if isinstance(obj, xr.DataArray) else list(obj.data_vars.values())


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # xarray's own
def test_weight_zero_does_not_count():
    """Whatever it is; xarray's own makes NaN of infinities, and of NaN that is not skipped."""
    x = xr.DataArray([1.0, np.inf, np.nan], dims=["a"])
    w = xr.DataArray([2.0, 0.0, 0.0], dims=["a"])
    assert fx.weighted(x, w).mean(skipna=False) == 1
    assert np.isnan(x.weighted(w).mean(skipna=False))


def test_weighted_refused(x):
    refused(r"xarray\.weighted: weights must be a DataArray, got", fx.weighted, x, np.ones(3))
    refused(r"xarray\.weighted: obj must be a DataArray", fx.weighted, np.ones(3), x)
    with pytest.raises(ValueError, match=r"weighted\.mean: dim must be of 'a', 'b', 'c'"):
        fx.weighted(x, x).mean("z")
    other = xr.DataArray([1.0, 2.0], {"a": ["p", "r"]}, ["a"])
    with xr.set_options(arithmetic_join="exact"), pytest.raises(ValueError, match="align"):
        fx.weighted(x, other).mean()
    with pytest.raises(ValueError, match="cannot contain missing values"):
        fx.weighted(x, other.where(other == 1)).mean().compute()


def of_time(lazy: bool) -> Any:
    """Labels of one dimension, some of them NaN, and of two; an index, and an axis without one."""
    values = np.random.default_rng(7).normal(5, 1, (2, 5, 3))
    values[0, 1, 2] = values[1, :3, 0] = np.nan
    days = ["2024-01-01", "2024-01-30", "2024-02-02", "2024-02-03", "2024-05-01"]
    coords: dict[str, Any] = {
        "time": np.array(days, "datetime64[ns]"),
        "month": ("time", [1, 1, 2, 2, 5], {"long_name": "of the year"}),
        "kind": ("time", ["u", "u", "v", "v", "u"]),
        "share": ("time", [np.nan, 0.5, np.nan, 0.5, 1.5]),
        "height": ("time", [0.5, 0.7, 1.5, 5.0, 9.0]),
        "place": (("a", "time"), [[3, 0, 1, 0, 3], [0, 1, 1, 3, 3]]),
        "row": ("a", ["p", "q"]),
        "at": 5,
    }
    made = xr.DataArray(values, coords, ["a", "time", "b"], "t", {"unit": "K"})
    if lazy:
        pytest.importorskip("dask")
        made = made.copy(data=made.chunk(a=1, time=2, b=2).data)  # labels stay as they are
    return made


def groups() -> dict[str, dict[str, Any]]:
    """Arguments of `groupby`, by their kind."""
    from xarray import groupers

    return {
        "labels": {"group": "month"},
        "some without": {"group": "share"},
        "an axis without labels": {"group": "b"},
        "of the index": {"group": "time.month"},
        "an array": {"group": xr.DataArray(list("xyxzz"), dims="time", name="letter")},
        "several": {"group": ["month", "kind"]},
        "several axes": {"group": ["month", "row"]},
        "two dimensions": {"group": "place"},
        "bins": {"height": groupers.BinGrouper([0, 1, 2, 4, 6])},
        "months": {"time": groupers.TimeResampler("MS")},
    }


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom|invalid:RuntimeWarning")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("name", "of_own"),
    [("mean", {}), ("var", {"ddof": 1}), ("std", {"ddof": 0.5}), ("sum", {})],
    ids=["mean", "var", "std", "sum"],
)
@pytest.mark.parametrize("kind", groups())
def test_groups_as_xarray_s_own(kind, name, of_own, lazy):
    """Values, labels, names, attributes and dimensions, of arrays and Datasets."""
    t = of_time(lazy)
    both = xr.Dataset({"t": t, "u": t.isel(b=0) * 2}, attrs={"made": "here"})
    objs = (t,) if kind == "an axis without labels" else (t, both)  # u lacks it, and is kept
    for obj, dim, skipna in product(objs, (None, ...), (None, False)):
        told: dict[str, Any] = {"dim": dim, "skipna": skipna, "keep_attrs": skipna}
        found = getattr(fx.groupby(obj, **groups()[kind]), name)(**told, **of_own)
        with xr.set_options(use_flox=False, use_numbagg=False):  # which lacks a ddof of a half
            eager = obj.compute()
            own = eager.groupby(**groups()[kind]) if kind != "months" else eager.resample(time="MS")
            expected = getattr(own, name)(**told, **of_own)
        for a, b in zip(variables_of(found), variables_of(expected), strict=True):
            assert (a.chunks is None) != lazy
            assert (a.name, a.dtype, a.attrs) == (b.name, b.dtype, b.attrs)
            assert a.dims == b.dims or "several" in kind or obj is both
            np.testing.assert_allclose(a.transpose(*b.dims), b, 1e-9, 1e-9)
        assert coords_of(found).equals(coords_of(expected))
        assert [found[one].attrs for one in a.dims] == [expected[one].attrs for one in a.dims]
        assert found.attrs == expected.attrs


@pytest.mark.parametrize("lazy", [False, True])
def test_groups_of_a_part_of_the_labels_dimensions(lazy):
    """Each row by its own labels, in the object's dtype."""
    x = of_time(lazy).astype(np.float32)
    found = fx.groupby(x, "place").sum("time")
    assert (found.dims, found.dtype) == (("a", "b", "place"), np.float32)
    for row in range(2):
        of_row = fx.groupby(x.isel(a=row), "place").sum().reindex(place=[0, 1, 3])
        np.testing.assert_array_equal(found.isel(a=row), of_row.transpose("b", "place"))
    labels = xr.DataArray([7, 7, 9], dims="new", name="n")  # each element has all of them
    repeated = fx.groupby(x, labels).mean()
    assert repeated.dims == ("n", "a", "time", "b")
    np.testing.assert_array_equal(repeated, np.stack([x, x]))


def test_groups_of_labels_in_levels():
    pandas = pytest.importorskip("pandas")
    levels = pandas.MultiIndex.from_arrays([["u", "v", "u"], [1, 2, 1]], names=["p", "q"])
    coords = xr.Coordinates.from_pandas_multiindex(levels, "z")
    x = xr.DataArray(np.arange(6.0).reshape(3, 2), coords, ["z", "k"])
    for name in ("z", "p"):
        with xr.set_options(use_flox=False, use_numbagg=False):  # which lacks a ddof of a half
            assert fx.groupby(x, name).sum().identical(x.groupby(name).sum())


def test_groups_of_lazy_labels():
    from xarray.groupers import UniqueGrouper

    if "labels" not in signature(UniqueGrouper).parameters:
        pytest.skip("this version of xarray has no groups by lazy labels")
    x = of_time(True)
    x = x.assign_coords(month=x["month"].chunk(time=2))
    for obj in (x, x.copy(data=x.to_numpy())):
        found = fx.groupby(obj, month=UniqueGrouper(labels=[1, 2, 3, 5])).sum()
        # Labels alone are waited for by xarray of before 2026.
        assert found.chunks is not None or obj.chunks is None
        expected = fx.groupby(of_time(False), "month").sum().reindex(month=[1, 2, 3, 5])
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("lazy", [False, True])
def test_groups_of_weighted_elements_counts_and_other_dimensions(lazy):
    x, eager, weights = of_time(lazy), of_time(False), xr.DataArray([1.0, 2, 0, 3, 1], dims="time")
    for month, at in eager.groupby("month").groups.items():
        found = fx.weighted(x, weights).groupby("month").std().sel(month=month)
        own = eager.isel(time=at).weighted(weights.isel(time=at)).std("time")
        np.testing.assert_allclose(found, own, 1e-9, 1e-9)
    grouped, own = fx.groupby(x, "month"), eager.groupby("month")
    xr.testing.assert_identical(grouped.count().compute(), own.count())
    xr.testing.assert_allclose(grouped.mean("b").compute(), own.mean("b"))
    xr.testing.assert_allclose(grouped.sum_squares(), (eager**2).groupby("month").sum())


def test_groups_refused():
    x = of_time(False)
    with pytest.raises(TypeError, match=r"xarray\.groupby: obj must be a DataArray or a Dataset"):
        fx.groupby(x.variable, "month")
    words = r"groupby\.mean: dim must be of 'a', 'time', 'b', got 'z'"
    refused(words, fx.groupby(x, "month").mean, "z", error=ValueError)
    by_weight = fx.weighted(x, xr.ones_like(x.time, float)).groupby("month")
    refused("weighted groups have only mean, var and std", by_weight.sum)
    kept = xr.Dataset({"x": x, "text": ("a", list("ab"))})
    assert fx.groupby(kept, "month").mean()["text"].to_numpy().tolist() == ["a", "b"]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["mean", "var", "std", "sum"])
def test_groups_reduce_variables_that_lack_their_dimensions(name, lazy):
    """Over the other dimensions that are named, of which each variable has some, or none."""
    x = of_time(lazy)
    beside = x.isel(time=0).reset_coords(drop=True)
    ds = xr.Dataset(
        {"x": x, "a": beside[:, 0], "b": beside[0], "both": beside, "none": beside[0, 0]}
    )
    for dim in (["time", "b"], ["b", "a", "time"], ...):
        found = getattr(fx.groupby(ds, "month"), name)(dim)
        alone = getattr(fx.groupby(ds["x"], "month"), name)(dim)
        xr.testing.assert_allclose(found["x"], alone)
        over = list(ds.dims) if dim is ... else dim
        rest = ds[["a", "b", "both", "none"]]
        for one, expected in getattr(fx, name)(rest, [d for d in over if d in rest.dims]).items():
            assert found[one].dims == expected.dims
            np.testing.assert_allclose(found[one], expected)
