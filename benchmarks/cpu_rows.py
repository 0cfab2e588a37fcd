"""What the CPU benchmark has measured: rows, and the file with which a later run goes on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.files import commit, lines, read_parts, resume, slug, write_parts
from fastact.bench.turns import CpuRow
from fastact.ops.engine.op import ops
from fastact.runtime import config

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
class CpuResults:
    """All that was measured, in one run or in several.

    facts : of the machine.
    left : how many rows the last run had no time for.
    """

    facts: dict[str, Any]
    rows: dict[tuple[Any, ...], CpuRow] = field(default_factory=dict)
    left: int = 0

    def add(self, row: CpuRow) -> CpuRow:
        """Take a row, together with what an earlier run has measured of it."""
        before = self.rows.get(row.key)
        self.rows[row.key] = before.joined(row) if before else row
        return self.rows[row.key]

    def sorted(self) -> list[CpuRow]:
        """The rows, table by table, in the order in which tables were begun."""
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
        write_parts(json_file, parts)


def read(json_file: Path) -> CpuResults:
    """Read what `CpuResults.write` has written."""
    return read_parts(json_file, _made, "bench --json on a CPU")


def _made(numbers: Mapping[str, Any]) -> CpuResults:
    facts = dict(numbers["machine"])
    str(facts["processor"])
    rows = [
        CpuRow(**{**row, "without": tuple(row.get("without", ()))})
        for row in numbers["rows"]
        if row["op"] in ops
    ]
    return CpuResults(facts, {row.key: row for row in rows}, numbers.get("left", 0))


def start(json_file: Path, facts: dict[str, Any], goes_on: bool) -> CpuResults:
    """What the file holds, to go on with, or an empty start.

    A file of another machine is put aside, not overwritten; to go on, the build and the peers that
    both runs have must be the same, too.
    """
    if not goes_on:
        resume(json_file, read, facts, ("processor",))
        return CpuResults(facts)
    found = resume(json_file, read, facts, (*_SAME, "peers"))
    if found is None:
        return CpuResults(facts)
    peers = {**found.facts.get("peers", {}), **facts["peers"]}
    return replace(found, facts={**facts, "peers": peers})
