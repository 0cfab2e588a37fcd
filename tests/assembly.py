"""What the compiler made of a kernel, read from the compiled module by objdump.

A clock finds a loop that is not vectorised only where somebody looks; the instructions tell it of
every kernel, on any machine, and of instruction sets that the machine does not have.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from processes import output_of, run_program

from fastact import _cpu

# The widest registers of each instruction set.
REGISTERS = {"v2": "%xmm", "v3": "%ymm", "v4": "%zmm"}
BUILT = [isa for isa in _cpu.build_info()["isas"] if isa in REGISTERS]

LINE = re.compile(r"\s*([0-9a-f]+):\s+((?:(?:rep\w*|bnd|notrack|data16|cs|ds) +)*)(\S+)\s*([^#<]*)")
# Beside a vector's own: constants, which lie at a place relative to the instruction.
MEMORY = re.compile(r"\((?!%rip)")
# Arithmetic on one number, and conversions of one; packed integers (vpmaxsd) end as these do.
SCALAR = re.compile(
    r"(?!v?p|v?broadcast|v?movs)v?\w*s[sd]$|v?cvtt?s[sd]2|v?p(insr|extr)|v?(insert|extract)ps$"
)
# Moves of a number, which may be a parameter's, or of half a vector.
PARTIAL_MOVE = re.compile(r"v?mov([dq]|s[sd]|[lh]p[sd])$")


readable = pytest.mark.skipif(
    platform.system() != "Linux" or platform.machine() != "x86_64" or not shutil.which("objdump"),
    reason="reads x86-64 code of an ELF file by objdump",
)


class Instruction(NamedTuple):
    name: str
    operands: str
    follows: int  # the address of the next

    @property
    def target(self) -> int | None:
        """Of a jump or a call to a place that it names."""
        return int(self.operands.split()[0], 16) if re.match(r"[0-9a-f]", self.operands) else None

    @property
    def jumps(self) -> bool:
        return self.name.startswith("j")

    @property
    def branches(self) -> bool:
        """Jumps or not; a turned loop leaves by a branch, and goes back by a jump after it."""
        return self.jumps and self.name != "jmp"

    def moves_vectors(self, register: str) -> bool:
        """Whether it reads or writes memory by whole vectors."""
        return (
            register in self.operands
            and MEMORY.search(self.operands) is not None
            and not SCALAR.match(self.name)
            and not PARTIAL_MOVE.match(self.name)
        )


Code = dict[int, Instruction]
Successors = dict[int, list[int]]


def kernels(isa: str, pattern: str) -> dict[str, int]:
    """Give the addresses of an instruction set's kernels whose names, as C++ has them, match."""
    symbols = output_of(run_program("nm", "-C", "--defined-only", _cpu.__file__)).splitlines()
    if not (symbols or find_spec("fastact._cuda_emulated")):
        pytest.skip("built without the emulated device")  # and stripped
    found = {}
    for symbol in symbols:
        address, _, name = symbol.split(maxsplit=2)
        of_isa = rf"fastact::{isa}::(\(anonymous namespace\)::)?"
        if re.match(f"(void )?{of_isa}", name):
            name = re.sub(of_isa, "", name).removeprefix("void ")
            if re.search(pattern, name):
                found[name] = int(address, 16)
    return found


def code_of(addresses: Mapping[str, int]) -> Code:
    """The instructions of the translation unit around these kernels."""
    margin = 1 << 16  # the last kernel's code, and functions that the compiler set apart
    start, stop = min(addresses.values()), max(addresses.values())
    return disassemble(Path(_cpu.__file__), max(start - margin, 0), stop + margin)


def disassemble(module: Path, start: int, stop: int) -> Code:
    """The instructions from `start` on, up to `stop`: addresses as the module's file has them."""
    command = ["objdump", "-d", "--no-show-raw-insn", f"--start-address={start}"]
    return parse(output_of(run_program(*command, f"--stop-address={stop}", module)))


def parse(listing: str) -> Code:
    """What objdump writes, without the bytes of the instructions."""
    found = [match.groups() for match in map(LINE.match, listing.splitlines()) if match]
    addresses = [int(address, 16) for address, *_ in found]
    return {
        address: Instruction(name, operands.strip(), follows)
        for address, follows, (_, _, name, operands) in zip(
            addresses, [*addresses[1:], -1], found, strict=True
        )
    }


def function(code: Code, entry: int) -> Successors:
    """Of each instruction that can be reached from `entry`, those that may come next."""
    successors: Successors = {}
    ahead = [entry]
    while ahead:
        address = ahead.pop()
        if address in successors or address not in code:
            continue
        one = code[address]
        following = [] if one.name in ("ret", "jmp", "ud2", "hlt") else [one.follows]
        if one.jumps and one.target is not None:
            following.append(one.target)
        successors[address] = [a for a in following if a in code]
        ahead += successors[address]
    return successors


def functions(code: Code, entry: int) -> list[Successors]:
    """A kernel, and the functions of the same file that it calls, which are part of it."""
    kernel = function(code, entry)
    called = [
        one.target
        for one in map(code.__getitem__, kernel)
        if one.name == "call" and one.target in code
    ]
    return [kernel, *(function(code, target) for target in called)]


def loops(successors: Successors, among: set[int]) -> list[set[int]]:
    """The outermost loops: instructions each of which can be reached from all the others."""
    left: list[int] = []  # in the order in which a search in depth leaves them (Kosaraju)
    seen: set[int] = set()
    ahead = [(root, False) for root in among]
    while ahead:
        address, leaving = ahead.pop()
        if leaving:
            left.append(address)
        elif address not in seen:
            seen.add(address)
            ahead.append((address, True))
            ahead += [(to, False) for to in successors[address] if to in among]
    predecessors: dict[int, list[int]] = {address: [] for address in among}
    for address in among:
        for to in successors[address]:
            if to in among:
                predecessors[to].append(address)
    found = []
    for root in reversed(left):
        loop = _reached(predecessors, root, seen)
        seen -= loop
        if len(loop) > 1 or root in successors[root]:
            found.append(loop)
    return found


def _reached(following: Successors, root: int, among: set[int]) -> set[int]:
    reached: set[int] = set()
    ahead = [root]
    while ahead:
        address = ahead.pop()
        if address in among and address not in reached:
            reached.add(address)
            ahead += following[address]
    return reached


def innermost(successors: Successors, loop: set[int]) -> list[set[int]]:
    """The loops in a loop that contain no other: what is left without where it is entered."""
    entered = {
        to
        for node, following in successors.items()
        if node not in loop
        for to in following
        if to in loop
    }
    inner = loops(successors, loop - entered)
    return [each for one in inner for each in innermost(successors, one)] or [loop]


def problems(code: Code, entry: int, isa: str, choices: int = 0) -> list[str]:
    """Why a kernel's main loop is not one over whole vectors; empty where it is.

    The main loops are those that move whole vectors; the others do what is left of the array. In a
    main loop, and in all that are inside it, no instruction works on one number and none calls, and
    each innermost one moves whole vectors and has no branch but the one that closes it, and as many
    as ask for a choice of the call.
    """
    register = REGISTERS[isa]
    found, main_loops = [], 0
    for part in functions(code, entry):
        for loop in loops(part, set(part)):
            if not any(code[a].moves_vectors(register) for a in loop):
                continue
            main_loops += 1
            found += [
                f"{code[a].name} {code[a].operands}"
                for a in sorted(loop)
                if SCALAR.match(code[a].name) or code[a].name == "call"
            ]
            for one in innermost(part, loop):
                if not any(code[a].moves_vectors(register) for a in one):
                    found.append(f"a loop of {len(one)} instructions without {register}")
                elif sum(code[a].branches for a in one) > 1 + choices:
                    found.append("a branch in the innermost loop")
    return found if main_loops else [f"no loop over {register}"]


def scalar_loops(code: Code, entry: int) -> list[list[str]]:
    """Of each innermost loop that works on single numbers, the instructions that do."""
    inner = [
        one
        for part in functions(code, entry)
        for loop in loops(part, set(part))
        for one in innermost(part, loop)
    ]
    found = [
        [f"{code[a].name} {code[a].operands}" for a in sorted(one) if SCALAR.match(code[a].name)]
        for one in inner
    ]
    return [each for each in found if each]
