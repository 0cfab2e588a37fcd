"""The parts that pictures of benchmarks and of accuracy checks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..terminal import require
from .peers import PEERS

#: The colours of other libraries.
COLOURS = dict(zip(PEERS, ("#4c78a8", "#b279a2", "#72b7b2", "#e45756", "#9d755d"), strict=True))


def figure_of(**layout: Any) -> tuple[Any, Any]:
    pyplot = require("matplotlib.pyplot", "--plot")
    figure, grid = pyplot.subplots(squeeze=False, layout="constrained", **layout)
    return figure, grid


def save(figure: Any, title: str, file: Path) -> Path:
    """Write a figure; the file's suffix chooses the format."""
    figure.suptitle(title, fontsize=13, fontweight="bold")
    figure.savefig(file, dpi=110)
    require("matplotlib.pyplot", "--plot").close(figure)
    return file


def plain(axes: Any) -> None:
    """Draw a grid behind the marks, and no frame."""
    axes.grid(color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
