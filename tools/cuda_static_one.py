"""One kernel at one shape: what a warp executes of it, and what the model makes of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

from cuda_static_launches import WARP, Launch
from cuda_static_model import (
    CLOCK,
    COPY_RATE,
    FROM_MEMORY,
    MULTIPROCESSORS,
    Work,
    copy_seconds,
    predict,
    resident_blocks,
)
from cuda_static_report import LIMITS
from cuda_static_routes import Router, Trace, Via, pattern

if TYPE_CHECKING:
    from cuda_static import Kernel


@dataclass(frozen=True)
class Counted:
    """A kernel that was compiled, its launch, and the trace of a warp."""

    kernel: Kernel
    launch: Launch
    trace: Trace

    @property
    def work(self) -> Work:
        """What the model asks for."""
        launch, resources = self.launch, self.kernel.resources
        resident = resident_blocks(
            launch.threads,
            resources.registers,
            launch.shared + resources.shared,
            limits=astuple(LIMITS["90"]),
        )
        rounds, near = self.trace.rounds()
        return Work(
            bytes=launch.bytes,
            grid=launch.grid,
            warps=launch.threads // WARP,
            resident=resident,
            instructions=self.trace.count(),
            rounds=rounds,
            near=near,
            shuffles=self.trace.count("SHFL"),
            prefetched=self.trace.rows_ahead(),
        )

    @property
    def an_element(self) -> float:
        """Instructions of a thread over its elements."""
        return self.trace.count() / self.launch.elements

    def report(self) -> str:
        """The facts, one a line."""
        work, trace, resources = self.work, self.trace, self.kernel.resources
        made = predict(work)
        threads = min(work.resident, -(-work.grid // MULTIPROCESSORS)) * self.launch.threads
        in_flight = trace.wide_loads() * 16 * threads
        needed = COPY_RATE / 2 * FROM_MEMORY / CLOCK / MULTIPROCESSORS
        rows = self.launch.rows or 1
        fp64 = sum(trace.count(name) for name in ("DADD", "DMUL", "DFMA")) / self.launch.elements
        converted = trace.count("F2F") / self.launch.elements
        facts = {
            "kernel": self.kernel.title,
            "blocks x threads": f"{self.launch.grid} x {self.launch.threads}",
            "registers, bytes of spills": f"{resources.registers}, {resources.spills}",
            "shared memory, bytes a block": f"{self.launch.shared + resources.shared}",
            "threads a multiprocessor": f"{work.resident * self.launch.threads}",
            "bytes in flight, needed": f"{in_flight:.0f}, {needed:.0f}",
            "instructions an element": f"{self.an_element:.1f}",
            "shuffles, barriers a row": (
                f"{trace.count('SHFL') / rows:.1f}, {trace.count('BAR') / rows:.1f}"
            ),
            "shared-memory accesses an element": (
                f"{(trace.count('LDS') + trace.count('STS')) / self.launch.elements:.2f}"
            ),
            "FP64, conversions from and to it, an element": f"{fp64:.2f}, {converted:.2f}",
            "special functions an element": f"{trace.count('MUFU') / self.launch.elements:.2f}",
            "us: memory, issue, chain": (
                f"{made.memory * 1e6:.1f}, {made.issue * 1e6:.1f}, {made.chain * 1e6:.1f}"
            ),
            "predicted us": f"{made.seconds * 1e6:.1f}",
            "of copy": f"{copy_seconds(work.bytes) / made.seconds:.0%}",
            "bound by": made.bound_by,
        }
        width = max(map(len, facts))
        return "\n".join(f"{name:{width}}  {value}" for name, value in facts.items())


def count(kernels: Sequence[Kernel], launch: Launch) -> Counted:
    """The kernel of a launch among those compiled, and the way of a warp through it."""
    wanted = pattern(launch.words)
    for kernel in kernels:
        if wanted.search(kernel.code.name):
            return Counted(kernel, launch, Router(kernel.code).trace(launch.steps))
    raise SystemExit(f"cuda_static: no kernel of {launch.source} has the words {launch.words!r}")


def straight(text: str) -> Via:
    """A way without loops, as the command line tells it.

    Examples
    --------
    >>> straight("LDG.128=8,STG.128=8,BAR=2").counts
    {'LDG.128': 8, 'STG.128': 8, 'BAR': 2}
    """
    parts = (part.split("=") for part in text.split(",") if part)
    return Via({name: int(number) for name, number in parts})
