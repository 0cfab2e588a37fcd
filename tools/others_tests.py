#!/usr/bin/env python
"""Tests that other packages ship, run against ours: what failed, and why that may be.

    python tools/others_tests.py numpy     # of nan-functions
    python tools/others_tests.py xarray    # of weighted reductions
    python tools/others_tests.py flox      # of grouped sums, means and variances: a minute
    python tools/others_tests.py scipy     # of softmax, logsumexp and expit

Our functions stand in the place of the package's, under its signatures. flox's wheel has no tests:
pip fetches the sources of the version that is installed. What deviates, and why, stands in the
lists of deviations, by a part of a test's name or of a failure's message: any other failure ends
the program with an error.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fastact as fa


class Outcomes:
    """The outcomes of comparisons: how often they held, and failures as "name: message".

    It takes the reports of pytest on each test.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.passed = 0

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            name = report.nodeid.partition("::")[2]
            self.failed.append(f"{name}: {str(report.longrepr).strip().splitlines()[-1]}")
        self.passed += report.when == "call" and report.passed


def run(outcomes: Outcomes, *options: str) -> None:
    """Run another package's tests, without our conftest."""
    options += ("-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--tb=line", "--no-header")
    options += ("--no-summary", "-W", "ignore::pytest.PytestWarning")
    with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
        pytest.main(["--pyargs", *options], plugins=[outcomes])


def report(outcomes: Outcomes, deviations: dict[str, str]) -> int:
    """Print the list; 1 where something deviates for no reason that is known, or nothing ran."""
    failed, unexplained, unused = sorted({*outcomes.failed}), 0, {*deviations}
    for text in failed:
        part = next((part for part in deviations if part in text), "")
        unused.discard(part)
        unexplained += not part
        print(f"deviates: {text}: {deviations[part]}" if part else f"FAILED: {text}")
    for part in sorted(unused):
        print(f"explains nothing: {part!r}")
    print(f"{outcomes.passed} passed, {len(failed)} deviate, {unexplained} unexplained")
    return int(unexplained > 0 or not outcomes.passed)


# --- NumPy ----------------------------------------------------------------------------------------

_OF_NUMPY: dict[str, str] = {
    "float64, got complex": "complex data are refused, in words",
    "float64, got float128": "there are no kernels of long double",
    "LongDoubleDType": "there are no kernels of long double",
    "float64, got object": "objects are refused, in words",
    "unexpected keyword argument 'mean'": "no mean= that was computed before: there is one pass",
    "must be a plain array": "subclasses, which mean something by their memory, are refused",
    "test_signature_match": "fastact's signatures: keyword-only where torch lacks them",
    "int64') = np.": "sums of integers are of float64",
    "test_dtype_from_char": "long double and complex are among the characters",
    "test_nanfunc_ddof[nanstd-1d-f]": "NumPy's own float32 result is the less accurate one",
    # Complex, and extended precision, where the message says that a warning did not come.
    **{
        f"test_allnans[{shape}-{kind}": "no kernels for it"
        for shape in ("0d", "2d")
        for kind in "DFGg"
    },
}


def under_numpys_signature(op: Any) -> Callable[..., Any]:
    """Return an op under NumPy's signature; what it does not take is a TypeError that says so."""

    def function(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, **more: Any
    ) -> Any:
        if "correction" in more:
            if ddof != 0:
                raise ValueError("ddof and correction can't be provided simultaneously.")
            ddof = more.pop("correction")
        named = {"correction": ddof} if "correction" in op.entry_points["call"].defaults else {}
        named |= {} if dtype is None else {"dtype": dtype}
        more = {name: v for name, v in more.items() if v is not np._NoValue}
        return op(a, axis, out=out, **named, **more)

    function.__name__ = op.name
    return function


def of_numpy() -> int:
    for name in ("nansum", "nanmean", "nanvar", "nanstd"):
        setattr(np, name, under_numpys_signature(fa.ops[name]))
    outcomes = Outcomes()
    chosen = "not median and not percentile and not quantile and not ArgminArgmax and not MinMax"
    run(outcomes, "numpy.lib.tests.test_nanfunctions", "-k", chosen)
    return report(outcomes, _OF_NUMPY)


# --- xarray ---------------------------------------------------------------------------------------

_WORDS = "the error has words of ours"
_WEIGHT_0 = "an element of weight 0 does not count, whatever it is: NaN that is not skipped, too"
_OF_XARRAY: dict[str, str] = {
    "test_weighted_bad_dim": _WORDS,
    "test_weighted_sum_equal_weights[False-0-da": _WEIGHT_0,
    "test_weighted_sum_nan[False-weights1-4]": _WEIGHT_0,
    "test_weighted_sum_nan[False-weights3-0]": _WEIGHT_0,
    "test_weighted_sum_of_squares_no_nan[weights0-0.66": "equal but for the last digit of float64",
}


def of_xarray() -> int:
    """Run with `weighted` of DataArray and Dataset replaced by `fastact.xarray.weighted`."""
    xr, fx = import_module("xarray"), import_module("fastact.xarray")
    own = {cls: cls.weighted for cls in (xr.DataArray, xr.Dataset)}

    class Weighted(fx.Weighted):  # type: ignore[misc, name-defined]
        """Ours, and xarray's own for what ours has not: quantiles, and how it is printed."""

        def __init__(self, obj: Any, weights: Any) -> None:
            self._own = own[type(obj)](obj, weights)
            self.obj, self.weights = obj, self._own.weights

        def __getattr__(self, name: str) -> Any:
            return getattr(self._own, name)

        def __repr__(self) -> str:
            return repr(self._own)

    for cls in own:
        cls.weighted = lambda self, weights: Weighted(self, weights)
    outcomes = Outcomes()
    run(outcomes, "xarray.tests.test_weighted")
    return report(outcomes, _OF_XARRAY)


# --- flox -----------------------------------------------------------------------------------------

_SUMS = "sum", "nansum", "mean", "nanmean"
_STATISTICS = "var", "nanvar", "std", "nanstd"


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


def _var_chunk(own: Any, labels: Any, x: Any, *, skipna: bool, engine: str, **more: Any) -> Any:
    """Squared distances from the mean, sum and count of a chunk, as flox has them."""
    if engine != "flox" or not _is_ours(labels, x):
        return own(labels, x, skipna=skipna, engine=engine, **more)
    m = _of_groups(fa.moments, labels, x, more.get("size"), skipna=skipna)
    count = np.broadcast_to(np.asarray(m.count, np.float64), m.mean.shape).copy()
    parts = (m.m2, np.where(count == 0, 0.0, m.mean * count), count)
    return import_module("flox.multiarray").MultiArray(parts)


def _put_ours_into_flox() -> None:
    """Put our sums in the place of flox's own, and moments in that of its chunks' variances.

    So ours merge as flox merges chunks.
    """
    engine, core = import_module("flox.aggregate_flox"), import_module("flox.core")
    aggregations = import_module("flox.aggregations")
    for name in _SUMS:
        setattr(engine, name, partial(_aggregate, fa.ops[name], getattr(engine, name)))
    own_chunk = aggregations.var_chunk

    def chunk(labels: Any, x: Any, **more: Any) -> Any:
        return _var_chunk(own_chunk, labels, x, **more)

    aggregations.var_chunk = chunk  # flox knows it again
    for name in _STATISTICS:
        made = getattr(aggregations, name)
        made.chunk = (partial(chunk, **made.chunk[0].keywords),)
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
    """Fetch flox's tests, of the version that is installed."""
    of = f"flox=={import_module('flox').__version__}"
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "flox", of]
    subprocess.run(pip, cwd=folder, check=True)
    (sources,) = Path(folder).glob("flox-*.tar.gz")
    with tarfile.open(sources) as archive:
        archive.extractall(folder, filter="data")
    return Path(folder) / sources.name.removesuffix(".tar.gz") / "tests"


def of_flox() -> int:
    _put_ours_into_flox()
    outcomes = WithEngine()
    with tempfile.TemporaryDirectory() as folder:
        run(outcomes, "--noconftest", str(_fetched(folder) / "test_core.py"))
    return report(outcomes, {})


# --- SciPy ---------------------------------------------------------------------------------------

_OF_SCIPY: dict[str, str] = {
    "got complex": "complex data are refused, in words",
    "no return_sign": "the sign of a sum of exponentials that are subtracted",
    "no negative b": "b is the mask log(b): no exponential is subtracted",
    "no b of another shape": "a mask broadcasts to x's shape, x not to the mask's",
    "test_dtypes_ab": "b of another dtype, and negative",
    "got float128": "there are no kernels of long double",
}


def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False
) -> Any:
    """Ours under SciPy's signature."""
    if return_sign:
        raise TypeError("no return_sign")
    a = np.asarray(a)
    mask = None
    if b is not None:
        b = np.asarray(b)
        if np.any(b < 0):
            raise TypeError("no negative b")
        if np.broadcast_shapes(a.shape, b.shape) != a.shape:
            raise TypeError("no b of another shape")
        with np.errstate(divide="ignore"):
            mask = np.asarray(np.log(b, dtype=np.result_type(a, b, np.float32)))
    return fa.logsumexp(a, axis, mask=mask, keepdims=keepdims)


#: By the module of scipy.special.tests: SciPy's names, and ours under SciPy's signatures.
_REPLACED: dict[str, dict[str, Callable[..., Any]]] = {
    "test_logsumexp": {
        "softmax": lambda x, axis=None: fa.softmax(x, axis),
        "log_softmax": lambda x, axis=None: fa.log_softmax(x, axis),
        "logsumexp": logsumexp,
    },
    "test_logit": {
        "expit": lambda x: fa.sigmoid(x),
        "log_expit": lambda x: fa.logsigmoid(x),
    },
}


class Replaces(Outcomes):
    """Puts ours into each module of tests, once it is collected."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            for name, ours in _REPLACED[item.module.__name__.rpartition(".")[2]].items():
                setattr(item.module, name, ours)


def of_scipy() -> int:
    outcomes = Replaces()
    left_out = "not TestLogit and not wrap_radians"
    run(outcomes, *(f"scipy.special.tests.{name}" for name in _REPLACED), "-k", left_out)
    return report(outcomes, _OF_SCIPY)


def main() -> int:
    """Run the tests of a library, and print the list."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    libraries = {"numpy": of_numpy, "xarray": of_xarray, "flox": of_flox, "scipy": of_scipy}
    parser.add_argument("library", choices=libraries)
    return libraries[parser.parse_args().library]()


if __name__ == "__main__":
    sys.exit(main())
