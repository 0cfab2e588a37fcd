"""Bridges that are imported when an object of their library arrives.

Ops ask for them by name (`interop/handlers.py`), so that no import of an op imports ops.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

from .interop import handlers


@contextmanager
def installed(library: str, module: str, extra: str = "") -> Iterator[None]:
    """Let a module that can't import its library say which extra to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(
            f"fastact.{module}: {library} can't be imported ({error}); use pip install "
            f"'fastact[{extra or module}]'"
        ) from error


_MODULES = {
    "torch": "torch.bridge",
    "entries": "torch.entries",
    "dask": "dask",
    "derivatives": "derivatives.second",
}


def _dispatch() -> Any:  # torch.compile reads it
    from .torch import dispatch

    return dispatch


handlers.bridges.update(
    {n: cache(partial(import_module, f"fastact.{module}")) for n, module in _MODULES.items()},
    dispatch=_dispatch,
)
