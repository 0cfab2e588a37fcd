"""Entry points by their operators, while a mode, a tracer or a profiler looks at each operation.

They are raw: nothing is recorded for a gradient. What an operator lacks (`accumulate`, a stream, a
number in the place of a gradient) the entry point computes itself, where no tracer would keep its
values (`interop/call.py`).
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from .dispatch import OPERATORS, Operators

_OTHERS = ("accumulate", "stream")


def entered(op: Any, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call of an entry point by its operator; NotImplemented: it takes what that lacks."""
    operators, point = OPERATORS[op.name], op.entry_points[entry]
    leading = (*point.arrays, *(n for n in point.defaults if n not in point.by_keyword))
    named = {**dict(zip(leading, args, strict=False)), **kwargs}
    if any(named.pop(name, None) for name in _OTHERS) or len(args) > len(leading):
        return NotImplemented
    outs = _outs(point, named.pop("out", None))
    if outs is None or not {*point.arrays} <= {*named}:
        return NotImplemented
    with torch.no_grad():
        if entry == "forward":
            return _forward(operators, named, outs)
        if entry == "backward" or (entry == "backward.backward" and operators.second is not None):
            return _backward(operators, point, named, outs)
    return NotImplemented


def _outs(point: Any, out: Any) -> tuple[Any, ...] | None:
    """The outputs that are given, with None for each other one; None: they are not for here."""
    outs = out if isinstance(out, tuple) else (out,) + (None,) * (point.outputs - 1)
    missing = point.outputs + point.extra - len(outs)
    return outs + (None,) * missing if missing in (0, point.extra) else None


def _forward(operators: Operators, named: Mapping[str, Any], outs: tuple[Any, ...]) -> Any:
    op, takes = operators.spec.op, operators.takes
    if not {*named} <= {*takes} or not op.has_operator(named):
        return NotImplemented
    named = operators.promoted(named)
    made = operators.forward(*operators.values(named))
    arrays = _written(outs, made[: len(op.results)], made)
    if arrays is None:
        return NotImplemented
    known = {**operators.defaults, **named, **dict(zip(op.results, arrays, strict=True))}
    known |= dict(zip(op.models(named)[1], made[len(arrays) :], strict=True))
    return op.result_of(arrays, known), op.saved(known)


def _backward(
    operators: Operators, point: Any, named: dict[str, Any], outs: tuple[Any, ...]
) -> Any:
    """Gradients, or theirs: of those that are wanted."""
    op, spec = operators.spec.op, operators.spec
    is_second = point is not op.entry_points["backward"]
    ddx = [named.pop(f"d{name}") for name in op.gradients if is_second]
    incoming = [named.pop(name, None) for name in spec.incoming]
    if len(incoming) < len(op.results) and isinstance(incoming[0], tuple):
        incoming = [*incoming[0]]
    saved = {name: named.pop(name, None) for name in op.saves}
    tensors = [*ddx, *incoming]
    if not {*named} <= {*operators.told} or not all(
        value is None or isinstance(value, torch.Tensor) for value in tensors
    ):
        return NotImplemented
    # The gradients of `backward` belong to `differentiated`, whatever they are called.
    every = [name.removeprefix("d") for name in point.gives] if is_second else op.differentiated
    given = SimpleNamespace(**{**point.defaults, **saved, **named})
    count = len(point.gives if is_second else op.outputs_of("backward", given))
    names = every[:count]
    skipped = {
        name
        for name, out in zip(names, outs, strict=False)
        if out is None and point.skips and any(other is not None for other in outs)
    }
    of = (*spec.incoming, *op.saves) if is_second else op.differentiated
    wanted = [
        name in names and name not in skipped and (is_second or _is_there(op, name, saved))
        for name in of
    ]
    run = operators.second if is_second else operators.backward
    found = iter(run(wanted, *tensors, *saved.values(), *operators.options(named)))
    by_name = {name: next(found) if wants else None for name, wants in zip(of, wanted, strict=True)}
    made = [by_name[name] for name in names]
    arrays = _written(outs, made, made)
    if arrays is None:
        return NotImplemented
    return arrays if len(arrays) > 1 else arrays[0]


def _is_there(op: Any, name: str, saved: Mapping[str, Any]) -> bool:
    """Whether the argument of a gradient is given: of one that may be None what is saved tells."""
    may_be_none = name in op.args and op.args[name].optional
    if not may_be_none and op.entry_points["call"].defaults.get(name, name) is not None:
        return True
    shared = (name, *(other for other, its in op.shares.items() if its == name))
    known = [saved[other] for other in shared if other in saved]
    return not known or any(value is not None for value in known)


def _written(
    outs: Sequence[Any], arrays: Sequence[Any], every: Sequence[Any]
) -> tuple[Any, ...] | None:
    """The arrays, in the outputs that are given; None where one of these is unlike its array."""
    pairs = [*zip(outs, every, strict=False)]
    for out, made in pairs:
        if out is None:
            continue
        if not isinstance(out, torch.Tensor) or (out.shape, out.dtype) != (made.shape, made.dtype):
            return None
    for out, made in pairs:
        if out is not None:
            out.copy_(made)
    return tuple(
        made if out is None else out
        for out, made in zip([*outs, *[None] * len(arrays)], arrays, strict=False)
    )
