"""Whether a GPU gives the CPU's bits: every activation and its derivative, every float32 input.

    python tools/gpu_bits.py [op ...] [--stride K] [--device cuda-torch]

The CPU's results for all 2^32 inputs are held to their bounds by `python -m fastact check`; where
the GPU's are the same bits, so are its own. float16 and bfloat16 run over all inputs, too, and may
differ by their last bit; float64 runs over random bits. The exit status is 1 for a larger distance.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fastact as fa

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import devices

CHUNK = 1 << 24
SAMPLES = 1 << 24  # of float64
# Units in the last place by which the two may differ. 16-bit results are rounded from a float32 of
# fewer instructions on a GPU.
ALLOWED = {"float16": 1, "bfloat16": 1, "float32": 0, "float64": 0}


def inputs(name: str, stride: int) -> Iterator[np.ndarray]:
    """Bit patterns, in pieces: all of them, each stride-th of float32, random ones of float64."""
    if name == "float64":
        yield np.random.default_rng(0).integers(0, 1 << 64, SAMPLES // stride, np.uint64)
        return
    unsigned = np.dtype(f"u{devices.DTYPES[name].itemsize}")
    every = stride if name == "float32" else 1
    end = 1 << 8 * unsigned.itemsize
    for first in range(0, end, CHUNK * every):
        yield np.arange(first, min(first + CHUNK * every, end), every, dtype=unsigned)


def distances(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Units in the last place between floats of one type; a NaN is as good as another.

    Examples
    --------
    >>> distances(np.float32([1, -0.0, np.nan, 0]), np.float32([1 + 2**-23, 0, -np.nan, 1e-45]))
    array([1., 1., 0., 1.])
    """
    bits = np.dtype(f"i{got.dtype.itemsize}")

    def ordered(x: np.ndarray) -> np.ndarray:
        i = x.view(bits)
        return np.where(i < 0, np.iinfo(bits).min - i - bits.type(1), i).astype(np.longdouble)

    apart = np.abs(ordered(got) - ordered(expected))
    return np.where(np.isnan(got) & np.isnan(expected), 0, apart).astype(np.float64)


def compare(
    call: Callable[..., Any], device: devices.Framework, name: str, stride: int
) -> tuple[int, int, float, Any]:
    """How many inputs there were and differ, by how much at most, and where."""
    count = differing = 0
    worst, where = 0.0, None
    for bits in inputs(name, stride):
        x = bits.view(devices.DTYPES[name])
        with np.errstate(all="ignore"):
            expected = call(x)
        got = device.numpy(call(device.of(x)))
        count += x.size
        if np.array_equal(got.view(bits.dtype), expected.view(bits.dtype)):
            continue
        apart = distances(got, expected)
        differing += int(np.count_nonzero(apart))
        if apart.max() > worst:
            worst, where = float(apart.max()), x[int(apart.argmax())]
    return count, differing, worst, where


def main() -> int:
    """Compare, print a line each; 1 if something is too far apart."""
    parser = argparse.ArgumentParser(description="Whether a GPU gives the CPU's bits.")
    known = {device.name: device for device in devices.DEVICES}
    activations = {op.name: op for op in fa.ops.values() if op.family == "activations"}
    parser.add_argument("ops", nargs="*", metavar="op", help=f"default: {', '.join(activations)}")
    parser.add_argument("--device", default="cuda-torch", help=f"here: {', '.join(known)}")
    parser.add_argument("--stride", type=int, default=1, metavar="K", help="each K-th float32")
    args = parser.parse_args()
    if args.device not in known:
        parser.error(f"no device {args.device}; here are {', '.join(known) or 'none'}")
    if unknown := set(args.ops) - set(activations):
        parser.error(f"unknown op {', '.join(unknown)}; known: {', '.join(activations)}")
    fine = True
    for op in (activations[name] for name in args.ops or activations):
        directions = {
            "forward": op,
            "derivative": lambda x, op=op: op.backward(1.0, x),
        }
        for name in devices.DTYPES:
            for direction, call in directions.items():
                started = time.perf_counter()
                count, differing, worst, where = compare(
                    call, known[args.device], name, args.stride
                )
                good = worst <= ALLOWED[name]
                fine &= good
                found = f"{differing:,} of {count:,} inputs differ"
                if differing:
                    found += f", by {worst:g} ULP at most, at {where!r}"
                seconds = time.perf_counter() - started
                verdict = "ok" if good else "TOO FAR"
                print(f"{op.name} {direction}, {name}: {found}; {verdict} ({seconds:.0f} s)")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
