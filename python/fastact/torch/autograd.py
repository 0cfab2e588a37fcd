"""Gradients of tensors: an op's `forward` and `backward` as one step of autograd's graph.

The steps call the op with the tensors themselves, through no dispatcher: inside them nothing is
recorded, so that `forward` and `backward` are served by the ops' fast paths.

Why it is built so: docs/design/torch.md.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..ops.op import arrays_of, result_of
from .spec import Spec, check_recorded


class Recorded:
    """A call between `forward` and `backward`: its options and what is saved.

    names : of the arguments that are tensors, as autograd is given them.
    models : shape, dtype and device of those, by which gradients are made where some are left out.
    saved : what `forward` saved; of a tensor, which autograd keeps, its place among those.
    """

    def __init__(self, spec: Spec, named: Mapping[str, Any]) -> None:
        self.spec = spec
        self.names = [n for n, value in named.items() if isinstance(value, torch.Tensor)]
        self.options = {n: v for n, v in named.items() if n in spec.told and n not in self.names}
        first = named[self.names[0]]
        self.dtype = first.dtype
        self.models: list[Any] = []
        self.saved: tuple[Any, ...] = ()

    def keep(self, saved: Sequence[Any]) -> list[torch.Tensor]:
        """Note what was saved, and tell which tensors autograd has to keep."""
        tensors = [value for value in saved if isinstance(value, torch.Tensor)]
        places = iter(range(len(tensors)))
        self.saved = tuple(
            _Place(next(places)) if isinstance(value, torch.Tensor) else value for value in saved
        )
        return tensors

    def all_saved(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """What was saved, of the tensors that were kept."""
        return tuple(tensors[v] if type(v) is _Place else v for v in self.saved)

    def gradients(
        self, needed: Sequence[bool], incoming: Sequence[Any], saved: Sequence[Any]
    ) -> tuple[Any, ...]:
        """The gradients of the tensors, None of those that are not needed."""
        spec = self.spec
        incoming = [g if g is None or g.dtype is self.dtype else g.to(self.dtype) for g in incoming]
        args, kwargs = spec.arguments(incoming, saved)
        kwargs.update(self.options)
        places = [spec.of.get(name, -1) for name in self.names]
        found = spec.op.backward(*args, **kwargs, **self._outputs(places, needed))
        if not isinstance(found, tuple):
            found = (found,)
        return tuple(
            found[place] if wants else None for place, wants in zip(places, needed, strict=True)
        )

    def _outputs(self, places: Sequence[int], needed: Sequence[bool]) -> dict[str, Any]:
        """Memory for the gradients that are needed, where others are not."""
        wanted = {p for p, wants in zip(places, needed, strict=True) if wants}
        if not self.models or wanted.issuperset(p for p in places if p >= 0):
            return {}
        outs: list[Any] = [None] * len(self.spec.op.gradients)
        for place, wants, (shape, dtype, device) in zip(places, needed, self.models, strict=True):
            if wants and outs[place] is None:
                outs[place] = torch.empty(shape, dtype=dtype, device=device)
        return {"out": tuple(outs)}


class _Place(int):
    """Of a tensor among those that autograd keeps."""


class Step(torch.autograd.Function):
    """An op's call in autograd's graph."""

    @staticmethod
    def forward(call: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = call.arguments
        call.arguments = None  # the graph keeps tensors by what is saved alone
        call.result, call.kept = call.spec.op.forward(*args, **kwargs)
        if len(call.spec.op.gradients) > 1:
            call.models = [(t.shape, t.dtype, t.device) for t in tensors]
        return arrays_of(call.result)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call = inputs[0]
        ctx.call = call
        ctx.save_for_backward(*call.keep(call.kept))
        call.kept = None
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        call, needed = ctx.call, ctx.needs_input_grad[1:]
        if all(gradient is None for gradient in incoming):
            return (None, *(None for _ in needed))
        saved = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            count = len(incoming)

            def gradients(*tensors: Any) -> Any:
                return call.gradients(needed, tensors[:count], call.all_saved(tensors[count:]))

            return None, *apply(Once, call.spec.where, gradients, *incoming, *saved)
        return None, *call.gradients(needed, incoming, call.all_saved(saved))


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


def call(
    spec: Spec, named: Mapping[str, Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """The op's value, recorded."""
    check_recorded(spec, named)
    recorded: Any = Recorded(spec, named)
    recorded.arguments = args, kwargs
    arrays = _step(recorded, *(named[name] for name in recorded.names))
    model, recorded.result = recorded.result, None
    return result_of(arrays, model)
