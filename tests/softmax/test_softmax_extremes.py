"""softmax and its kin where z leaves the range, and masks beside infinities and NaN."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import assert_same_bits
from devices import DEVICES, DTYPES, Framework

import fastact as fa
from fastact.check import reference

OPS = [fa.softmax, fa.log_softmax, fa.logsumexp]
by_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
INF, NAN = np.inf, np.nan
# Rows of one block; of several; neighbouring rows, which are taken side by side: more and fewer
# elements than a thread's lanes.
LENGTHS = [5, 40, 3000]


def filled(row: list[float], n: int, rest: float) -> list[float]:
    return row + [rest] * (n - len(row))


def both_layouts(x: np.ndarray) -> list[tuple[np.ndarray, int]]:
    """Rows, and the same 40 times side by side."""
    return [(x, -1), (np.repeat(x, 40, 0).T.copy(), 0)]


# Times the largest number of the type: the rows, and the scale. The rest of a row is far below.
BEYOND = {
    "both ends": ([0.9, -0.9, 0.6, 0.9], 2.0),
    "a negative scale": ([0.9, -0.9, 0.6, -0.9], -2.0),
    "all below": ([-0.90, -0.92, -0.90, -0.99], 1.5),
    "the largest alone": ([0.6, 0.2, -0.3, 0.1], 3.0),
}


@by_op
@pytest.mark.parametrize("case", BEYOND)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])  # float16 is within float32
def test_a_scale_beyond_the_range(
    op: Any, case: str, n: int, dtype: str, framework: Framework
) -> None:
    """The exact result, rounded: NaN nowhere, infinite where that is."""
    shares, scale = BEYOND[case]
    most = float(ml_dtypes.finfo(DTYPES[dtype]).max)
    low = -0.99 if scale > 0 else 0.99
    x = (np.array([filled(shares, n, low)]) * most).astype(DTYPES[dtype])
    for a, axis in both_layouts(x):
        assert_exact(op, a, axis, scale, framework)


def assert_exact(op: Any, x: np.ndarray, axis: int, scale: float, framework: Framework) -> None:
    """Against the row beside its largest element, by halves, in the widest type."""
    wide = np.longdouble
    half = x.astype(np.float64).astype(wide) / 2
    top = np.max(np.sign(scale) * half, axis, keepdims=True) * np.sign(scale)
    z = 2 * (wide(scale) * (half - top))
    lse = reference.softmax_row("logsumexp", z, (axis,))
    result, saved = op.forward(framework.of(x), axis=axis, scale=scale)
    y = framework.numpy(result)
    dy = np.ones_like(y) * y.dtype.type(0.5)
    if op is not fa.logsumexp:
        dy.reshape(-1)[::3] = 2
    of_x = op.backward(framework.of(dy), *saved, axis=axis, scale=scale)
    dx = framework.numpy(of_x).astype(np.float64)
    p, d = np.exp(z - lse), dy.astype(wide)
    if op is fa.logsumexp:
        exact = np.squeeze(2 * (wide(scale) * top + lse / 2), axis)
        slope = scale * np.expand_dims(d, axis) * p
    elif op is fa.softmax:
        exact, slope = p, scale * p * (d - np.sum(d * p, axis, keepdims=True))
    else:
        exact, slope = z - lse, scale * (d - p * np.sum(d, axis, keepdims=True))
    # 16 bits round once; sums of some thousand terms of both signs.
    off = {"bfloat16": 1e-2, "float32": 1e-6, "float64": 1e-14}[x.dtype.name]
    with np.errstate(over="ignore"):
        exact = exact.astype(x.dtype).astype(np.float64)
    assert not np.isnan(y.astype(np.float64)).any()
    np.testing.assert_allclose(y.astype(np.float64), exact, rtol=off, atol=0)
    if op is fa.logsumexp and framework in DEVICES:
        return  # of an infinite lse, which is all that it has, the gradient is NaN there
    away = np.isneginf(y.astype(np.float64)) & (op is fa.log_softmax)  # takes no part
    with np.errstate(over="ignore"):
        slope = slope.astype(x.dtype).astype(np.float64)
    largest = np.max(np.abs(slope[np.isfinite(slope)]), initial=1)
    found, wanted = (np.where(away, 0, a) if op is fa.log_softmax else a for a in (dx, slope))
    np.testing.assert_allclose(found, wanted, rtol=4 * off, atol=4 * off * largest)


@by_op
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mask_that_is_added_beyond_the_range(op: Any, dtype: str, framework: Framework) -> None:
    most = np.finfo(dtype).max
    x = np.array([[0.9, 0.9, 0.2], [-0.9, -0.9, -0.95]], dtype) * most
    mask = np.array([[0.5, 0.5, 0.9], [-0.5, -0.5, -0.9]], dtype) * most
    for a, m, axis in ((x, mask, -1), (x.T.copy(), mask.T.copy(), 0)):
        result, saved = op.forward(framework.of(a), axis=axis, mask=framework.of(m))
        y = framework.numpy(result)
        if op is fa.logsumexp:
            np.testing.assert_array_equal(y, [INF, -INF])
            if framework in DEVICES:
                continue
            dy = framework.of(np.ones_like(y))
            y = framework.numpy(op.backward(dy, *saved, axis=axis))
        y = np.exp(y) if op is fa.log_softmax else y
        np.testing.assert_allclose(y if axis else y.T, [[0.5, 0.5, 0]] * 2, rtol=1e-6)


@pytest.mark.parametrize("n", LENGTHS)
def test_a_row_that_stays_in_range_keeps_its_bits_beside_one_that_does_not(n: int) -> None:
    x = np.random.default_rng(0).standard_normal((40, n)).astype(np.float32)
    beyond = x.copy()
    beyond[7] *= 5e37
    for op in OPS:
        for axis, of in ((-1, lambda a: a), (0, lambda a: np.ascontiguousarray(a.T))):
            alone, beside = op(of(x), axis=axis, scale=2.5), op(of(beyond), axis=axis, scale=2.5)
            if op is not fa.logsumexp:
                alone, beside = (
                    of(alone) if axis == 0 else alone,
                    of(beside) if axis == 0 else beside,
                )
            others = np.arange(40) != 7
            np.testing.assert_array_equal(alone[others], beside[others])


@by_op
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("scale", [2.5, -3.0, 1e6])
def test_a_scale_changes_no_bits(op: Any, n: int, scale: float, framework: Framework) -> None:
    """They are the results for x scaled before, by one multiplication."""
    x = np.random.default_rng(0).standard_normal((3, n)).astype(np.float32)
    scaled = x * np.float32(scale)
    for axis in (-1, 0):
        found = framework.numpy(op(framework.of(x), axis=axis, scale=scale))
        assert_same_bits(found, framework.numpy(op(framework.of(scaled), axis=axis)))


# A row, which of it take part, and whether the others' y are NaN.
MASKED = {
    "an infinity beside": ([INF, 0, 1], [True, True, False]),
    "an infinity left out": ([INF, 0, 1], [False, True, True]),
    "a NaN beside": ([NAN, 0, 1], [True, True, False]),
    "a NaN left out": ([-INF, NAN, 1], [True, False, True]),
    "both left out": ([INF, NAN, 1], [False, False, True]),
    "an infinity beside a NaN left out": ([INF, NAN, 1], [True, False, True]),
    "a NaN beside an infinity left out": ([INF, NAN, 1], [False, True, True]),
    "nothing": ([INF, NAN, -INF], [False, False, False]),
}


@by_op
@pytest.mark.parametrize("case", MASKED)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("kind", ["bool", "added"])
def test_what_is_left_out_is_as_if_it_were_not_there(
    op: Any, case: str, n: int, kind: str, framework: Framework
) -> None:
    """The others are as in a row without it; its own y is 0 or -inf, and its gradient 0."""
    row, part = MASKED[case]
    x = np.array([filled(row, n, INF)], np.float32)
    takes = np.array([filled(part, n, False)], bool)
    kept = x[:, takes[0]]
    mask = takes if kind == "bool" else np.where(takes, 0, -INF).astype(np.float32)
    for (a, axis), (m, _) in zip(both_layouts(x), both_layouts(mask), strict=True):
        y, saved = op.forward(framework.of(a), axis=axis, mask=framework.of(m))
        dy = np.ones_like(framework.numpy(y))
        if op is fa.softmax:  # nor is its dy
            dy[~(takes if axis else np.repeat(takes, 40, 0).T)] = NAN
        dx = framework.numpy(op.backward(framework.of(dy), *saved, axis=axis))
        y = framework.numpy(y)
        expected, of_kept = op.forward(kept)
        if op is fa.logsumexp:
            np.testing.assert_allclose(y, np.broadcast_to(expected, y.shape), rtol=1e-6)
        else:
            y = y if axis else y.T
            nothing = 0 if op is fa.softmax else -INF
            np.testing.assert_array_equal(y[:, ~takes[0]], nothing)
            np.testing.assert_allclose(
                y[:, takes[0]], np.broadcast_to(expected, (len(y), kept.shape[1])), rtol=1e-6
            )
        dx = dx if axis else dx.T
        np.testing.assert_array_equal(dx[:, ~takes[0]], 0)
        if op is not fa.log_softmax:  # whose sum has every dy
            slope = op.backward(np.ones_like(expected), *of_kept)
            if op is fa.logsumexp and np.isposinf(expected[0]) and framework in DEVICES:
                slope[np.isfinite(kept)] = 0  # where exp(z - lse) is all that there is
            np.testing.assert_allclose(
                dx[:, takes[0]], np.broadcast_to(slope, (len(dx), kept.shape[1])), atol=1e-6
            )


@pytest.mark.parametrize("op", [op for op in OPS if op.saves == ("y",)], ids=lambda op: op.name)
@pytest.mark.parametrize("of_left_out", [3.0, INF, -INF, NAN])
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_dy_of_what_is_left_out(
    op: Any, of_left_out: float, n: int, dtype: str, framework: Framework
) -> None:
    """Its own dx is 0. In the row's sum it counts as the formula says, but not times a y of 0."""
    rng = np.random.default_rng(0)
    takes = np.arange(n)[None] % 3 > 0
    x, dy = (rng.standard_normal((1, n)).astype(DTYPES[dtype]) for _ in range(2))
    dy[~takes] = of_left_out
    lay = [both_layouts(a) for a in (x, takes, dy)]
    for (a, axis), (mask, _), (given, _) in zip(*lay, strict=True):
        _, (y,) = op.forward(framework.of(a), axis=axis, mask=framework.of(mask))
        found = framework.numpy(op.backward(framework.of(given), y, axis=axis)).astype(float)
        y, given = framework.numpy(y).astype(float), given.astype(float)
        with np.errstate(invalid="ignore"):  # infinities meet 0, and each other
            if op is fa.softmax:
                terms = np.where(y == 0, 0, given) * y
                dx = y * (given - terms.sum(axis, keepdims=True))
            else:
                dx = given - np.exp(y) * given.sum(axis, keepdims=True)
        eps = {2: 2.0**-7, 4: 2.0**-20, 8: 2.0**-40}[a.itemsize]
        np.testing.assert_allclose(found, np.where(mask, dx, 0), rtol=eps, atol=eps)


@pytest.mark.parametrize("n", [3, 40, 3000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_share_of_nothing_counts_nothing_at_any_distance(
    n: int, dtype: str, framework: Framework
) -> None:
    """Of a target of probabilities, of class weights, and of both, at a logit of -inf."""
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((4, n)).astype(DTYPES[dtype])
    logits[:, 1] = -INF
    shares = rng.random((4, n)).astype(DTYPES[dtype])
    shares[:, 1] = 0
    wide = np.result_type(logits.dtype, np.float32) if dtype != "bfloat16" else np.float32
    weight = rng.random(n).astype(wide)
    weight[1] = 0
    index = np.array([0, 1, 2, 1])
    others = np.arange(n) != 1
    for target, how in (
        (shares, {}),
        (shares, {"weight": weight}),
        (rng.random((4, n)).astype(DTYPES[dtype]), {"weight": weight}),
        (index, {"weight": weight}),
        (index, {"weight": weight, "label_smoothing": 0.25}),
    ):
        for axis in (-1, 0):
            lay = (lambda a: a) if axis else (lambda a: np.ascontiguousarray(a.T))
            as_is = target.ndim == 1
            named = {k: framework.of(v) if k == "weight" else v for k, v in how.items()}
            loss, saved = fa.cross_entropy.forward(
                framework.of(lay(logits)), framework.of(target if as_is else lay(target)),
                axis=axis, reduction="none", **named,
            )  # fmt: skip
            left = {k: v for k, v in how.items() if k != "weight"}
            dy = framework.of(np.ones(4, logits.dtype))
            dz = lay(framework.numpy(
                fa.cross_entropy.backward(dy, *saved, axis=axis, reduction="none", **left)
            ))  # fmt: skip
            found = framework.numpy(loss).astype(np.float64)
            assert np.isfinite(found).all()
            assert np.isfinite(dz.astype(np.float64)).all()
            np.testing.assert_array_equal(dz[:, 1], 0)
            if not as_is:  # as the same without that class
                cut = {**how, "weight": how["weight"][others]} if "weight" in how else how
                same = fa.cross_entropy(
                    logits[:, others], target[:, others], reduction="none", **cut
                )
                off = 1e-2 if logits.itemsize == 2 else 1e-5
                np.testing.assert_allclose(found, same.astype(np.float64), rtol=off)
