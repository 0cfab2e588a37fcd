"""The benchmark of the CPU as a page: what is slower than a peer, then every table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from fastact.bench.bench import LEGEND, columns, title_of
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
from fastact.terminal import markdown_table

from .scoreboard import scaling
from .workloads import FAMILIES
from .workloads.work import SMALL


def table_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], int]:
    """One table: header, lines, and how many columns of them are names."""
    heading = FAMILIES[ops[rows[0].op].family].heading
    header, *lines = columns(rows, heading, (*PEERS, *ON_REQUEST))
    return header, lines, int(heading == "shape")


def legend(rows: Sequence[Row]) -> str:
    """What the columns of these rows' tables mean."""
    notes = dict.fromkeys(FAMILIES[ops[row.op].family].note for row in rows)
    return "\n".join([LEGEND, *filter(None, notes)])


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

# Columns, and whose time stands in them.
_SMALL_COLUMNS = {
    OURS: OURS,
    "without out=": FRESH,
    FIRST: FIRST,
    NUMPY: NUMPY,
    OURS_OF_TORCH: OURS_OF_TORCH,
    FIRST_OF_TORCH: FIRST_OF_TORCH,
    TORCH: TORCH,
}
_BESIDE = {NUMPY: OURS, TORCH: OURS_OF_TORCH}  # a peer, and our call of its arrays


def _small(rows: Sequence[Row], processor: str) -> str:
    """The page of small calls: a table for each family, a line for each case."""
    named = {name for row in rows for name in row.seconds}
    columns = {title: name for title, name in _SMALL_COLUMNS.items() if name in named}
    peers = [peer for peer in _BESIDE if peer in named]
    parts = [
        "# The cost of a small call",
        f"{processor}. Measured by `python -m benchmarks --small`.",
        _SMALL_LEGEND,
    ]
    for family in dict.fromkeys(ops[row.op].family for row in rows):
        header = ["op", "elements or shape", "direction", "type", *columns]
        header += [f"× {peer}" for peer in peers]
        lines = []
        for row in (row for row in rows if ops[row.op].family == family):
            line = [row.op, row.what, row.direction, row.dtype]
            for name in columns.values():
                line.append(f"{1e6 * row.seconds[name]:.2f}" if name in row.seconds else "–")
            lines.append(line + [times(_beside(row, peer)) for peer in peers])
        parts += [f"## {family}", markdown_table(header, lines, 4)]
    return "\n\n".join(parts) + "\n"


def _beside(row: Row, peer: str) -> float | None:
    """A peer's time over our call's on its arrays."""
    ours = row.ratios.get(_BESIDE[peer], 1.0)
    return row.ratios[peer] / ours if peer in row.ratios else None


def markdown(rows: Sequence[Row], processor: str) -> str:
    """The page of a benchmark."""
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
        header, lines, left = table_of(list(part))
        parts += [f"## {title}", markdown_table(header, lines, max(left, 1))]
    return "\n\n".join(parts) + "\n"
