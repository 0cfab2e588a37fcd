"""Groups of data frames, as docs/numpy_world.md has them: pandas' and polars' own results."""

import numpy as np
import pytest
from judged import refused

import fastact as fa

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
    op, named = fa.ops[name], NAMES[name]
    found = pd.Series(
        op(frame["t"].to_numpy(), by=labels, groups=len(cities), **named), cities, name="t"
    )
    expected = getattr(frame.groupby("city"), name)()
    pd.testing.assert_series_equal(found, expected["t"], check_names=False, rtol=1e-9)
    both = op(frame[["t", "u"]].to_numpy(), axis=0, by=labels, groups=len(cities), **named)
    found = pd.DataFrame(both.T, cities, ["t", "u"])
    pd.testing.assert_frame_equal(found, expected, check_names=False, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_polars(name):
    pl = pytest.importorskip("polars")
    city, t = columns()
    frame = pl.DataFrame({"city": city, "t": t})
    labels, cities = frame["city"].rank("dense").to_numpy() - 1, frame["city"].unique().sort()
    values = frame["t"].to_numpy(allow_copy=False)
    op, named = fa.ops[name], NAMES[name]
    found = op(values, by=labels, groups=len(cities), **named)
    expected = frame.group_by("city").agg(getattr(pl.col("t"), name)()).sort("city")
    assert cities.to_list() == expected["city"].to_list()
    np.testing.assert_allclose(found, expected["t"].to_numpy(), 1e-9)


def test_frames_are_no_arrays():
    pl = pytest.importorskip("polars")
    for op in GROUPED:
        refused(r"whose labels would be lost.*to_numpy", op, pl.DataFrame({"t": [1.0]}))
