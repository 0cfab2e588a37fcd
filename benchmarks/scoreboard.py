"""One page that says where we stand: cells ahead, level and behind, and the worst of them.

A cell is a row of the benchmark from 1 024 elements on, beside one peer, on the most threads that
were measured.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from fastact.bench.turns import Row
from fastact.measure.peers import COPY, MKL, ON_REQUEST, OURS, PARTIAL, PEERS
from fastact.ops.engine.op import ops
from fastact.terminal import markdown_table

from .workloads.work import ITEM

_FEWEST_ELEMENTS = 1024
_LEVEL = 0.05
_WORST = 10


class Cell(NamedTuple):
    """Beside a peer: how many times our time it takes."""

    row: Row
    peer: str
    ratio: float

    @property
    def state(self) -> str:
        """Ahead, level or behind."""
        if abs(self.ratio - 1) <= _LEVEL:
            return "level"
        return "ahead" if self.ratio > 1 else "behind"

    def fits(self, pattern: Iterable[Iterable[str]], *others: str) -> bool:
        """Whether each condition of a pattern has a word that is the cell's, or of the others."""
        row = self.row
        words = {row.op, row.direction, row.dtype, f"{8 * ITEM[row.dtype]} bits", *others}

        def is_so(word: str) -> bool:
            is_peer = word.replace(" ", "").lower() == self.peer
            whole = rf"(?<![\w,]){re.escape(word)}(?!,?\w)"
            return word in words or is_peer or re.search(whole, row.what) is not None

        return all(any(map(is_so, alternatives)) for alternatives in pattern)


def cells(rows: Sequence[Row]) -> list[Cell]:
    """The cells of the rows, on the most threads that there are."""
    threads = max((row.threads for row in rows), default=0)
    return [
        Cell(row, peer, row.ratios[peer])
        for row in rows
        if row.size >= _FEWEST_ELEMENTS and row.threads == threads
        for peer in (*PEERS, *ON_REQUEST)
        if peer in row.ratios
    ]


def span(ratios: Sequence[float]) -> str:
    """The least and the largest, or the one that there is."""
    return " to ".join(dict.fromkeys(f"{end(ratios):.2f}" for end in (min, max)))


def _count(of: Iterable[Cell]) -> str:
    """Ahead / level / behind, the last in bold."""
    states = Counter(cell.state for cell in of)
    behind = f"**{states['behind']}**" if states["behind"] else "0"
    return f"{states['ahead']} / {states['level']} / {behind}" if states else "–"


def _counts(
    of: Sequence[Cell], peers: Sequence[str], value: Callable[[Cell], str], known: Iterable[str]
) -> list[list[str]]:
    """A line for each value that there is, a column for each peer."""
    found = {name: [cell for cell in of if value(cell) == name] for name in known}
    return [
        [name, *(_count(cell for cell in several if cell.peer == peer) for peer in peers)]
        for name, several in found.items()
        if several
    ]


def worst(of: Sequence[Cell], count: int = _WORST) -> list[Cell]:
    """The cells that are furthest behind, each beside the strongest of its peers alone."""
    strongest: dict[Any, Cell] = {}
    for cell in of:
        if cell.peer not in PARTIAL:
            known = strongest.get(cell.row.key)
            strongest[cell.row.key] = (
                cell if known is None else min(known, cell, key=attrgetter("ratio"))
            )
    return sorted(strongest.values(), key=attrgetter("ratio"))[:count]


def _lines(of: Sequence[Cell]) -> str:
    header = ["op", "direction", "type", "elements or shape", "peer", "× peer", "× copy"]
    lines = [
        [
            cell.row.op,
            cell.row.direction,
            cell.row.dtype,
            cell.row.what,
            cell.peer,
            f"{cell.ratio:.2f}",
            f"{1 / cell.row.ratios[COPY]:.2f}",
        ]
        for cell in of
    ]
    return markdown_table(header, lines, 5)


LEGEND = f"""\
Cells ahead / level / behind: our time against the peer's in one run, by the median of the ratios
of the rounds; level is within {100 * _LEVEL:.0f} %. × peer: its time over ours, below 1 it is
faster. × copy: our time over the time of a parallel copy of as many bytes; 1 is the speed of
memory."""

_PARTIAL_LEGEND = """\
{peers}: the transcendental function of an activation alone, within 1 ULP, which is a mark to reach
and no peer: it does not count among the worst."""


def scoreboard(facts: Mapping[str, Any], rows: Sequence[Row], left: int = 0) -> str:
    """The page, of the facts of the machine and of all rows."""
    found = cells(rows)
    there = {cell.peer for cell in found}
    peers = [peer for peer in (*PEERS, *ON_REQUEST) if peer in there]
    threads = max((row.threads for row in rows), default=0)
    commit = facts.get("commit") or "unknown"
    named = ", ".join(f"{peer} {version}" for peer, version in facts["peers"].items())
    about = (
        f"{facts['processor']}, {threads} thread{'s' if threads != 1 else ''}, "
        f"instruction set {facts['isa']['chosen']}; fastact {facts['version']} ({commit}), "
        f"{facts['compiler']}; {named}; {facts.get('date', '')}. "
        f"{len({cell.row.key for cell in found})} cells from {_FEWEST_ELEMENTS:,} elements on."
    )
    header = ["", *peers]
    counts = partial(_counts, found, peers)
    total = [
        *counts(lambda cell: "**all**", ["**all**"]),
        *counts(lambda cell: cell.row.direction, ("forward", "backward")),
        *counts(lambda cell: cell.row.dtype, ITEM),
    ]
    families = dict.fromkeys(op.family for op in ops.values())
    by_family = counts(
        lambda cell: f"{ops[cell.row.op].family}, {cell.row.dtype}",
        [f"{family}, {dtype}" for family in families for dtype in ITEM],
    )
    legend = [LEGEND]
    alone = [peer for peer in peers if peer in PARTIAL]
    if alone:
        legend.append(_PARTIAL_LEGEND.format(peers=", ".join(alone)))
    parts = [
        f"# Scoreboard: {facts['processor']}, {facts['isa']['chosen']}",
        about,
        *([f"Not measured yet: {left} rows."] if left else []),
        *legend,
        markdown_table(header, total),
        "## By family and type",
        markdown_table(header, by_family),
        "## The worst",
        _lines(worst(found)),
    ]
    if MKL in peers:
        furthest = sorted((cell for cell in found if cell.peer == MKL), key=attrgetter("ratio"))[:5]
        parts += ["Furthest behind MKL's function alone:", _lines(furthest)]
    return "\n\n".join(parts) + "\n"


def scaling(rows: Sequence[Row]) -> str:
    """How much faster more threads are, for us, a copy and each peer: a table in Markdown.

    Empty where rows of one number of threads are there alone.
    """
    counts = sorted({row.threads for row in rows})
    if len(counts) < 2:
        return ""
    fewest, most = counts[0], counts[-1]
    alone = {row.key[:-1]: row for row in rows if row.threads == fewest}
    pairs = [
        (alone[row.key[:-1]], row) for row in rows if row.threads == most and row.key[:-1] in alone
    ]
    named = dict.fromkeys(name for _, row in pairs for name in row.seconds)
    who = [name for name in (OURS, COPY, *PEERS, *ON_REQUEST) if name in named]
    lines = []
    for one, many in pairs:
        line = [many.op, many.direction, many.dtype, many.what]
        for name in who:
            there = name in one.seconds and name in many.seconds
            line.append(f"{one.seconds[name] / many.seconds[name]:.2f}" if there else "–")
        lines.append(line)
    header = ["op", "direction", "type", "elements or shape", *who]
    about = f"Time on {fewest} over time on {most} threads, each of a run of its own."
    return f"{about}\n\n{markdown_table(header, lines, 4)}"
