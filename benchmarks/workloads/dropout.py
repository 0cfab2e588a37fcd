"""The benchmark of dropout, which reads one array and writes one.

torch alone has it: its mask is another one, and backward reads the mask that it kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..shapes import hidden
from .work import BYTES, ITEM, Asked, Case, Family

_OPTIONS = {"p": 0.1, "seed": 3}


def _cases(asked: Asked) -> list[Case]:
    sizes = asked.sizes or (BYTES // 2 // ITEM[asked.dtype],)
    return [asked.case(hidden(size), 2, options=_OPTIONS) for size in sizes]


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    return lambda x: torch.nn.functional.dropout(x, case.options["p"])


DROPOUT = Family(_cases, _torch)
