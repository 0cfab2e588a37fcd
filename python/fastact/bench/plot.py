"""One picture of the benchmark of a few ops: everybody's speed beside the speed of memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..measure.peers import COPY, OURS
from ..measure.pictures import COLOURS, figure_of, plain, save
from ..terminal import require
from .turns import Row

_COLOURS = {OURS: "#f58518", **COLOURS}
_MARKERS = dict(zip(_COLOURS, "os^vD*", strict=True))


def size_label(size: int) -> str:
    """Sizes as people say them.

    >>> size_label(64), size_label(1024), size_label(50_000), size_label(16_000_000)
    ('64', '1024', '50 K', '16 M')
    """
    for unit, scale in (("M", 10**6), ("K", 10**3)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return str(size)


def on(rows: Sequence[Row], cpu: str) -> str:
    """Return what a picture was measured on."""
    return f"{cpu}, {rows[0].threads} thread{'s' if rows[0].threads > 1 else ''}"


def _speeds(rows: Sequence[Row], who: str) -> list[tuple[int, float]]:
    """The places of the rows in which somebody took part, and the speed there: 1 is a copy's."""
    return [
        (place, row.ratios[COPY] / row.ratios[who])
        for place, row in enumerate(rows)
        if who in row.ratios
    ]


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    """Lines over the sizes of an array, or a line of marks for each shape."""
    ticker = require("matplotlib.ticker", "--plot")
    sized = all(row.what == f"{row.size:,}" for row in rows)
    for who, colour in _COLOURS.items():
        places = _speeds(rows, who)
        along, speeds = [place for place, _ in places], [speed for _, speed in places]
        axes.plot(
            *((along, speeds) if sized else (speeds, along)),
            color=colour,
            marker=_MARKERS[who],
            markersize=7 if who == OURS else 5,
            linestyle="-" if sized else "none",
            linewidth=2.5 if who == OURS else 1.2,
            zorder=3 if who == OURS else 2,
        )
    speed, place = (axes.yaxis, axes.xaxis) if sized else (axes.xaxis, axes.yaxis)
    (axes.axhline if sized else axes.axvline)(1.0, color="black", linestyle="--", linewidth=1.2)
    (axes.set_yscale if sized else axes.set_xscale)("log")
    speed.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    speed.set_major_formatter("{x:g}")
    speed.set_minor_locator(ticker.NullLocator())
    labels = [size_label(row.size) if sized else row.what for row in rows]
    place.set_ticks(range(len(rows)), labels, fontsize=9)
    if not sized:
        axes.set_ylim(len(rows) - 0.5, -0.5)
    place.set_label_text("elements" if sized else "")
    speed.set_label_text("speed, a copy's is 1")
    axes.set_title(f"{rows[0].op}, {rows[0].direction}, {rows[0].dtype}", fontsize=12)
    plain(axes)


def plot(rows: Sequence[Row], cpu: str, file: Path) -> list[Path]:
    """Draw the rows of a benchmark: one panel for each op, direction and dtype.

    cpu : the processor's name, for the title. file : the suffix chooses the format.
    """
    pyplot = require("matplotlib.pyplot", "--plot")
    panels: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.op, row.dtype, row.direction), []).append(row)
    across = len({direction for _, _, direction in panels})
    down = -(-len(panels) // across)
    longest = max(len(part) for part in panels.values())
    figure, grid = figure_of(
        nrows=down,
        ncols=across,
        figsize=(6.4 * across, (3.4 + 0.1 * longest) * down + 1.2),
    )
    for axes, part in zip(grid.flat, panels.values(), strict=False):
        _panel(axes, part)
    keys = [
        pyplot.Line2D([], [], color=colour, marker=_MARKERS[who], label=who)
        for who, colour in _COLOURS.items()
        if any(who in row.ratios for row in rows)
    ]
    keys.append(pyplot.Line2D([], [], color="black", linestyle="--", label="a copy of the bytes"))
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize=10)
    return [save(figure, f"Speed on {on(rows, cpu)}", file)]
