"""Moments that merge: what `fastact.moments` returns (`mean_var.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..interop import foreign, validate
from ..interop.frameworks import NUMPY, framework_of, namespace
from . import axes


@dataclass(frozen=True, eq=False, slots=True)
class Moments:
    """The number of values, their mean, and m2, the sum of the squared distances from it.

    Moments of parts merge into those of the whole without loss: a data set can be read in chunks,
    or lie on many machines.

    Attributes
    ----------
    count : int
        Values that each mean is of; not negative.
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

    count: int
    mean: Any
    m2: Any

    def __post_init__(self) -> None:
        where = "fastact.Moments"
        count = axes.integer(where, "count", self.count)
        if count < 0:
            raise ValueError(
                f"{where}: count must not be negative, got {validate.describe(self.count)}"
            )
        object.__setattr__(self, "count", count)
        for name in ("mean", "m2"):
            object.__setattr__(self, name, _statistic(where, name, getattr(self, name)))
        shapes = tuple(self.mean.shape), tuple(self.m2.shape)
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{where}: m2 must have shape {shapes[0]}, as mean has, got {shapes[1]}"
            )
        _one_framework(where, mean=self.mean, m2=self.m2)

    @classmethod
    def of_checked(cls, count: int, mean: Any, m2: Any) -> Moments:
        """Of arrays that an op has made, or will: torch's tracers have none with values."""
        made = cls.__new__(cls)
        for name, value in (("count", count), ("mean", mean), ("m2", m2)):
            object.__setattr__(made, name, value)
        return made

    def var(self, correction: float = 0) -> Any:
        """The variance m2 / (count - correction); where that is not positive, as NumPy has it."""
        left = max(self.count - validate.number("fastact.Moments.var", "correction", correction), 0)
        if left > 0:
            return self.m2 / left
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
        if not (self.count and other.count):
            return self if self.count else other
        count = self.count + other.count
        share = other.count / count
        xp = namespace(self.mean)
        with np.errstate(all="ignore"):
            delta = other.mean - self.mean
            # An infinite mean, or means too far apart for their difference, take the other road.
            mean = xp.where(
                xp.isfinite(delta),
                self.mean + delta * share,
                self.mean * (1 - share) + other.mean * share,
            )[()]
            m2 = self.m2 + (other.m2 + delta * delta * (self.count * share))
        return Moments(count, mean, m2)

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

    def to_buffer(self) -> Any:
        """One flat float64 array: the count, the means, then m2; what an all-gather takes."""
        xp = namespace(self.mean)
        flat = [xp.reshape(part, (-1,)) for part in (self.mean, self.m2)]
        count = xp.full_like(flat[0][:1], self.count) if len(flat[0]) else xp.ones(1) * self.count
        return xp.concatenate([count, *flat])

    @staticmethod
    def from_buffer(buffer: Any, shape: tuple[int, ...]) -> Moments:
        """What `to_buffer` made a buffer of; shape: of the mean."""
        where = "fastact.Moments.from_buffer"
        shape = axes.lengths(where, "shape", shape)
        size = math.prod(shape)
        buffer = _statistic(where, "buffer", buffer)
        if tuple(buffer.shape) != (1 + 2 * size,):
            raise ValueError(
                f"{where}: buffer must have shape {(1 + 2 * size,)} for moments of shape {shape}, "
                f"got {tuple(buffer.shape)}"
            )
        count = float(buffer[0])
        if not (count >= 0 and count.is_integer()):
            raise ValueError(
                f"{where}: buffer must begin with a count, a whole number that is not negative, "
                f"got {count!r}"
            )
        mean, m2 = (buffer[1 + i * size :][:size].reshape(shape)[()] for i in range(2))
        return Moments(int(count), mean, m2)

    def __eq__(self, other: object) -> bool:
        """The same count and the same numbers; NaN is NaN."""
        if not isinstance(other, Moments):
            return NotImplemented
        if self.count != other.count or tuple(self.mean.shape) != tuple(other.mean.shape):
            return False
        pairs = ((self.mean, other.mean), (self.m2, other.m2))
        return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


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
