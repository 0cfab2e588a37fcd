"""Draw the stored history of the benchmarks as pictures, without a server and without the net.

    python asv_bench/plot_history.py [REGEX] [--output DIRECTORY]

The script reads what `asv run` stored and writes one PNG for each benchmark and op, in a directory
for each machine and environment: commits from left to right in the order of their dates, a panel
for each dtype and direction, a line for each size. Bands are the quartiles, where asv has them.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import iter_results
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter

from fastact.measure import pictures

HERE = Path(__file__).resolve().parent
# Sizes have an order, so they are steps of one hue, light to dark, and get a marker each for those
# who print. A lighter step than the first would be lost on white.
HUES, MARKERS = ("#86b6ef", "#3987e5", "#1c5cab", "#0d366b"), ("o", "s", "^", "D")
# A figure has one value of the first parameter, a column one of the second, a row one of the third.
FIGURE, COLUMN, ROW = "op", "dtype", "direction"
DECADES_FOR_LOG, FEW_COMMITS, MOST_TICKS = 1.5, 3, 12


class Point(NamedTuple):
    """One measurement: commit and date, the parameters by name, the value and its quartiles."""

    commit: str
    date: int
    parameters: dict[str, str]
    value: float
    low: float
    high: float


def plain(parameter: str) -> str:
    """Return a parameter as people write it; asv stores its `repr`, in which text has quotes."""
    try:
        return str(ast.literal_eval(parameter))
    except (ValueError, SyntaxError):
        return parameter


def points(result: Any, name: str, benchmark: Any) -> Iterator[Point]:
    """Yield what one commit's results have of a benchmark."""
    values = result.get_result_value(name, benchmark["params"])
    stats = result.get_result_stats(name, benchmark["params"])
    every = zip(itertools.product(*benchmark["params"]), values, stats, strict=True)
    for combination, value, stat in every:
        if value is not None and not math.isnan(value):
            named = dict(zip(benchmark["param_names"], map(plain, combination), strict=True))
            low, high = ((stat or {}).get(q) or math.nan for q in ("q_25", "q_75"))
            yield Point(result.commit_hash, result.date, named, value, low, high)


def load(config: Config, pattern: str) -> dict[tuple[str, str, str, str], list[Point]]:
    """Return the points by machine and environment, benchmark, unit and op."""
    benchmarks = Benchmarks.load(config)
    found: dict[tuple[str, str, str, str], list[Point]] = defaultdict(list)
    for result in iter_results(config.results_dir):
        place = f"{result.params['machine']}-{result.env_name}"
        # Only results of the benchmark as it is now: an edited one measured something else.
        for name in filter(re.compile(pattern).search, result.get_result_keys(benchmarks)):
            for point in points(result, name, benchmarks[name]):
                key = place, name, benchmarks[name]["unit"], point.parameters.get(FIGURE, "")
                found[key].append(point)
    return found


def ordered(values: Iterable[str]) -> list[str]:
    """Return distinct values: numbers by size, the rest in the order of the benchmark."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct, key=float) if all(v.isdecimal() for v in distinct) else distinct


def label(value: str) -> str:
    """Return a number with its thousands apart."""
    return f"{int(value):,}".replace(",", "\u2009") if value.isdecimal() else value


def scale(axes: Axes, unit: str, values: Sequence[float]) -> None:
    """Make the axis logarithmic where values lie decades apart, else let it start at zero."""
    if min(values) > 0 and math.log10(max(values) / min(values)) > DECADES_FOR_LOG:
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        axes.set_ylim(0, 1.15 * max(values) or 1)
    of_unit = EngFormatter(unit[0].replace("b", "B")) if unit in ("seconds", "bytes") else "{x:g}"
    axes.yaxis.set_major_formatter(of_unit)


def label_commits(axes: Axes, dates: dict[str, int]) -> None:
    """Write the short hash and date of commits: upright and thinned out where they are many."""
    few, commits = len(dates) <= FEW_COMMITS, list(dates)
    places = range(0, len(commits), -(-len(commits) // MOST_TICKS))
    days = {c: f"{datetime.fromtimestamp(dates[c] / 1e3, UTC):%Y-%m-%d}" for c in commits}
    names = [("\n" if few else "  ").join((commits[p][:7], days[commits[p]])) for p in places]
    axes.set_xticks(list(places), names, rotation=0 if few else 90)
    axes.set_xlim(-0.5, len(commits) - 0.5)


def draw(title: str, unit: str, found: Sequence[Point], path: Path) -> None:
    """Draw one picture."""
    dates = {p.commit: p.date for p in sorted(found, key=lambda point: point.date)}
    known = found[0].parameters
    across, down = (COLUMN, ROW) if COLUMN in known else (ROW, COLUMN)
    others = [name for name in known if name not in (FIGURE, across, down)]
    lines: dict[tuple[str, str, str], list[Point]] = defaultdict(list)
    for point in found:
        given = point.parameters
        kind = ", ".join(given[name] for name in others)
        lines[given.get(down, ""), given.get(across, ""), kind].append(point)
    rows, columns, kinds = (ordered(values) for values in zip(*lines, strict=True))
    figure, grid = pictures.figure_of(
        nrows=len(rows),
        ncols=len(columns),
        figsize=(1.8 + 3.0 * len(columns), 1.4 + 2.4 * len(rows)),
        sharex=True,
        sharey=True,
    )
    handles: dict[str, Any] = {}
    for (row, column, kind), part in lines.items():
        at, axes = kinds.index(kind), grid[rows.index(row), columns.index(column)]
        colour = HUES[at * max(1, len(HUES) // len(kinds)) % len(HUES)]
        part.sort(key=lambda point: point.date)
        places = [list(dates).index(point.commit) for point in part]
        # Later lines are wider and lie below, so that lines that coincide all show.
        (handles[kind],) = axes.plot(
            places,
            [point.value for point in part],
            color=colour,
            marker=MARKERS[at % len(MARKERS)],
            linewidth=1.6 + 0.9 * at,
            zorder=3 + len(kinds) - at,
        )
        low, high = [point.low for point in part], [point.high for point in part]
        axes.fill_between(places, low, high, color=colour, alpha=0.18, linewidth=0)
    for (i, row), (j, column) in itertools.product(enumerate(rows), enumerate(columns)):
        grid[i, j].set_title(" · ".join(filter(None, (column, row))), fontsize=10)
        label_commits(grid[i, j], dates)
        pictures.plain(grid[i, j])
    scale(grid[0, 0], unit, [point.value for point in found])
    for axes in grid[:, 0]:
        axes.set_ylabel(unit)
    if len(kinds) > 1:
        names = [label(kind) for kind in kinds]
        keys = [handles[kind] for kind in kinds]
        figure.legend(keys, names, title=", ".join(others), loc="outside right upper")
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.save(figure, title, path)


def main() -> None:
    """Draw what is stored; say what was written."""
    parser = argparse.ArgumentParser(description="Draw the stored benchmark history as PNG.")
    parser.add_argument("regex", nargs="?", default="", help="only benchmarks whose name matches")
    parser.add_argument("--output", type=Path, default=HERE / "history", metavar="DIRECTORY")
    parser.add_argument("--results", type=Path, metavar="DIRECTORY", help="else asv.conf's")
    arguments = parser.parse_args()
    config = Config.load(str(HERE / "asv.conf.json"))
    config.results_dir = str(arguments.results or HERE / config.results_dir)
    if not (Path(config.results_dir) / "benchmarks.json").exists():
        raise SystemExit("plot_history: nothing is stored yet; asv_bench/README.md says how to run")
    matplotlib.use("Agg")
    matplotlib.rcParams["font.size"] = 9
    for (place, name, unit, op), found in sorted(load(config, arguments.regex).items()):
        path = arguments.output / place / f"{'-'.join(filter(None, (name, op)))}.png"
        draw(" · ".join(filter(None, (op, name))), unit, found, path)
        print(path)


if __name__ == "__main__":
    main()
