"""The benchmark of the norms: forward reads x and writes y; backward reads dy, x and writes dx.

Norms that add a residual read it forward and write the sum, too; on a GPU, backward reads the
gradient of the sum. Where x is dropped, backward writes the gradients of both. A gate is read both
ways, and backward writes its gradient. batch_norm in training reads everything twice, for its
statistics are over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from fastact.measure.norm_rows import default, traits
from fastact.measure.peers import LeftOut
from fastact.ops.engine.fused import IDENTITY

from .. import onnx, shapes
from ..shapes import Shape
from .libraries import Library, Torch, unless_missing
from .work import Arrays, Asked, Case, Family, Gradient

_ACTIVATIONS = (IDENTITY, "mish")  # nothing behind a norm, and an exponential
_GROUPS = 32
_DROPPING = {"p": 0.1, "seed": 3}

_ARRAY = 2**27  # bytes of an array on a GPU, past any second-level cache


def _case(asked: Asked, shape: Shape, channel: int | None, activation: str = "") -> Case:
    """A case; where no activation is named, there is none."""
    kind = traits(asked.op)
    twice, adds, gated = kind.moves, kind.adds, kind.gated
    forward = 2 + twice + 2 * adds + gated
    backward = 3 + 2 * twice + (adds and asked.on_gpu) + 2 * gated + kind.drops
    options: dict[str, Any] = {"num_groups": _GROUPS, "training": True, **_DROPPING}
    options |= {"activation": activation} if activation else {}
    axis: tuple[int, ...] = (-1,)
    if channel is not None:
        options[kind.channels] = channel
        axis = shapes.others(shape, channel)[0 if kind.by_channel else 1 :]
    span = shapes.shared(shape, axis)
    if kind.groups and channel is not None:
        span *= shape[channel] // _GROUPS
    words = "" if channel is None else f"channels {channel}"
    return asked.case(
        shape,
        forward if asked.forward else backward,
        ", ".join(filter(None, (shapes.shape_label(shape), words, activation))),
        options=options,
        axis=axis,
        channel=channel,
        variant=activation,
        span=span,
    )


def _cases(asked: Asked) -> list[Case]:
    """On the CPU with and without an activation behind, channels first and last.

    A gate goes through the activation that it has by default.
    """
    kind = traits(asked.op)
    of_gate = default(asked.op, "activation") if kind.gated else ""
    table: Sequence[shapes.Layout] = shapes.NORMED_ROWS
    if kind.channels:
        table = shapes.BATCHED if kind.by_channel else shapes.NORMED_IMAGES
        on_gpu = shapes.pictures(asked.sizes)
    else:
        on_gpu = shapes.of_lengths(asked.sized(_ARRAY), shapes.NORM_LENGTHS)
        on_gpu += () if asked.sizes else shapes.PUBLISHED
    return [
        _case(asked, layout.shape, layout.channel, activation)
        for activation in ((of_gate,) if of_gate or asked.on_gpu else _ACTIVATIONS)
        for layout in asked.layouts(table, on_gpu)
    ]


def _prepared(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
    """Make an rstd of a variance, which peers take; backward needs no running statistics."""
    for name in {"running_var", "rstd"} & arrays.keys():
        arrays[name] += 0.5  # in its dtype
    if "rstd" in arrays:
        var = arrays["var"] = arrays["rstd"]
        arrays["rstd"] = var + 0
        arrays["rstd"] += _eps(case)
        arrays["rstd"] **= -0.5
    if "running_mean" in arrays and case.direction == "backward":
        arrays |= {"running_mean": None, "running_var": None}
    return arrays


# --- the same by other libraries ------------------------------------------------------------------


def _eps(case: Case) -> float:
    """By which a variance is kept from 0; of an op that has no variance, batch_norm's."""
    return default(case.op, "eps") or 1e-5


def _lengths(f: Any, eps: float, x: Any, weight: Any = None) -> Any:
    y = f.normalize(x, dim=-1, eps=eps)
    return y if weight is None else y * weight


#: The norms that torch has, by the name without a second array: functions of torch.nn.functional,
#: eps, x and the other arrays by keyword.
_TORCH: dict[str, Callable[..., Any]] = {
    "layer_norm": lambda f, eps, x, weight=None, bias=None: f.layer_norm(
        x, x.shape[-1:], weight, bias, eps
    ),
    "rms_norm": lambda f, eps, x, weight=None: f.rms_norm(x, x.shape[-1:], weight, eps),
    "l2_normalize": _lengths,
    "group_norm": lambda f, eps, x, weight=None, bias=None: f.group_norm(
        x, _GROUPS, weight, bias, eps
    ),
    "instance_norm": lambda f, eps, x, weight=None, bias=None: f.instance_norm(
        x, None, None, weight, bias, eps=eps
    ),
    "batch_norm": lambda f, eps, x, momentum, running_mean=None, running_var=None, **weights: (
        f.batch_norm(
            x, running_mean, running_var, training=True, momentum=momentum, eps=eps, **weights
        )
    ),
    "norm_apply": lambda f, eps, x, mean, var, rstd, weight=None, bias=None: f.batch_norm(
        x, mean, var, weight, bias, False, 0.0, eps
    ),
}
#: Inputs that are statistics; autograd does not differentiate by them.
_STATISTICS = ("mean", "rstd", "var", "running_mean", "running_var")
_NO_ARRAYS = dict.fromkeys(("weight", "bias", *_STATISTICS))


def _peer(op: Any) -> str:
    """The name of the norm without a second array."""
    name: str = op.name
    for prefix in ("dropout_", "add_", "gated_") if traits(op).second else ():
        name = name.removeprefix(prefix)
    return name


def _activated(activation: Callable[[Any], Any] | None, z: Any, gate: Any) -> Any:
    """z through an activation, if there is one, or times the gate through it."""
    of = z if gate is None else gate
    value = of if activation is None else activation(of)
    return value if gate is None else z * value


def _by(m: Library, case: Case) -> Callable[..., Any]:
    plain = case.variant in ("", IDENTITY)
    activation = None if plain else m.activation(case.variant)
    if not isinstance(m, Torch):
        return _chain(case, m.module, activation)
    function = unless_missing(_TORCH.get(_peer(case.op)), _peer(case.op))
    momentum = {"momentum": default(case.op, "momentum")} if _peer(case.op) == "batch_norm" else {}
    norm = partial(function, m.functional, _eps(case), **momentum)
    dropout, p = m.functional.dropout, _DROPPING["p"] if traits(case.op).drops else 0.0
    # torch has channels as axis 1; where they are last in memory, with other strides.
    last = case.channel == -1

    def forward(x: Any, residual: Any = None, gate: Any = None, **others: Any) -> Any:
        x = dropout(x, p) if p else x
        total = x if residual is None else x + residual
        y = _activated(activation, norm(total.movedim(-1, 1) if last else total, **others), gate)
        y = y.movedim(1, -1) if last else y
        return y if residual is None else (y, total)

    return forward


#: Norms whose graph in torch is a chain on the CPU, with and without an activation behind.
_CHAINS = ("layer_norm", "group_norm", "batch_norm", "norm_apply")


def _gradient(m: Library, case: Case) -> Gradient | None:
    """On the CPU by torch's own nodes, where they are a chain."""
    if case.on_gpu or case.op.name not in _CHAINS or not isinstance(m, Torch):
        return None
    function = _by(m, case)

    def arguments(arrays: Arrays) -> tuple[Any, Any]:
        given = {
            n: a if n in _STATISTICS or a is None else a.detach().requires_grad_()
            for n, a in arrays.items()
            if n != "dy"
        }
        return arrays["dy"], m.chain(function(**given))

    return Gradient(m.back, arguments)


def _draws_nothing(case: Case) -> None:
    if traits(case.op).drops:
        raise LeftOut("its random numbers are nobody else's")


def _deviation(m: Any, var: Any, rows: Any, eps: Any) -> Any:
    return m.sqrt(var + eps)


#: Of norms that divide by another number than a standard deviation, by a variance.
_DIVISORS: dict[str, Callable[..., Any]] = {
    "l2_normalize": lambda m, var, rows, eps: m.maximum(m.sqrt(var * (rows.size / var.size)), eps),
}


def _chain(case: Case, m: Any, activation: Callable[[Any], Any] | None) -> Callable[..., Any]:
    """The textbook's chain of array operations, in numpy or jax.numpy.

    It gives y, the sum of those that add a residual, and the running statistics as they are now.
    """
    op, channel, shape = case.op, case.channel, case.shape
    _draws_nothing(case)
    grouped = traits(op).groups
    if grouped and channel != 1:
        raise LeftOut("groups of channels that come last are strided")
    others = shapes.others(shape, -1 if channel is None else channel)
    centred, eps = "mean" in op.saves, np.dtype(case.dtype).type(_eps(case))
    axes = (2,) if grouped else case.axis
    divisor: Callable[..., Any] = _DIVISORS.get(op.name, _deviation)

    def norm(x: Any, residual: Any = None, gate: Any = None, **given: Any) -> Any:
        a = SimpleNamespace(**_NO_ARRAYS)
        for name in given.keys() & _NO_ARRAYS.keys():
            setattr(a, name, m.expand_dims(given[name], others))
        total = x if residual is None else x + residual
        rows = total.reshape(len(x), _GROUPS, -1) if grouped else total
        mean, var = a.mean, a.var
        if mean is None and centred:
            mean = rows.mean(axes, keepdims=True)
        rows = rows - mean if mean is not None else rows
        if var is None:
            var = m.square(rows).mean(axes, keepdims=True)
        z = (rows / divisor(m, var, rows, eps)).reshape(shape)
        z = z * a.weight if a.weight is not None else z
        z = z + a.bias if a.bias is not None else z
        moved = ()
        if a.running_mean is not None:
            count, kept = rows.size / var.size, 1 - default(case.op, "momentum")
            now = (mean, count / (count - 1) * var)
            before = (a.running_mean, a.running_var)
            moved = tuple(
                kept * b + default(case.op, "momentum") * n
                for b, n in zip(before, now, strict=True)
            )
        y = _activated(activation, z, gate)
        return y, *(() if residual is None else (total,)), *moved

    return norm


#: Nodes of ONNX, of x, weight and bias; their other results are left unwritten.
_ONNX: dict[str, str] = {
    "layer_norm": "LayerNormalization <epsilon = {eps}> (x, weight, bias)",
    "rms_norm": "SimplifiedLayerNormalization <epsilon = {eps}> (x, weight)",
    "group_norm": "GroupNormalization <num_groups = {groups}, epsilon = {eps}> (x, weight, bias)",
    "instance_norm": "InstanceNormalization <epsilon = {eps}> (x, weight, bias)",
    "norm_apply": "BatchNormalization <epsilon = {eps}> (x, weight, bias, mean, var)",
}
#: Of x, a residual and parameters; they give the sum as well.
_ONNX_SUMS: dict[str, str] = {
    "add_layer_norm": "SkipLayerNormalization <epsilon = {eps}> (x, residual, weight, bias)",
    "add_rms_norm": "SkipSimplifiedLayerNormalization <epsilon = {eps}> (x, residual, weight)",
}


def _onnx(case: Case) -> str:
    _draws_nothing(case)
    if case.channel not in (None, 1):
        raise LeftOut("its channels come second")
    z = "y" if case.variant == IDENTITY else "z"
    how = {"eps": f"{_eps(case):.1e}", "groups": _GROUPS}
    if case.op.name in _ONNX_SUMS:
        node = f"{z}, none, nobody, total = com.microsoft.{_ONNX_SUMS[case.op.name]}"
    else:
        node = f"{z} = {unless_missing(_ONNX.get(_peer(case.op)), case.op.name)}"
    if traits(case.op).gated:
        behind = f"\n{onnx.activation(case.variant, 'gate', 'value')}\ny = Mul(z, value)"
    else:
        behind = "" if z == "y" else f"\n{onnx.activation(case.variant, z, 'y')}"
    return node.format(**how) + behind


NORMS = Family(
    _cases,
    _by,
    _gradient,
    optional=("weight", "bias"),
    prepared=_prepared,
    constant=frozenset(_STATISTICS),
    onnx=_onnx,
    note="""\
Norms are held against a copy of what they read and write: of rows, groups and instances once each;
batch_norm in training reads everything twice, for its statistics are over the whole batch.""",
)
