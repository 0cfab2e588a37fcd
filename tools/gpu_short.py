"""Every CUDA kernel once for each dtype, over tails, misalignment and strides, in little time.

    python tools/gpu_short.py [--device cuda-torch] [--dtypes float32,bfloat16] [OP ...]

For compute-sanitizer, under which a test suite takes too long. Arrays end where their memory ends,
if the framework allocates each on its own (PYTORCH_NO_CUDA_MEMORY_CACHING=1 for torch). Results are
compared with the CPU's, coarsely: the test suite does it to the bit. The exit status is 1 if one is
wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fastact as fa
from fastact.check.expected.reductions import term_of
from fastact.measure.sum_axes import is_over_any, is_sum

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import calls
import devices

# Of the true value for maps, of the sum of magnitudes for sums.
CLOSE = {"float16": 2e-3, "bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}


def values(shape: tuple[int, ...], dtype: Any, misses: int = 0) -> np.ndarray:
    """Random numbers in C order, whose first misses a multiple of 64 bytes by so many elements."""
    size = int(np.prod(shape))
    memory = np.empty(size + 64 + misses, dtype)
    first = -memory.__array_interface__["data"][0] % 64 // memory.itemsize + misses
    made = memory[first : first + size]
    made[...] = np.random.default_rng(size).normal(size=size).astype(dtype)
    return made.reshape(shape)


def layouts(dtype: Any) -> Iterator[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
    """A name and three arrays of one shape: a gradient, an input and an output."""
    pack = 16 // np.dtype(dtype).itemsize
    tile = 4 * 256 * pack  # elements of a block
    for size in (1, pack - 1, pack, 1003, tile, tile + pack + 3):
        if size:
            yield (f"{size} elements", *(values((size,), dtype) for _ in range(3)))
    for misses in ((1, 1, 1), (0, 1, 0), (1, 0, 0), (0, 0, 1), (1, 0, pack - 1)):
        yield (f"misaligned by {misses}", *(values((1003,), dtype, m) for m in misses))
    yield ("a scalar", *(values((), dtype) for _ in range(3)))
    yield (
        "transposed",
        values((37, 53), dtype),
        values((53, 37), dtype).T,
        values((37, 53), dtype),
    )
    padded = [values((21, 10 * pack), dtype)[:, : 7 * pack] for _ in range(3)]
    yield ("rows with gaps", *padded)
    yield ("every second", *(values((501,), dtype)[::2] for _ in range(3)))
    one = np.broadcast_to(values((1,), dtype), (9, 4 * pack))
    yield ("an expanded gradient", one, values(one.shape, dtype), values(one.shape, dtype))
    column = np.broadcast_to(values((9, 1), dtype), (9, 4 * pack))
    yield ("a repeated column", column, values(one.shape, dtype), values(one.shape, dtype))


def sums(dtype: Any) -> Iterator[tuple[str, np.ndarray, tuple[int, ...] | None]]:
    """A name, an array, and the axes to add along."""
    pack = 16 // np.dtype(dtype).itemsize
    chunk = 4096 * pack  # elements of a row for one block
    cases: list[tuple[tuple[int, ...], tuple[tuple[int, ...] | None, ...]]] = [
        ((1,), (None,)),
        ((5, 7), ((0,), (1,), None)),
        ((40, 1024), ((0,), (1,), None)),
        ((3, 2 * chunk + 5), ((0,), (1,))),
        ((3001, 3), ((0,), (1,))),
        ((9001, 8), ((0,),)),
        ((2, 3, 17, 19), ((0, 2, 3), (1,))),
        ((2, 17, 19, 3), ((0, 1, 2),)),
    ]
    for shape, all_axes in cases:
        for axes in all_axes:
            for misses in (0, 1):
                yield (
                    f"{shape}, {axes}, misaligned by {misses}",
                    values(shape, dtype, misses),
                    axes,
                )
    yield ("transposed", values((53, 41), dtype).T, (1,))
    yield ("every second", values((40, 90), dtype)[:, ::2], (1,))
    yield ("rows with gaps", values((300, 90), dtype)[:, :60], (0,))
    yield ("expanded", np.broadcast_to(values((40,), dtype), (30, 40)), (0,))


def tables(dtype: Any) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """A name and two arrays of two axes, an input and a gradient, for all other ops.

    Columns are even, for groups of channels.
    """
    pack = 16 // np.dtype(dtype).itemsize
    # Less than a pack; tails; whole packs; rows of one block, and of several (norms.cu: kSplit);
    # rows for several blocks.
    shapes = [(2, 2), (7, 6 * pack + 2), (40, 1024), (3, 4096), (2, 16384 * pack + 6), (3001, 6)]
    for shape in shapes:
        yield (f"{shape}", values(shape, dtype), values(shape, dtype))
    shape = (9, 10 * pack)
    yield ("misaligned", values(shape, dtype, 1), values(shape, dtype, 3))
    yield ("transposed", values(shape[::-1], dtype).T, values(shape, dtype))
    yield ("rows with gaps", values((9, 12 * pack), dtype)[:, : 10 * pack], values(shape, dtype))
    yield ("an expanded gradient", values(shape, dtype), np.broadcast_to(dtype.type(0.5), shape))


class Checker:
    """Runs calls on the device and on the CPU, compares, and counts."""

    def __init__(self, device: devices.Framework) -> None:
        self.device = device
        self.calls = 0
        self.wrong: list[str] = []

    def __call__(
        self, what: str, call: Any, inputs: list[Any], out: np.ndarray, scale: Any, **named: Any
    ) -> None:
        """The call in both places; `scale` is what its error is relative to."""
        of, back = self.device.of, self.device.numpy
        there = of(out)
        call(*(of(x) if isinstance(x, np.ndarray) else x for x in inputs), out=there, **named)
        here = out.copy()
        with np.errstate(all="ignore"):
            call(*inputs, out=here, **named)
        got, expected = back(there).astype(np.float64), here.astype(np.float64)
        scale = np.abs(expected) if scale is None else scale
        far = np.abs(got - expected) > CLOSE[out.dtype.name] * (scale + 1e-3)
        self.calls += 1
        if far.any() or np.isnan(got).any():
            self.wrong.append(f"{what}, {out.dtype.name}: {int(far.sum())} of {far.size} are wrong")

    def parts(self, what: str, call: partial[Any]) -> None:
        """All results of a call that brings its arguments."""
        of, back = self.device.of, self.device.numpy

        def there(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(there, value))
            # NumPy's scalars, as the gradient of a loss, are its arrays of no axes.
            return of(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value

        named = {name: there(value) for name, value in call.keywords.items()}
        results = calls.parts(call.func(*map(there, call.args), **named))
        self.calls += 1
        # Sums over rows are among the results, and saved statistics among the arguments: rstd of a
        # row of one element is above 300, by which its gradient's rounding grows.
        given = [a for a in (*call.args, *call.keywords.values()) if isinstance(a, np.ndarray)]
        sizes = [np.abs(a.astype(np.float64)).max() for a in given if a.dtype.kind not in "bi"]
        largest = max(sizes, default=0.0)
        for i, (got, expected) in enumerate(zip(results, calls.parts(call()), strict=True)):
            if expected is None:
                continue
            exact = np.asarray(expected, np.float64)
            allowed = 20 * CLOSE[expected.dtype.name] * (1 + np.abs(exact).max() + largest)
            far = ~(np.abs(back(got).astype(np.float64) - exact) <= allowed)
            if far.any():
                self.wrong.append(f"{what}, result {i}: {int(far.sum())} of {far.size} are wrong")


def check_activations(op: Any, dtype: Any, check: Checker) -> None:
    """Forward, backward, and backward that adds."""
    for name, dy, x, out in layouts(dtype):
        check(f"{op.name}, {name}", op, [x], out, None)
        scale = np.abs(dy.astype(np.float64)) + np.abs(out.astype(np.float64))
        for accumulate in (False, True):
            what = f"{op.name}.backward, {name}, accumulate={accumulate}"
            check(what, op.backward, [dy, x], out, scale, accumulate=accumulate)


def check_sum(op: Any, dtype: Any, check: Checker) -> None:
    """A sum, and its gradient."""
    term, takes_x = term_of(op), "x" in op.saves
    for name, x, axis in sums(dtype):
        magnitude = np.abs(term(x.astype(np.float64))).sum(axis)
        out = np.zeros(magnitude.shape, dtype)
        check(f"{op.name}, {name}", op, [x], out, magnitude, axis=axis)
        dy = values(magnitude.shape, dtype)
        for accumulate in (False, True):
            check(
                f"{op.name}.backward, {name}, accumulate={accumulate}",
                *(op.backward, [dy, x if takes_x else x.shape], values(x.shape, dtype), 40.0),
                axis=axis,
                accumulate=accumulate,
            )


def check_rest(op: Any, dtype: Any, check: Checker) -> None:
    """Forward and backward with all that the op takes."""
    for name, x, dy in tables(dtype):
        check.parts(f"{op.name}, {name}, {dtype.name}", calls.forward(op, x, dy))
        check.parts(f"{op.name}.backward, {name}, {dtype.name}", calls.backward(op, x, dy))


def main() -> int:
    """Run everything; 1 if something is wrong."""
    parser = argparse.ArgumentParser(description="Every CUDA kernel once, in little time.")
    known = {device.name: device for device in devices.DEVICES}
    parser.add_argument("--device", default="cuda-torch", help=f"here: {', '.join(known)}")
    parser.add_argument("--dtypes", default=",".join(devices.DTYPES), help="default: %(default)s")
    parser.add_argument("ops", nargs="*", help="their names; all of them by default")
    args = parser.parse_args()
    if args.device not in known:
        parser.error(f"no device {args.device}; here are {', '.join(known) or 'none'}")
    dtypes = args.dtypes.split(",")
    for what, given, there in (("dtype", dtypes, devices.DTYPES), ("op", args.ops, fa.ops)):
        if missing := [name for name in given if name not in there]:
            parser.error(f"no {what} {', '.join(missing)}; here are {', '.join(there)}")
    check = Checker(known[args.device])
    for dtype in map(devices.DTYPES.__getitem__, dtypes):
        for op in map(fa.ops.__getitem__, args.ops or fa.ops):
            if op.family == "activations":
                check_activations(op, dtype, check)
            elif is_sum(op) and is_over_any(op):
                check_sum(op, dtype, check)
            else:
                check_rest(op, dtype, check)
    print(f"{args.device}: {check.calls} calls, {len(check.wrong)} wrong")
    print(*check.wrong, sep="\n")
    return 1 if check.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
