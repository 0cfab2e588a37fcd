"""Moments that merge: what `fastact.moments` returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..interop import foreign, validate
from ..interop.frameworks import NUMPY, framework_of, is_traced, namespace
from .engine import axes
from .engine.entry import one_correction
from .engine.op import ops

#: The version of buffers and pickles. It is not 0 or 1, which may begin a buffer without a version.
_VERSION = -2.0

#: Sums of squares that met neither an overflow nor an underflow (common/reductions/range.h).
_LEAST, _MOST = 2.0**-900, float(np.finfo(np.float64).max)
_NUMPY = (np.ndarray, np.generic)

#: The fields of `Moments`, by which the call cache takes them apart and rebuilds them.
FIELDS = ("count", "mean", "squares", "given")


@dataclass(frozen=True, eq=False, slots=True, init=False, repr=False)
class Moments:
    """The number of values, their mean, and m2, the sum of the squared distances from it.

    Moments of parts merge into the moments of the whole without loss, so a data set can be read in
    chunks or lie on many machines.

    Attributes
    ----------
    count : int or array
        The number of values behind each mean, or the sum of their weights; it is not negative. It
        is a float64 array of the mean's shape if not every element counts exactly once.
    mean, m2 : array
        Arrays of float64 with the same shape and from the same framework. Python numbers become
        NumPy's. For distances beyond about 1e154, m2 is infinite, and for distances below 1e-162 it
        is 0, but `std` is still right.

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
    #: m2, or the negative of its root where m2 leaves the range of float64.
    squares: Any
    #: The caller's array, to which m2 was written, or None.
    given: Any

    def __init__(self, count: Any, mean: Any, m2: Any, *given: Any) -> None:
        if given:  # dask rebuilds a dataclass from all its fields, which were checked before
            self._set(count, mean, m2, *given)
            return
        where = "fastact.Moments"
        is_array = hasattr(count, "shape") and hasattr(count, "dtype")
        is_array = is_array and foreign.dtype_name(count).startswith("float")
        arrays = {"count": count, "mean": mean, "m2": m2}
        if not is_array:
            count = axes.integer(where, "count", arrays.pop("count"))
        arrays = {name: _statistic(where, name, value) for name, value in arrays.items()}
        for name, value in {"count": count, **arrays}.items():
            if name != "mean" and _has_negative(value):
                came = validate.describe(value)
                raise ValueError(f"{where}: {name} must not be negative, got {came}")
        shape = tuple(arrays["mean"].shape)
        for name, value in arrays.items():
            if tuple(value.shape) != shape:
                raise ValueError(
                    f"{where}: {name} must have shape {shape}, as mean has, got "
                    f"{tuple(value.shape)}"
                )
        _one_framework(where, **arrays)
        self._set(arrays.get("count", count), arrays["mean"], arrays["m2"], None)

    def _set(self, *values: Any) -> None:
        for name, value in zip(FIELDS, values, strict=True):
            object.__setattr__(self, name, value)

    @classmethod
    def of_checked(cls, count: Any, mean: Any, squares: Any, given: Any = None) -> Moments:
        """Make moments from arrays of an op, which may be torch's tracers without values."""
        made = cls.__new__(cls)
        made._set(count, mean, squares, given)
        return made

    def __repr__(self) -> str:
        return f"Moments(count={self.count!r}, mean={self.mean!r}, m2={self.m2!r})"

    @property
    def m2(self) -> Any:
        """The sum of the squared distances from the mean."""
        if self.given is not None:
            return self.given
        if not hasattr(self.squares, "__mul__"):  # arrays without arithmetic have no roots
            return self.squares
        with self._quiet():
            return self._of_roots(lambda root: root * root, self.squares, 1.0)

    def var(self, correction: float = 0, *, ddof: float | None = None) -> Any:
        """Return the variance m2 / (count - correction), or m2 / 0 if that is not positive.

        This is what NumPy's `var` gives, also with weights or groups; `nanvar` gives NaN there.
        ddof : NumPy's name for `correction`; only one of the two may be given.
        """
        left = self._left("var", correction, ddof)
        with self._quiet():
            return self._of_roots(lambda root: root * root, self.squares / left, left)

    def std(self, correction: float = 0, *, ddof: float | None = None) -> Any:
        """Return the standard deviation, the square root of `var`."""
        left = self._left("std", correction, ddof)
        with self._quiet():
            return self._of_roots(lambda root: root, (self.squares / left) ** 0.5, left)

    def _quiet(self) -> AbstractContextManager[Any]:
        """Silence NumPy's warnings of overflow and invalid values; other frameworks have none."""
        return np.errstate(all="ignore") if isinstance(self.squares, _NUMPY) else nullcontext()

    def _left(self, name: str, correction: float, ddof: float | None) -> Any:
        """Subtract a correction from the count, down to 0; m2 is divided by the result."""
        where = f"fastact.Moments.{name}"
        correction = validate.number(where, "correction", one_correction(where, correction, ddof))
        left = self.count - correction
        return abs(left) * (left > 0)

    def _of_roots(self, of: Callable[[Any], Any], plain: Any, divisor: Any) -> Any:
        """Apply `of` to the root of m2 / divisor where there is one; return `plain` elsewhere."""
        are_roots = self._are_roots
        if isinstance(are_roots, _NUMPY) and not are_roots.any():
            return plain
        return _where(are_roots, of(-self.squares / divisor**0.5), plain)

    @property
    def _are_roots(self) -> Any:
        """Tell where `squares` has a root."""
        return self.squares < 0

    @property
    def _root(self) -> Any:
        return _where(self._are_roots, -self.squares, self.squares**0.5)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of values together, by Chan's formula."""
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
        count: Any = self.count + other.count
        mean, squares = _merged(self, other, other.count / count, self.count)
        return self.of_checked(count, mean, squares)

    def _merge_counts(self, other: Moments) -> Moments:
        """Merge moments whose means have a count each, some of them 0."""
        xp = namespace(self.mean)
        ours, theirs = (xp.zeros_like(part.mean) + part._count for part in (self, other))
        count = ours + theirs
        with np.errstate(all="ignore"):
            mean, squares = _merged(self, other, theirs / count, ours)
        parts = (self.mean, mean, other.mean), (self.squares, squares, other.squares)
        mean, squares = (
            xp.where(theirs == 0, a, xp.where(ours == 0, b, both))[()] for a, both, b in parts
        )
        return self.of_checked(count, mean, squares)

    def update(
        self,
        batch: Any,
        axis: Any = None,
        *,
        weights: Any = None,
        skipna: bool = False,
        where: Any = None,
    ) -> Moments:
        """Return the moments of the values so far and of a batch.

        This is ``self.merge(fastact.moments(batch, axis, ...))``, where axis is, by default, the
        leading axes that the mean lacks.
        """
        if axis is None and hasattr(batch, "ndim"):
            axis = tuple(range(max(batch.ndim - len(self.mean.shape), 0)))
        moments = ops["moments"]
        return self.merge(moments(batch, axis, weights=weights, skipna=skipna, where=where))

    @staticmethod
    def merge_many(parts: Iterable[Moments]) -> Moments:
        """Return the moments of all values, merged in a tree: first neighbours, then pairs.

        The bits depend only on the order of the parts, not on who computed them or when.
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

    @property
    def _count(self) -> Any:
        """The count in float64: an array, or a number that float64 holds exactly."""
        if isinstance(self.count, int) and int(float(self.count)) != self.count:
            raise ValueError(
                f"fastact.Moments: count must be a number that float64 holds in a buffer and "
                f"beside counts that are arrays, got {validate.describe(self.count)}"
            )
        return self.count

    def to_buffer(self) -> Any:
        """Return one flat float64 array, which an all-gather takes.

        It holds the version of this form, whether each mean has a count of its own, the counts, the
        means, and then m2, or the negative of its root where m2 leaves the range of float64.
        """
        xp = namespace(self.mean)
        flat = [xp.reshape(part, (-1,)) for part in (self.mean, self.squares)]
        if self._counts_each:
            flat.insert(0, xp.reshape(self.count, (-1,)))
        one = flat[0][:1] if len(flat[0]) else xp.ones(1)
        head = [_VERSION, self._counts_each, *([] if self._counts_each else [self._count])]
        return xp.concatenate([*(xp.full_like(one, float(number)) for number in head), *flat])

    @staticmethod
    def from_buffer(buffer: Any, shape: tuple[int, ...]) -> Moments:
        """Make moments from a buffer of `to_buffer`; shape: the mean's."""
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
        mean, squares = (part.reshape(shape)[()] for part in parts[1:])
        if head[1]:
            return Moments.of_checked(parts[0].reshape(shape)[()], mean, squares)
        count = float(parts[0][0])
        if not (count >= 0 and count.is_integer()):
            raise ValueError(
                f"{where}: buffer must have a count, a whole number that is not negative, got "
                f"{count!r}"
            )
        return Moments.of_checked(int(count), mean, squares)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (_VERSION, self.count, self.mean, self.squares)

    def __eq__(self, other: object) -> bool:
        """Tell whether both have the same count and the same numbers; NaN equals NaN."""
        if not isinstance(other, Moments):
            return NotImplemented
        if self._counts_each != other._counts_each:
            return False
        if tuple(self.mean.shape) != tuple(other.mean.shape):
            return False
        if not (self._counts_each or self.count == other.count):
            return False
        pairs = [(self.mean, other.mean), (self.squares, other.squares)]
        if self._counts_each:
            pairs.append((self.count, other.count))
        return all(bool(((a == b) | ((a != a) & (b != b))).all()) for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]


def of_enough(m: Moments, y: Any, correction: float) -> Any:
    """Return a variance or its root, but NaN for too few values, as `np.nanvar` does."""
    return _where(m.count - correction > 0, y, math.nan * y)


def _merged(a: Moments, b: Moments, share: Any, weight: Any) -> tuple[Any, Any]:
    """Find the mean and `squares` of both; share: b's part of the count, weight: a's count."""
    xp = namespace(a.mean)
    with np.errstate(all="ignore"):
        delta = b.mean - a.mean
        # Infinite means, and means too far apart for their difference, take the other formula.
        mean = xp.where(
            xp.isfinite(delta), a.mean + delta * share, a.mean * (1 - share) + b.mean * share
        )[()]
        squares = a.squares + (b.squares + delta * delta * (weight * share))
        is_far = a._are_roots | b._are_roots | ~((squares >= _LEAST) & (squares <= _MOST))
        is_far = is_far & ~((squares == 0) & (delta == 0))
        if isinstance(is_far, _NUMPY) and not is_far.any():
            return mean, squares
        root = xp.hypot(xp.hypot(a._root, b._root), abs(delta) * (weight * share) ** 0.5)
        is_far = is_far & (root > 0) & (squares == squares)  # NaN stays, also beside an infinity
        return mean, _where(is_far, -root, squares)


def _where(condition: Any, a: Any, b: Any) -> Any:
    return getattr(namespace(b), "where", np.where)(condition, a, b)[()]


def _unpickled(version: float, count: Any, mean: Any, squares: Any) -> Moments:
    if version != _VERSION:
        raise ValueError(
            f"fastact.Moments: a pickle must be of version {_VERSION:g}, got {version!r}"
        )
    return Moments.of_checked(count, mean, squares)


def _statistic(where: str, name: str, value: Any) -> Any:
    """Check the count, the mean, m2 or a buffer, which are arrays of float64."""
    if type(value) in (int, float):
        try:
            return np.float64(float(value))
        except OverflowError:
            given = validate.describe(value)
            raise ValueError(
                f"{where}: {name} must be a number that float64 holds, got {given}"
            ) from None
    foreign.plain(where, name, value)
    is_array = hasattr(value, "shape") and hasattr(value, "dtype")
    if not (is_array and foreign.dtype_name(value) == "float64"):
        came = value.dtype if isinstance(value, np.generic) else validate.describe(value)
        raise TypeError(f"{where}: {name} must be an array of float64, got {came}")
    return value


def _has_negative(value: Any) -> bool:
    """Tell whether an array that has values and arithmetic has a number below 0."""
    if is_traced(value) or not hasattr(value, "__mul__"):
        return False
    below: Any = value < 0
    return bool(below if isinstance(below, bool) else below.any())


def _one_framework(where: str, **arrays: Any) -> None:
    found = {name: framework_of(value) for name, value in arrays.items()}
    validate.one_framework(where, {n: f or NUMPY for n, f in found.items()})
