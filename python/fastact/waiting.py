"""Bridges that wait for an object of theirs: each is imported when one arrives.

Ops ask for them by name (`interop/handlers.py`), so that nothing that an op imports imports ops.
"""

from functools import cache
from typing import Any

from .interop import handlers


@cache
def _torch() -> Any:
    from .torch import bridge

    return bridge


def _dispatch() -> Any:
    from .torch import dispatch

    return dispatch


def _entries() -> Any:
    from .torch import entries

    return entries


@cache
def _dask() -> Any:
    from . import dask

    return dask


def _derivatives() -> Any:
    from .derivatives import second

    return second


handlers.bridges.update(
    torch=_torch, dispatch=_dispatch, entries=_entries, dask=_dask, derivatives=_derivatives
)
