"""Draw the stored history of the benchmarks as pictures, without a server and without the net.

    python asv_bench/plot_history.py [REGEX] [--output DIRECTORY] [--results DIRECTORY]

The script writes one PNG for each benchmark and op, in a directory for each machine and
environment: commits from left to right in the order of their dates, a panel for each dtype and
direction, a line for each size.
"""

from __future__ import annotations

import argparse
import itertools
import math
import re
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib
from asv.benchmarks import Benchmarks
from asv.config import Config
from asv.results import iter_results

from fastact.measure import pictures

HERE = Path(__file__).resolve().parent
# Sizes have an order, so they are steps of one hue, light to dark, and get a marker each for those
# who print.
HUES, MARKERS = ("#86b6ef", "#3987e5", "#1c5cab", "#0d366b"), "os^D"
#: A panel's lines by name, each of values by date and commit.
Panels = dict[tuple[str, str], dict[str, dict[tuple[int, str], float]]]


def load(config: Config, pattern: str) -> dict[tuple[str, str, str, str], Panels]:
    """Return values by date and commit, of each line of each panel.

    A picture is of one machine and environment, benchmark, unit and op.
    """
    benchmarks = Benchmarks.load(config)
    found: Any = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for result in iter_results(config.results_dir):
        place, commit = f"{result.params['machine']}-{result.env_name}", result.commit_hash[:7]
        # An edited benchmark measured something else: asv knows results of today's.
        for name in filter(re.compile(pattern).search, result.get_result_keys(benchmarks)):
            of = benchmarks[name]
            values = result.get_result_value(name, of["params"])
            for words, value in zip(itertools.product(*of["params"]), values, strict=True):
                # asv keeps the `repr` of a parameter, in which text has quotes.
                given = dict(zip(of["param_names"], (w.strip("'") for w in words), strict=True))
                op, panel = (
                    given.pop("op", ""),
                    (given.pop("direction", ""), given.pop("dtype", "")),
                )
                if value is not None and not math.isnan(value):
                    line = found[place, name, of["unit"], op][panel][", ".join(given.values())]
                    line[result.date, commit] = value
    return dict(found)


def draw(title: str, unit: str, panels: Panels, path: Path) -> None:
    """Draw one picture."""
    every = [line for lines in panels.values() for line in lines.values()]
    commits = sorted({at for line in every for at in line})
    scale = "log" if all(value > 0 for line in every for value in line.values()) else "linear"
    rows, columns = (list(dict.fromkeys(names)) for names in zip(*panels, strict=True))
    size = (1.8 + 3.0 * len(columns), 1.6 + 2.4 * len(rows))
    layout = {"nrows": len(rows), "ncols": len(columns), "figsize": size}
    figure, grid = pictures.figure_of(**layout, sharex=True, sharey=True)
    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    handles: dict[str, Any] = {}
    for (row, column), lines in panels.items():
        axes = grid[rows.index(row), columns.index(column)]
        for name, line in lines.items():
            number = names.index(name)
            at, values = zip(*sorted(line.items()), strict=True)
            hue, marker = HUES[number % len(HUES)], MARKERS[number % len(MARKERS)]
            places = [commits.index(one) for one in at]
            (drawn,) = axes.plot(places, values, color=hue, marker=marker)
            handles[name] = drawn
            # Later lines are wider and lie below, so that lines that coincide all show.
            drawn.set(linewidth=1.6 + 0.9 * number, zorder=9 - number)
        days = (f"{commit}  {datetime.fromtimestamp(d / 1e3, UTC):%F}" for d, commit in commits)
        axes.set_xticks(range(len(commits)), days, rotation=90)
        axes.set_yscale(scale)
        axes.set_title(" · ".join(filter(None, (column, row))), fontsize=10)
        axes.set_ylabel(unit)
        axes.label_outer()
        pictures.plain(axes)
    figure.legend([handles[name] for name in names], names, loc="outside right upper")
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
    for (place, name, unit, op), panels in sorted(load(config, arguments.regex).items()):
        path = arguments.output / place / f"{'-'.join(filter(None, (name, op)))}.png"
        draw(" · ".join(filter(None, (op, name))), unit, panels, path)
        print(path)


if __name__ == "__main__":
    main()
