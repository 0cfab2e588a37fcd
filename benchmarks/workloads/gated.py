"""The benchmark of gated activations.

Forward reads a and b and writes y, backward reads dy, a and b and writes da and db. Packed, the two
are the halves of one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastact.measure.peers import LeftOut

from .. import onnx
from ..shapes import hidden
from .libraries import Library
from .work import Asked, Case, Family


def _cases(asked: Asked) -> list[Case]:
    count = 3 if asked.forward else 5
    return [asked.case(hidden(size), count) for size in asked.sized()]


# --- the same by other libraries ------------------------------------------------------------------


def _name(case: Case) -> str:
    """Of the activation."""
    return str(case.op.activation_of(case.options)[0].name)


def _by(m: Library, case: Case) -> Callable[..., Any]:
    if not case.op.packed:
        function = m.activation(_name(case))
        return lambda a, b: function(a) * b
    if _name(case) != "sigmoid":
        raise LeftOut("its glu has the sigmoid alone")
    glu = m.glu()
    return lambda x: glu(x)


def _onnx(case: Case) -> str:
    gate = onnx.activation(_name(case), "a", "g")
    packed = "b, a = Split <axis = -1, num_outputs = 2> (x)\n" if case.op.packed else ""
    return f"{packed}{gate}\ny = Mul(g, b)"


GATED = Family(_cases, _by, onnx=_onnx)
