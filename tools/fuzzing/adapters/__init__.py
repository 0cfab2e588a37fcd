"""What the fuzzer knows of each family: a class that makes arguments and tells what is right."""

from __future__ import annotations

from typing import Any

import fastact as fa

from . import activations, bias, gated, gates, norms, reductions, softmax, statistics
from .base import Adapter

FAMILIES: dict[str, Adapter] = {
    "activations": activations.Activations(),
    "bias": bias.Bias(),
    "gated": gated.Gated(),
    "reductions": reductions.Reductions(),
    "norms": norms.Norms(),
    "gates": gates.Gates(),
    "softmax": softmax.Softmax(),
    "statistics": statistics.Statistics(),
}


def of(op: Any) -> Adapter:
    """The adapter of an op."""
    return FAMILIES[op.family]


def ops(family: str = "all", name: str = "all") -> list[Any]:
    """The ops of a family, or the one of a name, in the registry's order."""
    found = [
        op for op in fa.ops.values() if family in ("all", op.family) and name in ("all", op.name)
    ]
    missing = {op.family for op in found} - set(FAMILIES)
    if missing:
        raise SystemExit(f"tools/fuzzing/adapters lacks the families {sorted(missing)}")
    return found
