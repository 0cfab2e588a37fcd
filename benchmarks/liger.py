"""Liger's Triton kernels as a peer in the GPU benchmark, where liger-kernel is installed.

`_CALLS` lists the ops of this library that it has. The kernel of Triton's tutorial, which its
norms go back to, is in no package that could be installed. It computes in float32 here ("gemma",
for its "llama" rounds to 16 bits in between), and returns a gradient of its own rather than write
it over dy.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastact.measure.peers import LeftOut

if TYPE_CHECKING:
    from .workloads.work import Case

#: What has to be importable for it.
PACKAGE = "liger_kernel"

_EPS, _RMS_EPS = 1e-5, 1e-6
_RMS = {"offset": 0.0, "casting_mode": "gemma", "in_place": False}


def _group_norm(liger: Any, case: Case) -> Callable[..., Any]:
    if case.channel != 1:
        raise LeftOut("its channels come first")
    channels, groups = case.shape[1], case.options["num_groups"]
    return lambda x, weight, bias: liger.liger_group_norm(x, weight, bias, channels, groups, _EPS)


_CALLS: dict[str, Callable[[Any, Case], Callable[..., Any]]] = {
    "layer_norm": lambda liger, case: (
        lambda x, weight, bias: liger.liger_layer_norm(x, weight, bias, _EPS)
    ),
    "rms_norm": lambda liger, case: (
        lambda x, weight: liger.liger_rms_norm(x, weight, _RMS_EPS, **_RMS)
    ),
    "add_rms_norm": lambda liger, case: (
        lambda x, residual, weight: liger.liger_fused_add_rms_norm(
            x, residual, weight, _RMS_EPS, **_RMS
        )
    ),
    "group_norm": _group_norm,
}
#: The ops that it has.
OPS = tuple(_CALLS)


def by_liger(case: Case) -> Callable[..., Any] | None:
    """The op of a case by Liger: a function of the inputs by keyword; None for another op.

    Raises
    ------
    LeftOut
        If it cannot do the case; the message says why.
    """
    if case.op.name not in _CALLS:
        return None
    if case.dtype == "float64":
        raise LeftOut("it computes in float32")
    try:
        liger = importlib.import_module(f"{PACKAGE}.transformers.functional")
    except ImportError as error:  # it is there, and what it needs is not
        raise LeftOut(f"it cannot be imported: {error}".partition("\n")[0]) from None
    return _CALLS[case.op.name](liger, case)
