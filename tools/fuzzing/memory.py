"""Arrays in memory of their own, between guard bytes that nobody may read or write."""

from __future__ import annotations

from typing import Any

import numpy as np

from .cases import Layout, Shape

GUARD = 128  # bytes before and behind; more than any vector reads past an end
_POISON = 255  # a NaN of any dtype: what is read where nothing may be read shows in the result


class Block:
    """One array.

    view : the array. `note` remembers all bytes; `untouched` and `written` tell what has changed.
    """

    __slots__ = ("_before", "raw", "view")

    def __init__(
        self,
        shape: Shape,
        dtype: np.dtype[Any],
        layout: Layout | None = None,
        repeats: Shape = (),
        shift: int = 0,
    ) -> None:
        """shift: bytes from a multiple of 64 to the first one, a multiple of the item's size."""
        layout = layout or Layout.dense(len(shape))
        strides, step, first = [0] * len(shape), dtype.itemsize, 0
        for axis in reversed(layout.order):
            if axis in repeats:
                continue
            stride, length = step * layout.steps[axis], max(shape[axis], 1)
            strides[axis] = stride
            first -= min(stride, 0) * (length - 1)
            step = abs(stride) * length
        self.raw = np.empty(GUARD + 64 + shift + layout.odd + step + GUARD, np.uint8)
        self.raw.fill(_POISON)
        start = GUARD + shift + layout.odd
        start += -self.raw.__array_interface__["data"][0] % 64 + first
        self.view: Any = np.ndarray(shape, dtype, self.raw, start, tuple(strides))
        self._before = b""

    def note(self) -> None:
        self._before = self.raw.tobytes()

    def untouched(self) -> bool:
        return self.raw.tobytes() == self._before

    def only_view_written(self) -> bool:
        """Whether nothing but the array has changed."""
        if self.raw.tobytes() == self._before:
            return True
        after = self.raw.copy()
        now = self.view.copy()
        self.raw[:] = np.frombuffer(self._before, np.uint8)
        old = self.view.copy()
        self.raw[:] = after
        self.view[...] = old
        same = self.raw.tobytes() == self._before
        self.view[...] = now
        return same
