#!/usr/bin/env python
"""How long results in 8 bits take, beside the op's own: a row for each op that has them.

    python -m benchmarks.quantized_speed                      # all, at (4096, 4096)
    python -m benchmarks.quantized_speed rms_norm gelu --shape 512,768 --dtypes bfloat16 --threads 1

Both write into arrays that are there, in turns; a ratio is a median over pairs of neighbours. With
one thread the time is the processor's own.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import fastact as fa
from fastact.measure import cases
from fastact.ops.engine.op import arrays_of
from fastact.ops.engine.quantized import FORMATS, Quantizes

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def arguments(op: Any, shape: tuple[int, ...], dtype: str) -> partial[Any]:
    """A call of the op, of normal random numbers."""
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal(shape, np.float32).astype(DTYPES[dtype]) for _ in range(2))
    named = cases.sample(op, x, dy)
    if "training" in named:
        channels = np.ones(shape[1], x.dtype)
        named |= {"training": False, **dict.fromkeys(op.written, channels)}
    return op.bound("call", named)


def seconds(call: Callable[[], Any]) -> float:
    clock = time.thread_time if fa.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    call()
    return clock() - begin


def row(op: Any, shape: tuple[int, ...], dtype: str, repeats: int) -> str:
    """The op's own time, and ratios to it."""
    own = arguments(op, shape, dtype)
    own = partial(own, out=arrays_of(own()) if len(op.results) > 1 else own())
    found = []
    for codes in FORMATS:
        for per in ("row", 128, "tensor"):
            given = {"dtype": codes, "per": per}
            call = partial(op.quantized, *own.args, **{**own.keywords, **given, "out": None})
            call = partial(call, out=tuple(map(np.asarray, call())))
            pairs = [(seconds(own), seconds(call)) for _ in range(repeats)]
            times = [a for a, _ in pairs]
            found.append(statistics.median(b / a for a, b in pairs))
    cells = " | ".join(f"{ratio:.2f}" for ratio in found)
    return f"| {op.name}, {dtype} | {1e3 * min(times):.2f} | {cells} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("ops", nargs="*")
    parser.add_argument("--shape", default="4096,4096")
    parser.add_argument("--dtypes", default=",".join(DTYPES))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    if given.threads:
        fa.set_num_threads(given.threads)
    shape = tuple(map(int, given.shape.split(",")))
    print("| | ms | int8 a row | 128 | tensor | float8 a row | 128 | tensor |")
    print("|---|---|---|---|---|---|---|---|")
    for op in fa.ops.values():
        if isinstance(op, Quantizes) and (not given.ops or op.name in given.ops):
            for dtype in given.dtypes.split(","):
                print(row(op, shape, dtype, given.repeats), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
