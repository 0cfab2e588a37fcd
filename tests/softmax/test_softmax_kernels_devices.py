"""The kernels of softmax on devices, through the native functions: every layout, dtype and mask."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from devices import DTYPES, EMULATED, KERNELS, Framework, to_emulated
from scipy.special import logsumexp

from fastact.interop import devices, frameworks
from fastact.interop.frameworks import Place

on_kernels = pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
KINDS = ("softmax", "log_softmax", "logsumexp")
each_kind = pytest.mark.parametrize("kind", range(3), ids=KINDS)

# What the kernels tell apart, counted in packs of 16 bytes (8, 4 or 2 elements): rows of one
# element, of 1 to 32 lanes, of a block of 256 and of 512 threads; columns of one lane and several;
# rows of several axes, and of axes that do not merge.
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5,), (0,)),
    ((7, 1), (1,)),
    ((67, 3), (1,)),
    ((70, 8), (1,)),
    ((37, 264), (1,)),
    ((2, 3, 1031), (2,)),
    ((2, 4100), (1,)),
    ((1, 9001), (1,)),
    ((6, 5, 7), (0,)),
    ((3, 10, 5, 3), (1,)),
    ((2, 19, 16), (1,)),
    ((700, 3), (0,)),
    ((3, 33, 40), (1,)),
    ((4, 6, 5), (1, 2)),
    ((4, 6, 5), (0, 2)),
    ((300, 1, 2), (1,)),
]
each_shape = pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)


class Native:
    """The native functions of a device, called with NumPy's arrays."""

    def __init__(self, device: Framework) -> None:
        self.device = device
        array = device.of(np.zeros(1, np.float32))
        framework = frameworks.framework_of(array)
        assert framework is not None
        self.framework = framework
        self.place = Place(framework.device(array), 0)
        self.module: Any = devices.native("test", self.place.device)
        self.held: list[Any] = []

    def view(self, array: Any) -> Any:
        self.held.append(array)
        return self.framework.view("test", "an array", array, self.place)

    def of(self, array: np.ndarray | None) -> Any:
        return None if array is None else self.view(self.device.of(array))

    def out(self, array: np.ndarray) -> tuple[Any, Any]:
        made = self.device.of(array)
        return made, self.view(made)

    def scratch(self, nbytes: int) -> Any:
        return self.framework.scratch(nbytes, self.device.of(np.zeros(1, np.float32)), self.place)[0] if nbytes else None


def compute(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def kept(shape: Sequence[int], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def forward(device, kind, x, axes, mask=None, scale=1.0, out=None):
    """y and lse. out: what y is written to, x itself if it is x."""
    n = Native(device)
    held_x = device.of(x)
    view = n.view(held_x)
    shape = kept(x.shape, axes) if kind == 2 else x.shape
    if out is x:
        y, y_view = held_x, view
    else:
        y, y_view = n.out(np.full(shape, 7, x.dtype) if out is None else out)
    lse, lse_view = n.out(np.full(kept(x.shape, axes), 7, compute(x.dtype)))
    scratch = n.scratch(n.module.softmax_workspace(view, axes))
    n.module.softmax_forward(
        kind, view, n.of(mask), y_view, lse_view, axes, scale, scratch, 0
    )
    return device.numpy(y), device.numpy(lse)


def oracle(kind, x, axes, mask=None, scale=1.0):
    z = scale * x.astype(np.longdouble)
    if mask is not None:
        z = np.where(mask, z, -np.inf) if mask.dtype == bool else z + mask.astype(np.longdouble)
    with np.errstate(all="ignore"):
        m = z.max(axes, keepdims=True)
        s = np.exp(z - np.where(np.isfinite(m), m, 0)).sum(axes, keepdims=True)
        lse = logsumexp(z, axes, keepdims=True) if np.isfinite(z).all() else m + np.log(s)
        lse = np.where(np.isnan(z).any(axes, keepdims=True), np.nan, np.where(np.isinf(m), m, lse))
        y = (np.exp(z - lse), z - lse, lse)[kind]
    if mask is not None and kind < 2:
        nothing = np.broadcast_to(m == -np.inf, y.shape)
        y = np.where(nothing, (0.0, -np.inf)[kind], y)
    return y


def assert_near(got, exact, dtype, ulp=4.0, absolute=0.0):
    wide = np.longdouble if dtype == np.float64 else np.float64
    eps = float(ml_dtypes.finfo(dtype).eps)
    tiny = float(ml_dtypes.finfo(dtype).smallest_subnormal)
    got, exact = np.asarray(got).astype(wide), np.asarray(exact).astype(wide)
    assert got.shape == exact.shape
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    if eps > 1e-5:
        ulp = 1.0
    with np.errstate(all="ignore"):
        off = np.abs(got - exact) / (np.abs(exact) * eps + tiny + absolute * eps)
    off = np.where((got == exact) | np.isnan(got), 0, off)
    assert off.size == 0 or off.max() <= ulp, (float(off.max()), np.unravel_index(off.argmax(), off.shape))


def sample(shape, dtype, seed=0, spread=3.0):
    return (np.random.default_rng(seed).normal(size=shape) * spread).astype(dtype)


def moved(a: np.ndarray, by: int) -> np.ndarray:
    """The same values, `by` elements past a multiple of 16 bytes."""
    held = np.zeros(a.size + 8, a.dtype)[by : by + a.size].reshape(a.shape)
    held[...] = a
    return held


def layouts(x: np.ndarray) -> list[np.ndarray]:
    """The same values: misaligned, backwards, in Fortran's order, with gaps, and one expanded."""
    gaps = np.zeros((*x.shape[:-1], 3 * x.shape[-1]), x.dtype)[..., ::3]
    gaps[...] = x
    return [
        moved(x, 1),
        np.ascontiguousarray(np.flip(x)).view(x.dtype)[tuple(slice(None, None, -1) for _ in x.shape)],
        np.asfortranarray(x),
        gaps,
    ]


@each_shape
@each_kind
@each_dtype
@on_kernels
def test_values(shape, axes, kind, dtype, device):
    x = sample(shape, dtype)
    y, lse = forward(device, kind, x, axes)
    assert_near(y, oracle(kind, x, axes), dtype)
    assert_near(lse, oracle(2, x, axes), compute(dtype), absolute=1)
