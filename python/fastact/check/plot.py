"""Pictures of the accuracy check: errors beside their bounds, peers in the same legend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..measure.pictures import COLOURS, figure_of, plain, save
from ..terminal import require
from . import activations
from .activations import Curve
from .common import Check, Options

_OURS = ("#f58518", "#54a24b", "#72b7b2")  # an instruction set each
_LEAST = 0.01  # what is less, 0 among it, is drawn there
_COLUMNS = {2: 4, 4: 16, 6: 1000}  # of panels, for so many of them at most
_LINE = 0.2  # inches


def _over_x(curves: Sequence[Curve], file: Path) -> Path:
    """Return the worst error in each interval of x, a panel for each activation and direction."""
    across = next(columns for columns, most in _COLUMNS.items() if len(curves) <= most)
    down = -(-len(curves) // across)
    wide, high = (5.5, 3.6) if across == 2 else (3.2, 2.4)
    figure, grid = figure_of(
        nrows=down,
        ncols=across,
        figsize=(wide * across, high * down + 1.0),
        sharex=True,
        sharey=True,
    )
    names, ours = dict.fromkeys(name for curve in curves for name in curve.errors), iter(_OURS)
    colours = {name: COLOURS.get(name) or next(ours) for name in names}
    handles = {}
    for axes, curve in zip(grid.flat, curves, strict=False):
        for name, errors in curve.errors.items():
            drawn = [max(error, _LEAST) for error in errors]
            peer = name in COLOURS  # behind ours
            (handles[name],) = axes.step(
                *(curve.edges[1:], drawn),
                color=colours[name],
                linewidth=1.2,
                alpha=0.7 if peer else 1,
                zorder=2 if peer else 3,
                label=name,
            )
        handles["bound"] = axes.axhline(
            max(curve.bound, _LEAST), color="black", linestyle="--", linewidth=1, label="bound"
        )
        axes.set_xscale("symlog", linthresh=1e-3, linscale=0.2)
        axes.set_xticks([-100, -1, -0.01, 0.01, 1, 100], ["−100", "−1", "−.01", ".01", "1", "100"])
        axes.minorticks_off()
        axes.set_yscale("log")
        axes.set_ylim(0.8 * _LEAST, 1e4)
        axes.set_title(f"{curve.name}, {curve.direction}", fontsize=12 if across == 2 else 9)
        plain(axes)
    for axes in grid.flat[len(curves) :]:
        axes.set_axis_off()
    for axes in grid[:, 0]:
        axes.set_ylabel("ULP")
    for axes in grid.flat[max(len(curves) - across, 0) : len(curves)]:  # the last one of a column
        axes.tick_params(labelbottom=True)
        axes.set_xlabel("x")
    figure.legend(handles=[*handles.values()], loc="outside lower center", ncols=len(handles))
    title = "Worst error over x in float32, where the absolute bound does not cover it"
    return save(figure, title, file)


def _shares(check: Check, row: Sequence[str]) -> Iterator[float]:
    """Each error of a row divided by its bound; errors whose bound is 0 are skipped."""
    for column, cell in zip(check.header[check.left :], row[check.left :], strict=False):
        allowed = check.allowed.get(column, 1.0)
        if cell and allowed > 0:
            yield float(cell) / allowed


def _of_bounds(check: Check, rows: Sequence[Sequence[str]], file: Path) -> Path:
    """How much of its bound each case uses: a line for each op and dtype, a mark for each error."""
    lines: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        by = lines.setdefault(f"{row[0]}, {row[check.header.index('dtype')]}", {})
        by.setdefault(row[check.left - 1], []).extend(_shares(check, row))
    figure, grid = figure_of(figsize=(8, _LINE * len(lines) + 1.8))
    axes = grid[0, 0]
    names = list(dict.fromkeys(who for by in lines.values() for who in by))
    colours = require("matplotlib.pyplot", "--plot").get_cmap("tab10")
    for number, who in enumerate(names):
        points = [(x, y) for y, by in enumerate(lines.values()) for x in by.get(who, [])]
        axes.plot(
            [max(x, _LEAST) for x, _ in points],
            [y for _, y in points],
            "o",
            color=colours(number % 10),
            markersize=4,
            label=who,
        )
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1, label="bound")
    axes.set_xscale("log")
    axes.set_xlim(left=0.8 * _LEAST)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_yticks(range(len(lines)), [*lines], fontsize=8)
    axes.set_xlabel("error over what is allowed")
    plain(axes)
    figure.legend(loc="outside lower center", ncols=min(len(names) + 1, 4))
    return save(figure, "How much of its bound each error uses", file)


def plot(
    ops: Sequence[Any],
    found: Sequence[tuple[Check, list[list[str]]]],
    options: Options,
    file: Path,
) -> list[Path]:
    """Draw what was checked: errors of activations over x, and of other ops case by case.

    found : checks, each with the rows of its table. file : where to write the picture; of several
    kinds of ops plot.png makes plot_norms.png and so on.
    """
    several = len(found) > 1
    written = []
    for check, rows in found:
        of = [op for op in ops if check.knows(op)]
        target = file.with_stem(f"{file.stem}_{of[0].family}") if several else file
        if target in written:  # a family may have checks of several kinds
            target = file.with_stem(f"{file.stem}_{of[0].name}")
        if check is activations.CHECK:
            curves = [
                curve
                for op in of
                for curve in activations.curves(op, options.isas[-1:], options.peers)
            ]
            written.append(_over_x(curves, target))
        else:
            written.append(_of_bounds(check, rows, target))
    return written
