"""Differentiable ops until fastact.torch has them."""

# mypy: ignore-errors
import torch

import fastact

_LIKE = {"recurrent": "gates", "recurrent_bias": "bias", "residual": "x"}


def _run(op, entry, named):
    point = op.entry_points[entry]
    activation = named.get("activation")
    if activation not in (None, "identity") and op.family != "activations":
        point = point.with_parameters(fastact.ops[getattr(activation, "name", activation)])
    function = op if entry == "call" else getattr(op, entry)
    arrays = [named[n] for n in point.arrays]
    return function(*arrays, **{n: named[n] for n in point.defaults if n in named})


class _Call(torch.autograd.Function):
    @staticmethod
    def forward(ctx, op, names, named, *tensors):
        named = {**named, **{n: t.detach() for n, t in zip(names, tensors)}}
        y, ctx.saved = _run(op, "forward", named)
        ctx.op, ctx.names, ctx.named = op, names, named
        return y

    @staticmethod
    def backward(ctx, *dys):
        op = ctx.op
        incoming = op.entry_points["backward"].arrays[: len(dys)]
        named = {**ctx.named, **dict(zip(op.saves, ctx.saved)), **dict(zip(incoming, dys))}
        named.pop("out", None)
        result = _run(op, "backward", named)
        result = result if isinstance(result, tuple) else (result,)
        grads = dict(zip((g.removeprefix("d") for g in op.gradients), result))
        if op.family == "softmax":
            grads = {ctx.names[0]: result[0]}
        got = []
        for name, need in zip(ctx.names, ctx.needs_input_grad[3:]):
            grad = grads.get(name if name in grads else _LIKE.get(name, name)) if need else None
            if grad is not None and name in _LIKE:
                grad = grad.to(ctx.named[name].dtype)
            got.append(grad)
        return None, None, None, *got


class _Differentiable:
    def __getattr__(self, name):
        op = getattr(fastact, name)
        if not hasattr(op, "entry_points"):
            return op

        def call(*args, **kwargs):
            point = op.entry_points["call"]
            named = dict(zip([*point.arrays, *point.defaults], args)) | kwargs
            tensors = {k: v for k, v in named.items() if isinstance(v, torch.Tensor)}
            if "out" in named or not (
                torch.is_grad_enabled() and any(t.requires_grad for t in tensors.values())
            ):
                return _run(
                    op,
                    "call",
                    named | {k: t.detach() if t.requires_grad else t for k, t in tensors.items()},
                )
            rest = {k: v for k, v in named.items() if k not in tensors}
            return _Call.apply(op, tuple(tensors), rest, *tensors.values())

        return call


fa = _Differentiable()
