"""Statistics over any axes of any layout, with NaN left out or not.

Within their bounds, and as NumPy has them where there is little or nothing left.
"""

import inspect
import math
import warnings
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from conftest import assert_same_bits, needs_two_fused_isas, on_fused_isas
from devices import DTYPES, FRAMEWORKS, Framework
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views
from processes import peak
from sums import case, statistic_error

import fastact as fa
from fastact.check.sums import with_gaps

# Those whose weights have a gradient are in test_weights.py.
OPS = [op for op in fa.ops.values() if op.family == "statistics" and op.gradients == ("dx",)]
SKIPPING = [op for op in OPS if op.skips]
CORRECTED = [op for op in OPS if op.of in ("var", "std")]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_skipping = pytest.mark.parametrize("op", SKIPPING, ids=lambda op: op.name)
each_corrected = pytest.mark.parametrize("op", CORRECTED, ids=lambda op: op.name)

LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "backwards": lambda x: x[..., ::-1],
    "apart": lambda x: np.repeat(x, 2, -1)[..., ::2],
}

pytestmark = pytest.mark.filterwarnings("ignore:Mean of empty|Degrees of freedom:RuntimeWarning")


def draw(op: Any, dtype: Any, shape: tuple[int, ...], centre: float = 10, seed: int = 0) -> Any:
    """Data; for what skips NaN with some: all of an output, its first terms, here and there."""
    x = np.random.default_rng(seed).normal(centre, 3, shape).astype(dtype)
    if not op.skips or not x.size:
        return x
    x[np.random.default_rng(seed + 1).random(shape) < 0.2] = np.nan
    if len(shape) > 1:
        x[..., 0][: shape[0] // 3] = np.nan
        x[0] = np.nan
        x[..., -1] = np.nan
    else:
        x[: shape[0] // 2] = np.nan
    return x


def close(
    op: Any,
    x: np.ndarray,
    axes: tuple[int, ...],
    framework: Framework = FRAMEWORKS[0],
    **named: Any,
) -> None:
    """Within the bounds that the docstring states."""
    y = framework.numpy(op(framework.of(x), axes, **named))
    assert y.dtype == x.dtype
    assert statistic_error(op, y, x, axes, **named) <= 1


# Of 5 MB and more, which come from memory, NaN is skipped as it is met; a row by itself, which is
# in a cache, is asked first whether it has one.
@each_skipping
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_from_memory_are_as_rows_alone(op, dtype):
    x = np.random.default_rng(0).normal(10, 3, (300, 4096 + 700)).astype(dtype)
    x[::3][np.random.default_rng(1).random((100, x.shape[1])) < 0.01] = np.nan
    x[5, 1024:2048] = np.nan  # a block
    x[7, 0] = x[8, 1024] = np.inf  # where a block begins
    x[9] = np.nan
    rows = [op(row) for row in x]
    for threads in (1, 2):
        with fa.num_threads(threads):
            assert_same_bits(op(x, 1), np.array(rows, dtype))


@case
@each_op
def test_within_the_bounds(op, dtype, backend, many_threads, shape, axes):
    close(op, draw(op, dtype, shape), axes, backend)


@case
@each_op
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "C"])
def test_layouts_within_the_bounds(op, dtype, many_threads, shape, axes, layout):
    close(op, LAYOUTS[layout](draw(op, dtype, shape)), axes)


@case
@each_corrected
def test_corrections(op, dtype, shape, axes):
    close(op, draw(op, dtype, shape), axes, correction=1)


@given(st.data(), st.sampled_from(sorted(DTYPES)), st.sampled_from(OPS))
@settings(max_examples=100, deadline=None)  # a first call may load a library
def test_any_layout(data, name, op):
    """Misaligned, repeated by strides of 0, turned, in any order of axes."""
    shape = data.draw(st.lists(st.integers(1, 40), max_size=4).map(tuple))
    x = data.draw(views(shape))(
        draw(op, DTYPES[name], shape) if shape else np.array(3, DTYPES[name])
    )
    axes = tuple(data.draw(st.sets(st.integers(0, max(len(shape) - 1, 0)), max_size=len(shape))))
    close(op, x, axes)


@case
@each_skipping
def test_same_bits_for_any_threads(isa, op, dtype, shape, axes):
    x = draw(op, dtype, shape)
    results = []
    for threads in (1, 2, 5):
        with fa.num_threads(threads):
            results.append(op(x, axes))
    for a, b in pairwise(results):
        assert_same_bits(a, b)


@needs_two_fused_isas
@case
@each_skipping
def test_avx2_and_avx512_have_the_same_bits(op, dtype, shape, axes):
    x = draw(op, dtype, shape)
    for a, b in pairwise(on_fused_isas(lambda: op(x, axes))):
        assert_same_bits(a, b)


@pytest.mark.parametrize("terms", [1, 2, 7, 8, 9, 32, 33, 200, 2048, 2049, 70_000])
@pytest.mark.parametrize("gap", [0, 1, 40, 3000])
@each_skipping
def test_same_bits_in_every_walk(op, dtype, terms, gap):
    """Along rows, down columns, narrow or strided, whatever lies beside: a set of values has one
    result. gap: NaN in front."""
    row = np.random.default_rng(terms).normal(100, 3, terms).astype(dtype)
    row[: min(gap, terms - 1)] = np.nan
    row[3::7] = np.nan
    y = op(row)
    other = np.full(terms, np.nan, dtype)
    wide = 70 if terms < 10_000 else 2
    for x, axis in (
        (np.stack([row, other, row]), 1),
        (np.stack([row, other, row]).T.copy(), 0),
        (np.tile(row, (wide, 1)).T.copy(), 0),
        (np.stack([np.repeat(row, 2)[::2]] * 3), 1),
        (np.repeat(row[:, None], 6, 1)[:, ::2], 0),
    ):
        found = op(x, axis)
        kept = found[[0, -1]]
        assert_same_bits(kept, np.full_like(kept, y))


# Of a mean one sum is divided by a count that is added up, but of the same terms.
@pytest.mark.parametrize("op", [op for op in SKIPPING if op.of != "mean"], ids=str)
@case
def test_without_nan_the_bits_are_those_of_all(op, dtype, shape, axes):
    plain = fa.ops[op.name.removeprefix("nan")]
    x = np.random.default_rng(0).normal(10, 3, shape).astype(dtype)
    assert_same_bits(op(x, axes), plain(x, axes))


# Numbers of any size, some of which underflow, and of one size; more outputs than a tile has.
@pytest.mark.parametrize("sizes", ["any", "alike"])
@pytest.mark.parametrize("terms", range(1, 9))
@pytest.mark.parametrize("gaps", [0, 7])
def test_a_mean_is_rounded_as_a_division(isa, sizes, terms, gaps):
    """Where all outputs have one count it is a product and an fma that give it."""
    rng = np.random.default_rng(terms)
    bits = rng.integers(0, 2**64, 5003, dtype=np.uint64).view(np.float64)
    x = np.zeros((terms, bits.size))
    x[0] = rng.normal(size=bits.size) if sizes == "alike" else np.where(np.isfinite(bits), bits, 3)
    if gaps:
        x[1:, ::gaps] = np.nan
    expected = x[0] / (~np.isnan(x)).sum(0)
    assert_same_bits(fa.nanmean(x, 0), expected)
    assert_same_bits(fa.nanmean(x.T.copy(), 1), expected)


# --- hard data, and little of it ------------------------------------------------------------------


@pytest.mark.parametrize("terms", [1, 19, 2048 + 37])  # less than a vector, a block and some more
def test_the_only_nan_is_seen_wherever_it_is(isa, dtype, terms):
    x = (np.arange(terms) % 3).astype(dtype)
    total = int(x.astype(np.int64).sum())
    for at in {*range(0, terms, 61), *range(max(terms - 80, 0), terms)}:
        was, x[at] = x[at], np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a mean of nothing
            sums = fa.nansum(x), fa.nanmean(x), fa.nansum(np.stack([x, x]), axis=1)[1]
        x[at] = was
        assert sums[0] == sums[2] == np.asarray(total - int(was), dtype), at
        assert terms == 1 or sums[1] == np.asarray((total - int(was)) / (terms - 1), dtype), at


def test_far_from_zero(backend):
    """Where a first term that is NaN says nothing of where the data lie."""
    x = np.random.default_rng(0).normal(1e4, 1, 100_000).astype(np.float32)
    x[::2048] = np.nan
    x[4096:6144] = np.nan
    x[8192:8292] = np.nan
    exact = np.nanvar(x.astype(np.float64))
    for y in (x, np.stack([x] * 3, 1), np.stack([x] * 80, 1)):
        found = np.ravel(backend.numpy(fa.nanvar(backend.of(y), 0)))
        np.testing.assert_allclose(found, exact, rtol=1e-6)


@pytest.mark.parametrize("size", [2.0**100, 2.0**-70], ids=["large", "small"])
def test_deviations_whose_squares_bfloat16_lacks(backend, size):
    """A standard deviation has numbers where its square is infinite, or 0."""
    x = (np.random.default_rng(0).normal(size=(5, 70)) * size).astype(ml_dtypes.bfloat16)
    exact = x.astype(np.float64)
    for few in (slice(None), slice(0, 3)):  # which devices hold in registers
        rows = np.ascontiguousarray(x[:, few])
        found = backend.run(lambda a: fa.std(a, axis=1), rows)
        expected = exact[:, few].std(1)
        np.testing.assert_allclose(found.astype(float), expected, 2.0**-8)
        variances = backend.run(lambda a: fa.var(a, axis=1), rows)
        assert (variances == (np.inf if size > 1 else 0)).all()


def test_many_float32():
    """bottleneck adds them up in float32, and its mean of 1e8 uniforms is 0.168."""
    x = np.broadcast_to(np.random.default_rng(0).random(1000, np.float32), (20_000, 1000))
    exact = x[0].astype(np.float64).mean()
    assert abs(float(fa.nanmean(x)) - exact) < 1e-7
    assert abs(float(fa.mean(x)) - exact) < 1e-7


def test_float32_down_columns():
    """NumPy's mean over the first axis of float32 is off by percents."""
    x = np.full((1_000_000, 4), 0.1, np.float32)
    assert (fa.mean(x, 0) == np.float32(0.1)).all()
    assert (fa.nanvar(x, 0) == 0).all()


@each_op
def test_nothing(op):
    for shape in ((0,), (0, 3), (3, 0)):
        with warnings.catch_warnings(record=True) as ours, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            found = op(np.zeros(shape), 0)
        with warnings.catch_warnings(record=True) as theirs, np.errstate(all="ignore"):
            warnings.simplefilter("always")
            expected = getattr(np, op.name)(np.zeros(shape), 0)
        np.testing.assert_array_equal(found, expected)
        assert bool(ours) == bool([w for w in theirs if "invalid" not in str(w.message)])


@each_op
@pytest.mark.parametrize("many", [False, True])
def test_warnings(op, many):
    """In each of many calls, the recorded ones too, and at the caller's line."""
    few = np.array([[1.0, np.nan, np.nan], [np.nan] * 3, [1.0, 2.0, 3.0]])
    few = np.repeat(few, 3000, 1) if many else few
    if not op.skips:
        few = few[2:, :1]
    named = {"correction": 1} if op in CORRECTED else {}
    is_few = op.of != "sum" and not (op.of == "mean" and not op.skips)
    for _ in range(4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            op(few, 1, **named)
        assert len(caught) == is_few
        for warning in caught:
            assert warning.category is RuntimeWarning
            assert warning.filename == __file__
            assert str(warning.message).removesuffix(".") in (  # NumPy has both
                "Mean of empty slice",
                "Degrees of freedom <= 0 for slice",
            )
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert np.isfinite(op(np.arange(6.0).reshape(2, 3), 1, **named)).all()


@each_corrected
@pytest.mark.parametrize("correction", [0, 1, 2, 3, 2.5, -1])
def test_few_elements(op, correction):
    x = np.array([[1.0, np.nan, 3.0], [np.nan, 5.0, np.nan], [1.0, 2.0, 4.0]])
    x = x if op.skips else x[2:]
    with np.errstate(all="ignore"):
        expected = getattr(np, op.name)(x, 1, ddof=correction)
    np.testing.assert_allclose(op(x, 1, correction=correction), expected, rtol=1e-14)


@each_op
def test_what_is_not_finite(op):
    for row in ([np.inf, 1.0], [np.inf, -np.inf], [-np.inf, 2, 3], [1.0, np.nan], [np.nan, np.inf]):
        with np.errstate(all="ignore"):
            expected = getattr(np, op.name)(np.float64(row))
        np.testing.assert_array_equal(op(np.float64(row)), expected)
    assert op(np.full(3, 7.0)) == {"sum": 21, "mean": 7, "var": 0, "std": 0}[op.of]


@each_op
def test_dtypes(op, dtype):
    x = np.array([1, 2, 4], dtype)
    assert op(x).dtype == dtype
    assert np.ndim(op(np.float64(3.0))) == 0
    for kind in (bool, np.int8, np.uint8, np.int64):
        found = op(np.array([1, 0, 1, 1], kind))
        assert found.dtype == np.float64
        assert found == getattr(np, op.name)(np.array([1.0, 0, 1, 1]))
    assert op([1, 2, 4]) == op(np.array([1.0, 2, 4]))
    with pytest.raises(TypeError, match="x must have dtype"):
        op(np.zeros(3, complex))


@each_op
def test_entry_points(op, dtype):
    x = draw(op, dtype, (4, 30, 7))
    y = op(x, (0, 2))
    assert op(x, (0, 2), keepdims=True).shape == (1, 30, 1)
    for layout in LAYOUTS.values():
        out = layout(np.zeros((30,), dtype))
        for _ in range(3):
            assert op(x, (0, -1), out=out) is out
        assert_same_bits(np.ascontiguousarray(out), y)
    again, saved = op.forward(x, (0, 2))
    assert_same_bits(again, y)
    assert saved[0] is x
    assert "correction" in inspect.signature(op).parameters or op.of in ("sum", "mean")


ERRORS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "axis": ((np.zeros((2, 3)), 2), {}, ValueError, "axis must be from -2 to 1"),
    "twice": ((np.zeros((2, 3)), (0, -2)), {}, ValueError, "axis must name each axis once"),
    "keepdims": ((np.zeros(3),), {"keepdims": 1}, TypeError, "keepdims must be True or False"),
    "out": ((np.zeros((2, 3)), 0), {"out": np.zeros(2)}, ValueError, r"out must have shape \(3,\)"),
    "keyword": ((np.zeros(3),), {"dof": 1}, TypeError, "unknown keyword 'dof'"),
}


@each_op
@pytest.mark.parametrize("name", ERRORS)
def test_errors(op, name):
    args, named, kind, words = ERRORS[name]
    for _ in range(2):
        with pytest.raises(kind, match=f"fastact.{op.name}: {words}"):
            op(*args, **named)


@each_op
@pytest.mark.parametrize(
    ("shape", "axis"), [((4_000_000,), 0), ((2000, 2000), 0), ((2000, 2000), 1)]
)
def test_no_memory_that_grows(op, dtype, many_threads, shape, axis):
    x = np.ones((*shape, 2), dtype)[..., 0]
    out = np.zeros(np.delete(shape, axis), dtype)
    assert peak(lambda: op(x, axis, out=out)) < 20_000 + math.prod(shape) // 64


# --- gradients ------------------------------------------------------------------------------------


def torchs(op: Any, x: torch.Tensor, axes: tuple[int, ...], correction: float) -> torch.Tensor:
    """The statistic by operations that torch differentiates."""
    counts = ~torch.isnan(x) if op.skips else torch.ones_like(x, dtype=torch.bool)
    held = torch.where(counts, x, 0.0)
    total, count = held.sum(axes, keepdim=True), counts.sum(axes, keepdim=True)
    if op.of == "sum":
        return total
    mean = total / count
    if op.of == "mean":
        return mean
    d = torch.where(counts, x - mean, 0.0)
    var = (d * d).sum(axes, keepdim=True) / (count - correction)
    return var if op.of == "var" else var.sqrt()


@each_op
@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(op, dtype, layout, backend):
    """Against torch's autograd in float64."""
    x = LAYOUTS[layout](np.random.default_rng(0).normal(10, 3, (7, 30, 20)).astype(dtype))
    if op.skips:
        x[np.random.default_rng(1).random(x.shape) < 0.3] = np.nan
    named = {"correction": 1} if op in CORRECTED else {}
    for axes in ((1,), (0, 2), (0, 1, 2)):
        wide = torch.tensor(x.astype(np.float64), requires_grad=True)
        y = torchs(op, wide, axes, 1)
        dy = np.random.default_rng(2).normal(size=tuple(y.shape)).astype(dtype)
        y.backward(torch.tensor(dy.astype(np.float64)))
        given = tuple(map(backend.of, (dy, x)))
        dx = backend.numpy(op.backward(*given, axis=axes, keepdims=True, **named))
        expected = np.nan_to_num(wide.grad.numpy())
        eps = {2: 2.0**-7, 4: 2.0**-21, 8: 2.0**-42}[x.itemsize]
        scale = float(np.abs(expected).max())
        np.testing.assert_allclose(dx.astype(np.float64), expected, rtol=eps, atol=eps * scale)
        if backend is FRAMEWORKS[0]:
            twice = dx.copy()
            op.backward(dy, x, axis=axes, keepdims=True, out=twice, accumulate=True, **named)
            np.testing.assert_allclose(twice.astype(float), 2 * dx.astype(float), rtol=2 * eps)
            alike = x.copy("K")  # the order of the axes in memory may show
            assert_same_bits(
                op.backward(dy, alike, axis=axes, keepdims=True, out=alike, **named), dx
            )


@each_op
def test_gradients_of_equal_values_and_infinities(op):
    dx = op.backward(1.0, np.full(4, 3.0))
    assert (dx == {"sum": 1, "mean": 0.25}.get(op.of, 0.0)).all()
    if op.of in ("sum", "mean"):
        np.testing.assert_array_equal(
            op.backward(2.0, np.array([np.inf, 1])), 2 * dx[:2] * (2 if op.of == "mean" else 1)
        )


@each_op
def test_autograd(op):
    x = torch.linspace(1, 2, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: op(t, 1), (x,))
    y = op(x, 0)
    assert y.requires_grad


def test_bfloat16_of_ones():
    x = np.ones(1 << 20, ml_dtypes.bfloat16)
    assert fa.nansum(x) == 1 << 20
    assert fa.nanmean(x) == 1


def test_gaps_are_what_they_say():
    rows = with_gaps(np.ones((9, 100)))
    assert np.isnan(rows[0]).all()
    assert np.isnan(rows[1, :50]).all()
    assert not np.isnan(rows[2]).all()


@pytest.mark.parametrize(("count", "correction"), [(1, 1), (3, 3), (2, 5)])
def test_a_deviation_of_too_few_elements_has_no_gradient(count, correction, backend):
    """It is NaN, though m2 is 0; of enough equal elements it is 0."""
    for more in (correction, 0):
        dx = backend.run(lambda x, c=more: fa.std.backward(1.0, x, correction=c), np.ones(count))
        assert (np.isnan(dx) if more else dx == 0).all()
