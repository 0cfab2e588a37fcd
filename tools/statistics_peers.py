"""Means and variances of what is not NaN beside those of NumPy, bottleneck and numbagg.

    python tools/statistics_peers.py [--threads 2] [--megabytes 64]

Each cell is the least time of many interleaved rounds, in microseconds; the ratios are theirs over
ours. A peer that is not installed is left out. numbagg compiles before it is timed.
"""

from __future__ import annotations

import argparse
import importlib
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from time import perf_counter
from typing import Any

import numpy as np

import fastact as fa
from fastact.terminal import markdown_table

_PEERS = ("numpy", "bottleneck", "numbagg")
_ROUNDS = 15
_SECONDS = 0.02  # of a round of one call, at least


def _least(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of one call of each, interleaved."""
    many = {}
    for name, call in calls.items():
        call(), call(), call()
        begin = perf_counter()
        call()
        many[name] = max(1, min(int(_SECONDS / (perf_counter() - begin + 1e-9)), 2000))
    best = dict.fromkeys(calls, np.inf)
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            begin = perf_counter()
            for _ in range(many[name]):
                call()
            best[name] = min(best[name], (perf_counter() - begin) / many[name])
    return best


def _cases(megabytes: int) -> Iterator[tuple[str, tuple[int, ...], int]]:
    side = int((megabytes * 2**18) ** 0.5)
    yield "first", (side, side), 0
    yield "last", (side, side), 1
    yield "middle", (64, side * side // 64 // 256, 256), 1
    yield "1000", (1000,), 0


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=64)
    args = parser.parse_args()
    fa.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    modules = {}
    for name in _PEERS:
        try:
            modules[name] = importlib.import_module(name)
        except ImportError:
            print(f"{name} is left out: it is not installed")
    rows = []
    for op, dtype, gaps in product(("nanmean", "nanvar"), ("float32", "float64"), (0.0, 0.1)):
        for label, shape, axis in _cases(args.megabytes):
            x = np.random.default_rng(0).normal(size=shape).astype(dtype)
            x[np.random.default_rng(1).random(shape) < gaps] = np.nan
            calls: dict[str, Callable[[], Any]] = {"ours": partial(getattr(fa, op), x, axis)}
            for name, module in modules.items():
                calls[name] = partial(getattr(module, op), x, axis=axis)
            y = np.empty_like(x)
            calls["copy"] = partial(np.copyto, y, x)
            found = _least(calls)
            cells = [f"{found['ours'] * 1e6:.1f}"]
            cells += [f"{found[n] / found['ours']:.2f}" if n in found else "-" for n in _PEERS]
            rows.append(
                [op, dtype, f"{gaps:g}", label, *cells, f"{found['ours'] / found['copy']:.2f}"]
            )
            print(*rows[-1], flush=True)
    ratios = [*(f"{n} / ours" for n in _PEERS), "ours / copy"]
    header = ["op", "dtype", "NaN", "axis", "µs", *ratios]
    print(markdown_table(header, rows, 4))


if __name__ == "__main__":
    main()
