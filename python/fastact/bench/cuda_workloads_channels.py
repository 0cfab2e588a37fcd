"""batch_norm in training and norm_apply in the GPU benchmark.

Training reads twice, for the statistics are those of the whole batch
(src/cuda/norms/channels/batch_norm.cu): forward x for the moments and once more to write y,
backward dy and x for the sums and once more to write dx. norm_apply has its statistics, and needs
one pass: forward reads x and writes y, backward reads dy and x and writes dx.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cuda_norms import Norm, by_channels, channel_axis, length_of
from .cuda_work import GpuCase, Maker, Tensors

_EPS, _MOMENTUM = 1e-5, 0.1


def _statistics(device: Maker, case: GpuCase) -> Tensors:
    """A mean and a running variance, or rstd, which is positive."""
    mean, second = (device.random(length_of(case), case.dtype) for _ in range(2))
    return mean, second.abs_().add_(0.5)


def _batch_norm_by_torch(torch: Any, case: GpuCase) -> Callable[..., Any]:
    def norm(x: Any, weight: Any, bias: Any, mean: Any = None, var: Any = None) -> Any:
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, True, _MOMENTUM, _EPS)

    return by_channels(case, norm)


def _norm_apply_by_torch(torch: Any, case: GpuCase) -> Callable[..., Any]:
    """What batch_norm does outside of training, of a variance that gives the rstd."""

    def norm(x: Any, weight: Any, bias: Any, mean: Any, rstd: Any) -> Any:
        var = torch.reciprocal(torch.square(rstd)) - _EPS
        return torch.nn.functional.batch_norm(x, mean, var, weight, bias, False, 0.0, _EPS)

    return by_channels(case, norm)


CHANNEL_NORMS = {
    "batch_norm": Norm(
        _batch_norm_by_torch,
        (3, 5),
        told=lambda case: {"training": True, **channel_axis(case)},
        others=_statistics,
    ),
    "norm_apply": Norm(
        _norm_apply_by_torch,
        told=lambda case: {"axis": case.channel},
        others=_statistics,
        fixed=lambda saved, case: saved[1:3],
    ),
}
