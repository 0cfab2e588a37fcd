"""Norms have the same bits: for any threads, on AVX2 and AVX-512, in any batch."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_all_same_bits, assert_same_bits
from normed import Setting

import fastact as fa


# Less than a round of lanes, one, some; rows of which three share a buffer forward, and none.
@pytest.mark.parametrize("length", [1, 7, 32, 130, 300, 1030])
@pytest.mark.parametrize("op", [fa.layer_norm, fa.rms_norm], ids=lambda op: op.name)
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_short_rows_are_taken_together(op, length, name, dtype, isa):
    """15 of them are one call of eight and a rest, or three of four and a rest."""
    rng = np.random.default_rng(0)
    whole = rng.normal(size=(2, 4, 6, length)).astype(dtype)
    weight = rng.normal(size=length).astype(dtype)
    apart = whole[:, :3, :5]  # not evenly spaced
    for x, dy in (apart, apart.copy()):
        y, saved = op.forward(x, weight, activation=name)
        dx = op.backward(dy, *saved, activation=name)[0]
        for at in np.ndindex(3, 5):
            one, own = op.forward(x[at], weight, activation=name)
            assert_same_bits(one, y[at])
            assert_same_bits(op.backward(dy[at], *own, activation=name)[0], dx[at])


# How 150 rows lie: nine bands of 16, and one that is not whole.
LAYOUTS = {
    "C": np.ascontiguousarray,
    "F": np.asfortranarray,
    "upside down": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "apart": lambda a: np.repeat(np.repeat(a, 2, 0), 2, 1)[::2, ::2],
}


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
# A buffer holds all 16-bit rows of a band, four, three, two, one; the last ones go piece by piece.
# Where they are converted in registers: one chunk, a part of one, two, and more than that.
@pytest.mark.parametrize("length", [1, 65, 1000, 1025, 2047, 4096, 4100])
@pytest.mark.parametrize("op", [fa.layer_norm, fa.add_rms_norm], ids=lambda op: op.name)
def test_16_bit_gradients_are_those_of_float32_rounded(op, length, layout, narrow, isa):
    """Both are computed in float32, and the former rounded once: also onto what dx holds."""
    rng = np.random.default_rng(0)
    x, dy, held = (LAYOUTS[layout](rng.normal(size=(150, length)).astype(narrow)) for _ in range(3))
    weight = rng.normal(size=length).astype(narrow)
    more = {"dtotal": held} if op is fa.add_rms_norm else {}
    given = (x, dy, weight) if more else (x, weight, weight)
    _, saved = op.forward(*given)
    wide = [a.astype(np.float32) for a in saved]
    wide_more = {name: a.astype(np.float32) for name, a in more.items()}
    exact, *of_parameters = op.backward(dy.astype(np.float32), *wide, **wide_more)
    found, *parameters = op.backward(dy, *saved, **more)
    assert_same_bits(found, exact.astype(narrow))
    if length <= 1024 or length > 4096:  # of rows between, bands are not as many
        for own, of_float32 in zip(parameters, of_parameters, strict=True):
            assert_same_bits(own, of_float32.astype(own.dtype))
    buffered = op.backward(
        LAYOUTS["apart"](dy), *map(LAYOUTS["apart"], saved[:1]), *saved[1:], **more
    )
    assert_all_same_bits(parameters, buffered[1:])

    none = [None] * len(parameters)
    beside = np.empty(found.size + 1, narrow)[1:].reshape(found.shape)  # where no float may lie
    outs = (beside, *map(np.empty_like, parameters))
    op.backward(dy, *saved, **more, out=outs)
    assert_all_same_bits(outs, (found, *parameters))
    assert_same_bits(op.backward(dy, *saved, **more, out=(dy.copy(), *none))[0], found)
    for at in range(len(parameters)):
        outs = [None] * (1 + len(parameters))
        outs[1 + at] = np.empty_like(parameters[at])
        alone = op.backward(dy, *saved, **more, out=tuple(outs))
        assert_same_bits(alone[1 + at], parameters[at])
    onto = LAYOUTS[layout](held.copy())
    op.backward(dy, *saved, **more, out=(onto, *none), accumulate=True)
    assert_same_bits(onto, (held.astype(np.float32) + exact).astype(narrow))
    place = LAYOUTS[layout](dy.copy())
    assert_same_bits(op.backward(place, *saved, **more, out=(place, *none))[0], found)


# Spans a little longer than the shortest that is one, than registers hold (32), and than is worth a
# call of its own (1024); rows of one chunk, of many, and rows that go by fewer than eight.
@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("op", "shape"),
    [
        *product(["group_norm", "instance_norm"], [(2, 6, n) for n in (33, 63, 96, 1000, 1025)]),
        *product(["layer_norm", "rms_norm"], [(12, 33), (12, 1000), (11, 3136), (11, 50_001)]),
    ],
    ids=str,
)
def test_16_bits_are_float32_rounded(op, shape, layout, narrow, isa):
    """Results, and the gradients of norms by spans."""
    call = fa.ops[op]
    takes_groups = "num_groups" in call.entry_points["call"].defaults
    setting = Setting(op, shape, groups=3 if takes_groups else 0)
    is_by_span = len(shape) == 3
    rng = np.random.default_rng(0)
    x, dy = (LAYOUTS[layout](rng.normal(size=shape).astype(narrow)) for _ in range(2))
    weights = [rng.normal(size=shape[1]).astype(narrow) for _ in range(2)]
    weights = weights[: len(call.gradients) - 1]
    y, saved = call.forward(x, *setting.positional, *weights)
    wide_x, *wide = (a.astype(np.float32) for a in (x, *weights))
    exact, exact_saved = call.forward(wide_x, *setting.positional, *wide)
    assert_same_bits(y, exact.astype(narrow))
    place = LAYOUTS[layout](x.copy())
    call(place, *setting.positional, *weights, out=place)
    assert_same_bits(place, y)
    if is_by_span:
        exact_dx = call.backward(dy.astype(np.float32), *exact_saved)[0]
        assert_same_bits(call.backward(dy, *saved)[0], exact_dx.astype(narrow))


@pytest.mark.parametrize("shape", [(40, 77), (5, 2500), (2, 300_001)], ids=str)
def test_statistics_have_the_bits_of_mean_var(shape, dtype, isa):
    """One formula for both: a row in a block, in a few, and in chunks of blocks."""
    x = (100 + np.random.default_rng(0).normal(size=shape)).astype(dtype)
    compute = np.promote_types(dtype, np.float32)
    mean, _ = fa.mean_var(x.astype(compute), -1, keepdims=True)
    strided = np.asfortranarray(x)
    for a in (x, strided):
        _, (_, saved_mean, rstd, *_) = fa.layer_norm.forward(a)
        assert_same_bits(saved_mean, mean)
        # Of a variance that is not rounded between, as it is by mean_var.
        m = fa.moments(a, -1, keepdims=True)
        assert_same_bits(rstd, (1 / np.sqrt(m.var() + 1e-5)).astype(compute))
