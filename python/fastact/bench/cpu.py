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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby, product, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .. import _cpu
from ..ops.op import ops
from ..runtime import config
from ..runtime.threads import num_threads
from ..terminal import Progress, table
from .files import is_of, write_whole
from .peers import (
    COMPILED,
    COPY,
    FRESH,
    OURS,
    TORCH,
    Call,
    LeftOut,
    as_tensor,
    installed,
    open_torch,
    package_of,
)
from .workloads import FAMILIES
from .workloads.work import Case, Family, InMemory, Options, Work, by_torch, flat

_SAMPLE_SECONDS = 1e-3
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 200


@dataclass(frozen=True)
class Row:
    """Median seconds of one call, and median ratios to our time, by name of who did it.

    size : elements of the array.
    what : the case in words; of ops without axes, the size is all there is to it.
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


@dataclass(frozen=True)
class Workload:
    """Calls that do the same work.

    Attributes
    ----------
    calls : dict of str to callable
        `OURS`, `FRESH`, `COPY` and the peers.
    left_out : dict of str to str
        Peers asked for that cannot do it, and why.
    """

    calls: dict[str, Call]
    left_out: dict[str, str]


def workload(case: Case, peers: Sequence[str], threads: int) -> Workload:
    """Our call, a copy of an array of the case's shape, and the calls of peers."""
    family = FAMILIES[case.op.family]
    work = Work(case, family, InMemory())
    source = next(a for a in flat(work.arrays.values()) if np.shape(a) == case.shape)
    calls: dict[str, Call] = {
        COPY: partial(_cpu.copy, np.empty_like(source), source),
        OURS: work.ours,
        FRESH: work.fresh,
    }
    theirs, left_out = _ask_peers(family, peers, case, work, threads)
    return Workload(calls | theirs, left_out)


def _ask_peers(
    family: Family, peers: Sequence[str], case: Case, work: Work, threads: int
) -> tuple[dict[str, Call], dict[str, str]]:
    """Ask every peer for its call and try it; collect the reasons of those that can't."""
    makers: dict[str, Callable[[Case, Work, int], Call]] = {**family.others, TORCH: _torch}
    if family.compiles:
        makers[COMPILED] = partial(_torch, compiles=True)
    calls, left_out = {}, {}
    for peer in peers:
        if peer not in makers:
            left_out[peer] = f"not measured for {case.op.family}"
            continue
        try:
            call = makers[peer](case, work, threads)
            with np.errstate(all="ignore"):
                call()
            calls[peer] = call
        except LeftOut as reason:
            left_out[peer] = str(reason)
        except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
            # It lacks a function, or this dtype: the other rows are still wanted.
            left_out[peer] = f"{type(error).__name__}: {error}".partition("\n")[0]
    return calls, left_out


def _torch(case: Case, work: Work, threads: int, compiles: bool = False) -> Call:
    torch = open_torch(threads)
    bind = by_torch(torch, case, FAMILIES[case.op.family], compiles)
    return bind(*({n: as_tensor(torch, a) for n, a in arrays.items()} for arrays in work.given))


def measure(
    case: Case, peers: Sequence[str], seconds: float, threads: int
) -> tuple[Row, dict[str, str]]:
    """One row, and the peers that had to be left out of it with the reason."""
    work = workload(case, peers, threads)
    with num_threads(threads), np.errstate(all="ignore"):
        samples = take_turns(work.calls, seconds)
    # The copy is of one array: it moves two.
    samples[COPY] = [sample * (case.accesses / 2) for sample in samples[COPY]]
    ours = samples[OURS]
    row = Row(
        op=case.op.name,
        direction=case.direction,
        dtype=case.dtype,
        size=case.size,
        what=case.label,
        threads=threads,
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


def title_of(row: Row) -> str:
    """What a table is of: one op, direction and dtype."""
    threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
    return f"{row.op}, {row.direction}, {row.dtype}, {threads}"


def table_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]], int]:
    """One table: header, lines, and how many columns of them are names."""
    family = FAMILIES[ops[rows[0].op].family]
    named = dict.fromkeys(name for row in rows for name in row.seconds)
    peers = [name for name in named if name not in (OURS, FRESH, COPY)]
    header = [family.heading, OURS, COPY, "× copy", "without out="]
    for peer in peers:
        header += [peer, f"× {peer}"]
    lines = []
    for row in rows:
        copied = 1 / row.ratios[COPY]
        line = [row.what, *(_duration(row.seconds[name]) for name in (OURS, COPY))]
        line += [f"{copied:.2f}", _duration(row.seconds[FRESH])]
        for peer in peers:
            took_part = peer in row.seconds
            line += [_duration(row.seconds[peer]) if took_part else "–"]
            line += [f"{row.ratios[peer]:.1f}" if took_part else "–"]
        lines.append(line)
    return header, lines, int(family.heading == "shape")


LEGEND = """\
Times are medians. fastact and copy write to a given array; peers, and fastact "without out=",
return a new one. × copy: time of fastact over that of a parallel copy of the same bytes through the
same threads; 1 is the speed of memory. × numpy, × torch …: their time over that of fastact."""


def legend(rows: Sequence[Row]) -> str:
    """What the columns of these rows' tables mean."""
    notes = dict.fromkeys(FAMILIES[ops[row.op].family].note for row in rows)
    return "\n".join([LEGEND, *filter(None, notes)])


def machine(peers: Sequence[str]) -> dict[str, Any]:
    """Facts about this machine, this build and the peers."""
    versions = {peer: importlib.metadata.version(package_of(peer)) for peer in peers}
    return {**config.config(), "peers": versions}


def _show(part: Sequence[Row]) -> None:
    """Print the table of one op, direction and dtype."""
    header, lines, left = table_of(part)
    print(f"\n{title_of(part[0])}\n{table(header, lines, left=left)}", flush=True)


_SAME = ("version", "processor", "compiler", "isa", "peers")  # facts of rows of one table


def _key(op: str, direction: str, dtype: str, what: str, threads: int) -> tuple[Any, ...]:
    """What a row is of."""
    return op, direction, dtype, what, threads


def _kept(json_file: Path, facts: dict[str, Any]) -> list[Row]:
    """The rows that an earlier run has left in the file, if they may stand beside new ones."""
    if not json_file.exists():
        return []
    before, rows = _read(json_file)
    return rows if is_of(json_file, before, facts, _SAME) else []


def bench(
    chosen: Sequence[Any], options: Options, json_file: Path | None = None, *, goes_on: bool = False
) -> list[Row]:
    """Measure ops, print a table for each, and return the rows.

    Parameters
    ----------
    chosen : sequence of ops
        What to measure; one that has no case, or none that was asked for, is named and passed over.
    options : Options
        How to measure.
    json_file : Path, optional
        File to write the rows and the facts about the machine to, after each table.
    goes_on : bool
        Measure only the rows that the file lacks.
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
    tables = list(_tables(chosen, options))
    facts = machine(peers) if json_file is not None else {}
    rows = _kept(json_file, facts) if json_file is not None and goes_on else []
    done = {_key(row.op, row.direction, row.dtype, row.what, row.threads): row for row in rows}
    with Progress("bench", sum(map(len, tables))) as progress:
        for cases in tables:
            part: list[Row] = []
            reasons: dict[str, None] = {}  # in order, once each
            for case in cases:
                key = _key(case.op.name, case.direction, case.dtype, case.label, options.threads)
                row = done.get(key)
                if row is None:
                    row, left_out = measure(case, peers, options.seconds, options.threads)
                    rows.append(row)
                    reasons |= dict.fromkeys(
                        f"{peer}: left out, {why}" for peer, why in left_out.items()
                    )
                part.append(row)
                progress.advance(1)
            _show(part)
            for reason in reasons:
                print(reason)
            if json_file is not None:
                numbers = {"machine": facts, "rows": [asdict(row) for row in rows]}
                write_whole(json_file, json.dumps(numbers, indent=2) + "\n")
    if rows:
        print(f"\n{legend(rows)}")
    return rows


def _read(json_file: Path) -> tuple[dict[str, Any], list[Row]]:
    """The facts and the rows of a file that `bench` has written."""
    try:
        numbers = json.loads(json_file.read_text(encoding="utf-8"))
        facts = numbers["machine"]
        str(facts["processor"])
        return facts, [Row(**row) for row in numbers["rows"]]
    except (ValueError, LookupError, TypeError):
        raise ValueError(f"{json_file} was not written by bench --json on a CPU") from None


def read(json_file: Path, chosen: Sequence[Any]) -> tuple[list[Row], str]:
    """Print the tables of what `bench` has written, and return their rows and the processor.

    Parameters
    ----------
    json_file : Path
        The file that `bench` wrote.
    chosen : sequence of ops
        Those to show, where the file has them.

    Raises
    ------
    ValueError
        If the file is none of this benchmark.
    """
    facts, rows = _read(json_file)
    processor = str(facts["processor"])
    names = [op.name for op in chosen]
    rows = [row for row in rows if row.op in names]
    for _, part in groupby(rows, title_of):
        _show(list(part))
    if rows:
        print(f"\n{legend(rows)}")
    return rows, processor


def _tables(chosen: Sequence[Any], options: Options) -> Iterator[list[Case]]:
    """The cases, one list a table; an op without any is named."""
    for op in chosen:
        found = False
        for dtype, direction in product(options.dtypes, options.directions):
            family = FAMILIES.get(op.family)
            if family and (cases := family.on_cpu(op, direction, dtype.name, options)):
                found = True
                yield cases
        if not found:
            print(f"{op.name}: nothing to measure of it")
