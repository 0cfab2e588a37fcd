"""What torch's own operations compute of an op: derivatives of gradients, and forward mode.

By the formulas of `measure/composed.py`; the results and the gradients themselves are the op's.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import torch

from ..measure import composed
from ..measure.composed import has_formula as has_formula
from .spec import Spec, signed

_vjp: Any = torch.func.vjp  # its type depends on an argument


class _Torch:
    """`composed.Operations`."""

    exp, log, sqrt, isnan, where = torch.exp, torch.log, torch.sqrt, torch.isnan, torch.where

    @staticmethod
    def zeros(shape: Sequence[int], like: torch.Tensor) -> torch.Tensor:
        return like.new_zeros(tuple(shape))

    @staticmethod
    def arange(count: int, like: torch.Tensor) -> torch.Tensor:
        return torch.arange(count, device=like.device)

    @staticmethod
    def sum(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        return x.sum(axes, keepdim=True) if axes else x

    @staticmethod
    def max(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
        return x.amax(axes, keepdim=True) if axes else x

    @staticmethod
    def constant(x: torch.Tensor) -> torch.Tensor:
        return x.detach()

    @staticmethod
    def call(op: Any, x: torch.Tensor, parameters: Mapping[str, Any]) -> Any:
        return op(x, **parameters)

    @staticmethod
    def of_ones(op: Any, x: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
        operator = import_module(".dispatch", __package__).OPERATORS[op.name].call
        told = {n: signed(v) if isinstance(v, int) else v for n, v in options.items()}
        with torch._C._DisableFuncTorch(), torch._C._AutoDispatchBelowAutograd():
            made: torch.Tensor = operator(
                torch.ones(x.shape, dtype=x.dtype, device=x.device), **told
            )
        return made

    @staticmethod
    def vjp(f: Callable[..., Any], arrays: Sequence[Any], incoming: Sequence[Any]) -> Any:
        results, back = _vjp(f, *arrays)
        pairs = zip(incoming, results, strict=True)
        return back(tuple(torch.zeros_like(y) if dy is None else dy for dy, y in pairs))


TORCH: Any = _Torch


def _wide(value: Any) -> Any:
    is_short = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if is_short else value


def results(spec: Spec, named: Mapping[str, Any]) -> tuple[torch.Tensor, ...]:
    """What a call gives."""
    dtype = named[spec.arrays[0]].dtype
    found = composed.results(spec.op, {n: _wide(v) for n, v in named.items()}, TORCH)
    return tuple(y.to(dtype) for y in found)


Function = Callable[..., tuple[torch.Tensor, ...]]


def function_of(
    spec: Spec,
    options: Mapping[str, Any],
    names: Sequence[str],
    tensors: Sequence[Any],
    places: Sequence[int],
) -> Function:
    """The gradients of these arguments, as a function of some of the tensors.

    tensors : the results' gradients, and what `forward` saved.
    """
    op, count = spec.op, len(spec.op.results)
    dtype = next(t.dtype for t in tensors[:count] if t is not None)

    def gradients(*values: Any) -> tuple[Any, ...]:
        every = list(tensors)
        for place, value in zip(places, values, strict=True):
            every[place] = value
        every = [_wide(value) for value in every]
        saved = zip(spec.saves, every[len(every) - len(spec.saves) :], strict=True)
        named = {**options, **{n: v for n, v in saved if v is not None}}
        found = composed.gradients(op, every[:count], named, TORCH)
        return tuple(found[n].to(named[n].dtype if n in named else dtype) for n in names)

    return gradients


def second(
    f: Function, places: Sequence[int], ddx: Sequence[Any], tensors: Sequence[Any]
) -> list[Any]:
    """The gradients of such a function for each of the tensors."""
    found: list[Any] = [None] * len(tensors)
    gradients = TORCH.vjp(f, [tensors[i] for i in places], ddx)
    for place, gradient in zip(places, gradients, strict=True):
        found[place] = gradient
    return found


def tangents_of(f: Function, arrays: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """Its results' tangents, as the derivative of its gradients by what comes back."""
    results, back = _vjp(f, *arrays)
    _, forth = _vjp(back, tuple(map(torch.zeros_like, results)))
    return forth(tuple(tangents))[0]
