"""Arrays without values: an op called with them checks all that it checks, and computes nothing.

It returns arrays without values too, of the shapes and dtypes that a call would give; arguments
that it would return or save come back themselves. So a tracer learns what a call is like, in the
op's own words where it would be refused.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._cpu import View
from .frameworks import NUMPY, Framework, Place


class Shape:
    """An array without values.

    Its memory is asked of the system and never touched: addresses that overlap nobody else's.
    """

    __slots__ = ("memory",)
    __dlpack__ = None  # what `frameworks.framework_of` knows arrays by
    __fastact_framework__: "_Shapes"
    memory: NDArray[Any]

    def __init__(self, shape: tuple[int, ...], dtype: Any, *, writable: bool = False) -> None:
        self.memory = np.empty(shape, dtype)
        self.memory.flags.writeable = writable

    @classmethod
    def of(cls, memory: Any) -> "Shape":
        array = cls.__new__(cls)
        array.memory = memory
        return array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.memory.shape

    @property
    def ndim(self) -> int:
        return self.memory.ndim

    def view(self, dtype: Any) -> "Shape":
        return Shape.of(self.memory.view(dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.memory.dtype


class _Shapes(Framework):
    name = "the tracer"
    computes = False

    def view(self, where: str, argument: str, array: Any, place: Place) -> View:
        return NUMPY.view(where, argument, array.memory, place)

    def output(self, model: View, like: Any, place: Place) -> tuple[View, Any]:
        view, made = NUMPY.output(model, like.memory, place)
        return view, Shape.of(made)


Shape.__fastact_framework__ = _Shapes()
