"""What the benchmark's calls launch, and how a warp goes through each kernel.

Grids, blocks and shared memory come from the plans themselves: the emulated device notes what it is
asked to launch, and runs nothing.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from cuda_static_routes import Loop, Router, Step, Via

import fastact as fa
from fastact.bench.workloads import FAMILIES
from fastact.bench.workloads.work import ITEM, Case, Family, InMemory, Work

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
MEASURED = ROOT / "docs/results/gpu/h200.json"
LARGE = 2  # the emulated device that has an H200's shared memory
VECTOR, WARP = 16, 32


@dataclass(frozen=True)
class Launch:
    """One launch: the kernel's mangled name, its blocks, and dynamic shared memory of one."""

    symbol: str
    grid: int
    threads: int
    shared: int


class _OnHost(InMemory):
    def random(self, shape: Sequence[int], dtype: str) -> Any:
        from devices import DTYPES

        return np.zeros(shape, DTYPES[dtype])


def _moved(family: Family, device: Any) -> Family:
    """The family with arrays on the emulated device, which nobody fills."""

    def there(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(there, value))
        if not isinstance(value, np.ndarray):
            return value
        return device.ExchangeArray.empty(list(value.shape), value.dtype.name, LARGE)

    def prepared(case: Case, arrays: dict[str, Any]) -> dict[str, Any]:
        return {name: there(one) for name, one in family.prepared(case, arrays).items()}

    return replace(family, prepared=prepared)


def commit_measured() -> str:
    """The commit whose times the device measured."""
    return str(json.loads(MEASURED.read_text(encoding="utf-8"))["machine"]["commit"])


def calls(wanted: str = "") -> Iterator[tuple[Case, dict[str, Any], list[Launch]]]:
    """The benchmark's cases whose names have the words, what was measured, and the launches."""
    from devices import devices

    device = devices.emulate()
    device.set_empty_launches(True)
    device.count_host_calls(True)
    for row in json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]:
        op = fa.ops[row["op"]]
        family = FAMILIES[op.family]
        for case in family.on_gpu(op, row["direction"], row["dtype"], None):
            if case.label == row["what"] and wanted in case.name:
                work = Work(case, _moved(family, device), _OnHost())
                device.clear_launches()
                work.ours()
                seen = device.launches()
                yield (
                    case,
                    row,
                    [
                        Launch(
                            one["symbol"],
                            np.prod(one["grid"]),
                            np.prod(one["block"]),
                            one["shared"],
                        )
                        for one in seen
                    ],
                )
    device.set_empty_launches(False)


#: By the beginning of a kernel's title (tests/kernel_names.py): arrays as large as x that it reads
#: and writes. A kernel that is not here deals with parts, parameters or results.
MOVED = {
    "forward_rows, norm, chunks found": (1, 0),
    "forward_rows, without y": (1, 0),
    "forward_rows": (1, 1),
    "softmax_backward_rows": (2, 1),
    "lse_gradients": (1, 1),
    "norm_backward_rows_gated": (3, 2),
    "norm_backward_rows": (2, 1),
    "norm_long_sums, quick rows, gated": (3, 0),
    "norm_long_sums": (2, 0),
    "strip_moments": (1, 0),
    "strip_sums": (2, 0),
    "strip_forward": (1, 1),
    "strip_backward": (2, 1),
    "whole_forward": (1, 1),
    "whole_backward": (2, 1),
    "map_rows, gated rows forward": (2, 1),
    "map_rows, gated rows backward": (3, 2),
    "map_rows, bias rows backward": (2, 1),
    "map_rows": (1, 1),
    "map_contiguous": (1, 1),
    "map_vectors": (0, 1),
    "map_columns": (0, 1),
    "reduce_": (1, 0),
    "sum_columns": (1, 0),
    "moment_columns": (1, 0),
}
#: Kernels that read again what doesn't fit, or have loops that no count of accesses singles out.
UNKNOWN = ("forward_long_columns", "backward_long_columns", "norm_backward_ahead", "gates_")
#: Kernels without a loop over vectors: a thread has all of its own at once.
HELD = ("forward_rows", "softmax_backward_rows", "lse_gradients", "whole_", "map_contiguous")
#: Vectors of each array that a round of a loop has.
_ROUNDS = (16, 12, 8, 6, 4, 3, 2, 1)


def moved(case: Case, title: str, launches: Sequence[Launch]) -> tuple[int, int] | None:
    """Arrays as large as x that a kernel of a call reads and writes."""
    if title.startswith(UNKNOWN):
        raise ValueError(f"{title}: its loops are not known")
    found = next((both for start, both in MOVED.items() if title.startswith(start)), None)
    if found is None:
        return None
    reads, writes = found
    if title.startswith("map_contiguous") and "backward" in title:
        return 2, 1
    adds = case.op.name.startswith("add_")
    if adds and title.startswith("forward_rows"):
        return (1, 1) if "applied" in title else (reads + 1, writes + 1)
    if adds and title.startswith("norm_backward_rows"):
        return reads + 1, writes
    if title.startswith("strip_sums") and not any(
        "strip_backward" in launch.symbol for launch in launches
    ):
        return reads, 1
    if title.startswith(("map_vectors", "map_columns")) and len(launches) > 1:
        return 1, 1
    return found


def way(router: Router, title: str, case: Case, launch: Launch, both: tuple[int, int]) -> Step:
    """What a thread of a kernel does with its vectors."""
    reads, writes = both
    of_thread = case.size * ITEM[case.dtype] / VECTOR / (launch.grid * launch.threads)
    if title.startswith(HELD) and not title.startswith("map_rows"):
        vectors = max(1, round(of_thread + 0.49))
        if match := re.search(r"forward_rows\w*?Li(\d+)E", router.code.name):
            vectors = int(match[1])
        parameters = 0
        if title.startswith("forward_rows, norm") and title.endswith("quick rows"):
            parameters = 0 if "found" in title else 1 if "rms" in case.op.name else 2
        counts = {"LDG.128": (reads + parameters) * vectors, "STG.128": writes * vectors}
        lanes = case.span * ITEM[case.dtype] / VECTOR / vectors
        folded = title.startswith(("forward_rows", "softmax_backward")) and "applied" not in title
        return Via(counts, near=folded, diverges=True, folds=(29 if lanes > WARP else 17) * folded)
    if title.startswith("reduce_few"):
        divided = {"MUFU.RCP64H": 2} if "moments" in title else {}
        return Via({"LDG.128": 3, "STG.128": 1} | divided, diverges=True)
    ahead = 2 if title.startswith("norm_backward_rows") else 0
    for vectors in _ROUNDS:
        counts = {"LDG.128": reads * vectors, "STG.128": writes * vectors}
        if vectors > max(1, of_thread * 1.3) or not router.has_loop(counts):
            continue
        return Loop(max(1, round(of_thread / vectors)), counts, ahead)
    for vectors in {max(1, round(of_thread)), *_ROUNDS}:
        counts = {"LDG.128": reads * vectors, "STG.128": writes * vectors}
        if vectors <= max(1, of_thread * 1.3) and router.has_way(counts):
            return Via(counts, diverges=True)
    raise ValueError(f"{title}: no way over {reads} and {writes} vectors")
