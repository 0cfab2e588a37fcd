"""What a warp executes of a CUDA kernel, and how long a model takes the launch to be on an H200.

    python tools/cuda_static.py --kernel norm_forward --shape 8192x4096 [--dtype float32]
    python tools/cuda_static.py --measured

The first form compiles the kernel's source for sm_90 and reads the machine code: registers, spills,
bytes in flight, instructions an element, and the model's time. No GPU is needed, and nothing runs.
The second holds the model against what was measured, as the first tables of
docs/results/cuda_static.md do.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import sass
from cuda_static_launches import LAUNCHES, WARP, Launch
from cuda_static_measured import measured_table
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
from cuda_static_routes import Router, Trace, pattern

ROOT = Path(__file__).resolve().parents[1]
STORAGES = {
    "float16": "fastact::f16", "bfloat16": "fastact::bf16", "float32": "float", "float64": "double",
}  # fmt: skip
#: As src/cuda/CMakeLists.txt has them.
FLAGS = ("-std=c++17", "-O3", "-fmad=false", "-gencode=arch=compute_90,code=sm_90")


@dataclass(frozen=True)
class Resources:
    """What ptxas tells: registers a thread, bytes of stack, of spills and of shared memory."""

    registers: int = 0
    stack: int = 0
    spills: int = 0
    shared: int = 0


@dataclass(frozen=True)
class Counted:
    """A kernel that was compiled, its launch, and the trace of a warp."""

    resources: Resources
    launch: Launch
    trace: Trace

    @property
    def work(self) -> Work:
        """What the model asks for."""
        launch, resources = self.launch, self.resources
        rounds, near = self.trace.rounds()
        return Work(
            bytes=launch.bytes,
            grid=launch.grid,
            warps=launch.threads // WARP,
            resident=resident_blocks(
                launch.threads, resources.registers, launch.shared + resources.shared
            ),
            instructions=self.trace.count(),
            rounds=rounds,
            near=near,
            shuffles=self.trace.count("SHFL"),
            prefetched=self.trace.rows_ahead(),
        )

    def report(self) -> str:
        """The facts, one a line."""
        work, trace, resources = self.work, self.trace, self.resources
        made = predict(work)
        threads = min(work.resident, -(-work.grid // MULTIPROCESSORS)) * self.launch.threads
        in_flight = trace.wide_loads() * 16 * threads
        needed = COPY_RATE / 2 * FROM_MEMORY / CLOCK / MULTIPROCESSORS
        rows, elements = self.launch.rows or 1, self.launch.elements
        fp64 = sum(trace.count(name) for name in ("DADD", "DMUL", "DFMA")) / elements
        facts = {
            "blocks x threads": f"{self.launch.grid} x {self.launch.threads}",
            "registers, bytes of spills": f"{resources.registers}, {resources.spills}",
            "shared memory, bytes a block": f"{self.launch.shared + resources.shared}",
            "threads a multiprocessor": f"{work.resident * self.launch.threads}",
            "bytes in flight, needed": f"{in_flight:.0f}, {needed:.0f}",
            "instructions an element": f"{trace.count() / elements:.1f}",
            "shuffles, barriers a row": (
                f"{trace.count('SHFL') / rows:.1f}, {trace.count('BAR') / rows:.1f}"
            ),
            "shared-memory accesses an element": (
                f"{(trace.count('LDS') + trace.count('STS')) / elements:.2f}"
            ),
            "FP64, conversions from and to it, an element": (
                f"{fp64:.2f}, {trace.count('F2F') / elements:.2f}"
            ),
            "special functions an element": f"{trace.count('MUFU') / elements:.2f}",
            "us: memory, issue, chain": (
                f"{made.memory * 1e6:.1f}, {made.issue * 1e6:.1f}, {made.chain * 1e6:.1f}"
            ),
            "predicted us": f"{made.seconds * 1e6:.1f}",
            "of copy": f"{copy_seconds(work.bytes) / made.seconds:.0%}",
            "bound by": made.bound_by,
        }
        width = max(map(len, facts))
        return "\n".join(f"{name:{width}}  {value}" for name, value in facts.items())


def read_resources(log: str) -> dict[str, Resources]:
    """Kernels' resources, from what `nvcc -Xptxas -v` prints.

    Examples
    --------
    >>> read_resources('''ptxas info    : Compiling entry function 'f' for 'sm_90'
    ... ptxas info    : Function properties for f
    ...     40 bytes stack frame, 52 bytes spill stores, 76 bytes spill loads
    ... ptxas info    : Used 80 registers, used 1 barriers, 8192 bytes smem''')
    {'f': Resources(registers=80, stack=40, spills=128, shared=8192)}
    """
    found: dict[str, Resources] = {}
    entry = properties = ""
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)'", line):
            entry = match[1]
            found[entry] = Resources()
        elif match := re.search(r"Function properties for (\S+)", line):
            properties = match[1]
        elif properties in found and (match := re.search(r"(\d+) bytes stack frame", line)):
            spills = sum(map(int, re.findall(r"(\d+) bytes spill", line)))
            found[properties] = replace(found[properties], stack=int(match[1]), spills=spills)
        elif match := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            found[entry] = replace(
                found[entry], registers=int(match[1]), shared=int(shared[1]) if shared else 0
            )
    return found


def _run(*command: str | Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{Path(command[0]).name} failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def _tool(name: str, given: str | None, *others: str) -> str:
    """A program: the one given, or from the PATH, or from where CUDA usually is."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    for candidate in (given,) if given else (name, f"{home}/bin/{name}", *others):
        if found := shutil.which(candidate):
            return found
    raise SystemExit(f"cuda_static: {given or name} was not found; see --help")


def build(source: str, dtype: str, nvcc: str, cuobjdump: str) -> dict[str, tuple[Resources, str]]:
    """Compile the source of a name for one dtype: by a kernel's symbol its resources and code."""
    (path,) = (ROOT / "src/cuda").rglob(f"{source}.cu")
    with tempfile.TemporaryDirectory() as scratch:
        target = Path(scratch) / "kernels.o"
        log = _run(
            *(nvcc, *FLAGS, "-Xptxas", "-v", f"-DFASTACT_STORAGE={STORAGES[dtype]}"),
            *(f"-I{ROOT / 'src'}", "-c", path, "-o", target),
        )
        listing = _run(cuobjdump, "-sass", target)
    resources = read_resources(log)
    bodies = sass.bodies(listing.splitlines(keepends=True))
    return {name: (resources[name], body) for name, body in bodies if name in resources}


def counted(kernels: dict[str, tuple[Resources, str]], launch: Launch) -> tuple[str, Counted]:
    """The symbol of a launch's kernel among those compiled, and a warp's way through it."""
    wanted = pattern(launch.words)
    for name, (resources, body) in kernels.items():
        if wanted.search(name):
            trace = Router(sass.function_of(name, body)).trace(launch.step)
            return name, Counted(resources, launch, trace)
    raise SystemExit(f"cuda_static: no kernel of {launch.source} has the words {launch.words!r}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compile and print, or print what was measured."""
    parser = argparse.ArgumentParser(description="A model of the CUDA kernels' times.")
    parser.add_argument("--kernel", choices=LAUNCHES, help="of cuda_static_launches.py")
    parser.add_argument("--shape", default="8192x4096", help="default: %(default)s")
    parser.add_argument("--dtype", default="float32", choices=STORAGES)
    parser.add_argument("--nvcc", help="default: from the PATH or $CUDA_HOME/bin")
    parser.add_argument("--cuobjdump", help="likewise")
    parser.add_argument("--measured", action="store_true", help="predicted beside measured")
    args = parser.parse_args(arguments)
    if args.measured:
        print(measured_table())
        return
    if args.kernel is None:
        parser.error("either --kernel or --measured")
    nvcc, cuobjdump = _tool("nvcc", args.nvcc), _tool("cuobjdump", args.cuobjdump)
    launch = LAUNCHES[args.kernel]([int(n) for n in args.shape.split("x")], args.dtype)
    symbol, found = counted(build(launch.source, args.dtype, nvcc, cuobjdump), launch)
    print(f"{_run(_tool('c++filt', None, 'cu++filt'), symbol)}{found.report()}")


if __name__ == "__main__":
    sys.exit(main())
