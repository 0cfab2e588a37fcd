"""Dropout as a module."""

from __future__ import annotations

import torch
from torch import Tensor

import fastact as fa

from ...interop import foreign
from .module import Module


class Dropout(Module, torch.nn.Dropout):
    """`torch.nn.Dropout` by `fastact.dropout`.

    In training each call draws a seed from torch's generator of the CPU, so that
    `torch.manual_seed` repeats it on every device. What torch compiles or exports has no numbers
    before it runs, so there torch's own dropout is computed.
    """

    @classmethod
    def leaves(cls, module: torch.nn.Module) -> str:
        return "torch computes it in place" if module.inplace else ""

    @classmethod
    def unasked_for(cls, module: torch.nn.Module) -> str:
        return "its random numbers are others than torch's"

    def forward(self, input: Tensor) -> Tensor:
        is_traced = torch.compiler.is_compiling() or foreign.is_traced()
        if self.inplace or not self.training or self.p == 0 or is_traced:
            return super().forward(input)
        seed = torch.randint(-(2**63), 2**63 - 1, (), device="cpu")
        return fa.dropout(input, self.p, seed=int(seed))
