"""Ops whose entry points `execute` runs, and whose repeated calls are cached."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial, update_wrapper
from inspect import Signature
from itertools import takewhile
from typing import Any

from ... import _cpu
from ...interop import validate
from . import docstrings, second
from .entry import Entry, positional, signature_of
from .execute import execute
from .op import Op, P, R, records


@docstrings.composes
class CachedEntry(_cpu.CachedCall):
    """An entry point of an op, documented in part by the method of its name.

    The method of "backward.backward" has another name, without the dot.
    """

    def __init__(self, op: Any, name: str) -> None:
        owner, _, last = name.rpartition(".")
        function, method = partial(op._serve, name), docstrings.method_of(op, name)
        super().__init__(function, op.entry_point(owner or "call"), last)
        update_wrapper(self, method, ("__module__", "__qualname__"))
        self.__name__, self.__wrapped__ = name, function
        self.__signature__ = op.entry_points[name].signature
        self._documentation = partial(docstrings.of_entry, op, name, method.__doc__)


_cpu.keep_compiled_call(CachedEntry)


class CachedOp(Op[P, R], _cpu.CachedCall):
    """An op that `execute` runs, and whose repeated calls skip this layer.

    The cache (src/cpu/binding/call_cache.pyx) stands before the entry points. `_run_forward(now)`,
    `_run_backward(now)`, ... run the kernels of an entry point, and calling the op does what
    `forward` does. Without such a method, the native function that `kernels` names runs, with
    arguments found by name. The method with an entry point's name has only its types and
    documentation.
    """

    backward: Callable[..., Any]

    def __init__(self, function: Callable[P, R]) -> None:
        self._declare(function)
        self._enter_points()

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """Return the result of calling the op, and the tuple that `backward` needs."""

    def _serve(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        return execute(self.entry_points[entry], *args, **kwargs)

    def _enter_points(
        self,
        *incoming: str,
        front: tuple[str, ...] | None = None,
        but: Collection[str] = (),
        told: Mapping[str, Any] = records(),
        forward: Signature | None = None,
        extra: int | None = None,
        unasked: int = 0,
        **others: Entry,
    ) -> None:
        """Enter the three entry points, and others.

        `backward` takes incoming gradients (dy by default), what is saved, and the call's options.

        front : saved arrays that are positional only; by default the leading ones that are results
        or are positional only in the call.
        but : options of the call that `backward` does not take, besides arrays that are not saved.
        told : further options of `backward`, with their defaults.
        forward : the signature of `forward`; by default that of the call.
        extra : the number of further outputs that `forward` takes; by default all that are saved.
        unasked : the number of last gradients that `out` may omit.
        """
        call, results, gradients = self.__signature__, self.results, self.gradients
        if front is None:
            leads = {*positional(call), *results}.__contains__
            front = tuple(takewhile(leads, self.saves))
        either = self.saves[len(front) :]
        but = {*but, *self.args, *validate.ROLES}
        backward = signature_of(call, (*(incoming or ("dy",)), *front), either, but=but, **told)
        made = tuple(name for name in self.saves if name in self.outs and name not in results)
        self._enter(
            call=self._entry("call", call, results),
            forward=self._entry(
                "forward",
                forward or call,
                (*results, *made),
                outputs=len(results),
                extra=len(made) if extra is None else extra,
            ),
            backward=self._entry(
                "backward",
                backward,
                gradients,
                outputs=len(gradients) - unasked,
                extra=unasked,
                skips=len(gradients) > 1,
            ),
            **others,
        )

    def _entry(self, name: str, signature: Signature, gives: tuple[str, ...], **more: Any) -> Entry:
        return Entry(self._where(name), signature, gives, op=self, name=name, **more)

    def _enter(self, **entry_points: Entry) -> None:
        super()._enter(**entry_points)
        _cpu.CachedCall.__init__(self, self._plain_call, self, "__call__", self._recorder)
        for name in entry_points:
            if name != "call":
                *others, last = name.split(".")
                owner = self.entry_point(".".join(others) or "call")
                vars(owner)[last] = CachedEntry(self, name)
        if "backward" in entry_points and "backward.backward" not in entry_points:
            vars(self.entry_point("backward"))["backward"] = second.Second(self)

    def jvp(self, *args: Any, tangents: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return the result of calling the op, and its derivative in a direction (forward mode).

        Parameters
        ----------
        *args : array
            As for the call.
        tangents : array or tuple
            The direction: for each array that has a gradient, in the order of the call, an array of
            its shape and dtype, or None for 0. For a single array no tuple is needed.
        **kwargs
            As for the call, without `out`.

        Returns
        -------
        y : array
            The result of calling the op.
        dy : array
            The derivative of y, of its shape and dtype, as accurate as the result of `backward`.

        Raises
        ------
        TypeError
            If `out` is given, or if a tangent is missing, is not an array, or has another dtype.
        ValueError
            If a tangent has another shape.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> y, dy = fa.mish.jvp(np.array([-1.0, 0.0, 1.0]), tangents=np.ones(3))
        >>> dy
        array([0.0592..., 0.6       , 1.0490...])
        """
        if not self.traits.is_diagonal:
            return second.jvp(self, tangents, args, kwargs)  # type: ignore[no-any-return]
        tangent = second.only_tangent(self, tangents, args, kwargs)
        result, saved = self.forward(*args, **kwargs)
        return result, vars(self)["backward"](tangent, *saved, *args[1:], **kwargs)
