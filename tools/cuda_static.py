"""How long a model takes the benchmark's calls to be on an H200, from the kernels' machine code.

    cuobjdump -res-usage -sass fastact/_cuda.*.so > LISTING
    python tools/cuda_static.py LISTING... [--only WORDS] [--launches] > docs/results/cuda_static.md

Listings are of the built extension, or of the object files of single sources; of a kernel that
several have, the last one counts. No GPU is needed, and nothing runs: the emulated device says what
a call launches. Beside each prediction stands what was measured.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import sass
from cuda_static_launches import WARP, Launch, calls, commit_measured, moved, way
from cuda_static_model import (
    FEW_ROUNDS,
    MULTIPROCESSORS,
    TILE,
    Prediction,
    Work,
    predict,
    resident_blocks,
)
from cuda_static_page import Executed, Row, page
from cuda_static_routes import Router, Trace, Via

from fastact.bench.workloads.work import ITEM, Case


def demangled(symbols: Iterable[str]) -> list[str]:
    """The names as a compiler's messages have them."""
    done = subprocess.run(
        ["c++filt"], input="\n".join(symbols), check=True, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def instance(name: str) -> str:
    """A kernel with its template arguments, without its parameters.

    Examples
    --------
    >>> instance("void fastact::(anonymous namespace)::f<float, (Way)1>(Strips, double)")
    'void fastact::(anonymous namespace)::f<float, (Way)1>'
    """
    depth = 0
    for i, letter in enumerate(name):
        if letter == "(" and depth == 0 and not name.startswith("(anonymous", i):
            return name[:i]
        depth += (letter == "<") - (letter == ">")
    return name


@dataclass(frozen=True)
class Kernel:
    """A compiled kernel: registers of a thread, bytes of static shared memory, its code."""

    title: str
    registers: int
    shared: int
    router: Router


class Kernels:
    """Those of some listings, by instance."""

    def __init__(self, listings: Iterable[Path]) -> None:
        self._bodies: dict[str, tuple[str, int, int, str]] = {}
        for listing in listings:
            text = listing.read_text(encoding="utf-8")
            used = re.findall(r"Function (\w+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+)", text)
            bodies = dict(sass.bodies(text.splitlines(keepends=True)))
            for (symbol, registers, shared), name in zip(
                used, demangled(symbol for symbol, *_ in used), strict=True
            ):
                if symbol in bodies:
                    found = symbol, int(registers), int(shared), bodies[symbol]
                    self._bodies[instance(name)] = found

    @cache  # noqa: B019 - it lives as long as the program
    def of(self, symbol: str) -> Kernel:
        """The kernel that the emulated device knows by a symbol."""
        from kernel_names import identify  # of the tests

        (name,) = demangled([symbol])
        compiled, registers, shared, body = self._bodies[instance(name)]
        what = ", ".join(filter(None, identify(name)[:2]))
        return Kernel(what, registers, shared, Router(sass.function_of(compiled, body)))


def traced(
    kernel: Kernel, case: Case, launch: Launch, launches: Sequence[Launch]
) -> tuple[Trace, float]:
    """A warp's way through a kernel, and the bytes that the launch has to move."""
    both = moved(case, kernel.title, launches)
    if both is None:
        return kernel.router.trace(Via({})), 0.0
    step = way(kernel.router, kernel.title, case, launch, both)
    arrays = sum(both) + (1 / case.span if kernel.title.startswith("reduce_few") else 0)
    return kernel.router.trace(step), arrays * case.size * ITEM[case.dtype]


def predicted(kernel: Kernel, case: Case, launch: Launch, launches: Sequence[Launch]) -> Prediction:
    """The time of one launch."""
    trace, nbytes = traced(kernel, case, launch, launches)
    rounds, near, _ = trace.loads()
    return predict(
        Work(
            bytes=nbytes,
            grid=launch.grid,
            warps=max(1, launch.threads // WARP),
            resident=resident_blocks(
                launch.threads, kernel.registers, launch.shared + kernel.shared
            ),
            instructions=trace.count(),
            rounds=rounds if nbytes else max(rounds, FEW_ROUNDS),
            near=near,
            shuffles=trace.count("SHFL"),
            prefetched=trace.rows_ahead(),
            waits=TILE * kernel.title.startswith(("strip_", "whole_")),
        )
    )


def rows(kernels: Kernels, only: str) -> Iterator[Row]:
    """The measured and the predicted time of each call."""
    for case, row, launches in calls(only):
        made, titles = [], []
        for launch in launches:
            kernel = kernels.of(launch.symbol)
            titles.append(kernel.title)
            try:
                time = predicted(kernel, case, launch, launches)
                made.append(executed(kernel, case, launch, launches, time))
            except ValueError as error:
                print(f"{case.name}: {error}", file=sys.stderr)
                break
        yield Row(case, row, titles, made)


def executed(
    kernel: Kernel, case: Case, launch: Launch, launches: Sequence[Launch], made: Prediction
) -> Executed:
    """What the threads of a launch do."""
    trace, nbytes = traced(kernel, case, launch, launches)
    far, near, flying = trace.loads()
    resident = resident_blocks(launch.threads, kernel.registers, launch.shared + kernel.shared)
    instructions = trace.count() / (case.size / (launch.grid * launch.threads) or 1)
    if nbytes and instructions < 1:
        raise ValueError(f"{kernel.title}: its way leaves out the elements")
    return Executed(
        kernel=kernel.title,
        call=case.name,
        grid=f"{launch.grid} x {launch.threads}",
        registers=kernel.registers,
        threads=min(resident, math.ceil(launch.grid / MULTIPROCESSORS)) * launch.threads,
        flying=flying,
        instructions=instructions,
        rounds=(far, near),
        bytes=nbytes,
        made=made,
    )


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("listings", nargs="+", type=Path, metavar="LISTING")
    parser.add_argument("--only", default="", metavar="WORDS", help="calls whose names have them")
    parser.add_argument("--launches", action="store_true", help="a line on each, to stderr")
    args = parser.parse_args()
    found = list(rows(Kernels(args.listings), args.only))
    if args.launches:
        for one in (one for row in found for one in row.executed):
            print(one, file=sys.stderr)
    print(page(found, commit_measured()))


if __name__ == "__main__":
    main()
