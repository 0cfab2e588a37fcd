"""Entry points by their operators, while a mode, a tracer or a profiler looks at each operation.

They are raw: nothing is recorded for a gradient. What an operator lacks (`accumulate`, a stream, a
number in the place of a gradient) the entry point computes itself, where no tracer would keep its
values (`interop/call.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..ops.engine import fused
from .dispatch import OPERATORS, Operators


def entered(op: Any, entry: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return a call of an entry point by its operator; NotImplemented: it takes what that lacks."""
    operators, point = OPERATORS[op.name], op.entry_points[entry]
    run = {"backward": operators.backward, "backward.backward": operators.second}.get(entry)
    if run is None and entry != "forward":
        return NotImplemented
    _, options = fused.bind(point, tuple(args), kwargs)
    if options.stream or getattr(options, "accumulate", False):
        return NotImplemented
    with torch.no_grad():
        if run is None:
            return _forward(operators, vars(options))
        return _backward(operators, run, point, options)


def _forward(operators: Operators, given: Mapping[str, Any]) -> Any:
    op = operators.spec.op
    named = {name: given[name] for name in operators.takes if name in given}
    if not op.has_operator(given):
        return NotImplemented
    named = operators.promoted(named)
    made = operators.forward(*operators.values(named))
    arrays = _written(given["out"], made[: len(op.results)], made)
    if arrays is None:
        return NotImplemented
    known = {**operators.defaults, **named, **dict(zip(op.results, arrays, strict=True))}
    known |= dict(zip(op.models(named)[1], made[len(arrays) :], strict=True))
    return op.result_of(arrays, known), op.saved(known)


def _backward(operators: Operators, run: Any, point: Any, options: Any) -> Any:
    """Gradients, or theirs: of those that are wanted."""
    op, spec, given = operators.spec.op, operators.spec, vars(options)
    is_second = run is operators.second
    ddx = [given[f"d{name}"] for name in op.gradients if is_second]
    incoming = [given[name] for name in spec.incoming]
    if len(incoming) < len(op.results) and isinstance(incoming[0], tuple):
        incoming = [*incoming[0]]
    saved = {name: given[name] for name in op.saves}
    tensors, told = [*ddx, *incoming], {n: given[n] for n in operators.told if n in given}
    others = point.defaults.keys() - {*told, *saved, *spec.incoming, "out"}
    if any(given[n] is not point.defaults[n] for n in others) or not all(
        value is None or isinstance(value, torch.Tensor) for value in tensors
    ):
        return NotImplemented
    # The gradients of `backward` belong to `differentiated`, whatever they are called.
    of = (*spec.incoming, *op.saves) if is_second else op.differentiated
    every = [n.removeprefix("d") for n in point.gives] if is_second else op.differentiated
    names = every[: len(every if is_second else op.outputs_of("backward", options))]
    asked = {n for n, wanted in zip(names, options.wanted, strict=False) if wanted}
    wanted = [n in asked and (is_second or _is_there(op, n, saved)) for n in of]
    found = iter(run(wanted, *tensors, *saved.values(), *operators.values(told, operators.told)))
    by_name = {name: next(found) if wants else None for name, wants in zip(of, wanted, strict=True)}
    made = [by_name[name] for name in names]
    arrays = _written(options.out, made, made)
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
    pairs = [(out, made) for out, made in zip(outs, every, strict=False) if out is not None]
    for out, made in pairs:
        if not isinstance(out, torch.Tensor) or (out.shape, out.dtype) != (made.shape, made.dtype):
            return None
    for out, made in pairs:
        out.copy_(made)
    return tuple(
        made if out is None else out
        for out, made in zip([*outs, *[None] * len(arrays)], arrays, strict=False)
    )
