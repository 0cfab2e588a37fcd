"""The page of predictions: what the model makes of the benchmark's calls beside what they took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import cuda_static_model as model
from cuda_static_model import Prediction, copy_seconds

from fastact.bench.workloads.work import ITEM, Case
from fastact.terminal import markdown_table


@dataclass(frozen=True)
class Executed:
    """What a launch does.

    threads : that a multiprocessor holds. flying : bytes that a thread loads before it uses one.
    instructions : all that a thread executes, over its elements. rounds : of loads that a warp
    waits for, from DRAM and from caches. bytes : that must move. made : the prediction.
    """

    kernel: str
    call: str
    grid: str
    registers: int
    threads: int
    flying: int
    instructions: float
    rounds: tuple[int, int]
    bytes: float
    made: Prediction

    @property
    def kib_in_flight(self) -> float:
        """Of a multiprocessor."""
        return self.flying * self.threads / 1024

    def __str__(self) -> str:
        made = self.made
        parts = " ".join(f"{1e6 * part:.1f}" for part in (made.memory, made.issue, made.chain))
        return (
            f"{self.call}: {self.kernel}: {self.grid}, {self.registers} registers, "
            f"{self.instructions:.1f} instructions an element, {self.rounds[0]}+{self.rounds[1]} "
            f"rounds, {self.flying} bytes in flight a thread, {self.bytes / 1e6:.0f} MB, "
            f"{made.seconds * 1e6:.1f} us by {made.bound_by}: memory, issue, chain {parts}"
        )


@dataclass(frozen=True)
class Row:
    """A call: what was measured, the titles of its kernels, and what each launch does.

    Of a kernel whose loops are not known there is none, nor of those behind it.
    """

    case: Case
    measured: dict[str, Any]
    titles: Sequence[str]
    executed: Sequence[Executed]

    @property
    def made(self) -> list[Prediction]:
        """Each launch's prediction."""
        return [one.made for one in self.executed]

    @property
    def is_known(self) -> bool:
        """Whether each launch has a prediction."""
        return len(self.made) == len(self.titles)

    @property
    def has_changed(self) -> bool:
        """Whether other kernels ran when it was measured."""
        case = self.case
        rows = case.op.family == "norms" and case.direction == "backward"
        is_16_bit = ITEM[case.dtype] == 2
        few_terms = case.label.endswith("× 3, axis 1") and (
            "dweights" in case.op.gradients or is_16_bit
        )
        keys_from_host = case.op.family == "dropout"
        return (rows and "channels" not in case.label) or few_terms or keys_from_host

    @property
    def took(self) -> float:
        """Seconds, measured."""
        return float(self.measured["seconds"]["fastact"])

    @property
    def seconds(self) -> float:
        """The launches' one after the other, predicted."""
        return sum(one.seconds for one in self.made)

    @property
    def off(self) -> float:
        """The prediction's error as a share of what was measured."""
        return self.seconds / self.took - 1


_PAGE = """\
# CUDA kernels: predicted beside measured

What the model of `tools/cuda_static_model.py` makes of today's kernels for the calls that
[an H200 measured](gpu/h200.md) at {commit}. [The design page](../design/cuda.md) says what
the terms stand for:

    time  = launch + (memory^p + issue^p + chain^p)^(1/p) of each launch
    p     = 1 + warps of a scheduler / {overlap:g}
    chain = waves of blocks x (instructions + {memory:g} x rounds of loads from DRAM
            + {cache:g} x rounds from caches + {fold:g} x shuffles) clocks of a warp,
            and {tile:g} clocks for a tile of channels

with launch {launch:.1f} us and copies at {copy:.2f} TB/s, as most of the benchmark's own copies
have it, and {clock:.2f} GHz. Kernels that deal with parts, parameters or results alone have
{few} rounds. Instructions are counted along the shortest way, not executed.

{known} of {all} calls have a prediction. Of the others the tool does not single out the loops:
{kinds}.

The constants were fitted to what was measured at 252d3ea, and foretell what was measured since. The
kernels of {fitted} calls have not changed: half of these predictions are within {middle:.0%} and
{near} within 15 %; the lowest is
{low} ({low_off:+.0%}), the highest
{high} ({high_off:+.0%}). The model
does not know that the second-level cache has small arrays, nor any unit but issue.

"Of copy" is the time of a copy of as many bytes, by the model, over the call's. A star marks calls
whose kernels have changed since.
"""


def page(rows: Sequence[Row], commit: str) -> str:
    """All calls, and how far predictions lie off from what was measured at a commit."""
    known = [row for row in rows if row.is_known]
    fitted = sorted((row for row in known if not row.has_changed), key=lambda row: row.off)
    if not fitted:
        return table(known)
    missed = [row.titles[len(row.made)].partition(",")[0] for row in rows if not row.is_known]
    words = _PAGE.format(
        commit=commit,
        overlap=model.OVERLAP,
        memory=model.FROM_MEMORY,
        cache=model.FROM_CACHE,
        fold=model.FOLD_STEP,
        tile=model.TILE,
        few=model.FEW_ROUNDS,
        launch=model.LAUNCH * 1e6,
        copy=model.COPY_RATE / 1e12,
        clock=model.CLOCK / 1e9,
        known=len(known),
        all=len(rows),
        kinds=", ".join(f"{count} of `{kind}`" for kind, count in Counter(missed).most_common()),
        fitted=len(fitted),
        middle=median(abs(row.off) for row in fitted),
        near=sum(abs(row.off) <= 0.15 for row in fitted),
        low=fitted[0].case.name,
        low_off=fitted[0].off,
        high=fitted[-1].case.name,
        high_off=fitted[-1].off,
    )
    return f"{words}\n{table(known)}\n{_KERNELS}\n{kernels(known)}"


def table(rows: Sequence[Row]) -> str:
    """A line for each call."""
    header = ["call", "launches", "measured us", "predicted us", "off", "of copy", "predicted"]
    lines = []
    for row in rows:
        copy = copy_seconds(row.measured["bytes"])
        longest = max(row.made, key=lambda one: one.seconds)
        lines.append([row.case.name + " *" * row.has_changed, str(len(row.made))])
        lines[-1] += [f"{row.took * 1e6:.1f}", f"{row.seconds * 1e6:.1f}", f"{row.off:+.0%}"]
        lines[-1] += [f"{copy / row.took:.0%}", f"{copy / row.seconds:.0%}", longest.bound_by]
    return markdown_table([*header, "bound by"], lines, 1)


_KERNELS = """\
## What the kernels execute

Of each kernel that moves arrays, in the largest of these calls: registers of a thread, the threads
that a multiprocessor holds, how much they load before they use any of it, and all that a thread
executes over its elements. Loads that are issued a row ahead are not among the bytes in flight.
"""


def kernels(rows: Sequence[Row]) -> str:
    """A line for each kernel."""
    largest: dict[str, Executed] = {}
    for row in rows:
        for one in row.executed:
            name = f"{one.kernel}, {row.case.dtype}"
            if one.bytes and (name not in largest or largest[name].bytes < one.bytes):
                largest[name] = one
    header = ["kernel", "in the call", "registers", "threads", "KiB in flight"]
    header += ["instructions an element"]
    lines = []
    for name, one in sorted(largest.items()):
        lines.append([name, one.call, str(one.registers), str(one.threads)])
        lines[-1] += [f"{one.kib_in_flight:.0f}", f"{one.instructions:.1f}"]
    return markdown_table(header, lines, 2)
