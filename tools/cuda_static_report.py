"""The report of tools/cuda_static.py: tables of facts, and of what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import cuda_static_model as model
import sass
from cuda_static_measured import Compared, profile, study
from cuda_static_norms import traffic

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

# Of the bounds: bytes/s that a copy moves at most, multiprocessors, the least clock in Hz, and
# instructions of a thread each clock by the unit that runs them; "issue" is all units together.
COPY_RATE = 4.3e12
MULTIPROCESSORS = 132
CLOCK = 1.755e9
RATES = {"issue": 128, "fma": 128, "alu": 64, "fp64": 64, "xu": 16}

_INTRODUCTION = """\
# What the compiler made of the CUDA kernels

**What is measured on this page stands in the section that says so; no GPU was used for the rest.**
That is read off the machine code that nvcc {release} writes for sm_{arch}, by

    python tools/cuda_static.py --arch {arch} --markdown docs/results/cuda_static.md

which fails where a kernel spills or a claim about it no longer holds.
"""

_RESOURCES = """\
## Resources of every kernel

Registers of a thread; bytes of spills and of static shared memory; threads that a multiprocessor
can hold: blocks of 256, of gates read by vectors 128, of norms over rows 512 (the most; their cache
in dynamic shared memory is left out), as many as registers (given to a warp by 256, from a quarter
of the {registers} to each of four schedulers), shared memory (1 KiB of its own a block) and the
limits of {most} threads and {blocks} blocks allow. Loads and stores of global memory in the code by
width, the rare paths (misaligned arrays, ends) included.
"""

_PATHS = """\
## Instructions on the fast path

Maps: the whole path of a thread through a full tile of arrays that are aligned alike, from the
first instruction to the exit, over the elements that it computes. Sums: one round of the loop. Of
the paths through the code it is the shortest with exactly the 16-byte loads and stores that the
tile has to make; of misaligned float64 by 8 bytes. Gates: one round over a row, with everything
that the op can be given but `accumulate`; of 16-bit gradients by 8 bytes; "again" makes the gates
of what forward took. Norms over rows: of rows in several blocks, a vector's y from its statistics,
with parameters of x's dtype, one an element. Strips of channels: one
round of the loop; what a tile costs besides is not in it. Paths
with a call are left out. By unit: fma (float and integer multiply-add, conversion from float16),
alu (integers, comparisons, selections, packing to 16 bits), fp64, xu (special functions,
conversions from and to 64 bits), memory, and the rest (uniform, branches). Predicated instructions
count whether or not they take effect.
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


_TRAFFIC = """\
## Bytes moved against the minimum

By the plans in src/cuda, as a multiple of reading each input and writing each output once, caches
left out of account. Rows of layer_norm (identity, weight and bias), for any number of them.
"""

_TRAFFIC_MAPS = """\
batch_norm in training: forward 1.50 (x twice, y once), backward 1.67 (dy and x twice, dx once), or
1.00 of channels that a block holds; norms whose channels come last the same; moments 1.00.
"""


def _traffic() -> str:
    header = ["row", "dtype", "forward", "backward"]
    rows = []
    for length in (256, 1024, 4096, 8192, 16384, 32768, 65536, 131072, 262144):
        for dtype in ("float16", "float32", "float64"):
            one = traffic(length, dtype)
            name = "float16, bfloat16" if dtype == "float16" else dtype
            numbers = [f"{one.forward / 2:.2f}", f"{one.backward / 3:.2f}"]
            rows.append([str(length), name, *numbers])
    return f"{_TRAFFIC}\n{_table(header, rows, 2)}\n\n{_TRAFFIC_MAPS}"


def occupancy(kernel: Kernel, arch: str) -> int:
    """Threads of a kernel that one multiprocessor can hold."""
    resources = kernel.resources
    needs = kernel.threads, resources.registers, resources.shared
    return model.resident_blocks(*needs, limits=astuple(LIMITS[arch])) * kernel.threads


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


_MEASURED = """\
## Predicted beside measured

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


def _measured_rows(compared: Sequence[Compared]) -> str:
    header = ["kernel", "shape", "dtype", "launch", "measured us", "predicted us", "off"]
    header += ["of copy", "predicted", "bound by", "why not"]
    rows = []
    for one in compared:
        made = one.predicted
        rows.append([one.title, one.shape, one.dtype, one.layout])
        rows[-1] += [f"{one.measured * 1e6:.1f}", f"{made.seconds * 1e6:.1f}", f"{one.off:+.0%}"]
        rows[-1] += [f"{one.of_copy(one.measured):.0%}", f"{one.of_copy(made.seconds):.0%}"]
        rows[-1] += [made.bound_by, one.why]
    return _table(header, rows, 4)


def measured_table() -> str:
    """What was measured, and what is predicted of it."""
    words = _MEASURED.format(
        overlap=model.OVERLAP,
        issue=model.CHAIN_ISSUE,
        memory=model.FROM_MEMORY,
        cache=model.FROM_CACHE,
        fold=model.FOLD_STEP,
        launch=model.LAUNCH * 1e6,
        copy=model.COPY_RATE / 1e12,
        clock=model.CLOCK / 1e9,
    )
    parts = [words, "### Launches of this library's kernels under ncu\n"]
    parts += [_measured_rows(list(profile())) + "\n"]
    parts += ["### A study's kernels, whose rows are in registers\n"]
    return "\n".join([*parts, _measured_rows(list(study())) + "\n"])


def _by_family(kernels: Sequence[Kernel], table: Callable[[Sequence[Kernel]], str]) -> str:
    """A table a family, under its name."""
    names = sorted({kernel.family for kernel in kernels})
    parts = [(name, [one for one in kernels if one.family == name]) for name in names]
    return "\n".join(f"### {name}\n\n{table(part)}\n" for name, part in parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    rule = ["---" if i < left else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def _resources_table(kernels: Sequence[Kernel], arch: str) -> str:
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
    return _table(header, rows, 3)


def _resources(kernels: Sequence[Kernel], arch: str) -> str:
    limits = LIMITS[arch]
    words = _RESOURCES.format(registers=limits.registers, most=limits.threads, blocks=limits.blocks)
    return f"{words}\n{_by_family(kernels, lambda some: _resources_table(some, arch))}"


def _paths_table(kernels: Sequence[Kernel]) -> str:
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
    return _table(header, rows, 3)


def _predictions_table(kernels: Sequence[Kernel]) -> str:
    header = ["kernel", "of", "dtype", "bytes an element", "bound", "next", "at"]
    rows = []
    for kernel in kernels:
        share, unit, of_memory = bound(kernel)
        row = [kernel.kernel, kernel.what, kernel.dtype, str(kernel.bytes_per_element)]
        rows.append([*row, f"{share:.0%}", unit, f"{of_memory:.0%}"])
    return _table(header, rows, 3)


def _predictions(kernels: Sequence[Kernel]) -> str:
    words = _PREDICTION.format(
        copy=COPY_RATE / 1e12,
        sms=MULTIPROCESSORS,
        clock=CLOCK / 1e9,
        rates=", ".join(f"{rate} ({unit})" for unit, rate in RATES.items()),
    )
    return f"{words}\n{_by_family(kernels, _predictions_table)}"


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
        parts += [measured_table(), _predictions(with_path), _traffic()]
    parts += [f"{_PATHS}\n{_by_family(with_path, _paths_table)}", _resources(kernels, arch)]
    return "\n".join(parts)
