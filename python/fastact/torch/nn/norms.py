"""The norms of torch.nn as modules, with any activation behind them."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.modules import batchnorm, instancenorm

import fastact as fa

from .module import WithActivation, computed_in, shape_of

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "LayerNorm", "RMSNorm"]
__all__ += ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


class _OverLastAxes(WithActivation):
    """The base of the norms of the last axes."""

    def _axes(self, input: Tensor) -> tuple[int, ...]:
        """Return the last axes of the input, and check that their lengths are the module's."""
        shape: tuple[int, ...] = self.normalized_shape  # type: ignore[assignment]
        if shape_of(input)[-len(shape) :] != shape:
            raise ValueError(
                f"{self.where()}: input must end with shape {shape}, got {tuple(input.shape)}"
            )
        return tuple(range(-len(shape), 0))


class LayerNorm(_OverLastAxes, torch.nn.LayerNorm):
    """`torch.nn.LayerNorm`, computed by `fastact.layer_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        return fa.layer_norm(  # type: ignore[no-any-return]
            input,
            self.weight,
            self.bias,
            axis=self._axes(input),
            eps=self.eps,
            **self.fused,
        )


class RMSNorm(_OverLastAxes, torch.nn.RMSNorm):
    """`torch.nn.RMSNorm`, computed by `fastact.rms_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        # torch's default is the eps of the dtype in which it computes.
        eps = torch.finfo(computed_in(input)).eps if self.eps is None else self.eps
        return fa.rms_norm(  # type: ignore[no-any-return]
            input, self.weight, axis=self._axes(input), eps=eps, **self.fused
        )


class GroupNorm(WithActivation, torch.nn.GroupNorm):
    """`torch.nn.GroupNorm`, computed by `fastact.group_norm`."""

    def forward(self, input: Tensor) -> Tensor:
        if math.prod(shape_of(input)) == self.num_groups:  # torch refuses only this case
            raise ValueError(
                f"{self.where()}: input must have more than one value per group, got shape "
                f"{tuple(input.shape)}"
            )
        return fa.group_norm(  # type: ignore[no-any-return]
            input, self.num_groups, self.weight, self.bias, eps=self.eps, **self.fused
        )


class _InstanceNorm(WithActivation, instancenorm._InstanceNorm):
    """The base of instance norms; torch's `forward` checks the shape and adds a batch axis."""

    def _apply_instance_norm(self, input: Tensor) -> Tensor:
        mean, var, eps = self.running_mean, self.running_var, self.eps
        if self.track_running_stats and not self.training:
            return fa.batch_norm(  # type: ignore[no-any-return]
                input, mean, var, self.weight, self.bias, eps=eps, **self.fused
            )
        if math.prod(shape_of(input)[2:]) == 1:
            raise ValueError(
                f"{self.where()}: input must have more than one value per channel in training, "
                f"got shape {tuple(input.shape)}"
            )
        y = fa.instance_norm(input, self.weight, self.bias, eps=eps, **self.fused)
        if mean is not None and var is not None and input.numel():
            self._track(input.detach(), mean, var)
        return y  # type: ignore[no-any-return]

    @torch.no_grad()
    def _track(self, input: Tensor, running_mean: Tensor, running_var: Tensor) -> None:
        """Update the running statistics with the average of the examples' statistics."""
        momentum = 0.0 if self.momentum is None else self.momentum  # as in torch
        found = fa.mean_var(input, tuple(range(2, input.ndim)), correction=1)
        for running, new in zip((running_mean, running_var), found, strict=True):
            running.mul_(1 - momentum).add_(new.mean(0), alpha=momentum)


class InstanceNorm1d(_InstanceNorm, torch.nn.InstanceNorm1d):
    """`torch.nn.InstanceNorm1d`, computed by `fastact.instance_norm`."""


class InstanceNorm2d(_InstanceNorm, torch.nn.InstanceNorm2d):
    """`torch.nn.InstanceNorm2d`, computed by `fastact.instance_norm`."""


class InstanceNorm3d(_InstanceNorm, torch.nn.InstanceNorm3d):
    """`torch.nn.InstanceNorm3d`, computed by `fastact.instance_norm`."""


class BatchNorm(WithActivation, batchnorm._BatchNorm):
    """The base of the batch norms of any number of axes."""

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)  # type: ignore[no-untyped-call]
        uses_batch = self.training or (self.running_mean is None and self.running_var is None)
        if uses_batch and self.eps <= 0:
            raise ValueError(f"{self.where()}: eps must be positive in training, got {self.eps}")
        tracks = self.training and self.track_running_stats
        momentum, before = self.momentum, None
        if tracks and self.num_batches_tracked is not None:
            if momentum is None:
                before = int(self.num_batches_tracked)
            self.num_batches_tracked.add_(1)
        elif momentum is None:
            momentum = 0.0
        is_used = tracks or not self.training
        running = (self.running_mean, self.running_var) if is_used else (None, None)
        return self._normalize(input, running, uses_batch, momentum, before)

    def _normalize(
        self,
        input: Tensor,
        running: tuple[Tensor | None, Tensor | None],
        uses_batch: bool,
        momentum: float | None,
        num_batches: int | None,
    ) -> Tensor:
        """Return the result; in training, update the running statistics."""
        return fa.batch_norm(  # type: ignore[no-any-return]
            input,
            *running,
            self.weight,
            self.bias,
            uses_batch,
            momentum,
            self.eps,
            num_batches=num_batches,
            **self.fused,
        )


class BatchNorm1d(BatchNorm, torch.nn.BatchNorm1d):
    """`torch.nn.BatchNorm1d`, computed by `fastact.batch_norm`."""


class BatchNorm2d(BatchNorm, torch.nn.BatchNorm2d):
    """`torch.nn.BatchNorm2d`, computed by `fastact.batch_norm`."""


class BatchNorm3d(BatchNorm, torch.nn.BatchNorm3d):
    """`torch.nn.BatchNorm3d`, computed by `fastact.batch_norm`."""
