"""What the model predicts beside what an H200 measured: launches under ncu, a study's kernels."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cuda_static_model as model
from cuda_static_model import MULTIPROCESSORS, Prediction, Work, copy_seconds, predict

from fastact.terminal import markdown_table

GPU = Path(__file__).resolve().parents[1] / "docs/results/gpu"
PROFILE = GPU / "h200_profile.json"
STUDY = GPU / "h200_study.json"
WARP = 32
#: The share of the measured time by which a prediction may be off.
TOLERANCE = 0.15

_TOO_MANY = (
    "at the measured time its stated instructions would fill {share:.0%} of all issue slots; no "
    "profiled kernel fills more than 83 %, so that the count is an upper bound"
)
_ROWS_IN_REGISTERS = (
    "all loads of a row come before its first use, and instructions hide behind memory better than "
    "in the kernels that the overlap was fitted to; the prediction is too long"
)
_BULK = (
    "rows come by bulk copies, four ahead, so that a row's chain waits for nothing; the model "
    "knows loads one row ahead only"
)
#: Of the study: what the model misses by more, and why. Dtype, threads of a row, instructions.
UNEXPLAINED = {
    ("bfloat16", 16, 40): _TOO_MANY,
    ("bfloat16", 32, 33): _TOO_MANY,
    ("bfloat16", 128, 28): _ROWS_IN_REGISTERS,
    ("bfloat16", 512, 48): _BULK,
}


@dataclass(frozen=True)
class Compared:
    """A launch that was measured, in seconds, and its prediction; why they differ where they do."""

    title: str
    shape: str
    dtype: str
    layout: str
    work: Work
    measured: float
    predicted: Prediction
    why: str = ""

    @property
    def off(self) -> float:
        """The prediction's error as a share of what was measured."""
        return self.predicted.seconds / self.measured - 1

    @property
    def is_explained(self) -> bool:
        """Within the tolerance."""
        return abs(self.off) <= TOLERANCE

    def of_copy(self, seconds: float) -> float:
        """The share of a copy's speed that so many seconds are."""
        return copy_seconds(self.work.bytes) / seconds


def launches(path: Path = PROFILE) -> list[dict[str, Any]]:
    """The launches of a record."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["launches"]
    return found


def _shape(row: dict[str, Any]) -> str:
    return "×".join(map(str, row["shape"]))


def work_of_profile(row: dict[str, Any]) -> Work:
    """What a profiled launch did."""
    warps = row["threads"] // WARP
    return Work(
        bytes=row["bytes"],
        grid=row["grid"],
        warps=warps,
        resident=row["resident"],
        instructions=row["instructions"] / row["grid"] / warps,
        rounds=row["rounds"],
        near=row["near"],
        shuffles=row["shuffles"],
    )


def work_of_study(row: dict[str, Any]) -> Work:
    """What a kernel of the study does: one row a team, or persistent blocks with loads ahead."""
    count, length = row["shape"]
    item = 4 if row["dtype"] == "float32" else 2
    warps = row["threads_a_row"] * row["rows_a_block"] // WARP
    steps = row["folds"] * math.log2(row["threads_a_row"])
    moved = count * length * item * row["arrays"]
    all_of = count * length * row["instructions"] / WARP
    if row["kernel"].endswith("backward"):
        grid = float(MULTIPROCESSORS * row["resident"])
        rows = count / grid
        return Work(
            *(moved, grid, warps, row["resident"], all_of / grid / warps),
            rounds=0,
            shuffles=rows * steps,
            prefetched=rows,
        )
    grid = count / row["rows_a_block"]
    return Work(
        *(moved, grid, warps, row["resident"], all_of / grid / warps),
        rounds=1,
        near=1,
        shuffles=steps,
    )


def profile() -> Iterator[Compared]:
    """The launches under ncu."""
    for row in launches():
        work = work_of_profile(row)
        made = predict(work, row["clock_ghz"] * 1e9)
        title = f"{row['kernel']}, {row['op']} {row['direction']}"
        layout = f"{row['grid']} × {row['threads']}"
        yield Compared(title, _shape(row), row["dtype"], layout, work, row["us"] * 1e-6, made)


def study() -> Iterator[Compared]:
    """The kernels of the study."""
    for row in launches(STUDY):
        work = work_of_study(row)
        seconds = row["us"] * 1e-6
        made = predict(work)
        layout = f"{row['threads_a_row']} threads a row, {row['instructions']} instructions"
        one = Compared(row["kernel"], _shape(row), row["dtype"], layout, work, seconds, made)
        why = UNEXPLAINED.get((row["dtype"], row["threads_a_row"], row["instructions"]), "")
        if why and not one.is_explained:
            one = replace(one, why=why.format(share=made.issue / seconds))
        yield one


_PAGE = """\
# CUDA kernels: predicted beside measured

What an H200 took, and what the model of `tools/cuda_static_model.py` makes of it:

    time  = launch + (memory^p + issue^p + chain^p)^(1/p)
    p     = 1 + warps of a scheduler / {overlap:g}
    chain = waves of blocks x ({issue:g} x instructions + {memory:g} x rounds of loads from DRAM
            + {cache:g} x rounds from caches + {fold:g} x shuffles) clocks of a warp

with launch {launch:.1f} us, copies at {copy:.1f} TB/s and {clock:.2f} GHz (of a profiled launch,
its own clock); [the design page](../design/cuda.md) says what the terms stand for. The constants
were fitted to the first table and to the float32 rows of the second; its bfloat16 rows are a check.
"Of copy" is the speed as a share of a copy's of as many bytes, whose time is launch + bytes / the
rate. Instructions are those that were executed; of the study, those
that it states. Bytes are those that must move; of softmax along axis 0, which reads again what its
cache doesn't hold, those that its plan moves.
"""


def _rows(compared: Iterable[Compared]) -> str:
    header = ["kernel", "shape", "dtype", "launch", "measured us", "predicted us", "off"]
    header += ["of copy", "predicted", "bound by", "why not"]
    rows = []
    for one in compared:
        made = one.predicted
        rows.append([one.title, one.shape, one.dtype, one.layout])
        rows[-1] += [f"{one.measured * 1e6:.1f}", f"{made.seconds * 1e6:.1f}", f"{one.off:+.0%}"]
        rows[-1] += [f"{one.of_copy(one.measured):.0%}", f"{one.of_copy(made.seconds):.0%}"]
        rows[-1] += [made.bound_by, one.why]
    return markdown_table(header, rows, 4)


def measured_table() -> str:
    """What was measured, and what is predicted of it."""
    words = _PAGE.format(
        overlap=model.OVERLAP,
        issue=model.CHAIN_ISSUE,
        memory=model.FROM_MEMORY,
        cache=model.FROM_CACHE,
        fold=model.FOLD_STEP,
        launch=model.LAUNCH * 1e6,
        copy=model.COPY_RATE / 1e12,
        clock=model.CLOCK / 1e9,
    )
    return "\n".join(
        [
            *(words, "## Launches of this library's kernels under ncu\n", _rows(profile()), ""),
            *("## A study's kernels, whose rows are in registers\n", _rows(study())),
        ]
    )
