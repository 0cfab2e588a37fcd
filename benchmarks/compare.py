"""Calls of several libraries timed in turns, and pages with tables: what scripts of peers share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastact.bench.turns import medians, take_turns
from fastact.measure.peers import OURS
from fastact.runtime.threads import get_num_threads, num_threads

from .results import write_whole

Call = Callable[[], Any]


class Timed(NamedTuple):
    """Median seconds of a call by name, and the medians of the rounds' ratios to ours."""

    seconds: dict[str, float]
    ratios: dict[str, float]

    def cells(self, goals: Mapping[str, float]) -> list[str]:
        """Return how many times as long each peer takes, in bold where that misses its goal."""
        return [
            marked(self.ratios[name], goal) if name in self.ratios else "–"
            for name, goal in goals.items()
        ]


def marked(ratio: float, goal: float = 1.0) -> str:
    """Return a ratio as a page has it: in bold below the goal."""
    return f"{ratio:.2f}" if ratio >= goal else f"**{ratio:.2f}**"


def compare(calls: Mapping[str, Call], seconds: float, threads: int | None = None) -> Timed:
    """Time calls, of which one is `OURS`, in turns and for about so many seconds."""
    ours_first = {OURS: calls[OURS], **calls}
    with num_threads(threads or get_num_threads()):
        found = medians(take_turns(ours_first, seconds))
    return Timed(found["seconds"], found["ratios"])


def installed(names: Sequence[str]) -> dict[str, Any]:
    """Import the packages that are installed; the others are named."""
    found = {}
    for name in names:
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            print(f"{name} is left out: it is not installed", file=sys.stderr)
    return found


def put_between_marks(page: Path, mark: str, text: str) -> None:
    """Write text in the place of what a page has between its marks of a name."""
    begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
    above, _, rest = page.read_text(encoding="utf-8").partition(begin)
    write_whole(page, f"{above}{begin}\n\n{text}\n\n{end}{rest.partition(end)[2]}")
