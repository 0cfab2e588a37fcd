"""The benchmark of many ops as maps: a row each, a number and a colour for every case.

One picture a family: all in one would be too high to read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fastact.bench.plot import on, size_label
from fastact.bench.turns import CpuRow
from fastact.measure.peers import PEERS
from fastact.ops.engine.op import ops
from fastact.terminal import require

from .report import times

_CELL = (0.62, 0.26)  # inches
_ABOVE = 3.0  # cells for what stands above the first line
_LETTER = 0.085  # inches that one letter of a label takes, about
_MOST = 16.0  # times faster or slower from which on the colour stays the same
_NARROWEST = 6.4  # inches that the title takes
_LONGEST = 36  # lines of a column; more stand side by side
_NAMES = {"numpy": "NumPy", "jax": "JAX"}


@dataclass(frozen=True)
class _Map:
    """Lines with names, and groups of columns with names; a cell is a ratio or nothing."""

    lines: list[str]
    groups: list[tuple[str, list[str]]]
    cells: list[list[float | None]]


def _op(row: CpuRow) -> str:
    return row.op


def _map(
    rows: Sequence[CpuRow], line: Callable[[CpuRow], str], column: Callable[[CpuRow], str]
) -> _Map | None:
    """The map of rows, their columns grouped by direction and peer."""
    found = {(line(r), r.direction, column(r)): r.ratios for r in rows}
    lines = list(dict.fromkeys(map(line, rows)))
    directions = dict.fromkeys(row.direction for row in rows)
    groups, keys = [], []
    for peer in reversed(PEERS):  # the strongest first
        for direction in directions:
            names = [
                name
                for name in dict.fromkeys(map(column, rows))
                if any(peer in found.get((of, direction, name), {}) for of in lines)
            ]
            if names:
                groups.append((f"{direction} over {_NAMES.get(peer, peer)}", names))
                keys += [(direction, name, peer) for name in names]
    if not keys:
        return None
    cells = [[found.get((of, d, name), {}).get(peer) for d, name, peer in keys] for of in lines]
    return _Map(lines, groups, cells)


def _map_of_family(rows: Sequence[CpuRow]) -> _Map | None:
    """Activations have no axes: their cases are sizes, and stand in columns."""
    if ops[rows[0].op].family == "activations":
        return _map(rows, _op, lambda row: size_label(row.size))
    return _map(rows, lambda row: f"{row.op}   {row.what}", lambda _: "")


def _beside(one: _Map) -> list[_Map]:
    """The map cut between ops, into parts of about one height, none much above _LONGEST lines."""
    parts = -(-len(one.lines) // _LONGEST)
    cut: list[list[int]] = [[] for _ in range(parts)]
    at = 0
    for _, same in groupby(range(len(one.lines)), lambda i: one.lines[i].partition("   ")[0]):
        block = list(same)
        # Into the part in which the middle of the op lies.
        cut[(2 * at + len(block)) * parts // (2 * len(one.lines))] += block
        at += len(block)
    return [
        _Map([one.lines[i] for i in part], one.groups, [one.cells[i] for i in part])
        for part in cut
        if part
    ]


def _draw(axes: Any, colours: Any, one: _Map) -> None:
    """Cells with their numbers; a gap between groups."""
    at, left = [], 0.0
    for name, columns in one.groups:
        middle = left + (len(columns) - 1) / 2
        above = -1.4 if any(columns) else -0.75
        axes.text(middle, above, name.replace(" over ", "\nover "), ha="center", fontsize=10)
        for column in columns:
            axes.text(left, -0.65, column, ha="center", fontsize=8.5, color="0.35")
            at.append(left)
            left += 1
        left += 0.35
    for y, cells in enumerate(one.cells):
        for x, ratio in zip(at, cells, strict=True):
            if ratio is None:
                continue
            shade = colours(ratio)
            axes.add_patch(_rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=shade))
            dark = sum(shade[:3]) < 1.5
            text = times(ratio).replace(" ", "")
            axes.text(
                *(x, y, text),
                **{"ha": "center", "va": "center", "fontsize": 8.5},
                color="white" if dark else "black",
            )
    axes.set_xlim(-0.6, left - 0.8)
    axes.set_yticks(range(len(one.lines)), one.lines, fontsize=9.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    # A line between ops, where an op has several.
    names = [line.partition("   ")[0] for line in one.lines]
    begin = 0
    for _, same in groupby(names):
        if begin and len(set(names)) < len(names):
            axes.axhline(begin - 0.5, color="0.7", linewidth=0.8)
        begin += len(list(same))


def _rectangle(*args: Any, **kwargs: Any) -> Any:
    return require("matplotlib.patches", "--plot").Rectangle(*args, **kwargs)


def _picture(title: str, parts: Sequence[_Map], file: Path) -> None:
    """One picture: the parts of a map side by side, and what the colours mean."""
    pyplot = require("matplotlib.pyplot", "--plot")
    norm = require("matplotlib.colors", "--plot").LogNorm(1 / _MOST, _MOST, clip=True)
    colours = require("matplotlib.cm", "--plot").ScalarMappable(norm, "RdBu")
    # A column of two lines of text above it is wide enough for them, too.
    wide = _CELL[0] * sum(max(len(c), 1.7) + 0.35 for _, c in parts[0].groups)
    longest = max(len(line) for one in parts for line in one.lines)
    high = _CELL[1] * (max(len(one.lines) for one in parts) + _ABOVE)
    figure, grid = pyplot.subplots(
        *(1, len(parts)),
        figsize=(max(len(parts) * (wide + _LETTER * longest + 0.4), _NARROWEST), high + 1.6),
        squeeze=False,
        layout="constrained",
    )
    for axes, one in zip(grid.flat, parts, strict=True):
        _draw(axes, colours.to_rgba, one)
        axes.set_ylim(high / _CELL[1] - _ABOVE - 0.4, -_ABOVE)  # lines of one height in all parts
    ticks = [1 / _MOST, 1 / 4, 1, 4, _MOST]
    key = figure.colorbar(
        colours,
        ax=grid,
        location="bottom",
        ticks=ticks,
        fraction=0.35 / high,
        aspect=40,
        pad=0.01,
        shrink=0.8,
    )
    key.ax.minorticks_off()
    key.ax.set_xticklabels([f"≤ 1/{_MOST:g}×", "1/4×", "1×", "4×", f"≥ {_MOST:g}×"], fontsize=9)
    key.set_label("time of the other library over fastact's", fontsize=10)
    figure.suptitle(title, fontsize=12, fontweight="bold")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def plot(rows: Sequence[CpuRow], cpu: str, file: Path) -> list[Path]:
    """Draw the rows of many ops: one picture for each family, and each dtype if there are several.

    Parameters
    ----------
    rows, cpu
        As `fastact.bench.plot.plot` takes them.
    file : Path
        The pictures are named after it: plot.png makes plot_norms.png, plot_gates.png …

    Returns
    -------
    list of Path
        The pictures.
    """
    parts: dict[tuple[str, str], list[CpuRow]] = {}
    for row in rows:
        parts.setdefault((ops[row.op].family, row.dtype), []).append(row)
    several = len({dtype for _, dtype in parts}) > 1
    written = []
    for (family, dtype), part in parts.items():
        if (one := _map_of_family(part)) is None:
            continue  # no peer took part
        name = f"{file.stem}_{family}" + (f"_{dtype}" if several else "") + file.suffix
        written.append(file.with_name(name))
        by = ", by number of elements" if family == "activations" else ", by shape"
        title = f"Speed-up by fastact on {on(rows, cpu)}\n{family}{by}, {dtype}"
        _picture(title, _beside(one), written[-1])
    return written
