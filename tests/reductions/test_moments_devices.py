"""Moments on devices: the CPU's bounds, in any layout; bits know no address."""

import numpy as np
import pytest
from conftest import assert_same_bits
from devices import KERNELS
from sums import case
from test_moments import LAYOUTS, close, draw
from test_moments_hard import mean_var

import fastact as fa

devices = pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
pytestmark = devices


# Besides the shapes of sums: a block of few rows, a row of one pack, a row of many chunks and
# columns of several, and data whose last pack or folded row is not whole.
MORE: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 1), (0,)),
    ((5, 2), (1,)),
    ((1, 300_001), (1,)),
    ((2, 40_000, 3), (1,)),
    ((2500, 129), (0,)),
    ((1001, 5), (0,)),
    ((2, 33, 7), (1,)),
]


@pytest.mark.parametrize(("shape", "axes"), MORE, ids=str)
def test_within_the_bounds(device, dtype, shape, axes):
    close(draw(dtype, shape), axes, 0, device)


@case
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "C"])
def test_layouts_within_the_bounds(device, shape, axes, layout):
    close(LAYOUTS[layout](draw(np.float32, shape)), axes, 1, device)


# --- entry points ---------------------------------------------------------------------------------


def test_out(device, dtype):
    x = draw(dtype, (4, 300, 70))
    of_cpu = fa.mean_var(x, 1)
    mean, var = mean_var(device, x, 1)
    eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}.get(dtype.name, 1e-14)
    for one, other in zip((mean, var), of_cpu, strict=True):
        np.testing.assert_allclose(one.astype(float), other.astype(float), rtol=eps)
    for layout in LAYOUTS.values():
        out = (device.of(np.zeros((4, 70), dtype)), device.of(layout(np.zeros((4, 70), dtype))))
        for _ in range(2):
            assert fa.mean_var(device.of(x), 1, out=out) == out
        assert_same_bits(device.numpy(out[0]), mean)
        assert_same_bits(device.numpy(out[1]), var)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axes", [(1,), (0, 2), (0, 1, 2)], ids=str)
def test_gradients_are_the_cpus(device, dtype, layout, axes):
    """Whose own are held to torch's autograd."""
    x = LAYOUTS[layout](draw(dtype, (7, 30, 20)))
    shape = fa.moments(x, axes).mean.shape
    gradients = [draw(dtype, shape, 0, seed) for seed in (1, 2)]
    expected = fa.mean_var.backward(tuple(gradients), x, axis=axes, correction=1).astype(float)
    given = tuple(map(device.of, gradients))
    dx = fa.mean_var.backward(given, device.of(x), axis=axes, correction=1)
    eps = {2: 2.0**-7, 4: 2.0**-22, 8: 2.0**-42}[x.itemsize]
    scale = float(np.abs(expected).max())
    found = device.numpy(dx).astype(float)
    np.testing.assert_allclose(found, expected, rtol=eps, atol=eps * scale)
    fa.mean_var.backward(given, device.of(x), axis=axes, correction=1, out=dx, accumulate=True)
    np.testing.assert_allclose(device.numpy(dx).astype(float), 2 * found, rtol=2 * eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gradient_over_misaligned_rows_in_place(device, dtype):
    """Vectors are read by windows there, which reach into what other threads write."""
    x = draw(dtype, (289,))[1:]
    gradients = tuple(np.ones((), dtype) for _ in range(2))
    expected = fa.mean_var.backward(gradients, x)
    held = device.of(x)
    fa.mean_var.backward(tuple(map(device.of, gradients)), held, out=held)
    np.testing.assert_allclose(device.numpy(held), expected, rtol=4 * np.finfo(dtype).eps)


def test_gradient_of_few_weighted_terms_in_place(device):
    """Threads beyond the last result read nothing: another thread writes there."""
    x = draw(np.float32, (4,))
    dy, weights = np.ones((), np.float32), np.arange(1, 5, dtype=np.float32)
    expected = fa.var.backward(dy, x, weights=weights)
    held = device.of(x)
    fa.var.backward(device.of(dy), held, weights=device.of(weights), out=held)
    np.testing.assert_allclose(device.numpy(held), expected, rtol=1e-6)


def test_gradient_of_few_touching_terms_in_place(device):
    """Neighbours' terms are stored by a warp together, when all were read."""
    x, where = np.asfortranarray(draw(np.float16, (5, 2))), np.ones((5, 2), bool)
    dy = np.ones(2, np.float16)
    expected = fa.nanvar.backward(dy, x, axis=0, where=where)
    held = device.of(x)
    fa.nanvar.backward(device.of(dy), held, axis=0, where=device.of(where), out=held)
    np.testing.assert_allclose(device.numpy(held), expected, rtol=2e-3)
