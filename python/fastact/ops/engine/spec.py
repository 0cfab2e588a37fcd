"""Facts that a bridge reads off an op, once per op: which gradient belongs to which argument."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from .entry import by_our_names
from .fused import activations
from .op import Op


class Spec:
    """An op's arguments, and which gradient belongs to which.

    of : for an argument with a gradient, its place among the gradients of `backward`, after which
        come the results' gradients.
    composed : the arguments whose gradient only the op's formula gives.
    incoming : the arguments of `backward` that are gradients; a single "dy" stands for all results.
    differentiates : whether `backward` has its own `backward`, for all its arguments.
    kept : what `forward` makes besides the results and is among the op's `moving`.
    by_kernel : second derivatives by one kernel, or None.
    of_second : the places, among the incoming and saved arguments of `backward`, of those with a
        gradient by the kernel of second derivatives.
    saves_in_order : whether `backward` takes incoming and saved arguments by position.
    """

    def __init__(self, op: Any) -> None:
        self.op = op
        self.where = f"fastact.{op.name}"
        call, backward = op.entry_points["call"], op.entry_points["backward"]
        self.arrays: tuple[str, ...] = call.arrays
        of = {name: i for i, name in enumerate(op.differentiated)}
        places = {name: i for i, name in enumerate(op.results, len(of))} | of
        self.of = of | {name: places[other] for name, other in op.shares.items()}
        self.composed = tuple(name for name, arg in op.args.items() if arg.composed)
        self.incoming = tuple(f"d{name}" for name in op.results)
        self.backward_arrays: tuple[str, ...] = backward.arrays
        self.backward_takes = {*backward.arrays, *backward.defaults}
        if not self.backward_takes.issuperset(self.incoming):
            self.incoming = ("dy",)
        self.saves: tuple[str, ...] = op.saves
        in_order = (*self.incoming, *self.saves)
        self.saves_in_order = backward.leading[: len(in_order)] == in_order
        made = {*op.outputs_of("forward", op._options({}))} - {*op.results}
        self.kept = tuple(name for name in op.moving if name in made)
        self.differentiates = "backward.backward" in op.entry_points
        moving = [in_order.index(name) for name in op.moving if name != "bias"]
        self.of_second = (*range(len(self.incoming)), *moving)
        # A bias has no part in dx.
        self.without_second = (None,) * (len(op.moving) - len(moving))
        self.by_kernel = None if op.traits.second is None else op.backward.backward.by_kernel
        # Options that backward is told again, an activation's own among them.
        own = {name for activation in activations() for name in activation.parameters}
        given = {*self.incoming, *self.saves, "out", "accumulate", "stream"}
        self.told = (self.backward_takes | own) - given

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Name the arguments of a call; the op itself finds what is wrong with them."""
        call = self.op.entry_points["call"]
        kwargs = by_our_names(self.where, kwargs, call.defaults)
        return {**dict(zip(call.leading, args, strict=False)), **kwargs}

    def arguments(
        self, incoming: Sequence[Any], saved: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """Arrange the arguments of `backward` before its options, by position and by keyword.

        A missing gradient of autograd is 0.
        """
        if len(self.incoming) < len(incoming):
            incoming = (tuple(incoming),)
        elif incoming[0] is None:
            incoming = (0.0, *incoming[1:])
        named = dict(zip(self.incoming, incoming, strict=True))
        named.update(zip(self.saves, saved, strict=True))
        return [named.pop(name) for name in self.backward_arrays], named

    def second(
        self,
        wanted: Sequence[bool],
        ddx: Sequence[Any],
        incoming: Sequence[Any],
        saved: Sequence[Any],
        options: Mapping[str, Any],
        empty_like: Callable[[Any], Any],
    ) -> list[Any]:
        """Compute the wanted gradients of `backward`, of `incoming` and `saved`, None for others.

        ddx : the gradients with respect to the results of `backward`.
        """
        given = zip((*incoming, *saved), wanted, strict=True)
        outs = [empty_like(value) if wants else None for value, wants in given]
        if any(wanted):
            args, kwargs = self.arguments(incoming, saved)
            self.op.backward.backward(*ddx, *args, **kwargs, **options, out=tuple(outs))
        return outs

    def second_by_kernel(
        self,
        wanted: Sequence[bool],
        ddx: Mapping[str, Any],
        tensors: Sequence[Any],
        options: Mapping[str, Any],
        empty_like: Callable[[Any], Any],
    ) -> list[Any] | None:
        """Compute them by one kernel if there is one for the whole call, or return None.

        ddx : the same, by the arguments of the gradients. tensors : incoming and saved.
        """
        op, dy = self.op, tensors[0]
        if self.by_kernel is None or len(ddx) > 1 or dy is None:
            return None
        back = ddx.get(op.entry_points["call"].arrays[0])
        if back is None or back.dtype != dy.dtype:
            return None
        told = {n: value for n, value in options.items() if n in self.told}
        args = (back, *[None] * (len(op.gradients) - 1), *tensors)
        given = [i for i in self.of_second if tensors[i] is not None]
        if self.without_second or not all(wanted[i] for i in given):
            outs = [empty_like(tensors[i]) if wanted[i] else None for i in self.of_second]
            told["out"] = (*outs, *self.without_second)
        made = self.by_kernel(*args, **told)
        if made is None:
            return None
        found: list[Any] = [None] * len(tensors)
        for i, one in zip(self.of_second, made, strict=False):
            found[i] = one
        return found


#: Find the facts of an op, once.
spec_of: Callable[[Op[..., Any]], Spec] = cache(Spec)
