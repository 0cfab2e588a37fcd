"""Sums give the same bits whatever the layout, the threads and the place."""

import math
from typing import Any

import numpy as np
import pytest
from arrays import finite
from conftest import assert_same_bits
from sums import SUMS, case

import fastact as fa
from fastact import _cpu


@pytest.fixture(params=SUMS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Any:
    return request.param


def close_to_halves(count: int, rng: np.random.Generator, n: int) -> np.ndarray:
    """Numbers whose quotients by `count` are as close as can be to the middle of two numbers.

    With m odd, of 54 bits, a middle is m times a power of two. A number s has a quotient 1/count
    off where s 2^j = m count +- 1 for an odd count: where m is -+ 1/count modulo 2^j.
    """
    odd = count // (count & -count)
    j = odd.bit_length() + 1  # s has at most 53 bits
    found = []
    for _ in range(n):
        rest = int(rng.choice([-1, 1]))
        m = (int(rng.integers(2**53, 2**54)) >> j << j) + -rest * pow(odd, -1, 2**j) % 2**j
        found.append((m * odd + rest) // 2**j)
        assert m % 2 == 1
        assert found[-1] < 2**53
        assert (m * odd + rest) % 2**j == 0
    return np.array(found, np.float64)


# Counts: small, of an image's pixels, and larger primes.
@pytest.mark.parametrize("count", [3, 5, 7, 10, 49, 97, 3136, 6361])
@pytest.mark.parametrize(
    "special",
    [[], [0.0, -0.0], [5e-324, -2.0**-1030], [2.0**-900, 2.0**-901], [2.0**900, 2.0**1000],
     [math.inf, -math.inf, math.nan]],
    ids=["ordinary", "zeros", "subnormal", "small", "large", "none of them a number"],
)  # fmt: skip
def test_a_mean_is_the_sum_over_the_count(count, special, isa):
    """As a division rounds, which is not how it is computed where numbers are of usual size."""
    rng = np.random.default_rng(count)
    sums = rng.standard_normal(1000) * 2.0 ** rng.integers(-890, 890, 1000)
    values = np.concatenate([sums, special, close_to_halves(count, rng, 1000)])
    x = np.full((count, values.size), -0.0)  # which adds nothing, not to -0 either
    x[-1] = values
    expected = fa.sum(x, axis=0) / count
    assert_same_bits(fa.mean(x, axis=0), expected)
    assert_same_bits(fa.mean(np.ascontiguousarray(x.T), axis=1), expected)


# Lines of a channel's terms: too short to be carried on (63), the shortest (64), lanes that begin
# anywhere (65) or at a vector (196), a block exactly, ends of blocks amid lines (3136), lines of
# more than the eight blocks that are read at once; channels: few, and more than the 64 at once.
@pytest.mark.parametrize("call", [*SUMS, fa.mean_var], ids=lambda call: call.name)
@pytest.mark.parametrize(
    ("lines", "channels", "length"),
    [
        (40, 3, 63), (70, 2, 64), (9, 67, 65), (33, 5, 196), (3, 40, 700), (3, 2, 2048),
        (4, 33, 3136), (2, 3, 20_000), (50, 1, 3136), (1, 3, 5000),
    ],
)  # fmt: skip
def test_lines(call, dtype, lines, channels, length):
    """A channel's lines give what its terms give in one row, for any number of threads."""
    x = finite(dtype, (lines, channels, length))
    rows = np.ascontiguousarray(x.swapaxes(0, 1)).reshape(channels, -1)
    expected = call(rows, 1)
    for held in (x, np.pad(x, ((0, 0), (0, 1), (0, 0)))[:, :-1]):
        for n in (1, 2, 3, 7):
            with fa.num_threads(n):
                assert_same_bits(np.asarray(call(held, (0, 2))), np.asarray(expected))


def test_without_workspace(op, many_threads):
    """The workspace serves the threads alone."""
    x, y = finite(np.float64, (30_000, 5)), np.zeros((1, 5))
    views = {"x": _cpu.View.from_numpy(x), "y": _cpu.View.from_numpy(y)}
    options = {"axes": (0,), "term": op.term, "divisor": 1.0, "initial": -0.0, "accumulate": False}
    native = _cpu.native_call("sum", {**views, **options})
    assert native.workspace_size() > 0
    native.run(None, 0)
    assert_same_bits(y[0], op(x, 0))


@case
def test_an_output_is_the_same_alone(op, dtype, shape, axes):
    """In any batch, at any place in it: a row, a column, a channel."""
    x = finite(dtype, shape)
    y = np.asarray(op(x, axes, keepdims=True))
    rng = np.random.default_rng(0)
    for _ in range(5):
        at = tuple(int(rng.integers(n)) for n in y.shape)
        alone = x[tuple(slice(None) if i in axes else slice(k, k + 1) for i, k in enumerate(at))]
        for copy in (alone, np.ascontiguousarray(alone)):
            assert_same_bits(np.asarray(op(copy, axes)).reshape(()), y[at])


def test_more_than_2_to_the_31_terms(op):
    """64-bit indices: one element, seen 2^31 + 9 times."""
    n = 2**31 + 9
    assert op(np.lib.stride_tricks.as_strided(np.ones(1), (n,), (0,))) == n
