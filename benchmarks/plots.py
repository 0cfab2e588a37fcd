"""Pictures of what was measured: maps of many ops, bytes a second on a GPU, and README's picture.

python -m benchmarks.plots docs/results/MACHINE/bench.json     # docs/results/speed.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastact.bench.plot import on, plot, size_label
from fastact.bench.turns import Row
from fastact.measure.peers import COPY, JAX, NUMPY, ONNX, PEERS, TORCH
from fastact.measure.pictures import figure_of, plain, save
from fastact.ops.engine.op import ops
from fastact.terminal import require

from .report import times
from .results import GpuRow, Results, read

PANELS = 4  # rows of them in a picture; more ops are drawn as a map
_NAMES = {TORCH: "PyTorch", NUMPY: "NumPy", ONNX: "ONNX Runtime", JAX: "JAX"}


def _parts(rows: Sequence[Any], key: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Rows by a key, in the order in which the keys come."""
    found: dict[Any, list[Any]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


# --- many ops on a CPU: a map for each family -----------------------------------------------------

_CELL = (0.72, 0.26)  # inches
_LETTER = 0.085  # inches that one letter of a label takes, about
_MOST = 16.0  # times faster or slower from which on the colour stays the same
_NARROWEST = 6.4  # inches that the title takes
_ABOVE = 3  # lines of a column's head


class Map(NamedTuple):
    """Lines and columns with names; a cell is a ratio or nothing."""

    lines: list[str]
    columns: list[str]
    cells: list[list[float | None]]


def _map_of_family(rows: Sequence[Row]) -> Map | None:
    """The map of rows, the strongest peer first; None where no peer took part.

    Activations have no axes: their cases are sizes, and stand in columns.
    """
    sized = ops[rows[0].op].family == "activations"

    def place(row: Row) -> tuple[str, str, str]:
        if sized:
            return row.op, row.direction, size_label(row.size)
        return f"{row.op}   {row.what}", row.direction, ""

    found = {place(row): row.ratios for row in rows}
    keys = [
        (peer, direction, name)
        for peer in reversed(PEERS)
        for direction, name in dict.fromkeys((d, n) for _, d, n in found)
        if any(peer in ratios for (_, d, n), ratios in found.items() if (d, n) == (direction, name))
    ]
    lines = list(dict.fromkeys(line for line, _, _ in found))
    cells = [[found.get((line, d, n), {}).get(peer) for peer, d, n in keys] for line in lines]
    heads = [f"{_NAMES.get(peer, peer)}\n{d}\n{n}" for peer, d, n in keys]
    return Map(lines, heads, cells) if keys else None


def _op_of(line: str) -> str:
    return line.partition("   ")[0]


def _draw_map(axes: Any, norm: Any, one: Map) -> Any:
    """Draw cells with their numbers, and a line between ops of several lines."""
    numbers = [[float("nan") if cell is None else cell for cell in line] for line in one.cells]
    image = axes.imshow(numbers, norm=norm, cmap="RdBu", aspect="auto")
    for y, line in enumerate(one.cells):
        for x, ratio in enumerate(line):
            if ratio is not None:
                dark = sum(image.cmap(norm(ratio))[:3]) < 1.5
                middle = {"ha": "center", "va": "center", "color": "white" if dark else "black"}
                axes.text(x, y, times(ratio).replace(" ", ""), fontsize=8.5, **middle)
    names = [_op_of(line) for line in one.lines]
    for y, (name, before) in enumerate(zip(names[1:], names, strict=False)):
        if name != before and len(set(names)) < len(names):
            axes.axhline(y + 0.5, color="0.7", linewidth=0.8)
    axes.set_yticks(range(len(one.lines)), one.lines, fontsize=9.5)
    axes.xaxis.tick_top()
    axes.set_xticks(range(len(one.columns)), one.columns, fontsize=7)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _picture_of_map(title: str, one: Map, file: Path) -> Path:
    norm = require("matplotlib.colors", "--plot").LogNorm(1 / _MOST, _MOST, clip=True)
    wide = _CELL[0] * len(one.columns) + _LETTER * max(map(len, one.lines)) + 0.4
    high = _CELL[1] * (len(one.lines) + _ABOVE)
    figure, grid = figure_of(figsize=(max(wide, _NARROWEST), high + 1.6))
    image = _draw_map(grid[0, 0], norm, one)
    ticks = {1 / _MOST: f"≤ 1/{_MOST:g}×", 1 / 4: "1/4×", 1: "1×", 4: "4×", _MOST: f"≥ {_MOST:g}×"}
    shape = {"location": "bottom", "fraction": 0.35 / high, "aspect": 40, "pad": 0.01}
    key = figure.colorbar(image, ax=grid, ticks=[*ticks], shrink=0.8, **shape)
    key.ax.minorticks_off()
    key.ax.set_xticklabels(ticks.values(), fontsize=9)
    key.set_label("time of the other library over fastact's", fontsize=10)
    return save(figure, title, file)


def plot_maps(rows: Sequence[Row], cpu: str, file: Path) -> list[Path]:
    """Draw the rows of many ops: one picture for each family, and each dtype if there are several.

    file : the pictures are named after it: plot.png makes plot_norms.png, plot_gates.png …
    """
    several = len({row.dtype for row in rows}) > 1
    written = []
    for (family, dtype), part in _parts(rows, lambda r: (ops[r.op].family, r.dtype)).items():
        if (one := _map_of_family(part)) is None:
            continue
        name = f"{file.stem}_{family}" + (f"_{dtype}" if several else "") + file.suffix
        by = ", by number of elements" if family == "activations" else ", by shape"
        title = f"Speed-up by fastact on {on(rows, cpu)}\n{family}{by}, {dtype}"
        written.append(_picture_of_map(title, one, file.with_name(name)))
    return written


# --- a GPU: bytes a second below a copy's ---------------------------------------------------------

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


def _roof(axes: Any, colours: Any, family: str, rows: Sequence[GpuRow]) -> None:
    """Draw one family and direction: a line for each name, and the roof."""
    series = _parts(rows, lambda row: row.series)
    for number, (name, part) in enumerate(series.items()):
        at = sorted((row.span, row.rate / 1e9) for row in part)
        # Points are joined where nearly each has a place of its own along the axis.
        alone = len({span for span, _ in at}) > 0.8 * len(at)
        style = {"marker": _MARKERS[number % len(_MARKERS)], "linestyle": "-" if alone else "none"}
        colour = colours(number % 20)
        axes.plot(
            *zip(*at, strict=True), color=colour, markersize=5, linewidth=1, label=name, **style
        )
    # Each case has its own copy of as many bytes; the roof is the best of them.
    copies = [(row.span, row.bytes / row.seconds[COPY] / 1e9) for row in rows]
    axes.plot(*zip(*copies, strict=True), "_", color="black", markersize=9, label="its copy")
    axes.axhline(max(rate for _, rate in copies), color="black", linewidth=2, label="best copy")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_title(f"{family}, {rows[0].direction}", fontsize=12)
    axes.set_xlabel(_ALONG.get(family, "elements"), fontsize=10)
    axes.set_ylabel("GB/s", fontsize=10)
    plain(axes)
    columns = 1 + (len(series) + 2 > _LEGEND_LINES)
    where = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "ncols": columns}
    axes.legend(fontsize=8, frameon=False, **where)


def plot_roofs(results: Results, file: Path) -> list[Path]:
    """Draw bytes a second over how many elements belong together, for every op.

    file : the picture; of several dtypes plot.png makes plot_float32.png and so on.
    """
    pyplot = require("matplotlib.pyplot", "--plot")
    by_dtype, written = _parts(results.rows, lambda row: row.dtype), []
    for dtype, rows in by_dtype.items():
        panels = _parts(rows, lambda row: (ops[row.op].family, row.direction))
        families, directions = (list(dict.fromkeys(names)) for names in zip(*panels, strict=True))
        figure, grid = figure_of(
            nrows=len(families),
            ncols=len(directions),
            figsize=(1.55 * _PANEL[0] * len(directions), _PANEL[1] * len(families) + 0.6),
        )
        # The layout falls some pixels short of the widest legend.
        figure.get_layout_engine().set(rect=(0, 0, 0.99, 1))
        for line, family in zip(grid, families, strict=True):
            for axes, direction in zip(line, directions, strict=True):
                if (family, direction) in panels:
                    colours = pyplot.get_cmap("tab20")
                    _roof(axes, colours, family, panels[family, direction])
                else:
                    axes.set_axis_off()
        driver = results.facts["driver"] or "unknown"
        title = f"Bytes a second on {results.facts['gpu']}, driver {driver}, {dtype}"
        several = len(by_dtype) > 1
        of_dtype = file.with_stem(f"{file.stem}_{dtype}") if several else file
        written.append(save(figure, title, of_dtype))
    return written


def draw(results: Results, file: Path) -> list[Path]:
    """Draw results of either board and return the pictures."""
    if "gpu" in results.facts:
        return plot_roofs(results, file)
    many = len({(row.op, row.dtype) for row in results.rows}) > PANELS
    return (plot_maps if many else plot)(results.rows, results.facts["processor"], file)


# --- README: how many times faster ----------------------------------------------------------------

_PICTURE = Path(__file__).parents[1] / "docs/results/speed.svg"
_COLOURS = {TORCH: "#b279a2", NUMPY: "#4c78a8", ONNX: "#f58518", JAX: "#54a24b"}
# A case of each family as networks have it, large enough for arithmetic and memory to count.
_CASES = {
    "mish": "1,000,000",
    "gelu": "1,000,000",
    "bias_act": "4,096 × 768, axis -1, relu",
    "swiglu": "3,906 × 4,096",
    "layer_norm": "8,192 × 4,096, identity",
    "rms_norm": "8,192 × 4,096, identity",
    "batch_norm": "32 × 64 × 56 × 56, channels 1, identity",
    "softmax": "8,192 × 4,096",
    "lstm_gates": "256 × 1,024",
    "mean_var": "8,192 × 4,096, axis 0",
}


def draw_speed(results: Results) -> Any:
    """Draw a line for each op and direction, in float32 on most threads, a dot for each peer."""
    most = max(row.threads for row in results.rows)
    rows = [
        row
        for op, what in _CASES.items()
        for row in results.rows
        if (row.op, row.what, row.dtype, row.threads) == (op, what, "float32", most)
    ]
    settings = require("matplotlib", "--plot").rcParams
    settings["svg.fonttype"] = "none"
    settings["svg.hashsalt"] = "fastact"  # the same file for the same rows
    size = {"figsize": (8.4, 0.24 * len(rows) + 1.5), "layout": "constrained"}
    figure = require("matplotlib.figure", "--plot").Figure(**size)
    axes = figure.subplots()
    for peer, colour in _COLOURS.items():
        points = [(row.ratios[peer], y) for y, row in enumerate(rows) if peer in row.ratios]
        if points:
            style = {"color": colour, "markersize": 6, "label": _NAMES[peer]}
            axes.plot(*zip(*points, strict=True), "o", **style)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["½×", "1×", "2×", "5×", "10×", "20×", "50×"])
    axes.minorticks_off()
    axes.set_yticks(range(len(rows)), [f"{row.op} {row.direction}" for row in rows], fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=len(_COLOURS), frameon=False)
    where = f"{results.facts['processor']}, {most} threads, float32"
    figure.suptitle(f"How many times longer others take: {where}", fontsize=10)
    return figure


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(description="Draw docs/results/speed.svg, README's picture.")
    _parser.add_argument("measured", type=Path, help="what bench --json wrote")
    draw_speed(read(_parser.parse_args().measured)).savefig(_PICTURE, metadata={"Date": None})
