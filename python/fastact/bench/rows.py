"""What rows of all benchmarks have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..measure.peers import OURS, LeftOut


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


def first_line(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {str(error).strip()}".partition("\n")[0]


def asked(
    peers: Iterable[str], make: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What each peer makes, but None, and the reasons of those that can't.

    Peers fail in ways of their own; other rows are still wanted.
    """
    made, left_out = {}, {}
    for peer in peers:
        try:
            if (call := make(peer)) is not None:
                made[peer] = call
        except LeftOut as reason:
            left_out[peer] = str(reason)
        except Exception as error:
            left_out[peer] = first_line(error)
    return made, left_out


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
