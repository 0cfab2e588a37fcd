"""The ops in torch's own operations, for exporters that know these alone.

`torch.onnx.export(dynamo=True)` replaces an operator for which it has no translation by its entry
in torch's table of decompositions. The entries here are the ops' formulas, by which derivatives are
found elsewhere. Of these, torch.nn's recurrent layers take those of gates where they are
differentiated twice.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch._decomp import register_decomposition
from torch.nn import functional

from ..derivatives import formulas
from ..derivatives.operations import Operations


class _Plain(Operations):
    """torch's arithmetic, and its own activations where it has them."""

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Any:
        if own := getattr(functional, op.name, None):
            return own(x, **parameters)
        from ..measure.formulas import FORWARD  # late: it looks for SciPy

        return FORWARD[op.name].of(x, _MATHS, **parameters)


PLAIN = _Plain(torch)

#: A namespace that formulas of activations ask for logarithms of numbers, too.
_MATHS = SimpleNamespace(
    **{**vars(torch), "log": lambda x: torch.log(x) if isinstance(x, torch.Tensor) else math.log(x)}
)


_OPERATORS: list[Any] = []  # that have an entry


def register(operator: Any, fake: Callable[..., Any], composed: Callable[..., Any]) -> None:
    """Let exporters compute an operator by what it is composed of.

    Tensors without memory go by the operator's own function as before, for it tells strides.
    """
    _OPERATORS.append(operator)
    for kind, function in (("post_autograd", composed), ("meta", fake)):
        register_decomposition(operator, type=kind, unsafe=True)(function)


@cache
def keep_calls() -> None:
    """Let inductor call the operators that have an entry, as it does of its own accord elsewhere.

    In a process with the variable CI it refuses operators that it could take apart.
    """
    from torch._inductor import lowering
    from torch._library.utils import get_layout_constraint_tag

    make_fallback: Any = lowering.make_fallback  # it has no types
    for operator in _OPERATORS:
        layouts = lowering.tag_to_layout_constraint(get_layout_constraint_tag(operator))
        make_fallback(operator, layouts, warn=False)


def composed(op: Any, named: Mapping[str, Any], dtypes: list[torch.dtype]) -> Any:
    """Return the results of a call, in these dtypes."""
    wide = {name: PLAIN.wide(value) for name, value in named.items()}
    found = zip(formulas.results(op, wide, PLAIN), dtypes, strict=True)
    made = tuple(y.to(dtype) for y, dtype in found)
    return made if len(made) > 1 else made[0]
