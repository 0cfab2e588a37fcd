"""Blocks of operations that inductor makes one kernel of: each is a call and its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fastact as fa
from fastact.measure.peers import compiled_by_torch
from fastact.ops.engine.op import arrays_of

Call = Callable[[], Any]

WIDTH = 768


def _of_torch(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    total = x + b
    return functional.silu(functional.rms_norm(total, (WIDTH,), a, 1e-6)) * total


#: By name: fastact's and torch's function of x, a and b, and which of a and b has the shape of x.
BLOCKS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "mish": (lambda x, a, b: fa.mish(x), lambda x, a, b: functional.mish(x), ""),
    "scale, shift, mish, scale, add": (
        lambda x, a, b: fa.mish(x * a + b) * a + x,
        lambda x, a, b: functional.mish(x * a + b) * a + x,
        "",
    ),
    "layer norm, gelu": (
        lambda x, a, b: fa.layer_norm(x, a, b, activation="gelu"),
        lambda x, a, b: functional.gelu(functional.layer_norm(x, (WIDTH,), a, b)),
        "",
    ),
    "add, RMS norm, SwiGLU": (lambda x, a, b: fa.swiglu(*fa.add_rms_norm(x, b, a)), _of_torch, "b"),
}


def block(name: str, rows: int) -> tuple[str, list[Call], list[Call]]:
    """Its case in words, and fastact's and torch's calls: eager and compiled."""
    ours, theirs, whole = BLOCKS[name]
    compiled = compiled_by_torch(torch, ours), torch.compile(theirs, fullgraph=True, dynamic=False)
    pairs = zip((ours, theirs), compiled, strict=True)
    calls = [[_step(function, rows, whole) for function in pair] for pair in pairs]
    return f"{rows:,} × {WIDTH}", calls[0], calls[1]


def _step(function: Callable[..., Tensor], rows: int, whole: str) -> Call:
    torch.manual_seed(0)
    shapes = [(rows, WIDTH), *((rows, WIDTH) if n in whole else (WIDTH,) for n in "ab")]
    inputs = dict(zip("xab", (torch.randn(n, requires_grad=True) for n in shapes), strict=True))
    y = function(**inputs).sum()
    found: Sequence[Any] = torch.autograd.grad(y, [*inputs.values()], allow_unused=True)
    used = [x for x, dx in zip(inputs.values(), found, strict=True) if dx is not None]
    return gradients(function, inputs, used)


def gradients(
    function: Callable[..., Any], inputs: dict[str, Tensor], leaves: Sequence[Tensor]
) -> Call:
    """The call of a function and its gradients by the leaves among its inputs."""
    incoming = [torch.randn_like(y) for y in arrays_of(function(**inputs)) if y.requires_grad]

    def run() -> Any:
        results = [y for y in arrays_of(function(**inputs)) if y.requires_grad]
        return torch.autograd.grad(results, leaves, incoming)

    return run
