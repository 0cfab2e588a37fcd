"""What rows of all benchmarks have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..measure.peers import OURS


@dataclass(frozen=True)
class Row:
    """Median seconds of one call, and median ratios to our time, by name of who did it.

    what : the case in words; of ops without axes, the size is all there is to it.
    """

    op: str
    direction: str
    dtype: str
    what: str
    rounds: int
    seconds: dict[str, float]
    ratios: dict[str, float]


def medians(samples: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """These of samples: seconds of a call in each round, by who did it."""
    ours = samples[OURS]
    return {
        "rounds": len(ours),
        "seconds": {name: median(values) for name, values in samples.items()},
        "ratios": {
            # Who was timed less often has been in the first rounds.
            name: median(their / our for their, our in zip(values, ours, strict=False))
            for name, values in samples.items()
        },
    }
