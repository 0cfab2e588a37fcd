"""What the benchmarks of the CPU and of a GPU have measured, and their files of numbers.

A run need not measure everything: a later one on the same machine with the same build goes on
where the file ends (`start`).
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from fastact.bench.turns import Row
from fastact.measure.peers import OURS
from fastact.ops.engine.op import ops

from .workloads.work import ITEM, name_of

#: The facts that rows of one table share; of "peers", versions by name, those that both runs have.
_SAME = ("processor", "version", "commit", "compiler", "isa", "peers")
_ROOT = Path(__file__).parents[1]
_SAME_ON_GPU = ("gpu", "capability", "driver", "torch", "torch_cuda", "fastact", "commit", "cuda")


@dataclass(frozen=True, kw_only=True)
class GpuRow(Row):
    """A row of the benchmark on a GPU.

    series, span : under which name the rate is drawn, over how many elements that share a result, a
        mean or a bias.
    graph : empty if a replayed CUDA graph of the call gives the same bits, else what went wrong.
    wrong : peers whose results are not ours.
    left_out : peers that could not take part, and why.
    """

    bytes: int
    buffers: int
    graph: str
    series: str
    span: int
    wrong: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds[OURS]

    @property
    def name(self) -> str:
        """The name of its case."""
        return name_of(self.op, self.direction, self.dtype, self.what)

    def joined(self, later: Any) -> Any:
        """Add further peers of a later run, whose results are judged there."""
        both: Any = super().joined(later)
        left_out = self.left_out | later.left_out
        return replace(both, wrong=self.wrong + later.wrong, left_out=left_out)

    def but(self, peers: Collection[str]) -> GpuRow:
        """Leave some peers out, and what was wrong with them."""
        left: GpuRow = super().but(peers)  # type: ignore[assignment]
        wrong = tuple(peer for peer in self.wrong if peer not in peers)
        left_out = {peer: why for peer, why in self.left_out.items() if peer not in peers}
        return replace(left, wrong=wrong, left_out=left_out)

    @property
    def problems(self) -> list[str]:
        """What it says of correctness."""
        of_graph = [f"{self.name}: CUDA graph: {self.graph}"] if self.graph else []
        return of_graph + [f"{self.name}: {peer} has another result" for peer in self.wrong]


@dataclass
class Results:
    """All that was measured, in one run or in several.

    facts : the machine, the build and the peers.
    left : how many rows the last run had no time for.
    latency : on a GPU, what calls of next to nothing cost the host.
    failures : cases that failed, and why.
    absent : peers that were asked for and are not installed, and why.
    """

    facts: Mapping[str, Any]
    rows: list[Any] = field(default_factory=list)
    left: int = 0
    latency: list[Row] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """What went wrong on a GPU, a line each."""
        failed = [f"{name}: failed, {why}" for name, why in self.failures.items()]
        return failed + [problem for row in self.rows for problem in row.problems]

    def add(self, row: Any) -> Any:
        """Take a row, together with what an earlier run has measured of it."""
        self.failures.pop(name_of(row.op, row.direction, row.dtype, row.what), None)
        for at, before in enumerate(self.rows):
            if before.key == row.key:
                self.rows[at] = before.joined(row)
                return self.rows[at]
        self.rows.append(row)
        return row

    def sort(self) -> None:
        """Put everything into its place, whatever was measured first."""
        self.rows.sort(key=_place)
        self.latency.sort(key=_place)

    def write(self, json_file: Path) -> None:
        """Write the file that `read` reads, each value from a line of its own on."""
        self.sort()
        parts = {
            "machine": json.dumps(self.facts, indent=2),
            "rows": _lines(
                vars(row) | ({"rate": row.rate} if hasattr(row, "rate") else {})
                for row in self.rows
            ),
            "latency": _lines(map(vars, self.latency)),
            "failures": json.dumps(self.failures, indent=2),
            "absent": json.dumps(self.absent),
            "left": json.dumps(self.left),
        }
        text = ",\n".join(f'"{name}": {part}' for name, part in parts.items())
        write_whole(json_file, f"{{\n{text}\n}}\n")


def _place(one: Row) -> tuple[int, int, bool, int]:
    """Where its table stands among all."""
    return (
        list(ops).index(one.op),
        one.threads,
        one.direction != "forward",
        list(ITEM).index(one.dtype),
    )


def tables_of(rows: Iterable[Any]) -> list[list[Any]]:
    """Return the rows of each op, direction, dtype and number of threads."""
    return [list(part) for _, part in groupby(rows, lambda row: (*row.key[:3], row.key[4]))]


def _lines(items: Iterable[Mapping[str, Any]]) -> str:
    """Return a JSON list, a line each: compact JSON is written ten times as fast."""
    return "[\n" + ",\n".join(map(json.dumps, items)) + "\n]"


def write_whole(path: Path, text: str) -> None:
    """Write a file; whoever is interrupted leaves the old one as it was."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def read(json_file: Path, on_gpu: bool = False, chosen: Sequence[Any] | None = None) -> Results:
    """Read what `Results.write` has written, of the ops that are chosen, or of all.

    Raises
    ------
    ValueError
        If the file is none of the benchmark's.
    """
    names = {op.name for op in (ops.values() if chosen is None else chosen)}
    kind: Any = GpuRow if on_gpu else Row
    try:
        found = json.loads(json_file.read_text(encoding="utf-8"))
        facts = {**({"driver": ""} if on_gpu else {}), **found["machine"]}
        str(facts["gpu" if on_gpu else "processor"])
        rows = [kind(**_as_fields(row)) for row in found["rows"] if row["op"] in names]
        failures = found.get("failures", {}).items()
        return Results(
            facts,
            sorted(rows, key=_place),
            found.get("left", 0),
            [Row(**_as_fields(one)) for one in found.get("latency", ()) if one["op"] in names],
            {name: why for name, why in failures if name.split()[0] in names},
            found.get("absent", {}),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        writer = "bench --device cuda --json" if on_gpu else "bench --json on a CPU"
        raise ValueError(f"{json_file} was not written by {writer}") from None


def _as_fields(row: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row; older files of a GPU name all peers, and tell less of small calls."""
    row.pop("rate", None)
    if "asked" in row:
        row["without"] = [peer for peer in row.pop("asked") if peer not in row["ratios"]]
    if "elements" in row:
        row |= {"what": "", "rounds": 0, "ratios": {}, "size": row.pop("elements")}
    return {n: tuple(v) if isinstance(v, list) else v for n, v in row.items()}


def start(json_file: Path | None, facts: dict[str, Any], goes_on: bool) -> Results:
    """Return what the file holds, to go on with, or an empty start.

    A file of another machine or build is put aside, not overwritten, for rows of both would be one
    table. Where nobody goes on with it, the processor or the GPU alone must be the same.
    """
    if json_file is None or not json_file.exists():
        return Results(facts)
    on_gpu = "gpu" in facts
    found = read(json_file, on_gpu)
    now = json.loads(json.dumps(facts))  # as the file has them
    same = _SAME_ON_GPU if on_gpu else _SAME
    if changed := [f for f in (same if goes_on else same[:1]) if _differs(f, found.facts, now)]:
        aside = json_file.with_name(json_file.name + ".before")
        os.replace(json_file, aside)
        print(f"{json_file.name}: of another {', '.join(changed)}; it is now {aside.name}")
    if changed or not goes_on:
        return Results(facts)
    peers = {**found.facts.get("peers", {}), **facts.get("peers", {})}
    found.facts = {**found.facts, **facts, **({"peers": peers} if peers else {})}
    return found


def _differs(fact: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    old, new = before.get(fact, ""), now.get(fact, "")
    if fact == "peers":
        return any(new.get(name, version) != version for name, version in (old or {}).items())
    return bool(old != new)


def facts_of(more: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts that stand beside numbers: when and of which commit they are, and more."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": now, "commit": commit(), **more}


def commit() -> str:
    """Return the commit of the source tree; empty where git knows none."""
    run = partial(subprocess.run, cwd=_ROOT, capture_output=True, text=True, check=False)
    try:
        done = run(["git", "describe", "--always"])
        # Results may be tracked, and a run that goes on is of the same commit.
        same = run(["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs/results"])
    except OSError:  # there is no git
        return ""
    return "" if done.returncode else done.stdout.strip() + "-dirty" * bool(same.returncode)


def slug(processor: str, isa: str, cores: int) -> str:
    """Return the name of a kind of machine, as a folder of results has it.

    The instruction set is part of it: processors of two generations call themselves "AMD EPYC".

    >>> slug("Intel(R) Xeon(R) Processor @ 2.50GHz", "v4", 2)
    'intel-xeon-processor-2.50ghz-v4-2-cores'
    """
    words = re.sub(r"\((r|tm|c)\)", " ", processor.lower())
    return re.sub(r"[^a-z0-9.]+", "-", f"{words} {isa} {cores} cores").strip("-")
