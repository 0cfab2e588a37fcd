"""Statistics by groups beside numbagg's, flox's and pandas', and scatter-adds beside torch's.

    pip install numbagg flox pandas torch
    python -m benchmarks.grouped_peers --markdown docs/results/statistics.md

It takes two minutes. What stands between the page's marks for groups is written anew. A peer that
is not installed is left out.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import fastact as fa
from benchmarks.files import write_whole
from fastact.bench.turns import take_turns
from fastact.measure.peers import OURS, versions
from fastact.terminal import markdown_table

from .cpu_rows import machine
from .statistics_peers import peers

BEGIN, END = "<!-- groups:begin -->", "<!-- groups:end -->"

_PEERS = {"numbagg": 2.0, "flox": 5.0, "pandas": 10.0}  # and how many times as fast ours is meant
_TORCH = 1.5
_SECONDS = 0.5  # of a row
_OPS = ("nansum", "nanmean", "nanvar")
_DTYPES = ("float32", "float64")
_THREADS = (1, 2)

Call = Callable[[], Any]


class Case(NamedTuple):
    """Arrays whose first axis is reduced; labels are in any order, or months."""

    label: str
    shape: tuple[int, ...]
    groups: int

    def labels(self) -> np.ndarray:
        """The group of each element along the first axis."""
        if len(self.shape) > 1:
            return np.arange(self.shape[0]) * self.groups // self.shape[0]
        return np.random.default_rng(1).integers(0, self.groups, self.shape[0])


CASES = (
    Case("1M, 12 groups", (1_000_000,), 12),
    Case("1M, 10 000 groups", (1_000_000,), 10_000),
    Case("(365, 180, 360), 12 months", (365, 180, 360), 12),
)


def calls_of(case: Case, op: str, x: np.ndarray, modules: dict[str, Any]) -> dict[str, Call]:
    """The same by each library; pandas has its frame, and everybody the labels already."""
    labels, groups = case.labels(), case.groups
    calls: dict[str, Call] = {OURS: partial(fa.ops[op], x, 0, by=labels, groups=groups)}
    if "numbagg" in modules:
        function = getattr(modules["numbagg"].grouped, f"group_{op}")
        calls["numbagg"] = partial(function, x, labels, axis=0, num_labels=groups, **_ddof(op))
    if "flox" in modules:
        calls["flox"] = partial(
            modules["flox"].groupby_reduce,
            np.moveaxis(x, 0, -1),
            labels,
            func=op,
            engine="numpy",  # numpy_groupies
            expected_groups=np.arange(groups),
        )
    if "pandas" in modules:
        frame = modules["pandas"].DataFrame(x.reshape(len(x), -1))
        frame = frame if x.ndim > 1 else frame[0]
        of = op.removeprefix("nan")
        calls["pandas"] = lambda: getattr(frame.groupby(labels), of)(**_ddof(op))
    return calls


def _ddof(op: str) -> dict[str, int]:
    return {"ddof": 0} if "correction" in fa.ops[op].entry_points["call"].defaults else {}


def agree(calls: dict[str, Call], like: tuple[int, ...]) -> None:
    """Whether all give the same; flox has its groups last, and beside labels."""
    expected = np.asarray(calls[OURS](), np.float64)
    for name, call in calls.items():
        found = call()[0] if name == "flox" else call()
        found = np.asarray(found, np.float64)
        if name == "pandas" and len(like) > 1:
            found = found.T.reshape(expected.shape)
        np.testing.assert_allclose(found, expected, rtol=1e-3, err_msg=name)


def measure(calls: dict[str, Call], threads: int) -> dict[str, float]:
    """Seconds of a call of each, medians of rounds."""
    with fa.num_threads(threads):
        return {name: median(found) for name, found in take_turns(calls, _SECONDS).items()}


def cells(seconds: dict[str, float], goals: dict[str, float]) -> list[str]:
    """Our time, and how many times as long each peer takes (bold: less than it is meant)."""
    ratios = {name: seconds[name] / seconds[OURS] for name in goals if name in seconds}
    marked = {k: f"{r:.2f}" if r >= goals[k] else f"**{r:.2f}**" for k, r in ratios.items()}
    return [f"{seconds[OURS] * 1e3:.3g}", *(marked.get(name, "–") for name in goals)]


def statistics(modules: dict[str, Any]) -> Iterator[list[str]]:
    """The rows of the table: of each case, op and dtype, on each number of threads."""
    for case, dtype in product(CASES, _DTYPES):
        x = np.random.default_rng(0).random(case.shape).astype(dtype)
        for op in _OPS:
            calls = calls_of(case, op, x, modules)
            agree(calls, case.shape)
            for threads in _THREADS:
                if "numbagg" in calls:
                    importlib.import_module("numba").set_num_threads(threads)
                found = cells(measure(calls, threads), _PEERS)
                yield [case.label, op, dtype, str(threads), *found]


def scatter_adds(torch: Any) -> Iterator[list[str]]:
    """Rows of the gradient of an embedding: (100 000, 768) into 32 000 rows that are there."""
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
        for threads in _THREADS:
            torch.set_num_threads(threads)
            yield [dtype, str(threads), *cells(measure(calls, threads), _goals(calls))]


def _goals(calls: dict[str, Call]) -> dict[str, float]:
    return {name: _TORCH for name in calls if name != OURS}


def tables() -> str:
    """What stands between the marks."""
    warnings.simplefilter("ignore")
    modules = peers([*_PEERS, "torch"])
    found = versions(["numpy", *_PEERS, "numpy_groupies", "numba", "torch"])
    facts = machine(found)
    parts = [
        f"{date.today()}, {facts['processor']}, {facts['threads']['limit']} cores, fastact "
        f"{facts['commit']} on {facts['isa']['chosen']}; "
        + ", ".join(f"{name} {version}" for name, version in found.items())
        + "."
    ]
    header = ["of", "op", "dtype", "threads", "ms", *(f"× {name}" for name in _PEERS)]
    parts.append(markdown_table(header, _shown(statistics(modules)), 3))
    if "torch" in modules:
        header = ["dtype", "threads", "ms", "× torch", "× adding alone"]
        parts += [
            "A scatter-add, (100 000, 768) into 32 000 rows: `fa.sum(x, axis=0, by=…, out=…)`, "
            "torch's `out.zero_().index_add_(…)`, and its `index_add_` alone.",
            markdown_table(header, _shown(scatter_adds(modules["torch"])), 1),
        ]
    return "\n\n".join(parts)


def _shown(lines: Iterator[list[str]]) -> Sequence[list[str]]:
    shown = []
    for line in lines:
        print(*line, sep="  ", flush=True)
        shown.append(line)
    return shown


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="write the tables into this page")
    args = parser.parse_args()
    body = tables()
    if args.markdown:
        text = args.markdown.read_text(encoding="utf-8")
        above, _, rest = text.partition(BEGIN)
        below = rest.partition(END)[2]
        write_whole(args.markdown, f"{above}{BEGIN}\n\n{body}\n\n{END}{below}")


if __name__ == "__main__":
    main()
