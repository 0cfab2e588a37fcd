"""What the GPU benchmark has measured: rows, what calls cost the host, and the file of both."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ._workloads import OURS


@dataclass(frozen=True)
class Row:
    """Median seconds of one call on the GPU, and median ratios to our time, by contender.

    series, span : under which name the rate is drawn, over how many elements that share a result, a
        mean or a bias.
    graph : empty if a replayed CUDA graph of the call gives the same bits, else what went wrong.
    wrong : peers whose results are not ours.
    """

    op: str
    direction: str
    dtype: str
    what: str
    bytes: int
    buffers: int
    rounds: int
    seconds: dict[str, float]
    ratios: dict[str, float]
    graph: str
    series: str
    span: int
    wrong: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds[OURS]


@dataclass(frozen=True)
class Latency:
    """Median seconds that the host spends in one call of so few elements that only that counts."""

    op: str
    direction: str
    dtype: str
    elements: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Results:
    """All of a run.

    facts : of the machine.
    problems : what went wrong, a line each.
    """

    facts: Mapping[str, Any]
    rows: Sequence[Row]
    latencies: Sequence[Latency]
    problems: Sequence[str]

    def write(self, json_file: Path) -> None:
        """As JSON, for `read`."""
        results = {
            "machine": self.facts,
            "rows": [{**asdict(row), "rate": row.rate} for row in self.rows],
            "latency": [asdict(one) for one in self.latencies],
            "problems": self.problems,
        }
        json_file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def read(json_file: Path, chosen: Sequence[Any]) -> Results:
    """What `Results.write` has written, as far as it is of the ops that are chosen.

    Raises
    ------
    ValueError
        If the file is none of this benchmark.
    """
    names = [op.name for op in chosen]
    try:
        found = json.loads(json_file.read_text(encoding="utf-8"))
        return Results(
            {"driver": "", **found["machine"], "gpu": str(found["machine"]["gpu"])},
            [
                Row(
                    **{name: row[name] for name in row if name != "rate"}
                    | {"wrong": (*row["wrong"],)}
                )
                for row in found["rows"]
                if row["op"] in names
            ],
            [Latency(**one) for one in found["latency"] if one["op"] in names],
            list(found["problems"]),
        )
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{json_file} was not written by bench --device cuda --json") from None
