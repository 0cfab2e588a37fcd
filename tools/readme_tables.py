"""The speed tables of README.md, from what the benchmark has written.

    python -m fastact bench --all --peers numpy,torch --json docs/results/bench.json
    python tools/readme_tables.py docs/results/bench.json README.md

Every table row between the page's marks `bench:begin` and `bench:end` is measured anew; which rows
there are, the page itself says. The sentences around the tables are left alone.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastact import ops
from fastact.bench.report import times

_MARKS = re.compile(r"(?<=<!-- bench:begin -->\n).*(?=<!-- bench:end -->)", re.DOTALL)
_COLUMNS = (("forward", "torch"), ("backward", "torch"), ("forward", "numpy"))
_SIZES = (64, 50_000, 1_000_000)

# Ratios to the peers, by op, direction and what was measured.
Measured = dict[tuple[str, str, str], dict[str, float]]


def _what(cells: Sequence[str], known: set[str]) -> str:
    """The benchmark's words for a row of the page, which leaves out what goes without saying."""
    told = cells[1]
    for more in ("", ", identity"):
        if told + more in known:
            return told + more
    raise SystemExit(f"readme_tables: {cells[0]} {told}: not among what was measured")


def _filled(line: str, measured: Measured) -> str:
    cells = [cell.strip() for cell in line.strip("| ").split("|")]
    op = cells[0].partition(",")[0]
    if op not in ops:
        return line
    if ops[op].family == "activations":
        ask = [(way, peer, f"{size:,}") for way, peer in _COLUMNS for size in _SIZES]
        kept = cells[:1]
    else:
        what = _what(cells, {what for name, _, what in measured if name == op})
        ask = [(way, peer, what) for way, peer in _COLUMNS]
        kept = cells[:2]
    found = [times(measured.get((op, way, what), {}).get(peer)) for way, peer, what in ask]
    return "| " + " | ".join([*kept, *found]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("json", type=Path, help="what `bench --json` has written")
    parser.add_argument("page", type=Path, help="README.md, which is rewritten")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = json.loads(args.json.read_text(encoding="utf-8"))["rows"]
    measured = {
        (row["op"], row["direction"], row["what"]): row["ratios"]
        for row in rows
        if row["dtype"] == "float32"
    }
    page = args.page.read_text(encoding="utf-8")

    def fill(part: re.Match[str]) -> str:
        lines = part[0].split("\n")
        return "\n".join(_filled(s, measured) if s.startswith("|") else s for s in lines)

    args.page.write_text(_MARKS.sub(fill, page), encoding="utf-8")


if __name__ == "__main__":
    main()
