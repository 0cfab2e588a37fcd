"""Faults that are built in behind one switch, and whether the tests see them.

    python tools/mutants.py              # every fault of mutants.txt, in a copy of this tree
    python tools/mutants.py --only NAME  # some of them

Each line of mutants.txt is a line of a source, with ``{{right => wrong}}`` around an expression; the
copy has both, and chooses by the environment variable FASTACT_MUTANT as it runs. So one build serves
all faults: the native modules for the best instruction set of this machine, and the emulated device.
The tests that the table names for a file run with each fault until one fails (killed), or none does
(survived). They have to pass without a fault first.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".txt")
SWITCH = "FASTACT_MUTANT"
_ROW = re.compile(r"(?P<name>[\w-]+): (?P<front>.*?)\{\{(?P<old>.*?) => (?P<new>.*?)\}\}(?P<back>.*)")

# Compiled in front of every C++ source. Each has a variable of its own: kernels of one instruction
# set may not share symbols with those of another.
HEADER = f"""#pragma once
#include <cstdlib>
[[maybe_unused]] static const int fastact_mutant = [] {{
  const char* const number = std::getenv("{SWITCH}");
  return number ? std::atoi(number) : 0;
}}();
"""
# Cython has to be told of it once, in the first file that _cpu.pyx includes.
DECLARED_IN = "src/cpu/binding/python.pxi"
DECLARATION = 'cdef extern from *:\n    const int fastact_mutant "fastact_mutant"\n\n'


@dataclass(frozen=True)
class Mutant:
    """A fault: an expression in a line of a source, and another one in its place.

    number : what the switch is set to. front, back : the line around the expression.
    """

    number: int
    name: str
    path: str
    tests: tuple[str, ...]
    front: str
    old: str
    new: str
    back: str

    @property
    def is_native(self) -> bool:
        """Whether it has to be compiled."""
        return not self.path.endswith(".py")

    def both(self) -> str:
        """The expression that chooses."""
        if self.path.endswith(".py"):
            switch = f'__import__("os").environ.get("{SWITCH}")'
            return f'(({self.new}) if {switch} == "{self.number}" else ({self.old}))'
        if self.path.endswith((".pyx", ".pxi")):
            return f"(({self.new}) if fastact_mutant == {self.number} else ({self.old}))"
        return f"(fastact_mutant == {self.number} ? ({self.new}) : ({self.old}))"


def read_table(text: str) -> list[Mutant]:
    """Read the rows: lines "[path] tests", and below each the faults of that file."""
    found: list[Mutant] = []
    path, tests = "", ()
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            path, _, rest = line[1:].partition("]")
            tests = tuple(rest.split())
            continue
        row = _ROW.fullmatch(line.strip())
        if row is None:
            raise ValueError(f"{TABLE.name}: no fault in the line {line!r}")
        found.append(Mutant(len(found) + 1, path=path, tests=tests, **row.groupdict()))
    return found


def problems(tree: Path, mutants: Iterable[Mutant]) -> Iterator[str]:
    """Tell which rows do not apply to a tree: their line stands there never, or more than once."""
    for mutant in mutants:
        source = tree / mutant.path
        text = source.read_text() if source.is_file() else ""
        count = text.count(mutant.front + mutant.old + mutant.back)
        if count != 1:
            yield f"{mutant.name}: its line stands {count} times in {mutant.path}"
        for test in mutant.tests:
            if not (tree / test).exists():
                yield f"{mutant.name}: there is no {test}"


def copy_tree(tree: Path, to: Path, mutants: Sequence[Mutant]) -> None:
    """Copy the files that git knows, with all mutants in; what is the same is not written anew."""
    listed = subprocess.check_output(["git", "-C", tree, "ls-files", "-z"], text=True)
    texts: dict[str, str] = {}
    for mutant in mutants:
        text = texts.get(mutant.path) or (tree / mutant.path).read_text()
        line = mutant.front + mutant.old + mutant.back
        texts[mutant.path] = text.replace(line, mutant.front + mutant.both() + mutant.back)
    if any(mutant.is_native for mutant in mutants):
        texts[DECLARED_IN] = DECLARATION + (tree / DECLARED_IN).read_text()
    for name in filter(None, listed.split("\0")):
        if not (tree / name).is_file():
            continue
        data = texts[name].encode() if name in texts else (tree / name).read_bytes()
        target = to / name
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def best_isa() -> str:
    """Name the most capable instruction set of this machine, as CMakeLists.txt does."""
    info = Path("/proc/cpuinfo")
    flags = set(info.read_text().split()) if info.is_file() else set()
    if {"avx512bw", "avx512dq", "avx512vl"} <= flags:
        return "v4"
    return "v3" if "avx2" in flags else "ALL"


def build(copy: Path, jobs: int) -> None:
    """Build the native modules of the copy, beside its Python sources."""
    header, folder = copy / "build" / "mutant.h", copy / "build" / "native"
    folder.mkdir(parents=True, exist_ok=True)
    if not header.is_file() or header.read_text() != HEADER:
        header.write_text(HEADER)
    set_up = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_FLAGS": f"-include {header} -w",
        "FASTACT_BUILD_ISAS": best_isa(),
        "FASTACT_CUDA": "OFF",
        "FASTACT_CUDA_EMULATION": "ON",
        "Python_EXECUTABLE": sys.executable,
        "SKBUILD_PROJECT_NAME": "fastact",
        "SKBUILD_PROJECT_VERSION": "0.0.0",
    }
    if shutil.which("ccache"):
        set_up["CMAKE_CXX_COMPILER_LAUNCHER"] = "ccache"
    given = [f"-D{name}={value}" for name, value in set_up.items()]
    subprocess.check_call(["cmake", "-S", copy, "-B", folder, "-G", "Ninja", *given])
    subprocess.check_call(["ninja", "-C", folder, "-j", str(jobs)])
    for module in folder.glob("*.so"):
        (copy / "python" / "fastact" / module.name).write_bytes(module.read_bytes())


def run_tests(copy: Path, number: int, tests: Sequence[str], seconds: float) -> tuple[bool, str]:
    """Run tests with one of the faults; whether they pass, and pytest's last words."""
    environment = {**os.environ, SWITCH: str(number), "PYTHONPATH": str(copy / "python")}
    environment.pop("FASTACT_ISA", None)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=copy,
            env=environment,
            timeout=seconds,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return False, f"no end in {seconds:g} s"
    if done.returncode in (4, 5):  # no tests, or no such
        raise SystemExit(f"{' '.join(tests)}: {done.stdout}{done.stderr}")
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return done.returncode == 0, said[0] if said else f"pytest ended with {done.returncode}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tree", type=Path, default=ROOT, help="the sources, a checkout")
    parser.add_argument("--table", type=Path, default=TABLE, help="the faults")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build" / "mutants", help="the copy")
    parser.add_argument("--only", action="append", help="the name of a fault, or the path of a file")
    parser.add_argument("--jobs", type=int, default=1, help="compilers, and faults, at a time")
    parser.add_argument("--seconds", type=float, default=900, help="time for the tests of a fault")
    options = parser.parse_args(arguments)
    tree, copy = options.tree.resolve(), options.scratch.resolve()
    mutants = read_table(options.table.read_text())
    wrong = [*problems(tree, mutants)]
    for problem in wrong:
        print(problem)
    if wrong:
        return 1
    copy_tree(tree, copy, mutants)
    if any(mutant.is_native for mutant in mutants):
        build(copy, options.jobs)
    if options.only:
        mutants = [m for m in mutants if m.name in options.only or m.path in options.only]
    for test in sorted({test for mutant in mutants for test in mutant.tests}):
        passes, said = run_tests(copy, 0, [test], 10 * options.seconds)
        print(f"{'passes' if passes else 'FAILS'} without a fault: {test}", flush=True)
        if not passes:
            print(said)
            return 1
    survived = []

    def judge(mutant: Mutant) -> None:
        start = time.monotonic()
        passes, said = run_tests(copy, mutant.number, mutant.tests, options.seconds)
        if passes:
            survived.append(mutant.name)
        verdict = "SURVIVED" if passes else f"killed by {said}"
        print(f"{mutant.name} ({time.monotonic() - start:.0f} s): {verdict}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for _ in pool.map(judge, mutants):
            pass
    print(f"{len(mutants) - len(survived)} of {len(mutants)} killed; survived: {sorted(survived)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
