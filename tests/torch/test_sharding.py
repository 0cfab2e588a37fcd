"""Ops on tensors that lie in parts on two processes: values and gradients are those of the whole."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import TIMEOUT
from tensors import differentiated, each_op, sample
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import fastact as fa
import fastact.torch.nn as fnn
from fastact.ops.engine.op import arrays_of


def whole(tensor: Any) -> Any:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread(named: dict[str, Any], axis: int, mesh: Any) -> dict[str, Any]:
    """Arguments whose arrays of the first one's shape lie in parts along an axis."""
    first = next(v for v in named.values() if isinstance(v, torch.Tensor)).shape
    found = {}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            place = Shard(axis) if value.shape == first else Replicate()
            value = distribute_tensor(value.detach(), mesh, [place])
        found[name] = value
    return found


def step(op: Any, named: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    """Results, their placements, and the gradients of a sum of all."""
    named = {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in named.items()}
    leaves = [named[n].requires_grad_() for n in differentiated(op, named) if named[n] is not None]
    results = arrays_of(op.bound("call", named)())
    placed = [getattr(y, "placements", None) for y in results]
    ys = [whole(y) for y in results]
    weights = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in ys]
    gradients = torch.autograd.grad(sum((y * w).sum() for y, w in zip(ys, weights)), leaves)
    return [y.detach() for y in ys], placed, [whole(d) for d in gradients]


def each_axis(op: Any, mesh: Any) -> list[tuple[Any, ...]]:
    named, found = sample(op), []
    expected, _, right = step(op, sample(op))
    first = next(v for v in named.values() if isinstance(v, torch.Tensor))
    for axis in range(first.ndim):
        got, placed, gradients = step(op, spread(sample(op), axis, mesh))
        found.append((axis, got, expected, gradients, right, [str(p) for p in placed]))
    return found


def process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=TIMEOUT),
    )
    mesh = init_device_mesh("cpu", (2,))
    found: dict[str, Any] = {}
    import time
    for op in fa.ops.values():
        t = time.time()
        try:
            found[op.name] = each_axis(op, mesh)
        except Exception as error:
            import traceback
            found[op.name] = traceback.format_exc()[-2500:]
        if rank == 0: print(op.name, round(time.time()-t, 2), flush=True)
    torch.save(found, f"{folder}/{rank}")
    distributed.destroy_process_group()


if __name__ == "__main__":
    import sys, tempfile, time
    t=time.time()
    folder = tempfile.mkdtemp()
    torch.multiprocessing.spawn(process, (folder,), nprocs=2)
    found = torch.load(folder + "/0", weights_only=False)
    for name, each in found.items():
        if isinstance(each, str):
            print(name, each); continue
        for axis, got, exp, g, r, placed in each:
            err = [float((a-b).abs().max()) if a.numel() else 0. for a, b in zip(got+g, exp+list(r))]
            print(name, axis, placed, max(err) )
    print(time.time()-t)
