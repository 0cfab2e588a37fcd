"""What the CPU benchmark has measured: rows, and the file with which a later run goes on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..ops.op import ops
from ..runtime import config
from .files import commit, is_of, lines, slug, write_whole


@dataclass(frozen=True)
class Row:
    """Median seconds of one call, and median ratios to our time, by name of who did it.

    size : elements of the array.
    what : the case in words; of ops without axes, the size is all there is to it.
    without : peers that were asked and cannot do it.
    """

    op: str
    direction: str
    dtype: str
    size: int
    what: str
    threads: int
    rounds: int
    seconds: dict[str, float]
    ratios: dict[str, float]
    without: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells it from all others."""
        return self.op, self.direction, self.dtype, self.what, self.threads

    @property
    def table(self) -> tuple[Any, ...]:
        """What its table is of."""
        return self.op, self.direction, self.dtype, self.threads

    def missing(self, peers: Sequence[str]) -> list[str]:
        """Those of the peers that nobody has asked yet."""
        return [peer for peer in peers if peer not in self.ratios and peer not in self.without]

    def joined(self, later: Row) -> Row:
        """The same with further peers of a later run, whose ratios are to our time in that run."""
        return replace(
            self,
            seconds={**later.seconds, **self.seconds},
            ratios={**later.ratios, **self.ratios},
            without=(*self.without, *later.without),
        )

    def but(self, peers: Collection[str]) -> Row:
        """The same without some peers."""
        seconds, ratios = (
            {who: value for who, value in of.items() if who not in peers}
            for of in (self.seconds, self.ratios)
        )
        return replace(self, seconds=seconds, ratios=ratios)


#: Facts that rows of one file share, and the peers' versions.
_SAME = ("version", "commit", "processor", "compiler", "isa")


def machine(peers: Mapping[str, str]) -> dict[str, Any]:
    """Facts about this machine, this build and the peers."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "commit": commit(), **config.config(), "peers": dict(peers)}


def machine_name(facts: Mapping[str, Any]) -> str:
    """The name of this kind of machine, as a folder of results has it."""
    return slug(facts["processor"], facts["isa"]["chosen"], facts["threads"]["limit"])


@dataclass
class Results:
    """All that was measured, in one run or in several.

    facts : of the machine.
    left : how many rows the last run had no time for.
    """

    facts: dict[str, Any]
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    left: int = 0

    def add(self, row: Row) -> Row:
        """Take a row, together with what an earlier run has measured of it."""
        before = self.rows.get(row.key)
        self.rows[row.key] = before.joined(row) if before else row
        return self.rows[row.key]

    def sorted(self) -> list[Row]:
        """The rows, those of one table together, in the order in which tables were begun."""
        begun: dict[tuple[Any, ...], int] = {}
        for row in self.rows.values():
            begun.setdefault(row.table, len(begun))
        return sorted(self.rows.values(), key=lambda row: begun[row.table])

    def write(self, json_file: Path) -> None:
        """As JSON, for `read`; whoever is interrupted leaves the old file as it was."""
        parts = {
            "machine": json.dumps(self.facts, indent=2),
            "rows": lines(map(vars, self.sorted())),
            "left": str(self.left),
        }
        text = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
        write_whole(json_file, f"{{\n{text}\n}}\n")


def digits(values: Mapping[str, float]) -> dict[str, float]:
    """As many digits as a clock gives, and a file of thousands of rows has place for."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def read(json_file: Path) -> Results:
    """What `Results.write` has written.

    Raises
    ------
    ValueError
        If the file is none of this benchmark.
    """
    try:
        numbers = json.loads(json_file.read_text(encoding="utf-8"))
        facts = dict(numbers["machine"])
        str(facts["processor"])
        rows = [
            Row(**{**row, "without": tuple(row.get("without", ()))})
            for row in numbers["rows"]
            if row["op"] in ops
        ]
        return Results(facts, {row.key: row for row in rows}, numbers.get("left", 0))
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{json_file} was not written by bench --json on a CPU") from None


def start(json_file: Path, facts: dict[str, Any], goes_on: bool) -> Results:
    """What the file holds, to go on with, or an empty start.

    A file of another machine is put aside, not overwritten; to go on, the build and the peers that
    both runs have must be the same, too.
    """
    if not json_file.exists():
        return Results(facts)
    found = read(json_file)
    if not goes_on:
        is_of(json_file, found.facts, facts, ("processor",))
        return Results(facts)
    before, now = found.facts.get("peers", {}), facts["peers"]
    both = {peer: version for peer, version in before.items() if peer in now}
    same = {**found.facts, "peers": both}
    if not is_of(json_file, same, {**facts, "peers": {p: now[p] for p in both}}, (*_SAME, "peers")):
        return Results(facts)
    return replace(found, facts={**facts, "peers": {**before, **now}})
