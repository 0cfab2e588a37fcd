"""Modules whose `forward` is one call of an op, without an activation behind it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

import fastact as fa

from ...interop import foreign
from .module import Module, computed_in

__all__ = ["GLU", "CrossEntropyLoss", "Dropout", "PReLU"]
__all__ += ["LogSoftmax", "Softmax", "Softmax2d", "Softmin"]


class Dropout(Module, torch.nn.Dropout):
    """`torch.nn.Dropout`, computed by `fastact.dropout`.

    In training each call draws a seed from torch's CPU generator, so `torch.manual_seed` repeats it
    on every device. A compiled or exported model has no seed yet and uses torch's own dropout.
    """

    @classmethod
    def leaves(cls, module: torch.nn.Module) -> str:
        return "torch computes it in place" if module.inplace else ""

    @classmethod
    def unasked_for(cls, module: torch.nn.Module) -> str:
        return "its random numbers differ from torch's"

    def forward(self, input: Tensor) -> Tensor:
        is_traced = torch.compiler.is_compiling() or foreign.is_traced()
        if self.inplace or not self.training or self.p == 0 or is_traced:
            return super().forward(input)
        seed = torch.randint(-(2**63), 2**63 - 1, (), device="cpu")
        return fa.dropout(input, self.p, seed=int(seed))


class GLU(Module, torch.nn.GLU):
    """`torch.nn.GLU`, computed by `fastact.glu`."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.glu(input, axis=self.dim)


class PReLU(Module, torch.nn.PReLU):
    """`torch.nn.PReLU`, computed by `fastact.prelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.prelu(input, self.weight)


class _AlongDim(Module):
    """The base of functions of the rows along `dim`.

    op, options : the op that computes them, and its options.
    """

    op: Any
    options: ClassVar[dict[str, float]] = {}
    dim: int | None

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is None:  # torch chooses one, and warns
            return super().forward(input)  # type: ignore[no-any-return]
        return self.op(input, axis=self.dim, **self.options)  # type: ignore[no-any-return]


class Softmax(_AlongDim, torch.nn.Softmax):
    """`torch.nn.Softmax`, computed by `fastact.softmax`."""

    op = fa.softmax


class Softmin(_AlongDim, torch.nn.Softmin):
    """`torch.nn.Softmin`, computed by `fastact.softmax`."""

    op, options = fa.softmax, {"scale": -1.0}


class LogSoftmax(_AlongDim, torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax`, computed by `fastact.log_softmax`."""

    op = fa.log_softmax


class Softmax2d(Module, torch.nn.Softmax2d):
    """`torch.nn.Softmax2d`, computed by `fastact.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(
                f"{self.where()}: input must have three axes or four, got shape "
                f"{tuple(input.shape)}"
            )
        return fa.softmax(input, axis=-3)


class CrossEntropyLoss(Module, torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss`, computed by `fastact.cross_entropy`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if target.is_floating_point() and self.ignore_index >= 0:
            raise ValueError(
                f"{self.where()}: ignore_index must be negative for a target of probabilities, got "
                f"{self.ignore_index}"
            )
        weight = self.weight
        if weight is not None:
            weight = weight.to(computed_in(input))
        return fa.cross_entropy(
            input,
            target,
            weight=weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )
