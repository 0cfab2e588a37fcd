"""A call's arrays in parts, which are small enough to stay in the caches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from ... import _cpu
from ..._cpu import View
from ...interop.call import Call

#: A part, by a first index and a length along some axes.
Part = Mapping[int, tuple[int, int]]


#: The most elements of a part on a GPU, and the fewest that are worth a thread of the CPU.
_PART_OF_GPU, _FEWEST = 1 << 23, 1 << 13


def threads_of(call: Call, size: int, most: int) -> tuple[int, int]:
    """Find the number of threads for this many elements, and the most elements of a part.

    most : the limit for a thread of the CPU. Each thread gets some parts, unless there are too few
    elements to be worth a thread; a GPU runs its kernels one after the other.
    """
    if call.is_on_gpu:
        return 1, _PART_OF_GPU
    threads = _cpu.get_thread_limit()
    return threads, min(most, max(size // threads, _FEWEST))


class Parts(NamedTuple):
    """Parts of one length along an axis, one after the other; without an axis, one part.

    others : the part of the other axes that all of them have.
    """

    others: Part
    axis: int | None = None
    first: int = 0
    length: int = 0
    number: int = 1

    def of(self, work: Callable[[Part, int], None], i: int, thread: int) -> None:
        """Do a thread's work for one of them."""
        own = {} if self.axis is None else {self.axis: (self.first + i * self.length, self.length)}
        work({**self.others, **own}, thread)


def for_each(
    call: Call, parts: Sequence[Parts], threads: int, work: Callable[[Part, int], None]
) -> None:
    """Work for each part, with at most this number of threads, which get their numbers."""
    for some in parts:
        call.repeat(partial(some.of, work), some.number, threads)


def cut(
    shape: tuple[int, ...],
    order: Sequence[int],
    most: int,
    units: Mapping[int, int] = MappingProxyType({}),
) -> tuple[tuple[int, ...], list[Parts]]:
    """Return the shape of most parts, and all parts, with at most `most` elements if possible.

    order : the axes that may be cut, in this order. units : the units of axes that are cut in them.
    """
    lengths = list(shape)
    for axis in order:
        unit = units.get(axis, 1)
        length = max(most // (math.prod(lengths) // lengths[axis]), 1)
        lengths[axis] = min(lengths[axis], max(length // unit, 1) * unit)
    counts = {a: -(-n // lengths[a]) for a, n in enumerate(shape) if lengths[a] < n}
    if not counts:
        return shape, [Parts({})]
    *outer, inner = sorted(counts, key=counts.__getitem__)
    spans = [
        [(first, min(lengths[a], shape[a] - first)) for first in range(0, shape[a], lengths[a])]
        for a in outer
    ]
    length, whole = lengths[inner], shape[inner]
    rest = whole % length
    found = []
    for at in itertools.product(*spans):
        others = dict(zip(outer, at, strict=True))
        found.append(Parts(others, inner, 0, length, whole // length))
        if rest:
            found.append(Parts(others, inner, whole - rest, rest, 1))
    return tuple(lengths), found


def part_of(view: View, part: Part) -> View:
    for axis, (first, length) in part.items():
        view = view.sliced(axis, first, 1, length)
    return view


def begin_of(view: View, part: Part) -> View:
    """Cut a scratch array to what a part has."""
    return part_of(view, {axis: (0, length) for axis, (_, length) in part.items()})
