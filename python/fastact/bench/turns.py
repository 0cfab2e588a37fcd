"""The timing of calls that take turns, and the rows that come of it.

Speed is a ratio within one run: all calls take turns within each round, so that noise of the
machine hits all alike, and a ratio is the median over the ratios of the rounds.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from operator import truediv
from statistics import median
from typing import Any

from ..measure.peers import COPY, FRESH, OURS, Call, LeftOut

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


def time_of(call: Call, times: int) -> float:
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
        seconds = times * min(time_of(call, times) for _ in range(3))
    return times


def batches_in_turn(batch: float) -> int:
    """How many batches of so many seconds a turn has."""
    return max(1, int(max(_TURN_SECONDS / batch, min(_TURN_CALLS, _COLD_SECONDS / batch))))


def _turn(call: Call, times: int, batches: int) -> float:
    """Seconds of one call as it is in a loop: an interruption of one batch does not count."""
    seconds = [time_of(call, times) for _ in range(batches)]
    return median(seconds[batches // 2 :])


def take_turns(calls: dict[str, Call], seconds: float) -> dict[str, list[float]]:
    """Time the calls in rounds of one turn each.

    One round more is for whoever it can tell more about: most of all, for peers that are close.
    For each name there are seconds of one call in each round from the first one on; of a long call
    that takes several times as long as ours, of one call alone.

    calls : ours first. seconds : to spend, about.
    """
    ours, *others = calls
    samples: dict[str, list[float]] = {name: [] for name in calls}
    collecting = gc.isenabled()
    gc.disable()
    try:
        once = {ours: _once(calls[ours], math.inf)}
        limit = max(HOPELESS * once[ours], HOPELESS_SECONDS)
        for name in others:
            once[name] = _once(calls[name], limit)
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


def _once(call: Call, limit: float) -> float:
    """Seconds of a call: of the second one, or the least of a few where that is beyond the limit.

    The first one pays for pages and threads, and counts where it is too long to be repeated.
    """
    first = time_of(call, 1)
    if first > max(2 * limit, _LONG_SECONDS):
        return first
    least = time_of(call, 1)
    for _ in range(_CALLS - 1):
        if limit < least < _SECONDS_AGAIN:
            least = min(least, time_of(call, 1))
    return least


def _goes_on(name: str, theirs: Sequence[float], ours: Sequence[float], late: bool) -> bool:
    """Tell whether one round more can tell more of whoever took so long in those up to now."""
    rounds = len(theirs)
    if name in _BESIDE:
        return rounds < FEW_ROUNDS or not late
    if rounds < FEW_ROUNDS:
        return theirs[-1] < max(HOPELESS * ours[-1], _SHORT_SECONDS)
    # One round in which others had the cores tells nothing.
    least: float = min(map(truediv, theirs, ours))
    return least <= _CLOSE and (rounds < CLOSE_ROUNDS or not late)


@dataclass(frozen=True)
class Row:
    """Median seconds of one call, and median ratios to our time, by name of who did it."""

    op: str
    direction: str
    dtype: str
    what: str  # the case in words; of ops without axes, the size is all there is to it
    rounds: int
    seconds: dict[str, float]
    ratios: dict[str, float]
    size: int = 0  # elements of the array; on a GPU not told
    threads: int = 0  # on a GPU none
    without: tuple[str, ...] = ()  # peers that were asked and cannot do it

    @property
    def key(self) -> tuple[Any, ...]:
        """The key that tells the row from all others."""
        return self.op, self.direction, self.dtype, self.what, self.threads

    def missing(self, peers: Sequence[str]) -> list[str]:
        """List the peers that nobody has asked yet."""
        return [peer for peer in peers if peer not in self.ratios and peer not in self.without]

    def joined(self, later: Row) -> Row:
        """Add further peers of a later run, whose ratios are to our time in that run."""
        return replace(
            self,
            seconds={**later.seconds, **self.seconds},
            ratios={**later.ratios, **self.ratios},
            without=(*self.without, *later.without),
        )

    def but(self, peers: Collection[str]) -> Row:
        """Leave some peers out."""
        seconds, ratios = (
            {who: value for who, value in of.items() if who not in peers}
            for of in (self.seconds, self.ratios)
        )
        return replace(self, seconds=seconds, ratios=ratios)


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]


def asked(
    peers: Iterable[str], make: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Give what each peer makes, but None, and the reasons of those that can't.

    Peers fail in ways of their own; other rows are still wanted.
    """
    made, left_out = {}, {}
    for peer in peers:
        try:
            if (call := make(peer)) is not None:
                made[peer] = call
        except LeftOut as reason:
            left_out[peer] = str(reason)
        except Exception as error:
            left_out[peer] = first_line(error)
    return made, left_out


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """These of samples: seconds of a call in each round, by who did it."""
    ours = samples[OURS]
    return {
        "rounds": len(ours),
        "seconds": {name: median(values) for name, values in samples.items()},
        "ratios": {
            # Who was timed less often has been in the first rounds.
            name: median(their / our for their, our in zip(values, ours, strict=False))
            for name, values in samples.items()
        },
    }


def duration(seconds: float) -> str:
    """Three digits and a unit.

    >>> duration(2.5e-7), duration(0.0123)
    ('0.25 µs', '12.3 ms')
    """
    unit, scale = ("µs", 1e6) if seconds < 1e-3 else ("ms", 1e3) if seconds < 1 else ("s", 1.0)
    digits = 0 if seconds * scale >= 100 else 1 if seconds * scale >= 10 else 2
    return f"{seconds * scale:.{digits}f} {unit}"
