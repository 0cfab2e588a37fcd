"""The kernels of softmax on devices, through the native functions: every layout, dtype and mask."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from devices import DTYPES, EMULATED, KERNELS, Framework, to_emulated
from native import told_to_norms

import fastact as fa
from fastact import _cpu
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
        on = framework.device(array)
        self.place = Place(on, framework.stream(on, array))
        devices.native("test", on)  # which makes it known to native calls
        self.held: list[Any] = []

    def view(self, array: Any) -> Any:
        self.held.append(array)
        return self.framework.view("test", "an array", array, self.place)

    def of(self, array: np.ndarray | None) -> Any:
        return None if array is None else self.view(self.device.of(array))

    def out(self, array: np.ndarray) -> tuple[Any, Any]:
        made = self.device.of(array)
        return made, self.view(made)

    def run(self, name: str, **arguments: Any) -> None:
        call = _cpu.native_call(name, arguments)
        nbytes, array = call.workspace_size(), self.device.of(np.zeros(1, np.float32))
        scratch = self.framework.scratch(nbytes, array, self.place)[0] if nbytes else None
        call.run(scratch, 0)


def compute(dtype: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def kept(shape: Sequence[int], axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def forward(device, kind, x, axes, mask=None, scale=1.0, out=None):
    """y, and of logsumexp lse. out: what y is written to, x itself if it is x."""
    n = Native(device)
    held_x = device.of(x)
    view = n.view(held_x)
    shape = kept(x.shape, axes) if kind == 2 else x.shape
    if out is x:
        y, y_view = held_x, view
    else:
        y, y_view = n.out(np.full(shape, 7, x.dtype) if out is None else out)
    given = {"x": view, "axes": axes, "mask": n.of(mask), "kind": kind, "scale": scale}
    given["softcap"] = 0.0
    if kind != 2:
        n.run("softmax_forward", **given, y=y_view)
        return device.numpy(y), None
    lse, lse_view = n.out(np.full(kept(x.shape, axes), 7, compute(x.dtype)))
    n.run("softmax_forward", **given, number=y_view, lse=lse_view)
    return device.numpy(y), device.numpy(lse)


def oracle(kind, x, axes, mask=None, scale=1.0):
    z = scale * x.astype(np.longdouble)
    if mask is not None:
        z = np.where(mask, z, -np.inf) if mask.dtype == bool else z + mask.astype(np.longdouble)
    with np.errstate(all="ignore"):
        m = z.max(axes, keepdims=True)
        d = z - np.where(m == -np.inf, 0 if mask is not None else m, m)
        is_top = z == m
        rest = np.where(is_top & np.isfinite(m), 0, np.exp(d)).sum(axes, keepdims=True)
        rest += is_top.sum(axes, keepdims=True) - 1
        lse = np.where(np.isinf(m), m, m + np.log1p(rest))
        y = (np.exp(d) / (1 + rest), d - np.log1p(rest), lse)[kind]
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
    assert off.size == 0 or off.max() <= ulp, (
        float(off.max()),
        np.unravel_index(off.argmax(), off.shape),
    )


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
        np.ascontiguousarray(np.flip(x)).view(x.dtype)[
            tuple(slice(None, None, -1) for _ in x.shape)
        ],
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
    if kind == 2:
        assert_near(lse, oracle(2, x, axes), compute(dtype), absolute=1)


# The chunks are of packs: float64 has them with the fewest elements, the others take seconds.
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, marks=pytest.mark.thorough if d != np.float64 else ())
        for d in DTYPES.values()
    ],
    ids=str,
)
@on_kernels
def test_rows_of_several_blocks(dtype, device):
    """From 8192 packs of 16 bytes on: the last chunk is one element, or nearly whole."""
    size = 8192 * 16 // dtype.itemsize
    for more in (1, 4096 * 16 // dtype.itemsize - 1):
        x = sample((2, size + more), dtype)
        x[1, 5], x[0, -1] = 90, 60  # the largest in the first chunk, and in the last
        x[0, :4097] = -np.inf  # a chunk, or a part of one, of nothing
        mask = sample((1, size + more), dtype, 3)
        for kind, given in ((0, None), (1, mask), (2, None)):
            y, lse = forward(device, kind, x, (1,), given)
            far = 0 if given is None else 64
            assert_near(y, oracle(kind, x, (1,), given), dtype, 4 + far)
            if kind == 2:
                assert_near(lse, oracle(2, x, (1,)), compute(dtype), 2)


@each_kind
@on_kernels
def test_any_layout(kind, device):
    for dtype in (DTYPES["bfloat16"], DTYPES["float32"]):
        for shape, axes in SHAPES:
            x = sample(shape, dtype)
            if x.size > 3000:
                continue
            exact = oracle(kind, x, axes)
            for laid in (*layouts(x), np.broadcast_to(x[:1], x.shape)):
                exact = oracle(kind, laid, axes)
                y, _ = forward(device, kind, laid, axes)
                assert_near(y, exact, dtype)
            if kind < 2:
                for laid in layouts(np.zeros(shape, dtype)):
                    y, _ = forward(device, kind, x, axes, out=laid)
                    assert_near(y, oracle(kind, x, axes), dtype)


def masks(shape, axes, dtype):
    """Of booleans and of numbers, whole and broadcast; one leaves a row without anything."""
    rng = np.random.default_rng(5)
    whole = rng.random(shape) < 0.7
    whole[tuple(slice(None) if i in axes else 0 for i in range(len(shape)))] = False
    first = rng.random((1, *shape[1:])) < 0.6
    last = rng.random((1,) * (len(shape) - 1) + shape[-1:]) < 0.8
    added = np.where(whole, sample(shape, np.float64, 6), -np.inf)
    yield from (whole, first, last, np.broadcast_to(last, shape), np.asfortranarray(whole))
    yield added.astype(dtype)
    yield added.astype(compute(dtype))[..., ::-1]
    yield last * np.ones(1, compute(dtype))


@pytest.mark.parametrize(("shape", "axes"), [s for s in SHAPES if np.prod(s[0]) < 2500], ids=str)
@each_kind
@each_dtype
@on_kernels
def test_masks(shape, axes, kind, dtype, device):
    x = sample(shape, dtype)
    for mask in masks(shape, axes, dtype):
        for scale in (1.0, -0.5):
            exact = oracle(kind, x, axes, mask, scale)
            y, lse = forward(device, kind, x, axes, mask, scale)
            assert_near(y, exact, dtype, 40, 6 * (kind > 0))
            if kind == 2:
                assert_near(lse, oracle(2, x, axes, mask, scale), compute(dtype), 4, 6)


@pytest.mark.parametrize(("shape", "axes"), [((12, 40), (1,)), ((40, 12), (0,))], ids=str)
@each_kind
@each_dtype
@on_kernels
def test_what_is_not_finite_stays_in_its_row(shape, axes, kind, dtype, device):
    """NaN, infinities, nothing but -inf, and numbers whose difference overflows."""
    x = sample(shape, dtype)
    rows = x if axes == (1,) else x.T
    largest = float(ml_dtypes.finfo(dtype).max)
    rows[1, 3], rows[2, 5], rows[3, 7] = np.nan, np.inf, -np.inf
    rows[4] = -np.inf
    rows[5, ::2], rows[5, 1::2] = largest, -largest
    rows[6, 4], rows[6, 5] = np.inf, np.nan
    rows[7] = -largest
    y, lse = forward(device, kind, x, axes)
    exact = oracle(kind, x, axes)
    with np.errstate(all="ignore"):
        exact = exact.astype(dtype)  # what overflows
    assert_near(y, exact, dtype)
    if kind == 2:
        assert_near(lse, oracle(2, x, axes), compute(dtype), 2, 1)


@pytest.mark.parametrize(("shape", "axes"), [((4, 1000), (1,)), ((1000, 4), (0,))], ids=str)
@pytest.mark.parametrize("name", ["float32", "float64"])
@on_kernels
def test_hard_rows(shape, axes, name, device):
    """Far below the maximum, far from zero, one far above all, and a row that rises."""
    dtype = DTYPES[name]
    x = sample(shape, dtype, spread=30)
    rows = x if axes == (1,) else x.T
    rows[1] += 5000
    rows[2] = -80
    rows[2, 17] = 0
    rows[3] = np.linspace(0, 1e-3, 1000)
    for kind in range(3):
        y, _ = forward(device, kind, x, axes)
        assert_near(y, oracle(kind, x, axes), dtype)


# Columns that a block has as a whole: at least 64 blocks, of 64 or 128 bytes of an element, and
# more elements than a chunk has; of 4-byte elements the last round of two is a single one.
LONG = 257


def long_columns(
    dtype: np.dtype, less: int = 0, spread: float = 3.0, strip: int = 128
) -> np.ndarray:
    return sample((LONG, 64 * strip // dtype.itemsize - less), dtype, spread=spread)


@pytest.mark.parametrize("strip", [64, 128])
@pytest.mark.parametrize("less", [0, 3], ids=["whole", "cut"])
@each_kind
@each_dtype
@on_kernels
def test_long_columns(less, strip, kind, dtype, device):
    """Those that are near and far from zero, that rise and fall, and that are not finite."""
    for spread, scale in ((3.0, 1.0), (30.0, -2.0), (3000.0, 1.0)):
        x = long_columns(dtype, less, spread, strip)
        x[:, 0], x[:, 1] = np.linspace(-50, 50, LONG), np.linspace(50, -50, LONG)
        x[:, 2], x[3, 2] = -80, 0
        x[:, 3], x[:, 4], x[:200, 5] = 1, -np.inf, -np.inf
        x[5, 6], x[LONG - 1, 7] = 90, 90
        x[7, 8], x[8, 9], x[9, 10] = np.nan, np.inf, -np.inf
        x[:, 11] = np.linspace(1900, 2200, LONG)  # the first of them move, and the last ones do not
        y, lse = forward(device, kind, x, (0,), scale=scale)
        assert_near(y, oracle(kind, x, (0,), scale=scale), dtype)
        if kind == 2:
            assert_near(lse, oracle(2, x, (0,), scale=scale), compute(dtype), absolute=1)
        elif spread == 3:
            in_place, _ = forward(device, kind, x, (0,), scale=scale, out=x)
            np.testing.assert_array_equal(in_place.astype(float), y.astype(float))


@pytest.mark.parametrize("name", ["float32", "float16"])
@on_kernels
def test_long_columns_of_far_scores(name, device):
    x = long_columns(DTYPES[name], spread=1e3)
    y, _ = forward(device, 0, x, (0,), scale=1e34)
    assert_near(y, oracle(0, x, (0,), scale=1e34), DTYPES[name])


@pytest.mark.parametrize("kind", [0, 1], ids=KINDS[:2])
@on_kernels
def test_in_place(kind, device):
    for dtype in (DTYPES["float32"], DTYPES["float16"]):
        for shape, axes in SHAPES:
            for by in (0, 1):
                x = moved(sample(shape, dtype), by)
                expected, _ = forward(device, kind, x, axes)
                y, _ = forward(device, kind, x, axes, out=x)
                np.testing.assert_array_equal(y, expected)


# --- backward -------------------------------------------------------------------------------------


def backward(device, kind, dy, y, axes, scale=1.0, out=None):
    """dx. out: what it is added to, or dy or y itself."""
    n = Native(device)
    held = [device.of(a) for a in (dy, y)]
    views = [n.view(a) for a in held]
    accumulate = out is not None and out is not dy and out is not y
    if out is dy or out is y:
        dx, view = held[out is y], views[out is y]
    else:
        dx, view = n.out(np.full(y.shape, 7, y.dtype) if out is None else out)
    n.run(
        *("softmax_backward",),
        **{"y": views[1], "axes": axes, "dy": views[0], "dx": view, "kind": kind},
        **{"scale": scale, "softcap": 0.0, "accumulate": accumulate},
    )
    return device.numpy(dx)


def gradient(kind, dy, y, axes, scale=1.0):
    dy, y = dy.astype(np.longdouble), y.astype(np.longdouble)
    if kind == 0:
        return scale * y * (dy - (dy * y).sum(axes, keepdims=True))
    dx = scale * (dy - np.exp(y) * dy.sum(axes, keepdims=True))
    return np.where(y == -np.inf, 0, dx)


def assert_close(got, exact, dtype, terms):
    """Within a few units of the largest term of the sums."""
    eps = float(ml_dtypes.finfo(dtype).eps)
    size = float(np.abs(terms).max(initial=0))
    exact = np.asarray(exact).astype(np.float64)
    beyond = np.abs(exact) > float(ml_dtypes.finfo(dtype).max)  # a sum of losses in float16
    exact = np.where(beyond, np.copysign(np.inf, exact), exact)
    np.testing.assert_allclose(np.asarray(got).astype(np.float64), exact, 6 * eps, 12 * eps * size)


@each_shape
@pytest.mark.parametrize("kind", [0, 1], ids=KINDS[:2])
@each_dtype
@on_kernels
def test_gradients(shape, axes, kind, dtype, device):
    y = np.asarray(oracle(kind, sample(shape, dtype), axes)).astype(dtype)
    dy = sample(shape, dtype, 1, 1)
    exact = gradient(kind, dy, y, axes, 0.5)
    terms = gradient(kind, np.abs(dy), y, axes, 0.5)
    terms = np.concatenate([terms.ravel(), exact.ravel()])
    assert_close(backward(device, kind, dy, y, axes, 0.5), exact, dtype, terms)
    plain = backward(device, kind, dy, y, axes, 0.5)
    for out in (dy, y):
        np.testing.assert_array_equal(backward(device, kind, dy, y, axes, 0.5, out), plain)
    held = sample(shape, dtype, 2, 1)
    added = backward(device, kind, dy, y, axes, 0.5, held.copy())
    assert_close(added, exact + held.astype(np.longdouble), dtype, np.append(terms, 3))
    one = np.broadcast_to(np.ones((), dtype), shape)  # what autograd hands over for a sum
    assert_close(backward(device, kind, one, y, axes), gradient(kind, one, y, axes), dtype, 1)
    if y.size < 3000:
        for laid, other in zip(layouts(dy), reversed(layouts(y)), strict=True):
            assert_close(backward(device, kind, laid, other, axes, 0.5), exact, dtype, terms)


@pytest.mark.parametrize("less", [0, 3], ids=["whole", "cut"])
@pytest.mark.parametrize("kind", [0, 1], ids=KINDS[:2])
@each_dtype
@on_kernels
def test_gradients_of_long_columns(less, kind, dtype, device):
    x = long_columns(dtype, less)
    y = np.asarray(oracle(kind, x, (0,))).astype(dtype)
    y[5, 3] = (0, -np.inf)[kind]
    dy = sample(y.shape, dtype, 1, 1)
    exact = gradient(kind, dy, y, (0,), 0.5)
    terms = np.append(gradient(kind, np.abs(dy), y, (0,), 0.5), np.abs(exact))
    plain = backward(device, kind, dy, y, (0,), 0.5)
    assert_close(plain, exact, dtype, terms)
    held = sample(y.shape, dtype, 2, 1)
    added = backward(device, kind, dy, y, (0,), 0.5, held.copy())
    assert_close(added, exact + held.astype(np.longdouble), dtype, np.append(terms, 3))
    if kind == 0:  # dx is 0 wherever y is 0, whatever dy is
        dy[5, 3] = np.inf
        np.testing.assert_array_equal(backward(device, kind, dy, y, (0,), 0.5), plain)


@on_kernels
def test_gradients_of_rows_of_several_blocks(device):
    dtype = DTYPES["float64"]
    for kind in (0, 1):
        y = np.asarray(oracle(kind, sample((2, 2 * 8192 + 3), dtype), (1,))).astype(dtype)
        dy = sample(y.shape, dtype, 1, 1)
        exact = gradient(kind, dy, y, (1,))
        assert_close(backward(device, kind, dy, y, (1,)), exact, dtype, exact)


def logsumexp_backward(device, dy, x, mask, lse, axes, scale, out=None):
    n = Native(device)
    dx, view = n.out(np.full(x.shape, 7, x.dtype) if out is None else out)
    n.run(
        "logsumexp_backward",
        **{"x": n.of(x), "axes": axes, "mask": n.of(mask), "dy": n.of(dy), "lse": n.of(lse)},
        **{"dx": view, "scale": scale, "accumulate": out is not None},
    )
    return device.numpy(dx)


@each_shape
@each_dtype
@on_kernels
def test_gradients_of_logsumexp(shape, axes, dtype, device):
    x = sample(shape, dtype)
    dy = sample(kept(shape, axes), dtype, 1, 1)
    for mask in (None, *masks(shape, axes, dtype)):
        if mask is not None and x.size > 2500:
            continue
        lse = np.asarray(oracle(2, x, axes, mask, 0.5)).astype(compute(dtype))
        exact = 0.5 * dy.astype(np.longdouble) * oracle(0, x, axes, mask, 0.5)
        dx = logsumexp_backward(device, dy, x, mask, lse, axes, 0.5)
        assert_close(dx, exact, dtype, exact)
        held = sample(shape, dtype, 2, 1)
        dx = logsumexp_backward(device, dy, x, mask, lse, axes, 0.5, held.copy())
        assert_close(dx, exact + held.astype(np.longdouble), dtype, 3)


# --- cross_entropy --------------------------------------------------------------------------------


def of_loss(n, logits, target, axis, weight, ignore=-100, smoothing=0.0):
    """What both directions of cross_entropy take."""
    others = tuple(i for i in range(logits.ndim) if i != axis)
    return {
        **{
            "logits": logits,
            "axes": (axis,),
            "ignore_index": ignore,
            "label_smoothing": smoothing,
            "z_loss": 0.0,
        },
        "probabilities" if target.dtype.kind != "i" else "target": n.of(target),
        "weight": None if weight is None else n.of(weight).with_axes(others),
    }


def cross_entropy_backward(n, out, options, dloss, lse, divisor, accumulate=False):
    dloss = dloss.reshape((1,) * lse.ndim) if dloss.ndim == 0 else dloss
    n.run(
        "cross_entropy_backward",
        **{**options, "dloss": n.of(dloss), "lse": n.of(lse), "divisor": n.of(divisor)},
        **{"dlogits": out, "accumulate": accumulate},
    )


def cross_entropy(
    device, logits, target, axis, weight=None, ignore=-100, smoothing=0.0, reduction=1
):
    """(loss or losses), lse, divisor."""
    n = Native(device)
    view = n.of(logits)
    rows = kept(logits.shape, (axis,))
    lse, lse_view = n.out(np.full(rows, 7, compute(logits.dtype)))
    losses, losses_view = n.out(np.full(rows if reduction == 0 else (), 7, logits.dtype))
    divisor, divisor_view = n.out(np.full((), 7.0))
    outs = {"loss": losses_view, "divisor": divisor_view} if reduction else {"losses": losses_view}
    n.run(
        "cross_entropy_forward",
        **of_loss(n, view, target, axis, weight, ignore, smoothing),
        **{"lse": lse_view, **outs, "reduction": reduction},
    )
    return device.numpy(losses), device.numpy(lse), device.numpy(divisor)


def shares(logits, target, axis, weight, ignore, smoothing):
    """Of each class in the loss of its row, and what the row counts for in the mean."""
    classes = logits.shape[axis]
    along = [1] * logits.ndim
    along[axis] = classes
    w = np.ones(along) if weight is None else weight.astype(np.longdouble).reshape(along)
    if target.dtype.kind != "i":
        p = target.astype(np.longdouble)
        return (p * (1 - smoothing) + smoothing / classes) * w, np.ones(kept(logits.shape, (axis,)))
    index = np.arange(classes).reshape(along)
    hit = index == target
    counts = np.where(target == ignore, 0.0, (hit * w).sum(axis, keepdims=True))
    share = (hit * (1 - smoothing) + smoothing / classes) * w
    share = np.where(target == ignore, 0, share)
    outside = (target != ignore) & ((target < 0) | (target >= classes))
    return np.where(outside, np.nan, share), np.where(outside, np.nan, counts)


LOSSES = [
    ((9, 10), 1),
    ((37, 5), 1),
    ((3, 2100), 1),
    ((5, 7, 9), 1),
    ((2, 21, 16), 1),
    ((6, 40), 0),
    ((257, 1028), 0),
]


@pytest.mark.parametrize(("shape", "axis"), LOSSES, ids=str)
@pytest.mark.parametrize("reduction", range(3))
@pytest.mark.parametrize("of", ["int64", "int32", "probabilities"])
@each_dtype
@on_kernels
def test_losses(shape, axis, reduction, of, dtype, device):
    rng = np.random.default_rng(8)
    logits = sample(shape, dtype)
    rows, classes = kept(shape, (axis,)), shape[axis]
    index = rng.integers(0, classes, rows)
    index.flat[::5] = -100
    target = index.astype(of) if of != "probabilities" else rng.dirichlet(np.ones(4), shape)[..., 0]
    if of == "probabilities":
        target = target.astype(dtype)
    exact_lse, p = oracle(2, logits, (axis,)), oracle(0, logits, (axis,))
    for weight, smoothing in ((None, 0.0), (rng.random(classes), 0.0), (rng.random(classes), 0.2)):
        w = None if weight is None else weight.astype(compute(dtype))
        options = (axis, w, -100, smoothing)
        share, counts = shares(logits, target, *options)
        losses = (share * (exact_lse - logits.astype(np.longdouble))).sum(axis, keepdims=True)
        for laid in (logits, moved(logits, 1), np.flip(np.ascontiguousarray(np.flip(logits)))):
            got, lse, divisor = cross_entropy(device, laid, target, *options, reduction)
            exact = losses
            assert_near(lse, exact_lse, compute(dtype), 4, 1)
            if reduction:
                by = counts.sum() if reduction == 1 else 1
                assert_near(divisor, by, np.dtype(np.float64), 1e9 if dtype != np.float64 else 64)
                exact = exact.sum() / by
            assert_close(got, exact, dtype, np.abs(np.asarray(exact)))
            if reduction == 2:
                continue
            dloss = np.ones((), dtype) if reduction else sample(rows, dtype, 9, 1)
            factor = dloss.astype(np.longdouble) / (float(divisor) if reduction else 1)
            dexact = factor * (p * share.sum(axis, keepdims=True) - share)
            ends = (dexact, np.abs(factor * share), np.abs(factor) * np.ones_like(p))
            terms = np.concatenate([np.ravel(e) for e in ends])
            for accumulate in (False, True):
                n = Native(device)
                view = n.of(laid)
                held = sample(shape, dtype, 4, 1)
                out, out_view = n.out(held.copy())
                cross_entropy_backward(
                    *(n, out_view, of_loss(n, view, target, *options), dloss, lse),
                    *(divisor if reduction else None, accumulate),
                )
                more = held.astype(np.longdouble) * accumulate
                assert_close(
                    device.numpy(out), dexact + more, dtype, np.append(terms, 3 * accumulate)
                )


@on_kernels
def test_gradient_of_a_loss_in_the_logits(device):
    dtype = DTYPES["float32"]
    for shape, axis in LOSSES:
        logits = sample(shape, dtype)
        target = np.random.default_rng(8).integers(0, shape[axis], kept(shape, (axis,)))
        _, lse, divisor = cross_entropy(device, logits, target, axis)
        found = []
        for in_place in (False, True):
            n = Native(device)
            held = device.of(moved(logits, 1))
            view = n.view(held)
            out, out_view = (held, view) if in_place else n.out(np.empty_like(logits))
            options = of_loss(n, view, target, axis, None)
            cross_entropy_backward(n, out_view, options, np.ones((), dtype), lse, divisor)
            found.append(device.numpy(out))
        np.testing.assert_array_equal(*found)


@on_kernels
def test_indices_that_name_no_class(device):
    """NaN in their rows alone."""
    logits = sample((6, 10), DTYPES["float32"])
    target = np.array([[3], [10], [-1], [-100], [2**40], [9]])
    losses, lse, _ = cross_entropy(device, logits, target, 1, reduction=0)
    np.testing.assert_array_equal(np.isnan(losses[:, 0]), [False, True, True, False, True, False])
    assert losses[3, 0] == 0
    n = Native(device)
    out, view = n.out(np.zeros_like(logits))
    options = of_loss(n, n.of(logits), target, 1, None)
    cross_entropy_backward(n, view, options, np.ones((6, 1), np.float32), lse, None)
    dlogits = device.numpy(out)
    np.testing.assert_array_equal(np.isnan(dlogits).any(1), np.isnan(losses[:, 0]))
    assert (dlogits[3] == 0).all()


@on_kernels
def test_losses_of_rows_of_several_blocks(device):
    dtype = DTYPES["float64"]
    logits = sample((3, 2 * 8192 + 3), dtype)
    target = np.array([[5], [2 * 8192 + 2], [-100]])
    for smoothing in (0.0, 0.1):
        loss, lse, divisor = cross_entropy(device, logits, target, 1, smoothing=smoothing)
        share, counts = shares(logits, target, 1, None, -100, smoothing)
        exact = (share * (oracle(2, logits, (1,)) - logits)).sum() / counts.sum()
        np.testing.assert_allclose(float(loss), float(exact), 1e-14)
        n = Native(device)
        out, view = n.out(np.zeros_like(logits))
        options = of_loss(n, n.of(logits), target, 1, None, smoothing=smoothing)
        cross_entropy_backward(n, view, options, np.ones((), dtype), lse, divisor)
        mass = share.sum(1, keepdims=True)
        expected = (oracle(0, logits, (1,)) * mass - share) / counts.sum()
        np.testing.assert_allclose(device.numpy(out), expected.astype(float), 1e-13, 1e-16)


@on_kernels
def test_no_rows(device):
    for reduction, expected in ((1, np.nan), (2, 0.0)):
        loss, _, _ = cross_entropy(
            device, np.zeros((0, 4)), np.zeros((0, 1), np.int64), 1, reduction=reduction
        )
        np.testing.assert_array_equal(loss, expected)
    y, lse = forward(device, 2, np.zeros((3, 0), np.float32), (1,))
    assert (y == -np.inf).all()
    assert (lse == -np.inf).all()


# --- bits -----------------------------------------------------------------------------------------


@each_shape
@each_kind
@on_kernels
def test_other_rows_and_addresses_do_not_show(shape, axes, kind, device):
    dtype = DTYPES["float32"]
    x = sample(shape, dtype)
    y, _ = forward(device, kind, x, axes)
    for by in (1, 3):
        np.testing.assert_array_equal(forward(device, kind, moved(x, by), axes)[0], y)
    if 0 not in axes:
        np.testing.assert_array_equal(forward(device, kind, x[-1:], axes)[0], y[-1:])


needs_emulation = pytest.mark.skipif(not EMULATED, reason="is of the emulated device")


@needs_emulation
@pytest.mark.parametrize("kind", range(3), ids=KINDS)
def test_devices_have_the_same_bits(kind):
    """Of more multiprocessors, and of more shared memory; whatever the order of threads."""
    module: Any = devices.emulate()
    shapes = [*SHAPES, ((1, 30000), (1,)), ((2000, 3), (0,))]
    for shape, axes in shapes:
        found = []
        for number in (0, 1):
            of = to_emulated(module.ExchangeArray, number)
            found.append(
                forward(
                    Framework("emulated", of, KERNELS[0].numpy, False),
                    kind,
                    sample(shape, DTYPES["float32"]),
                    axes,
                )[0]
            )
        np.testing.assert_array_equal(*found)
    for order in ("forward", "backward", "shuffle"):
        module.set_thread_order(order, 7)
        try:
            for shape, axes in SHAPES[4:9]:
                x = sample(shape, DTYPES["float32"])
                found = [forward(KERNELS[0], kind, x, axes)[0]]
                module.set_thread_order("alternate", 0)
                found.append(forward(KERNELS[0], kind, x, axes)[0])
                module.set_thread_order(order, 7)
                np.testing.assert_array_equal(*found)
        finally:
            module.set_thread_order("alternate", 0)


# --- what is refused ------------------------------------------------------------------------------


@on_kernels
def test_what_is_refused(device):
    n = Native(device)
    x, y = n.of(np.zeros((4, 6), np.float32)), n.of(np.ones((4, 6), np.float32))
    row, wide = n.of(np.zeros((4, 1), np.float32)), n.of(np.zeros((4, 1)))
    one, double = n.of(np.zeros((), np.float32)), n.of(np.zeros(()))
    target, mask = n.of(np.zeros((4, 1), np.int64)), n.of(np.ones((4, 6), bool))
    of_rows = {"axes": (1,), "scale": 1.0}
    of_softmax = {**of_rows, "kind": 0, "softcap": 0.0}
    right: dict[str, dict[str, Any]] = {
        "softmax_forward": {**of_softmax, "x": x, "y": y},
        "softmax_backward": {**of_softmax, "dy": x, "y": y, "dx": y, "accumulate": False},
        "logsumexp_backward": {
            **{**of_rows, "dy": row, "x": x, "lse": row, "dx": y, "accumulate": False}
        },
        "cross_entropy_forward": {
            **{"logits": x, "axes": (1,), "target": target, "lse": row, "loss": one},
            **{
                "divisor": double,
                "ignore_index": -100,
                "label_smoothing": 0.0,
                "z_loss": 0.0,
                "reduction": 1,
            },
        },
        "cross_entropy_backward": {
            **{"dloss": row, "logits": x, "axes": (1,), "target": target, "lse": row},
            **{
                "divisor": double,
                "dlogits": y,
                "ignore_index": -100,
                "label_smoothing": 0.0,
                "z_loss": 0.0,
            },
            **{"accumulate": False},
        },
    }
    wrong: dict[str, list[dict[str, Any]]] = {
        "softmax_forward": [
            *({"kind": 3}, {"axes": (2,)}, {"y": row}, {"lse": wide}, {"kind": 2}, {"x": mask}),
            *({"mask": n.of(np.ones((4, 5), bool))}, {"number": row}, {"lse": row}),
            *({"softcap": -1.0}, {"softcap": np.inf}, {"softcap": 1.0, "kind": 1}),
        ],
        "softmax_backward": [{"kind": 2}, {"dy": row}, {"softcap": 1.0}, {"x": x}],
        "logsumexp_backward": [{"lse": wide}, {"dy": x}],
        "cross_entropy_forward": [
            *({"target": mask}, {"target": n.of(np.zeros((4, 2), np.int64))}, {"weight": row}),
            *({"lse": wide}, {"losses": row}, {"loss": None}, {"divisor": one}, {"axes": (2,)}),
            *({"label_smoothing": -0.1}, {"label_smoothing": 1.5}, {"reduction": 3}),
            *({"axes": ()}, {"axes": (0, 1)}, {"probabilities": x}, {"target": None}),
        ],
        "cross_entropy_backward": [
            *({"dloss": x}, {"dloss": target}, {"weight": row}, {"lse": wide}, {"divisor": one}),
            *({"dlogits": row}, {"axes": (-1,)}, {"target": None}),
        ],
    }
    for name, changes in wrong.items():
        n.run(name, **right[name])
        for changed in changes:
            with pytest.raises(ValueError, match=name):
                n.run(name, **{**right[name], **changed})
    assert (device.numpy(n.device.of(np.ones((4, 6), np.float32))) == 1).all()


@on_kernels
def test_other_functions_take_no_masks_and_indices(device):
    """Floats have the first dtype codes; the others are of masks and of indices."""
    n = Native(device)
    x = n.of(np.ones((4, 6), np.float32))
    bias = n.of(np.ones(6, np.float32))
    norm = told_to_norms(fa.rms_norm)
    summing = {"axes": (), "term": 0, "divisor": 1.0, "initial": -0.0, "accumulate": False}
    averaging = {
        "axes": (),
        "of_m2": 0,
        "correction": 0.0,
        "initial": -0.0,
        "skips": False,
        "pair": 0,
    }
    act = {"which": 0, "parameters": ()}
    for dtype in (bool, np.int32, np.int64):
        wrong, short = n.of(np.ones((4, 6), dtype)), n.of(np.ones(6, dtype))
        calls = [
            ("activation_forward", {"x": wrong, "y": wrong, **act}),
            ("activation_backward", {"dy": wrong, "saved": x, "dx": x, "accumulate": False, **act}),
            ("sum", {"x": wrong, "y": wrong, **summing}),
            ("moments", {"x": wrong, "mean": x, **averaging}),
            ("bias_act_forward", {"x": x, "bias": short, "y": x, "axis": 1, **act}),
            ("bias_act_forward", {"x": wrong, "bias": bias, "y": wrong, "axis": 1, **act}),
            ("norm_forward", {"x": wrong, "y": wrong, **norm}),
            ("gates_forward", {"state": wrong, "kind": 2, "gates": x, "hidden": x, "places": (0,)}),
        ]
        for name, arguments in calls:
            with pytest.raises(ValueError, match=rf"_c(uda|pu): {name}: "):
                _cpu.native_call(name, arguments)


@on_kernels
@pytest.mark.parametrize(("shape", "axis"), [((3000, 3), 0), ((2, 20_000), 1)], ids=str)
@pytest.mark.parametrize("gap", [5.3, 10.1, 20.0, 20.37])
def test_chunks_of_float64_merge_exactly(device, shape, axis, gap):
    """Where one element is far above all others, which are in another chunk."""
    x = np.moveaxis(np.full(shape, -60.0), axis, 0)
    half = len(x) // 2
    x[:half] = -gap
    x[half + 17] = 1.7
    y = device.numpy(fa.log_softmax(device.of(np.moveaxis(x, 0, axis)), axis=axis))
    wide = x.astype(np.longdouble) - np.longdouble(1.7)
    expected = -np.log1p(np.exp(np.delete(wide, half + 17, 0)).sum(0))
    top = np.moveaxis(y, axis, 0)[half + 17]
    error = np.abs(top - expected) / np.spacing(np.abs(expected.astype(float)))
    assert error.max() <= fa.log_softmax.bounds.ulps
