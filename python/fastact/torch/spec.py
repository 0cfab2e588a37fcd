"""An op's specification as the bridge reads it, and the checks of a call's tensors."""

from collections.abc import Mapping
from operator import index
from typing import Any

import torch

from ..interop import foreign, validate
from ..ops.engine import axes
from ..ops.engine.entry import TOLD
from ..ops.engine.spec import Spec as Spec
from ..ops.engine.spec import spec_of as spec_of


def dtype_of_results(spec: Spec, named: Mapping[str, Any], dtype: torch.dtype) -> torch.dtype:
    """Give the dtype of a call's results and their gradients: the data's, or the one it names."""
    told = named.get(TOLD)
    return dtype if told is None else named_dtype(validate.dtype_named(spec.where, TOLD, told))


def named_dtype(name: str) -> torch.dtype:
    """A dtype by its name."""
    found: torch.dtype = getattr(torch, name)
    return found


def signed(spec: Any, name: str, value: Any) -> Any:
    """An integer of 64 bits as schemas of operators have it."""
    if isinstance(value, torch.SymInt) or not hasattr(type(value), "__index__"):
        return value
    if _has_symbols():
        number = index(value)
    else:
        number = spec.op.checks.get(name, axes.integer)(spec.where, name, value)
    return number - 2**64 if 2**63 <= number < 2**64 else number


def check_numbers(where: str, name: str, kind: str, value: Any) -> None:
    """Refuse integers that a schema of this kind can't hold: torch says that an int is no int."""
    if _has_symbols():
        return
    for number in value if isinstance(value, list | tuple) else (value,):
        if isinstance(number, int):
            if kind.startswith("float"):
                validate.holds(where, name, number, "float64")
            else:
                axes.integer(where, name, number)


#: Whether torch.compile is at work, where a number may be a symbol that stands for many.
_has_symbols = torch.compiler.is_dynamo_compiling


def check_switches(spec: Any, named: Mapping[str, Any]) -> None:
    """Refuse results that have no gradient and that torch can't trace."""
    for name in spec.op.traits.unrecorded:
        if validate.flag(spec.where, name, named.get(name, False)):
            raise TypeError(
                f"{spec.where}: {name} must be False where torch records or traces the call"
            )


def check_recorded(spec: Spec, named: Mapping[str, Any]) -> None:
    """Refuse tensors that require grad where they get none, and outputs."""
    check_switches(spec, named)
    for name, value in named.items():
        for one in value if type(value) is tuple else (value,):
            has_tangent = foreign.has_tangent(one)
            if not (has_tangent or foreign.requires_grad(one)):
                continue
            if name not in spec.of and name not in spec.composed:
                raise foreign.gets_no_gradient(spec.where, name)
            if named.get("out") is not None:
                raise TypeError(
                    f"{spec.where}: out must be None where a gradient is recorded, and {name} "
                    f"{'has a tangent' if has_tangent else 'requires grad'}; use {name}.detach(), "
                    f"or call it under torch.no_grad()"
                )
