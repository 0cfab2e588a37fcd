"""Ops whose entry points are run by their spec, and cached: what stands between op and step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial, update_wrapper
from inspect import Signature
from types import MappingProxyType
from typing import Any

from ... import _cpu
from . import docstrings
from .op import EntryPoint, Op, P, R
from .step import serve

#: What an entry point takes over from its method; the docstring is a part of its documentation.
_NAMES = ("__module__", "__name__", "__qualname__")


class ServedOp(Op[P, R]):
    """An op that `serve` runs.

    `_run_forward(now)`, `_run_backward(now)`, ... run the kernels of an entry point, and calling
    the op does what `forward` does. Where there is no such method, one native function does it, the
    one that `runs` names, with arguments by their names.
    """

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return serve(self, "call", *args, **kwargs)

    def _enter(self, **entry_points: EntryPoint) -> None:
        """Take the entry points; `call` is calling the op."""
        self.entry_points = MappingProxyType(entry_points)

    def _enter_points(
        self,
        call: Signature,
        backward: Signature,
        *,
        forward: Signature | None = None,
        extra: int = 0,
        unasked: int = 0,
        **others: Mapping[str, Any],
    ) -> None:
        """Enter the three entry points, and others, by what `EntryPoint` takes.

        forward : None: it takes what calling the op takes. extra : as many more outputs may be
        given to it. unasked : of so many of the last gradients `out` need not speak.
        """
        count, gradients = len(self.results), len(self.gradients)
        points: dict[str, Mapping[str, Any]] = {
            "call": {"sig": call, "gives": self.results},
            "forward": {
                "sig": forward or call,
                "gives": (*self.results, *self.besides),
                "outputs": count,
                "extra": extra,
            },
            "backward": {
                "sig": backward,
                "gives": self.gradients,
                "outputs": gradients - unasked,
                "extra": unasked,
                "skips": gradients > 1,
            },
            **others,
        }
        self._enter(**{n: EntryPoint(self._where(n), **point) for n, point in points.items()})

    def _where(self, entry: str = "call") -> str:
        """How messages name an entry point."""
        return f"fastact.{self.name}" + (f".{entry}" if entry != "call" else "")


@docstrings.composes
class Entry(_cpu.CachedCall):
    """An entry point of an op, whose documentation is composed as the op's is."""


class CachedOp(ServedOp[P, R], _cpu.CachedOp):
    """An op whose repeated calls skip this layer (src/cpu/binding/call_cache.pyx).

    The cache stands before the entry points. The method that has an entry point's name is typed and
    documented alone.
    """

    def _enter(self, **entry_points: EntryPoint) -> None:
        super()._enter(**entry_points)
        self._cache_calls(_cpu.CachedCall(self._plain_call, self, "__call__", self._recorder))
        for name, point in entry_points.items():
            if name != "call":
                method, function = getattr(self, name), partial(serve, self, name)
                entry: Any = Entry(function, self, name)
                vars(self)[name] = update_wrapper(entry, method, _NAMES)
                entry.__wrapped__ = function
                entry._documentation = partial(docstrings.of_entry, self, name, method.__doc__)
                entry.__signature__ = point.signature
