"""docs/results/speed.svg, the picture of README: how many times faster, from a bench.json.

    python -m benchmarks.readme_picture docs/results/MACHINE/bench.json

A line for each op and direction, a dot for each peer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from fastact.bench.turns import CpuRow
from fastact.measure.peers import JAX, NUMPY, ONNX, TORCH

from .results import CpuResults, read

PICTURE = Path(__file__).parents[1] / "docs/results/speed.svg"
_PEERS = {
    TORCH: ("PyTorch", "#b279a2"),
    NUMPY: ("NumPy", "#4c78a8"),
    ONNX: ("ONNX Runtime", "#f58518"),
    JAX: ("JAX", "#54a24b"),
}
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


def chosen(results: CpuResults) -> list[CpuRow]:
    """Of each case both directions, in float32 on the most threads."""
    most = max(row.threads for row in results.rows)
    return [
        row
        for op, what in _CASES.items()
        for row in results.sorted()
        if (row.op, row.what, row.dtype, row.threads) == (op, what, "float32", most)
    ]


def draw(rows: list[CpuRow], processor: str) -> Figure:
    """The picture."""
    matplotlib.rcParams["svg.fonttype"] = "none"
    matplotlib.rcParams["svg.hashsalt"] = "fastact"  # the same file for the same rows
    figure = Figure(figsize=(8.4, 0.24 * len(rows) + 1.5), layout="constrained")
    axes = figure.subplots()
    for peer, (name, colour) in _PEERS.items():
        points = [(row.ratios[peer], y) for y, row in enumerate(rows) if peer in row.ratios]
        if points:
            axes.plot(*zip(*points, strict=True), "o", color=colour, markersize=6, label=name)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xscale("log")
    axes.set_xticks([0.5, 1, 2, 5, 10, 20, 50], ["½×", "1×", "2×", "5×", "10×", "20×", "50×"])
    axes.minorticks_off()
    labels = [f"{row.op} {row.direction}" for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=9)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside lower center", ncols=len(_PEERS), frameon=False)
    title = f"How many times longer others take: {processor}, {rows[0].threads} threads, float32"
    figure.suptitle(title, fontsize=10)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("measured", type=Path, help="what bench --json wrote")
    results = read(parser.parse_args().measured)
    figure = draw(chosen(results), str(results.facts["processor"]))
    figure.savefig(PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    main()
