"""What a call on a device costs the host, from the call to the launch, without a device.

    python -m benchmarks.call_to_launch [--dtype float32] [--rounds 40] [OP ...] > F.md

The emulated device launches nothing here, so that what is left is the host's part: arguments,
keys, plans, checks, sizes. Beside the time stands what costs on a real device and next to nothing
here: launches, allocations by the framework, and other calls of CUDA, of the call with ``out=``.
Times are the least of many rounds, in which all calls take turns. NumPy's column is the same call
on the CPU, with what it computes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fastact as fa
from fastact.terminal import markdown_table

from .workloads import FAMILIES
from .workloads.work import Case, Family, InMemory, Work

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from devices import DTYPES, devices, to_emulated

emulated: Any = devices.emulate()
ELEMENTS = 64  # nothing but the call counts
CALLS = 200  # of a sample
WARM_UP = 4  # seen, recorded, run, run

OUT, FRESH, NUMPY = "out=", "without out=", "NumPy, out="
LAUNCHES, ALLOCATIONS, OTHERS = "launches", "allocations", "other calls"


class OnHost(InMemory):
    """The benchmark's arrays, as NumPy's."""

    def random(self, shape: Sequence[int], dtype: str) -> Any:
        return super().random(shape, DTYPES[dtype])


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


def cases(names: Sequence[str], dtype: str) -> Iterator[Case]:
    """The smallest case of each op and direction that a GPU's benchmark has."""
    for op in fa.ops.values():
        if names and op.name not in names:
            continue
        for direction in ("forward", "backward"):
            found = FAMILIES[op.family].on_gpu(op, direction, dtype, (ELEMENTS,))
            if found:
                yield found[0]


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS


def counted(call: Callable[[], Any]) -> dict[str, int]:
    """What one call asks of CUDA and of the framework."""
    emulated.count_host_calls(True)
    call()
    found: dict[str, int] = emulated.host_calls()
    emulated.count_host_calls(False)
    return found


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Microseconds of each way to call, and counts."""
    family = FAMILIES[case.op.family]
    there, here = Work(case, moved(family), OnHost()), Work(case, family, OnHost())
    calls = {OUT: there.ours, FRESH: there.fresh, NUMPY: here.ours}
    emulated.set_empty_launches(True)
    try:
        for call in calls.values():
            for _ in range(WARM_UP):
                call()
        least = dict.fromkeys(calls, float("inf"))
        for number in range(rounds):
            for name in calls if number % 2 else reversed(calls):
                least[name] = min(least[name], seconds(calls[name]))
        asked = counted(there.ours)
    finally:
        emulated.set_empty_launches(False)
    launches, allocations = asked.pop("launch", 0), asked.pop("allocate", 0)
    return {
        **{name: 1e6 * value for name, value in least.items()},
        LAUNCHES: launches,
        ALLOCATIONS: allocations,
        OTHERS: asked,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ops", nargs="*", metavar="OP", help="names of ops; all of them without")
    parser.add_argument("--dtype", default="float32", choices=DTYPES)
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    gc.disable()
    rows = {}
    for case in cases(args.ops, args.dtype):
        name = f"{case.op.name} {case.direction}"
        rows[name] = measure(case, args.rounds)
        print(name, rows[name], file=sys.stderr, flush=True)
    print(table(rows))


def table(rows: dict[str, Any]) -> str:
    """A line for each op and direction, and one for all activations, in which they are alike."""
    titles: dict[str, list[str]] = {}
    for name in rows:
        op, direction = name.split()
        is_map = fa.ops[op].family == "activations"
        titles.setdefault(f"activations {direction}" if is_map else name, []).append(name)
    lines = []
    for title, names in titles.items():
        first = rows[names[0]]
        out, fresh, numpy = (
            f"{median(rows[name][way] for name in names):.2f}" for way in (OUT, FRESH, NUMPY)
        )
        lines.append([title, out, fresh, str(first[LAUNCHES]), str(first[ALLOCATIONS]), numpy])
    return markdown_table(["call", OUT, FRESH, LAUNCHES, ALLOCATIONS, NUMPY], lines)


if __name__ == "__main__":
    main()
