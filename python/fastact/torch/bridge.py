"""Calls of ops that torch carries out: where gradients are recorded, or a tensor has no memory.

    autograd.py     a tensor of memory that requires grad: `forward` and `backward` behind autograd
    dispatch.py     any other: the operators `torch.ops.fastact`, for torch's dispatcher

All of it is read off the ops' specifications (`spec.py`).
"""

from collections.abc import Mapping
from typing import Any

from ..interop import foreign
from .autograd import recorder
from .spec import spec_of, tensors_of


def call(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The op's value."""
    named = spec_of(op).named(args, kwargs)
    if any(map(foreign.is_for_dispatcher, tensors_of(named))):
        from . import dispatch  # whose operators take some time to register

        return dispatch.call(op, named)
    return recorder(op, args, kwargs)(args, kwargs)
