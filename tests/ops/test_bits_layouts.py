"""Sums over one axis have the same bits in whichever order memory holds the axes.

That steps, addresses and repeats don't show in any op, tests/invariants holds; here are the orders
of axes, which show in sums over several, and values that are computed one by one or by vectors.
"""

from collections.abc import Iterator

import numpy as np
import pytest
from arrays import finite
from conftest import assert_all_same_bits, assert_same_bits, sample

import fastact as fa
from fastact.ops.engine.op import arrays_of

REDUCTIONS = [fa.sum, fa.sum_squares, fa.moments, fa.mean_var]
each_reduction = pytest.mark.parametrize("op", REDUCTIONS, ids=lambda op: op.name)
#: Few terms and lanes that are not all filled; several blocks of 2048 terms and a rest; narrow and
#: wide columns, short and long lines; 9000 terms are several blocks.
SUMS: list[tuple[tuple[int, ...], int]] = [
    ((3, 4100), 1), ((4100, 3), 0), ((9000, 70), 0), ((700, 7), 1), ((6, 5, 700), 2),
    ((3, 2047), 1), ((2048, 5), 0), ((3, 4096), 1), ((3, 31, 130), 1),
]  # fmt: skip


def permuted(x: np.ndarray) -> Iterator[np.ndarray]:
    """The same values in memory that holds the axes in another order."""
    every = tuple(range(x.ndim))
    for order in {every[::-1], (*every[1:], 0), (every[-1], *every[:-1])} - {every}:
        yield np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order))


@each_reduction
@pytest.mark.parametrize(("shape", "axis"), SUMS, ids=str)
def test_orders_of_axes(op, dtype, shape, axis):
    x = finite(dtype, shape)
    expected = op(x, axis)
    for view in permuted(x):
        for threads in (1, 2):
            with fa.num_threads(threads):
                assert_all_same_bits(arrays_of(op(view, axis)), arrays_of(expected))


def test_orders_of_axes_in_a_gradient(dtype):
    x = finite(dtype, (6, 70, 9))
    dy = tuple(np.full_like(fa.sum(x, 1), k) for k in (2, 3))
    expected = fa.mean_var.backward(dy, x, axis=1)
    for view in permuted(x):
        assert_all_same_bits((fa.mean_var.backward(dy, view, axis=1),), (expected,))


@each_reduction
@pytest.mark.parametrize("spread", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2)], ids=str)
@pytest.mark.parametrize("axes", [0, 2, (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_repeated_values(op, dtype, spread, axes):
    """An axis along which the array repeats itself is one of a copy."""
    core = finite(dtype, tuple(1 if i in spread else n for i, n in enumerate((5, 70, 40))))
    x = np.broadcast_to(core, (5, 70, 40))
    assert_all_same_bits(arrays_of(op(x, axes)), arrays_of(op(x.copy(), axes)))


# Odd heads and last columns are computed one by one where their neighbours go by vectors.
def test_a_shifted_array_has_its_neighbours_bits(op, dtype, isa):
    """Element-wise: an element's bits do not depend on where in a vector, or in its tail, it is."""
    x, dy = sample(dtype, 200), finite(dtype, (200,), seed=7)
    with fa.num_threads(1):
        y, dx = op(x), op.backward(dy, x)
        for start in range(0, 67):  # more than the longest vector: 64 elements of 16 bits unrolled
            for stop in (start + 1, 100, 199):
                part = slice(start, stop)
                assert_same_bits(op(x[part]), y[part])
                assert_same_bits(op.backward(dy[part], x[part]), dx[part])


def test_a_last_column_has_its_neighbours_bits(dtype, isa):
    """Sums, moments and norms by columns: those that fill no vector are computed one by one."""
    x = finite(dtype, (300, 67))
    for columns in (slice(1, 2), slice(1, 67), slice(3, 20), slice(60, 67)):
        part = np.ascontiguousarray(x[:, columns])
        for op in REDUCTIONS:
            of_all = [np.asarray(b)[columns] for b in arrays_of(op(x, 0))]
            assert_all_same_bits(arrays_of(op(part, 0)), of_all)
        whole = fa.layer_norm(x, axis=0)[:, columns]
        assert_all_same_bits([fa.layer_norm(part, axis=0)], [whole])
