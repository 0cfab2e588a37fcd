"""A call's arrays in parts: so much is computed at a time as stays in the caches."""

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

#: A part has, along some axes, a length from some place on.
Part = Mapping[int, tuple[int, int]]


#: Elements of a part on a GPU, at most, and the fewest that are worth a thread of the CPU.
_PART_OF_GPU, _FEWEST = 1 << 23, 1 << 13


def threads_of(call: Call, size: int, most: int) -> tuple[int, int]:
    """The threads that compute parts of so many elements, and the elements of a part, at most.

    most : of a thread of the CPU. Parts are so small that each thread has some, unless there are
    fewer elements than are worth a thread; a GPU runs its kernels one after the other.
    """
    if call.is_on_gpu:
        return 1, _PART_OF_GPU
    threads = _cpu.get_thread_limit()
    return threads, min(most, max(size // threads, _FEWEST))


class Parts(NamedTuple):
    """Parts of one length along an axis, one after the other; none: one part.

    others : what all of them have of other axes.
    """

    others: Part
    axis: int | None = None
    first: int = 0
    length: int = 0
    number: int = 1

    def of(self, work: Callable[[Part, int], None], i: int, thread: int) -> None:
        """Do a thread's work of one of them."""
        own = {} if self.axis is None else {self.axis: (self.first + i * self.length, self.length)}
        work({**self.others, **own}, thread)


def for_each(
    call: Call, parts: Sequence[Parts], threads: int, work: Callable[[Part, int], None]
) -> None:
    """Work for each part, by so many threads at most, which are told their numbers."""
    for some in parts:
        call.repeat(partial(some.of, work), some.number, threads)


def cut(
    shape: tuple[int, ...],
    order: Sequence[int],
    most: int,
    units: Mapping[int, int] = MappingProxyType({}),
) -> tuple[tuple[int, ...], list[Parts]]:
    """The shape of most parts, and all of them: of at most so many elements, if axes allow it.

    order : the axes that may be cut, the first one first. units : of axes that are cut into pieces
    of some units.
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
