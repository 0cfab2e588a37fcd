"""The report of tools/cuda_static.py: tables of facts, and of what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sass

if TYPE_CHECKING:
    from cuda_static import Kernel


@dataclass(frozen=True)
class Limits:
    """What one multiprocessor holds, by compute capability (CUDA Programming Guide)."""

    threads: int
    blocks: int
    shared: int
    registers: int = 65536


LIMITS = {
    "75": Limits(1024, 16, 65536),
    "80": Limits(2048, 32, 167936),
    "86": Limits(1536, 16, 102400),
    "89": Limits(1536, 24, 102400),
    "90": Limits(2048, 32, 233472),
}

# The H200 that predictions are for: bytes/s that a copy moves, multiprocessors, clock in Hz, and
# instructions of a thread each clock by the unit that runs them; "issue" is all units together.
COPY_RATE = 4.3e12
MULTIPROCESSORS = 132
CLOCK = 1.755e9
RATES = {"issue": 128, "fma": 128, "alu": 64, "fp64": 64, "xu": 16}

_INTRODUCTION = """\
# What the compiler made of the CUDA kernels

**Nothing on this page was measured, and no GPU was used.** It is read off the machine code that
nvcc {release} writes for sm_{arch}, by

    python tools/cuda_static.py --arch {arch} --markdown docs/results/cuda_static.md

which fails where a kernel spills or a claim about it no longer holds.
"""

_RESOURCES = """\
## Resources of every kernel

Registers of a thread; bytes of spills and of static shared memory; threads that a multiprocessor
can hold: blocks of 256, of gates read by packs 128, as many as registers (given to a warp by 256,
from a quarter of the {registers} to each of four schedulers), shared memory (1 KiB of its own a
block) and the limits of {most} threads and {blocks} blocks allow. Loads and stores of global memory
in the code by width, the rare paths (misaligned arrays, ends) included.
"""

_PATHS = """\
## Instructions on the fast path

Maps: the whole way of a thread through a full tile of arrays that are aligned alike, from the first
instruction to the exit, over the elements that it computes. Sums: one round of the loop. Of the
ways through the code it is the shortest with exactly the 16-byte loads and stores that the tile has
to make. Gates: one round over a row, with everything that the op can be given but `accumulate`; of
16-bit gradients by 8 bytes; "again" makes the gates of what forward took. By unit: fma (float and
integer multiply-add, conversion from float16), alu (integers, comparisons, selections, packing to
16 bits), fp64, xu (special functions, conversions from and to 64 bits), memory, and the rest
(uniform, branches). Predicated instructions count whether or not they take effect.
"""

_PREDICTION = """\
## Predicted upper bounds for an H200

An upper bound from counting, not a speed: what it leaves out (latency, too few loads in flight,
partial waves, launches, the last blocks) only lowers it. For each element,

    time of memory = bytes that must move / {copy:.1f} TB/s
    time of a unit = its instructions / ({sms} multiprocessors x its rate x {clock:.3f} GHz)
    bound          = time of memory / the longest of these times

    rates a clock  = {rates}

where "issue" stands for all instructions. The bound is a share of the device's copy rate, taken as
{copy:.1f} TB/s; for a sum, whose bytes are all reads, the rate of reading may be another. 100 %
means that counting finds nothing slower than memory; "next" is what comes closest, as a share of
the time of memory.
"""


def occupancy(kernel: Kernel, arch: str) -> int:
    """Threads of a kernel that one multiprocessor can hold."""
    limits = LIMITS[arch]
    warp = -(-kernel.resources.registers * 32 // 256) * 256
    warps = limits.registers // 4 // max(warp, 1) * 4
    by_shared = limits.shared // (kernel.resources.shared + 1024)
    threads = kernel.threads
    blocks = min(warps * 32 // threads, by_shared, limits.threads // threads, limits.blocks)
    return blocks * threads


def bound(kernel: Kernel) -> tuple[float, str, float]:
    """Share of the copy rate at most, the next limit beside memory, and its share of that time."""
    clocks = MULTIPROCESSORS * CLOCK
    memory = kernel.bytes_per_element / COPY_RATE
    counts = {**sass.by_pipe(kernel.path), "issue": len(kernel.path)}
    times = {
        unit: counts.get(unit, 0) / kernel.elements / (clocks * rate)
        for unit, rate in RATES.items()
    }
    unit = max(times, key=lambda name: times[name])
    return min(1.0, memory / times[unit]), unit, times[unit] / memory


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def _resources(kernels: Sequence[Kernel], arch: str) -> str:
    header = ["kernel", "of", "dtype", "registers", "spills", "shared", "threads"]
    header += ["16-byte loads", "others", "16-byte stores", "others", "instructions"]
    rows = []
    for kernel in kernels:
        facts = kernel.resources
        numbers = [facts.registers, facts.spills, facts.shared, occupancy(kernel, arch)]
        for base in ("LDG", "STG"):
            numbers += [kernel.code.count(base, wide=wide) for wide in (True, False)]
        numbers.append(sum(one.base != "NOP" for one in kernel.code.code))
        rows.append([kernel.kernel, kernel.what or "–", kernel.dtype, *map(str, numbers)])
    limits = LIMITS[arch]
    words = _RESOURCES.format(registers=limits.registers, most=limits.threads, blocks=limits.blocks)
    return f"{words}\n{_table(header, rows, 3)}\n"


def _paths(kernels: Sequence[Kernel]) -> str:
    units = ("fma", "alu", "fp64", "xu", "memory")
    header = ["kernel", "of", "dtype", "elements", "instructions", "an element", *units, "rest"]
    rows = []
    for kernel in kernels:
        counts = sass.by_pipe(kernel.path)
        numbers = [len(kernel.path), *(counts[unit] for unit in units)]
        numbers.append(numbers[0] - sum(numbers[1:]))
        each = [f"{number / kernel.elements:.2f}" for number in numbers]
        rows.append([kernel.kernel, kernel.what, kernel.dtype, str(kernel.elements)])
        rows[-1] += [str(len(kernel.path)), *each]
    return f"{_PATHS}\n{_table(header, rows, 3)}\n"


def _predictions(kernels: Sequence[Kernel]) -> str:
    header = ["kernel", "of", "dtype", "bytes an element", "bound", "next", "at"]
    rows = []
    for kernel in kernels:
        share, unit, of_memory = bound(kernel)
        row = [kernel.kernel, kernel.what, kernel.dtype, str(kernel.bytes_per_element)]
        rows.append([*row, f"{share:.0%}", unit, f"{of_memory:.0%}"])
    words = _PREDICTION.format(
        copy=COPY_RATE / 1e12,
        sms=MULTIPROCESSORS,
        clock=CLOCK / 1e9,
        rates=", ".join(f"{rate} ({unit})" for unit, rate in RATES.items()),
    )
    return f"{words}\n{_table(header, rows, 3)}\n"


def report(kernels: Sequence[Kernel], arch: str, release: str, wrong: Sequence[str]) -> str:
    """The whole page, in Markdown."""
    if arch not in LIMITS:
        raise SystemExit(f"cuda_static: --arch must be one of {', '.join(LIMITS)}, got {arch}")
    kernels = sorted(kernels, key=lambda one: (one.kernel, one.what, one.dtype))
    with_path = [kernel for kernel in kernels if kernel.path]
    parts = [_INTRODUCTION.format(release=release, arch=arch)]
    if wrong:
        parts.append("Problems found:\n\n" + "\n".join(f"- {problem}" for problem in wrong) + "\n")
    if arch == "90":
        parts.append(_predictions(with_path))
    parts += [_paths(with_path), _resources(kernels, arch)]
    return "\n".join(parts)
