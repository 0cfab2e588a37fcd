"""Gradients of tensors: an op's `forward` and `backward` as one step of autograd's graph.

The steps call the op with the tensors themselves, through no dispatcher: inside them nothing is
recorded, so that `forward` and `backward` are served by the ops' fast paths.

Why it is built so: docs/design/torch.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..ops.op import arrays_of, result_of
from .spec import Spec, check_recorded, spec_of


class Recorded:
    """How a call is recorded, and every other one that is given the same but for the values in its
    arrays: what requires grad, shapes, dtypes and options.

    names : of the arguments that are tensors, as autograd is given them.
    places : of their gradients among those of the op, -1 where there is none.
    models : shape, dtype and device of each, by which gradients are made where some are left out.
    in_order : whether the gradients of the tensors are those of the op.
    as_given : whether the tensors are what is given by position.
    """

    def __init__(self, spec: Spec, named: Mapping[str, Any], args: Sequence[Any]) -> None:
        self.spec, op = spec, spec.op
        self.forward, self.backward = op.forward, op.backward
        self.names = [n for n, value in named.items() if isinstance(value, torch.Tensor)]
        self.options = {n: v for n, v in named.items() if n in spec.told and n not in self.names}
        self.places = [spec.of.get(name, -1) for name in self.names]
        self.models: list[Any] = []
        self.dtype = named[self.names[0]].dtype
        self.as_given = self.names == [*named][: len(args)]
        self.in_order = self.places == [*range(len(op.gradients))]

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The op's value, recorded."""
        given: list[Any] = [args, kwargs]
        tensors: Sequence[Any] = args
        if not self.as_given:
            tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        try:
            arrays = _step(self, given, *tensors)
        except (TypeError, ValueError) as error:  # nobody has called `forward`
            where = self.spec.where
            error.args = (str(error).replace(f"{where}.forward:", f"{where}:", 1),)
            raise
        return arrays if len(given) == 2 else result_of(arrays, given[2])

    def gradients(
        self, needed: Sequence[bool], incoming: Sequence[Any], saved: Sequence[Any]
    ) -> Sequence[Any]:
        """The gradients of the tensors, None of those that are not needed."""
        spec, options = self.spec, self.options
        if len(incoming) > 1 or incoming[0].dtype is not self.dtype or not spec.saves_in_order:
            incoming = [
                g if g is None or g.dtype is self.dtype else g.to(self.dtype) for g in incoming
            ]
            incoming, by_name = spec.arguments(incoming, saved)
            saved, options = (), {**options, **by_name}
        if False in needed and (outs := self._outputs(needed)):
            options = {**options, "out": outs}
        gradients = self.backward(*incoming, *saved, **options)
        found: tuple[Any, ...] = gradients if isinstance(gradients, tuple) else (gradients,)
        if self.in_order and False not in needed:
            return found
        return [
            found[place] if wants else None
            for place, wants in zip(self.places, needed, strict=True)
        ]

    def _outputs(self, needed: Sequence[bool]) -> tuple[Any, ...] | None:
        """Memory for the gradients that are needed, where others are not."""
        wanted = {p for p, wants in zip(self.places, needed, strict=True) if wants}
        if len(self.spec.op.gradients) == 1 or wanted.issuperset(p for p in self.places if p >= 0):
            return None
        outs: list[Any] = [None] * len(self.spec.op.gradients)
        for place, wants, (shape, dtype, device) in zip(
            self.places, needed, self.models, strict=True
        ):
            if wants and outs[place] is None:
                outs[place] = torch.empty(shape, dtype=dtype, device=device)
        return tuple(outs)


class Step(torch.autograd.Function):
    """An op's call in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, call: Any, given: Any, *tensors: torch.Tensor) -> Any:
        args, kwargs = given
        result, saved = call.forward(*args, **kwargs)
        if not call.models:
            call.models = [(t.shape, t.dtype, t.device) for t in tensors]
        ctx.call, ctx.others = call, ()
        for value in saved:
            if value is not None and not isinstance(value, torch.Tensor):
                ctx.others = tuple(None if isinstance(v, torch.Tensor) else v for v in saved)
                saved = [v if isinstance(v, torch.Tensor) else None for v in saved]
                break
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        if isinstance(result, torch.Tensor | tuple):
            return result
        given.append(result)
        return arrays_of(result)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        call, needed, others = ctx.call, ctx.needs_input_grad[2:], ctx.others
        if incoming[0] is None and all(gradient is None for gradient in incoming):
            return (None, None, *(None for _ in needed))
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            count = len(incoming)

            def gradients(*tensors: Any) -> Any:
                return call.gradients(needed, tensors[:count], _filled(tensors[count:], others))

            return None, None, *apply(Once, call.spec.where, gradients, *incoming, *saved)
        return None, None, *call.gradients(needed, incoming, _filled(saved, others))


def _filled(saved: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    """What was saved: tensors, and at the other places what is no tensor."""
    if not others:
        return saved
    return tuple(b if a is None else a for a, b in zip(saved, others, strict=True))


class Once(torch.autograd.Function):
    """What an op's `backward` computes, in a graph: it has no gradient of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(where: str, gradients: Any, *tensors: Any) -> tuple[Any, ...]:
        return tuple(gradients(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.where = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"{ctx.where}: has no second derivative: its backward can't be differentiated"
        )


def apply(function: Any, *args: Any) -> Any:
    """Call a function of autograd, also inside transforms of torch.func."""
    return function.apply(*args)


# Without Function.apply, which reads a signature at each call for defaults that are not there.
_step: Any = getattr(super(torch.autograd.Function, Step), "apply")  # noqa: B009 - it has no types


def recorder(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recorded:
    """How a call is recorded that is found to be one that can be."""
    spec = spec_of(op)
    named = spec.named(args, kwargs)
    check_recorded(spec, named)
    return Recorded(spec, named, args)
