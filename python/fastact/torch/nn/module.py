"""The bases of modules: torch's class behind each, and the activation behind some."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch
from torch.fx import Proxy

from ...ops.engine.fused import activation_op
from ...ops.types import ActivationLike


class Module(torch.nn.Module):
    """A torch module with another `forward`.

    It has no state that torch's module lacks, so `convert` can turn torch's module into one by
    giving it this class.
    """

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; where torch.fx traces a model, it is a leaf if torch's class is one.

        By now a tracer has noted the module, and found that this class is not a leaf.
        """
        for value in (*args, *kwargs.values()):
            if isinstance(value, Proxy):
                tracer: Any = value.tracer
                if self._is_leaf(tracer):
                    name = tracer.path_of_module(self)
                    return tracer.create_proxy("call_module", name, args, kwargs)
        return super()._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        """Show in a model's repr which modules fastact computes."""
        is_ours = type(self).__module__.startswith(__package__)
        return f"{__package__}." * is_ours + super().__repr__()

    def _is_leaf(self, tracer: Any) -> bool:
        """Tell whether a tracer takes modules of torch's class as leaves."""
        of_torch = next(cls for cls in type(self).__mro__ if cls.__module__.startswith("torch.nn"))
        module: torch.nn.Module = object.__new__(of_torch)
        vars(module).update(vars(self))
        return bool(tracer.is_leaf_module(module, tracer.path_of_module(self)))

    @classmethod
    def leaves(cls, module: torch.nn.Module) -> str:
        """Say why torch's own `forward` computes the module in any case; "" if it does not."""
        return ""

    @classmethod
    def unasked_for(cls, module: torch.nn.Module) -> str:
        """Say why `convert` skips the module unless `only` names it; "" if it does not."""
        return ""

    @classmethod
    def where(cls) -> str:
        """Return the name of the class in messages."""
        return f"fastact.torch.nn.{cls.__name__}"


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the lengths of a tensor as numbers; where torch.jit traces, its shape has tensors."""
    c: Any = torch._C
    if torch.compiler.is_compiling() or not c._is_tracing():  # dynamo can't ask the latter
        return tuple(tensor.shape)
    state = c._get_tracing_state()
    c._set_tracing_state(None)
    try:
        return tuple(tensor.shape)
    finally:
        c._set_tracing_state(state)


def computed_in(tensor: torch.Tensor) -> torch.dtype:
    """Return the dtype in which a tensor's elements are computed: float32 for 16-bit data."""
    return torch.float32 if tensor.element_size() < 4 else tensor.dtype


class WithActivation(Module):
    """A module with any activation behind it, by ``activation=`` and the activation's parameters.

    fused : the activation and its parameters, as ops take them; empty for none.
    """

    fused: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, *args: Any, activation: ActivationLike = "identity", **kwargs: Any) -> None:
        op = activation_op(self.where(), activation)
        own = () if op is None else op.parameters
        parameters = {name: kwargs.pop(name) for name in own if name in kwargs}
        super().__init__(*args, **kwargs)
        if op is not None:
            self.fuse(op, parameters)

    def fuse(self, op: Any, parameters: Mapping[str, float | str]) -> None:
        """Put an activation behind the module."""
        op.native(self.where(), SimpleNamespace(**{**op.parameters, **parameters}))  # its checks
        self.fused = {"activation": op.name, **parameters}

    def extra_repr(self) -> str:
        fused = [f"{name}={value!r}" for name, value in self.fused.items()]
        return ", ".join([super().extra_repr(), *fused])
