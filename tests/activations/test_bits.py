"""The same bits for any number of threads, on AVX2 and AVX-512, wherever an element stands."""

from conftest import assert_same_bits, sample


def test_offset_and_length(op, dtype, isa):
    """An element's bits do not depend on where in a vector, or in its tail, it is computed."""
    x = sample(dtype, 200)
    expected = op(x)
    for start in range(0, 67):  # more than the longest vector: 64 elements of 16 bits unrolled
        for stop in (start + 1, 100, 199):
            assert_same_bits(op(x[start:stop]), expected[start:stop])
