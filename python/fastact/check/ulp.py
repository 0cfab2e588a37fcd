"""Errors in units in the last place of float32 results, over millions to billions of inputs.

A sweep runs every contender (an instruction set of ours, or a peer) over one batch of inputs after
the other, with the library's own threads. A pool of Python threads then compares the results with
the float64 oracle slice by slice; the oracle is evaluated once for all contenders, and results with
the same bits are compared once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..runtime.threads import get_num_threads

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Oracle = Callable[[Float64s], Float64s]

DIRECTIONS = ("forward", "derivative")
EDGES = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)  # of the histogram, in ULP

BATCH = 1 << 20  # inputs between two barriers of the pool; more leave the caches
_SLICE = 1 << 17  # inputs compared at once: fewer cost more in hand-overs of the interpreter lock
_ULPS = 2.0**23  # units in the last place that make up the power of two at or below a float32
_SMALLEST_NORMAL = 2.0**-126  # below it the spacing stays the same
_BEYOND = 2.0**128  # what follows the largest float32; stands for infinity
_EXPONENT_BITS = np.uint64(0x7FF0_0000_0000_0000)


@dataclass(frozen=True)
class Contender:
    """One implementation: a call in a direction reads float32 `x` and fills `out`."""

    label: str
    run: Callable[[str, Float32s, Float32s], None]


@dataclass
class Tally:
    """Errors of one implementation in one direction."""

    count: int = 0  # inputs seen
    #: Inputs with a NaN or an infinity where there should be none, or none where there should be
    #: one, and the first of them. They are above every edge, and in none of the errors below.
    wrong: int = 0
    wrong_at: float = 0.0
    worst: float = 0.0  # the largest error in ULP
    absolute: float = 0.0  # the largest absolute error; stays 0 where none is allowed
    counted: float = 0.0  # the largest in ULP of those whose absolute error is not allowed anyway
    counted_at: float = 0.0
    #: The number of inputs whose error exceeds each of `EDGES`.
    above: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(EDGES), np.int64))

    def add(self, other: Tally) -> None:
        """Take in the errors of other inputs."""
        self.count += other.count
        self.above += other.above
        self.absolute = max(self.absolute, other.absolute)
        if other.wrong and not self.wrong:
            self.wrong_at = other.wrong_at
        self.wrong += other.wrong
        self.worst = max(self.worst, other.worst)
        if other.counted > self.counted:
            self.counted, self.counted_at = other.counted, other.counted_at

    def histogram(self) -> list[int]:
        """Inputs per interval of error: up to the first edge, between edges, beyond the last."""
        cumulative = [self.count, *map(int, self.above), 0]
        return [more - fewer for more, fewer in pairwise(cumulative)]


def _settled(y: Float32s, reference: Float64s) -> tuple[Float64s, Float64s, NDArray[np.bool_]]:
    """Absolute errors, those in ULP, and where infinity or NaN is simply wrong.

    NaN equals NaN and nothing else; an infinite reference equals the same infinity and nothing
    else; an overflow counts as the number that would follow the largest float32.
    """
    nan = np.isnan(reference)
    wrong: NDArray[np.bool_] = (np.isnan(y) != nan) | (np.isinf(reference) & (y != reference))
    found, exact = (np.clip(a.astype(np.float64), -_BEYOND, _BEYOND) for a in (y, reference))
    absolute = np.where(wrong | nan, 0.0, np.abs(found - exact))
    # The power of two at or below the magnitude, but no less than the smallest normal float32.
    power = (exact.view(np.uint64) & _EXPONENT_BITS).view(np.float64)
    return absolute, absolute / np.maximum(power, _SMALLEST_NORMAL), wrong


def tally_of(
    x: NDArray[Any],
    absolute: Float64s,
    ulp: Float64s,
    wrong: NDArray[np.bool_],
    allowed: float,
    unit: float = 1.0,
) -> Tally:
    """Count the errors of one array of inputs, x.

    absolute, ulp : their errors, finite; `ulp` may be overwritten. wrong : where NaN or infinity is
    wrong. allowed : the absolute error that is allowed whatever it is in ULP. unit : what `ulp`
    counts, in ULP.
    """
    tally = Tally(count=x.size)
    at = ulp.argmax()
    tally.worst = float(ulp[at]) * unit
    for position, edge in enumerate(EDGES):
        if tally.worst > edge:
            tally.above[position] = np.count_nonzero(ulp > edge / unit)
    tally.wrong, tally.wrong_at = int(np.count_nonzero(wrong)), float(x[wrong.argmax()])
    tally.above += tally.wrong
    if allowed:
        tally.absolute = float(absolute.max())
        if tally.absolute <= allowed:
            return tally
        np.copyto(ulp, 0.0, where=absolute <= allowed)
        at = ulp.argmax()
    tally.counted, tally.counted_at = float(ulp[at]) * unit, float(x[at])
    return tally


def _measure_all(
    x: Float32s, results: Sequence[Float32s], oracle: Oracle, allowed: float
) -> list[Tally]:
    """Tallies of several results for one slice of inputs in one direction."""
    with np.errstate(all="ignore"):
        reference = oracle(x.astype(np.float64))
        bits = [y.tobytes() for y in results]
        tallies = {
            key: tally_of(x, *_settled(y, reference), allowed, unit=_ULPS)
            for key, y in dict(zip(bits, results, strict=True)).items()
        }
    return [tallies[key] for key in bits]


def sweep(
    contenders: Sequence[Contender],
    oracles: dict[str, Oracle],
    allowed: dict[str, float],
    batches: Iterable[Float32s],
    advance: Callable[[int], None],
) -> dict[str, list[Tally]]:
    """Compare every contender with the oracle over all batches: for each direction a `Tally` each.

    oracles : for each direction, the float64 function. allowed : for each direction, the absolute
    error that is allowed whatever it is in ULP. batches : the inputs, at most `BATCH` at a time; a
    batch may reuse the memory of the one before. advance : called with the number of inputs after
    each batch.
    """
    totals = {direction: [Tally() for _ in contenders] for direction in DIRECTIONS}
    memory = np.empty((len(DIRECTIONS), len(contenders), BATCH), dtype=np.float32)

    def compare(task: tuple[Float32s, list[Float32s], str]) -> tuple[str, list[Tally]]:
        x, results, direction = task
        tallies = _measure_all(x, results, oracles[direction], allowed[direction])
        return direction, tallies

    def tasks(x: Float32s) -> Iterator[tuple[Float32s, list[Float32s], str]]:
        for begin in range(0, x.size, _SLICE):
            part = slice(begin, min(begin + _SLICE, x.size))
            for direction, results in zip(DIRECTIONS, memory, strict=True):
                yield x[part], [y[part] for y in results], direction

    with ThreadPoolExecutor(get_num_threads()) as pool:
        for x in batches:
            for position, contender in enumerate(contenders):
                for direction, results in zip(DIRECTIONS, memory, strict=True):
                    contender.run(direction, x, results[position, : x.size])
            for direction, tallies in pool.map(compare, tasks(x)):
                for total, tally in zip(totals[direction], tallies, strict=True):
                    total.add(tally)
            advance(x.size)
    return totals


def tally_of_float64(x: Float64s, y: Float64s, exact: Sequence[Any], allowed: float) -> Tally:
    """Errors of float64 results `y` against `exact` numbers of mpmath."""
    absolute, ulp = np.zeros(x.size), np.zeros(x.size)
    wrong = np.zeros(x.size, dtype=np.bool_)
    for index, (ours, theirs) in enumerate(zip(y.tolist(), exact, strict=True)):
        nearest = float(theirs)
        if math.isfinite(nearest) and math.isfinite(ours):
            error = abs(theirs - ours)
            absolute[index] = float(error)
            ulp[index] = float(error / math.ulp(nearest))
        else:
            wrong[index] = ours != nearest and not (math.isnan(ours) and math.isnan(nearest))
    return tally_of(x, absolute, ulp, wrong, allowed)


def count_float32(stride: int) -> int:
    """How many inputs `every_float32` yields."""
    return -(-(1 << 32) // stride)


def every_float32(stride: int = 1) -> Iterator[Float32s]:
    """Batches of all 2**32 float32 bit patterns, or of each `stride`-th one."""
    steps = np.arange(BATCH, dtype=np.uint64) * np.uint64(stride)
    bits = np.empty(BATCH, dtype=np.uint32)
    left = count_float32(stride)
    for first in range(0, 1 << 32, BATCH * stride):
        size = min(BATCH, left)
        np.add(steps[:size], np.uint64(first), out=bits[:size], casting="unsafe")
        left -= size
        yield bits[:size].view(np.float32)


def dense_float32() -> Float32s:
    """Some 3.6 million float32 inputs: every exponent of both signs, and where formulas change."""
    # One random input in each of 2**21 equal intervals of bit patterns, 4096 for an exponent.
    width = 1 << 11
    bits = np.arange(0, 1 << 32, width, dtype=np.uint64).astype(np.uint32)
    bits += np.random.default_rng(0).integers(0, width, size=bits.size, dtype=np.uint32)
    # Between these ends exponentials neither vanish nor swamp everything; inputs lie evenly there.
    wide = np.linspace(-110.0, 110.0, 1 << 20, dtype=np.float32)
    near = np.linspace(-4.0, 4.0, 1 << 19, dtype=np.float32)
    return np.concatenate([_corners_float32(), wide, near, bits.view(np.float32)])


def _corners_float32() -> Float32s:
    """Zeros, infinities, NaN, limits, and the powers of two with their neighbours."""
    limits = np.finfo(np.float32)
    special = np.array([0.0, limits.tiny, limits.max, np.inf, np.nan], dtype=np.float32)
    powers = np.ldexp(np.float32(1), np.arange(-149, 128, dtype=np.int32))
    neighbours = [np.nextafter(powers, np.float32(toward)) for toward in (0.0, np.inf)]
    positive = np.concatenate([special, powers, *neighbours])
    return np.concatenate([positive, -positive])


def in_batches(x: Float32s) -> Iterator[Float32s]:
    for begin in range(0, x.size, BATCH):
        yield x[begin : begin + BATCH]
