"""The machine code of CUDA kernels, as `cuobjdump -sass` prints it: instructions, paths, loops.

Nothing runs here: what is counted is the code that the compiler wrote.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_FUNCTION = re.compile(r"^\s*Function : (\S+)", re.MULTILINE)
_INSTRUCTION = re.compile(
    r"^\s+/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@(?P<predicate>!?U?P\w+)\s+)?"
    r"(?P<opcode>[A-Z][A-Z0-9_.]*)(?P<operands>[^;]*);",
    re.MULTILINE,
)
_TARGET = re.compile(r"0x([0-9a-f]+)")
_PREDICATE = re.compile(r"!?U?P\d\b")
_BARRIER = re.compile(r"\bB\d+\b")

# Which unit runs an opcode, by the part before the first dot. Integer multiply-adds run beside
# float's; comparisons, selections and conversions to 16 bits with the integers.
PIPES = {
    "fma": "FADD FMUL FFMA IMAD IMUL HADD2 HFMA2 HMUL2 FSWZADD IDP",
    "alu": "IADD3 LOP3 SHF LEA ISETP FSETP FMNMX FSEL SEL PRMT IMNMX VIMNMX VIADD MOV PLOP3 F2FP "
    "I2FP IABS SGXT BMSK FCHK P2R R2P VOTE CS2R SHL SHR LOP ISCADD VIADDMNMX VABSDIFF "
    "HSETP2 HMNMX2 BMOV IADD",
    "fp64": "DADD DMUL DFMA DSETP DMNMX",
    "xu": "MUFU F2F F2I I2F FRND POPC FLO BREV",
    "memory": "LDG STG LDS STS LDL STL LDC LD ST SHFL ATOM ATOMG ATOMS RED MEMBAR LDGSTS CCTL "
    "LDSM STSM",
    "control": "BRA EXIT BSSY BSYNC BREAK BAR NOP CALL RET WARPSYNC YIELD DEPBAR LDGDEPBAR S2R "
    "S2UR ERRBAR BPT BRX JMP KILL NANOSLEEP R2UR LEPC RPCMOV",
}
_PIPE_OF = {opcode: pipe for pipe, opcodes in PIPES.items() for opcode in opcodes.split()}


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
    def pipe(self) -> str:
        """The unit that runs it."""
        if self.base in _PIPE_OF:
            return _PIPE_OF[self.base]
        return "uniform" if self.base.startswith("U") else "other"

    @property
    def target(self) -> int:
        """The address that it names, the last of its operands; -1 without one."""
        found = _TARGET.findall(self.operands)
        return int(found[-1], 16) if found else -1

    def is_wide(self, base: str, bits: int = 128) -> bool:
        """A load or store of 16 bytes, or of another size."""
        return self.matches(f"{base}.{bits}")

    def matches(self, name: str) -> bool:
        """Whether it has the opcode and the modifiers of a name such as "LDG.128"."""
        base, *modifiers = name.split(".")
        return self.base == base and all(f".{word}" in self.opcode for word in modifiers)


#: How often a way has an opcode with modifiers, by names such as "LDG.128".
Counts = Mapping[str, int]


@dataclass
class Function:
    """The code of one kernel, in the order of addresses."""

    name: str
    code: list[Instruction]
    _index: dict[int, int] = field(default_factory=dict)
    _after: dict[int, list[int]] = field(default_factory=dict)
    _meetings: dict[str, set[int]] = field(default_factory=dict)  # where threads go on, by barrier
    _marks: dict[str, list[bool]] = field(default_factory=dict)  # which instructions a name matches

    def __post_init__(self) -> None:
        self._index = {one.address: i for i, one in enumerate(self.code)}
        for one in self.code:
            if one.base == "BSSY":
                for barrier in _BARRIER.findall(one.operands):
                    self._meetings.setdefault(barrier, set()).add(self._index[one.target])

    def count(self, base: str, *, wide: bool | None = None) -> int:
        """Instructions of an opcode: all, only with 16 bytes, or only narrower ones."""
        return sum(
            one.base == base and (wide is None or one.is_wide(base) == wide) for one in self.code
        )

    def successors(self, i: int) -> list[int]:
        """Where execution may go on after the i-th instruction.

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
        """Where an indirect branch, of a switch, may go: its table is data, and not in the listing.

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
        """Where the threads that BSSY sent apart go on together: nearly always right here."""
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

    def way(
        self,
        start: int,
        goals: set[int],
        counts: Counts,
        *,
        calls: bool = False,
        inside: range | None = None,
        least: tuple[str, int] = ("", 0),
        passes: bool = True,
    ) -> list[int]:
        """The shortest way from an instruction to one of `goals`, without it; empty without one.

        With no goals it ends in an exit. It has exactly `counts`, no other call unless there may be
        `calls`, and of an opcode `least` or more; it stays `inside` a piece of the code where one
        is given, and `passes` a goal or ends there. Which way the conditions of real data send a
        thread is not known here; the counts single it out.
        """
        wanted = (least[1], *counts.values())
        marked = [self._marks_of(name) for name in (least[0], *counts)]
        begin = (start, *(0 for _ in wanted))
        came: dict[tuple[int, ...], tuple[int, ...] | None] = {begin: None}
        reached = deque([begin])
        while reached:
            state = reached.popleft()
            i, *before = state
            if i in goals and tuple(before) == wanted:
                return self._back(came, came[state])
            if i in goals and not passes:
                continue
            if self.code[i].base == "CALL" and "CALL" not in counts and not calls:
                continue
            here = [have + marks[i] for have, marks in zip(before, marked, strict=True)]
            here[0] = min(here[0], wanted[0])
            if any(have > most for have, most in zip(here, wanted, strict=True)):
                continue
            if not goals and self.code[i].base in ("EXIT", "RET") and tuple(here) == wanted:
                return self._back(came, state)
            for j in self.successors(i):
                further = (j, *here)
                if further not in came and (inside is None or j in inside):
                    came[further] = state
                    reached.append(further)
        return []

    def _back(
        self, came: Mapping[tuple[int, ...], tuple[int, ...] | None], state: tuple[int, ...] | None
    ) -> list[int]:
        found = []
        while state is not None:
            found.append(state[0])
            state = came[state]
        return found[::-1]

    def _marks_of(self, name: str) -> list[bool]:
        """Which instructions a count is of."""
        if name not in self._marks:
            self._marks[name] = [bool(name) and one.matches(name) for one in self.code]
        return self._marks[name]

    def rounds(
        self,
        counts: Counts,
        *,
        calls: bool = False,
        least: tuple[str, int] = ("", 0),
        passes: bool = True,
    ) -> Iterator[list[int]]:
        """A shortest round of each loop that has exactly these counts, as of `way`.

        passes : a round may go around more than once.
        """
        ends: dict[int, int] = {}  # by a loop's head: where the code last goes back to it
        for i in range(len(self.code)):
            ends |= {j: i for j in self.successors(i) if j <= i}
        for head, end in sorted(ends.items()):
            first = self.code[head]
            own = {name: count - first.matches(name) for name, count in counts.items()}
            if min(own.values(), default=0) < 0 or (first.base == "CALL" and not calls):
                continue
            left = least[0], max(least[1] - self._marks_of(least[0])[head], 0)
            how: dict[str, Any] = {"calls": calls, "least": left, "passes": passes}
            how["inside"] = range(head, end + 1)
            for j in self.successors(head):
                rest = [] if j == head else self.way(j, {head}, own, **how)
                if rest or (j == head and not any(own.values()) and not left[1]):
                    yield [head, *rest]

    def path(self, loads: int, stores: int) -> list[Instruction]:
        """The shortest way to an exit with exactly so many loads and stores of 16 bytes."""
        way = self.way(0, set(), {"LDG.128": loads, "STG.128": stores}, calls=True)
        return [self.code[i] for i in way]

    def loop(
        self,
        loads: int,
        stores: int = 0,
        *,
        bits: int = 128,
        shared: tuple[int, int] | None = None,
        least: tuple[str, int] = ("", 0),
    ) -> list[Instruction]:
        """One round of the shortest loop with exactly so many loads and stores; empty without one.

        Those of `bits` count. `shared` asks for so many of 16 bytes of shared memory too, and for
        no call on the way; `least` for an opcode so often, or more.
        """
        counts = {f"LDG.{bits}": loads, f"STG.{bits}": stores}
        if shared is not None:
            counts |= dict(zip(("LDS.128", "STS.128"), shared, strict=True))
        rounds = self.rounds(counts, calls=shared is None, least=least, passes=False)
        return [self.code[i] for i in min(rounds, key=len, default=[])]


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


def by_pipe(path: Iterable[Instruction]) -> Counter[str]:
    """How many instructions of a path each unit runs."""
    return Counter(one.pipe for one in path)
