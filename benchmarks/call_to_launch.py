"""What a call on a device costs the host, from the call to the launch, without a device.

    python -m benchmarks.call_to_launch [OP ...] [--dtypes float32] [--rounds 40]

The emulated device launches nothing here, so that what is left is the host's part: arguments,
keys, plans, checks, sizes. Beside the time stands what costs on a real device and next to nothing
here: launches, and allocations by the framework, of the call with ``out=``. Times are the least of
many rounds, in which all calls take turns. NumPy's column is the same call on the CPU, with what it
computes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from fastact.terminal import markdown_table

from .cuda import TINY, host_seconds, tiny
from .pages import Call, Section, main, named_ops
from .workloads import FAMILIES
from .workloads.work import Case, Family, InMemory, Work

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from devices import devices, to_emulated

emulated: Any = devices.emulate()
WARM_UP = 4  # seen, recorded, run, run
OUT, FRESH, NUMPY = "out=", "without out=", "NumPy, out="


def on_device(value: Any) -> Any:
    """The same with its arrays on the emulated device."""
    if isinstance(value, tuple):
        return tuple(map(on_device, value))
    return to_emulated(emulated.ExchangeArray)(value) if isinstance(value, np.ndarray) else value


def moved(family: Family) -> Family:
    """The family with its arrays on the emulated device, once NumPy has made them."""

    def prepared(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
        return {k: on_device(v) for k, v in family.prepared(case, arrays).items()}

    return replace(family, prepared=prepared)


def counted(call: Call) -> dict[str, int]:
    """What one call asks of CUDA and of the framework."""
    emulated.count_host_calls(True)
    call()
    found: dict[str, int] = emulated.host_calls()
    emulated.count_host_calls(False)
    return found


def measure(case: Case, rounds: int) -> tuple[dict[str, float], dict[str, int]]:
    """Microseconds of each way to call, and counts."""
    family = FAMILIES[case.op.family]
    there, here = Work(case, moved(family), InMemory()), Work(case, family, InMemory())
    calls = {OUT: there.ours, FRESH: there.fresh, NUMPY: here.ours}
    emulated.set_empty_launches(True)
    try:
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        samples = host_seconds(calls, rounds)
        asked = counted(there.ours)
    finally:
        emulated.set_empty_launches(False)
    return {name: 1e6 * min(values) for name, values in samples.items()}, asked


def table(args: argparse.Namespace) -> Iterator[str]:
    """Yield a line for each op and direction, and one for all activations, which are alike."""
    titles: dict[str, list[Any]] = {}
    for op, direction, dtype in product(named_ops(args), ("forward", "backward"), args.dtypes):
        if FAMILIES[op.family].on_gpu(op, direction, dtype, (TINY,)):
            of = "activations" if op.family == "activations" else op.name
            title = ", ".join([f"{of} {direction}", *([dtype] if len(args.dtypes) > 1 else [])])
            found = measure(tiny(op, direction, dtype), args.rounds)
            print(op.name, direction, dtype, *found, file=sys.stderr, flush=True)
            titles.setdefault(title, []).append(found)
    lines = []
    for title, rows in titles.items():
        out, fresh, numpy = (
            f"{median(took[way] for took, _ in rows):.2f}" for way in (OUT, FRESH, NUMPY)
        )
        launches, allocations = (str(rows[0][1].get(n, 0)) for n in ("launch", "allocate"))
        lines.append([title, out, fresh, launches, allocations, numpy])
    yield markdown_table(["call", OUT, FRESH, "launches", "allocations", NUMPY], lines)


if __name__ == "__main__":
    section = Section("Calls on a device", "From the call to the launch", table)
    main("call_to_launch", __doc__, {"": section}, {"dtypes": ("float32",), "rounds": 40})
