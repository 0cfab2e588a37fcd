"""Gradients of tensors: an op's `forward` and `backward` as one step of autograd's graph.

The steps call the op with the tensors themselves, through no dispatcher: inside them nothing is
recorded, so that `forward` and `backward` are served by the ops' fast paths.

Why it is built so: docs/design/torch.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..ops.op import Op, arrays_of, result_of
from .spec import Spec, check_recorded, spec_of


class Recorded:
    """How a call is recorded, and every other one with its key (src/cpu/binding/call_key.pyx).

    Such calls are alike but for the values in their arrays: shapes, options, and what requires grad
    are the same. So all that follows from these is found once.

    names : of the arguments that are tensors, as autograd is given them.
    places : for each of these, which of the op's gradients is its own; -1 where none is needed.
    outputs : for each of the op's gradients, shape, dtype and device where it is needed and None
        where not; empty where all of the tensors' are.
    options : what backward is told again.
    numbers : options that are tensors, and so known by no key, and their places among the tensors.
    others : what is saved and is no tensor, with None in the places of tensors; empty where all
        are tensors; None before the first call.
    simple : whether the tensors are all that is given by position, and the results are arrays.
    kwargs : what is given by name then, which has no tensors.
    """

    def __init__(
        self, spec: Spec, named: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.spec, op = spec, spec.op
        self.forward, self.backward = op.forward, op.backward
        tensors = {n: value for n, value in named.items() if isinstance(value, torch.Tensor)}
        self.names = [*tensors]
        self.dtype = tensors[self.names[0]].dtype
        self.simple = self.names == [*named][: len(args)] and type(op).result_of is Op.result_of
        self.kwargs = kwargs if self.simple else {}  # else it may have tensors
        self.places = [
            spec.of.get(name, -1) if value.requires_grad else -1 for name, value in tensors.items()
        ]
        self.in_order = self.places == [*range(len(self.places))]
        self.outputs = self._outputs(tensors)
        self.options = {n: v for n, v in named.items() if n in spec.told and n not in tensors}
        self.numbers = {n: i for i, n in enumerate(self.names) if n in spec.told}
        self.others: tuple[Any, ...] | None = None

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """The op's value, recorded."""
        try:
            if self.simple:
                return _step(self, None, *args)
            given: list[Any] = [args, kwargs]
            tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            arrays = _step(self, given, *tensors)
        except (TypeError, ValueError) as error:  # nobody has called `forward`
            where = self.spec.where
            error.args = (str(error).replace(f"{where}.forward:", f"{where}:", 1),)
            raise
        return arrays if len(given) == 2 else result_of(arrays, given[2])

    def _outputs(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        of, count = self.spec.of, len(self.spec.op.gradients)
        if count == 1 or {of[name] for name in tensors if name in of} <= {*self.places}:
            return []
        found: list[Any] = [None] * count
        for place, value in zip(self.places, tensors.values(), strict=True):
            if place >= 0 and found[place] is None:
                found[place] = value.shape, value.dtype, value.device
        return found

    def gradients(
        self, incoming: Sequence[Any], saved: Sequence[Any], numbers: Mapping[str, Any]
    ) -> Sequence[Any]:
        """The gradients of the tensors, None of those that are not needed."""
        options = {**self.options, **numbers} if numbers else self.options
        if self.others:
            saved = [b if a is None else a for a, b in zip(saved, self.others, strict=True)]
        if len(incoming) > 1 or incoming[0].dtype is not self.dtype or not self.spec.saves_in_order:
            incoming = [
                g if g is None or g.dtype is self.dtype else g.to(self.dtype) for g in incoming
            ]
            incoming, by_name = self.spec.arguments(incoming, saved)
            saved, options = (), {**options, **by_name}
        if self.outputs:
            outs = [
                None if like is None else torch.empty(like[0], dtype=like[1], device=like[2])
                for like in self.outputs
            ]
            options = {**options, "out": tuple(outs)}
        found = self.backward(*incoming, *saved, **options)
        if type(found) is not tuple:
            found = (found,)
        if self.in_order:
            return found[: len(self.places)]  # type: ignore[no-any-return]
        return [found[place] if place >= 0 else None for place in self.places]


class Step(torch.autograd.Function):
    """An op's call in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, call: Recorded, given: Any, *tensors: torch.Tensor) -> Any:
        if given is None:
            result, saved = call.forward(*tensors, **call.kwargs)
        else:
            args, kwargs = given
            result, saved = call.forward(*args, **kwargs)
            if not isinstance(result, (torch.Tensor, tuple)):
                given.append(result)
                result = arrays_of(result)
        if call.others is None:
            others = tuple(None if isinstance(v, torch.Tensor) else v for v in saved)
            call.others = () if all(v is None for v in others) else others
        if call.others:
            saved = tuple(v if isinstance(v, torch.Tensor) else None for v in saved)
        if call.numbers:
            ctx.numbers = {name: tensors[i].item() for name, i in call.numbers.items()}
        ctx.call = call
        # What `save_for_backward` and `set_materialize_grads` do, without a call of each.
        ctx.to_save, ctx.materialize_grads = saved, False
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        call = ctx.call
        if incoming[0] is None and all(gradient is None for gradient in incoming):
            return (None,) * (2 + len(call.places))
        saved, numbers = ctx.saved_tensors, ctx.numbers if call.numbers else {}
        if not _is_grad_enabled():
            return None, None, *call.gradients(incoming, saved, numbers)
        # create_graph=True
        count = len(incoming)

        def gradients(*tensors: Any) -> Any:
            return call.gradients(tensors[:count], tensors[count:], numbers)

        return None, None, *in_graph(call.spec, gradients, *incoming, *saved)


def in_graph(spec: Spec, gradients: Callable[..., Sequence[Any]], *tensors: Any) -> Sequence[Any]:
    """The gradients of an op, which are computed of tensors that may have gradients themselves."""
    if spec.op.piecewise_linear:
        return (apply(Scaled, gradients, *tensors),)
    found: Sequence[Any] = apply(Once, spec.where, gradients, *tensors)
    return found


class Scaled(torch.autograd.Function):
    """dx = dy y'(x) of a y that is linear in pieces: linear in dy, constant in x between corners.

    So its gradient by dy is itself, of another dy, and any further derivative follows.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(gradients: Any, dy: torch.Tensor, x: torch.Tensor) -> Any:
        (dx,) = gradients(dy, x)
        return dx

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.gradients, _, x = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, ddx: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return None, apply(Scaled, ctx.gradients, ddx, x), torch.zeros_like(x)


class Once(torch.autograd.Function):
    """What another op's `backward` computes, in a graph: it has no gradient of its own."""

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


_is_grad_enabled = torch.is_grad_enabled

# Without Function.apply, which reads a signature at each call for defaults that are not there, and
# without that of the node, which looks for another name of `backward` at each call.
_step: Any = getattr(super(torch.autograd.Function, Step), "apply")  # noqa: B009 - it has no types
_node: Any = Step
_node._backward_cls.apply = Step.backward


def recorder(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Recorded:
    """How a call is recorded that is found to be one that can be."""
    spec = spec_of(op)
    named = spec.named(args, kwargs)
    check_recorded(spec, named)
    return Recorded(spec, named, args, kwargs)
