"""Norms and moments in torch's graph: against finite differences, and against torch's own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from normed import Arrays, Setting, for_every_norm, run

import fastact as fa
from fastact import Moments


class Entries(NamedTuple):
    """How an op is called: forward gives y and what is saved, backward a gradient a tensor."""

    forward: Callable[..., tuple[Any, tuple[Any, ...]]]
    backward: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]


class ByUs(torch.autograd.Function):
    """An op of ours in torch's graph."""

    @staticmethod
    def forward(ctx: Any, entries: Entries, *tensors: Any) -> Any:
        y, saved = entries.forward(*(tensor.detach() for tensor in tensors))
        ctx.save_for_backward(*saved)
        ctx.entries = entries
        return (y.mean, y.m2) if isinstance(y, Moments) else y

    @staticmethod
    def backward(ctx: Any, *dy: Any) -> Any:
        parts = [part.detach() for part in dy]
        saved = [None if part is None else part.detach() for part in ctx.saved_tensors]
        return None, *ctx.entries.backward(parts, saved)


def of_rows(setting: Setting, name: str) -> tuple[Entries, list[Any]]:
    """A norm over rows, and what it is called with."""
    arrays, op = Arrays(setting, np.dtype(np.float64)), fa.ops[setting.op]
    options = {**setting.options, "activation": name}
    count = len(arrays.inputs)

    def forward(*tensors: Any) -> Any:
        return op.forward(*tensors[:count], *setting.positional, *tensors[count:], **options)

    def backward(dy: Sequence[Any], saved: Sequence[Any]) -> Sequence[Any]:
        of_sum = {"dtotal": dy[1]} if setting.adds else {}
        dx, *others = op.backward(dy[0], *saved, **of_sum, **options)
        return *[dx] * (2 if op.shares else 1), *others

    weights = [a for a in arrays.weights.values() if a is not None]
    return Entries(forward, backward), [*arrays.inputs, *weights]


def of_channels(kind: str, axis: int, name: str) -> tuple[Entries, list[Any]]:
    """batch_norm in training, in two halves, by running statistics; norm_apply."""
    shape = (3, 2, 4) if axis == 1 else (3, 4, 2)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape), 1 + rng.normal(size=2), rng.normal(size=2)]
    mean, var = torch.from_numpy(rng.normal(size=2)), torch.tensor([0.5, 2.0], dtype=torch.float64)
    options: dict[str, Any] = {
        "axis" if kind == "apply" else "channel_axis": axis,
        "activation": name,
    }
    trains = {"training": True} if kind == "training" else {}

    def forward(x: Any, *weights: Any) -> Any:
        if kind == "apply":
            return fa.norm_apply.forward(x, mean, var, *weights, **options)
        running = (mean, var) if kind == "running" else (None, None)
        return fa.batch_norm.forward(x, *running, *weights, training=kind != "running", **options)

    def backward(dy: Sequence[Any], saved: Sequence[Any]) -> Sequence[Any]:
        if kind == "apply":
            return fa.norm_apply.backward(*dy, *saved, **options)
        if kind != "halves":
            return fa.batch_norm.backward(*dy, *saved, **trains, **options)
        x, *statistics, weight, bias = saved
        sums = fa.batch_norm.backward_reduce(*dy, *saved, **options)
        count = x.numel() // x.shape[axis]
        dx = fa.batch_norm.backward_apply(
            *dy, x, *statistics, weight, *sums, count, bias, **options
        )
        return dx, *(total.reshape(-1) for total in reversed(sums))

    return Entries(forward, backward), arrays


def of_moments(op: Any, axis: Any, **options: Any) -> tuple[Entries, list[Any]]:
    x = np.random.default_rng(0).normal(size=(3, 4, 2))
    return Entries(
        lambda x: op.forward(x, axis, **options),
        lambda dy, saved: (op.backward(tuple(dy), *saved, axis, **options),),
    ), [x]


def assert_gradients(entries: Entries, arrays: list[Any]) -> None:
    leaves = [torch.from_numpy(np.asarray(a)).requires_grad_() for a in arrays]
    assert torch.autograd.gradcheck(lambda *tensors: ByUs.apply(entries, *tensors), leaves)


# A row along one axis, of several axes, with a residual, as a group, as a channel first and last.
SMALL = for_every_norm(
    [
        Setting("layer_norm", (3, 7)),
        Setting("layer_norm", (2, 3, 4), {"axis": (0, 2)}),
        Setting("rms_norm", (3, 7)),
        Setting("add_layer_norm", (3, 7)),
        Setting("add_rms_norm", (2, 7)),
        Setting("group_norm", (2, 4, 3), groups=2),
        Setting("instance_norm", (2, 3, 5)),
        Setting("instance_norm", (2, 5, 3), {"channel_axis": -1}),
    ]
)
names = pytest.mark.parametrize("name", ["identity", "mish", "tanh"])


@pytest.mark.parametrize("setting", SMALL, ids=str)
@names
def test_gradcheck_over_rows(setting, name):
    assert_gradients(*of_rows(setting, name))


@pytest.mark.parametrize("kind", ["training", "halves", "running", "apply"])
@pytest.mark.parametrize("axis", [1, -1])
@names
def test_gradcheck_over_channels(kind, axis, name):
    assert_gradients(*of_channels(kind, axis, name))


@pytest.mark.parametrize("axis", [1, (0, 2), None])
@pytest.mark.parametrize(
    ("op", "options"),
    [(fa.mean_var, {"correction": 1}), (fa.mean_var, {"keepdims": True}), (fa.moments, {})],
    ids=str,
)
def test_gradcheck_of_moments(op, options, axis):
    assert_gradients(*of_moments(op, axis, **options))


TORCH = {
    "layer_norm": lambda F, s, x, w, b: F.layer_norm(x, s.parameter, w, b),
    "rms_norm": lambda F, s, x, w, b: F.rms_norm(x, s.parameter, w, 1e-6),
    "group_norm": lambda F, s, x, w, b: F.group_norm(x, s.groups, w, b),
    "instance_norm": lambda F, s, x, w, b: F.instance_norm(x, None, None, w, b),
}


@pytest.mark.parametrize(
    "setting",
    [
        Setting("layer_norm", (40, 300)),
        Setting("rms_norm", (40, 300)),
        Setting("group_norm", (4, 12, 9, 9), groups=3),
        Setting("instance_norm", (4, 12, 9, 9)),
    ],
    ids=str,
)
def test_against_torch_autograd(setting):
    F = torch.nn.functional
    arrays = Arrays(setting, np.dtype(np.float64))
    parameters = [a for a in (arrays.weight, arrays.bias) if a is not None]
    leaves = [torch.from_numpy(a).requires_grad_() for a in (arrays.x, *parameters)]
    x, w, b = (*leaves, None)[:3]
    y = F.mish(TORCH[setting.op](F, setting, x, w, b))
    theirs = torch.autograd.grad(y, leaves, torch.from_numpy(arrays.dy))
    (ours, _), gradients = run(arrays, activation="mish")
    np.testing.assert_allclose(ours, y.detach().numpy(), 1e-12, 1e-12)
    for mine, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), 1e-10, 1e-10)
