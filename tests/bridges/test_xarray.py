"""Statistics of labelled arrays."""

import numpy as np
import pytest

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


@pytest.mark.parametrize("dim", [None, "a", ("c", "a"), ..., ()], ids=str)
def test_as_xarray_s_own(x, dim):
    if x.chunks and dim == ():
        pytest.skip("xarray's own fails")
    for ours, theirs in (
        (fx.mean(x, dim, keep_attrs=True), x.mean(dim, keep_attrs=True)),
        (fx.var(x, dim, correction=1), x.var(dim, ddof=1, keep_attrs=False)),
        (fx.std(x, dim), x.std(dim, keep_attrs=False)),
        (fx.mean_var(x, dim)[1], x.var(dim, keep_attrs=False)),
    ):
        assert (ours.chunks is None) == (x.chunks is None)
        xr.testing.assert_allclose(ours, theirs)
        assert ours.attrs in (theirs.attrs, x.attrs)
        assert set(ours.coords) == set(theirs.coords)


def test_datasets(x):
    ds = xr.Dataset({"x": x, "y": ("a", [1.0, 2.0]), "text": ("a", ["u", "v"])})
    by_b = fx.mean(ds, "b")
    xr.testing.assert_allclose(by_b["x"], x.mean("b"))
    assert by_b["y"].to_numpy().tolist() == [1.0, 2.0]
    assert by_b["text"].to_numpy().tolist() == ["u", "v"]
    assert fx.var(ds[["x", "y"]])["y"].item() == 0.25
    assert fx.mean_var(ds[["y"]])[1]["y"].item() == 0.25
    with pytest.raises(TypeError, match=r"\.mean: 'text' of the Dataset: .*got str"):
        fx.mean(ds, "a")


def test_refused(x):
    with pytest.raises(TypeError, match=r"mean: obj must be a DataArray, .*, got ndarray of"):
        fx.mean(np.ones(3))
    with pytest.raises(ValueError, match=r"var: dim must be of 'a', 'b', 'c', got 'z'"):
        fx.var(x, ["a", "z"])
    with pytest.raises(AttributeError, match="no attribute 'median'"):
        _ = fx.median


def test_statistics_of_ops_are_there_by_their_names():
    import fastact as fa

    x = xr.DataArray(np.array([[1.0, np.nan], [3.0, 4.0]]), dims=["a", "b"])
    for name in ("nanmean", "nanvar", "nanstd", "nansum"):
        if name in fa.ops:
            assert getattr(fx, name)(x, "a").dims == ("b",)
            np.testing.assert_allclose(getattr(fx, name)(x, "a"), getattr(np, name)(x, axis=0))


@pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")
@pytest.mark.parametrize("skipna", [True, False])
@pytest.mark.parametrize("dim", [None, "a", ("c", "a"), "b"], ids=str)
def test_weighted(x, dim, skipna):
    x = x.where(x != 9)  # one is NaN
    by_row = xr.DataArray([1.0, 2.0, 0.5], {"m": ("b", [1, 2, 3])}, ["b"])
    by_place = xr.DataArray(np.arange(8.0).reshape(4, 2), {"c": [1, 2, 3, 4]}, ["c", "a"])
    for weights in (by_row, by_place, by_row * by_place):
        if x.chunks:
            weights = weights.chunk()
        ours, theirs = fx.weighted(x, weights), x.weighted(weights)
        for name in ("mean", "var", "std"):
            found = getattr(ours, name)(dim, skipna=skipna)
            expected = getattr(theirs, name)(dim, skipna=skipna, keep_attrs=False)
            assert (found.chunks is None) == (x.chunks is None)
            xr.testing.assert_allclose(found.transpose(*expected.dims), expected)
            assert set(found.coords) == set(expected.coords)
    both = xr.Dataset({"x": x, "y": ("a", [1.0, 3.0])})
    xr.testing.assert_allclose(fx.weighted(both, by_row).mean("b")["y"], both["y"])


def test_weighted_refused(x):
    with pytest.raises(TypeError, match=r"xarray\.weighted: weights must be a DataArray, got"):
        fx.weighted(x, np.ones(3))
    with pytest.raises(TypeError, match=r"xarray\.weighted: obj must be a DataArray"):
        fx.weighted(np.ones(3), x)
    with pytest.raises(ValueError, match=r"weighted\.mean: dim must be of 'a', 'b', 'c'"):
        fx.weighted(x, x).mean("z")
    other = xr.DataArray([1.0, 2.0], {"a": ["p", "r"]}, ["a"])
    with pytest.raises(ValueError, match="align"):
        fx.weighted(x, other).mean()
