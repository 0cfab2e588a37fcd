"""Axes: which of them a call means, and the shapes that they leave."""

from collections.abc import Sequence
from operator import index
from typing import Any

from ._cpu import View


def axes(where: str, axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes that `axis` names (all of them for None), as sorted numbers from 0 on."""
    if axis is None:
        return tuple(range(ndim))
    named = axis if isinstance(axis, tuple | list) else (axis,)
    try:
        numbers = [_integer(a) for a in named]
    except TypeError:
        raise TypeError(
            f"{where}: axis must be None, an integer or a tuple of integers, got {axis!r}"
        ) from None
    for number in numbers:
        if not -ndim <= number < ndim:
            allowed = f"from {-ndim} to {ndim - 1}" if ndim else "None or ()"
            raise ValueError(
                f"{where}: axis must be {allowed} for an array with {ndim} axes, got {axis!r}"
            )
    found = sorted(number % ndim for number in numbers)
    if len(set(found)) < len(found):
        raise ValueError(f"{where}: axis must name each axis once, got {axis!r}")
    return tuple(found)


def one(where: str, axis: Any, ndim: int, name: str = "axis") -> int:
    """The axis that an argument names, as a number from 0 on."""
    number = integer(where, name, axis)
    if not ndim:
        raise ValueError(f"{where}: {name} must name an axis, got {axis} for an array without any")
    if not -ndim <= number < ndim:
        raise ValueError(
            f"{where}: {name} must be from {-ndim} to {ndim - 1} for an array with {ndim} axes, "
            f"got {axis}"
        )
    return number % ndim


def all_but(axis: int, ndim: int) -> tuple[int, ...]:
    """Every axis except one."""
    return tuple(other for other in range(ndim) if other != axis)


def broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """NumPy broadcasts an array of `shape` to `to`."""
    extra = len(to) - len(shape)
    return extra >= 0 and all(n in (1, m) for n, m in zip(shape, to[extra:], strict=True))


def unbroadcast(where: str, shape: tuple[int, ...], to: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of `to` along which an array of `shape` repeats when NumPy broadcasts it."""
    if not broadcasts(shape, to):
        raise ValueError(f"{where}: shape must broadcast to {to}, the shape of dy, got {shape}")
    extra = len(to) - len(shape)
    return tuple(
        axis for axis, m in enumerate(to) if axis < extra or (shape[axis - extra] == 1 and m != 1)
    )


def lengths(where: str, name: str, shape: Any) -> tuple[int, ...]:
    """A shape that was given as an argument."""
    try:
        found = tuple(_integer(n) for n in shape)
    except TypeError:
        raise TypeError(f"{where}: {name} must be a tuple of integers, got {shape!r}") from None
    if any(n < 0 for n in found):
        raise ValueError(f"{where}: {name} must have no negative length, got {shape!r}")
    return found


def reduced(shape: Sequence[int], over: tuple[int, ...], keepdims: bool) -> tuple[int, ...]:
    """The shape that is left when the axes `over` have been reduced."""
    return tuple(
        1 if axis in over else length
        for axis, length in enumerate(shape)
        if keepdims or axis not in over
    )


def has_shape(where: str, name: str, view: View, shape: tuple[int, ...]) -> None:
    """An array has a shape that follows from the other arguments."""
    if view.shape != shape:
        raise ValueError(f"{where}: {name} must have shape {shape}, got {view.shape}")


def integer(where: str, name: str, value: Any) -> int:
    """An argument that is an integer."""
    try:
        return _integer(value)
    except TypeError:
        raise TypeError(f"{where}: {name} must be an integer, got {value!r}") from None


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)
