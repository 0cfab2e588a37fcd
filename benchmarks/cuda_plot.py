"""The GPU benchmark under its roof: bytes a second beside a copy's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastact.measure.peers import COPY
from fastact.ops.engine.op import ops
from fastact.terminal import require

from .results import GpuResults, GpuRow

#: What lies along the axis of a family's panels.
_ALONG = {
    "activations": "elements of the array",
    "bias": "elements that share a bias",
    "gates": "elements of a state",
    "norms": "elements that share a mean and a variance",
    "reductions": "elements of one sum",
}
_MARKERS = "osD^v<>PX*"
_PANEL = (6.2, 4.2)  # inches
_LEGEND_LINES = 14  # more stand in two columns


def _series(axes: Any, colours: Any, number: int, rows: Sequence[GpuRow]) -> None:
    """The points of one name, joined where nearly each has a place of its own along the axis."""
    at = sorted((row.span, row.rate / 1e9) for row in rows)
    alone = len({span for span, _ in at}) > 0.8 * len(at)
    axes.plot(
        *zip(*at, strict=True),
        color=colours(number % 20),
        marker=_MARKERS[number % len(_MARKERS)],
        markersize=5,
        linewidth=1,
        linestyle="-" if alone else "none",
        label=rows[0].series,
    )


def _panel(axes: Any, colours: Any, family: str, rows: Sequence[GpuRow]) -> None:
    """One family and direction: a line for each name, and the roof."""
    names = list(dict.fromkeys(row.series for row in rows))
    for number, name in enumerate(names):
        _series(axes, colours, number, [row for row in rows if row.series == name])
    # Each case has its own copy of as many bytes; the roof is the best of them.
    copies = [(row.span, row.bytes / row.seconds[COPY] / 1e9) for row in rows]
    axes.plot(*zip(*copies, strict=True), "_", color="black", markersize=9, label="its copy")
    axes.axhline(max(rate for _, rate in copies), color="black", linewidth=2, label="best copy")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{family}, {rows[0].direction}", fontsize=12)
    axes.set_xlabel(_ALONG.get(family, "elements"), fontsize=10)
    axes.set_ylabel("GB/s", fontsize=10)
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
        ncols=1 + (len(names) + 2 > _LEGEND_LINES),
        fontsize=8,
        frameon=False,
    )


def _picture(title: str, rows: Sequence[GpuRow], file: Path) -> None:
    """One dtype: a panel for each family and direction."""
    pyplot = require("matplotlib.pyplot", "--plot")
    colours = pyplot.get_cmap("tab20")
    panels: dict[tuple[str, str], list[GpuRow]] = {}
    for row in rows:
        panels.setdefault((ops[row.op].family, row.direction), []).append(row)
    families = list(dict.fromkeys(family for family, _ in panels))
    directions = list(dict.fromkeys(direction for _, direction in panels))
    figure, grid = pyplot.subplots(
        len(families),
        len(directions),
        figsize=(1.55 * _PANEL[0] * len(directions), _PANEL[1] * len(families) + 0.6),
        squeeze=False,
        layout="constrained",
    )
    # The layout falls some pixels short of the widest legend.
    figure.get_layout_engine().set(rect=(0, 0, 0.99, 1))
    for line, family in zip(grid, families, strict=True):
        for axes, direction in zip(line, directions, strict=True):
            if (family, direction) in panels:
                _panel(axes, colours, family, panels[family, direction])
            else:
                axes.set_axis_off()
    figure.suptitle(title, fontsize=15, fontweight="bold")
    figure.savefig(file, dpi=90)
    pyplot.close(figure)


def plot(results: GpuResults, file: Path) -> list[Path]:
    """Draw bytes a second over how many elements belong together, for every op.

    Parameters
    ----------
    results : GpuResults
        What `cuda.bench` or `cuda_rows.read` returned.
    file : Path
        Where to write the picture; of several dtypes plot.png makes plot_float32.png and so on.

    Returns
    -------
    list of Path
        The pictures.
    """
    driver = results.facts["driver"] or "unknown"
    dtypes = list(dict.fromkeys(row.dtype for row in results.rows))
    written = []
    for dtype in dtypes:
        part = [row for row in results.rows if row.dtype == dtype]
        several = len(dtypes) > 1
        written.append(file.with_stem(f"{file.stem}_{dtype}") if several else file)
        title = f"Bytes a second on {results.facts['gpu']}, driver {driver}, {dtype}"
        _picture(title, part, written[-1])
    return written
