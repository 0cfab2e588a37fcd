"""What the GPU benchmark has measured: rows, what calls cost the host, and the file of both.

A run need not measure everything: a later one on the same machine with the same build goes on
where the file ends (`start`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.files import lines, read_parts, resume, write_parts
from fastact.bench.turns import Row
from fastact.measure.peers import OURS
from fastact.ops.engine.op import ops

from .workloads.work import ITEM, name_of


@dataclass(frozen=True)
class GpuRow(Row):
    """A row of the benchmark on a GPU.

    series, span : under which name the rate is drawn, over how many elements that share a result, a
        mean or a bias.
    graph : empty if a replayed CUDA graph of the call gives the same bits, else what went wrong.
    wrong : peers whose results are not ours.
    left_out : peers that could not take part, and why.
    asked : all peers that were asked for.
    """

    bytes: int
    buffers: int
    graph: str
    series: str
    span: int
    wrong: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)
    asked: tuple[str, ...] = ()

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds[OURS]

    @property
    def name(self) -> str:
        """That of its case."""
        return name_of(self.op, self.direction, self.dtype, self.what)

    @property
    def problems(self) -> list[str]:
        """What it says of correctness."""
        of_graph = [f"{self.name}: CUDA graph: {self.graph}"] if self.graph else []
        return of_graph + [f"{self.name}: {peer} has another result" for peer in self.wrong]


@dataclass(frozen=True)
class Latency:
    """Median seconds that the host spends in one call of so few elements that only that counts."""

    op: str
    direction: str
    dtype: str
    elements: int
    seconds: dict[str, float]


#: What must not change between runs whose rows stand in one table.
_SAME = ("gpu", "capability", "driver", "torch", "torch_cuda", "fastact", "commit", "cuda")


def _place(one: GpuRow | Latency) -> tuple[int, bool, int]:
    """Where its table stands among all."""
    return list(ops).index(one.op), one.direction != "forward", list(ITEM).index(one.dtype)


@dataclass
class GpuResults:
    """All that was measured, in one run or in several.

    facts : of the machine.
    failures : cases that failed, and why.
    absent : peers that were asked for and are not installed, and why.
    left : how many rows the last run had no time for. unreached : their names.
    """

    facts: Mapping[str, Any]
    rows: list[GpuRow] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    left: int = 0
    unreached: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """What went wrong, a line each."""
        failed = [f"{name}: failed, {why}" for name, why in self.failures.items()]
        return failed + [problem for row in self.rows for problem in row.problems]

    def lack(self, name: str, peers: Sequence[str]) -> bool:
        """Whether a case has not been measured yet, with all of these peers."""
        return not any(row.name == name and {*peers} <= {*row.asked} for row in self.rows)

    def add(self, row: GpuRow) -> None:
        """Take a row, in place of an older one of the same case."""
        self.rows = [one for one in self.rows if one.name != row.name] + [row]
        self.failures.pop(row.name, None)

    def write(self, json_file: Path) -> None:
        """As JSON, for `read`; whoever is interrupted leaves the old file as it was."""
        self.rows.sort(key=_place)
        self.latencies.sort(key=_place)
        parts = {
            "machine": json.dumps(self.facts, indent=2),
            "rows": lines({**vars(row), "rate": row.rate} for row in self.rows),
            "latency": lines(map(vars, self.latencies)),
            "failures": json.dumps(self.failures, indent=2),
            "absent": json.dumps(self.absent),
            "left": json.dumps(self.left),
            "unreached": json.dumps(self.unreached, indent=0),
        }
        write_parts(json_file, parts)


def read(json_file: Path, chosen: Sequence[Any]) -> GpuResults:
    """Read what `GpuResults.write` has written of the ops that are chosen."""
    names = [op.name for op in chosen]

    def made(found: Mapping[str, Any]) -> GpuResults:
        return GpuResults(
            {"driver": "", **found["machine"], "gpu": str(found["machine"]["gpu"])},
            [
                GpuRow(
                    **{name: row[name] for name in row if name != "rate"}
                    | {name: tuple(row[name]) for name in ("wrong", "asked")}
                )
                for row in found["rows"]
                if row["op"] in names
            ],
            [Latency(**one) for one in found["latency"] if one["op"] in names],
            {name: why for name, why in found["failures"].items() if name.split()[0] in names},
            found["absent"],
            found["left"],
            found.get("unreached", []),
        )

    return read_parts(json_file, made, "bench --device cuda --json")


def start(json_file: Path, facts: Mapping[str, Any]) -> GpuResults:
    """What the file holds, to go on with; an empty start if there is none.

    A file of another machine or build is put aside, not overwritten, for rows of both would be one
    table.

    Parameters
    ----------
    json_file : Path
        What an earlier run has written, or is to be written.
    facts : mapping
        Of the machine as it is now.
    """
    every = list(ops.values())
    found = resume(json_file, lambda file: read(file, every), facts, _SAME)
    return GpuResults(facts) if found is None else found
