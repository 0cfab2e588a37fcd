"""One picture of the benchmark of a few ops: the gain over each peer, and what memory allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..terminal import require
from .cpu_rows import Row
from .peers import COPY, PEERS

_COLOURS = dict(zip(PEERS, ("#4c78a8", "#b279a2", "#f58518", "#e45756", "#54a24b"), strict=True))
_GROUP = 0.84  # width of the bars of one size, at most
_WIDEST = 0.34  # width of one bar, at most


def size_label(size: int) -> str:
    """Sizes as people say them.

    >>> size_label(64), size_label(1024), size_label(50_000), size_label(16_000_000)
    ('64', '1024', '50 K', '16 M')
    """
    for unit, scale in (("M", 10**6), ("K", 10**3)):
        if size % scale == 0:
            return f"{size // scale} {unit}"
    return str(size)


def _label(row: Row) -> str:
    """What a group of bars is called: a size, or a shape and what is done along it."""
    return size_label(row.size) if row.what == f"{row.size:,}" else row.what.replace(", ", "\n", 1)


def heading(rows: Sequence[Row], cpu: str) -> str:
    """What the whole picture shows."""
    threads = f"{rows[0].threads} threads" if rows[0].threads > 1 else "1 thread"
    return f"Speed-up by fastact on {cpu}, {threads}"


def _panel(axes: Any, ticker: Any, rows: Sequence[Row]) -> None:
    """Bars of the speed-up over each peer, by size, each with the limit that copying sets."""
    peers = [peer for peer in PEERS if any(peer in row.ratios for row in rows)]
    width = min(_GROUP / max(len(peers), 1), _WIDEST)
    for number, peer in enumerate(peers):
        shift = (number - (len(peers) - 1) / 2) * width
        for place, row in enumerate(rows):
            if peer not in row.ratios:
                continue
            gain, limit = row.ratios[peer], row.ratios[peer] / row.ratios[COPY]
            middle = place + shift
            # From 1 upwards, or downwards where the peer wins: what is drawn is what is gained.
            axes.bar(middle, gain - 1, 0.9 * width, bottom=1, color=_COLOURS[peer])
            axes.hlines(limit, middle - 0.45 * width, middle + 0.45 * width, "black", linewidth=2)
            covered = gain < limit < 1.4 * gain  # the mark would strike the number through
            axes.annotate(
                f"{gain:.0f}×" if gain >= 9.95 else f"{gain:.1f}×",
                (middle, limit if covered else max(gain, 1.0)),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=10.5,
                fontweight="bold",
            )
    axes.axhline(1.0, color="0.3", linewidth=1)
    axes.set_yscale("log")
    labels = [_label(row) for row in rows]
    shapes = any("\n" in label for label in labels)
    axes.set_xticks(range(len(rows)), labels, rotation=60 if shapes else 0)
    axes.set_xlim(-0.6, len(rows) - 0.4)
    axes.set_xlabel("shape" if shapes else "elements in the array", fontsize=12)
    axes.set_title(f"{rows[0].op}, {rows[0].direction}, {rows[0].dtype}", fontsize=13)
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}×")
    axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.tick_params(labelsize=11)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def plot(rows: Sequence[Row], cpu: str, file: Path) -> list[Path]:
    """Draw the rows of a benchmark: one panel for each op, direction and dtype.

    Parameters
    ----------
    rows : sequence of Row
        What `fastact.bench.cpu.bench` returned.
    cpu : str
        Name of the processor, for the title.
    file : Path
        Where to write the picture; the suffix chooses the format.

    Returns
    -------
    list of Path
        The picture.
    """
    pyplot = require("matplotlib.pyplot", "--plot")
    ticker = require("matplotlib.ticker", "--plot")
    panels: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        panels.setdefault((row.op, row.dtype, row.direction), []).append(row)
    across = len({direction for _, _, direction in panels})
    down = -(-len(panels) // across)
    # Wide enough for the numbers over the bars, however many there are.
    width = max(6.4, 0.9 * max(len(part) for part in panels.values()))
    figure, grid = pyplot.subplots(
        down,
        across,
        figsize=(width * across + 0.4, 4.4 * down + 1.4),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axes, part in zip(grid.flat, panels.values(), strict=False):
        _panel(axes, ticker, part)
    for axes in grid[:, 0]:
        axes.set_ylabel("how many times faster", fontsize=12)
    keys = [
        pyplot.Rectangle((0, 0), 1, 1, color=_COLOURS[peer], label=f"fastact over {peer}")
        for peer in PEERS
        if any(peer in row.ratios for row in rows)
    ]
    keys.append(
        pyplot.Line2D([], [], color="black", linewidth=2, label="limit: time of a plain copy")
    )
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), fontsize=12)
    figure.suptitle(heading(rows, cpu), fontsize=15, fontweight="bold")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
    return [file]
