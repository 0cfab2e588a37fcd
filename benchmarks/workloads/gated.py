"""The benchmark of gated activations.

Forward reads a and b and writes y, backward reads dy, a and b and writes da and db. Packed, the two
are the halves of one array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastact.measure.formulas import NUMPY, naive
from fastact.measure.peers import LeftOut, function_named

from .. import onnx
from ..shapes import hidden
from .activations import jax_function
from .work import BYTES, ITEM, Asked, Call, Case, Family, Work


def _cases(asked: Asked) -> list[Case]:
    sizes = asked.sizes or (BYTES // 2 // ITEM[asked.dtype],)
    return [asked.case(hidden(size), 3 if asked.forward else 5) for size in sizes]


# --- the same by torch, numpy and jax -------------------------------------------------------------


def _name(case: Case) -> str:
    """Of the activation."""
    return str(case.op.activation_of(case.options)[0].name)


def _torch(torch: Any, case: Case) -> Callable[..., Any]:
    functional = torch.nn.functional
    if case.op.packed and _name(case) == "sigmoid":
        return lambda x: functional.glu(x)
    function = function_named(functional, _name(case))
    if case.op.packed:
        raise LeftOut("its glu has the sigmoid alone")
    return lambda a, b: function(a) * b


def _numpy(case: Case, work: Work, threads: int) -> Call:
    if case.direction != "forward":
        raise LeftOut("its naive formula is for the forward pass")
    formula, inputs, m = naive(_name(case)), work.inputs, NUMPY
    if case.op.packed:
        x, half = inputs["x"], case.shape[1]
        return lambda: x[:, :half] * formula(x[:, half:], m)
    a, b = inputs["a"], inputs["b"]
    return lambda: formula(a, m) * b


def _jax(jax: Any, case: Case) -> Callable[..., Any]:
    if case.op.packed:
        return lambda x: jax.nn.glu(x)
    activation = jax_function(jax, _name(case))
    return lambda a, b: activation(a) * b


def _onnx(case: Case) -> str:
    gate = onnx.activation(_name(case), "a", "g")
    packed = "b, a = Split <axis = -1, num_outputs = 2> (x)\n" if case.op.packed else ""
    return f"{packed}{gate}\ny = Mul(g, b)"


GATED = Family(
    _cases,
    _torch,
    jax=_jax,
    onnx=_onnx,
    others={"numpy": _numpy},
)
