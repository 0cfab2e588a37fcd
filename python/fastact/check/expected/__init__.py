"""The one judge of all calls: the results of any call of an op, and how far off they may be.

`expected` is for check, the fuzzer and the tests. The module of a family's name holds the formulas
over whole arrays, some of them from `check/reference.py`, and asks the bounds that the op states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from ...measure.cases import Case
from ...ops.engine.op import arrays_of, ops
from . import reductions
from .common import Expected as Expected

Found = dict[str, Expected]

_FAMILIES: dict[str, Callable[[Case], Found]] = {
    family: import_module(f".{family}", __name__).expected
    for family in {op.family for op in ops.values()}
}


def expected(case: Case) -> Found:
    """Give the judged results of a call, by their names.

    A result that is left out has the bits of an argument, or nobody says what is right.
    """
    of = _FAMILIES[case.op.family]
    with np.errstate(all="ignore"):
        return reductions.of_groups(case, of) if case.has("by") else of(case)


@dataclass(frozen=True)
class Call:
    """A call with its arguments by name, and the results' gradients.

    shape : of the data. named : the call's arguments, arrays of NumPy among them. incoming : the
    results' gradients.
    """

    op: Any
    shape: tuple[int, ...]
    named: Mapping[str, Any]
    incoming: Mapping[str, Any]

    def errors(
        self,
        entry: str = "backward",
        backward_of: Callable[[Any, Mapping[str, Any]], tuple[Any, ...]] | None = None,
    ) -> dict[str, float]:
        """Return the worst errors of what it gives and of its gradients, in units of their bounds.

        entry : another entry point than backward, of the same arguments. backward_of : gives the
        gradients where that does not, by the arguments that it would have. Results and saved arrays
        are judged, and gradients for what was saved.
        """
        op, named = self.op, self.named
        result, saves = op.bound("forward", named)()
        saved = dict(zip(op.saves, saves, strict=True))
        results = {n: a for n, a in saved.items() if a is not named.get(n)}
        results |= dict(zip(op.results, arrays_of(result), strict=True))
        forward = Case(op, "forward", self.shape, arrays_of(result)[0].dtype, named)
        backward = forward.at(entry, **self.incoming, **saved, before=named)
        of = backward_of or (lambda op, given: op.bound(entry, given)())
        made = arrays_of(of(op, backward.given))
        gradients = dict(zip(backward.results, made, strict=False))
        found: dict[str, float] = {}
        for case, parts in ((forward, results), (backward, gradients)):
            exact = expected(case)
            judged = {n: y for n, y in parts.items() if y is not None and n in exact}
            found |= {n: exact[n].error(y) for n, y in judged.items()}
        return found
