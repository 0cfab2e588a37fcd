"""Calls of ops on tensors, for the tests of the bridge to torch, which iterate over all of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fastact as fa
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of

each_op = pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)


def sample(op: Any, dtype: Any = np.float64, seed: int = 0) -> dict[str, Any]:
    """The arguments of a call by name."""
    x, dy = np.random.default_rng(seed).normal(size=(2, 3, 4)).astype(dtype)
    named = cases.sample(op, x, dy)
    return {
        n: torch.from_numpy(np.array(v)) if isinstance(v, np.ndarray) else v
        for n, v in named.items()
    }


def differentiated(op: Any, named: dict[str, Any]) -> list[str]:
    """The arguments that get a gradient."""
    return [n for n in named if n in op.differentiated or n in op.shares]


def called(op: Any, named: dict[str, Any], names: list[str]) -> Callable[..., Any]:
    """A call as a function of some of its arguments, that gives its arrays."""
    return lambda *values: arrays_of(
        op.bound("call", {**named, **dict(zip(names, values, strict=True))})()
    )


class Dispatched(TorchDispatchMode):
    """The names of what torch dispatches meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def leaves(named: dict[str, Any], names: list[str]) -> list[torch.Tensor]:
    return [named[name].detach().clone().requires_grad_() for name in names]
