"""Gated activations as modules."""

from __future__ import annotations

import torch
from torch import Tensor

import fastact as fa

from .module import Module


class GLU(Module, torch.nn.GLU):
    """`torch.nn.GLU` by `fastact.glu`."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.glu(input, axis=self.dim)
