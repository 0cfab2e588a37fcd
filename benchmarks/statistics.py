"""Statistics of arrays beside other libraries': how right, how fast, and by groups.

    pip install bottleneck numbagg flox pandas torch
    python -m benchmarks.statistics given --markdown docs/results/statistics.md
    python -m benchmarks.statistics speed --markdown docs/results/statistics.md
    python -m benchmarks.statistics groups --markdown docs/results/statistics.md
    python -m benchmarks.statistics certified --markdown docs/results/certified.md

`given` has what others reported of means and variances, computed by each library beside the exact
value of long doubles, and what memory they take; `speed` how long each takes; `groups` sums, means
and variances by groups, and scatter-adds beside torch's; `certified` the digits of NIST's certified
means and deviations. Each takes minutes. A peer that is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fastact as fa
from fastact import _cpu
from fastact.measure.peers import COPY, OURS
from fastact.terminal import markdown_table

from .pages import Call, Section, Timed, compare, installed, main, shown, table_of

_SMALL = 1000  # elements: a copy of them tells nothing
_MEGABYTES = (16, 64)
_DTYPES = ("float32", "float64")
_LIBRARIES = ("numpy", "bottleneck", "numbagg")


def told_threads(modules: dict[str, Any], threads: int, call: Call) -> None:
    """Give numbagg its threads; its first call starts them, and compiles."""
    if "numbagg" in modules:
        call()
        importlib.import_module("numba").set_num_threads(threads)
        call()


# --- what each gives ------------------------------------------------------------------------------


class Reported(NamedTuple):
    """A case that somebody reported.

    op : by the name that skips NaN, which bottleneck and numbagg have alone.
    """

    where: str
    what: str
    op: str
    axis: int | None
    data: Callable[[np.random.Generator], np.ndarray]


def _columns(*values: float) -> np.ndarray:
    return np.tile(np.float32(values), (1_000_000, 1))


_REPORTED = (
    Reported("pydata/bottleneck/issues/462", "1e8 float32 uniforms, mean", "nanmean", None,
             lambda rng: rng.random(100_000_000, np.float32)),
    Reported("pydata/bottleneck/issues/462", "1e8 float32 uniforms, std", "nanstd", None,
             lambda rng: rng.random(100_000_000, np.float32)),
    Reported("pydata/bottleneck/issues/193", "4e7 float32 up to 2e5, sum", "nansum", None,
             lambda rng: np.float32(2e5) * rng.random(40_000_000, np.float32)),
    Reported("pydata/xarray/issues/2401", "(10, 10, 500, 500) float32 log-normals, mean", "nanmean",
             None, lambda rng: rng.lognormal(size=(10, 10, 500, 500)).astype(np.float32)),
    Reported("numpy/numpy/issues/29772", "(10485760, 2) float32 of 250 to 320, mean over axis 0",
             "nanmean", 0, lambda rng: rng.uniform(250, 320, (10_485_760, 2)).astype(np.float32)),
    Reported("numpy/numpy/issues/22956", "(20000000, 2) float32 ones, mean over axis 0", "nanmean",
             0, lambda rng: np.ones((20_000_000, 2), np.float32)),
    Reported("numpy/numpy/issues/14691", "(1000000, 2) float32 columns of 100, of -100, std",
             "nanstd", 0, lambda rng: _columns(100, -100)),
    Reported("numpy/numpy/issues/6231", "(1000000, 2) float32 at 1e4, std 1, var over axis 0",
             "nanvar", 0, lambda rng: rng.normal(1e4, 1, (1_000_000, 2)).astype(np.float32)),
)  # fmt: skip


def exact(op: str, x: np.ndarray, axis: int | None) -> Any:
    """The value of long doubles."""
    of = fa.ops[op].of
    if of == "sum":
        return np.sum(x, axis, np.longdouble)
    mean = np.mean(x, axis, np.longdouble)
    if of == "mean":
        return mean
    parts = [np.square(part - mean).sum(axis) for part in np.array_split(x, 64)]
    var = sum(parts[1:], parts[0]) * (np.size(mean) / x.size)
    return np.sqrt(var) if of == "std" else var


def reported(modules: dict[str, Any]) -> Iterator[list[str]]:
    """Yield what each library gives: of columns the first one's value."""
    for case in _REPORTED:
        x = case.data(np.random.default_rng(462))
        given = [exact(case.op, x, case.axis)]
        for name, module in modules.items():
            op = case.op.removeprefix("nan") if name == "numpy" else case.op
            given.append(getattr(module, op)(x, axis=case.axis))
        given.append(fa.ops[case.op](x, case.axis))
        repository, _, number = case.where.partition("/issues/")
        link = f"[{repository.partition('/')[2]} {number}](https://github.com/{case.where})"
        yield [link, case.what, *(f"{float(np.ravel(value)[0]):.8g}" for value in given)]


def memory(modules: dict[str, Any]) -> Iterator[list[str]]:
    """Yield what each allocates beside x, as a share of it."""
    for op, axis in product(("nanmean", "nanvar"), (0, 1)):
        x = np.ones((2048, 2048), np.float32)
        calls = [partial(getattr(module, op), x, axis=axis) for module in modules.values()]
        peaks = (_peak(call) / x.nbytes for call in (*calls, partial(fa.ops[op], x, axis)))
        yield [op, str(axis), *(f"{peak:.2f}" for peak in peaks)]


def _peak(call: Call) -> int:
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def weighted(args: argparse.Namespace) -> Iterator[Timed]:
    """Yield time and memory of xarray's weighted mean and ours, in the shapes of its issue 3883."""
    if "xarray" not in (modules := installed(("xarray",))):
        return
    xr, fx = modules["xarray"], importlib.import_module("fastact.xarray")
    rng = np.random.default_rng(3883)
    weights = xr.DataArray(rng.random((1000, 1000)), dims=["a", "b"])
    for gaps in (0.0, 0.25):
        data = rng.normal(size=(1000, 1000, 10))
        data[rng.random(data.shape) < gaps] = np.nan
        x = xr.DataArray(data, dims=["a", "b", "c"])
        for dims in (None, "a", ("a", "b")):
            calls: dict[str, Call] = {
                "xarray": lambda dims=dims, x=x: x.weighted(weights).mean(dims),
                OURS: lambda dims=dims, x=x: fx.weighted(x, weights).mean(dims),
            }
            xr.testing.assert_allclose(*(call() for call in calls.values()))
            took = compare(calls, args.seconds, None, f"{gaps:.0%}", str(dims or "all"))
            peaks = {name: _peak(call) / data.nbytes for name, call in calls.items()}
            yield took._replace(about=peaks, unit="memory")


# --- how fast -------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A row of a table: the arguments of calls."""

    threads: int
    size: str
    op: str
    dtype: str
    gaps: float
    label: str
    shape: tuple[int, ...]
    axis: int | tuple[int, ...]


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Yield the rows of the tables."""
    kinds = [*product(("nanmean", "nanvar"), (0.0, 0.1)), ("mean", 0.0), ("var", 0.0)]
    for many, size, (op, gaps), dtype in product(args.threads, [*_MEGABYTES, 0], kinds, _DTYPES):
        row = partial(Case, many, f"{size} MB" if size else f"{_SMALL} elements", op, dtype, gaps)
        side = int((size * 2**20 / np.dtype(dtype).itemsize) ** 0.5)
        if not size:
            yield row("all", (_SMALL,), 0)
            continue
        yield row("first", (side, side), 0)
        yield row("last", (side, side), 1)
        yield row("middle", (64, side * side // 64 // 256, 256), 1)
    order = partial(Case, max(args.threads), "the order of axes", "nanmean", "float64", 0.0)
    for axes in ((0, 1, 2), (2, 1, 0)):
        yield order(str(axes), (1000, 200, 10, 3), axes)


def measured(case: Case, modules: dict[str, Any], args: argparse.Namespace) -> Timed:
    """Return the times of a row: ours, each peer's, and a copy's."""
    x = np.random.default_rng(0).normal(size=case.shape).astype(case.dtype)
    x[np.random.default_rng(1).random(case.shape) < case.gaps] = np.nan
    calls: dict[str, Call] = {OURS: partial(fa.ops[case.op], x, case.axis)}
    calls |= {
        name: partial(getattr(module, case.op), x, axis=case.axis)
        for name, module in modules.items()
        # bottleneck takes one axis
        if hasattr(module, case.op) and not (name == "bottleneck" and isinstance(case.axis, tuple))
    }
    if case.shape != (_SMALL,):
        calls[COPY] = partial(_cpu.copy, np.empty_like(x), x)
    told_threads(calls, case.threads, calls.get("numbagg", calls[OURS]))
    labels = case.op, case.dtype, f"{case.gaps:.0%}", case.label
    return compare(calls, args.seconds, case.threads, *labels)


def given(args: argparse.Namespace) -> Iterator[str]:
    """Yield what each library gives, and the memory that it takes."""
    modules = installed(_LIBRARIES)
    header = ["reported", "of", "exact", *modules, OURS]
    yield markdown_table(header, shown(reported(modules)), 2)
    yield "Memory beside x, as a share of it, of (2048, 2048) float32:"
    yield markdown_table(["op", "axis", *modules, OURS], shown(memory(modules)), 2)
    yield (
        "Weighted means ([xarray 3883](https://github.com/pydata/xarray/issues/3883)) of "
        "(1000, 1000, 10) float64, with weights of (1000, 1000): time, and memory as above."
    )
    yield table_of(weighted(args), ("NaN", "over"))


def speed(args: argparse.Namespace) -> Iterator[str]:
    """Yield how fast each library is."""
    modules = installed(_LIBRARIES)
    labels, goals = ("op", "dtype", "NaN", "axis"), {COPY: 0.0}
    for (size, threads), part in groupby(cases(args), lambda case: (case.size, case.threads)):
        yield f"### {size}, {threads} thread{'s' if threads > 1 else ''}"
        rows = (measured(one, modules, args) for one in part)
        yield table_of(rows, labels, unit="µs", alone=True, goals=goals)


# --- by groups ------------------------------------------------------------------------------------

_GOALS = {"numbagg": 2.0, "flox": 5.0, "pandas": 10.0}  # how many times as fast ours is meant
_TORCH_GOALS = {"torch": 1.5, "adding alone": 1.5}
_GROUPED = (
    ("1M, 12 groups", (1_000_000,), 12),
    ("1M, 10 000 groups", (1_000_000,), 10_000),
    ("(365, 180, 360), 12 months", (365, 180, 360), 12),
)


def grouped_calls(
    op: str, x: np.ndarray, labels: np.ndarray, groups: int, modules: dict[str, Any]
) -> dict[str, Call]:
    """Return each library's call; pandas has its frame, and everybody the labels already."""
    has_ddof = "correction" in fa.ops[op].entry_points["call"].defaults
    ddof = {"ddof": 0} if has_ddof else {}
    calls: dict[str, Call] = {OURS: partial(fa.ops[op], x, 0, by=labels, groups=groups)}
    if "numbagg" in modules:
        function = getattr(modules["numbagg"].grouped, f"group_{op}")
        calls["numbagg"] = partial(function, x, labels, axis=0, num_labels=groups, **ddof)
    if "flox" in modules:  # by numpy_groupies
        given = {"func": op, "engine": "numpy", "expected_groups": np.arange(groups)}
        function = modules["flox"].groupby_reduce
        calls["flox"] = partial(function, np.moveaxis(x, 0, -1), labels, **given)
    if "pandas" in modules:
        frame = modules["pandas"].DataFrame(x.reshape(len(x), -1))
        frame, name = frame if x.ndim > 1 else frame[0], op.removeprefix("nan")
        calls["pandas"] = lambda: getattr(frame.groupby(labels), name)(**ddof)
    return calls


def check_alike(calls: dict[str, Call], ndim: int) -> None:
    """Hold that all give alike; flox has its groups last, and beside labels."""
    expected = np.asarray(calls[OURS](), np.float64)
    for name, call in calls.items():
        found = np.asarray(call()[0] if name == "flox" else call(), np.float64)
        found = found.T.reshape(expected.shape) if name == "pandas" and ndim > 1 else found
        np.testing.assert_allclose(found, expected, rtol=1e-3, err_msg=name)


def grouped(args: argparse.Namespace, modules: dict[str, Any]) -> Iterator[Timed]:
    """Yield a row for each case, op and dtype, on each number of threads."""
    for (label, shape, groups), dtype in product(_GROUPED, _DTYPES):
        x = np.random.default_rng(0).random(shape).astype(dtype)
        labels = np.random.default_rng(1).integers(0, groups, shape[0])
        labels = np.arange(shape[0]) * groups // shape[0] if len(shape) > 1 else labels
        for op in ("nansum", "nanmean", "nanvar"):
            calls = grouped_calls(op, x, labels, groups, modules)
            check_alike(calls, len(shape))
            for many in args.threads:
                told_threads(calls, many, calls.get("numbagg", calls[OURS]))
                yield compare(calls, args.seconds, many, label, op, dtype, str(many))


def scatter_adds(args: argparse.Namespace, torch: Any) -> Iterator[Timed]:
    """Yield rows of the gradient of an embedding: (100 000, 768) into 32 000 rows."""
    groups, shape = 32_000, (100_000, 768)
    labels = np.random.default_rng(1).integers(0, groups, shape[0])
    for dtype in _DTYPES:
        x = np.random.default_rng(0).random(shape).astype(dtype)
        out, theirs = (np.empty((groups, shape[1]), dtype) for _ in range(2))
        to, by, rows = (torch.from_numpy(a) for a in (theirs, labels, x))
        # A result has its groups last.
        calls: dict[str, Call] = {
            OURS: partial(fa.sum, x, 0, by=labels, groups=groups, out=out.T),
            "torch": lambda: to.zero_().index_add_(0, by, rows),  # noqa: B023
            "adding alone": lambda: to.index_add_(0, by, rows),  # noqa: B023
        }
        for name in (OURS, "torch"):
            calls[name]()
        np.testing.assert_allclose(out, theirs, rtol=1e-4)
        for many in args.threads:
            torch.set_num_threads(many)
            yield compare(calls, args.seconds, many, dtype, str(many))


def groups(args: argparse.Namespace) -> Iterator[str]:
    """Yield the tables of groups and of scatter-adds."""
    modules = installed([*_GOALS, "torch"])
    labels = "of", "op", "dtype", "threads"
    yield table_of(grouped(args, modules), labels, alone=True, goals=_GOALS)
    if "torch" in modules:
        yield (
            "A scatter-add, (100 000, 768) into 32 000 rows: `fa.sum(x, axis=0, by=…, out=…)`, "
            "torch's `out.zero_().index_add_(…)`, and its `index_add_` alone."
        )
        rows = scatter_adds(args, modules["torch"])
        yield table_of(rows, ("dtype", "threads"), alone=True, goals=_TORCH_GOALS)


# --- certified ------------------------------------------------------------------------------------

_MOST = 17.0  # digits that a float64 can have


def _merged(x: np.ndarray) -> tuple[float, float]:
    moments = fa.Moments.merge_many([fa.moments(part) for part in np.array_split(x, 3)])
    return moments.mean, moments.std(1)


def _ways() -> dict[str, Callable[[np.ndarray], tuple[float, float]]]:
    """Return the mean and the deviation (n - 1) by each library."""
    found: dict[str, Callable[[np.ndarray], tuple[float, float]]] = {
        OURS: lambda x: (fa.mean(x), fa.std(x, correction=1)),
        f"{OURS}, 3 parts merged": _merged,
    }
    for name, module in installed(("numpy", "bottleneck", "numbagg", "pandas")).items():
        if name == "pandas":
            found[name] = lambda x, pd=module: (pd.Series(x).mean(), pd.Series(x).std())
        else:
            found[name] = lambda x, of=module: (of.nanmean(x), of.nanstd(x, ddof=1))
    return found


def digits(found: float, exact: Fraction) -> str:
    """Return how many decimal digits agree: -log10 of the relative error."""
    error = abs((Fraction(float(found)) - exact) / exact)
    return f"{min(-math.log10(error), _MOST) if error else _MOST:.1f}"


def certified(_: argparse.Namespace) -> Iterator[str]:
    """Yield the digits of mean and deviation, by data set and library."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/statistics"))
    nist, ways = importlib.import_module("nist"), _ways()

    def of_stored(data: Any) -> tuple[Fraction, Fraction]:
        mean, variance = nist.exactly(data.x)
        return mean, Fraction(math.sqrt(variance))

    for title, right in (
        ("certified values", lambda data: (Fraction(data.mean), Fraction(data.std))),
        ("exact values of the data as float64 has them", of_stored),
    ):
        lines = []
        for name, data in nist.DATASETS.items():
            pairs = [zip(way(data.x), right(data), strict=True) for way in ways.values()]
            cells = [", ".join(digits(*pair) for pair in both) for both in pairs]
            lines.append([name, str(data.x.size), *cells])
        yield f"### Against the {title}"
        yield markdown_table(["data", "values", *ways], shown(lines), 1)


SECTIONS = {
    "given": Section("Statistics", "What each gives", given, (*_LIBRARIES, "xarray")),
    "speed": Section("Statistics", "How fast", speed, (*_LIBRARIES, "numba")),
    "groups": Section(
        "Statistics",
        "By groups",
        groups,
        ("numpy", *_GOALS, "numpy_groupies", "numba", "torch"),
    ),
    "certified": Section(
        "Certified means and deviations", "Digits", certified, (*_LIBRARIES, "pandas")
    ),
}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main("statistics", __doc__, SECTIONS, {"threads": (1, 2), "seconds": 0.7})
