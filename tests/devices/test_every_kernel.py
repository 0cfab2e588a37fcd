"""Every CUDA kernel once for each dtype, over tails, misalignment and strides, in little time.

For compute-sanitizer, under which the suite takes too long: tools/gpu_check.py runs it so. Arrays
end where their memory ends, if the framework allocates each on its own
(PYTORCH_NO_CUDA_MEMORY_CACHING=1 for torch). Results are compared with the CPU's, coarsely: other
tests do it to the bit, and so the emulated device has one op of each road here.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import calls
import numpy as np
import pytest
from devices import DEVICES, DTYPES, Framework

import fastact as fa
from fastact.measure.sum_axes import is_sum, reduces

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


def is_far(got: np.ndarray, exact: np.ndarray, allowed: Any) -> np.ndarray:
    """Where a result is not near enough. An infinity is near itself alone, a NaN to nothing."""
    with np.errstate(invalid="ignore"):
        near = np.isfinite(exact) & (np.abs(got - exact) <= allowed)
    return ~(near | (got == exact))


def faults(device: Framework, call: Any) -> Iterator[str]:
    """The faults of a call's results, or outputs, on the device."""

    def there(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(there, value))
        # NumPy's scalars, as the gradient of a loss, are its arrays of no axes.
        is_array = isinstance(value, np.ndarray | np.generic)
        return device.of(np.asarray(value)) if is_array else value

    named = {name: there(value) for name, value in call.keywords.items()}
    results = calls.parts(call.func(*map(there, call.args), **named))
    # Sums over rows are among the results, and saved statistics among the arguments: rstd of a row
    # of one element is above 300, by which its gradient's rounding grows.
    given = [a for a in (*call.args, *call.keywords.values()) if isinstance(a, np.ndarray)]
    wide = [np.abs(a.astype(np.float64)) for a in given if a.dtype.kind not in "bi"]
    sizes = [a.max(initial=0, where=np.isfinite(a)) for a in wide]
    largest = max(sizes, default=0.0)
    with np.errstate(all="ignore"):
        made = calls.parts(call())
    for i, (got, expected) in enumerate(zip(results, made, strict=True)):
        if expected is None:
            continue
        exact = np.asarray(expected, np.float64)
        size = np.abs(exact[np.isfinite(exact)]).max(initial=largest)
        allowed = 20 * CLOSE[expected.dtype.name] * (1 + size + largest)
        far = is_far(device.numpy(got).astype(np.float64), exact, allowed)
        if far.any():
            yield f"result {i}: {int(far.sum())} of {far.size} are wrong"


def calls_of(op: Any, dtype: Any) -> Iterator[tuple[str, Any]]:
    """Forward, backward, and of activations and sums backward that adds, with outputs."""
    if op.family == "activations":
        for name, dy, x, out in layouts(dtype):
            yield name, partial(op, x, out=out)
            for adds in (False, True):
                call = partial(op.backward, dy, x, out=out, accumulate=adds)
                yield f"backward, {name}, accumulate={adds}", call
    elif is_sum(op) and reduces(op):
        for name, x, axis in sums(dtype):
            of = np.sum(x, axis).shape
            yield name, partial(op, x, axis=axis, out=np.zeros(of, dtype))
            given = [values(of, dtype), x if "x" in op.saves else x.shape]
            for adds in (False, True):
                named = {"axis": axis, "out": values(x.shape, dtype), "accumulate": adds}
                call = partial(op.backward, *given, **named)
                yield f"backward, {name}, accumulate={adds}", call
    else:
        for name, x, dy in tables(dtype):
            yield name, calls.forward(op, x, dy)
            yield f"backward, {name}", calls.backward(op, x, dy)


#: One op of each road.
EMULATED = ("relu", "sum", "gru_reset")
RUNS = [
    pytest.param(device, dtype, op, id=f"{device.name}-{dtype}-{op.name}")
    for device in DEVICES
    for dtype in DTYPES
    for op in calls.OPS
    if "emulated" not in device.name or (op.name in EMULATED and dtype == "float32")
]


@pytest.mark.parametrize(("device", "dtype", "op"), RUNS)
def test_results_are_the_cpus_nearly(device: Framework, dtype: str, op: Any) -> None:
    made = calls_of(op, DTYPES[dtype])
    wrong = [f"{name}: {fault}" for name, call in made for fault in faults(device, call)]
    assert not wrong, "\n".join(wrong)


on_the_emulated_device = pytest.mark.parametrize(
    "device", [d for d in DEVICES if "emulated" in d.name], ids=lambda d: d.name
)


@on_the_emulated_device
def test_results_beyond_the_range(device: Framework) -> None:
    x, out = np.array([[300, 0], [300, 0]], np.float16), np.zeros(2, np.float16)

    def halved_here(a: Any, **named: Any) -> Any:
        return fa.sum_squares(a / 2 if isinstance(a, np.ndarray) else a, axis=0, **named)

    for named in ({}, {"out": out}):
        assert list(faults(device, partial(fa.sum_squares, x, axis=0, **named))) == []
        found = list(faults(device, partial(halved_here, x, **named)))
        assert found == ["result 0: 1 of 2 are wrong"]


@on_the_emulated_device
def test_a_wrong_op_is_told(device: Framework) -> None:
    x = np.ones((3, 4), np.float32)

    def doubled_here(a: Any) -> Any:
        return fa.relu(2 * a if isinstance(a, np.ndarray) else a)

    assert list(faults(device, partial(fa.relu, x))) == []
    found = list(faults(device, partial(doubled_here, 30 * x)))
    assert found == ["result 0: 12 of 12 are wrong"]
