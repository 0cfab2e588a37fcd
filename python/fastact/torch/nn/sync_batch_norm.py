"""Batch norm over a batch that is spread over several processes.

Forward is one all-gather of packed moments (`fastact.Moments`), which every process merges in the
order of the ranks. Backward is one all-gather of the two sums of `batch_norm.backward_reduce`,
which every process adds up in that order. So every process gets the same bits, whichever is first
and however many examples each of them has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

import fastact as fa

from ...ops.moments import Moments
from ..autograd import Function, apply, of_batch
from .norms import BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d
from .recomputed import differentiated_by

__all__ = ["SyncBatchNorm"]

_WHERE = "fastact.torch.nn.SyncBatchNorm"


class SyncBatchNorm(BatchNorm):
    """`torch.nn.SyncBatchNorm`, computed by `fastact.moments` and `fastact.batch_norm`.

    It works on any device. As in torch, only training shares statistics. It is not derived from
    torch's class, which `DistributedDataParallel` accepts only on a GPU.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        of_batch_norm = (num_features, eps, momentum, affine, track_running_stats, device, dtype)
        super().__init__(*of_batch_norm, **options)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(
                f"{_WHERE}: input must have two axes or more, got shape {tuple(input.shape)}"
            )

    def _normalize(
        self,
        input: Tensor,
        running: tuple[Tensor | None, Tensor | None],
        uses_batch: bool,
        momentum: float | None,
        num_batches: int | None,
    ) -> Tensor:
        is_parted = self.training and distributed.is_available() and distributed.is_initialized()
        group = (self.process_group or distributed.group.WORLD) if is_parted else None
        if group is None or distributed.get_world_size(group) == 1:
            return super()._normalize(input, running, uses_batch, momentum, num_batches)
        share = 1 / (num_batches + 1) if momentum is None and num_batches is not None else momentum
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                f"{_WHERE}: transforms of torch.func are not possible in training in several "
                f"processes, whose statistics are gathered; use torch.autograd, or eval()"
            )
        call = (group, running, share, self.eps, dict(self.fused))
        return _SyncBatchNorm.apply(call, input, self.weight, self.bias)  # type: ignore[no-any-return, no-untyped-call]

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_group: Any = None
    ) -> torch.nn.Module:
        """Let all batch norms of a module, torch's and fastact's, share their statistics.

        The module is changed in place and keeps parameters, statistics, hooks and activations.
        """
        for part in module.modules():
            if type(part) in _BATCH_NORMS:
                part.__class__ = cls
                part.process_group = process_group
        return module


_BATCH_NORMS = (
    *(torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d, torch.nn.SyncBatchNorm),
    *(BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm),
)


def _in_torch(call: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Compute `_SyncBatchNorm` by ops that have derivatives of any order."""
    group, count, eps, fused = call
    axes, shape = (0, *range(2, x.ndim)), (1, -1, *(1 for _ in x.shape[2:]))

    def mean(values: Tensor) -> Tensor:
        return apply(_Total, group, values.sum(axes, keepdim=True)) / count  # type: ignore[no-any-return]

    centred = x.double() - mean(x.double())
    y = centred * (mean(centred.square()) + eps).rsqrt()
    for parameter, combine in ((weight, torch.mul), (bias, torch.add)):
        y = y if parameter is None else combine(y, parameter.double().reshape(shape))
    options = {name: value for name, value in fused.items() if name != "activation"}
    result: Tensor = fa.ops[fused["activation"]](y, **options) if fused else y
    return result.to(x.dtype)


class _Total(Function):
    """The sum of the arrays of all processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx, group, part) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.where, ctx.group = _WHERE, group
        return _all_gather(part.contiguous(), group).sum(0)

    @staticmethod
    def backward(ctx, dtotal):  # type: ignore[no-untyped-def]
        return None, *of_batch(lambda each: (apply(_Total, ctx.group, each),), dtotal)


class _SyncBatchNorm(Function):
    @staticmethod
    def forward(ctx, call, *arguments) -> Tensor:  # type: ignore[no-untyped-def]
        group, running, share, eps, fused = call
        x, *parameters = arguments
        x = x.detach()
        weight, bias = (None if t is None else t.detach() for t in parameters)
        part = fa.moments(x, (0, *range(2, x.ndim)))
        shape = tuple(part.mean.shape)
        gathered = _all_gather(part.to_buffer(), group)
        whole = Moments.merge_many(Moments.from_buffer(row, shape) for row in gathered)
        if whole.count == 1:
            raise ValueError(
                f"{_WHERE}: input must have more than one value per channel in training, got "
                f"{whole.count} in all processes"
            )
        mean, rstd = whole.mean, (whole.var() + eps).rsqrt()
        for statistic, new in zip(running, (mean, whole.var(correction=1)), strict=True):
            if statistic is not None and whole.count:
                statistic.copy_((1 - share) * statistic.double() + share * new)
        ctx.save_for_backward(*arguments, mean, rstd)
        # Without values, nothing is divided by their count.
        ctx.where, ctx.call = _WHERE, (group, max(whole.count, 1), eps, fused)
        y: Tensor = fa.norm_apply(x, mean, rstd, weight, bias, axis=1, **fused)
        return y

    @staticmethod
    @differentiated_by(_in_torch)
    def backward(ctx, dy):  # type: ignore[no-untyped-def]
        x, weight, bias, mean, rstd = ctx.saved_tensors
        group, count, _, fused = ctx.call
        # sum(p) and sum(p xhat), which are this process's dbias and dweight as well
        sums = fa.batch_norm.backward_reduce(dy, x, mean, rstd, weight, bias, **fused)
        dx = None
        if ctx.needs_input_grad[1]:
            gathered = _all_gather(torch.cat([s.flatten() for s in sums]), group)
            sum_dy, sum_dy_xhat = fa.sum(gathered, 0).reshape(2, -1)
            dx = fa.batch_norm.backward_apply(
                dy, x, mean, rstd, weight, sum_dy, sum_dy_xhat, count, bias, **fused
            )
        dbias, dweight = (
            None if parameter is None else s.flatten().to(parameter.dtype)
            for parameter, s in zip((bias, weight), sums, strict=True)
        )
        return None, dx, dweight, dbias


def _all_gather(buffer: Tensor, group: Any) -> Tensor:
    """Gather the buffers of all processes, in the order of their ranks."""
    size = distributed.get_world_size(group)
    gathered = [torch.empty_like(buffer) for _ in range(size)]
    try:
        distributed.all_gather(gathered, buffer, group)
    except RuntimeError as error:  # each backend has its own words, and a back trace
        reason = str(error).partition("\n")[0]
        raise RuntimeError(
            f"{_WHERE}: every process of the group must take part in each step of training, but "
            f"rank {distributed.get_rank(group)} of {size} had no answer from them all: {reason}"
        ) from error
    return torch.stack(gathered)
