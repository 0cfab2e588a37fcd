"""What a bridge reads off an op's specification, once for each op: which gradient is whose."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from .fused import activations
from .op import Op, by_our_names


class Spec:
    """An op's arguments, and which gradient belongs to which.

    of : for an argument with a gradient, the place of that among the gradients of `backward`.
    incoming : the arguments of `backward` that are gradients; one that is named "dy" alone stands
        for all results.
    saves_in_order : whether `backward` takes them, and what is saved, by position.
    """

    def __init__(self, op: Any) -> None:
        self.op = op
        self.where = f"fastact.{op.name}"
        call, backward = op.entry_points["call"], op.entry_points["backward"]
        self.arrays: tuple[str, ...] = call.arrays
        self.positional = (*call.arrays, *(n for n in call.defaults if n not in call.by_keyword))
        of = {name: i for i, name in enumerate(op.differentiated)}
        self.of = of | {name: of[other] for name, other in op.shares.items()}
        self.incoming = tuple(f"d{name}" for name in op.results)
        self.backward_arrays: tuple[str, ...] = backward.arrays
        self.backward_takes = {*backward.arrays, *backward.defaults}
        if not self.backward_takes.issuperset(self.incoming):
            self.incoming = ("dy",)
        self.saves: tuple[str, ...] = op.saves
        leading = (
            *backward.arrays,
            *(n for n in backward.defaults if n not in backward.by_keyword),
        )
        in_order = (*self.incoming, *self.saves)
        self.saves_in_order = leading[: len(in_order)] == in_order
        # Options that backward is told again, an activation's own among them.
        own = {name for activation in activations() for name in activation.parameters}
        given = {*self.incoming, *self.saves, "out", "accumulate", "stream"}
        self.told = (self.backward_takes | own) - given

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; what is wrong with them, the op itself finds."""
        kwargs = by_our_names(self.where, kwargs, self.op.entry_points["call"].defaults)
        return {**dict(zip(self.positional, args, strict=False)), **kwargs}

    def arguments(
        self, incoming: Sequence[Any], saved: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        """What `backward` takes before its options, by position and by keyword.

        A gradient that autograd has none of is 0.
        """
        if len(self.incoming) < len(incoming):
            incoming = (tuple(incoming),)
        elif incoming[0] is None:
            incoming = (0.0, *incoming[1:])
        named = dict(zip(self.incoming, incoming, strict=True))
        named.update(zip(self.saves, saved, strict=True))
        return [named.pop(name) for name in self.backward_arrays], named


@cache
def spec_of(op: Op[..., Any]) -> Spec:
    """What the bridge knows of an op."""
    return Spec(op)
