"""What was measured of an op, as parts of its page: from docs/results, of all machines there."""

import html
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from textwrap import indent
from typing import Any

from benchmarks.report import times

from fastact.measure.peers import COPY, OURS, PARTIAL

Row = Mapping[str, Any]

#: As people write them, and the order of the columns.
PEERS = {
    "numpy": "NumPy",
    "torch": "torch",
    "onnxruntime": "ONNX Runtime",
    "jax": "JAX",
    "mkl": "MKL (the function alone)",
    "torch.compile": "torch.compile",
    "liger": "Liger",
}
_DTYPES = ("float32", "float64", "float16", "bfloat16")
_OVERVIEW = (
    *("mish", "gelu", "silu", "bias_act", "swiglu", "layer_norm", "rms_norm", "softmax"),
    *("cross_entropy", "mean_var", "nanmean", "bias_grad", "lstm_gates"),
)
_LIKELY_SIZE = 1e6  # elements
_TALL = 16  # rows, beyond which a table scrolls below its head
_LEVEL = 0.95  # below it a peer is called faster


def table(rows: Sequence[Sequence[str]], names: int) -> str:
    """A table of figures in HTML, since there are thousands of cells; the first row is the head.

    names : so many columns are words, the others figures; a cell in asterisks is emphasised.
    """
    head, *lines = [
        "".join(
            _cell(cell, "th" if not number else "td", at >= names) for at, cell in enumerate(row)
        )
        for number, row in enumerate(rows)
    ]
    tall = " tall" if len(lines) > _TALL else ""
    body = "\n   ".join(f"<tr>{line}</tr>" for line in lines)
    return (
        '.. raw:: html\n\n   <div class="pst-scrollable-table-container">'
        f'<table class="table figures{tall}"><thead><tr>{head}</tr></thead><tbody>\n   {body}\n'
        "   </tbody></table></div>"
    )


def _cell(text: str, tag: str, is_figure: bool) -> str:
    plain = html.escape(text.strip("*"))
    inside = f"<strong>{plain}</strong>" if text.startswith("**") else plain
    of = ' class="n"' if is_figure else ""
    return f"<{tag}{of}>{inside}</{tag}>"


def _folded(title: str, content: str) -> str:
    return f".. dropdown:: {title}\n\n{indent(content, '   ')}"


# --- speed ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Machine:
    """A folder of docs/results: what a benchmark found there, and its page."""

    page: str
    facts: Mapping[str, Any]
    rows: Sequence[Row]

    @property
    def about(self) -> str:
        facts = self.facts
        threads = sorted({row["threads"] for row in self.rows})
        of_threads = f"{' and '.join(map(str, threads))} thread{'s' * (threads != [1])}"
        by = ", ".join(f"{PEERS.get(p, p)} {version}" for p, version in facts["peers"].items())
        isa = facts["isa"]["chosen"]
        return f":doc:`{facts['processor']} <{self.page}>`, {of_threads}, {isa}; {by}."


def machines(results: Path) -> list[Machine]:
    """What `python -m benchmarks --results` wrote."""
    found = []
    for file in sorted(results.glob("*/bench.json")):
        told = json.loads(file.read_text(encoding="utf-8"))
        page = next(
            name for name in ("scoreboard", "bench") if file.with_name(f"{name}.md").exists()
        )
        found.append(Machine(f"/results/{file.parent.name}/{page}", told["machine"], told["rows"]))
    return found


def overview(machine: Machine) -> tuple[list[Row], dict[str, str]]:
    """A case for each of some ops, forward, of float32; and who is beside us in them."""
    chosen = [row for name in _OVERVIEW if (row := _likely(name, "forward", machine))]
    there = {peer for row in chosen for peer in row["ratios"]}
    return chosen, {p: n for p, n in PEERS.items() if p in there and p not in PARTIAL}


def _likely(name: str, direction: str, machine: Machine) -> Row | None:
    """A case of an op with float32, of a size that people have."""
    asked = name, direction, "float32"
    rows = [row for row in machine.rows if (row["op"], row["direction"], row["dtype"]) == asked]
    nearest = partial(min, key=lambda row: abs(math.log(row["size"] / _LIKELY_SIZE)))
    return nearest(rows) if rows else None


def likely(name: str, every: Sequence[Machine]) -> str:
    """A line on the machine that was measured last: beside the fastest peer, both directions."""
    with_it = [machine for machine in every if _likely(name, "forward", machine)]
    if not with_it:
        return ""
    machine = max(with_it, key=lambda machine: machine.facts.get("date", ""))
    rows = [row for way in ("forward", "backward") if (row := _likely(name, way, machine))]
    found = ", ".join(f"{row['direction']} {_beside_fastest(row)}" for row in rows)
    return (
        f"time of the fastest peer over ours: {found} (float32, {rows[0]['what']}; "
        f":doc:`{machine.facts['processor']} <{machine.page}>`)"
    )


def speed(name: str, every: Sequence[Machine]) -> Iterator[str]:
    """Of each machine: beside the fastest peer in all dtypes; folded, all figures."""
    for machine in every:
        if rows := [row for row in machine.rows if row["op"] == name]:
            yield machine.about
            yield table(list(_gist(rows)), len(_names(rows)))
            yield _folded("All figures: times, and beside every peer", _all_of(rows))


def _case(row: Row, rows: Sequence[Row]) -> tuple[str, ...]:
    several = len({row["threads"] for row in rows}) > 1
    return row["direction"], row["what"], *([str(row["threads"])] if several else [])


def _names(rows: Sequence[Row]) -> list[str]:
    """The names of a case's columns."""
    return ["", "elements or shape", "threads"][: len(_case(rows[0], rows))]


def _gist(rows: Sequence[Row]) -> Iterator[list[str]]:
    dtypes = [dtype for dtype in _DTYPES if any(row["dtype"] == dtype for row in rows)]
    yield [*_names(rows), *dtypes]
    found = {(_case(row, rows), row["dtype"]): row for row in rows}
    for case in dict.fromkeys(case for case, _ in found):
        cells = [found.get((case, dtype)) for dtype in dtypes]
        yield [*case, *("–" if row is None else _beside_fastest(row) for row in cells)]


def _beside_fastest(row: Row) -> str:
    """How many times our time the fastest peer takes; without a peer, our time over a copy's."""
    ratios = {p: r for p, r in row["ratios"].items() if p in PEERS and p not in PARTIAL}
    if not ratios:
        return f"{_over_copy(row)} copy"
    fastest = min(ratios, key=lambda peer: ratios[peer])
    told = f"{times(ratios[fastest])} {PEERS[fastest]}"
    return f"**{told}**" if ratios[fastest] < _LEVEL else told


def _over_copy(row: Row) -> str:
    seconds = row["seconds"]
    return f"{seconds[OURS] / seconds[COPY]:.2f} ×" if COPY in seconds else "–"


def _all_of(rows: Sequence[Row]) -> str:
    peers = [peer for peer in PEERS if any(peer in row["ratios"] for row in rows)]
    names = [*_names(rows), "dtype"]
    lines = [[*names, "µs", "over copy", *(PEERS[peer] for peer in peers)]]
    for row in rows:
        took = f"{1e6 * row['seconds'][OURS]:,.3g}"
        others = [times(row["ratios"].get(peer)) for peer in peers]
        lines.append([*_case(row, rows), row["dtype"], _plain(took), _over_copy(row), *others])
    return table(lines, len(names))


def _plain(number: str) -> str:
    """Without an exponent."""
    return f"{float(number.replace(',', '')):,.0f}" if "e" in number else number


# --- accuracy -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table of a page of results, of many ops, the first column their names."""

    page: str
    title: str
    legend: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def of(self, name: str) -> list[Sequence[str]]:
        """The lines of an op, those with a parameter of its own among them."""
        return [row for row in self.rows if re.sub(r"\(.*", "", row[0]) == name]


def tables(results: Path) -> list[Table]:
    """What `python -m fastact check --markdown` wrote: docs/results/accuracy*.md."""
    return [t for page in sorted(results.glob("accuracy*.md")) for t in _tables_of(page)]


def _tables_of(page: Path) -> Iterator[Table]:
    title, before = "", ""
    blocks = re.split(r"\n{2,}", page.read_text(encoding="utf-8").strip())
    for block, after in zip(blocks, [*blocks[1:], ""], strict=True):
        if block.startswith("#"):
            title, before = block.lstrip("# "), ""
        elif block.startswith("|"):
            head, _, *rows = (
                [c.strip() for c in line.strip("|").split("|")] for line in block.split("\n")
            )
            # What the columns mean stands behind a table, or before it where another title follows.
            legend = before if after.startswith(("#", "|")) or not after else after
            yield Table(f"/results/{page.stem}", title, " ".join(legend.split()), head, rows)
        else:
            before = block


def worst(name: str, every: Sequence[Table]) -> str:
    """The largest error of an op's float32 in units of its bounds; empty where none is known."""
    ours = re.compile(r"v\d( v\d)*")
    found = [
        float(cell)
        for table in every
        if {"dtype", "by"} <= {*table.head}
        for row in table.of(name)
        if row[table.head.index("dtype")] == "float32"
        and ours.fullmatch(row[by := table.head.index("by")])
        for cell in row[by + 1 :]
        if _is_number(cell)
    ]
    return f"{max(found):.3g}" if found else ""


def accuracy(name: str, every: Sequence[Table]) -> Iterator[str]:
    """The lines of an op in all tables that have it."""
    for found in every:
        if rows := found.of(name):
            # The name stands on top of the page; where there is a parameter with it, it says which.
            named = len({row[0] for row in rows}) > 1
            head, *lines = ([*row[not named :]] for row in (["", *found.head[1:]], *rows))
            words = sum(1 for _ in takewhile(lambda cell: not _is_number(cell), lines[0]))
            yield f":doc:`{found.title} <{found.page}>`"
            yield table([head, *([cell or "–" for cell in line] for line in lines)], words)
            if found.legend:
                yield found.legend.replace("`", "``").replace("*", r"\*")


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", text) is not None
