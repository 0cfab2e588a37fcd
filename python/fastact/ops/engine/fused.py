"""The activation behind a fused op, given by name or as the op itself."""

from collections.abc import Mapping
from difflib import get_close_matches
from types import SimpleNamespace
from typing import Any

from ... import _cpu
from ...interop.foreign import describe
from .entry import Entry, with_parameters
from .op import Op, aliases, ops

IDENTITY = "identity"
_IDENTITY = _cpu.ACTIVATIONS.index(IDENTITY)


def activations() -> list[Any]:
    """List every activation, in the registry's order."""
    return [op for op in ops.values() if op.family == "activations"]


def activation_op(where: str, activation: Any) -> Any:
    """Find the op of an activation, given by name or as an op; None is the identity."""
    if isinstance(activation, str):
        if activation == IDENTITY:
            return None
        op = ops.get(activation) or aliases.get(activation)
        if op is not None and op.family == "activations":
            return op
        allowed = [name for name, op in {**ops, **aliases}.items() if op.family == "activations"]
        near = get_close_matches(activation, [IDENTITY, *allowed], 1)
        hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(sorted(allowed))}"
        raise ValueError(
            f"{where}: activation must be 'identity' or the name of an activation, got "
            f"{describe(activation)}; {hint}"
        )
    if isinstance(activation, Op) and activation.family == "activations":
        return activation
    raise TypeError(
        f"{where}: activation must be a name or an activation of fastact, got "
        f"{describe(activation)}"
    )


def bind(
    entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, SimpleNamespace]:
    """Return the activation's op (None: the identity) and the arguments of a call.

    They include `which` and `parameters`, by which kernels know it, unless the entry point takes no
    activation. Its parameters are keyword arguments, too.
    """
    if not entry.is_fused:
        return None, entry.bind(args, kwargs)
    op = activation_op(entry.where, entry.option("activation", args, kwargs))
    options = (entry if op is None else with_parameters(entry, op)).bind(args, kwargs)
    options.which, options.parameters = (
        (_IDENTITY, ()) if op is None else op.native(entry.where, options)
    )
    return op, options
