#!/usr/bin/env python
"""Test, sanitize and measure the CUDA extension on a GPU, within the seconds that are given.

    python tools/gpu_check.py --wheel FASTACT.whl --wheel FASTACT_CUDA.whl --seconds 840

The wheels are installed into a folder of their own, without the network; without any, the fastact
that this Python finds is checked. Two fifths of the time go to the checks, which run side by side,
the most telling first: every kernel, the tests of devices, compute-sanitizer's tools, and the bits
of every float32 input against the CPU. The rest goes to the benchmark, alone on the machine.

Results are written to --out: GPU_checks.md, and GPU.json, GPU.md and GPU.png of the benchmark. The
exit status is 1 if a step failed; a step that had no time is listed as not reached.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SANITIZER = "compute-sanitizer --error-exitcode 9 --print-limit 20 --target-processes all --tool"
DTYPES = ("float16", "bfloat16", "float32", "float64")
BITS_PARTS = 8  # of all float32 inputs of an activation
CHECKS_SHARE = 0.4  # of the time
PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
EVERY_KERNEL = "tests/devices/test_every_kernel.py::test_results_are_the_cpus_nearly"
EVERY_INPUT = "tests/activations/test_devices_every_input.py::test_bits_are_the_cpus"


class Step(NamedTuple):
    """A command that passes or fails."""

    name: str
    command: Sequence[str]


def chosen(only: Sequence[str]) -> dict[str, list[str]]:
    """Return the names of the ops by family, of those families or ops alone if any are named."""
    ops = importlib.import_module("fastact").ops.values()
    some = [op for op in ops if not only or {op.name, op.family} & {*only}]
    return {of.family: [op.name for op in some if op.family == of.family] for of in some}


def kernels(tool: str, only: Sequence[str]) -> Iterator[Step]:
    """Yield tests of every kernel, a family a step, under a tool of compute-sanitizer or alone."""
    for family, names in chosen(only).items():
        cases = [f"{EVERY_KERNEL}[cuda-torch-{d}-{name}]" for name in names for d in DTYPES]
        under = [*SANITIZER.split(), tool] if tool else []
        yield Step(f"{tool or 'kernels'}, {family}", [*under, *PYTEST, "-m", "not large", *cases])


def tests(for_devices: bool, only: Sequence[str]) -> Iterator[Step]:
    """Yield the cases on a GPU, a file of tests a step: files about devices, or all others."""
    for file in sorted(ROOT.glob("tests/*/test_*.py")):
        folder, name = file.parent.name, f"{file.parent.name}/{file.stem}"
        if ("devices" in name) == for_devices and (not only or folder in only):
            words = [] if folder == "devices" else ["-k", "cuda"]
            yield Step(f"tests, {name}", [*PYTEST, str(file), *words])


def bits(only: Sequence[str]) -> Iterator[Step]:
    """Yield the comparison of every float32 input of the activations, in parts."""
    for part, name in product(range(BITS_PARTS), chosen(only).get("activations", ())):
        case = f"{EVERY_INPUT}[{name}-cuda-torch-1-{part}]"
        yield Step(f"bits, {name}, {part + 1}", [*PYTEST, "-m", "", case])


def checks(only: Sequence[str]) -> Iterator[Step]:
    """Yield all of them, the most telling first."""
    yield from kernels("", only)
    yield from tests(True, only)
    yield from kernels("memcheck", only)
    yield from kernels("racecheck", only)
    yield from bits(only)
    yield from tests(False, only)
    yield from kernels("initcheck", only)


def run(step: Step, ends: float) -> str:
    """Run a step, print what it says if it fails, and return its verdict."""
    if (seconds := ends - time.monotonic()) <= 0:
        return "not reached"
    # An access out of bounds is seen only where each array has an allocation of its own.
    caching = {} if step.command[0] == sys.executable else {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **caching}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": ROOT}
    try:
        process = subprocess.Popen(step.command, env=environment, start_new_session=True, **pipes)
        said, _ = process.communicate(timeout=seconds)
    except FileNotFoundError as error:
        return f"FAILED ({error})"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the sanitizer has processes of its own
        process.communicate()
        return "not reached: ended for its time"
    if process.returncode in (0, 5):  # pytest's status where it collected no test
        return f"passed: {said.strip().splitlines()[-1].strip('= ')}"
    print(f"-- {step.name}\n{said}", flush=True)
    return f"FAILED ({process.returncode})"


def check(steps: Sequence[Step], ends: float, jobs: int, page: Path) -> bool:
    """Run the steps side by side, write their page, and tell whether none failed."""
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = [*pool.map(lambda step: run(step, ends), steps)]
    rows = [f"| {step.name} | {said} |" for step, said in zip(steps, verdicts, strict=True)]
    page.write_text("\n".join(["# What passed on a GPU\n", "| step | |\n|---|---|", *rows, ""]))
    return not any(verdict.startswith("FAILED") for verdict in verdicts)


def main() -> int:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--wheel", action="append", metavar="F")
    parser.add_argument("--seconds", type=float, default=840.0, metavar="N", help="for all of it")
    parser.add_argument("--only", nargs="*", default=[], metavar="W", help="ops or families")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results/gpu", metavar="DIR")
    given, began = parser.parse_args(), time.monotonic()
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    name = subprocess.check_output(query, text=True).splitlines()[0].removeprefix("NVIDIA ")
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / re.sub(r"\W+", "_", name.lower())
    if given.wheel:
        folder = str(given.out / ".installed")
        pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*pip, "--upgrade", "--target", folder, *given.wheel], check=True)
        sys.path.insert(0, folder)
        os.environ["PYTHONPATH"] = folder
    ends = began + CHECKS_SHARE * given.seconds
    jobs, page = min(os.cpu_count() or 1, 16), file.with_name(f"{file.name}_checks.md")
    passed = check([*checks(given.only)], ends, jobs, page)
    rest = began + given.seconds - time.monotonic() - 30  # the last row and the picture take time
    words = ["--device", "cuda", "--telling-first", "--seconds", "0.05", "--peers", "torch,liger"]
    pages = ["--json", f"{file}.json", "--markdown", f"{file}.md", "--plot", f"{file}.png"]
    bench = [sys.executable, "-m", "benchmarks", *given.only, *words, *pages]
    status = subprocess.run([*bench, "--stop-after", str(max(rest, 1.0))], cwd=ROOT).returncode
    return int(not passed or status == 1)


if __name__ == "__main__":
    sys.exit(main())
