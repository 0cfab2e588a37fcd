"""Reductions: sums over any axes of any layout, within their bound, always with the same bits."""

import inspect
import math
import os
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
import torch
from conftest import DTYPES, assert_same_bits
from devices import KERNELS
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from test_layouts import _views as views
from test_layouts import is_aligned
from test_memory import peak
from test_threads import run_python

import fastact as fa
from fastact import _cpu

REDUCTIONS = [op for op in fa.ops.values() if op.family == "reductions"]

# Each way of walking: shape and axes. Long and short rows, one and many blocks of 2048 terms, wide,
# narrow and tall columns, terms in pieces, few terms of many outputs.
CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((70_001,), (0,)),
    ((40, 5003), (1,)),
    ((300, 1000), (1,)),
    ((3000, 37), (1,)),
    ((5003, 700), (0,)),
    ((6, 20_000), (0,)),
    ((20_001, 3), (0,)),
    ((20_001, 3), (1,)),
    ((9001, 12), (1,)),
    ((3, 20_001), (1,)),
    ((5, 2500, 65), (1,)),
    ((400, 7, 3), (1,)),
    ((9, 6, 24, 24), (0, 2, 3)),
    ((9, 6, 23, 25), (0, 2, 3)),
    ((9, 24, 24, 6), (0, 1, 2)),
    ((50, 40, 7, 7), (0, 2, 3)),
    ((30, 20, 10, 9), (0, 2)),
    ((30, 20, 10, 9), (1, 3)),
]
case = pytest.mark.parametrize(("shape", "axes"), CASES, ids=str)


@pytest.fixture(params=REDUCTIONS, ids=lambda op: op.name)
def op(request: pytest.FixtureRequest) -> Any:
    return request.param


def finite(dtype: Any, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Values of mixed signs and magnitudes, whose sums stay within every dtype."""
    rng = np.random.default_rng(seed)
    return np.asarray(rng.normal(size=shape) * 10.0 ** rng.uniform(-3, 1, shape)).astype(dtype)


def ulp(y: np.ndarray) -> np.ndarray:
    """The unit in the last place of each element, in float64."""
    info = ml_dtypes.finfo(y.dtype)
    _, exponent = np.frexp(np.maximum(np.abs(y.astype(float)), float(info.smallest_normal)))
    return np.ldexp(1.0, exponent - 1 - info.nmant)


def assert_within_bounds(op: Any, y: Any, x: np.ndarray, axes: tuple[int, ...]) -> None:
    y = np.asarray(y).reshape(-1)
    rows = reference.TERM[op.name](reference.terms(x.astype(np.float64), axes))
    largest = float(ml_dtypes.finfo(y.dtype).max)
    over = np.isinf(y.astype(float))
    assert (np.abs(rows[over].sum(1)) > largest).all()
    error = [
        reference.sum_error(row, float(v)) for row, v in zip(rows[~over], y[~over], strict=True)
    ]
    allowed = op.bounds.ulp * ulp(y[~over]) + op.bounds.absolute * np.abs(rows[~over]).sum(1)
    assert (np.array(error) <= allowed).all()


# --- accuracy -------------------------------------------------------------------------------------


@case
def test_accuracy(op, dtype, backend, shape, axes):
    x = finite(dtype, shape)
    assert_within_bounds(op, backend.run(op, x, axis=axes), x, axes)


def test_cancellation():
    """The bound is relative to sum|x|; what cancels exactly leaves nothing."""
    op = fa.sum
    x = finite(np.float64, (100_001,)) * 1e10
    x = np.concatenate([x, -x, [1.0]])
    assert_within_bounds(op, op(x), x, (0,))
    assert op(np.tile([1e16, -1e16], 5000)) == 0


def test_16_bit_counts(op):
    for dtype in (np.float16, ml_dtypes.bfloat16):
        assert op(np.ones(1600, dtype)) == 1600
    assert op(np.ones(70_000, ml_dtypes.bfloat16)) == ml_dtypes.bfloat16(70_000)
    assert op(np.ones(70_000, np.float16)) == np.inf


def test_large_offset(op):
    """2^24 values around 1e4: a plain float32 sum has lost half its digits by then."""
    x = np.random.default_rng(0).normal(1e4, 1, 1 << 24).astype(np.float32)
    expected = reference.TERM[op.name](x.astype(np.float64)).sum()
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


def test_infinities_and_nan(op, dtype):
    inf, nan = np.inf, np.nan
    for where in (0, 40, 2500):  # in the first lane, in another, in the second block
        for values in ((inf,), (-inf,), (inf, -inf), (nan,)):
            with np.errstate(invalid="ignore"):
                expected = float(reference.TERM[op.name](np.array(values)).sum())
            x = np.ones(5000, dtype)
            x[where : where + len(values)] = values
            for y in (op(x), op(np.tile(x, (3, 1)), 1)[1], op(np.tile(x[:, None], 70), 0)[69]):
                np.testing.assert_equal(float(y), expected)
    with np.errstate(over="ignore"):
        assert op(np.full(5000, np.finfo(np.float64).max)) == inf


def test_sign_of_zero(op, dtype):
    """As in NumPy: minus zero if all terms are, and a sum over nothing is plus zero."""
    negative = op is fa.sum  # the square of -0 is 0
    for shape, axis in (((3,), 0), ((5000,), 0), ((3, 100), 0), ((3, 5000), 1), ((100, 3), 1)):
        y = op(np.full(shape, -0.0, dtype), axis)
        assert (np.signbit(np.asarray(y).astype(float)) == negative).all()
    assert not np.signbit(np.asarray(op(np.zeros((0, 3), dtype), 0)).astype(float)).any()


# --- the same bits --------------------------------------------------------------------------------


@case
def test_threads_and_instruction_sets(op, dtype, shape, axes):
    x = finite(dtype, shape)
    chosen = _cpu.isa()
    with fa.num_threads(1):
        expected = op(x, axes)
    try:
        for isa in _cpu.supported_isas():
            _cpu.select_isa(isa)
            for n in (1, 2, 3, 7):
                with fa.num_threads(n):
                    assert_same_bits(op(x, axes), expected)
    finally:
        _cpu.select_isa(chosen)


def test_without_workspace(op, many_threads):
    """The workspace serves the threads alone."""
    x, y = finite(np.float64, (30_000, 5)), np.zeros((1, 5))
    source, target = _cpu.View.from_numpy(x), _cpu.View.from_numpy(y)
    term = type(op).term
    assert _cpu.sum_workspace(term, source, target, (0,)) > 0
    _cpu.sum(term, source, target, (0,), None, False, 0)
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


@case
@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
def test_on_devices_addresses_and_other_rows_do_not_show(op, device, shape, axes):
    """There the innermost axis decides as well how rows are cut, so it is left whole."""
    x = finite(np.float32, shape)
    y = device.run(op, x, axis=axes, keepdims=True)
    for offset in (1, 2, 3):
        held = np.zeros(x.size + offset, x.dtype)[offset:].reshape(shape)
        held[...] = x
        assert_same_bits(device.run(op, held, axis=axes, keepdims=True), y)
    whole = (*axes, x.ndim - 1)
    at = tuple(slice(None) if i in whole else slice(1, 2) for i in range(x.ndim))
    assert_same_bits(device.run(op, x[at], axis=axes, keepdims=True), y[at])


@case
def test_misaligned(op, dtype, shape, axes):
    x = finite(dtype, shape)
    for offset in (1, dtype.itemsize, 3 * dtype.itemsize):
        memory = np.zeros(x.nbytes + offset, np.uint8)[offset:]
        moved = np.ndarray(shape, dtype, memory)
        moved[...] = x
        assert_same_bits(op(moved, axes), op(x, axes))


@settings(max_examples=300, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)), st.sampled_from(REDUCTIONS))
def test_any_layout(data, name, op):
    shape = tuple(data.draw(st.lists(st.integers(0, 7), max_size=5)))
    axes = tuple(axis for axis in range(len(shape)) if data.draw(st.booleans()))
    dtype = DTYPES[name]
    x = data.draw(views(shape))(finite(dtype, shape))
    y = op(x, axes)
    assert_within_bounds(op, y, x, axes)
    kept = op(x, axes, keepdims=True)
    assert kept.shape == tuple(1 if i in axes else n for i, n in enumerate(shape))
    assert_same_bits(np.asarray(kept).reshape(np.shape(y)), y)
    out = data.draw(views(np.shape(y), writable=True))(np.zeros(np.shape(y), dtype))
    assert op(x, axes, out=out) is out
    assert_same_bits(out, y)
    if len(axes) <= 1 and all(x.strides[axis] >= 0 for axis in axes):
        assert_same_bits(op(np.ascontiguousarray(x).reshape(shape), axes), y)


@pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)), st.sampled_from(REDUCTIONS))
def test_any_layout_on_devices(device, data, name, op):
    shape = tuple(data.draw(st.lists(st.integers(0, 20), max_size=4)))
    axes = tuple(axis for axis in range(len(shape)) if data.draw(st.booleans()))
    x = data.draw(views(shape))(finite(DTYPES[name], shape))
    assume(is_aligned(x))
    y = device.run(op, x, axis=axes)
    assert_within_bounds(op, y, x, axes)
    assert_same_bits(device.run(op, x, axis=axes, keepdims=True).reshape(y.shape), y)


# --- the op ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", range(9))
def test_every_rank(op, dtype, rank):
    x = finite(dtype, (2,) * rank)
    for axis in (None, *range(-rank, rank), tuple(range(0, rank, 2))):
        y = op(x, axis)
        assert np.shape(y) == np.shape(np.sum(x.astype(float), axis))
        chosen = range(rank) if axis is None else np.atleast_1d(axis).astype(int) % max(rank, 1)
        assert_within_bounds(op, y, x, tuple(sorted(int(a) for a in chosen)))


@pytest.mark.parametrize(
    ("shape", "axis"), [((0,), 0), ((0, 3), 0), ((3, 0), 0), ((3, 0, 2), (1, 2)), ((0, 0), None)]
)
def test_empty(op, dtype, framework, shape, axis):
    x = np.ones(shape, dtype)
    expected = x.astype(float).sum(axis).astype(dtype)
    assert_same_bits(np.asarray(framework.numpy(op(framework.of(x), axis))), expected)
    out = framework.of(np.full(expected.shape, 7, dtype))
    op(framework.of(x), axis, out=out)
    assert_same_bits(framework.numpy(out), expected)


def test_takes_what_numpy_takes(op):
    assert op([1, 2, 3]) == reference.TERM[op.name](np.arange(4.0)).sum()
    assert op([1, 2, 3]).dtype == np.float64
    assert op(3) == reference.TERM[op.name](np.float64(3))
    assert op(np.arange(6, dtype=np.int8).reshape(2, 3), 0).dtype == np.float16
    assert op([[True, False], [True, True]], axis=np.int64(1)).tolist() == [1.0, 2.0]
    assert op(np.ones((2, 3)), axis=[0, 1]) == 6.0
    assert op(np.ones((2, 3)), axis=()).tolist() == [[1.0] * 3] * 2


def gradient(op: Any, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """dx for dy that broadcasts against x, in the dtype in which it is computed."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    dx = np.broadcast_to(dy, x.shape).astype(wide)
    return 2 * (dx * x.astype(wide)) if op is fa.sum_squares else dx


def test_three_doors(op, dtype, framework):
    x = finite(dtype, (4, 5, 6))
    y, saved = op.forward(framework.of(x), (0, 2))
    if op is fa.sum:
        assert saved == ((4, 5, 6),)
    else:
        assert_same_bits(framework.numpy(saved[0]), x)
    assert_within_bounds(op, framework.numpy(y), x, (0, 2))
    dy = finite(dtype, (5,), seed=1)
    wide = gradient(op, dy[:, None], x)
    expected = wide.astype(dtype)
    dx = op.backward(framework.of(dy), *saved, (0, 2))
    assert_same_bits(framework.numpy(dx), expected)
    kept = framework.of(dy.reshape(1, 5, 1))
    assert_same_bits(framework.numpy(op.backward(kept, *saved, (0, 2), keepdims=True)), expected)
    out = framework.of(np.ones(x.shape, dtype))
    assert op.backward(framework.of(dy), *saved, (0, 2), out=out, accumulate=True) is out
    assert_same_bits(framework.numpy(out), (1 + wide).astype(dtype))


def test_backward_of_a_number(framework):
    op = fa.sum
    assert_same_bits(op.backward(2.0, (2, 3)), np.full((2, 3), 2.0))
    out = framework.of(np.zeros((2, 3), np.float32))
    op.backward(2, (2, 3), 1, out=out)
    op.backward(0.5, (2, 3), 0, out=out, accumulate=True)
    assert_same_bits(framework.numpy(out), np.full((2, 3), 2.5, np.float32))
    x = framework.of(np.arange(3, dtype=np.float32))
    dx = framework.numpy(fa.sum_squares.backward(0.5, x))
    assert_same_bits(dx, np.arange(3, dtype=np.float32))


def test_backward_of_an_empty_sum():
    assert fa.sum.backward(np.ones(3), (3, 0), 1).shape == (3, 0)
    assert fa.sum.backward(np.ones(()), (), ()) == 1
    assert fa.sum_squares.backward(np.ones(3), np.ones((3, 0)), 1).shape == (3, 0)
    assert fa.sum_squares.backward(np.ones(()), np.ones(()), ()) == 2


def test_torch_gradients(op):
    x = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(4, dtype=torch.float64)
    (x if op is fa.sum else x**2).sum((0, 2)).backward(dy)
    _, saved = op.forward(x.detach(), (0, 2))
    torch.testing.assert_close(op.backward(dy, *saved, (0, 2)), x.grad, rtol=1e-15, atol=0)


def test_gradient_of_squares_overflows_only_where_it_must():
    x = np.array([3e38, 1e-30], np.float32)
    np.testing.assert_allclose(
        fa.sum_squares.backward(np.array([0.1, 1e30], np.float32), x, ()), [6e37, 2], 1e-6
    )


@pytest.mark.parametrize("layout", ["plain", "strided", "transposed"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (5003,), (40, 70, 30)], ids=str)
def test_value_and_grad(dtype, framework, shape, layout):
    """The bits of the value are those of the op; the gradient is exact."""
    x = finite(dtype, shape)
    if x.ndim and layout == "strided":
        x = np.repeat(x, 2, -1)[..., ::2]
    x = x.T if layout == "transposed" else x
    op, wide = fa.sum_squares, np.float64 if dtype == np.float64 else np.float32
    expected, doubled = framework.run(op, x), (2 * x.astype(wide)).astype(dtype)
    for n in (1, 2, 5):
        with fa.num_threads(n):
            value, grad = op.value_and_grad(framework.of(x))
            if framework.exact:
                assert_same_bits(np.asarray(framework.numpy(value)), np.asarray(expected))
            assert_within_bounds(op, framework.numpy(value), x, tuple(range(x.ndim)))
            assert_same_bits(framework.numpy(grad), doubled)
    out = framework.of(np.zeros((), dtype)), framework.of(np.zeros(x.shape, dtype))
    value, grad = op.value_and_grad(framework.of(x), out)
    assert value is out[0]
    assert grad is out[1]
    assert_same_bits(framework.numpy(grad), doubled)
    value, grad = op.value_and_grad(framework.of(x), (None, out[1]))
    assert grad is out[1]


def test_value_and_grad_in_place_and_errors():
    x = finite(np.float32, (3000,))
    expected = fa.sum_squares(x), 2 * x
    value, _ = fa.sum_squares.value_and_grad(x, (None, x))
    assert value == expected[0]
    assert_same_bits(x, expected[1])
    where = r"^fastact\.sum_squares\.value_and_grad: "
    with pytest.raises(ValueError, match=where + "out must be a tuple of 2, got one ndarray"):
        fa.sum_squares.value_and_grad(x, x)
    with pytest.raises(ValueError, match=where + r"out\[0\] must have shape \(\), got"):
        fa.sum_squares.value_and_grad(x, (x, None))
    with pytest.raises(ValueError, match=where + r"out\[1\] must not share memory with out\[0\]"):
        fa.sum_squares.value_and_grad(x.copy(), (x[5:6].reshape(()), x))


def test_output_keeps_the_order(op):
    x = np.asfortranarray(np.ones((4, 5, 6)))
    assert op(x, 1, keepdims=True).flags.f_contiguous
    assert op(x, 1).flags.c_contiguous


def test_out_as_a_tuple(op):
    x, out = finite(np.float64, (3, 4)), np.zeros(4)
    assert op(x, 0, out=(out,)) is out
    assert_same_bits(out, op(x, 0))


def test_neighbours_are_left_alone(op, dtype):
    held = np.full((9, 40), 7, dtype)
    x = finite(dtype, (4, 13, 50))
    op(x, 2, out=held[1:9:2, 2:40:3])
    assert_same_bits(held[1:9:2, 2:40:3], op(x, 2))
    mask = np.ones(held.shape, bool)
    mask[1:9:2, 2:40:3] = False
    assert (held[mask].astype(float) == 7).all()


def test_introspection(op):
    assert pickle.loads(pickle.dumps(op)) is op
    assert repr(op) == f"<fastact op '{op.name}'>"
    names = list(inspect.signature(op).parameters)
    assert names == ["x", "axis", "keepdims", "out", "stream"]
    for section in ("Parameters", "Returns", "Raises", "Notes", "References", "Examples"):
        assert f"{section}\n" in op.__doc__


# --- errors ---------------------------------------------------------------------------------------


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def read_only() -> np.ndarray:
    a = f32(3)
    a.flags.writeable = False
    return a


square = f32(4, 4)

# arguments, keywords, error, words of the message
ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "complex": ((np.ones(3, complex),), {}, TypeError, "x must have dtype .* got complex128"),
    "axis too large": (
        (f32(2, 3), 2), {}, ValueError, "axis must be from -2 to 1 for an array with 2 axes, got 2",
    ),
    "axis too small": ((f32(2, 3), -3), {}, ValueError, "axis must be from -2 to 1.*got -3"),
    "axis of a scalar": ((f32(), 0), {}, ValueError, r"axis must be None or \(\).*got 0"),
    "axis repeated": (
        (f32(2, 3), (0, -2)), {}, ValueError, r"axis must name each axis once, got \(0, -2\)",
    ),
    "float axis": ((f32(2, 3), 1.0), {}, TypeError, "axis must be None, an integer or .*got 1.0"),
    "bool axis": ((f32(2, 3), True), {}, TypeError, "axis must be None, an integer .*got True"),
    "string axis": ((f32(2, 3),), {"axis": "0"}, TypeError, "axis must be None, .*got '0'"),
    "keepdims": ((f32(3), 0), {"keepdims": 1}, TypeError, "keepdims must be True or False, got 1"),
    "keepdims by position": ((f32(3), 0, True), {}, TypeError, "takes at most 1 arg"),
    "misspelt": ((f32(3),), {"keepdim": True}, TypeError, "did you mean 'keepdims'"),
    "out of x's shape": (
        (f32(2, 3), 0), {"out": f32(2, 3)}, ValueError, r"out must have shape \(3,\), got \(2, 3\)",
    ),
    "out without keepdims": (
        (f32(2, 3), 0), {"keepdims": True, "out": f32(3)}, ValueError, r"shape \(1, 3\), got",
    ),
    "out of wrong dtype": (
        (f32(2, 3), 0), {"out": np.ones(3)}, TypeError, "out must have dtype float32.*got float64",
    ),
    "out of another framework": ((f32(2, 3), 0), {"out": torch.ones(3)}, TypeError, "got torch"),
    "read-only out": ((f32(2, 3), 0), {"out": read_only()}, ValueError, "out must be writable"),
    "out in x": ((square, 0), {"out": square[1]}, ValueError, "out must not share memory with x"),
    "stream": ((f32(3),), {"stream": 1}, ValueError, "stream must be None for arrays on the CPU"),
    "requires grad": ((torch.ones(3, requires_grad=True),), {}, TypeError, r"use x\.detach\(\)"),
}  # fmt: skip

BACKWARD_ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "shape of dy": ((f32(2), (2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got \(2,\)"),
    "no broadcasting": ((f32(1), (2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got"),
    "keepdims": ((f32(3), (2, 3), 0), {"keepdims": True}, ValueError, r"shape \(1, 3\), got \(3,"),
    "axis": ((f32(3), (2, 3), 5), {}, ValueError, "axis must be from -2 to 1"),
    "float shape": ((f32(3), (2.0, 3), 0), {}, TypeError, "shape must be a tuple of integers, got"),
    "no shape": ((f32(3), 3, 0), {}, TypeError, "shape must be a tuple of integers, got 3"),
    "negative": ((f32(3), (-2, 3), 0), {}, ValueError, "shape must have no negative length"),
    "accumulate": ((f32(3), (2, 3), 0), {"accumulate": True}, ValueError, "come with out="),
    "out": ((f32(3), (2, 3), 0), {"out": f32(3)}, ValueError, r"out must have shape \(2, 3\), got"),
    "out is dy": ((square[0], (4, 4), 0), {"out": square}, ValueError, "not share memory with dy"),
    "dtype": ((f32(3), (2, 3), 0), {"out": np.ones((2, 3))}, TypeError, "out must have dtype"),
}  # fmt: skip

SQUARE_ERRORS: dict[str, tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = {
    "shape": ((f32(2), f32(2, 3), 0), {}, ValueError, r"dy must have shape \(3,\), got \(2,\)"),
    "dtype": ((np.ones(3), f32(2, 3), 0), {}, TypeError, "dy must have dtype float32, as x has"),
    "axis": ((f32(3), f32(2, 3), 5), {}, ValueError, "axis must be from -2 to 1"),
    "accumulate": ((f32(3), f32(2, 3), 0), {"accumulate": True}, ValueError, "come with out="),
    "out": ((f32(3), f32(2, 3), 0), {"out": f32(3)}, ValueError, r"out must have shape \(2, 3\)"),
    "out has dy": ((square[0], f32(4, 4), 0), {"out": square}, ValueError, "no memory with it"),
}  # fmt: skip


def test_errors(op):
    for arguments, keywords, error, words in ERRORS.values():
        for door, name in ((op, op.name), (op.forward, rf"{op.name}\.forward")):
            with pytest.raises(error, match=f"^fastact.{name}: .*{words}"):
                door(*arguments, **keywords)
    errors = BACKWARD_ERRORS if op is fa.sum else SQUARE_ERRORS
    for arguments, keywords, error, words in errors.values():
        with pytest.raises(error, match=rf"^fastact.{op.name}.backward: .*{words}"):
            op.backward(*arguments, **keywords)
    assert (square == 1).all()


# --- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((4_000_000,), 0), ((2000, 2000), 0), ((2000, 2000), 1), ((1_000_000, 4), 0)],
)
def test_no_memory_that_grows(op, dtype, many_threads, shape, axis):
    x = np.ones(shape, dtype)
    out = np.zeros(np.delete(shape, axis), dtype)
    wide = np.zeros((*shape, 2), dtype)[..., 0]
    dx = np.zeros(shape, dtype)
    (saved,) = (shape,) if op is fa.sum else (x,)
    total = np.zeros((), dtype)
    for call in (
        lambda: op(x, axis, out=out),
        lambda: op(wide, axis, out=out),
        lambda: op.backward(out, saved, axis, out=dx, accumulate=True),
        lambda: fa.sum_squares.value_and_grad(wide, (total, dx)),
    ):
        assert peak(call) < 20_000 + math.prod(shape) // 128


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads Linux's /proc")
def test_peak_of_the_process_is_flat(op):
    code = f"""
import numpy as np, fastact as fa, resource
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
op = fa.ops[{op.name!r}]
x = np.ones((2000, 2000), np.float32)
columns, total = np.zeros(2000, np.float32), np.zeros((), np.float32)
fa.set_num_threads(4)
op(x, 0, out=columns)
before = peak()
for source in (x, x.T, x[:, ::-2].T):
    op(source, out=total); op(source, 1, out=np.zeros(len(source), np.float32))
print(peak() - before)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2_000_000


def test_more_than_2_to_the_31_terms(op):
    """64-bit indices: one element, seen 2^31 + 9 times."""
    n = 2**31 + 9
    assert op(np.lib.stride_tricks.as_strided(np.ones(1), (n,), (0,))) == n
