"""What a warp executes of a kernel: from its machine code, and how often each of its loops runs.

A route names the loops in their order, each by the accesses of one round, with how often it runs;
what lies between them is the shortest way there. So what surrounds the loops is counted as well:
addresses, folds over threads, divisions, stores of statistics.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import sass

Counts = Mapping[str, int]


def _matches(one: sass.Instruction, name: str) -> bool:
    """Whether an instruction has the opcode and the modifiers of a name such as "LDG.128"."""
    base, *modifiers = name.split(".")
    return one.base == base and all(f".{word}" in one.opcode for word in modifiers)


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its rounds, and what a round has exactly.

    near : what it loads is in a cache already.
    ahead : the rows of a round, where each is loaded while the one before is computed.
    """

    trips: int
    counts: Counts
    near: bool = False
    ahead: int = 0


@dataclass(frozen=True)
class Via:
    """A stretch without a loop: what it has exactly, and as little as can be of all else."""

    counts: Counts
    near: bool = False
    diverges: bool = False  # straight pieces that some lanes jump over are executed for the others


@dataclass(frozen=True)
class Nest:
    """Steps that are repeated together."""

    trips: int
    steps: Sequence[Step]


Step = Loop | Via | Nest


@dataclass
class Trace:
    """What one warp executes: stretches of instructions, each so many times, in order."""

    parts: list[tuple[int, tuple[sass.Instruction, ...], bool]] = field(default_factory=list)
    ahead: dict[tuple[sass.Instruction, ...], int] = field(default_factory=dict)  # Loop's

    def add(
        self, way: Sequence[sass.Instruction], trips: int = 1, near: bool = False, ahead: int = 0
    ) -> None:
        """One more stretch."""
        if way and trips:
            self.parts.append((trips, tuple(way), near))
            if ahead:
                self.ahead[tuple(way)] = ahead

    def count(self, name: str = "") -> int:
        """Instructions of an opcode, or all."""
        return sum(
            trips * sum(not name or _matches(one, name) for one in way)
            for trips, way, _ in self.parts
        )

    def rounds(self) -> tuple[int, int]:
        """Stretches that load whole vectors from DRAM, and those whose loads a cache answers."""
        far = near = 0
        for trips, way, is_near in self.parts:
            if way in self.ahead or not any(one.base == "LDG" for one in way):
                continue
            if is_near or not any(one.is_wide("LDG") for one in way):
                near += trips
            else:
                far += trips
        return far, near

    def wide_loads(self) -> int:
        """The most loads of 16 bytes that a stretch has, which are in flight together."""
        return max(
            (
                sum(one.is_wide("LDG") for one in way) // self.ahead.get(way, 1)
                for _, way, near in self.parts
                if not near
            ),
            default=0,
        )

    def rows_ahead(self) -> int:
        """Rows that are loaded while the one before is computed."""
        return sum(trips * self.ahead.get(way, 0) for trips, way, _ in self.parts)

    def __iter__(self) -> Iterator[tuple[sass.Instruction, bool]]:
        for trips, way, near in self.parts:
            for _ in range(trips):
                for one in way:
                    yield one, near


class Router:
    """Finds the ways of a route through one kernel."""

    def __init__(self, code: sass.Function) -> None:
        self.code = code
        self.index = {one.address: i for i, one in enumerate(code.code)}
        self._marks: dict[str, list[bool]] = {}
        self._rounds: dict[tuple[tuple[str, int], ...], list[list[int]]] = {}

    def way(
        self,
        start: int,
        goals: set[int],
        counts: Counts,
        *,
        calls: bool = False,
        inside: range | None = None,
    ) -> list[int]:
        """The shortest way from an instruction to one of `goals`, without it, or to an exit.

        With no goals it ends in an exit. It has exactly `counts`, and no other call; it stays
        `inside` a piece of the code where one is given.
        """
        names = list(counts)
        wanted = tuple(counts[name] for name in names)
        marked = [self._marks_of(name) for name in names]
        code = self.code.code
        begin = (start, *(0 for _ in names))
        came: dict[tuple[int, ...], tuple[int, ...] | None] = {begin: None}
        reached = deque([begin])
        while reached:
            state = reached.popleft()
            i, *before = state
            if i in goals and tuple(before) == wanted:
                return self._back(came, came[state])
            if code[i].base == "CALL" and "CALL" not in counts and not calls:
                continue
            here = tuple(have + marks[i] for have, marks in zip(before, marked, strict=True))
            if any(have > most for have, most in zip(here, wanted, strict=True)):
                continue
            if not goals and code[i].base in ("EXIT", "RET") and here == wanted:
                return self._back(came, state)
            for j in self.code.successors(i):
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
            self._marks[name] = [_matches(one, name) for one in self.code.code]
        return self._marks[name]

    def rounds(self, counts: Counts) -> list[list[int]]:
        """A shortest round of each loop that has exactly these counts."""
        key = tuple(sorted(counts.items()))
        if key not in self._rounds:
            self._rounds[key] = self._find_rounds(counts)
        return self._rounds[key]

    def _find_rounds(self, counts: Counts) -> list[list[int]]:
        code = self.code.code
        ends: dict[int, int] = {}  # by a loop's head: where the code last goes back to it
        for i in range(len(code)):
            for j in self.code.successors(i):
                if j <= i:
                    ends[j] = i
        found = []
        for head in sorted(ends):
            first = [head]
            inside = range(head, ends[head] + 1)
            for j in self.code.successors(head):
                own = {name: count - _matches(code[head], name) for name, count in counts.items()}
                if min(own.values(), default=0) < 0 or code[head].base == "CALL":
                    continue
                if j == head:
                    rest: list[int] = []
                else:
                    rest = self.way(j, {head}, own, inside=inside)
                    if not rest:
                        continue
                found.append(first + rest)
        return found

    def trace(self, steps: Sequence[Step]) -> Trace:
        """All that a warp executes, from the first instruction to the exit."""
        made = Trace()
        at, pending = self._follow(steps, 0, made, {})
        diverges = any(isinstance(step, Via) and step.diverges for step in steps)
        way = self._go(at, set(), pending)
        last = self._instructions(self._with_pieces(way) if diverges else way)
        # What follows the last fold of a row reads what caches have, where the last step says so.
        is_near = bool(steps) and isinstance(steps[-1], Via) and steps[-1].near
        folds = [i for i, one in enumerate(last) if one.base == "SHFL"]
        split = folds[-1] if is_near and folds else 0
        made.add(last[:split])
        made.add(last[split:], near=is_near)
        return made

    def _with_pieces(self, way: Sequence[int]) -> list[int]:
        """With the straight pieces that branches of the way jump over."""
        leaves = ("BRA", "CALL", "EXIT", "RET", "LDG", "STG", "BAR", "BRX", "JMP")
        full: list[int] = []
        for i, j in zip(way, [*way[1:], -1], strict=True):
            full.append(i)
            piece = range(i + 1, j)
            if self.code.code[i].base == "BRA" and not any(
                self.code.code[k].base in leaves for k in piece
            ):
                full += piece
        return full

    def _instructions(self, way: Sequence[int]) -> list[sass.Instruction]:
        """Those of a way, with what its calls execute."""
        found = []
        for i in way:
            one = self.code.code[i]
            found.append(one)
            if one.base == "CALL" and one.target in self.index:
                inner = self.way(self.index[one.target], set(), {}, calls=True)
                found += [self.code.code[j] for j in inner]
        return found

    def _go(self, at: int, goals: set[int], counts: Counts) -> list[int]:
        way = self.way(at, goals, counts)
        if not way and at not in goals:
            raise ValueError(f"{self.code.name}: no way on from {self.code.code[at].address:#x}")
        return way

    def _follow(
        self, steps: Sequence[Step], at: int, made: Trace, pending: Counts
    ) -> tuple[int, Counts]:
        """Goes the steps; returns where it then is, and what the next stretch has to have."""
        near = False
        for step in steps:
            if isinstance(step, Via):
                pending = {**pending, **step.counts}
                near = near or step.near
            elif isinstance(step, Loop):
                if step.trips == 0:
                    continue
                at = self._enter(step, at, made, pending, near)
                pending, near = {}, False
            else:
                at, pending = self._repeat(step, at, made, pending)
        return at, pending

    def _repeat(self, nest: Nest, at: int, made: Trace, pending: Counts) -> tuple[int, Counts]:
        """The steps once from here, and then again from where they ended."""
        if nest.trips == 0:
            return at, pending
        at, pending = self._follow(nest.steps, at, made, pending)
        if nest.trips > 1:
            again = Trace()
            end, left = self._follow(nest.steps, at, again, pending)
            for _ in range(nest.trips - 1):
                made.parts += again.parts
            return end, left
        return at, pending

    def _enter(self, loop: Loop, at: int, made: Trace, pending: Counts, near: bool) -> int:
        """The way to a loop and its rounds; returns where the loop is left for."""
        best: tuple[int, list[int], list[int]] | None = None
        for found in self.rounds(loop.counts):
            way = (
                []
                if at == found[0] and not any(pending.values())
                else self.way(at, {found[0]}, pending)
            )
            if way or (at == found[0] and not any(pending.values())):
                length = len(way) + len(found) * loop.trips
                if best is None or length < best[0]:
                    best = length, way, found
        if best is None:
            raise ValueError(f"{self.code.name}: no loop of {dict(loop.counts)} is reached")
        _, way, found = best
        made.add(self._instructions(way), near=near)
        made.add(self._instructions(found), loop.trips, loop.near, loop.ahead)
        leaves = [j for j in self.code.successors(found[-1]) if j != found[0]]
        return leaves[0] if leaves else found[0]


def pattern(name: str) -> re.Pattern[str]:
    """For a mangled name that has all words of `name` in their order."""
    return re.compile(".*".join(map(re.escape, name.split())))
