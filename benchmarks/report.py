"""The benchmark of the CPU as a page: what is slower than a peer, then every table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fastact.bench.bench import LEGEND, columns, show, title_of
from fastact.bench.turns import Row
from fastact.measure.peers import (
    FIRST,
    FIRST_OF_TORCH,
    FRESH,
    NUMPY,
    ON_REQUEST,
    OURS,
    OURS_OF_TORCH,
    PARTIAL,
    PEERS,
    TORCH,
)
from fastact.ops.engine.op import ops
from fastact.terminal import markdown_table, paragraph, say

from .board import say_left
from .results import Results
from .scoreboard import scaling
from .workloads import FAMILIES
from .workloads.work import SMALL, Family


def _family(row: Row) -> Family:
    return FAMILIES[ops[row.op].family]


def print_rows(rows: Sequence[Row]) -> None:
    """Print a table."""
    show(rows, _family(rows[0]).heading, (*PEERS, *ON_REQUEST))


def legend(rows: Sequence[Row]) -> str:
    """What the columns of these rows' tables mean."""
    notes = dict.fromkeys(_family(row).note for row in rows)
    return "\n".join([LEGEND, *filter(None, notes)])


def print_end(results: Results) -> None:
    """Print the legend."""
    if results.rows:
        say("", paragraph(legend(results.rows)))
    say_left(results)


def times(ratio: float | None) -> str:
    """How many times faster, in two digits.

    >>> times(8.64), times(23.4), times(None)
    ('8.6 ×', '23 ×', '–')
    """
    if ratio is None:
        return "–"
    return f"{ratio:.0f} ×" if ratio >= 9.95 else f"{ratio:.1f} ×"


_SMALL_LEGEND = """\
What one call out of Python costs at so few elements that nothing else counts, in µs: medians of one
run. fastact writes to a given array; peers, and fastact "without out=", return a new one. first:
as a call costs the first time, when nothing of an earlier one is replayed. numpy is what its users
write, often several calls; torch calls its own kernel, or autograd where it has none; before it
stand our calls of tensors. × numpy, × torch: their time over fastact's on their arrays."""

_SMALL_COLUMNS = (OURS, FRESH, FIRST, NUMPY, OURS_OF_TORCH, FIRST_OF_TORCH, TORCH)
_BESIDE = {NUMPY: OURS, TORCH: OURS_OF_TORCH}  # a peer, and our call of its arrays


def _small(rows: Sequence[Row], processor: str) -> str:
    """The page of small calls: a table for each family, a line for each case."""
    named = {name for row in rows for name in row.seconds}
    columns = [name for name in _SMALL_COLUMNS if name in named]
    peers = [peer for peer in _BESIDE if peer in named]
    parts = [
        "# The cost of a small call",
        f"{processor}. Measured by `python -m benchmarks --small`.",
        _SMALL_LEGEND,
    ]
    for family in dict.fromkeys(ops[row.op].family for row in rows):
        header = ["op", "elements or shape", "direction", "type"]
        header += ["without out=" if name == FRESH else name for name in columns]
        header += [f"× {peer}" for peer in peers]
        lines = []
        for row in (row for row in rows if ops[row.op].family == family):
            line = [row.op, row.what, row.direction, row.dtype]
            for name in columns:
                line.append(f"{1e6 * row.seconds[name]:.2f}" if name in row.seconds else "–")
            lines.append(line + [times(_beside(row, peer)) for peer in peers])
        parts += [f"## {family}", markdown_table(header, lines, 4)]
    return "\n\n".join(parts) + "\n"


def _beside(row: Row, peer: str) -> float | None:
    """A peer's time over our call's on its arrays."""
    ours = row.ratios.get(_BESIDE[peer], 1.0)
    return row.ratios[peer] / ours if peer in row.ratios else None


def markdown(results: Results) -> str:
    """The page of a benchmark."""
    rows, processor = results.rows, results.facts["processor"]
    if gain := scaling(rows):
        return f"# What more threads gain\n\n{processor}. {gain}\n"
    if all(row.size <= SMALL for row in rows):
        return _small(rows, processor)
    parts = ["# Speed on the CPU", f"{processor}. {legend(rows)}"]
    slower = [
        f"{title_of(row)}, {row.what}: {row.ratios[peer]:.2f} × {peer}"
        for row in rows
        for peer in PEERS
        if peer not in PARTIAL and row.ratios.get(peer, 1.0) < 0.95
    ]
    if slower:
        parts += ["Slower than a peer:", "\n".join(f"- {line}" for line in slower)]
    for title, part in groupby(rows, title_of):
        of = list(part)
        header, *lines = columns(of, _family(of[0]).heading, (*PEERS, *ON_REQUEST))
        parts += [f"## {title}", markdown_table(header, lines, 1)]
    return "\n\n".join(parts) + "\n"
