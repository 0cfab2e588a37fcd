"""The speed benchmark behind ``python -m fastact bench``.

Speed is reported as a ratio within one run: us against the copy of the same bytes through the same
threads, and against every peer. All of them take turns within each round, so that noise of the
machine hits all alike, and a ratio is the median over the ratios of the rounds.
"""

from __future__ import annotations

import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product, repeat
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from .. import _cpu
from ..measure.peers import (
    COMPILED,
    COPY,
    FIRST,
    FIRST_OF_TORCH,
    FRESH,
    JAX,
    ON_REQUEST,
    ONNX,
    OURS,
    OURS_OF_TORCH,
    PEERS,
    TORCH,
    Call,
    LeftOut,
    as_tensor,
    open_jax,
    open_torch,
    versions,
)
from ..ops.engine.op import ops
from ..runtime.threads import num_threads
from ..terminal import Progress, paragraph, say, styled, table
from .cpu_rows import CpuResults, CpuRow, machine, start
from .onnx import by_onnx
from .rows import asked, medians
from .workloads import FAMILIES
from .workloads.work import Case, Family, InMemory, Options, Tensors, Work, by_jax, by_torch, flat

# The later half of a turn counts, when threads are awake and arrays in the caches as in a loop: of
# 30 to 60 MB the first call took twice as long as the eighth, with which it had settled.
_BATCH_SECONDS = 0.2e-3  # of short calls, for the clock
_TURN_SECONDS, _TURN_CALLS = 4e-3, 9
_COLD_SECONDS = 40e-3  # for those calls; a call that is longer has arrays that no cache holds
CLOSE_ROUNDS, FEW_ROUNDS = 7, 2  # for peers that are close, and for others
_CLOSE, HOPELESS = 1.5, 3.0  # times our time: up to the one, and from the other on
HOPELESS_SECONDS = 10e-3  # of one call, the least of a few: it tells enough
_LONG_SECONDS = 0.3  # of a first call that is not repeated: no start of a library takes so long
_CALLS, _SECONDS_AGAIN = 2, 0.05  # so many calls, where one takes no longer, before one is hopeless
_SHORT_SECONDS = 1e-3  # of a call whose turn is short: it has all the rounds
_BESIDE = {FRESH, COPY}  # who is no peer
_ALIKE = 0.95  # and its inverse: between them nobody is faster


def _time(call: Call, times: int) -> float:
    """Seconds of one call, over a number of them."""
    turns = repeat(None, times)
    started = time.perf_counter()
    for _ in turns:
        call()
    return (time.perf_counter() - started) / times


def _calls_in_batch(call: Call, once: float) -> int:
    """How often to repeat a call so that a batch lasts long enough for the clock."""
    times, seconds = 1, once
    while seconds < _BATCH_SECONDS:
        times *= max(2, int(min(_BATCH_SECONDS / max(seconds, 1e-9), 100.0)))
        # the least of them: an interruption is not a call
        seconds = times * min(_time(call, times) for _ in range(3))
    return times


def batches_in_turn(batch: float) -> int:
    """How many batches of so many seconds a turn has."""
    return max(1, int(max(_TURN_SECONDS / batch, min(_TURN_CALLS, _COLD_SECONDS / batch))))


def _turn(call: Call, times: int, batches: int) -> float:
    """Seconds of one call as it is in a loop: an interruption of one batch does not count."""
    seconds = [_time(call, times) for _ in range(batches)]
    return median(seconds[batches // 2 :])


def take_turns(
    calls: dict[str, Call], seconds: float, first: Mapping[str, float] | None = None
) -> dict[str, list[float]]:
    """Time the calls in rounds of one turn each.

    One round more is for whoever it can tell more about: most of all, for peers that are close.

    Parameters
    ----------
    calls : dict of str to callable
        What to time, ours first.
    seconds : float
        Time to spend, about.
    first : mapping of str to float, optional
        Seconds of calls that were made already.

    Returns
    -------
    dict of str to list of float
        For each name, seconds of one call in each round from the first one on. Of a long call that
        takes several times as long as ours, one call alone.
    """
    ours, *others = calls
    samples: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        once = {ours: _once(calls[ours], math.inf)}
        limit = max(HOPELESS * once[ours], HOPELESS_SECONDS)
        for name in others:
            once[name] = _once(calls[name], limit, (first or {}).get(name))
        racing = [name for name in others if name in _BESIDE or once[name] <= limit]
        samples |= {name: [once[name]] for name in {*others} - {*racing}}
        turns = {}
        for name in (ours, *racing):
            times = _calls_in_batch(calls[name], once[name])
            turns[name] = partial(_turn, calls[name], times, batches_in_turn(times * once[name]))
        ends = time.perf_counter() + seconds
        while not samples[ours] or racing:
            # Nobody always runs after the same other one.
            order = [ours, *racing]
            for name in order if len(samples[ours]) % 2 else reversed(order):
                samples[name].append(turns[name]())
            late = time.perf_counter() >= ends
            racing = [n for n in racing if _goes_on(n, samples[n], samples[ours], late)]
    finally:
        if collecting:
            gc.enable()
    return samples


def _once(call: Call, limit: float, first: float | None = None) -> float:
    """Seconds of a call: of the second one, or the least of a few where that is beyond the limit.

    The first one pays for pages and threads, and counts where it is too long to be repeated.
    """
    first = _time(call, 1) if first is None else first
    if first > max(2 * limit, _LONG_SECONDS):
        return first
    least = _time(call, 1)
    for _ in range(_CALLS - 1):
        if limit < least < _SECONDS_AGAIN:
            least = min(least, _time(call, 1))
    return least


def _goes_on(name: str, theirs: Sequence[float], ours: Sequence[float], late: bool) -> bool:
    """Whether one round more can tell more of whoever took so long in those up to now."""
    rounds = len(theirs)
    if name in _BESIDE:
        return rounds < FEW_ROUNDS or not late
    if rounds < FEW_ROUNDS:
        return theirs[-1] < max(HOPELESS * ours[-1], _SHORT_SECONDS)
    # One round in which others had the cores tells nothing.
    least: float = min(map(truediv, theirs, ours))
    return least <= _CLOSE and (rounds < CLOSE_ROUNDS or not late)


@dataclass(frozen=True)
class Workload:
    """Calls that do the same work.

    Attributes
    ----------
    calls : dict of str to callable
        `OURS`, `FRESH`, `COPY` and the peers.
    left_out : dict of str to str
        Peers asked for that cannot do it, and why.
    first : dict of str to float
        Seconds of the peers' first calls.
    """

    calls: dict[str, Call]
    left_out: dict[str, str]
    first: dict[str, float]


def workload(case: Case, peers: Sequence[str], threads: int) -> Workload:
    """Our call, a copy of an array of the case's shape, and the calls of peers."""
    family = FAMILIES[case.op.family]
    work = Work(case, family, InMemory())
    source = next(a for a in (*flat(work.arrays.values()), *work.out) if np.shape(a) == case.shape)
    calls: dict[str, Call] = {
        OURS: work.ours,
        FRESH: work.fresh,
        COPY: partial(_cpu.copy, np.empty_like(source), source),
    }
    theirs, left_out = _ask_peers(family, peers, case, work, threads)
    first = {name: seconds for name, (_, seconds) in theirs.items()}
    return Workload(calls | {name: call for name, (call, _) in theirs.items()}, left_out, first)


def small_calls(case: Case, peers: Sequence[str], threads: int) -> Workload:
    """The same, with our first call, and our calls of tensors where torch is a peer."""
    made = workload(case, peers, threads)
    calls = {**made.calls, FIRST: _uncached(made.calls[OURS])}
    if TORCH in peers:
        of_tensors = Work(case, FAMILIES[case.op.family], Tensors(open_torch(threads))).ours
        calls[OURS_OF_TORCH] = of_tensors
        calls[FIRST_OF_TORCH] = _uncached(of_tensors)
    return replace(made, calls=calls)


def _uncached(call: Call) -> Call:
    """The call as it is the first time: nothing of an earlier one is replayed."""

    def run() -> Any:
        _cpu.enable_call_cache(False)
        try:
            return call()
        finally:
            _cpu.enable_call_cache(True)

    return run


def _ask_peers(
    family: Family, peers: Sequence[str], case: Case, work: Work, threads: int
) -> tuple[dict[str, tuple[Call, float]], dict[str, str]]:
    """Ask every peer for its call and time a first one; collect the reasons of those that can't."""
    makers: dict[str, Callable[[Case, Work, int], Call]] = {
        **family.others,
        TORCH: _torch,
        COMPILED: partial(_torch, compiles=True),
        JAX: lambda case, work, threads: by_jax(open_jax(threads), case, family, work),
        ONNX: lambda case, work, threads: by_onnx(case, family, work, threads),
    }

    def tried(peer: str) -> tuple[Call, float]:
        if peer not in makers:
            raise LeftOut(f"not measured for {case.op.family}")
        call = makers[peer](case, work, threads)
        with np.errstate(all="ignore"):
            if peer == COMPILED:  # by its first call
                call()
            return call, _time(call, 1)

    return asked(peers, tried)


def _torch(case: Case, work: Work, threads: int, compiles: bool = False) -> Call:
    torch = open_torch(threads)
    bind = by_torch(torch, case, FAMILIES[case.op.family], compiles)
    return bind(*({n: as_tensor(torch, a) for n, a in arrays.items()} for arrays in work.given))


def measure(
    case: Case, peers: Sequence[str], seconds: float, threads: int, small: bool = False
) -> tuple[CpuRow, dict[str, str]]:
    """One row, and the peers that had to be left out of it with the reason."""
    work = (small_calls if small else workload)(case, peers, threads)
    with num_threads(threads), np.errstate(all="ignore"):
        samples = take_turns(work.calls, seconds, work.first)
    # The copy is of one array: it moves two.
    samples[COPY] = [sample * (case.accesses / 2) for sample in samples[COPY]]
    found = medians(samples)
    for of in (found["seconds"], found["ratios"]):  # as a file of thousands of rows has place for
        of |= {name: float(f"{value:.4g}") for name, value in of.items()}
    left_out = tuple(work.left_out)
    row = CpuRow(**case.words, **found, size=case.size, threads=threads, without=left_out)
    return row, work.left_out


def _duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> _duration(2.5e-7), _duration(0.0123)
    ('0.25 µs', '12.3 ms')
    """
    unit, scale = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    digits = 0 if seconds * scale >= 100 else 1 if seconds * scale >= 10 else 2
    return f"{seconds * scale:.{digits}f} {unit}"


def title_of(row: CpuRow) -> str:
    """The title of a table: one op, direction and dtype."""
    threads = f"{row.threads} thread{'s' if row.threads > 1 else ''}"
    return f"{row.op}, {row.direction}, {row.dtype}, {threads}"


def table_of(rows: Sequence[CpuRow]) -> tuple[list[str], list[list[str]], int]:
    """One table: header, lines, and how many columns of them are names."""
    family = FAMILIES[ops[rows[0].op].family]
    named = dict.fromkeys(name for row in rows for name in row.seconds)
    peers = [name for name in named if name in (*PEERS, *ON_REQUEST)]
    header = [family.heading, OURS, COPY, f"× {COPY}", "no out="]
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
Times are medians. fastact and copy write to a given array; peers, and fastact with "no out=",
return a new one. × copy: fastact's time over the time of a parallel copy of the same bytes through
the same threads; 1 is the speed of memory. × numpy, × torch …: their time over fastact's."""


def legend(rows: Sequence[CpuRow]) -> str:
    """What the columns of these rows' tables mean."""
    notes = dict.fromkeys(FAMILIES[ops[row.op].family].note for row in rows)
    return "\n".join([LEGEND, *filter(None, notes)])


def _gain(column: str, cell: str) -> str:
    """The style of a ratio: whether the peer is slower than we are, or faster."""
    if not column.startswith("× ") or column == f"× {COPY}" or cell == "–":
        return ""
    return "green" if float(cell) > 1 / _ALIKE else "red" if float(cell) < _ALIKE else ""


def _show(part: Sequence[CpuRow]) -> None:
    """Print the table of one op, direction and dtype."""
    header, lines, left = table_of(part)
    say("", styled(title_of(part[0]), "bold"), table(header, lines, left=left, style=_gain))


def bench(
    chosen: Sequence[Any], options: Options, json_file: Path | None = None, *, goes_on: bool = False
) -> CpuResults:
    """Measure ops, print a table for each, and return the results.

    Parameters
    ----------
    chosen : sequence of ops
        What to measure; one that has no case, or none that was asked for, is named and passed over.
    options : Options
        How to measure.
    json_file : Path, optional
        File to write the rows and the facts about the machine to, after each table.
    goes_on : bool
        Measure only the rows, and of them the peers, that the file lacks.
    """
    busy = os.getloadavg()[0]
    if busy > 0.5 * (os.cpu_count() or 1):
        say(f"note: the load average was {busy:.1f} at the start; an idle machine tells more")
    peers = versions(options.peers)
    for peer in options.peers:
        if peer not in peers:
            say(f"{peer}: not installed, left out")
    facts = machine(peers)
    results = start(json_file, facts, goes_on) if json_file is not None else CpuResults(facts)
    tables = [
        [todo for case, threads in part if (todo := _lacking(results, case, threads, [*peers]))]
        for part in all_tables(chosen, options)
    ]
    results.left = sum(map(len, tables))
    if goes_on:
        say(f"{len(results.rows)} rows are there, {results.left} to be measured")
    ends = time.monotonic() + options.stop_after
    with Progress("bench", results.left) as progress:
        for part in filter(None, tables):
            rows: list[CpuRow] = []
            reasons: dict[str, None] = {}  # in order, once each
            for case, threads, lacking in part:
                if time.monotonic() >= ends:
                    break
                row, left_out = measure(case, lacking, options.seconds, threads, options.small)
                rows.append(results.add(row))
                reasons |= dict.fromkeys(f"{p}: left out, {why}" for p, why in left_out.items())
                results.left -= 1
                progress.advance(1)
            if not rows:
                break
            _show(rows)
            say(*reasons, end="\n" if reasons else "")
            if json_file is not None:  # what has been measured survives whatever comes
                results.write(json_file)
    if results.rows:
        say("", paragraph(legend(results.sorted())))
    if results.left:
        say(f"{results.left} rows are left; the same with --resume goes on")
    return results


def _lacking(
    results: CpuResults, case: Case, threads: int, peers: Sequence[str]
) -> tuple[Case, int, Sequence[str]] | None:
    """The case, threads and peers that are left to measure; None if there are none."""
    row = results.rows.get((case.op.name, case.direction, case.dtype, case.label, threads))
    if row is None:
        return case, threads, peers
    missing = row.missing(peers)
    return (case, threads, missing) if missing else None


def show(rows: Sequence[CpuRow]) -> None:
    """Print the tables of rows."""
    for _, part in groupby(rows, title_of):
        _show(list(part))
    if rows:
        say("", paragraph(legend(rows)))


def all_tables(chosen: Sequence[Any], options: Options) -> Iterator[list[tuple[Case, int]]]:
    """The cases, each with a number of threads, one list a table; an op without any is named."""
    for op in chosen:
        found = False
        for threads, dtype, direction in product(
            options.threads, options.dtypes, options.directions
        ):
            family = FAMILIES.get(op.family)
            if family and (cases := family.on_cpu(op, direction, dtype.name, options)):
                found = True
                yield [(case, threads) for case in cases]
        if not found:
            say(f"{op.name}: nothing to measure of it")
