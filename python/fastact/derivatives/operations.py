"""The functions of a framework that formulas need beside its arrays' operators and methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np


class Operations:
    """The operations of a namespace: NumPy's, or one that has its functions by their names.

    `sum` and `max` are over axes, which stay with length 1; `constant` is an array without its
    derivative; `call` an activation with its parameters, `slope` and `curve` its `backward` and the
    gradient of that by what is saved; `of_ones` what an op gives of ones in an array's shape, a
    constant; `sloped` the sum of slopes, which are its own derivatives by these arrays; `expanded`
    an array repeated to a shape; `put` zeros of a shape with an array at an index, or with the sums
    of its elements by the number of each, where the index is an array of numbers. `times`, `less`
    and `add_product` may write an array whose values are not needed any more, as new memory costs
    what a pass costs: torch's do.

    needs : what a namespace must have.
    """

    needs = (
        *("exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "sqrt", "isnan"),
        *("where", "broadcast_to", "amax", "arange"),
    )

    def __init__(self, namespace: Any) -> None:
        self.xp: Any = namespace
        self.expanded: Callable[..., Any] = namespace.broadcast_to
        self._is_torch = hasattr(namespace, "no_grad")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.xp, name)

    def zeros(self, shape: Sequence[int], like: Any) -> Any:
        if self._is_torch:
            return like.new_zeros(tuple(shape))
        return self.xp.zeros(tuple(shape), like.dtype)

    def arange(self, count: int, like: Any) -> Any:
        return self.xp.arange(count, **({"device": like.device} if self._is_torch else {}))

    def times(self, x: Any, y: Any, into: Any) -> Any:
        """x y, in memory of its shape and dtype, or a wider one's."""
        return self.xp.mul(x, y, out=into) if self._is_torch else x * y

    def less(self, x: Any, y: Any, into: Any) -> Any:
        return self.xp.sub(x, y, out=into) if self._is_torch else x - y

    def add_product(self, x: Any, a: Any, b: Any) -> Any:
        """x + a b, in x."""
        if self._is_torch:
            return x.addcmul_(a, b)
        x += a * b
        return x

    def sum(self, x: Any, axes: tuple[int, ...]) -> Any:
        if self._is_torch and axes:
            return x.sum(axes, True)  # read sooner than NumPy's names
        return self.xp.sum(x, axis=axes, keepdims=True) if axes else x

    def transpose(self, x: Any, order: tuple[int, ...]) -> Any:
        return x.permute(order) if self._is_torch else self.xp.transpose(x, order)

    def max(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.xp.amax(x, axis=axes, keepdims=True) if axes else x

    def constant(self, x: Any) -> Any:
        return x.detach() if self._is_torch else x

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        return op(x, **parameters)

    def slope(self, op: Any, d: Any, saved: Any, parameters: Mapping[str, Any]) -> Any:
        return op.backward(d, saved, **parameters)

    def curve(self, op: Any, e: Any, d: Any, saved: Any, parameters: Mapping[str, Any]) -> Any:
        return op.backward.backward(e, d, saved, **parameters)[1]

    def sloped(self, slopes: Callable[..., Sequence[Any]], *arrays: Any) -> Any:
        return sum(slopes(*arrays))

    def of_ones(self, op: Any, x: Any, options: Mapping[str, Any]) -> Any:
        return self.constant(self.call(op, self.xp.ones_like(x), options))

    def concat(self, parts: Sequence[Any]) -> Any:
        return self.xp.cat(parts, -1) if self._is_torch else self.xp.concatenate(parts, axis=-1)

    def put(self, d: Any, index: Any, shape: Sequence[int]) -> Any:
        made, adds = self.zeros(shape, d), hasattr(index, "shape")
        if adds and self._is_torch:
            return made.index_add(0, index, d)
        if hasattr(made, "at"):  # of JAX, which does not write
            return made.at[index].add(d) if adds else made.at[index].set(d)
        if adds:
            self.xp.add.at(made, index, d)
        else:
            made[index] = d
        return made

    def cast(self, value: Any, like: Any) -> Any:
        """Return an array in another one's dtype."""
        if value.dtype == like.dtype:
            return value
        return value.to(like.dtype) if self._is_torch else value.astype(like.dtype)

    def wide(self, value: Any, is_double: bool = False) -> Any:
        """Return an array of 16 bits in float32, in which such data is computed; all else as it is.

        is_double : floating-point arrays are in float64 instead, whose range the results have.
        """
        narrow = ("float16", "float32") if is_double else "float16"
        if not str(getattr(value, "dtype", "")).endswith(narrow):
            return value
        if self._is_torch:
            return value.double() if is_double else value.float()
        return value.astype(np.float64 if is_double else np.float32)

    def own(self, value: Any, like: Any) -> Any:
        """Return an array of the caller's, with these values and the dtype of another one."""
        if self._is_torch:
            return value.to(like.dtype, copy=True)
        made = self.xp.array(value, dtype=like.dtype)
        return made[()] if self.xp is np else made

    def plain(self) -> AbstractContextManager[Any]:
        """Enter a context that records nothing, and in which formulas give no warnings."""
        quiet: AbstractContextManager[Any] = np.errstate(all="ignore")
        return self.xp.no_grad() if self._is_torch else quiet
