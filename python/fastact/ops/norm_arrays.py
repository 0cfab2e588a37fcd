"""What every norm does with its arrays: which ones there are, which lie apart, which are made."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from .._cpu import View
from ..interop import validate
from ..interop.call import Call

WEIGHTS = ("weight", "bias")
STATISTICS = ("mean", "rstd")

# Of x's shape and dtype: an output of that shape may be one of them, and a number stand for one.
_OF_DATA = frozenset({"x", "residual", "dy", "dtotal"})
# What may be None.
_OPTIONAL = frozenset({*WEIGHTS, "running_mean", "running_var", "dtotal"})

Made = tuple[View | None, Any]  # an output's view, and what becomes the caller's array


def present(where: str, options: SimpleNamespace, names: Sequence[str]) -> dict[str, Any]:
    """The arrays of these names that are not None, once all are arrays as far as they must be."""
    arrays = {name: getattr(options, name) for name in names}
    for name, value in arrays.items():
        stands_for_one = name in _OF_DATA and name != "x"
        is_number = isinstance(value, bool | int | float)
        if (is_number and not stands_for_one) or (value is None and name not in _OPTIONAL):
            raise TypeError(f"{where}: {name} must be an array, got {validate.describe(value)}")
    return {name: value for name, value in arrays.items() if value is not None}


def apart(call: Call, outs: Mapping[str, View | None]) -> None:
    """No output shares memory with another one, or with an input that all of it is made of.

    `Call.output` has seen to the inputs of x's shape.
    """
    others = {n: v for n, v in call.views.items() if n in call.arrays and n not in _OF_DATA}
    for name, view in outs.items():
        if view is not None:
            validate.apart(call.where, name, view, others)
            others[name] = view


def gradients(call: Call, options: SimpleNamespace, weights: Sequence[str] = WEIGHTS) -> list[Made]:
    """Those of x and of the weights; none where there is no such input, or where it is skipped."""
    made: list[Made] = []
    for i, name in enumerate(("x", *weights)):
        out, is_there = options.out[i], name in call.views
        if out is not None and not is_there:
            raise ValueError(f"{call.where}: out[{i}] must be None, for there is no {name}")
        if is_there and options.wanted[i]:
            made.append(call.output(f"out[{i}]", out, name, in_place=i == 0))
        else:
            made.append((None, None))
    apart(call, {f"out[{i}]": view for i, (view, _) in enumerate(made)})
    return made


def results(call: Call, outs: Sequence[Any], made: Sequence[Made]) -> tuple[Any, ...]:
    """The caller's arrays; None for what was not made."""
    return tuple(
        None if view is None else call.result(out, new)
        for out, (view, new) in zip(outs, made, strict=True)
    )
