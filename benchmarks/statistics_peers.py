"""Means and variances beside NumPy's, bottleneck's and numbagg's: how fast, and how right.

    pip install bottleneck numbagg
    python -m benchmarks.statistics_peers --markdown docs/results/statistics.md

What others reported of means and variances is computed by each library, beside the exact value of
long doubles, and then each is timed, which takes some minutes. What stands between the page's marks
is written anew. A peer that is not installed is left out. numbagg compiles before it is timed.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import fastact as fa
from benchmarks.files import write_whole
from fastact import _cpu
from fastact.bench.turns import take_turns
from fastact.measure.peers import COPY, OURS
from fastact.terminal import markdown_table

_PEERS = ("numpy", "bottleneck", "numbagg")
_SECONDS = 0.7  # of a row
BEGIN, END = "<!-- tables:begin -->", "<!-- tables:end -->"

_SMALL = 1000  # elements: a copy of them tells nothing


def peers(names: Sequence[str] = _PEERS) -> dict[str, Any]:
    """Those of them that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            print(f"{name} is left out: it is not installed", file=sys.stderr)
    return found


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


def reported(modules: dict[str, Any]) -> str:
    """A table of what each library gives: of columns the first one's."""
    lines = []
    for case in _REPORTED:
        x = case.data(np.random.default_rng(462))
        given = {"exact": exact(case.op, x, case.axis)}
        for name, module in modules.items():
            op = case.op.removeprefix("nan") if name == "numpy" else case.op
            given[name] = getattr(module, op)(x, axis=case.axis)
        given[OURS] = fa.ops[case.op](x, case.axis)
        repository, _, number = case.where.partition("/issues/")
        link = f"[{repository.partition('/')[2]} {number}](https://github.com/{case.where})"
        values = {name: float(np.ravel(value)[0]) for name, value in given.items()}
        lines.append([link, case.what, *(f"{value:.8g}" for value in values.values())])
        print(*lines[-1], flush=True)
    return markdown_table(["reported", "of", "exact", *modules, OURS], lines, 2)


def memory(modules: dict[str, Any]) -> str:
    """A table of what each allocates beside x, as a share of it."""
    lines = []
    for op, axis in product(("nanmean", "nanvar"), (0, 1)):
        x = np.ones((2048, 2048), np.float32)
        calls: dict[str, Callable[[], Any]] = {
            name: partial(getattr(module, op), x, axis=axis) for name, module in modules.items()
        }
        calls[OURS] = partial(fa.ops[op], x, axis)
        lines.append([op, str(axis), *(f"{_peak(call) / x.nbytes:.2f}" for call in calls.values())])
    return markdown_table(["op", "axis", *modules, OURS], lines, 2)


def _peak(call: Callable[[], Any]) -> int:
    call()
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def weighted() -> str:
    """A table of xarray's weighted mean and ours, in the shapes of pydata/xarray#3883."""
    try:
        xr: Any = importlib.import_module("xarray")
        fx: Any = importlib.import_module("fastact.xarray")
    except ImportError:
        return "xarray is not installed."
    rng = np.random.default_rng(3883)
    weights = xr.DataArray(rng.random((1000, 1000)), dims=["a", "b"])
    lines = []
    for gaps in (0.0, 0.25):
        data = rng.normal(size=(1000, 1000, 10))
        data[rng.random(data.shape) < gaps] = np.nan
        x = xr.DataArray(data, dims=["a", "b", "c"])
        for dims in (None, "a", ("a", "b")):
            calls: dict[str, Callable[[], Any]] = {
                OURS: lambda dims=dims, x=x: fx.weighted(x, weights).mean(dims),
                "xarray": lambda dims=dims, x=x: x.weighted(weights).mean(dims),
            }
            seconds = {name: median(found) for name, found in take_turns(calls, _SECONDS).items()}
            xr.testing.assert_allclose(*(call() for call in calls.values()))
            cells = [
                f"{seconds[name] * 1e3:.1f} ms, {_peak(calls[name]) / data.nbytes:.2f}"
                for name in ("xarray", OURS)
            ]
            lines.append([f"{gaps:.0%}", str(dims or "all"), *cells])
    return markdown_table(["NaN", "over", "xarray", OURS], lines, 2)


# --- how fast -------------------------------------------------------------------------------------

Axes = int | tuple[int, ...]


class Case(NamedTuple):
    """A row of a table: the arguments of calls."""

    threads: int
    size: str
    op: str
    dtype: str
    gaps: float
    label: str
    shape: tuple[int, ...]
    axis: Axes


def cases(threads: Sequence[int], megabytes: Sequence[int]) -> Iterator[Case]:
    """Those of the tables."""
    kinds = [*product(("nanmean", "nanvar"), (0.0, 0.1)), ("mean", 0.0), ("var", 0.0)]
    sizes = [*megabytes, 0]
    for many, size, (op, gaps), dtype in product(threads, sizes, kinds, ("float32", "float64")):
        row = partial(Case, many, f"{size} MB" if size else f"{_SMALL} elements", op, dtype, gaps)
        side = int((size * 2**20 / np.dtype(dtype).itemsize) ** 0.5)
        if not size:
            yield row("all", (_SMALL,), 0)
            continue
        yield row("first", (side, side), 0)
        yield row("last", (side, side), 1)
        yield row("middle", (64, side * side // 64 // 256, 256), 1)
    order = partial(Case, max(threads), "the order of axes", "nanmean", "float64", 0.0)
    for axes in ((0, 1, 2), (2, 1, 0)):
        yield order(str(axes), (1000, 200, 10, 3), axes)


def measure(case: Case, modules: dict[str, Any]) -> dict[str, float]:
    """Seconds of a call of each, medians of rounds."""
    x = np.random.default_rng(0).normal(size=case.shape).astype(case.dtype)
    x[np.random.default_rng(1).random(case.shape) < case.gaps] = np.nan
    calls: dict[str, Callable[[], Any]] = {OURS: partial(fa.ops[case.op], x, case.axis)}
    for name, module in modules.items():
        if hasattr(module, case.op):
            calls[name] = partial(getattr(module, case.op), x, axis=case.axis)
            if name == "bottleneck" and isinstance(case.axis, tuple):
                del calls[name]  # which takes one axis
    calls[COPY] = partial(_cpu.copy, np.empty_like(x), x)
    if "numbagg" in calls:
        calls["numbagg"]()  # starts its threads, and compiles
        importlib.import_module("numba").set_num_threads(case.threads)
        calls["numbagg"]()
    with fa.num_threads(case.threads):
        samples = take_turns(calls, _SECONDS)
    return {name: median(found) for name, found in samples.items()}


def _cells(case: Case, seconds: dict[str, float]) -> list[str]:
    """Our time, how many times as long each peer takes (bold: it is faster), and a copy's share."""
    ours = seconds[OURS]
    ratios = {name: seconds[name] / ours for name in _PEERS if name in seconds}
    marked = {name: f"{r:.2f}" if r >= 1 else f"**{r:.2f}**" for name, r in ratios.items()}
    share = "–" if np.prod(case.shape) == _SMALL else f"{ours / seconds[COPY]:.2f}"
    return [f"{ours * 1e6:.4g}", *(marked.get(name, "–") for name in _PEERS), share]


def times(rows: Sequence[tuple[Case, dict[str, float]]]) -> str:
    """Tables: one for each number of threads and size."""
    parts = []
    titles = dict.fromkeys((case.threads, case.size) for case, _ in rows)
    for threads, size in titles:
        lines = [
            [case.op, case.dtype, f"{case.gaps:.0%}", case.label, *_cells(case, seconds)]
            for case, seconds in rows
            if (case.threads, case.size) == (threads, size)
        ]
        header = [
            "op",
            "dtype",
            "NaN",
            "axis",
            "µs",
            *(f"× {name}" for name in _PEERS),
            "of a copy",
        ]
        plural = "s" if threads > 1 else ""
        parts += [f"### {size}, {threads} thread{plural}", markdown_table(header, lines, 4)]
    return "\n\n".join(parts)


# --- the page -------------------------------------------------------------------------------------


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--megabytes", default="16,64", help="sizes of arrays")
    parser.add_argument("--markdown", type=Path, help="write the tables into this page")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    threads, sizes = (list(map(int, text.split(","))) for text in (args.threads, args.megabytes))
    modules = peers()
    rows = []
    for case in cases(threads, sizes):
        rows.append((case, measure(case, modules)))
        print(*case[:6], *_cells(*rows[-1]), flush=True)
    if args.markdown:
        parts = [
            "## What each gives",
            reported(modules),
            "Memory beside x, as a share of it, of (2048, 2048) float32:",
            memory(modules),
            "Weighted means ([xarray 3883](https://github.com/pydata/xarray/issues/3883)) of "
            "(1000, 1000, 10) float64, with weights of (1000, 1000): time, and memory as above.",
            weighted(),
            "## How fast",
            times(rows),
        ]
        text = args.markdown.read_text(encoding="utf-8")
        above, _, rest = text.partition(BEGIN)
        below = rest.partition(END)[2]
        body = "\n\n".join(parts)
        write_whole(args.markdown, f"{above}{BEGIN}\n\n{body}\n\n{END}{below}")


if __name__ == "__main__":
    main()
