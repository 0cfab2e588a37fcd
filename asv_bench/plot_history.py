"""Draw the stored history of the benchmarks as pictures, without a server and without the net.

    python asv_bench/plot_history.py [REGEX] [--output DIRECTORY]

Reads what `asv run` stored and writes one PNG for each benchmark and op, in a directory for each
machine and environment: commits from left to right in the order of their dates, a panel for each
dtype and direction, a line for each size. Bands are the quartiles, where asv has them.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import iter_results
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter

HERE = Path(__file__).resolve().parent

# Sizes have an order, so they are steps of one hue, light to dark, and get a marker each for those
# who print. A lighter step than the first would be lost on white.
HUES = ("#86b6ef", "#3987e5", "#1c5cab", "#0d366b")
MARKERS = ("o", "s", "^", "D")
INK, MUTED, GRID = "#0b0b0b", "#52514e", "#e5e4e0"
# Where a parameter goes; what is not named here distinguishes lines.
FIGURE, COLUMN, ROW = "op", "dtype", "direction"
DECADES_FOR_LOG = 1.5
FEW_COMMITS = 3
MOST_TICKS = 12


@dataclass
class Line:
    """One combination of parameters over the commits; NaN where it was not measured."""

    values: dict[str, float] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)


@dataclass
class History:
    """Everything stored about one benchmark on one machine and environment."""

    unit: str
    names: list[str]
    commits: dict[str, int] = field(default_factory=dict)  # hash: date in milliseconds
    lines: dict[tuple[str, ...], Line] = field(default_factory=lambda: defaultdict(Line))


def plain(parameter: str) -> str:
    """A parameter as people write it; asv stores its `repr`, in which strings have quotes."""
    try:
        return str(ast.literal_eval(parameter))
    except (ValueError, SyntaxError):
        return parameter


def load(config: Config, pattern: str) -> dict[tuple[str, str], History]:
    """Histories by (machine and environment, benchmark)."""
    benchmarks = Benchmarks.load(config)
    histories: dict[tuple[str, str], History] = {}
    for result in iter_results(config.results_dir):
        place = f"{result.params['machine']}-{result.env_name}"
        # Only results of the benchmark as it is now: an edited one measured something else.
        for name in result.get_result_keys(benchmarks):
            if not re.search(pattern, name):
                continue
            benchmark = benchmarks[name]
            parameters = benchmark["params"]
            history = histories.setdefault(
                (place, name), History(benchmark["unit"], benchmark["param_names"])
            )
            history.commits[result.commit_hash] = result.date
            measured = zip(
                itertools.product(*parameters),
                result.get_result_value(name, parameters),
                result.get_result_stats(name, parameters),
                strict=True,
            )
            for combination, value, stats in measured:
                if value is None or math.isnan(value):
                    continue
                line = history.lines[tuple(map(plain, combination))]
                line.values[result.commit_hash] = value
                if stats and stats.get("q_25") is not None and stats.get("q_75") is not None:
                    line.quartiles[result.commit_hash] = (stats["q_25"], stats["q_75"])
    return histories


def figures(history: History) -> Iterator[tuple[str, dict[tuple[str, ...], Line]]]:
    """The lines of a history, one group for each op (or all of them, where there is no op)."""
    groups: dict[str, dict[tuple[str, ...], Line]] = defaultdict(dict)
    for combination, line in history.lines.items():
        groups[dict(zip(history.names, combination, strict=True)).get(FIGURE, "")][combination] = (
            line
        )
    yield from groups.items()


def ordered(values: Iterable[str]) -> list[str]:
    """Distinct values: numbers by size, the rest in the order of the benchmark."""
    distinct = list(dict.fromkeys(values))
    return sorted(distinct, key=float) if all(v.isdecimal() for v in distinct) else distinct


def label(value: str) -> str:
    """A number with its thousands apart."""
    return f"{int(value):,}".replace(",", "\u2009") if value.isdecimal() else value


def draw_line(axes: Axes, line: Line, commits: list[str], style: Mapping[str, Any]) -> None:
    """One line, with its quartiles as a band."""
    gap = (math.nan, math.nan)
    places = range(len(commits))
    axes.plot(places, [line.values.get(c, math.nan) for c in commits], **style)
    low, high = zip(*(line.quartiles.get(c, gap) for c in commits), strict=True)
    axes.fill_between(places, low, high, color=style["color"], alpha=0.18, linewidth=0)


def scale(axes: Axes, history: History, values: list[float]) -> None:
    """A logarithmic axis where values lie decades apart, otherwise one that starts at zero."""
    if min(values) > 0 and math.log10(max(values) / min(values)) > DECADES_FOR_LOG:
        axes.set_yscale("log")
        axes.minorticks_off()
    else:
        axes.set_ylim(0, 1.15 * max(values) or 1)
    if history.unit in ("seconds", "bytes"):
        axes.yaxis.set_major_formatter(EngFormatter(history.unit[0].replace("b", "B")))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def label_commits(axes: Axes, history: History, commits: list[str]) -> None:
    """Short hash and date of the commits: upright and thinned out where they are many."""
    few = len(commits) <= FEW_COMMITS
    places = range(0, len(commits), -(-len(commits) // MOST_TICKS))
    dates = [datetime.fromtimestamp(history.commits[commits[p]] / 1e3, UTC) for p in places]
    separator = "\n" if few else "  "
    axes.set_xticks(
        list(places),
        [f"{commits[p][:7]}{separator}{d:%Y-%m-%d}" for p, d in zip(places, dates, strict=True)],
        rotation=0 if few else 90,
    )
    axes.set_xlim(-0.5, len(commits) - 0.5)


def style_of(index: int, count: int) -> dict[str, Any]:
    """Look of one of `count` lines of a panel.

    Later lines are wider and lie below, so that lines that coincide all show.
    """
    step = max(1, len(HUES) // count)
    return {
        "color": HUES[(len(HUES) - 1 - (count - 1 - index) * step) % len(HUES)],
        "linewidth": 1.6 + 0.9 * index,
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 5 + 1.5 * index,
        "markeredgecolor": "white",
        "zorder": 3 + count - index,
    }


def draw(title: str, history: History, lines: dict[tuple[str, ...], Line], path: Path) -> None:
    """One picture."""
    named = {c: dict(zip(history.names, c, strict=True)) for c in lines}
    across, down = COLUMN, ROW
    if COLUMN not in history.names:  # panels side by side rather than above each other
        across, down = down, across
    others = [name for name in history.names if name not in (FIGURE, across, down)]
    columns = ordered(names.get(across, "") for names in named.values())
    rows = ordered(names.get(down, "") for names in named.values())
    kinds = ordered(", ".join(names[n] for n in others) for names in named.values())
    commits = sorted(history.commits, key=lambda commit: history.commits[commit])

    figure, grid = plt.subplots(
        len(rows),
        len(columns),
        figsize=(1.8 + 3.0 * len(columns), 1.4 + 2.4 * len(rows)),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for combination, line in lines.items():
        names = named[combination]
        axes = grid[rows.index(names.get(down, "")), columns.index(names.get(across, ""))]
        kind = ", ".join(names[n] for n in others)
        style = style_of(kinds.index(kind), len(kinds))
        draw_line(axes, line, commits, {**style, "label": label(kind)})
    for (row, row_name), (column, column_name) in itertools.product(
        enumerate(rows), enumerate(columns)
    ):
        grid[row, column].set_title(" · ".join(filter(None, (column_name, row_name))), color=MUTED)
        label_commits(grid[row, column], history, commits)
    scale(grid[0, 0], history, [v for line in lines.values() for v in line.values.values()])
    for axes in grid[:, 0]:
        axes.set_ylabel(history.unit)
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    if len(kinds) > 1:
        legends = [axes.get_legend_handles_labels() for axes in grid.flat]
        handles = {name: handle for pair in legends for handle, name in zip(*pair, strict=True)}
        shown = [label(kind) for kind in kinds if label(kind) in handles]
        figure.legend(
            [handles[name] for name in shown],
            shown,
            title=", ".join(others),
            loc="outside right upper",
            frameon=False,
            alignment="left",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)


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
    mpl.use("Agg")
    mpl.rcParams.update(
        {
            "axes.edgecolor": MUTED,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.labelcolor": MUTED,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlesize": 10,
            "font.size": 9,
            "grid.color": GRID,
            "legend.title_fontsize": 9,
            "text.color": INK,
            "xtick.color": MUTED,
            "ytick.color": MUTED,
        }
    )
    for (place, name), history in sorted(load(config, arguments.regex).items()):
        for op, lines in figures(history):
            parts = [name, op] if op else [name]
            path = arguments.output / place / ("-".join(parts) + ".png")
            draw(f"{op} · {name}".removeprefix(" · "), history, lines, path)
            print(path)


if __name__ == "__main__":
    main()
