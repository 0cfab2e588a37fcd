"""Ops whose entry points are run by their spec, and cached: what stands between op and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from inspect import Signature
from typing import Any

from ... import _cpu
from . import docstrings, second
from .entry import Entry, untyped
from .execute import execute
from .op import Op, P, R

#: An entry point takes these over from its method; the docstring is a part of its documentation.
_NAMES = ("__module__", "__name__", "__qualname__")


def enter_at(op: Any, name: str, entry: Any, function: Any) -> None:
    """Let an entry point be found under its name, documented by the method of that name.

    Of one with a dot, "backward.backward", the method has a name of its own.
    """
    *others, last = name.split(".")
    method = docstrings.method_of(op, name)
    vars(op.entry_point(".".join(others) or "call"))[last] = update_wrapper(entry, method, _NAMES)
    entry.__name__ = name
    entry.__wrapped__ = function
    entry._documentation = partial(docstrings.of_entry, op, name, method.__doc__)
    entry.__signature__ = op.entry_points[name].signature


class ServedOp(Op[P, R]):
    """An op that `execute` runs.

    `_run_forward(now)`, `_run_backward(now)`, ... run the kernels of an entry point, and calling
    the op does what `forward` does. Where there is no such method, one native function does it, the
    one that `kernels` names, with arguments by their names.
    """

    backward: Callable[..., Any]

    def __init__(self, function: Callable[P, R]) -> None:
        self._declare(function)
        self._enter_points()

    def _serve(self, entry: str, *args: Any, **kwargs: Any) -> Any:
        return execute(self.entry_points[entry], *args, **kwargs)

    def _enter_points(
        self,
        backward: Signature | None = None,
        *,
        forward: Signature | None = None,
        besides: Sequence[str] = (),
        extra: int | None = None,
        unasked: int = 0,
        **others: Entry,
    ) -> None:
        """Enter the three entry points, and others.

        backward : None: what the method takes. forward : None: what calling the op takes.
        besides : what it makes besides the results. extra : as many more outputs may be given to
        it; None: all besides. unasked : of so many of the last gradients `out` need not speak.
        """
        call, results, gradients = self.__signature__, self.results, self.gradients
        asked = len(gradients) - unasked
        self._enter(
            call=self._entry("call", call, results),
            forward=self._entry(
                "forward",
                forward or call,
                (*results, *besides),
                outputs=len(results),
                extra=len(besides) if extra is None else extra,
            ),
            backward=self._entry(
                "backward",
                backward or untyped(self.backward),
                gradients,
                outputs=asked,
                extra=unasked,
                skips=len(gradients) > 1,
            ),
            **others,
        )

    def _entry(self, name: str, signature: Signature, gives: tuple[str, ...], **more: Any) -> Entry:
        return Entry(self._where(name), signature, gives, op=self, name=name, **more)

    def jvp(self, *args: Any, tangents: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Return what calling the op gives, and its derivative in a direction: forward mode.

        Parameters
        ----------
        *args : array
            As for the call.
        tangents : array or tuple
            The direction: for each array that has a gradient, in the order of the call, one of its
            shape and dtype, or None for 0. The array itself, where there is one.
        **kwargs
            As for the call, without `out`.

        Returns
        -------
        y : array
            What calling the op gives.
        dy : array
            Its derivative, of its shape and dtype, as accurate as what `backward` gives.

        Raises
        ------
        TypeError
            If `out` is given, or a tangent is no array, lacks, or has another dtype.
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


@docstrings.composes
class CachedEntry(_cpu.CachedCall):
    """An entry point of an op, whose documentation is composed as the op's is."""


_cpu.keep_compiled_call(CachedEntry)


def enter_cached(op: Any, name: str) -> None:
    """An entry point whose repeated calls skip this layer."""
    function = partial(op._serve, name)
    owner, _, last = name.rpartition(".")
    enter_at(op, name, CachedEntry(function, op.entry_point(owner or "call"), last), function)


class CachedOp(ServedOp[P, R], _cpu.CachedCall):
    """An op whose repeated calls skip this layer (src/cpu/binding/call_cache.pyx).

    The cache stands before the entry points. The method that has an entry point's name is typed and
    documented alone.
    """

    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]:
        """The op's value, as calling the op gives it, and the tuple that `backward` needs."""

    def _enter(self, **entry_points: Entry) -> None:
        super()._enter(**entry_points)
        _cpu.CachedCall.__init__(self, self._plain_call, self, "__call__", self._recorder)
        for name in entry_points:
            if name != "call":
                enter_cached(self, name)
        if "backward" in entry_points and "backward.backward" not in entry_points:
            vars(self.entry_point("backward"))["backward"] = second.Second(self)
