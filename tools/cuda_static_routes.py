"""What a warp executes of a kernel: from its machine code, and how often its loop runs.

A step names the loop by the accesses of one round, with how often it runs, or what a kernel without
one has; the rest is the shortest way. So what surrounds the loop is counted as well: addresses,
folds over threads, divisions, stores of statistics.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sass

_REGISTER = re.compile(r"\bR\d+\b")
_WIDTHS = ((".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1))


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

    diverges : straight pieces that some lanes jump over are executed for the others.
    folds : shuffles of a row's folds, which the shortest way jumps over.
    near : what is loaded after the first use of x is in a cache already.
    """

    counts: sass.Counts
    near: bool = False
    diverges: bool = False
    folds: int = 0


Step = Loop | Via


@dataclass
class Trace:
    """What one warp executes: stretches of instructions, each so many times, in order."""

    parts: list[tuple[int, tuple[sass.Instruction, ...]]] = field(default_factory=list)
    ahead: dict[tuple[sass.Instruction, ...], int] = field(default_factory=dict)  # Loop's
    folds: int = 0
    near: bool = False

    def add(self, way: Sequence[sass.Instruction], trips: int = 1, ahead: int = 0) -> None:
        """One more stretch."""
        if way and trips:
            self.parts.append((trips, tuple(way)))
            if ahead:
                self.ahead[tuple(way)] = ahead

    def count(self, name: str = "") -> int:
        """Instructions of an opcode, or all; a shuffle of a fold has two beside it."""
        found = sum(
            trips * sum(not name or one.matches(name) for one in way) for trips, way in self.parts
        )
        return found + self.folds * {"": 3, "SHFL": 1}.get(name, 0)

    def loads(self) -> tuple[int, int, int]:
        """Rounds of loads that a warp waits for, from DRAM and from caches; bytes in flight.

        A round ends where a number is used that one of its loads brings: what the compiler takes
        apart right behind its load is a round of its own.
        """
        far = near = most = 0
        for trips, way in self.parts:
            waited: list[bool] = []  # of each round, whether it has whole vectors from DRAM
            pending: dict[str, int] = {}  # bytes, by the first register
            taken: set[str] = set()
            for one in way:
                used = set(_REGISTER.findall(one.operands))
                if pending and used & taken:
                    waited.append(any(size == 16 for size in pending.values()))
                    pending, taken = {}, set()
                if one.base == "LDG":
                    first = _REGISTER.findall(one.operands)[:1]
                    size = next((n for word, n in _WIDTHS if word in one.opcode), 4)
                    pending |= dict.fromkeys(first, size)
                    taken |= {f"R{int(r[1:]) + k}" for r in first for k in range(-(-size // 4))}
                    most = max(most, sum(pending.values()) // self.ahead.get(way, 1))
            if pending:
                waited.append(any(size == 16 for size in pending.values()))
            if way not in self.ahead:
                far += trips * sum(waited)
                near += trips * (len(waited) - sum(waited))
        return (1, far + near - 1, most) if self.near else (far, near, most)

    def rows_ahead(self) -> int:
        """Rows that are loaded while the one before is computed."""
        return sum(trips * self.ahead.get(way, 0) for trips, way in self.parts)


class Router:
    """Finds the ways of a route through one kernel."""

    def __init__(self, code: sass.Function) -> None:
        self.code = code
        self.index = {one.address: i for i, one in enumerate(code.code)}
        self._ways: dict[tuple[Any, ...], list[int]] = {}
        self._rounds: dict[tuple[Any, ...], list[list[int]]] = {}

    def trace(self, step: Step) -> Trace:
        """All that a warp executes, from the first instruction to the exit."""
        made = Trace()
        if isinstance(step, Loop):
            made.add(self._instructions(self._go(self._enter(step, made), {})))
            return made
        way = self._go(0, step.counts)
        every = self._instructions(self._with_pieces(way) if step.diverges else way)
        made.add(every)
        made.folds, made.near = step.folds, step.near
        return made

    def _way(self, start: int, goals: set[int], counts: sass.Counts) -> list[int]:
        """Function.way, found once."""
        key = start, *goals, *counts.items()
        if key not in self._ways:
            self._ways[key] = self.code.way(start, goals, counts)
        return self._ways[key]

    def _loops(self, counts: sass.Counts) -> list[list[int]]:
        """Function.rounds, found once."""
        key = tuple(counts.items())
        if key not in self._rounds:
            self._rounds[key] = list(self.code.rounds(counts))
        return self._rounds[key]

    def has_way(self, counts: sass.Counts) -> bool:
        """Whether there is a way from the beginning to an exit that has these counts."""
        return bool(self._way(0, set(), counts))

    def has_loop(self, counts: sass.Counts) -> bool:
        """Whether a loop whose rounds have these counts is reached."""
        return any(found[0] == 0 or self._way(0, {found[0]}, {}) for found in self._loops(counts))

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
        way = self._way(at, set(), counts)
        if not way:
            raise ValueError(f"{self.code.name}: no way on from {self.code.code[at].address:#x}")
        return way

    def _enter(self, loop: Loop, made: Trace) -> int:
        """The way to a loop and its rounds; returns where the loop is left for."""
        ways = [(self._way(0, {found[0]}, {}), found) for found in self._loops(loop.counts)]
        reached = [(way, found) for way, found in ways if way or found[0] == 0]
        if not reached:
            raise ValueError(f"{self.code.name}: no loop of {dict(loop.counts)} is reached")
        way, found = min(reached, key=lambda one: len(one[0]) + len(one[1]) * loop.trips)
        made.add(self._instructions(way))
        made.add(self._instructions(found), loop.trips, loop.ahead)
        leaves = [j for j in self.code.successors(found[-1]) if j != found[0]]
        return leaves[0] if leaves else found[0]
