"""The same bits for any number of threads, on AVX2 and AVX-512, wherever an element stands."""

import numpy as np
from conftest import assert_same_bits, needs_two_fused_isas, on_fused_isas, sample

import fastact as fa

# Past several blocks of 4096 elements and several threads' worth, and no multiple of anything.
SIZE = 300_007


def results(op, x, dy):
    total = dy.copy()
    op.backward(dy, x, out=total, accumulate=True)
    return op(x), op.backward(dy, x), total


def test_threads(op, dtype):
    x, dy = sample(dtype, SIZE), sample(dtype, SIZE, seed=1)
    with fa.num_threads(1):
        expected = results(op, x, dy)
    for n in (2, 3, 7):
        with fa.num_threads(n):
            for actual, one in zip(results(op, x, dy), expected, strict=True):
                assert_same_bits(actual, one)


@needs_two_fused_isas
def test_avx2_and_avx512_have_the_same_bits(op, dtype):
    x, dy = sample(dtype, SIZE), sample(dtype, SIZE, seed=1)
    expected, *others = on_fused_isas(lambda: results(op, x, dy))
    for other in others:
        for actual, one in zip(other, expected, strict=True):
            assert_same_bits(actual, one)


def test_offset_and_length(op, dtype, isa):
    """An element's bits do not depend on where in a vector, or in its tail, it is computed."""
    x = sample(dtype, 200)
    expected = op(x)
    for start in range(0, 67):  # more than the longest vector: 64 elements of 16 bits unrolled
        for stop in (start + 1, 100, 199):
            assert_same_bits(op(x[start:stop]), expected[start:stop])


def test_batch_position(op, dtype):
    """A row is the same alone and anywhere in a batch."""
    row = sample(dtype, 1537)
    batch = np.broadcast_to(row, (50, 1537)).copy()
    expected = op(row)
    for actual in op(batch):
        assert_same_bits(actual, expected)
