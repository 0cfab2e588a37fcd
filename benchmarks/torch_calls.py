"""Calls in torch beside single ops: blocks that inductor makes one kernel of, and ways to an op.

What `autograd.py` measures of them; each is a call and its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import fastact as fa
from fastact.measure.peers import compiled_by_torch
from fastact.ops.engine.op import arrays_of

Call = Callable[[], Any]

WIDTH = 768
_FEW = (64, 4096)  # elements of what shows the cost of a call


# --- blocks: as fastact's ops have them, and as a chain of torch's --------------------------------


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


# --- ways into torch ------------------------------------------------------------------------------


class _Function(torch.autograd.Function):
    """As torch's documentation has it."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return fa.relu(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return fa.relu.backward(*gradients, *ctx.saved_tensors)


class _Nothing(torch.autograd.Function):
    """The least that a node of Python costs: it computes nothing and saves nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@cache
def _custom_op() -> Any:
    """`torch.library.custom_op` with `register_autograd`."""
    library: Any = torch.library

    def relu(x: Tensor) -> Tensor:
        return fa.relu(x)

    def relu_backward(dy: Tensor, x: Tensor) -> Tensor:
        return fa.relu.backward(dy, x)

    forward = library.custom_op("fastact_bench::relu", relu, mutates_args=())
    backward = library.custom_op("fastact_bench::relu_backward", relu_backward, mutates_args=())
    forward.register_autograd(
        lambda ctx, dy: backward(dy, *ctx.saved_tensors),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return forward


def ways() -> dict[str, Mapping[str, Call]]:
    """Calls by their ways, plain and with their gradient."""
    operator, custom, function = torch.ops.fastact, _custom_op(), _Function.apply
    fa.relu(torch.empty(1, device="meta"))  # which registers the operators
    found: dict[str, Callable[[Tensor], Tensor]] = {
        "fa.relu(x)": fa.relu,
        "torch.relu(x)": torch.relu,
        "autograd.Function of nothing": _Nothing.apply,
        "autograd.Function": function,
        "torch.ops.fastact.relu(x)": operator.relu,
        "torch.library.custom_op": custom,
    }
    cases: dict[str, Mapping[str, Call]] = {}
    for size in _FEW:
        x, leaf = torch.randn(size), torch.randn(size, requires_grad=True)
        plain = {name: partial(call, x) for name, call in found.items()}
        recorded = {name: partial(_gradient, call, leaf) for name, call in found.items()}
        cases |= {f"{size:,}, plain": plain, f"{size:,}, forward and backward": recorded}
    return cases


def _gradient(call: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return torch.autograd.grad(call(x), x, x)
