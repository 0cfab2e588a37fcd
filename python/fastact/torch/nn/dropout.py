"""Dropout as a module."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import fastact as fa

from .module import Module


class Dropout(Module, torch.nn.Dropout):
    """`torch.nn.Dropout` by `fastact.dropout`.

    In training each call draws a seed from torch's generator of the CPU, so that
    `torch.manual_seed` repeats it on every device.
    """

    @classmethod
    def leaves(cls, module: torch.nn.Module) -> str:
        return "torch computes it in place" if module.inplace else ""

    @classmethod
    def unasked_for(cls, module: torch.nn.Module) -> str:
        return "its random numbers are others than torch's"

    def forward(self, input: Tensor) -> Tensor:
        if self.inplace or not self.training or self.p == 0:
            return super().forward(input)
        return fa.dropout(input, self.p, seed=_seed())


def _drawn() -> int:
    return int(torch.randint(-(2**63), 2**63 - 1, ()).item())


_disable: Any = torch.compiler.disable  # it has no types
_seed = _disable(_drawn)  # a compiled function draws at each call, too
