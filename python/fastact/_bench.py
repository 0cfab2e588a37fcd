"""The speed benchmark behind ``python -m fastact bench``.

Speed is reported as a ratio within one run: us against the copy of the same bytes through the same
threads, and against every peer. All of them take turns within each round, so that noise of the
machine hits all alike, and a ratio is the median over the ratios of the rounds.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from . import _config
from ._terminal import Progress, table
from ._threads import num_threads
from ._workloads import COPY, FRESH, OURS, WORKLOADS, Call, Case, installed, workload

_SAMPLE_SECONDS = 1e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 200


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes
    ----------
    sizes : tuple of int
        Elements of an array.
    dtypes : tuple of dtype
        Types of the arrays.
    directions : tuple of str
        "forward", "backward" or both.
    peers : tuple of str
        Other libraries; those that are not installed are named and left out.
    threads : int
        For everybody.
    seconds : float
        Time to spend on a row, about.
    """

    sizes: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    directions: tuple[str, ...]
    peers: tuple[str, ...]
    threads: int
    seconds: float = 1.0


@dataclass(frozen=True)
class Row:
    """Median seconds of one call, and median ratios to our time, by name of who did it."""

    op: str
    direction: str
    dtype: str
    size: int
    threads: int
    rounds: int
    seconds: dict[str, float]
    ratios: dict[str, float]


def _time(call: Call, times: int) -> float:
    """Seconds of one call, over a number of them."""
    turns = repeat(None, times)
    started = time.perf_counter()
    for _ in turns:
        call()
    return (time.perf_counter() - started) / times


def _calls_per_sample(call: Call) -> int:
    """How often to repeat a call so that a sample lasts long enough for the clock."""
    call()
    times = 1
    while True:
        seconds = times * min(_time(call, times) for _ in range(3))  # an interruption is not a call
        if seconds >= _SAMPLE_SECONDS:
            return times
        times *= max(2, int(min(_SAMPLE_SECONDS / seconds, 100.0)))


def take_turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Time the calls in rounds of one sample each.

    Parameters
    ----------
    calls : dict of str to callable
        What to time.
    seconds : float
        Time to spend, about.

    Returns
    -------
    dict of str to list of float
        For each name, seconds of one call in each round.
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    collecting = gc.isenabled()
    gc.disable()
    try:
        times = {name: _calls_per_sample(call) for name, call in calls.items()}
        ends = time.perf_counter() + seconds
        for number in range(_MOST_ROUNDS):
            if number >= _FEWEST_ROUNDS and time.perf_counter() >= ends:
                break
            # Nobody always runs after the same other one.
            for name in names if number % 2 else reversed(names):
                calls[name]()  # bring its arrays back into the cache and its threads awake
                samples[name].append(_time(calls[name], times[name]))
    finally:
        if collecting:
            gc.enable()
    return samples


def measure(case: Case, peers: Sequence[str], seconds: float) -> tuple[Row, dict[str, str]]:
    """One row, and the peers that had to be left out of it with the reason."""
    work = workload(case, peers)
    with num_threads(case.threads), np.errstate(all="ignore"):
        samples = take_turns(work.calls, seconds)
    samples[COPY] = [sample * work.copies for sample in samples[COPY]]
    ours = samples[OURS]
    row = Row(
        op=case.op.name,
        direction=case.direction,
        dtype=case.dtype.name,
        size=case.size,
        threads=case.threads,
        rounds=len(ours),
        seconds={name: median(values) for name, values in samples.items()},
        ratios={
            name: median(their / our for their, our in zip(values, ours, strict=True))
            for name, values in samples.items()
        },
    )
    return row, work.left_out


def _duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> _duration(2.5e-7), _duration(0.0123)
    ('0.25 µs', '12.3 ms')
    """
    unit, scale = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    digits = 0 if seconds * scale >= 100 else 1 if seconds * scale >= 10 else 2
    return f"{seconds * scale:.{digits}f} {unit}"


def _print_rows(rows: Sequence[Row]) -> None:
    """One table: the rows of one op, direction and dtype."""
    first = rows[0]
    peers = [name for name in first.seconds if name not in (OURS, FRESH, COPY)]
    header = ["elements", OURS, COPY, "× copy", "without out="]
    for peer in peers:
        header += [peer, f"× {peer}"]
    lines = []
    for row in rows:
        copied = 1 / row.ratios[COPY]
        line = [f"{row.size:,}", *(_duration(row.seconds[name]) for name in (OURS, COPY))]
        line += [f"{copied:.2f}", _duration(row.seconds[FRESH])]
        for peer in peers:
            line += [_duration(row.seconds[peer]), f"{row.ratios[peer]:.1f}"]
        lines.append(line)
    threads = f"{first.threads} thread{'s' if first.threads > 1 else ''}"
    print(f"\n{first.op}, {first.direction}, {first.dtype}, {threads}")
    print(table(header, lines, left=0), flush=True)


LEGEND = """\
Times are medians. fastact and copy write to a given array; peers, and fastact "without out=",
return a new one. × copy: time of fastact over that of a parallel copy of the same bytes through the
same threads; 1 is the speed of memory. × numpy, × torch …: their time over that of fastact."""


def machine(peers: Sequence[str]) -> dict[str, Any]:
    """Facts about this machine, this build and the peers."""
    versions = {peer: importlib.metadata.version(peer) for peer in peers}
    return {**_config.config(), "peers": versions}


def bench(ops: Sequence[Any], options: Options, json_file: Path | None = None) -> list[Row]:
    """Measure ops, print a table for each, and return the rows.

    Parameters
    ----------
    ops : sequence of ops
        What to measure; an op of a family that has no workload yet is named and passed over.
    options : Options
        How to measure.
    json_file : Path, optional
        File to write the rows and the facts about the machine to.
    """
    busy = os.getloadavg()[0]
    if busy > 0.5 * (os.cpu_count() or 1):
        print(f"note: the load average was {busy:.1f} at the start; an idle machine tells more")
    peers = installed(options.peers)
    for peer in options.peers:
        if peer not in peers:
            print(f"{peer}: not installed, left out")
    if "jax" in peers:
        print("jax: runs on threads of its own number")
    measurable = [op for op in ops if op.family in WORKLOADS]
    for op in ops:
        if op not in measurable:
            print(f"{op.name}: no benchmark for {op.family} yet")
    tables = list(product(measurable, options.dtypes, options.directions))
    rows: list[Row] = []
    with Progress("bench", len(tables) * len(options.sizes)) as progress:
        for op, dtype, direction in tables:
            part: list[Row] = []
            for size in options.sizes:
                case = Case(op, direction, dtype, size, options.threads)
                row, left_out = measure(case, peers, options.seconds)
                part.append(row)
                progress.advance(1)
            _print_rows(part)
            for peer, reason in left_out.items():
                print(f"{peer}: left out, {reason}")
            rows += part
    if rows:
        print(f"\n{LEGEND}")
    if json_file is not None:
        facts = {"machine": machine(peers), "rows": [asdict(row) for row in rows]}
        json_file.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return rows
