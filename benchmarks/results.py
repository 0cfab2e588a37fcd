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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from fastact.bench.turns import CpuRow, Row
from fastact.measure.peers import OURS
from fastact.ops.engine.op import ops
from fastact.runtime import config

from .workloads.work import ITEM, name_of

#: The facts that rows of one table share; of "peers", versions by name, those that both runs have.
_SAME = ("version", "commit", "processor", "compiler", "isa", "peers")
_SAME_ON_GPU = ("gpu", "capability", "driver", "torch", "torch_cuda", "fastact", "commit", "cuda")


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
        """The name of its case."""
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


AnyRow = TypeVar("AnyRow", bound=Row)


@dataclass
class Results(Generic[AnyRow]):
    """All that was measured, in one run or in several.

    facts : the machine, the build and the peers.
    left : how many rows the last run had no time for.
    """

    facts: Mapping[str, Any]
    rows: list[AnyRow] = field(default_factory=list)
    left: int = 0

    def parts(self) -> dict[str, str]:
        """Return the values of the file's JSON object, as JSON."""
        raise NotImplementedError

    def write(self, json_file: Path) -> None:
        """Write the file that `read` reads, each value from a line of its own on."""
        text = ",\n".join(f'"{name}": {part}' for name, part in self.parts().items())
        write_whole(json_file, f"{{\n{text}\n}}\n")


class CpuResults(Results[CpuRow]):
    """Results on a CPU."""

    def add(self, row: CpuRow) -> CpuRow:
        """Take a row, together with what an earlier run has measured of it."""
        for at, before in enumerate(self.rows):
            if before.key == row.key:
                self.rows[at] = before.joined(row)
                return self.rows[at]
        self.rows.append(row)
        return row

    def sorted(self) -> list[CpuRow]:
        """Return the rows table by table, in the order in which tables were begun."""
        begun: dict[tuple[Any, ...], int] = {}
        for row in self.rows:
            begun.setdefault(row.table, len(begun))
        return sorted(self.rows, key=lambda row: begun[row.table])

    def parts(self) -> dict[str, str]:
        return {
            "machine": json.dumps(self.facts, indent=2),
            "rows": _lines(map(vars, self.sorted())),
            "left": str(self.left),
        }


@dataclass
class GpuResults(Results[GpuRow]):
    """Results on a GPU.

    failures : cases that failed, and why.
    absent : peers that were asked for and are not installed, and why.
    unreached : the names of the rows that are left.
    """

    latencies: list[Latency] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
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

    def parts(self) -> dict[str, str]:
        self.rows.sort(key=_place)
        self.latencies.sort(key=_place)
        return {
            "machine": json.dumps(self.facts, indent=2),
            "rows": _lines({**vars(row), "rate": row.rate} for row in self.rows),
            "latency": _lines(map(vars, self.latencies)),
            "failures": json.dumps(self.failures, indent=2),
            "absent": json.dumps(self.absent),
            "left": json.dumps(self.left),
            "unreached": json.dumps(self.unreached, indent=0),
        }


def _place(one: GpuRow | Latency) -> tuple[int, bool, int]:
    """Where its table stands among all."""
    return list(ops).index(one.op), one.direction != "forward", list(ITEM).index(one.dtype)


def _lines(items: Iterable[Mapping[str, Any]]) -> str:
    """Return a JSON list, a line each: compact JSON is written ten times as fast."""
    return "[\n" + ",\n".join(map(json.dumps, items)) + "\n]"


def write_whole(path: Path, text: str) -> None:
    """Write a file; whoever is interrupted leaves the old one as it was."""
    beside = path.with_name(path.name + ".part")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def _read_on_cpu(found: Mapping[str, Any], names: Sequence[str]) -> CpuResults:
    str(found["machine"]["processor"])
    rows = (
        CpuRow(**{**row, "without": tuple(row.get("without", ()))})
        for row in found["rows"]
        if row["op"] in names
    )
    return CpuResults(dict(found["machine"]), list(rows), found.get("left", 0))


def _read_on_gpu(found: Mapping[str, Any], names: Sequence[str]) -> GpuResults:
    rows = (
        {**row, "wrong": tuple(row["wrong"]), "asked": tuple(row["asked"])}
        for row in found["rows"]
        if row["op"] in names
    )
    return GpuResults(
        {"driver": "", **found["machine"], "gpu": str(found["machine"]["gpu"])},
        [GpuRow(**{name: row[name] for name in row if name != "rate"}) for row in rows],
        found["left"],
        [Latency(**one) for one in found["latency"] if one["op"] in names],
        {name: why for name, why in found["failures"].items() if name.split()[0] in names},
        found["absent"],
        found.get("unreached", []),
    )


def read(json_file: Path, on_gpu: bool = False, chosen: Sequence[Any] | None = None) -> Any:
    """Read what `Results.write` has written, of the ops that are chosen, or of all.

    Raises
    ------
    ValueError
        If the file is none of the benchmark's.
    """
    names = [op.name for op in (ops.values() if chosen is None else chosen)]
    try:
        found = json.loads(json_file.read_text(encoding="utf-8"))
        return (_read_on_gpu if on_gpu else _read_on_cpu)(found, names)
    except (ValueError, LookupError, TypeError, AttributeError):
        writer = "bench --device cuda --json" if on_gpu else "bench --json on a CPU"
        raise ValueError(f"{json_file} was not written by {writer}") from None


def start(json_file: Path | None, facts: dict[str, Any], goes_on: bool) -> Any:
    """Return what the file holds, to go on with, or an empty start.

    A file of another machine or build is put aside, not overwritten, for rows of both would be one
    table. Of a CPU that nobody goes on with, the processor alone must be the same.
    """
    on_gpu = "gpu" in facts
    empty = GpuResults(facts) if on_gpu else CpuResults(facts)
    if json_file is None or not json_file.exists() or (on_gpu and not goes_on):
        return empty
    found = read(json_file, on_gpu)
    now = json.loads(json.dumps(facts))  # as the file has them
    same = _SAME_ON_GPU if on_gpu else _SAME if goes_on else ("processor",)
    if changed := [fact for fact in same if _differs(fact, found.facts, now)]:
        aside = json_file.with_name(json_file.name + ".before")
        os.replace(json_file, aside)
        print(f"{json_file.name}: of another {', '.join(changed)}; it is now {aside.name}")
    if changed or not goes_on:
        return empty
    if not on_gpu:
        peers = {**found.facts.get("peers", {}), **facts["peers"]}
        found.facts = {**facts, "peers": peers}
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


def machine(peers: Mapping[str, str]) -> dict[str, Any]:
    """Return facts about this machine, this build and the peers."""
    return facts_of({**config.config(), "peers": dict(peers)})


def commit() -> str:
    """Return the commit of the source tree that this was started in; empty elsewhere."""
    try:
        if 'name = "fastact"' not in Path("pyproject.toml").read_text(encoding="utf-8"):
            return ""
        run = partial(subprocess.run, capture_output=True, text=True, check=False)
        done = run(["git", "describe", "--always"])
        # Results may be tracked, and a run that goes on is of the same commit.
        same = run(["git", "diff", "--quiet", "HEAD", "--", ".", ":(exclude)docs/results"])
    except OSError:
        return ""
    return "" if done.returncode else done.stdout.strip() + "-dirty" * bool(same.returncode)


def machine_name(facts: Mapping[str, Any]) -> str:
    """Return the name of this kind of machine, as a folder of results has it."""
    return slug(facts["processor"], facts["isa"]["chosen"], facts["threads"]["limit"])


def slug(processor: str, isa: str, cores: int) -> str:
    """Return the name of a kind of machine.

    The instruction set is part of it: processors of two generations call themselves "AMD EPYC".

    >>> slug("Intel(R) Xeon(R) Processor @ 2.50GHz", "v4", 2)
    'intel-xeon-processor-2.50ghz-v4-2-cores'
    """
    words = re.sub(r"\((r|tm|c)\)", " ", processor.lower())
    return re.sub(r"[^a-z0-9.]+", "-", f"{words} {isa} {cores} cores").strip("-")
