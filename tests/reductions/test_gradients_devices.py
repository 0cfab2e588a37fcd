"""Gradients of sums, moments and statistics on devices: the CPU's, however arrays lie."""

import numpy as np
import pytest
from arrangements import padded, shifted
from conftest import assert_same_bits
from devices import KERNELS

import fastact as fa

OPS = [op for op in fa.ops.values() if op.family in ("reductions", "statistics")]

# A result repeats along vectors, along whole rows, within a vector, and lies along the innermost
# axis: of rows that are vectors, of some that several make one, with rows left over, and between
# two axes. Each has more rows than a thread takes, and an end that is no whole vector. Then rows
# and columns of so few terms that a thread has all of them, also more than a block takes; and rows
# that a warp, a block and a block of more vectors a thread hold.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((9, 64), (1,)),
    ((7, 37), (1,)),
    ((301, 3), (1,)),
    ((67, 1, 2), (2,)),
    ((9, 64), (0,)),
    ((301, 3), (0,)),
    ((3, 301), (0,)),
    ((5, 6, 24), (1,)),
    ((5, 6, 7), (1,)),
    ((5, 6, 24), (0, 2)),
    ((5, 6, 7), (0, 2)),
    ((4, 3, 5, 2), (0, 2)),
    ((1003,), (0,)),
    ((2100, 3), (1,)),
    ((1030, 4), (1,)),
    ((3, 1032), (0,)),
    ((2, 8, 24), (1,)),
    ((5, 1028), (1,)),
    ((2, 8192), (1,)),
    ((3, 4, 512), (2,)),
]


def gradient(op, place, dtype, shape, axes, view=lambda x: x, out=None, **given):
    """Of a call of the op on a place's arrays, which `view` lays out."""
    draw = np.random.default_rng(0)
    x = draw.normal(3, 1, shape).astype(dtype)
    if getattr(op, "skips", False):
        missing = draw.random(shape) < 0.2
        missing[tuple(slice(0, 1 if i in axes else n) for i, n in enumerate(shape))] = False
        x[missing] = np.nan
    kept = tuple(1 if i in axes else n for i, n in enumerate(shape))
    dy = [draw.normal(size=kept).astype(dtype) for _ in op.results]
    held = place(view(x))
    _, saved = op.forward(held, axis=axes, keepdims=True)
    dys = tuple(map(place, dy))
    named = {"axis": axes, "keepdims": True, **given}
    if op is fa.average:  # which has a gradient of weights too
        outs = None if out is None else (out, None)
        return op.backward(dys[0], *saved, out=outs, **named)[0]
    return op.backward(dys if len(dys) > 1 else dys[0], *saved, out=out, **named)


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@pytest.mark.parametrize("op", OPS, ids=str)
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_gradients_are_the_cpus(op, device, dtype, shape, axes):
    expected = gradient(op, np.asarray, dtype, shape, axes).astype(float)
    # Some roundings of each factor: 6 u of the op's bound, of two terms, on either side.
    eps = {2: 2.0**-7, 4: 2.0**-20, 8: 2.0**-42}[np.dtype(dtype).itemsize]
    scale = float(np.abs(expected).max())

    def close(found, times=1.0):
        found = device.numpy(found).astype(float)
        np.testing.assert_allclose(found, times * expected, rtol=2 * eps, atol=eps * scale)

    first = gradient(op, device.of, dtype, shape, axes)
    close(first)
    # Misaligned, and with gaps, by which moments of short rows may be added up in another order.
    assert_same_bits(
        device.numpy(gradient(op, device.of, dtype, shape, axes, shifted)), device.numpy(first)
    )
    close(gradient(op, device.of, dtype, shape, axes, padded))
    for view in (shifted, padded):
        out = device.of(view(np.zeros(shape, dtype)))
        gradient(op, device.of, dtype, shape, axes, out=out)
        assert_same_bits(device.numpy(out), device.numpy(first))
        gradient(op, device.of, dtype, shape, axes, out=out, accumulate=True)
        close(out, 2.0)
