"""Calls of ops that torch carries out: where gradients are recorded, or a tensor has no memory.

    autograd.py     a tensor of memory that requires grad: `forward` and `backward` behind autograd
    dispatch.py     any other: the operators `torch.ops.fastact`, for torch's dispatcher

All of it is read off the ops' specifications (`ops/engine/spec.py`).
"""

from collections.abc import Mapping
from typing import Any

import torch

from ..interop import foreign
from .autograd import recorder
from .spec import spec_of


def call_in_float32(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the op's value under autocast, which turns tensors of 16 bits into float32.

    As in torch, tensors that are given as outputs stay as they are.
    """
    cast = {name: value if name == "out" else _wide(value) for name, value in kwargs.items()}
    device = next(value.device.type for value in args if isinstance(value, torch.Tensor))
    with torch.autocast(device, enabled=False):
        return op(*map(_wide, args), **cast)


def _wide(value: Any) -> Any:
    is_short = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_short else value


def call_overridden(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Ask an argument that answers torch's functions for the op's result."""
    given = {name: getattr(value, "name", value) if name == "activation" else value
             for name, value in kwargs.items()}  # fmt: skip
    every = foreign.flat(args, given)
    relevant = [one for one in every if hasattr(type(one), "__torch_function__")]
    return torch.overrides.handle_torch_function(op, relevant, *args, **given)


def call(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the op's value.

    A call without an operator is not seen by who looks at operations; a tracer refuses it.
    """
    named = spec_of(op).named(args, kwargs)
    tensors = [*foreign.tensors((), named)]
    has_to = foreign.is_traced() or any(map(foreign.is_more_than_memory, tensors))
    if has_to or (foreign.is_watched() and op.has_operator(named)):
        from . import dispatch  # late, because registering its operators takes time

        return dispatch.call(op, named)
    if not any(map(foreign.requires_grad, tensors)):
        return op._serve("call", *args, **kwargs)
    return recorder(op, args, kwargs)(args, kwargs)
