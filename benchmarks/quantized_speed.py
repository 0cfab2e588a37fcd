"""How long results in 8 bits take, beside the op's own: a row for each op that has them.

    python -m benchmarks.quantized_speed                      # all, at (4096, 4096)
    python -m benchmarks.quantized_speed rms_norm gelu --shape 512,768 --dtypes bfloat16 --threads 1

Both write into arrays that are there, in turns; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fastact.measure import cases
from fastact.measure.peers import OURS, dtype_named
from fastact.ops.engine.op import arrays_of
from fastact.ops.engine.quantized import FORMATS, Quantizes
from fastact.runtime.threads import get_num_threads

from .pages import Call, Section, Timed, compare, main, named_ops, table_of

_SCALES = ("row", 128, "tensor")


def calls(op: Any, shape: tuple[int, ...], dtype: str) -> dict[str, Call]:
    """Return the op's own call, and the calls with each type of codes and each kind of scales."""
    random = np.random.default_rng(0)
    x, dy = (random.standard_normal(shape, np.float32).astype(dtype_named(dtype)) for _ in range(2))
    named = cases.sample(op, x, dy)
    if "training" in named:
        channels = np.ones(shape[1], x.dtype)
        named |= {"training": False, **dict.fromkeys(op.written, channels)}
    own = op.bound("call", named)
    found = {OURS: partial(own, out=arrays_of(own()) if len(op.results) > 1 else own())}
    for codes, per in product(FORMATS, _SCALES):
        given = {**own.keywords, "dtype": codes, "per": per}
        call = partial(op.quantized, *own.args, **{**given, "out": None})
        found[f"{codes}, {per}"] = partial(call, out=tuple(map(np.asarray, call())))
    return found


def rows(args: argparse.Namespace) -> Iterator[Timed]:
    """Yield the times of each op, its own and those of codes."""
    for op, dtype in product(named_ops(args), args.dtypes):
        if isinstance(op, Quantizes):
            of_op = calls(op, args.shape, dtype)
            yield compare(of_op, args.seconds, args.threads, op.name, dtype)


def table(args: argparse.Namespace) -> Iterator[str]:
    """Yield the table."""
    yield table_of(rows(args), ("op", "type"), alone=True)


if __name__ == "__main__":
    options = {"shape": (4096, 4096), "dtypes": ("float32", "bfloat16"), "seconds": 1.0}
    section = Section("Results in 8 bits", "Beside the op's own", table)
    main("quantized_speed", __doc__, {"": section}, {**options, "threads": get_num_threads()})
