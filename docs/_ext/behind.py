"""The cells of the boards in which a peer is ahead, each with the reason that a page gives for it.

docs/design/behind.md names boards by links, and has a table of reasons below a heading. A pattern
of cells has conditions between semicolons, and these have alternatives between commas.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.results import read
from benchmarks.scoreboard import Cell, cells, span
from benchmarks.workloads.work import ITEM
from measured import PEERS
from op_pages import replace
from sphinx.application import Sphinx
from sphinx.errors import ConfigError

from fastact.measure.peers import PARTIAL
from fastact.terminal import markdown_table

_BOARD = re.compile(r"\[([^\]]+)\]\(\.\./results/([^/)]+)/scoreboard\.md\)")
_SECTION = re.compile(r"^## (.+)\n((?:(?!## ).*\n)*)", re.M)
_REASON = re.compile(r"^\| ([^|]+) \| ([^|]+;[^|]+) \| [^|]+ \|$", re.M)
_UNKNOWN = "**not yet explained**"
_BESIDE = ("torch", "jax", "onnxruntime", "numpy")


def _reasons(page: str) -> Iterator[tuple[str, str, list[list[list[str]]]]]:
    """Give the heading, the name and the patterns of each reason, and last one for all cells."""
    for heading, text in _SECTION.findall(page):
        for name, covered in _REASON.findall(text):
            each = covered.replace("`", "").split(" <br> ")
            yield heading, name, [[of.split(", ") for of in one.split("; ")] for one in each]
    yield _UNKNOWN.strip("*"), _UNKNOWN, [[]]


def tables(page: str, results: Path) -> dict[str, str]:
    """Return the counts of each board, and the cells by op, direction and reason."""
    reasons, boards, counts = [*_reasons(page)], dict(_BOARD.findall(page)), []
    headings = [*dict.fromkeys(heading for heading, *_ in reasons)]
    found, lines = defaultdict(list), defaultdict(list)
    for board, folder in boards.items():
        file = read(results / folder / "bench.json")
        every = [cell for cell in cells(file.rows) if cell.peer not in PARTIAL]
        number, of = Counter(), Counter(cell.peer for cell in every)
        for cell in (cell for cell in every if cell.state == "behind"):
            heading, name, _ = next(r for r in reasons if any(cell.fits(p, board) for p in r[2]))
            found[name].append((cell, board))
            lines[cell.row.op, cell.row.direction, name].append((cell, board))
            number.update((cell.peer, heading))
        row = [f"[{board}](../results/{folder}/scoreboard.md)", file.facts["commit"]]
        row += [f"{number[peer]} of {of[peer]}" for peer in _BESIDE]
        counts.append(row + [str(number[heading]) for heading in headings])
    for _, name, patterns in reasons:
        each = [[*pattern, [word]] for pattern in patterns for word in chain(*pattern)]
        if lost := [p for p in each if not any(cell.fits(p, at) for cell, at in found[name])]:
            raise ConfigError(f"docs/design/behind.md: {name!r} has no cell of {lost[0]}")
    head = ["board", "kernels of", *(PEERS[p] for p in _BESIDE), *map(str.lower, headings)]
    told = f"{len(found[_UNKNOWN])} of {sum(map(len, found.values()))} cells are {_UNKNOWN}.\n\n"
    rows = [_line(*of, boards) for of in sorted(lines.items())]
    every = markdown_table(["op", "", "types", *boards, "reason"], rows, 99)
    top, *lower = zip(head, *counts, strict=True)
    return {"counts": told + markdown_table(top, lower), "cells": every}


def _line(key: Sequence[str], its: Sequence[tuple[Cell, str]], boards: Iterable[str]) -> list[str]:
    name, direction, reason = key
    of = defaultdict(list)
    for cell, board in its:
        of[board, cell.peer].append(cell.ratio)
    dtypes = ", ".join(one for one in ITEM if any(cell.row.dtype == one for cell, _ in its))
    beside = [[f"{PEERS[p]} {span(of[b, p])}" for p in _BESIDE if (b, p) in of] for b in boards]
    ratios = [", ".join(several) or "–" for several in beside]
    return [f"[{name}](../ops/generated/{name}.rst)", direction, dtypes, *ratios, reason]


def write(app: Sphinx) -> None:
    page = Path(app.srcdir, "design/behind.md").read_text(encoding="utf-8")
    for name, text in tables(page, Path(app.srcdir, "results")).items():
        replace(Path(app.srcdir, f"ops/behind_{name}.inc"), text)


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("op_pages")  # it makes the folder
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
