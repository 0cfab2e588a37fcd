"""Bridges that wait for an object of theirs: each is imported when one arrives.

Ops ask for them by name (`interop/handlers.py`), so that nothing that an op imports imports ops.
"""

from functools import cache, partial
from importlib import import_module
from typing import Any

from .interop import handlers

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
