"""Moments that merge: what `fastact.moments` returns (`engine/moments.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..interop import foreign, validate
from ..interop.frameworks import NUMPY, framework_of, namespace
from .engine import axes
from .engine.op import ops

#: Of buffers and pickles; not 0 or 1, with which buffers without a version may begin.
_VERSION = -2.0


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """The number of values, their mean, and m2, the sum of the squared distances from it.

    Moments of parts merge into the moments of the whole without loss: a data set can be read in
    chunks, or lie on many machines.

    Attributes
    ----------
    count : int or array
        Values that each mean is of, or the sum of their weights; not negative. An array of float64,
        of the mean's shape, where not all elements count, or not once.
    mean, m2 : array
        Of float64, of one shape and from one framework. Python numbers become NumPy's.

    Examples
    --------
    >>> import numpy as np, fastact as fa
    >>> x = np.arange(12.0).reshape(4, 3)
    >>> a, b = fa.moments(x[:1], 0), fa.moments(x[1:], 0)
    >>> a.merge(b)
    Moments(count=4, mean=array([4.5, 5.5, 6.5]), m2=array([45., 45., 45.]))
    >>> a.merge(b).std(correction=1)
    array([3.8729..., 3.8729..., 3.8729...])
    """

    count: Any
    mean: Any
    m2: Any

    def __post_init__(self) -> None:
        where = "fastact.Moments"
        is_array = hasattr(self.count, "shape") and hasattr(self.count, "dtype")
        is_array = is_array and str(self.count.dtype).rpartition(".")[2].startswith("float")
        count = self.count if is_array else axes.integer(where, "count", self.count)
        below: Any = count < 0
        if bool(below.any() if is_array else below):
            raise ValueError(
                f"{where}: count must not be negative, got {validate.describe(self.count)}"
            )
        object.__setattr__(self, "count", count)
        arrays = ("count", "mean", "m2") if is_array else ("mean", "m2")
        for name in arrays:
            object.__setattr__(self, name, _statistic(where, name, getattr(self, name)))
        shape = tuple(self.mean.shape)
        for name in arrays:
            if tuple(getattr(self, name).shape) != shape:
                raise ValueError(
                    f"{where}: {name} must have shape {shape}, as mean has, got "
                    f"{tuple(getattr(self, name).shape)}"
                )
        _one_framework(where, **{name: getattr(self, name) for name in arrays})

    @classmethod
    def of_checked(cls, count: Any, mean: Any, m2: Any) -> Moments:
        """Of arrays that an op has made, or will: torch's tracers have none with values."""
        made = cls.__new__(cls)
        for name, value in (("count", count), ("mean", mean), ("m2", m2)):
            object.__setattr__(made, name, value)
        return made

    def var(self, correction: float = 0) -> Any:
        """The variance m2 / (count - correction); where that is not positive, as NumPy has it.

        Where the count is an array that is NaN.
        """
        correction = validate.number("fastact.Moments.var", "correction", correction)
        if self._counts_each:
            xp, left = namespace(self.mean), self.count - correction
            with np.errstate(all="ignore"):
                return xp.where(left > 0, self.m2 / left, self.mean * math.nan)[()]
        if self.count > correction:
            return self.m2 / (self.count - correction)
        with np.errstate(all="ignore"):
            return self.m2 * math.inf

    def std(self, correction: float = 0) -> Any:
        """The standard deviation, the square root of `var`."""
        return self.var(correction) ** 0.5

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of values together, by Chan's formula."""
        where = "fastact.Moments.merge"
        if not isinstance(other, Moments):
            raise TypeError(f"{where}: other must be Moments, got {validate.describe(other)}")
        if tuple(other.mean.shape) != tuple(self.mean.shape):
            raise ValueError(
                f"{where}: other must have shape {tuple(self.mean.shape)}, got "
                f"{tuple(other.mean.shape)}"
            )
        _one_framework(where, self=self.mean, other=other.mean)
        if self._counts_each or other._counts_each:
            return self._merge_counts(other)
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        mean, m2 = _merged(self, other, other.count / count, self.count)
        return Moments.of_checked(count, mean, m2)

    def _merge_counts(self, other: Moments) -> Moments:
        """The same where each mean has a count of its own, of which some are 0."""
        xp = namespace(self.mean)
        ours, theirs = (xp.zeros_like(part.mean) + part.count for part in (self, other))
        count = ours + theirs
        with np.errstate(all="ignore"):
            mean, m2 = _merged(self, other, theirs / count, ours)
        parts = ((self.mean, mean, other.mean), (self.m2, m2, other.m2))
        mean, m2 = (
            xp.where(theirs == 0, a, xp.where(ours == 0, b, both))[()] for a, both, b in parts
        )
        return Moments.of_checked(count, mean, m2)

    def update(
        self,
        batch: Any,
        axis: Any = None,
        *,
        weights: Any = None,
        skipna: bool = False,
        where: Any = None,
    ) -> Moments:
        """The moments of the values so far and of a batch.

        ``self.merge(fastact.moments(batch, axis, ...))``, where axis is, by default, the leading
        axes that the mean lacks.
        """
        if axis is None and hasattr(batch, "ndim"):
            axis = tuple(range(max(batch.ndim - len(self.mean.shape), 0)))
        moments = ops["moments"]
        return self.merge(moments(batch, axis, weights=weights, skipna=skipna, where=where))

    @staticmethod
    def merge_many(parts: Iterable[Moments]) -> Moments:
        """The moments of all values, merged in one tree: neighbours first, then pairs of pairs.

        The bits depend on the order of the parts alone, whoever computed them, and when.
        """
        where = "fastact.Moments.merge_many"
        if not isinstance(parts, Iterable):
            raise TypeError(f"{where}: parts must be Moments, got {validate.describe(parts)}")
        left = list(parts)
        if not left:
            raise ValueError(f"{where}: parts must not be empty")
        for part in left:
            if not isinstance(part, Moments):
                raise TypeError(f"{where}: parts must be Moments, got {validate.describe(part)}")
        while len(left) > 1:
            pairs = zip(left[::2], left[1::2], strict=False)
            left = [a.merge(b) for a, b in pairs] + left[len(left) & ~1 :]
        return left[0]

    @property
    def _counts_each(self) -> bool:
        return not isinstance(self.count, int)

    def to_buffer(self) -> Any:
        """One flat float64 array, which an all-gather takes.

        The version of this form, whether each mean has a count of its own, the counts, the means,
        then m2.
        """
        xp = namespace(self.mean)
        flat = [xp.reshape(part, (-1,)) for part in (self.mean, self.m2)]
        if self._counts_each:
            flat.insert(0, xp.reshape(self.count, (-1,)))
        one = flat[0][:1] if len(flat[0]) else xp.ones(1)
        head = [_VERSION, self._counts_each, *([] if self._counts_each else [self.count])]
        return xp.concatenate([*(xp.full_like(one, float(number)) for number in head), *flat])

    @staticmethod
    def from_buffer(buffer: Any, shape: tuple[int, ...]) -> Moments:
        """What `to_buffer` made a buffer of; shape: of the mean."""
        where = "fastact.Moments.from_buffer"
        shape = axes.lengths(where, "shape", shape)
        size = math.prod(shape)
        buffer = _statistic(where, "buffer", buffer)
        head = [float(number) for number in buffer.reshape(-1)[:2]]
        if len(head) < 2 or head[0] != _VERSION or head[1] not in (0.0, 1.0):
            raise ValueError(
                f"{where}: buffer must be one that this version of to_buffer makes, which begins "
                f"with {_VERSION:g} and 0 or 1, got {head}"
            )
        counts = size if head[1] else 1
        if tuple(buffer.shape) != (2 + counts + 2 * size,):
            raise ValueError(
                f"{where}: buffer must have shape {(2 + counts + 2 * size,)} for moments of shape "
                f"{shape}, got {tuple(buffer.shape)}"
            )
        parts = buffer[2:][:counts], *(buffer[2 + counts + i * size :][:size] for i in range(2))
        mean, m2 = (part.reshape(shape)[()] for part in parts[1:])
        if head[1]:
            return Moments.of_checked(parts[0].reshape(shape)[()], mean, m2)
        count = float(parts[0][0])
        if not (count >= 0 and count.is_integer()):
            raise ValueError(
                f"{where}: buffer must have a count, a whole number that is not negative, got "
                f"{count!r}"
            )
        return Moments.of_checked(int(count), mean, m2)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (_VERSION, self.count, self.mean, self.m2)

    def __eq__(self, other: object) -> bool:
        """The same count and the same numbers; NaN is NaN."""
        if not isinstance(other, Moments):
            return NotImplemented
        if self._counts_each != other._counts_each:
            return False
        if tuple(self.mean.shape) != tuple(other.mean.shape):
            return False
        if not (self._counts_each or self.count == other.count):
            return False
        pairs = [(self.mean, other.mean), (self.m2, other.m2)]
        if self._counts_each:
            pairs.append((self.count, other.count))
        return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


def _merged(a: Moments, b: Moments, share: Any, weight: Any) -> tuple[Any, Any]:
    """Mean and m2 of both; share: b's of the count, weight: a's count."""
    xp = namespace(a.mean)
    with np.errstate(all="ignore"):
        delta = b.mean - a.mean
        # An infinite mean, or means too far apart for their difference, take the other road.
        mean = xp.where(
            xp.isfinite(delta), a.mean + delta * share, a.mean * (1 - share) + b.mean * share
        )[()]
        return mean, a.m2 + (b.m2 + delta * delta * (weight * share))


def _unpickled(version: float, count: Any, mean: Any, m2: Any) -> Moments:
    if version != _VERSION:
        raise ValueError(
            f"fastact.Moments: a pickle must be of version {_VERSION:g}, got {version!r}"
        )
    return Moments.of_checked(count, mean, m2)


def _statistic(where: str, name: str, value: Any) -> Any:
    """Take mean, m2, or both in a buffer: arrays of floating-point numbers."""
    if type(value) in (int, float):
        return np.float64(_finite_or_not(where, name, value))
    foreign.plain(where, name, value)
    dtype = str(getattr(value, "dtype", "")).rpartition(".")[2]
    if not (hasattr(value, "shape") and dtype.startswith("float")):
        raise TypeError(
            f"{where}: {name} must be an array of float64, got {validate.describe(value)}"
        )
    return value


def _finite_or_not(where: str, name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(
            f"{where}: {name} must be a number that float64 holds, got {validate.describe(value)}"
        ) from None


def _one_framework(where: str, **arrays: Any) -> None:
    found = {name: framework_of(value) for name, value in arrays.items()}
    validate.one_framework(where, {n: f or NUMPY for n, f in found.items()})
