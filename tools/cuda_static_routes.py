"""What a warp executes of a kernel: from its machine code, and how often each of its loops runs.

A route names the loops in their order, each by the accesses of one round, with how often it runs;
what lies between them is the shortest way there. So what surrounds the loops is counted as well:
addresses, folds over threads, divisions, stores of statistics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import sass


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its rounds, and what a round has exactly.

    near : what it loads is in a cache already.
    ahead : the rows of a round, where each is loaded while the one before is computed.
    """

    trips: int
    counts: sass.Counts
    near: bool = False
    ahead: int = 0


@dataclass(frozen=True)
class Via:
    """A stretch without a loop: what it has exactly, and as little as can be of all else."""

    counts: sass.Counts
    near: bool = False
    diverges: bool = False  # straight pieces that some lanes jump over are executed for the others


Step = Loop | Via


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

    def trace(self, steps: Sequence[Step]) -> Trace:
        """All that a warp executes, from the first instruction to the exit."""
        made = Trace()
        at, pending = self._follow(steps, made)
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
                inner = self.code.way(self.index[one.target], set(), {}, calls=True)
                found += [self.code.code[j] for j in inner]
        return found

    def _go(self, at: int, goals: set[int], counts: sass.Counts) -> list[int]:
        way = self.code.way(at, goals, counts)
        if not way and at not in goals:
            raise ValueError(f"{self.code.name}: no way on from {self.code.code[at].address:#x}")
        return way

    def _follow(self, steps: Sequence[Step], made: Trace) -> tuple[int, sass.Counts]:
        """Goes the steps; returns where it then is, and what the next stretch has to have."""
        pending: dict[str, int] = {}
        at, near = 0, False
        for step in steps:
            if isinstance(step, Via):
                pending = {**pending, **step.counts}
                near = near or step.near
            elif step.trips:
                at = self._enter(step, at, made, pending, near)
                pending, near = {}, False
        return at, pending

    def _enter(self, loop: Loop, at: int, made: Trace, pending: sass.Counts, near: bool) -> int:
        """The way to a loop and its rounds; returns where the loop is left for."""
        best: tuple[int, list[int], list[int]] | None = None
        for found in self.code.rounds(loop.counts):
            way = (
                []
                if at == found[0] and not any(pending.values())
                else self.code.way(at, {found[0]}, pending)
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
