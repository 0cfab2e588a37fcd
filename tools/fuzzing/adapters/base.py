"""What adapters share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

import fastact as fa

from ..cases import Array, Draw, Number, Request, draw
from ..judge import Expected


class Adapter:
    """Of one family.

    sample : a request for an op. fill : values for its arrays. exact : what it should give for
    them, an `Expected` for each array of the result, None for what is not judged.
    """

    def sample(self, op: Any, draw: Draw) -> Request:
        raise NotImplementedError

    def fill(self, request: Request, rng: np.random.Generator) -> dict[str, Any]:
        """By name: of operands, and of what `accumulate` adds to."""
        values = {a.name: draw(rng, a.drawn, a.dtype, a.values) for a in request.arrays}
        if request.accumulate:
            for out in request.outs:
                if out.array is not None:
                    values[out.array.name] = draw(rng, out.array.shape, out.array.dtype, "plain")
        return values

    def exact(self, request: Request, values: dict[str, Any]) -> list[Expected | None]:
        raise NotImplementedError

    def function(self, request: Request) -> Callable[..., Any]:
        """What is called."""
        op = fa.ops[request.op]
        return op if request.entry == "call" else getattr(op, request.entry)

    def layout_free(self, request: Request) -> bool:
        """Whether the bits are promised to be the same for operands that lie in another way."""
        return True

    def order_free(self, request: Request) -> bool:
        """Whether that holds for another order of the axes in memory as well."""
        return True

    def other_parameter(self, request: Request, r: Random) -> Request | None:
        """The same kind of call with another value of one parameter."""
        named = {k: v for k, v in request.named.items() if isinstance(v, Number)}
        if not named:
            return None
        name = r.choice(sorted(named))
        number = named[name]
        other = {"bool": 1 - number.value}.get(number.kind, number.value + r.choice((1, 2)))
        if number.kind in ("float32", "tensor"):
            other = float(np.float32(other))
        if not self.holds(request, name, other):
            return None
        return replace(request, named={**request.named, name: Number(other, number.kind)})

    def holds(self, request: Request, name: str, value: float) -> bool:
        """Whether a parameter may have a value, the others being as they are."""
        return True


def full(array: Array, values: dict[str, Any]) -> Any:
    """An operand's values in its shape (a number's in its own)."""
    return np.broadcast_to(values[array.name], array.shape)


def added_to(request: Request, values: dict[str, Any], index: int) -> Any:
    """What an output is added to; 0 unless the call accumulates."""
    if not request.accumulate or index >= len(request.outs):
        return 0.0
    array = request.outs[index].array
    return values[array.name].astype(np.longdouble) if array is not None else 0.0


def is_made(request: Request, index: int) -> bool:
    """Whether a gradient is computed."""
    return not request.outs or request.outs[index].kind != "skip"
