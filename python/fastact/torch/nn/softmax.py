"""Functions of rows as modules: softmax, its logarithm, and the loss behind them."""

from __future__ import annotations

import torch
from torch import Tensor

import fastact as fa

from .module import Module


class Softmax(Module, torch.nn.Softmax):
    """`torch.nn.Softmax` by `fastact.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is None:  # torch chooses one, and warns
            return super().forward(input)
        return fa.softmax(input, axis=self.dim)


class Softmax2d(Module, torch.nn.Softmax2d):
    """`torch.nn.Softmax2d` by `fastact.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim not in (3, 4):
            raise ValueError(
                f"{self.where()}: input must have three axes or four, got shape "
                f"{tuple(input.shape)}"
            )
        return fa.softmax(input, axis=-3)


class Softmin(Module, torch.nn.Softmin):
    """`torch.nn.Softmin` by `fastact.softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is None:  # torch chooses one, and warns
            return super().forward(input)
        return fa.softmax(input, axis=self.dim, scale=-1.0)


class LogSoftmax(Module, torch.nn.LogSoftmax):
    """`torch.nn.LogSoftmax` by `fastact.log_softmax`."""

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is None:  # torch chooses one, and warns
            return super().forward(input)
        return fa.log_softmax(input, axis=self.dim)


class CrossEntropyLoss(Module, torch.nn.CrossEntropyLoss):
    """`torch.nn.CrossEntropyLoss` by `fastact.cross_entropy`."""

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        if target.requires_grad and torch.is_grad_enabled():  # for which the op has no gradient
            return super().forward(input, target)
        if target.is_floating_point() and self.ignore_index >= 0:
            raise ValueError(
                f"{self.where()}: ignore_index must be negative for a target of probabilities, got "
                f"{self.ignore_index}"
            )
        weight = self.weight
        if weight is not None:
            weight = weight.to(torch.float32 if input.element_size() < 4 else input.dtype)
        return fa.cross_entropy(
            input,
            target,
            weight=weight,
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction=self.reduction,
        )
