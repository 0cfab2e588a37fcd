"""How long a kernel takes on an H200: a few terms, each with what it stands for.

The time of a launch is put together of four:

    memory  the bytes that must move / the rate of a copy
    issue   the instructions of the busiest multiprocessor / one a clock and scheduler
    chain   what one warp waits for, one thing after another, times the waves of blocks: its
            instructions, rounds of loads from DRAM and from caches, steps of folds over lanes
    launch  the start and the last stores

The first three overlap the better the more warps a scheduler holds. With p = 1 + warps / OVERLAP

    time = launch + (memory^p + issue^p + chain^p)^(1/p)

so they add up where there is next to no other warp, and the longest hides the others where there
are many. docs/design/cuda.md says what the constants were fitted to, and what they miss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MULTIPROCESSORS = 132
SCHEDULERS = 4  # of a multiprocessor
# What a multiprocessor holds of compute capability 9.0 (CUDA Programming Guide).
THREADS, BLOCKS, SHARED_BYTES, REGISTERS = 2048, 32, 233472, 65536
CLOCK = 1.95e9  # Hz; 1.92 to 1.98 in the profile
#: Of the benchmark's own copies: bytes/s, reads and writes together, and s.
COPY_RATE, LAUNCH = 4.25e12, 3.0e-6

# Fitted together to the calls of docs/results/gpu/h200_252d3ea.json whose kernels are known, in
# logarithms; then rounded.
FROM_MEMORY = 900.0  # clocks of a round of loads from DRAM under load; an idle one takes some 700
FROM_CACHE = 490.0  # clocks of a round that L1 or L2 answers, beside others' traffic
FOLD_STEP = 88.0  # clocks of a shuffle, what it feeds, and its part of the barrier
OVERLAP = 5.0  # warps a scheduler that raise the exponent by 1
TILE = 8400.0  # clocks of what a tile of channels costs besides: folds, merging, coefficients
FEW_ROUNDS = 9  # of a kernel that deals with parts, parameters or results alone
CHAIN_ISSUE = 1.0  # clocks that an instruction adds to its warp's own chain: no more than its slot


@dataclass(frozen=True)
class Work:
    """What a launch does.

    bytes : that must move: inputs read and outputs written once.
    instructions : of one warp, everything from the first to the exit.
    rounds, near : rounds of loads that a warp waits for, from DRAM and from caches.
    shuffles : of one warp, in folds: a double takes two a step.
    prefetched : rows of a warp whose loads are issued a row ahead; 0: none are.
    waits : clocks of its chain besides.
    """

    bytes: float
    grid: float
    warps: int  # of a block
    resident: int  # blocks that a multiprocessor holds
    instructions: float
    rounds: float = 1
    near: float = 0
    shuffles: float = 0
    prefetched: float = 0
    waits: float = 0

    @property
    def warps_a_scheduler(self) -> float:
        """As many as the grid fills."""
        here = min(self.resident, max(1, math.ceil(self.grid / MULTIPROCESSORS)))
        return here * self.warps / SCHEDULERS


@dataclass(frozen=True)
class Prediction:
    """Seconds, in all and of each term."""

    seconds: float
    memory: float
    issue: float
    chain: float

    @property
    def bound_by(self) -> str:
        """The longest term."""
        terms = {
            "memory": self.memory,
            "issue": self.issue,
            "chain": self.chain,
            "launch": LAUNCH,
        }
        return max(terms, key=lambda name: terms[name])


def copy_seconds(moved: float) -> float:
    """What a copy takes that moves as many bytes."""
    return LAUNCH + moved / COPY_RATE


def _waves(blocks: float, resident: int) -> float:
    """Rounds in which the blocks of a multiprocessor run.

    Few waves end together, so that the last is a whole one; of many, the last is half full.
    """
    waves = blocks / resident
    return max(1.0, math.ceil(waves - 0.05)) if waves < 8 else waves + 0.5


def predict(work: Work, clock: float = CLOCK) -> Prediction:
    """The time of a launch."""
    blocks = work.grid / MULTIPROCESSORS
    here = min(work.resident, max(1, math.ceil(blocks)))
    busiest = blocks if blocks >= work.resident else here
    memory = work.bytes / COPY_RATE
    issue = work.instructions * work.warps * busiest / SCHEDULERS / clock
    clocks = (
        work.instructions * CHAIN_ISSUE
        + work.rounds * FROM_MEMORY
        + work.near * FROM_CACHE
        + work.shuffles * FOLD_STEP
        + work.waits
    )
    # A row ahead is there in time where a row takes longer than memory does.
    clocks = max(clocks, work.prefetched * FROM_MEMORY)
    chain = clocks * _waves(blocks, work.resident) / clock
    power = 1 + work.warps_a_scheduler / OVERLAP
    together = (memory**power + issue**power + chain**power) ** (1 / power)
    return Prediction(LAUNCH + together, memory, issue, chain)


def resident_blocks(threads: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor holds.

    shared : of a block, static and dynamic; the driver takes 1 KiB more.
    """
    warp = -(-max(registers, 1) * 32 // 256) * 256
    by_registers = REGISTERS // SCHEDULERS // warp * SCHEDULERS * 32 // threads
    by_shared = SHARED_BYTES // (shared + 1024)
    return max(1, min(by_registers, by_shared, THREADS // threads, BLOCKS))
