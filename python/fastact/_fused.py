"""The activation that a fused op was told: by its name, or as the op itself."""

from difflib import get_close_matches
from typing import Any

from . import _cpu
from ._op import Op, ops

IDENTITY = "identity"


def activation_op(where: str, activation: Any) -> Any:
    """The op that an activation's name or the op itself stands for; None for the identity."""
    if isinstance(activation, str):
        if activation == IDENTITY:
            return None
        op = ops.get(activation)
        if op is not None and op.family == "activations":
            return op
        allowed = [op.name for op in ops.values() if op.family == "activations"]
        near = get_close_matches(activation, [IDENTITY, *allowed], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(sorted(allowed))}"
        raise ValueError(
            f"{where}: activation must be 'identity' or the name of an activation, got "
            f"{activation!r}; {hint}"
        )
    if isinstance(activation, Op) and activation.family == "activations":
        return activation
    raise TypeError(
        f"{where}: activation must be a name or an activation of fastact, got {activation!r}"
    )


def native_activation(where: str, op: Any, values: list[Any]) -> tuple[int, tuple[float, ...]]:
    """What the native functions call an activation, and its parameters."""
    if op is None:
        return _cpu.ACTIVATIONS.index(IDENTITY), ()
    native: tuple[int, tuple[float, ...]] = op._native(where, values)
    return native
