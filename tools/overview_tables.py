"""The tables of docs/results/overview.md, which the ops and the benchmark know: ops, bounds, times.

    python tools/overview_tables.py            # rewrites them
    python tools/overview_tables.py --check    # fails where the page says anything else

Ops and bounds come from `fastact.ops`; times from what `python -m benchmarks --all --results
docs/results` has written to the folder of one kind of machine. Of which machine the tables of times
are, their link to its bench.md says, and which rows they have, they do themselves; the sentences
around the tables are left alone.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fastact
from fastact import ops

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from benchmarks.report import times  # noqa: E402 - of the repository, which no environment has

PAGE = ROOT / "docs/results/overview.md"
MEASURED = re.compile(r"\]\(([^/)]+)/bench\.md\)")

_COLUMNS = (("forward", "torch"), ("backward", "torch"), ("forward", "numpy"))
_SIZES = (64, 50_000, 1_000_000)

# Ratios to the peers, by op, direction and what was measured.
Measured = dict[tuple[str, str, str], dict[str, float]]


def of_ops(_: str) -> str:
    """A row for each op, in one for all activations."""
    rows = ["| family | op | |", "|---|---|---|"]
    for family in dict.fromkeys(op.family for op in ops.values()):
        several = [op for op in ops.values() if op.family == family]
        if family == "activations":
            names = " ".join(" = ".join(f"`{name}`" for name in _names(op)) for op in several)
            rows.append(f"| {family} | {names} | y = f(x) |")
            continue
        for i, op in enumerate(several):
            summary = op.__doc__.strip().partition("\n\n")[0]
            words = " ".join(summary.split()).removesuffix(".")
            rows.append(f"| {'' if i else family} | `{op.name}` | {words} |")
    return "\n".join(rows)


def _names(op: Any) -> list[str]:
    """An op's own name, and others for the same op."""
    return [op.name, *(n for n in fastact.__all__ if n != op.name and getattr(fastact, n) is op)]


def of_bounds(_: str) -> str:
    """The widest bounds of the activations, and the bounds of sums."""
    bounds = [op.bounds for op in ops.values() if op.family == "activations"]

    def widest(name: str) -> float:
        return max(float(getattr(b, name)) for b in bounds)

    sums, once = ops["sum"].bounds, "the float32 result, rounded once"
    ulp, or_ulp = f"≤ {widest('forward_ulp'):g} ULP", f"≤ {widest('derivative_ulp'):g} ULP or"
    root, narrow = widest("derivative_abs"), f"≤ {widest('narrow_ulp'):g} ULP"
    rough, of_sum = upwards(4 * root), f"{upwards(sums.absolute)} Σ\\|x\\|"
    return f"""\
| type | forward | derivative |
| --- | --- | --- |
| activations, float32, every one of the 2³² inputs | {ulp} | {or_ulp} {root:.2g} absolute |
| float64, sampled over all exponents | {ulp} | {or_ulp} {upwards(root * 2.0**-29)} absolute |
| float16, bfloat16, all inputs | {once} | {once} |
| the same on a GPU | {narrow} | {narrow} or {rough} absolute |
| sums, all types | ≤ {sums.ulp:g} ULP + {of_sum} |  |
| norms, moments, gates, bias_act | in the op's documentation | in that of its backward |"""


def upwards(bound: float) -> str:
    """Two digits that are no less than the bound."""
    step = 10.0 ** (math.floor(math.log10(bound)) - 1)
    return f"{math.ceil(bound / step - 1e-9) * step:.1e}"


def _what(cells: Sequence[str], known: set[str]) -> str:
    """The benchmark's words for a row of the page, which leaves out what goes without saying."""
    written = cells[1]
    for more in ("", ", identity"):
        if written + more in known:
            return written + more
    raise SystemExit(f"overview_tables: {cells[0]} {written}: not among what was measured")


def _row(line: str, measured: Measured) -> str:
    cells = [cell.strip() for cell in line.strip("| ").split("|")]
    op = cells[0].partition(",")[0]
    if op not in ops:
        return line
    if len(cells) > len(_COLUMNS) * len(_SIZES):  # by the number of elements
        ask = [(way, peer, f"{size:,}") for way, peer in _COLUMNS for size in _SIZES]
        kept = cells[:1]
    else:
        what = _what(cells, {what for name, _, what in measured if name == op})
        ask = [(way, peer, what) for way, peer in _COLUMNS]
        kept = cells[:2]
    found = [times(measured.get((op, way, what), {}).get(peer)) for way, peer, what in ask]
    return "| " + " | ".join([*kept, *found]) + " |"


def of_times(part: str) -> str:
    """The rows that are there, measured anew."""
    link = MEASURED.search(part)
    if link is None:
        raise SystemExit("overview_tables: there is no link to the bench.md of a machine")
    text = (PAGE.parent / link[1] / "bench.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)["rows"]
    most = max(row["threads"] for row in rows)
    measured = {
        (row["op"], row["direction"], row["what"]): row["ratios"]
        for row in rows
        if row["dtype"] == "float32" and row["threads"] == most
    }
    return "\n".join(_row(s, measured) if s.startswith("|") else s for s in part.split("\n"))


PARTS: dict[str, Callable[[str], str]] = {"ops": of_ops, "bounds": of_bounds, "bench": of_times}


def rewritten(page: str) -> str:
    """The page with its tables as they have to be."""
    for mark, table in PARTS.items():
        between = rf"(?<=<!-- {mark}:begin -->\n).*?(?=\n<!-- {mark}:end -->)"
        page, count = re.subn(between, lambda part: table(part[0]), page, flags=re.DOTALL)  # noqa: B023
        if count != 1:
            raise SystemExit(f"overview_tables: {PAGE.name} has {count} parts marked {mark}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail on a difference")
    args = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    new = rewritten(page)
    if not args.check:
        PAGE.write_text(new, encoding="utf-8")
    elif new != page:
        pairs = zip(page.splitlines(), new.splitlines(), strict=False)
        first = next((f"-{a}\n+{b}" for a, b in pairs if a != b), "")
        sys.exit(f"{PAGE.name} differs: run python tools/overview_tables.py\n{first}")


if __name__ == "__main__":
    main()
