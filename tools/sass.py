"""The machine code of CUDA kernels, as `cuobjdump -sass` prints it: instructions and loops.

Nothing runs here: what is counted is the code that the compiler wrote.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_.]*)(?P<operands>[^;]*);",
    re.MULTILINE,
)
_TARGET = re.compile(r"0x([0-9a-f]+)")
_PREDICATE = re.compile(r"!?U?P\d\b")
_BARRIER = re.compile(r"\bB\d+\b")

#: Instructions that the unit for float64 runs, by the part before the first dot.
_FP64 = ("DADD", "DMUL", "DFMA", "DSETP", "DMNMX")


@dataclass(frozen=True)
class Instruction:
    """One instruction: where it stands, under which condition, what it does."""

    address: int
    predicate: str
    opcode: str
    operands: str

    @property
    def base(self) -> str:
        """The opcode without its modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def is_fp64(self) -> bool:
        """Whether the unit for float64 runs it, or a conversion to float64 does."""
        return self.base in _FP64 or ".F64.F" in self.opcode

    @property
    def target(self) -> int:
        """The address that it names, the last of its operands; -1 without one."""
        found = _TARGET.findall(self.operands)
        return int(found[-1], 16) if found else -1


@dataclass
class Function:
    """The code of one kernel, in the order of addresses."""

    name: str
    code: list[Instruction]
    _index: dict[int, int] = field(default_factory=dict)
    _after: dict[int, list[int]] = field(default_factory=dict)
    _meetings: dict[str, set[int]] = field(default_factory=dict)  # where threads go on, by barrier

    def __post_init__(self) -> None:
        self._index = {one.address: i for i, one in enumerate(self.code)}
        for one in self.code:
            if one.base == "BSSY":
                for barrier in _BARRIER.findall(one.operands):
                    self._meetings.setdefault(barrier, set()).add(self._index[one.target])

    def successors(self, i: int) -> list[int]:
        """Return where execution may go on after the i-th instruction.

        A call comes back: what it calls is not followed.
        """
        if i not in self._after:
            self._after[i] = self._find_successors(i)
        return self._after[i]

    def _find_successors(self, i: int) -> list[int]:
        one = self.code[i]
        after = [i + 1] if i + 1 < len(self.code) else []
        conditional = bool(one.predicate) and one.predicate not in ("PT", "UPT")
        if one.base in ("EXIT", "RET"):
            return after if conditional else []
        if one.base == "BRX":
            return self._cases(i)
        if one.base in ("BRA", "JMP"):
            conditional |= bool(_PREDICATE.search(one.operands))
            there = self._index[one.target]
            return [*after, there] if conditional else [there]
        if one.base == "BSYNC":
            return self._reconvergence(one, after)
        return after

    def _cases(self, i: int) -> list[int]:
        """Return where an indirect branch of a switch may go: its table is not in the listing.

        To the pieces of code behind it that nothing else leads to: each begins where the one before
        has left for good.
        """
        leaves = ("EXIT", "RET", "BRA", "JMP", "BRX")
        targets = {
            self._index.get(other.target) for other in self.code if other.base in ("BRA", "JMP")
        }
        cases = [
            j + 1
            for j in range(i, len(self.code) - 1)
            if self.code[j].base in leaves
            and self.code[j].predicate in ("", "PT", "UPT")
            and j + 1 not in targets
            and self.code[j + 1].base != "NOP"
        ]
        if not cases:
            raise ValueError(f"{self.name}: an indirect branch, which cannot be followed")
        return cases

    def _reconvergence(self, one: Instruction, after: list[int]) -> list[int]:
        """Return where threads that BSSY sent apart go on together: nearly always right here."""
        ends = {
            end for barrier in _BARRIER.findall(one.operands) for end in self._meetings[barrier]
        }
        return after if not ends or set(after) <= ends else sorted(ends)

    def blocks(self) -> dict[int, tuple[range, list[int]]]:
        """The pieces that run from their beginning to their end, by the index where they begin.

        Each with its instructions' indices and where execution may go on.
        """
        leaving = {
            i: self.successors(i)
            for i, one in enumerate(self.code)
            if one.base in ("EXIT", "RET", "BRX", "BRA", "JMP", "BSYNC")
        }
        starts = {0, *(i + 1 for i in leaving), *(to for after in leaving.values() for to in after)}
        found = {}
        ordered = sorted(starts - {len(self.code)})
        for start, stop in zip(ordered, [*ordered[1:], len(self.code)], strict=True):
            found[start] = (range(start, stop), leaving.get(stop - 1, [stop] * (stop in starts)))
        return found


def parse(listing: str) -> list[Function]:
    """The functions of a listing by cuobjdump."""
    return [function_of(name, body) for name, body in bodies(listing.splitlines(keepends=True))]


def bodies(lines: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The name and the text of each function of a listing, of which one is held at a time."""
    name, body = "", [""]
    for line in lines:
        if match := _FUNCTION.match(line):
            if name:
                yield name, "".join(body)
            name, body = match[1], []
        elif ";" in line:
            body.append(line)
    if name:
        yield name, "".join(body)


def function_of(name: str, body: str) -> Function:
    """A function from its text."""
    code = [
        Instruction(
            int(match["address"], 16),
            match["predicate"] or "",
            match["opcode"],
            match["operands"].strip(),
        )
        for match in _INSTRUCTION.finditer(body)
    ]
    return Function(name, code)
