"""The machine code of CUDA kernels, as `cuobjdump -sass` prints it: instructions, paths, loops.

Nothing runs here: what is counted is the code that the compiler wrote.
"""

from __future__ import annotations

import re
from collections import Counter, deque
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

# Which unit runs an opcode, by the part before the first dot. Integer multiply-adds run beside
# those of float; comparisons, selections and conversions to 16 bits with the integers.
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
PIPE_NAMES = (*PIPES, "uniform", "other")


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
        return self.base == base and f".{bits}" in self.opcode


# On a way: the place; loads and stores so far, of global and of shared memory; of an opcode.
State = tuple[int, int, int, int, int, int]


def _counted(one: Instruction, bits: int, shared: bool, opcode: str) -> tuple[int, ...]:
    """What an instruction adds to the counts of a way."""
    return (
        one.is_wide("LDG", bits),
        one.is_wide("STG", bits),
        shared and one.is_wide("LDS"),
        shared and one.is_wide("STS"),
        one.base == opcode,
    )


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

    def count(self, base: str, *, wide: bool | None = None) -> int:
        """Instructions of an opcode: all, those of 16 bytes, or the narrower ones."""
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

    def path(
        self,
        loads: int,
        stores: int,
        start: int = 0,
        *,
        back: bool = False,
        bits: int = 128,
        shared: tuple[int, int] | None = None,
        least: tuple[str, int] = ("", 0),
    ) -> list[Instruction]:
        """The shortest way with exactly so many loads and stores; empty if there is none.

        Those of `bits` count, 16 bytes unless it is told otherwise. `shared` asks for so many of
        shared memory too, and for no call on the way; `least` for an opcode so often, or more.

        From the first instruction to an exit, or back to where it began. Which way the conditions
        of real data send a thread is not known here; the counts single it out: a way around some
        loads or stores, or through the code for misaligned arrays, has other ones.
        """
        wanted = (loads, stores, *(shared or (0, 0)), least[1])
        counted = [_counted(one, bits, shared is not None, least[0]) for one in self.code]
        begin = (start, 0, 0, 0, 0, 0)
        came: dict[State, State | None] = {begin: None}
        reached = deque([begin])
        while reached:
            state = reached.popleft()
            i, *before = state
            if shared is not None and self.code[i].base == "CALL":
                continue
            here = [one + more for one, more in zip(before, counted[i], strict=True)]
            here[4] = min(here[4], wanted[4])
            if any(one > most for one, most in zip(here, wanted, strict=True)):
                continue
            ways = self.successors(i)
            ends = start in ways if back else self.code[i].base in ("EXIT", "RET")
            if tuple(here) == wanted and ends:
                return self._way(came, state)
            for j in ways:
                further = (j, here[0], here[1], here[2], here[3], here[4])
                if further not in came and not (back and j == start):
                    came[further] = state
                    reached.append(further)
        return []

    def _way(
        self,
        came: dict[State, State | None],
        state: State | None,
    ) -> list[Instruction]:
        """The instructions up to a state, in order."""
        way = []
        while state is not None:
            way.append(self.code[state[0]])
            state = came[state]
        return way[::-1]

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

        What counts is told as for `path`.
        """
        heads = {j for i in range(len(self.code)) for j in self.successors(i) if j <= i}
        rounds: list[list[Instruction]] = []
        for head in sorted(heads):
            way = self.path(loads, stores, head, back=True, bits=bits, shared=shared, least=least)
            if way:
                rounds.append(way)
        return min(rounds, key=len, default=[])


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
