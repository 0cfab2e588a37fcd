"""Every op on a device against the CPU, over layouts, odd sizes and alignments of the base.

Values agree as the stated bounds have it; the bits are the same when a call is repeated and when
its arrays begin elsewhere in memory.
"""

import zlib
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from arrays import finite
from calls import OPS, backward, forward, parts
from conftest import assert_same_bits
from devices import KERNELS, Framework

# Less than a pack; odd rows and columns; wider than a warp's pack and a block's; tall.
SHAPES = [(2, 2), (3, 4), (7, 34), (3, 1030), (140, 6)]


def plain(a: np.ndarray) -> np.ndarray:
    return a.copy()


def transposed(a: np.ndarray) -> np.ndarray:
    return a.copy("F")


def reversed_(a: np.ndarray) -> np.ndarray:
    every = (slice(None, None, -1),) * a.ndim
    return a[every].copy()[every] if a.ndim else a


def stepped(a: np.ndarray) -> np.ndarray:
    held = np.zeros([2 * n for n in a.shape], a.dtype)
    made = held[(..., *(slice(1, None, 2),) * a.ndim)]
    made[...] = a
    return made


def padded(a: np.ndarray) -> np.ndarray:
    """Rows with something between them."""
    if a.ndim == 0:
        return a
    held = np.zeros((*a.shape[:-1], a.shape[-1] + 3), a.dtype)
    held[..., : a.shape[-1]] = a
    return held[..., : a.shape[-1]]


def repeated(a: np.ndarray) -> np.ndarray:
    """One row in place of all; what has one axis stays."""
    return np.broadcast_to(a[:1], a.shape) if a.ndim > 1 else a


def shifted(a: np.ndarray, by: int) -> np.ndarray:
    """Begins `by` elements behind a multiple of 64 bytes."""
    held = np.zeros(a.size + 128, a.dtype)
    start = -held.ctypes.data // a.itemsize % (64 // a.itemsize) + by
    made = held[start : start + a.size].reshape(a.shape)
    made[...] = a
    return made


# Of the activations, whose formulas test_devices.py and the fixtures of others go through, three.
SOME = [op for op in OPS if op.family != "activations" or op.name in ("mish", "leaky_relu", "gelu")]
LAYOUTS = [plain, transposed, reversed_, stepped, padded, repeated]


def moved(call: Any, change: Callable[[np.ndarray], Any]) -> Callable[..., Any]:
    """A partial call with its arrays changed."""

    def one(value: Any) -> Any:
        if isinstance(value, np.ndarray | np.generic):  # NumPy's arrays without axes are numbers
            return change(np.asarray(value))
        if isinstance(value, tuple) and any(isinstance(v, np.ndarray) for v in value):
            return tuple(map(one, value))
        return value

    args = tuple(map(one, call.args))
    keywords = {name: one(value) for name, value in call.keywords.items()}
    return lambda **named: call.func(*args, **keywords, **named)


def results(here: Framework | None, call: Callable[..., Any]) -> list[np.ndarray | None]:
    made = parts(call())
    return [None if a is None else np.asarray(a) if here is None else here.numpy(a) for a in made]


def cancelled(op: Any, call: Any) -> float:
    """The size of the terms whose small difference is a norm's gradient: |dy| rstd."""
    if op.family != "norms" or call.func != op.backward:
        return 0.0
    point = op.entry_points["backward"]
    named = dict(zip((*point.arrays, *point.defaults), call.args, strict=False)) | call.keywords
    dy, rstd = named["dy"], named["rstd"]
    return float(np.abs(dy.astype(float)).max() * np.abs(rstd.astype(float)).max())


def agree(found: list[Any], expected: list[Any], scale: float = 0.0) -> None:
    for one, two in zip(found, expected, strict=True):
        assert (one is None) == (two is None)
        if two is None:
            continue
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        # Two roundings to the dtype, and what cancels of numbers as large as the largest, in the
        # compute type: float32 but for float64.
        wide = two.astype(float)
        info = ml_dtypes.finfo(two.dtype)
        compute = 2.0**-53 if two.dtype == np.float64 else 2.0**-24
        size = np.abs(wide[np.isfinite(wide)]).max(initial=scale)
        np.testing.assert_allclose(
            one.astype(float),
            wide,
            rtol=2 * float(info.eps),
            atol=128 * compute * size + 2 * float(info.smallest_subnormal),
        )


@pytest.mark.parametrize("device", KERNELS, ids=lambda f: f.name)
@pytest.mark.parametrize("op", SOME, ids=lambda op: op.name)
def test_layouts(op: Any, device: Framework, dtype: Any) -> None:
    """Each layout with one of the shapes, by the op's name, so that all ops meet all of them."""
    for at, layout in enumerate(LAYOUTS):
        shape = SHAPES[(zlib.crc32(op.name.encode()) + at) % len(SHAPES)]
        x, dy = (finite(dtype, shape, seed) for seed in (at, at + 1))
        for direction in (forward, backward):
            call = direction(op, x, dy)
            on_cpu = results(None, moved(call, layout))
            there = moved(call, lambda a, layout=layout: device.of(layout(a)))
            found = results(device, there)
            agree(found, on_cpu, cancelled(op, call))
            for again, before in zip(results(device, there), found, strict=True):
                if before is not None:
                    assert_same_bits(again, before)


@pytest.mark.parametrize("device", KERNELS, ids=lambda f: f.name)
@pytest.mark.parametrize("op", SOME, ids=lambda op: op.name)
def test_alignments(op: Any, device: Framework, dtype: Any) -> None:
    """Arrays that all begin elsewhere, each by an amount of its own, and results that do."""
    shape = SHAPES[zlib.crc32(op.name.encode()) % len(SHAPES)]
    x, dy = (finite(dtype, shape, seed) for seed in (1, 2))
    for direction in (forward, backward):
        call = direction(op, x, dy)
        aligned = results(device, moved(call, lambda a: device.of(shifted(a, 0))))
        for first in (1, 2):
            count = iter(range(first, 100, 3))
            there = moved(call, lambda a, c=count: device.of(shifted(a, next(c) % 17)))
            out = tuple(
                None if a is None else device.of(shifted(np.zeros_like(a), next(count) % 17))
                for a in aligned
            )
            there(out=out if len(out) > 1 else out[0])
            for given, before in zip(out, aligned, strict=True):
                if before is not None:
                    assert_same_bits(device.numpy(given), before)
