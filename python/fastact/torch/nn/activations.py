"""Activations as modules: a class for each activation of `fastact.ops`.

No activation is named here. torch's class is the one of the same name, whose modules have the op's
parameters as attributes. A class that torch.nn lacks takes the op's parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

import fastact as fa

from .module import Module

ACTIVATIONS = {op.name: op for op in fa.ops.values() if op.family == "activations"}


class ActivationModule(Module):
    """The base of the modules of all activations.

    op : the name of the op in `fastact.ops`.
    takes : the parameters of torch's constructor that the op lacks, and their defaults.
    """

    op: str
    takes: Mapping[str, Any] = MappingProxyType({})
    inplace = False

    @classmethod
    def options(cls, module: torch.nn.Module) -> dict[str, Any]:
        """Return the op's parameters, which are attributes of the module."""
        return {name: getattr(module, name) for name in ACTIVATIONS[cls.op].parameters}

    @classmethod
    def leaves(cls, module: torch.nn.Module) -> str:
        for name, default in cls.takes.items():
            value = getattr(module, name, default)
            if value != default:
                return f"torch computes it with {name}={value!r}"
        return ""

    def forward(self, input: Tensor) -> Tensor:
        if self.takes and self.leaves(self):
            return super().forward(input)  # type: ignore[no-any-return]
        op, options = getattr(fa, self.op), self.options(self)
        if not self.inplace:
            return op(input, **options)  # type: ignore[no-any-return]
        if torch.is_grad_enabled() and input.requires_grad:
            # The op's derivative needs x, which would be lost; torch computes some from y.
            return super().forward(input)  # type: ignore[no-any-return]
        return op(input, **options, out=input)  # type: ignore[no-any-return]


class _Own(ActivationModule):
    """An activation that torch lacks."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        kind, parameters = Parameter.POSITIONAL_OR_KEYWORD, ACTIVATIONS[self.op].parameters
        takes = Signature([Parameter(n, kind, default=v) for n, v in parameters.items()])
        given = takes.bind(*args, **kwargs)
        given.apply_defaults()
        for name, value in given.arguments.items():
            setattr(self, name, value)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self.options(self).items())


def _class_for(op: Any) -> type[ActivationModule]:
    members = {"op": op.name, "__module__": __name__, "__doc__": f"Module of `fastact.{op.name}`."}
    names = [name for name in dir(torch.nn) if name.lower() == op.name.replace("_", "")]
    if not names:
        return type("".join(map(str.capitalize, op.name.split("_"))), (_Own,), members)
    torch_class = getattr(torch.nn, names[0])
    defaults = {n: p.default for n, p in signature(torch_class).parameters.items()}
    members["takes"] = {n: v for n, v in defaults.items() if n not in (*op.parameters, "inplace")}
    return type(names[0], (ActivationModule, torch_class), members)


_CLASSES = {cls.__name__: cls for cls in map(_class_for, ACTIVATIONS.values())}
globals().update(_CLASSES)
__all__ = list(_CLASSES)
