"""The benchmark of divergences, of rows of log-probabilities over a vocabulary.

Forward reads both arrays and writes next to nothing; backward reads both for each gradient, and
writes two arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..shapes import hidden
from .work import BYTES, ITEM, Asked, Case, Family


def _cases(asked: Asked) -> list[Case]:
    sizes = asked.sizes or (BYTES // 2 // ITEM[asked.dtype],)
    count = 2 if asked.forward else 4
    return [asked.case(hidden(size), count, axis=(1,), sums=asked.forward) for size in sizes]


# --- the same by torch ----------------------------------------------------------------------------


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    def kl(log_q: Any, log_p: Any) -> Any:
        return torch.nn.functional.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)

    def js(log_q: Any, log_p: Any) -> Any:
        log_m = torch.logaddexp(log_q, log_p) - 0.6931471805599453
        return (kl(log_m, log_p) + kl(log_m, log_q)) / 2

    return {"kl_div": kl, "js_div": js}[case.op.name]


DIVERGENCES = Family(_cases, _torch)
