"""Axes that a call names, and the shapes that they leave."""

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from ..._cpu import View
from ...interop.foreign import describe

_UNORDERED = (str, bytes, bytearray, memoryview, Mapping, Set)  # no lengths, or in no order

#: The most axes that an array has, in NumPy and here.
MOST = 64


class AxisError(np.exceptions.AxisError):
    """NumPy's AxisError with its argument as its text, in which bridges name their call."""

    __str__ = Exception.__str__


def axes(where: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that `axis` names (all of them for None), as sorted numbers from 0 on.

    An array without axes is treated as in torch: 0 and -1 name none of its axes.
    """
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:  # for speed
        return (axis % ndim,)
    named = axis if isinstance(axis, tuple | list) else (axis,)
    try:
        numbers = [_integer(a) for a in named]
    except TypeError:
        raise TypeError(
            f"{where}: axis must be None, an integer or a tuple of integers, got {describe(axis)}"
        ) from None
    for number in numbers:
        _in_range(where, "axis", axis, number, ndim)
    found = sorted(number % max(ndim, 1) for number in numbers)
    if len(set(found)) < len(found):
        raise ValueError(f"{where}: axis must name each axis once, got {describe(axis)}")
    return tuple(found) if ndim else ()


def one(where: str, axis: Any, ndim: int, name: str = "axis", *, of: str = "x") -> int:
    """Return the axis of the array `of` that an argument names, as a number from 0 on."""
    if type(axis) is int and -ndim <= axis < ndim:  # for speed
        return axis % ndim
    number = _whole(where, name, axis)
    if not ndim:
        raise ValueError(f"{where}: {of} must have an axis, got shape ()")
    _in_range(where, name, axis, number, ndim)
    return number % ndim


def _in_range(where: str, name: str, given: Any, number: int, ndim: int) -> None:
    """Check that an axis exists; an array without axes has 0 and -1."""
    if not -max(ndim, 1) <= number < max(ndim, 1):
        allowed = f"from {-ndim} to {ndim - 1}" if ndim else "0, -1, None or ()"
        raise AxisError(
            f"{where}: {name} must be {allowed} for an array with {ndim} axes, got "
            f"{describe(given)}"
        )


@lru_cache(maxsize=1024)
def others(over: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    """Return every axis but these."""
    return tuple(axis for axis in range(ndim) if axis not in over)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Tell whether NumPy broadcasts an array of `shape` to `to`."""
    extra = len(to) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, to[extra:], strict=True))


def check_repeats(
    where: str, name: str, shape: tuple[int, ...], to: tuple[int, ...], of: str = "x's shape"
) -> None:
    """Refuse an argument that does not broadcast to x's shape, or the shape `of` something else."""
    if not broadcasts(shape, to):
        raise ValueError(f"{where}: {name} must broadcast to {of} {to}, got {shape}")


def repeated(view: View, to: tuple[int, ...]) -> View:
    """Broadcast an array to a shape, as NumPy does."""
    return view.with_axes(tuple(range(len(to) - view.ndim))).broadcast_to(to)


def unbroadcast(where: str, shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    """Find the axes of `to` along which an array of `shape` repeats when it is broadcast."""
    if not broadcasts(shape, to):
        raise ValueError(f"{where}: shape must broadcast to {to}, the shape of dy, got {shape}")
    extra = len(to) - len(shape)
    return tuple(
        axis for axis, m in enumerate(to) if axis < extra or (shape[axis - extra] == 1 and m != 1)
    )


def lengths(where: str, name: str, shape: Any) -> tuple[int, ...]:
    """Check a shape that was given as an argument."""
    try:
        if isinstance(shape, _UNORDERED):
            raise TypeError
        found = tuple(_integer(n) for n in shape)
    except TypeError:
        raise TypeError(
            f"{where}: {name} must be a tuple of integers, got {describe(shape)}"
        ) from None
    if len(found) > MOST:
        raise ValueError(f"{where}: {name} must have at most {MOST} axes, got {len(found)}")
    if any(n < 0 for n in found):
        raise ValueError(f"{where}: {name} must have no negative length, got {describe(shape)}")
    if prod(n for n in found if n) >= 2**58:  # strides in bytes are 64-bit integers
        raise ValueError(
            f"{where}: {name} must have fewer than 2**58 elements, got {describe(shape)}"
        )
    return found


def reduced(shape: Sequence[int], over: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """Return the shape that is left when the axes `over` have been reduced."""
    found = [1 if axis in over else length for axis, length in enumerate(shape)]
    return tuple(found if keepdims else [n for axis, n in enumerate(found) if axis not in over])


class Over(NamedTuple):
    """The effect of a reduction on the shape of an array."""

    axes: tuple[int, ...]  # the reduced ones
    shape: tuple[int, ...]  # the result's
    #: The axes that the result lacks; where it keeps one of `axes`, it has length 1 there.
    dropped: tuple[int, ...]
    whole: tuple[int, ...]  # the array's shape
    of_weights: tuple[int, ...] = ()  # for each axis of the array, the axis of weights, or -1
    grouped: tuple[int, ...] = ()  # the result's shape with the array's axes and that of groups
    of_labels: tuple[int, ...] = ()  # for each axis of the array, the axis of labels, or -1

    def seen_shape(self, view: View) -> View:
        """Give a result, or its gradient, as many axes as the array has."""
        return view.with_axes(self.dropped) if self.dropped else view

    def seen_weights(self, view: View) -> View:
        return view.placed(self.of_weights)

    def seen_by(self, view: View) -> View:
        return view.placed(self.of_labels)


def over_axes(where: str, options: Any, shape: tuple[int, ...]) -> Over:
    """Reduce the axes that `axis` names, which stay with `keepdims`."""
    found, keeps = axes(where, options.axis, len(shape)), getattr(options, "keepdims", False)
    return Over(found, reduced(shape, found, keeps), () if keeps else found, shape)


def has_shape(where: str, name: str, view: View, shape: tuple[int, ...], hint: str = "") -> None:
    """Refuse an array without the shape that follows from the other arguments."""
    if view.shape != shape:
        raise ValueError(f"{where}: {name} must have shape {shape}, got {view.shape}{hint}")


def integer(where: str, name: str, value: Any) -> int:
    """Check an argument that is an integer of 64 bits."""
    return within(where, name, value, -(2**63), 2**63 - 1)


def within(where: str, name: str, value: Any, least: int, most: int) -> int:
    """Check an argument that is an integer of a range."""
    number = _whole(where, name, value)
    if not least <= number <= most:
        raise ValueError(
            f"{where}: {name} must be an integer from {least} to {most}, got {describe(number)}"
        )
    return number


def _whole(where: str, name: str, value: Any) -> int:
    """Check an argument that is an integer; the caller checks its range."""
    try:
        return _integer(value)
    except TypeError:
        raise TypeError(f"{where}: {name} must be an integer, got {describe(value)}") from None


def _integer(value: Any) -> int:
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        raise TypeError
    if isinstance(value, np.ndarray) and type(value) is not np.ndarray:  # masked, say
        raise TypeError
    return index(value)
