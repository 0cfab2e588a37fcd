"""Gradients keep their digits: beside a common offset, and of one element far above the others."""

from typing import Any

import numpy as np
import pytest
from devices import DEVICES, DTYPES, Framework

import fastact as fa
from fastact.check import reference
from fastact.ops.bounds import rounding, unit_roundoff

LOSSES: dict[str, dict[str, Any]] = {
    "classes": {},
    "a weight": {"weighted": True},
    "smoothing": {"label_smoothing": 0.1},
    "a z loss": {"z_loss": 1e-4},
    "probabilities": {"probable": True},
}
# An offset of 1e30 is one that leaves nothing of what a row has beside it.
OFFSETS = {"float16": [1e3, -1e3, 6e4], "bfloat16": [1e3, -1e4]}
WIDE_OFFSETS = [0.0, 1e3, -1e3, 1e4, -1e4, 6e4, 1e30]
# Rows of one block, and of two that have a maximum each; few columns lie side by side.
SHAPES = [((3, 1100), 1), ((40, 3), 0)]


def rough(framework: Framework, dtype: np.dtype[Any], logs: Any) -> Any:
    """In u, what a GPU's exponentials and their sum add for 16-bit data (bounds.py)."""
    is_rough = framework in DEVICES and dtype.itemsize == 2
    return 80 + np.abs(np.maximum(logs, -1e3)) if is_rough else 0.0


def of_loss(logs: Any, tw: Any, target: Any, axis: int, of: dict[str, Any], lse: Any) -> Any:
    slope = 2 * of.get("z_loss", 0.0) * lse
    smoothing = of.get("label_smoothing", 0.0)
    return reference.loss_gradient(logs, tw, target, axis, smoothing, slope)


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=["rows", "columns"])
def test_an_offset_of_the_logits(
    shape: Any, axis: int, loss: str, dtype: str, framework: Framework
) -> None:
    """dlogits beside any offset is as exact as without: 8 u as stated and 4 u of lse + rest."""
    rng, given = np.random.default_rng(3), dict(LOSSES[loss])
    wide, n = np.longdouble, shape[axis]
    for offset in OFFSETS.get(dtype, WIDE_OFFSETS):
        of, x = dict(given), (3 * rng.standard_normal(shape) + offset).astype(DTYPES[dtype])
        w, kept = None, shape[1 - axis]
        if of.pop("weighted", False):
            w = rng.uniform(0.5, 2, n).astype(np.promote_types(x.dtype, np.float32))
        target: Any = rng.integers(0, n, kept)
        if is_probable := of.pop("probable", False):
            target = np.exp(rng.standard_normal(shape))
            target = (target / target.sum(axis, keepdims=True)).astype(x.dtype)
        options = {**of, "axis": axis, "reduction": "sum"}
        _, saved = fa.cross_entropy.forward(
            *map(framework.of, (x, target)),
            weight=None if w is None else framework.of(w),
            **options,
        )
        found = framework.numpy(fa.cross_entropy.backward(1.0, *saved, **options))
        logs = reference.softmax_row("log_softmax", x.astype(wide), (axis,))
        smoothing = of.get("label_smoothing", 0.0)
        tw = reference.cross_entropy(x.astype(wide), target, w, axis, -100, smoothing)[3]
        lse = reference.softmax_row("logsumexp", x.astype(wide), (axis,))
        exact, size = of_loss(logs, tw, None if is_probable else target, axis, of, lse)
        each = n / 32 if x.dtype == np.float64 else 0.0
        error = (12 + 2 * each + rough(framework, x.dtype, logs)) * unit_roundoff(x.dtype) * size
        assert reference.excess(found, exact, error + rounding(exact, x.dtype, error)) <= 1


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=["rows", "columns"])
def test_an_offset_of_logsumexp(shape: Any, axis: int, dtype: str, framework: Framework) -> None:
    """The same bound: 8 u as stated and 4 u of lse + rest."""
    rng = np.random.default_rng(4)
    for offset in OFFSETS.get(dtype, WIDE_OFFSETS):
        x = (3 * rng.standard_normal(shape) + offset).astype(DTYPES[dtype])
        _, saved = fa.logsumexp.forward(framework.of(x), axis=axis)
        dy = np.ones(shape[1 - axis], x.dtype)
        found = framework.numpy(fa.logsumexp.backward(framework.of(dy), *saved, axis=axis))
        logs = reference.softmax_row("log_softmax", x.astype(np.longdouble), (axis,))
        exact = np.exp(logs)
        each = shape[axis] / 32 if x.dtype == np.float64 else 0.0
        error = (12 + each + rough(framework, x.dtype, logs)) * unit_roundoff(x.dtype) * exact
        assert reference.excess(found, exact, error + rounding(exact, x.dtype, error)) <= 1


def pairs(p: Any, dy: Any, q: Any = 0.0) -> Any:
    """dx of softmax along the last axis, and its terms' sizes: no two of them cancel by rounding.

    q : the probability of what has no dy.
    """
    apart = dy[..., :, None] - dy[..., None, :]
    terms = p[..., :, None] * p[..., None, :] * apart
    own = p * q * dy
    return terms.sum(-1) + own, np.abs(terms).sum(-1) + np.abs(own)


def dominated(dtype: str, gap: float) -> np.ndarray:
    """Rows of seven: one element is so far above the others, which differ."""
    x = np.linspace(-1, 0, 7) * np.ones((7, 1))
    x[np.arange(7), np.arange(7)] = gap
    return (x + 0.25).astype(DTYPES[dtype])


def gradients() -> dict[str, np.ndarray]:
    eye, rng = np.eye(7), np.random.default_rng(5)
    return {
        "its own": eye,
        "another's": np.roll(eye, 1, 1),
        "all but alike": 1 + 2.0**-6 * rng.integers(0, 3, (7, 7)),
        "small ones of the others": eye + 2.0**-12 * np.roll(eye, 2, 1),
    }


GAPS = [2.5, 3.0, 8.0, 20.0, 40.0, 80.0]


@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("given", list(gradients()))
@pytest.mark.parametrize("by", ["rows", "columns"])
def test_an_element_far_above_the_others(
    by: str, given: str, dtype: str, framework: Framework
) -> None:
    """Every dx has the digits of the terms that it is made of, y's own error apart.

    A y errs by 4 ULP, which are up to 8 u, of each factor of a term; one of log_softmax makes an
    error of its exponential that is y times as large.
    """
    dy, turn = gradients()[given].astype(DTYPES[dtype]), by == "columns"
    wide, u = np.longdouble, unit_roundoff(DTYPES[dtype])
    own = 2 * 2.0**-9 if dtype == "bfloat16" else 2 * 2.0**-12 if dtype == "float16" else 0.0
    for gap in GAPS[: 3 if dtype == "float16" else None]:  # a float16 y has no more below 1
        x = dominated(dtype, gap)
        logs = reference.softmax_row("log_softmax", x.astype(wide), (1,))
        for op in (fa.softmax, fa.log_softmax):
            a, b = (framework.of(v.T.copy() if turn else v) for v in (x, dy))
            _, saved = op.forward(a, axis=0 if turn else 1)
            found = framework.numpy(op.backward(b, *saved, axis=0 if turn else 1))
            exact, size = pairs(np.exp(logs), dy.astype(wide))
            error = (16 + rough(framework, x.dtype, logs)) * u * size + 2 * own * size
            if op is fa.log_softmax:
                p, q, d = np.exp(logs), -np.expm1(logs), dy.astype(wide)
                others = d.sum(1, keepdims=True) - d
                exact = q * d - p * others
                size = q * np.abs(d) + p * np.abs(others)
                error = (16 + rough(framework, x.dtype, logs)) * u * size
                error = error + (8 * u + own) * np.abs(logs) * p * (np.abs(others) + np.abs(d))
            error = error + rounding(exact, x.dtype, error)
            assert reference.excess(found.T if turn else found, exact, error) <= 1, gap


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sink_beside_an_element_far_above_the_others(dtype: str, framework: Framework) -> None:
    """What is left for the others is the sink's as well."""
    dy, wide = gradients()["its own"].astype(DTYPES[dtype]), np.longdouble
    for gap in GAPS:
        x = dominated(dtype, gap)
        sink = np.full(7, -3.0, x.dtype)
        _, saved = fa.softmax.forward(framework.of(x), sink=framework.of(sink))
        dx, dsink = map(framework.numpy, fa.softmax.backward(framework.of(dy), *saved))
        every = np.concatenate([x, sink[:, None]], 1).astype(wide)
        p = np.exp(reference.softmax_row("log_softmax", every, (1,)))
        exact, size = pairs(p[:, :-1], dy.astype(wide), p[:, -1:])
        error = 24 * unit_roundoff(x.dtype) * size
        assert reference.excess(dx, exact, error) <= 1
        exact = -p[:, -1] * (p[:, :-1] * dy).sum(1)
        assert reference.excess(dsink, exact, 24 * unit_roundoff(x.dtype) * np.abs(exact)) <= 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_target_far_above_the_others(axis: int, dtype: str, framework: Framework) -> None:
    """p - 1 has the digits of what p leaves, at any offset: 8 u as stated and 4 u of lse + rest."""
    wide, target = np.longdouble, np.arange(7)
    for gap, offset in ((g, o) for g in GAPS for o in (0.0, 1024.0, -1024.0)):
        x = dominated(dtype, gap) + DTYPES[dtype].type(offset)
        a = framework.of(x.T.copy() if axis == 0 else x)
        options = {"axis": axis, "reduction": "sum"}
        _, saved = fa.cross_entropy.forward(a, framework.of(target), **options)
        dx = framework.numpy(fa.cross_entropy.backward(1.0, *saved, **options))
        logs = reference.softmax_row("log_softmax", x.astype(wide), (1,))
        exact, size = of_loss(logs, np.eye(7), target, 1, {}, 0.0)
        error = 12 * unit_roundoff(x.dtype) * size
        assert reference.excess(dx.T if axis == 0 else dx, exact, error) <= 1
