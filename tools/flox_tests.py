"""flox's own tests of grouped sums, means and variances, run against ours.

    pip install flox sparse
    python tools/flox_tests.py

It takes a minute. flox's wheel has no tests: pip fetches the sources of the version that is
installed. Its engine "flox" then has our sums by groups, `by=` and `groups=`, in the place of its
own, and our moments in the place of its chunks' variances, so that ours merge as flox merges
chunks. What deviates, and why, stands in DEVIATIONS: any other failure ends the script with an
error.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flox
import numpy as np
import pytest
from flox import aggregate_flox, aggregations, core, multiarray
from others_tests import Outcomes, report, run

import fastact as fa

#: A part of a test's name, and why ours deviates: nothing does.
DEVIATIONS: dict[str, str] = {}

_SUMS = "sum", "nansum", "mean", "nanmean"
_STATISTICS = "var", "nanvar", "std", "nanstd"
_own_var_chunk = aggregations.var_chunk


def _of_groups(op: Any, labels: Any, x: Any, size: int | None, **options: Any) -> Any:
    groups = int(labels.max()) + 1 if size is None else size
    return op(x, axis=-1, by=labels, groups=groups, **options)


def _is_ours(labels: Any, x: Any) -> bool:
    """Whether we compute this: datetimes, objects and nothing at all are flox's."""
    return x.dtype.kind in "biuf" and x.size > 0 and labels.size > 0


def _aggregate(
    op: Any,
    own: Callable[..., Any],
    labels: Any,
    x: Any,
    *,
    axis: int = -1,
    size: int | None = None,
    fill_value: Any = None,
    dtype: Any = None,
) -> Any:
    """An aggregation of flox's engine, by ours; a group without members has `fill_value`."""
    if not _is_ours(labels, x):
        return own(labels, x, axis=axis, size=size, fill_value=fill_value, dtype=dtype)
    y = _of_groups(op, labels, x, size)
    members = np.bincount(labels, minlength=y.shape[-1])
    y[..., members == 0] = 0 if fill_value is None else fill_value
    return y.astype(x.dtype if dtype is None else dtype)


def _var_chunk(
    labels: Any, x: Any, *, skipna: bool, engine: str, size: int | None = None, **options: Any
) -> Any:
    """Squared distances from the mean, sum and count of a chunk, as flox has them."""
    if engine != "flox" or not _is_ours(labels, x):
        return _own_var_chunk(labels, x, skipna=skipna, engine=engine, size=size, **options)
    m = _of_groups(fa.moments, labels, x, size, skipna=skipna)
    count = np.broadcast_to(np.asarray(m.count, np.float64), m.mean.shape).copy()
    parts = (m.m2, np.where(count == 0, 0.0, m.mean * count), count)
    return multiarray.MultiArray(parts)


def _put_ours() -> None:
    """Ours in the place of flox's own."""
    for name in _SUMS:
        own = getattr(aggregate_flox, name)
        setattr(aggregate_flox, name, partial(_aggregate, fa.ops[name], own))
    aggregations.var_chunk = _var_chunk
    for name in _STATISTICS:
        made = getattr(aggregations, name)
        made.chunk = (partial(_var_chunk, **made.chunk[0].keywords),)
    core._choose_engine = lambda by, agg: "flox"


class WithEngine(Outcomes):
    """And the fixture of flox's tests, of the one engine that is ours."""

    @pytest.fixture(scope="module")
    def engine(self) -> str:
        return "flox"

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Tests of our functions, by one array of labels, of dense arrays: a part."""
        items[:] = [item for item in items if _is_of_ours(item)]


#: The first ones take minutes, of dask's arrays, as the others do; sparse arrays are not ours.
_LEFT_OUT = "agg_dask", "axis_subset", "cohorts_nd_by", "test_sparse"


def _is_of_ours(item: Any) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return (
        params.get("func") in _SUMS + _STATISTICS
        and not any(name in item.name for name in _LEFT_OUT)
        and params.get("nby", 1) == 1
        and params.get("chunks") in (None, 3)
        and not params.get("to_sparse")
        and params.get("reindex") is None
    )


def _fetched(folder: str) -> Path:
    """flox's tests, of the version that is installed."""
    of = f"flox=={flox.__version__}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "flox", of]
    subprocess.run(pip, cwd=folder, check=True)
    (sources,) = Path(folder).glob("flox-*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / sources.name.removesuffix(".tar.gz") / "tests"


def main() -> int:
    """Run them, and print the list."""
    _put_ours()
    outcomes = WithEngine()
    with tempfile.TemporaryDirectory() as folder:
        tests = _fetched(folder)
        run(outcomes, "--noconftest", str(tests / "test_core.py"))
    return report(outcomes, DEVIATIONS)


if __name__ == "__main__":
    sys.exit(main())
