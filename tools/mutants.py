"""Faults that are built in behind one switch, and whether the tests see them.

Each line of mutants.txt is a line of a source with ``{{right => wrong}}`` around an expression. A
copy of the tree has both, and chooses by the environment variable FASTACT_MUTANT as it runs, so
that one build serves all faults: of the native modules for the best instruction set of this
machine, and of the emulated device. The tests that the table names for a file have to pass without
a fault; with each fault they run until one fails (killed), or none does (survived).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".txt")
SECONDS = 900  # of the tests of a fault, at most
_ROW = re.compile(r"([\w-]+): (.*?)\{\{(.*?) => (.*?)\}\}(.*)")

# This is compiled in front of every C++ source, each of which gets its own variable because
# instruction sets share no symbols; Cython is told of it once.
HEADER = """#include <cstdlib>
static const int fastact_mutant = [] {
  const char* const number = std::getenv("FASTACT_MUTANT");
  return number ? std::atoi(number) : 0;
}();
"""
DECLARED_IN = "src/cpu/binding/python.pxi"
DECLARATION = "cdef extern from *:\n    const int fastact_mutant\n\n"


@dataclass(frozen=True)
class Mutant:
    """A fault: an expression in the place of another one, the line around that, and where it is."""

    name: str
    front: str
    old: str
    new: str
    back: str
    path: str
    tests: tuple[str, ...]

    @property
    def number(self) -> int:
        """The value of the switch, which does not depend on other rows of the table."""
        return crc32(self.name.encode()) >> 1

    @property
    def line(self) -> str:
        """The line as it stands in the source."""
        return self.front + self.old + self.back

    def both(self) -> str:
        """The line with an expression that chooses."""
        switch = f"fastact_mutant == {self.number}"
        if self.path.endswith(".py"):
            switch = f'__import__("os").environ.get("FASTACT_MUTANT") == "{self.number}"'
        chosen = f"({switch} ? ({self.new}) : ({self.old}))"
        if self.path.endswith((".py", ".pyx")):
            chosen = f"(({self.new}) if {switch} else ({self.old}))"
        return self.front + chosen + self.back


def read_table(text: str) -> list[Mutant]:
    """Read lines "[path] tests", and below each the faults of that file."""
    found: list[Mutant] = []
    for line in text.splitlines():
        if line.startswith("["):
            path, *tests = line[1:].replace("]", "", 1).split()
        elif row := _ROW.fullmatch(line):
            found.append(Mutant(*row.groups(), path, (*tests,)))
        elif line and not line.startswith("#"):
            raise ValueError(f"{TABLE.name}: there is no fault in the line {line!r}")
    return found


def problems(tree: Path, mutants: Iterable[Mutant]) -> Iterator[str]:
    """Tell which rows do not apply to a tree: whose line does not stand there once."""
    for mutant in mutants:
        source = tree / mutant.path
        count = source.read_text().count(mutant.line) if source.is_file() else 0
        if count != 1:
            yield f"{mutant.name}: its line stands {count} times in {mutant.path}"
        missing = [test for test in mutant.tests if not (tree / test).exists()]
        yield from (f"{mutant.name}: there is no {test}" for test in missing)


def copy_tree(tree: Path, copy: Path, mutants: Sequence[Mutant]) -> None:
    """Copy the files that git knows, with all faults; what would be the same is not written."""
    changed: dict[str, str] = {}
    if (tree / DECLARED_IN).is_file():
        changed[DECLARED_IN] = DECLARATION + (tree / DECLARED_IN).read_text()
    for mutant in mutants:
        text = changed.get(mutant.path) or (tree / mutant.path).read_text()
        changed[mutant.path] = text.replace(mutant.line, mutant.both())
    text = subprocess.check_output(["git", "-C", tree, "ls-files", "-z"], text=True)
    listed = {name for name in text.split("\0") if name}
    for old in (copy / "src").rglob("*.*"):  # of an earlier copy, which would be compiled
        if str(old.relative_to(copy)) not in listed:
            old.unlink()
    for name in listed:
        if not (tree / name).is_file():
            continue
        data = changed[name].encode() if name in changed else (tree / name).read_bytes()
        target = copy / name
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)


def build(copy: Path, jobs: int) -> None:
    """Build the native modules of the copy, beside its Python sources."""
    header, folder = copy / "build" / "switch.hpp", copy / "build" / "native"
    if not header.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        header.write_text(HEADER)
    flags = Path("/proc/cpuinfo").read_text()  # the emulated device is for Linux alone, too
    set_up = {
        "CMAKE_BUILD_TYPE": "Release",
        "CMAKE_CXX_FLAGS": f"-include {header} -w",
        "CMAKE_CXX_COMPILER_LAUNCHER": shutil.which("ccache") or "",
        "FASTACT_BUILD_ISAS": "v4" if "avx512vl" in flags else "v3" if "avx2" in flags else "ALL",
        "FASTACT_CUDA": "OFF",
        "FASTACT_CUDA_EMULATION": "ON",
        "Python_EXECUTABLE": sys.executable,
        "SKBUILD_PROJECT_NAME": "fastact",
        "SKBUILD_PROJECT_VERSION": "0.0.0",
    }
    given = [f"-D{name}={value}" for name, value in set_up.items()]
    subprocess.check_call(["cmake", "-S", copy, "-B", folder, "-G", "Ninja", *given])
    subprocess.check_call(["ninja", "-C", folder, "-j", str(jobs)])
    for module in folder.glob("*.so"):
        shutil.copy(module, copy / "python" / "fastact")


def run_tests(copy: Path, number: int, tests: Sequence[str], seconds: float) -> str:
    """Run tests with one of the faults; what failed first, or nothing."""
    environment = {**os.environ, "FASTACT_MUTANT": str(number), "PYTHONPATH": str(copy / "python")}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    told = {"cwd": copy, "env": environment, "capture_output": True, "text": True}
    try:
        done = subprocess.run(command, timeout=seconds, check=False, **told)
    except subprocess.TimeoutExpired:
        return f"no end in {seconds:g} s"
    if done.returncode == 0:
        return ""
    said = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return said[0] if said else f"an end with {done.returncode}: {done.stderr}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="a checkout of the sources")
    parser.add_argument("--table", type=Path, default=TABLE, help="the faults")
    parser.add_argument("--scratch", type=Path, default=ROOT / "build/mutants", help="the copy")
    parser.add_argument("--only", action="append", help="a fault's name, or a file's path")
    parser.add_argument("--jobs", type=int, default=1, help="compilers, and faults, at once")
    options = parser.parse_args(arguments)
    tree, copy = options.tree.resolve(), options.scratch.resolve()
    mutants = read_table(options.table.read_text())
    if wrong := [*problems(tree, mutants)]:
        print(*wrong, sep="\n")
        return 1
    copy_tree(tree, copy, mutants)
    if (copy / "CMakeLists.txt").is_file():
        build(copy, options.jobs)
    if options.only:
        mutants = [m for m in mutants if {m.name, m.path} & {*options.only}]
    every = sorted({test for mutant in mutants for test in mutant.tests})
    if failed := run_tests(copy, 0, every, len(every) * SECONDS):
        print(f"without a fault: {failed}")
        return 1

    def judge(mutant: Mutant) -> bool:
        failed = run_tests(copy, mutant.number, mutant.tests, SECONDS)
        print(f"{mutant.name}: {f'killed by {failed}' if failed else 'SURVIVED'}", flush=True)
        return bool(failed)

    with ThreadPoolExecutor(options.jobs) as pool:
        killed = [*pool.map(judge, mutants)]
    print(f"{sum(killed)} of {len(killed)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
