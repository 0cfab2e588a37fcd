"""Groups of data frames, as docs/numpy_world.md has them: pandas' and polars' own results."""

import numpy as np
import pytest
from judged import refused

import fastact as fa
from fastact.ops.engine.op import arrays_of

GROUPED = [op for op in fa.ops.values() if "by" in op.entry_points["call"].defaults]
#: Those that frames have, too, and what is said to have the deviation that theirs is.
NAMES = {"mean": {}, "sum": {}, "var": {"ddof": 1}, "std": {"ddof": 1}}
COUNT = 500


def columns() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.choice(["b", "d", "a", "c"], COUNT), rng.normal(1e4, 1, COUNT)


@pytest.mark.parametrize("name", NAMES)
def test_pandas(name):
    pd = pytest.importorskip("pandas")
    city, t = columns()
    frame = pd.DataFrame({"city": city, "t": t, "u": -t})
    frame.loc[::7, "city"] = None
    labels, cities = pd.factorize(frame["city"], sort=True)
    assert (labels == -1).any()
    op, named = fa.ops[name], {"by": labels, **NAMES[name]}
    found = pd.Series(op(frame["t"], **named), cities, name="t")
    expected = getattr(frame.groupby("city"), name)()
    pd.testing.assert_series_equal(found, expected["t"], check_names=False, rtol=1e-9)
    both = op(frame[["t", "u"]].to_numpy(), axis=0, **named)
    found = pd.DataFrame(both.T, cities, ["t", "u"])
    pd.testing.assert_frame_equal(found, expected, check_names=False, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_polars(name):
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame(dict(zip(("city", "t"), columns(), strict=True)))
    found = fa.ops[name](frame["t"], by=frame["city"].rank("dense") - 1, **NAMES[name])
    expected = frame.group_by("city").agg(getattr(pl.col("t"), name)()).sort("city")
    np.testing.assert_allclose(found, expected["t"].to_numpy(), 1e-9)


def test_polars_calls_ops_as_ufuncs():
    pl = pytest.importorskip("polars")
    frame = pl.DataFrame({"t": [1.0, None, -2.0]})
    told = pl.col("t").map_batches(fa.mish, return_dtype=pl.Float64)
    for column in (told, fa.mish(pl.col("t"))):
        found = frame.lazy().select(column).collect()["t"]
        assert found.to_list() == [fa.mish(1.0), None, fa.mish(-2.0)]
    assert fa.leaky_relu(frame["t"].cast(pl.Float32), 0.5).to_list() == [1.0, None, -1.0]


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize("op", GROUPED, ids=lambda op: op.name)
def test_columns(library, op):
    module = pytest.importorskip(library)
    column = module.Series
    x, labels, where = np.arange(6.0), np.array([1, 0, 1, -1, 2, 0]), np.arange(6) != 2
    expected = arrays_of(op(x, by=labels, groups=3, where=where))
    for data, by in ((column(x), labels), (x, column(labels)), (column(x), column(labels))):
        np.testing.assert_array_equal(arrays_of(op(data, by=by, where=column(where))), expected)
    for data, axis in ((column(x), ()), (module.DataFrame({"t": x}), None)):
        refused("plain array, got .*whose labels would be lost.*to_numpy", op, data, axis=axis)
    if library == "pandas":
        words = r"by must have the index that x has.* use by\.reindex\(x\.index\)"
        refused(words, op, column(x), by=column(labels, range(1, 7)), error=ValueError)


def test_missing_values_of_columns():
    pd, pl = map(pytest.importorskip, ("pandas", "polars"))
    x, categories = np.arange(3.0), pl.Enum(["a", "b"])
    labels = [pd.array([0, None, 1], "Int64"), pd.Categorical(["a", None, "b"])]
    labels += [pl.Series([0, None, 1]), pl.Series(["a", None, "b"], dtype=categories)]
    labels += [pl.Series([False, None, True]), pd.array([False, None, True], "boolean")]
    for by in labels:
        assert fa.sum(x, by=by).tolist() == [0.0, 2.0]
        loss = fa.cross_entropy(np.eye(3), by, ignore_index=-1)
        assert loss == fa.cross_entropy(np.eye(3), [0, -1, 1], ignore_index=-1)
    for data in (
        pd.array([1, None], "Int64"),
        pd.array([1, None], "Float64"),
        pl.Series([1, None]),
    ):
        assert np.isnan(fa.mean(data))
    for where in (pd.array([True, None], "boolean"), pl.Series([True, None])):
        refused(r"no missing val.*fill\w+\(False\)", fa.mean, x[:2], where=where, error=ValueError)
    for by in (
        pd.array([0, None, 2**64 - 1], "UInt64"),
        pl.Series([0, None, 2**63], dtype=pl.UInt64),
    ):
        refused("values that int64 holds", fa.sum, x, by=by, error=ValueError)
    for names in (["a", "b", "a"], np.array(["a", "b", "a"]), pd.Series(["a", "b", "a"])):
        refused(r"use names, labels = np\.unique\(by, return_inverse=True\)", fa.sum, x, by=names)
