"""Activations with a learnt parameter for each channel, as modules."""

from __future__ import annotations

import torch
from torch import Tensor

import fastact as fa

from .module import Module


class PReLU(Module, torch.nn.PReLU):
    """`torch.nn.PReLU` by `fastact.prelu`."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.prelu(input, self.weight)
