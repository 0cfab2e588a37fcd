"""The benchmark of many ops as one map: a row each, a number and a colour for every case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ._bench import Row
from ._op import ops
from ._plot import heading, size_label
from ._report import times
from ._terminal import require
from ._workloads import PEERS

_CELL = (0.62, 0.26)  # inches
_MOST = 16.0  # times faster or slower from which on the colour stays the same
_NAMES = {"numpy": "NumPy", "jax": "JAX"}


@dataclass(frozen=True)
class _Map:
    """Lines with names, and groups of columns with names; a cell is a ratio or nothing."""

    lines: list[str]
    groups: list[tuple[str, list[str]]]
    cells: list[list[float | None]]


def _is_flat(row: Row) -> bool:
    """An op without axes: its cases are sizes."""
    return str(ops[row.op].family) == "activations"


def _map(
    rows: Sequence[Row], line: Callable[[Row], str], column: Callable[[Row], str]
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


def _maps(rows: Sequence[Row]) -> list[tuple[str, _Map]]:
    """Activations by size; the other families by shape, a dtype each."""
    found = []
    for dtype in dict.fromkeys(row.dtype for row in rows):
        of = [row for row in rows if row.dtype == dtype]
        flat = [row for row in of if _is_flat(row)]
        shaped = [row for row in of if not _is_flat(row)]
        for title, part, line, column in (
            ("activations, by number of elements", flat, _op, lambda r: size_label(r.size)),
            ("by shape and axis", shaped, lambda r: f"{r.op}   {r.what}", lambda _: ""),
        ):
            if part and (one := _map(part, line, column)) is not None:
                found.append((f"{title}, {dtype}", one))
    return found


def _op(row: Row) -> str:
    return row.op


def _draw(axes: Any, colours: Any, title: str, one: _Map) -> None:
    """Cells with their numbers; a gap between groups."""
    at, left = [], 0.0
    for name, columns in one.groups:
        middle = left + (len(columns) - 1) / 2
        axes.text(middle, -1.55, name.replace(" over ", "\nover "), ha="center", fontsize=10)
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
    axes.set_ylim(len(one.lines) - 0.4, -3.4)
    axes.set_yticks(range(len(one.lines)), one.lines, fontsize=9.5)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=12, fontweight="bold", loc="left")
    # A line between ops, where an op has several.
    names = [line.partition("   ")[0] for line in one.lines]
    begin = 0
    for _, same in groupby(names):
        if begin and len(set(names)) < len(names):
            axes.axhline(begin - 0.5, color="0.7", linewidth=0.8)
        begin += len(list(same))


def _rectangle(*args: Any, **kwargs: Any) -> Any:
    return require("matplotlib.patches", "--plot").Rectangle(*args, **kwargs)


def plot(rows: Sequence[Row], cpu: str, file: Path) -> None:
    """Draw the rows of many ops; as `fastact._plot.plot`, which is for a few."""
    pyplot = require("matplotlib.pyplot", "--plot")
    scale = require("matplotlib.colors", "--plot")
    norm = scale.LogNorm(1 / _MOST, _MOST, clip=True)
    colour_map = pyplot.get_cmap("RdBu")

    def colours(ratio: float) -> Any:
        return colour_map(norm(ratio))

    maps = _maps(rows)
    wide = max(sum(len(c) + 0.35 for _, c in one.groups) for _, one in maps)
    longest = max(len(line) for _, one in maps for line in one.lines)
    heights = [(len(one.lines) + 4.5) * _CELL[1] for _, one in maps]
    figure, grid = pyplot.subplots(
        *(len(maps), 1),
        figsize=(wide * _CELL[0] + 0.085 * longest + 0.6, sum(heights) + 1.0),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axes, (title, one) in zip(grid.flat, maps, strict=True):
        _draw(axes, colours, title, one)
    figure.suptitle(heading(rows, cpu), fontsize=13, fontweight="bold")
    figure.supxlabel("how many times faster fastact is; blue: faster, red: slower", fontsize=10)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)
