"""What a warp executes of a kernel: from its machine code, and how often its loop runs.

A step names the loop by the accesses of one round, with how often it runs, or what a kernel without
one has; the rest is the shortest way. So what surrounds the loop is counted as well: addresses,
folds over threads, divisions, stores of statistics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import sass


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its rounds, and what a round has exactly.

    ahead : the rows of a round, where each is loaded while the one before is computed.
    """

    trips: int
    counts: sass.Counts
    ahead: int = 0


@dataclass(frozen=True)
class Via:
    """A kernel without a loop: what it has exactly, and as little as can be of all else.

    near : what is loaded after the last fold of a row is in a cache already.
    diverges : straight pieces that some lanes jump over are executed for the others.
    """

    counts: sass.Counts
    near: bool = False
    diverges: bool = False


Step = Loop | Via


@dataclass
class Trace:
    """What one warp executes: stretches of instructions, each so many times, in order."""

    parts: list[tuple[int, tuple[sass.Instruction, ...], bool]] = field(default_factory=list)
    ahead: dict[tuple[sass.Instruction, ...], int] = field(default_factory=dict)  # Loop's

    def add(
        self, way: Sequence[sass.Instruction], trips: int = 1, ahead: int = 0, near: bool = False
    ) -> None:
        """One more stretch."""
        if way and trips:
            self.parts.append((trips, tuple(way), near))
            if ahead:
                self.ahead[tuple(way)] = ahead

    def count(self, name: str = "") -> int:
        """Instructions of an opcode, or all."""
        return sum(
            trips * sum(not name or one.matches(name) for one in way)
            for trips, way, _ in self.parts
        )

    def rounds(self) -> tuple[int, int]:
        """Stretches that load whole vectors from DRAM, and those whose loads a cache answers."""
        far = near = 0
        for trips, way, is_near in self.parts:
            if way in self.ahead or not any(one.base == "LDG" for one in way):
                continue
            if is_near or not any(one.matches("LDG.128") for one in way):
                near += trips
            else:
                far += trips
        return far, near

    def wide_loads(self) -> int:
        """The most loads of 16 bytes that a stretch has, which are in flight together."""
        return max(
            (
                sum(one.matches("LDG.128") for one in way) // self.ahead.get(way, 1)
                for _, way, near in self.parts
                if not near
            ),
            default=0,
        )

    def rows_ahead(self) -> int:
        """Rows that are loaded while the one before is computed."""
        return sum(trips * self.ahead.get(way, 0) for trips, way, _ in self.parts)


class Router:
    """Finds the ways of a route through one kernel."""

    def __init__(self, code: sass.Function) -> None:
        self.code = code
        self.index = {one.address: i for i, one in enumerate(code.code)}

    def trace(self, step: Step) -> Trace:
        """All that a warp executes, from the first instruction to the exit."""
        made = Trace()
        if isinstance(step, Loop):
            made.add(self._instructions(self._go(self._enter(step, made), {})))
            return made
        way = self._go(0, step.counts)
        every = self._instructions(self._with_pieces(way) if step.diverges else way)
        folds = [i for i, one in enumerate(every) if one.base == "SHFL"]
        split = folds[-1] if step.near and folds else 0
        made.add(every[:split])
        made.add(every[split:], near=step.near)
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
        """The instructions of a way, and of the functions that it calls."""
        found = []
        for i in way:
            one = self.code.code[i]
            found.append(one)
            if one.base == "CALL" and one.target in self.index:
                inner = self.code.way(self.index[one.target], set(), {}, calls=True)
                found += [self.code.code[j] for j in inner]
        return found

    def _go(self, at: int, counts: sass.Counts) -> list[int]:
        """The way to an exit."""
        way = self.code.way(at, set(), counts)
        if not way:
            raise ValueError(f"{self.code.name}: no way on from {self.code.code[at].address:#x}")
        return way

    def _enter(self, loop: Loop, made: Trace) -> int:
        """The way to a loop and its rounds; returns where the loop is left for."""
        ways = [
            (self.code.way(0, {found[0]}, {}), found) for found in self.code.rounds(loop.counts)
        ]
        reached = [(way, found) for way, found in ways if way or found[0] == 0]
        if not reached:
            raise ValueError(f"{self.code.name}: no loop of {dict(loop.counts)} is reached")
        way, found = min(reached, key=lambda one: len(one[0]) + len(one[1]) * loop.trips)
        made.add(self._instructions(way))
        made.add(self._instructions(found), loop.trips, loop.ahead)
        leaves = [j for j in self.code.successors(found[-1]) if j != found[0]]
        return leaves[0] if leaves else found[0]


def pattern(name: str) -> re.Pattern[str]:
    """For a mangled name that has all words of `name` in their order."""
    return re.compile(".*".join(map(re.escape, name.split())))
