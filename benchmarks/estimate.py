"""How long a benchmark takes, before it is begun: so that a person can plan its parts.

A model with a few constants, of two cores of a server; an old or a busy machine takes longer. It
need not be right by more than a half.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from fastact.bench.turns import (
    CLOSE_ROUNDS,
    FEW_ROUNDS,
    HOPELESS,
    HOPELESS_SECONDS,
    batches_in_turn,
)
from fastact.measure.peers import COMPILED, JAX, MKL, NUMPY, ONNX, PARTIAL, TORCH
from fastact.terminal import table

from .workloads import FAMILIES
from .workloads.work import ITEM, Case

_BYTES_A_SECOND = 2e10  # of memory, through two threads
_CALL = 5e-6  # seconds of a call of next to no elements
_BATCH = 0.3e-3
_MAKES = 1e-9  # seconds for an element of an array to be made
_CLOSE = 0.15  # of the rows have a peer that is close

#: How many times our time a peer takes, about, and seconds that it takes to begin; more in 16 bits.
_TIMES = {NUMPY: 12.0, TORCH: 3.0, COMPILED: 2.0, ONNX: 3.0, JAX: 2.0}
_BEGINS = {COMPILED: 8.0, JAX: 0.08, ONNX: 0.02}
_NUMPY_IN_16_BITS, _NUMPY_SUMS = 60.0, 3.0
_FORWARD_ALONE = (NUMPY, ONNX, MKL)  # nearly


def seconds_of(case: Case, peers: Sequence[str], seconds: float) -> float:
    """About how many seconds a row takes."""
    if case.direction == "backward":
        peers = [peer for peer in peers if peer not in _FORWARD_ALONE]
    makers = FAMILIES[case.op.family].others
    peers = [peer for peer in peers if peer not in PARTIAL or peer in makers]
    ours = _CALL + case.accesses * case.size * ITEM[case.dtype] / _BYTES_A_SECOND
    calls = [ours] * 3 + [ours * _times(case, peer) for peer in peers]
    hopeless = max(HOPELESS * ours, HOPELESS_SECONDS)
    taken = sum(_BEGINS.get(peer, 0.0) for peer in peers)
    taken += case.accesses * case.size * _MAKES
    taken += sum(2 * call for call in calls)  # to begin with
    batches = [max(call, _BATCH) for call in calls if call <= hopeless]
    a_round = sum(batch * batches_in_turn(batch) for batch in batches)
    few = max(seconds, FEW_ROUNDS * a_round)
    close = CLOSE_ROUNDS * a_round / len(calls) * 2
    return taken + few + _CLOSE * close


def _times(case: Case, peer: str) -> float:
    if peer == NUMPY and not case.sums and ITEM[case.dtype] == 2:
        return _NUMPY_IN_16_BITS
    if peer == NUMPY and case.sums:
        return _NUMPY_SUMS
    return _TIMES.get(peer, 1.0)


def listing(
    tables: Iterable[Sequence[tuple[Case, int]]], peers: Sequence[str], seconds: float
) -> str:
    """A table of rows and minutes by family and type, and the sum."""
    rows: dict[tuple[str, str], int] = defaultdict(int)
    spent: dict[tuple[str, str], float] = defaultdict(float)
    for part in tables:
        for case, _ in part:
            name = case.op.family, case.dtype
            rows[name] += 1
            spent[name] += seconds_of(case, peers, seconds)
    lines = [[*name, str(rows[name]), f"{spent[name] / 60:.1f}"] for name in rows]
    lines.append(["all", "", str(sum(rows.values())), f"{sum(spent.values()) / 60:.1f}"])
    return table(["family", "type", "rows", "minutes, about"], lines, 2)
