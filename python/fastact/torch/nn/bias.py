"""Linear and convolutional layers that add bias and activation in one pass over the product."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules import conv

import fastact as fa

from .module import WithActivation

__all__ = ["Conv1d", "Conv2d", "Conv3d", "Linear"]


def _bias_act(product: Tensor, bias: Tensor | None, axis: int, fused: Any) -> Tensor:
    """Apply the activation to a product and a bias, if there is one."""
    if bias is not None:
        return fa.bias_act(product, bias, axis=axis, **fused)  # type: ignore[no-any-return]
    op, options = fused["activation"], {n: v for n, v in fused.items() if n != "activation"}
    return getattr(fa, op)(product, **options)  # type: ignore[no-any-return]


class Linear(WithActivation, torch.nn.Linear):
    """`torch.nn.Linear` with an activation; without one it is the same as torch's."""

    def forward(self, input: Tensor) -> Tensor:
        if len(self.fused) == 0:  # dynamo takes an empty mapping for true
            return super().forward(input)
        return _bias_act(functional.linear(input, self.weight), self.bias, -1, self.fused)


class _Conv(WithActivation, conv._ConvNd):
    def forward(self, input: Tensor) -> Tensor:
        if len(self.fused) == 0:  # dynamo takes an empty mapping for true
            return super().forward(input)  # type: ignore[no-any-return]
        product = self._conv_forward(input, self.weight, None)
        channels = -1 - len(self.kernel_size)
        return _bias_act(product, self.bias, channels, self.fused)


class Conv1d(_Conv, torch.nn.Conv1d):
    """`torch.nn.Conv1d` with an activation; without one it is the same as torch's."""


class Conv2d(_Conv, torch.nn.Conv2d):
    """`torch.nn.Conv2d` with an activation; without one it is the same as torch's."""


class Conv3d(_Conv, torch.nn.Conv3d):
    """`torch.nn.Conv3d` with an activation; without one it is the same as torch's."""
