"""softmax, log_softmax and logsumexp: values, gradients, masks, layouts and bits."""

from itertools import product
from typing import Any

import judged
import numpy as np
import pytest
from conftest import assert_same_bits, on_backends, stores_past_the_caches
from devices import DTYPES, FRAMEWORKS, Framework

import fastact as fa

OPS = [fa.softmax, fa.log_softmax, fa.logsumexp]
by_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
by_dtype = pytest.mark.parametrize("dtype", list(DTYPES))

# Rows of one element, of less than a tile's lanes, of a block, of several, and of more than the
# buffer of a thread holds; along any axes.
SHAPES: list[tuple[tuple[int, ...], Any]] = [
    ((5,), -1), ((3, 1), -1), ((37, 10), -1), ((3, 129), -1), ((2, 1024), 1), ((2, 4099), 1),
    ((1, 70_001), 1), ((129, 70), 0), ((2500, 33), 0), ((3, 21, 5, 7), 1), ((4, 5, 6), (0, 2)),
    ((2, 3, 40), (2, 1)),
    # What a device's kernels tell apart, counted in packs of 16 bytes: rows of 1 to 32 lanes, of a
    # block of 256 and of 512 threads; columns of one lane and several; axes that do not merge.
    ((7, 1), (1,)), ((67, 3), (1,)), ((70, 8), (1,)), ((37, 264), (1,)), ((2, 3, 1031), (2,)),
    ((1, 9001), (1,)), ((6, 5, 7), (0,)), ((3, 10, 5, 3), (1,)), ((2, 19, 16), (1,)),
    ((700, 3), (0,)), ((3, 33, 40), (1,)), ((4, 6, 5), (1, 2)), ((300, 1, 2), (1,)),
]  # fmt: skip


def data(shape: tuple[int, ...], dtype: str, spread: float = 3.0, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal(shape) * spread
    return x.astype(DTYPES[dtype])


def assert_right(
    op: Any, x: np.ndarray, axis: Any, place: Framework = FRAMEWORKS[0], **options: Any
) -> np.ndarray:
    """The call's result is within the stated bounds of the oracle's."""
    keeps = {"keepdims": True} if op is fa.logsumexp else {}
    y = judged.assert_right(op, {"x": x, "axis": axis, **keeps, **options}, place=place)["y"]
    assert y.dtype == x.dtype
    return np.asarray(y)


def assert_gradient_right(
    op: Any, x: np.ndarray, axis: Any, place: Framework = FRAMEWORKS[0], scale: float = 0.5
) -> None:
    """The gradient of what was saved is within the stated bounds, and is added to what is there."""
    named = {"axis": axis, "scale": scale} | ({"keepdims": True} if op is fa.logsumexp else {})
    result, saved = op.forward(place.of(x), **named)
    dy = data(place.numpy(result).shape, x.dtype.name, 1.0, seed=2)
    dx = judged.assert_right(op, {"x": x, **named}, [dy], place)["dx"]
    into = place.of(np.ones_like(dx))
    op.backward(place.of(dy), *saved, **named, out=into, accumulate=True)
    # dx was rounded on its own, by as much as 1 + dx may cancel to.
    off = 2e-2 if x.itemsize == 2 else 1e-6
    sums = 1 + dx.astype(np.float64)
    np.testing.assert_allclose(place.numpy(into).astype(np.float64), sums, rtol=off, atol=off)


@by_op
@by_dtype
@on_backends("shape axis", SHAPES)
def test_values(op: Any, dtype: str, shape: tuple[int, ...], axis: Any, backend: Framework) -> None:
    assert_right(op, data(shape, dtype), axis, backend)


@by_op
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1e-3, 20, 90, 1e3, 1e6, 1e30])
def test_any_spread(op: Any, dtype: str, spread: float, backend: Framework) -> None:
    """Elements far apart, whose difference is rounded, and rows far from 0."""
    for shift in (0.0, 700.0, -5000.0, 1e6):
        x = (data((4, 200), dtype, spread).astype(np.float64) + shift).astype(dtype)
        assert_right(op, x, -1, backend)
        assert_right(op, np.ascontiguousarray(x.T), 0, backend)


def test_one_far_above_all_others() -> None:
    """log(S) would be 0 (https://github.com/scipy/scipy/issues/19521)."""
    x = np.float32([[0, -20, -80, -87], [1000, 3, 2, 1]])
    y = assert_right(fa.log_softmax, x, -1)
    assert y[0, 0] < 0


@on_backends("op dtype", product(OPS, DTYPES))
def test_scale_and_masks(op: Any, dtype: str, backend: Framework) -> None:
    rng = np.random.default_rng(1)
    x = data((3, 4, 77), dtype)
    takes_part = rng.random(x.shape) > 0.4
    takes_part[..., 0] = True
    takes_part[1, 2] = False  # nothing takes part
    wide = np.promote_types(x.dtype, np.float32)
    added = rng.standard_normal(x.shape).astype(wide)
    infinite = np.where(takes_part, 0, -np.inf).astype(x.dtype)
    masks = [takes_part, takes_part[0], takes_part[:1, :, :1], added, added[0, 0], infinite]
    masks += [np.asfortranarray(takes_part), added[..., ::-1]]
    for mask in (None, *masks):
        assert_right(op, x, -1, backend, scale=0.37, mask=mask)
        assert_right(op, x, 1, backend, scale=-2.0, mask=mask)


def test_nothing_takes_part() -> None:
    x, mask = np.zeros((2, 40), np.float32), np.array([[True], [False]])
    inf = np.full((2, 40), -np.inf, np.float32)
    for shown in ({"mask": mask}, {"mask": np.where(mask, 0, inf)}):
        assert np.all(fa.softmax(x, **shown)[1] == 0)
        assert np.all(fa.log_softmax(x, **shown)[1] == -np.inf)
        assert fa.logsumexp(x, **shown)[1] == -np.inf
        for op in OPS:
            _, saved = op.forward(x, **shown)
            assert np.all(op.backward(1.0, *saved)[1] == 0)
    with np.errstate(all="raise"):
        assert np.all(np.isnan(fa.softmax(inf)))
        assert np.all(np.isnan(fa.log_softmax(inf)))
        assert np.all(fa.logsumexp(inf) == -np.inf)


@pytest.mark.parametrize("n", [7, 40, 3000])
def test_nan_and_infinity(n: int) -> None:
    rows = np.zeros((5, n), np.float32)
    rows[0, 1], rows[1, -1], rows[2, 2], rows[3, 0] = np.nan, np.inf, -np.inf, np.inf
    rows[3, 1] = np.nan
    for axis, x in ((1, rows), (0, np.ascontiguousarray(rows.T))):
        for op in (fa.softmax, fa.log_softmax):
            y = np.moveaxis(op(x, axis=axis), axis, 1)
            assert np.isnan(y[[0, 1, 3]]).all()
            assert not np.isnan(y[[2, 4]]).any()
        lse = fa.logsumexp(x, axis=axis)
        np.testing.assert_array_equal(np.isnan(lse), [True, False, False, True, False])
        assert lse[1] == np.inf
        assert np.isfinite(lse[[2, 4]]).all()
    hidden = np.arange(n) != 1
    assert not np.isnan(fa.softmax(rows[:1], mask=hidden)).any()


@by_op
@pytest.mark.parametrize("n", [5, 31, 33, 1023, 1025, 5000, 70_001])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_bits_depend_on_the_row_alone(op: Any, n: int, dtype: str, isa: str) -> None:
    """Not on other rows, the position among them, strides or layout."""
    for spread in (2.0, 4000.0):
        x = data((40, n), dtype, spread)
        whole = op(x)
        assert_same_bits(op(np.ascontiguousarray(x.T), axis=0).T, whole)
        assert_same_bits(op(np.asfortranarray(x)), whole)
        assert_same_bits(op(x[3:4])[0], whole[3])
        wide = np.repeat(x, 2, 1)
        assert_same_bits(op(wide[:, ::2]), whole)
        assert_same_bits(op(x[:, ::-1][:, ::-1]), whole)
        backward = np.ascontiguousarray(x[:, ::-1])
        assert_same_bits(op(backward[:, ::-1]), whole)


def assert_same(actual: Any, expected: Any) -> None:
    """The same bits, but for a NaN's."""
    actual, expected = actual.copy(), expected.copy()
    for array in (actual, expected):
        array[np.isnan(array)] = np.nan
    assert_same_bits(actual, expected)


# Neighbouring rows: more than a tile has, of one block and of two; of two outer axes, with the end
# of the inner one amid a tile; and so few that a tile is copied together from several of them.
@by_op
@by_dtype
@pytest.mark.parametrize(
    "shape", [(40, 300), (1500, 300), (2, 1100, 130), (3, 20, 500), (5, 30, 49)], ids=str
)
def test_tiles_have_the_bits_of_rows(op: Any, dtype: str, shape: tuple[int, ...], isa: str) -> None:
    """Where they lie, in place, in other places, onto what is there; and their gradients."""
    x = data(shape, dtype)
    x[..., 3] *= 400  # far from 0
    x[..., 1, 5], x[..., 2, 6], x[..., :, 7], x[..., 4, 8] = np.nan, np.inf, -np.inf, -np.inf
    as_rows = lambda a: np.ascontiguousarray(np.moveaxis(a, -2, -1))  # noqa: E731
    keeps = {"keepdims": True} if op is fa.logsumexp else {}
    for scale in (1.0, 0.5):
        options = {"axis": -2, "scale": scale, **keeps}
        y, saved = op.forward(x, **options)
        rows, saved_rows = op.forward(as_rows(x), **options | {"axis": -1})
        assert_same(as_rows(y), rows)
        dy = data(y.shape, dtype, seed=1)
        dx = op.backward(dy, *saved, **options)
        expected = op.backward(as_rows(dy), *saved_rows, **options | {"axis": -1})
        assert_same(as_rows(dx), expected)
        backwards = np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :]
        unaligned = np.frombuffer(b"-" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(shape)
        for apart in (np.repeat(x, 2, -2)[..., ::2, :], backwards, unaligned):
            assert_same(op(apart, **options), y)
        if dtype in ("float32", "float64"):  # whose gradients are added unrounded
            onto = np.ones_like(x)
            op.backward(dy, *saved, **options, out=onto, accumulate=True)
            assert_same(onto, dx + 1)
        place = x.copy()
        if op is fa.logsumexp:
            assert_same(op.backward(dy, place, *saved[1:], **options, out=place), dx)
        else:
            assert_same(op(place, **options, out=place), y)
            place = dy.copy()
            assert_same(op.backward(place, *saved, **options, out=place), dx)


# Rows in bands, the last of them of fewer rows; in blocks, the last of them shorter; more than a
# thread's buffer holds twice.
@pytest.mark.parametrize("shape", [(67, 300), (35, 1000), (5, 2500), (3, 40000)], ids=str)
@by_dtype
def test_rows_that_are_stored_beside_later_ones(dtype: str, shape: tuple[int, int]) -> None:
    """Rows of each kind among others: without a maximum, far, empty, with a block far below."""
    rows, size = shape
    x = data(shape, dtype)
    x[0, 1], x[1, 2], x[2, 1:] = np.nan, np.inf, -np.inf
    x[-1] *= 500
    x[-2, size // 2 :] -= 300
    mask = np.ones(shape, bool)
    mask[rows // 2] = mask[-2, : size // 3] = False
    for options in ({}, {"scale": 0.5}, {"mask": mask}):
        kept = fa.softmax(x, axis=1, **options)
        for threads in (1, 2):
            with stores_past_the_caches(), fa.num_threads(threads):
                assert_same_bits(fa.softmax(x, axis=1, **options), kept)
                wide = np.zeros((rows, size + 3), x.dtype)
                fa.softmax(x, axis=1, **options, out=wide[:, 1:-2])
            assert_same_bits(np.ascontiguousarray(wide[:, 1:-2]), kept)
            assert not wide[:, 0].any()
            assert not wide[:, -2:].any()


@by_op
@by_dtype
@on_backends("shape axis", SHAPES)
def test_gradients(
    op: Any, dtype: str, shape: tuple[int, ...], axis: Any, backend: Framework
) -> None:
    assert_gradient_right(op, data(shape, dtype), axis, backend)


def test_a_gradient_that_is_a_number_of_no_elements() -> None:
    x = np.zeros((0, 3, 2), np.float32)
    for axis in (0, (0, 2), 1):
        _, saved = fa.logsumexp.forward(x, axis=axis)
        assert fa.logsumexp.backward(1.0, *saved, axis=axis).shape == x.shape
    _, saved = fa.cross_entropy.forward(x[:, :, 0], np.zeros(0, np.int64))
    assert fa.cross_entropy.backward(1.0, *saved).shape == (0, 3)


@pytest.mark.parametrize("op", [fa.softmax, fa.log_softmax], ids=str)
def test_rows_that_are_nan_where_stores_go_past_the_caches(op):
    """Rows are stored while the next ones are computed; elements that a mask leaves out are not."""
    x = np.random.default_rng(0).normal(size=(40, 512)).astype(np.float32)
    x[3, 7], x[20, 0] = np.nan, np.inf
    mask = np.ones(x.shape, bool)
    mask[:, 100:200] = False
    expected = op(x, mask=mask)
    assert np.isnan(expected[3, 0])
    assert not np.isnan(expected[3, 100])
    held = np.zeros(x.size + 16, np.float32)
    begin = -held.ctypes.data // 4 % 16
    out = held[begin : begin + x.size].reshape(x.shape)
    with stores_past_the_caches():
        op(x, mask=mask, out=out)
    np.testing.assert_array_equal(out, expected)
