"""Sums on which they are hard, and what they take; their bounds: test_every_reduction.py."""

from typing import Any

import judged
import ml_dtypes
import numpy as np
import pytest
from arrays import finite
from conftest import assert_same_bits, on_kernels
from sums import SUMS

import fastact as fa
from fastact.check.expected.reductions import term_of


@pytest.fixture(params=SUMS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Any:
    return request.param


@on_kernels
def test_rows_of_more_chunks_than_a_warp_has_lanes(device):
    """40 partial sums of 4096 vectors a row, and the columns' as many: each counts, and once."""
    dtype = np.float32
    x = np.resize(np.arange(7, dtype=dtype), 40 * 4096 * (16 // dtype().itemsize))
    there, wide = device.of(x), x.astype(np.float64)
    for op in SUMS:
        assert device.numpy(op(there)) == dtype(term_of(op)(wide).sum())
    value, _ = fa.sum_squares.value_and_grad(there)
    assert device.numpy(value) == dtype((wide**2).sum())
    mean, var = fa.mean_var(there)
    np.testing.assert_allclose(device.numpy(mean), wide.mean(), 1e-6)
    np.testing.assert_allclose(device.numpy(var), wide.var(), 1e-6)
    tall = x.reshape(-1, 4)
    for op in (*SUMS, fa.bias_grad):
        named = {"axis": -1} if op is fa.bias_grad else {"axis": 0}
        term = np.asarray if op is fa.bias_grad else term_of(op)
        expected = term(tall.astype(np.float64)).sum(0).astype(dtype)
        np.testing.assert_array_equal(device.run(op, tall, **named), expected)


def test_cancellation():
    """The bound is relative to sum|x|; what cancels exactly leaves nothing."""
    op = fa.sum
    x = finite(np.float64, (100_001,)) * 1e10
    x = np.concatenate([x, -x, [1.0]])
    judged.assert_right(op, {"x": x, "axis": (0,)})
    assert op(np.tile([1e16, -1e16], 5000)) == 0


def test_16_bit_counts(op):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert op(np.ones(1600, dtype)) == 1600
    assert op(np.ones(70_000, ml_dtypes.bfloat16)) == ml_dtypes.bfloat16(70_000)
    assert op(np.ones(70_000, np.float16)) == np.inf


def test_large_offset(op):
    """2^24 values around 1e4: a plain float32 sum has lost half its digits by then."""
    x = np.random.default_rng(0).normal(1e4, 1, 1 << 24).astype(np.float32)
    expected = term_of(op)(x.astype(np.float64)).sum()
    assert abs(float(op(x)) - expected) <= np.spacing(np.float32(expected))


def test_no_overflow_on_the_way():
    op = fa.sum
    big = np.float32(3e38)
    assert op(np.array([big, big, -big])) == big
    assert op(np.array([[big], [big], [-big]]), 0) == big
    assert op(np.array([60_000, 60_000, -60_000], np.float16)) == np.float16(60_000)


def test_one_rounding_to_16_bits():
    """Sums so near a tie that float32, on the way, would take them for it."""
    op = fa.sum
    for dtype, tie, tiny in (
        (ml_dtypes.bfloat16, 2.0**-8, 2.0**-32),
        (np.float16, 2.0**-11, 2.0**-24),
    ):
        assert op(np.array([1, tie, tiny]).astype(dtype)) == dtype(1 + 2 * tie)
        assert op(np.array([1 + 2 * tie, tie, -tiny]).astype(dtype)) == dtype(1 + 2 * tie)


def test_sign_of_zero(op, dtype):
    """As in NumPy: minus zero if all terms are, and a sum over nothing is plus zero."""
    negative = np.signbit(term_of(op)(np.float64(-0.0)))  # the square of -0 is 0
    for shape, axis in (((3,), 0), ((5000,), 0), ((3, 100), 0), ((3, 5000), 1), ((100, 3), 1)):
        y = op(np.full(shape, -0.0, dtype), axis)
        assert (np.signbit(np.asarray(y).astype(float)) == negative).all()
    assert not np.signbit(np.asarray(op(np.zeros((0, 3), dtype), 0)).astype(float)).any()


# --- the op ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(9))
def test_every_rank(op, dtype, rank):
    x = finite(dtype, (2,) * rank)
    for axis in (None, *range(-rank, rank), tuple(range(0, rank, 2))):
        y = op(x, axis)
        assert np.shape(y) == np.shape(np.sum(x.astype(float), axis))
        chosen = range(rank) if axis is None else np.atleast_1d(axis).astype(int) % max(rank, 1)
        judged.assert_right(op, {"x": x, "axis": tuple(sorted(map(int, chosen)))})


def test_takes_what_numpy_takes(op):
    assert op([1, 2, 3]) == term_of(op)(np.arange(4.0)).sum()
    assert op([1, 2, 3]).dtype == np.float64
    assert op(3) == term_of(op)(np.float64(3))
    assert op([[True, False], [True, True]], axis=np.int64(1)).tolist() == [1.0, 2.0]
    assert op(np.ones((2, 3)), axis=[0, 1]) == 6.0
    assert op(np.ones((2, 3)), axis=()).tolist() == [[1.0] * 3] * 2


def test_backward_of_a_number(framework):
    op = fa.sum
    assert_same_bits(op.backward(2.0, (2, 3)), np.full((2, 3), 2.0))
    out = framework.of(np.zeros((2, 3), np.float32))
    op.backward(2, (2, 3), axis=1, out=out)
    op.backward(0.5, (2, 3), axis=0, out=out, accumulate=True)
    assert_same_bits(framework.numpy(out), np.full((2, 3), 2.5, np.float32))
    x = framework.of(np.arange(3, dtype=np.float32))
    dx = framework.numpy(fa.sum_squares.backward(0.5, x))
    assert_same_bits(dx, np.arange(3, dtype=np.float32))


def test_gradient_of_squares_overflows_only_where_it_must():
    x = np.array([3e38, 1e-30], np.float32)
    np.testing.assert_allclose(
        fa.sum_squares.backward(np.array([0.1, 1e30], np.float32), x, axis=()), [6e37, 2], 1e-6
    )


@pytest.mark.parametrize("layout", ["plain", "strided", "transposed"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (5003,), (40, 70, 30)], ids=str)
def test_value_and_grad(dtype, framework, shape, layout):
    """The value has the op's bits; the gradient is exact."""
    x = finite(dtype, shape)
    if x.ndim and layout == "strided":
        x = np.repeat(x, 2, -1)[..., ::2]
    x = x.T if layout == "transposed" else x
    wide = np.float64 if dtype == np.float64 else np.float32
    expected = framework.numpy(fa.sum_squares(framework.of(x)))
    for n in (1, 2, 5):
        out = framework.of(np.zeros((), dtype)), framework.of(np.zeros(x.shape, dtype))
        with fa.num_threads(n):
            value, grad = fa.sum_squares.value_and_grad(framework.of(x), out)
        assert (value, grad) == out
        found = np.asarray(framework.numpy(value))
        eps = 0 if framework.exact else float(ml_dtypes.finfo(dtype).eps)
        np.testing.assert_allclose(found.astype(float), expected.astype(float), eps)
        assert_same_bits(framework.numpy(grad), (2 * x.astype(wide)).astype(dtype))


def test_value_and_grad_in_place():
    x = finite(np.float32, (3000,))
    expected = fa.sum_squares(x), 2 * x
    value, _ = fa.sum_squares.value_and_grad(x, (None, x))
    assert value == expected[0]
    assert_same_bits(x, expected[1])


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint16, np.int64])
def test_integers_in_the_rest_of_the_entry_points(kind):
    x = np.full((2, 500), min(100, np.iinfo(kind).max) if kind is not bool else 1, kind)
    wide = x.astype(np.float64)
    assert_same_bits(fa.sum_squares.backward(2.0, x), 4 * wide)
    assert_same_bits(fa.sum.backward(x[:, 0], (2, 3), axis=1), np.repeat(wide[:, :1], 3, 1))
    value, grad = fa.sum_squares.value_and_grad(x)
    assert value == (wide**2).sum()
    assert_same_bits(grad, 2 * wide)
    assert_same_bits(fa.bias_grad(x, axis=0), wide.sum(1))
    assert_same_bits(fa.unbroadcast(x, (2, 1)), wide.sum(1, keepdims=True))


def test_output_keeps_the_order(op):
    x = np.asfortranarray(np.ones((4, 5, 6)))
    assert op(x, 1, keepdims=True).flags.f_contiguous
    assert op(x, 1).flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_repeated_elements_end_where_their_array_does(dtype):
    """Rows of every length that vectors begin and end in."""
    for columns in range(1, 20):
        memory = np.full(6 * columns + 24, 7, dtype)
        out = memory[8 : 8 + 6 * columns].reshape(6, columns)
        dy = np.arange(6).astype(dtype)
        fa.sum.backward(dy, out.shape, axis=1, out=out)
        np.testing.assert_array_equal(out, np.repeat(dy[:, None], columns, 1))
        assert (memory[:8] == 7).all()
        assert (memory[8 + 6 * columns :] == 7).all()
