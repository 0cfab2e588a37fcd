"""batch_norm and norm_apply: values, running statistics and gradients, of any layout."""

from functools import partial
from typing import Any

import judged
import numpy as np
import pytest
import torch
from conftest import assert_same_bits, on_backends
from devices import Framework
from sums import exact_moments

import fastact as fa
from fastact import Moments
from fastact.check import reference

# A channel as a line, long and short; as columns, few, many and beyond a tile; alone; pieces of
# long lines; and so many that they go channel by channel on one thread on backward, not on two.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((4, 3, 5, 6), 1), ((2, 70, 9, 9), 1), ((2, 100, 3, 3), 1), ((2, 3, 40_000), 1), ((8, 5), 1),
    ((300, 1030), 1), ((6, 24, 24, 3), -1), ((2, 20, 20, 70), -1), ((7, 30), 0), ((500, 1), 1),
    ((8, 7, 19, 19), 1),
]  # fmt: skip
# Lines of a channel that no pack divides, that several chunks share, and that a warp or a block
# takes; shorter than a pack, and whole packs in one dtype but not in another; columns that no pack
# divides, that a tile is too narrow for, and of several chunks.
MORE: list[tuple[tuple[int, ...], int]] = [
    ((3, 1, 7), 1), ((1, 1, 9001), 1), ((2, 2, 20_003), 1), ((64, 5, 7, 7), 1), ((9, 5, 2), 1),
    ((40, 5, 12), 1), ((3000, 3), 1), ((700, 7), 1), ((130, 264), 1), ((5, 6, 7, 8), 2),
    # Planes that only together are whole vectors: that a block holds, the last tile with fewer, and
    # of several rounds and chunks.
    ((19, 24, 7, 7), 1), ((40, 40, 3, 3), 1), ((300, 8, 7, 7), 1), ((7, 8, 15, 15), 1),
]  # fmt: skip
LAYOUTS = {
    "C": lambda x: x,
    "F": np.asfortranarray,
    "backwards": lambda x: x[::-1, ::-1],
    "apart": lambda x: np.repeat(x, 2, -1)[..., ::2],
}
# Every way on arrays in order; what a layout changes, is how x is read, and that is one for all.
WAYS = [("C", training, name) for training in (True, False) for name in ("identity", "mish")]
WAYS += [(layout, True, "mish") for layout in LAYOUTS if layout != "C"]
ways = pytest.mark.parametrize(("layout", "training", "name"), WAYS)


def draw(shape: tuple[int, ...], dtype: Any, seed: int, centre: float = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(centre, 1.5, shape).astype(dtype)


def parameters(channels: int, dtype: Any) -> tuple[np.ndarray, ...]:
    """weight, bias, running mean and variance."""
    weight, bias, mean = (draw((channels,), dtype, seed) for seed in range(3))
    return weight, bias, mean, np.abs(draw((channels,), dtype, 3)) + np.ones(1, dtype)


def assert_right(
    framework: Framework,
    dtype: Any,
    shape: tuple[int, ...],
    axis: int,
    layout: str,
    training: bool,
    name: str,
) -> None:
    """y, all gradients and the running statistics, by the oracle and by the formula."""
    x, dy = LAYOUTS[layout](draw(shape, dtype, 4, 3)), draw(shape, dtype, 5)
    weight, bias, mean, var = parameters(shape[axis], dtype)
    running = framework.of(mean.copy()), framework.of(var.copy())
    options = {"training": training, "momentum": 0.3, "channel_axis": axis}
    fa.batch_norm(framework.of(x), *running, **options)
    of_mean, m2 = exact_moments(x, tuple(a for a in range(x.ndim) if a != axis % x.ndim))
    left = x.size / shape[axis] - 1
    eps = {2: 2.0**-7, 4: 2.0**-20, 8: 2.0**-44}[np.dtype(dtype).itemsize]
    for one, before, new in zip(running, (mean, var), (of_mean, m2 / left), strict=True):
        expected = reference.moved(before.astype(float), new, 0.3) if training else before
        np.testing.assert_allclose(
            framework.numpy(one).astype(float), expected.astype(float), eps, eps
        )
    named = {"x": x, "running_mean": mean.copy(), "running_var": var.copy(), "weight": weight}
    named |= {"bias": bias, "activation": name, **options}
    found = judged.assert_right(fa.batch_norm, named, [dy], framework)
    assert {"y", "dx", "dweight", "dbias"} <= found.keys()


@pytest.mark.parametrize("training", [True, False])
def test_as_torch(training):
    """The formulas of the oracle, gradients too."""
    x, dy = (torch.tensor(draw((4, 3, 5, 6), np.float64, seed)) for seed in (4, 5))
    weight, bias, mean, var = map(torch.tensor, parameters(3, np.float64))
    found = []
    for op in (torch.nn.functional.batch_norm, fa.batch_norm):
        leaves = [a.clone().requires_grad_() for a in (x, weight, bias)]
        running = mean.clone(), var.clone()
        y = op(leaves[0], *running, *leaves[1:], training, 0.3, 1e-5)
        found.append([y.detach(), *torch.autograd.grad(y, leaves, dy), *running])
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


@on_backends("shape axis", SHAPES, MORE)
@ways
def test_within_the_bounds(backend, dtype, many_threads, shape, axis, layout, training, name):
    assert_right(backend, dtype, shape, axis, layout, training, name)


# Lines of a rest alone, of half the lanes and some, of groups and a rest; and of pieces.
@pytest.mark.parametrize("columns", [9, 21, 49, 196, 1030, 17_000])
def test_the_same_bits_for_any_layout(isa, dtype, columns):
    """Lines that touch each other are read as they are, all others in pieces from a buffer."""
    x, dy = (draw((5, 3, columns), dtype, seed) for seed in range(2))
    apart = LAYOUTS["apart"]
    y, saved = fa.batch_norm.forward(x, None, None, training=True)
    other_y, others = fa.batch_norm.forward(apart(x), None, None, training=True)
    found = [(y, other_y)]
    for of in (fa.batch_norm.backward_reduce, partial(fa.batch_norm.backward, training=True)):
        found += zip(of(dy, *saved), of(apart(dy), *others), strict=True)
    for a, b in found:
        if a is not None:
            assert_same_bits(a, b)


def test_far_from_zero():
    """Where float32 keeps the mean to three digits of the spread."""
    x = (np.random.default_rng(0).random((100, 1)) + 1e4).astype(np.float32)
    named = {"x": x, "running_mean": None, "running_var": None, "training": True}
    y = judged.assert_right(fa.batch_norm, named)["y"]
    assert abs(y.mean(dtype=float)) < 1e-6


@pytest.mark.parametrize("momentum", [0.0, 0.1, 1.0, None])
def test_running_statistics_wider_than_the_data(backend, momentum):
    x = draw((8, 3), np.float16, 0)
    mean, var = backend.of(np.full(3, 0.5)), backend.of(np.ones(3))
    fa.batch_norm(backend.of(x), mean, var, training=True, momentum=momentum, num_batches=3)
    of_mean, m2 = exact_moments(x.astype(float), (0,))
    share = 0.25 if momentum is None else momentum
    for one, before, new in ((mean, 0.5, of_mean), (var, 1.0, m2 / (len(x) - 1))):
        expected = reference.moved(before, new, share)
        np.testing.assert_allclose(backend.numpy(one), expected, 1e-13, 1e-15)


def test_cumulative_average():
    batches = [draw((8, 3), np.float64, seed) for seed in range(4)]
    mean, var = np.full(3, np.pi), np.ones(3)
    for number, x in enumerate(batches):
        fa.batch_norm(x, mean, var, training=True, momentum=None, num_batches=number)
    np.testing.assert_allclose(mean, np.mean([x.mean(0) for x in batches], 0))
    np.testing.assert_allclose(var, np.mean([x.var(0, ddof=1) for x in batches], 0))


@pytest.mark.parametrize("kept", ["", "weight", "bias"])
def test_without_weight_or_bias(backend, kept):
    x, dy, one = (draw(shape, np.float64, k) for k, shape in enumerate([(6, 3, 4)] * 2 + [(3,)]))
    named = {"x": x, "running_mean": None, "running_var": None, "training": True}
    found = judged.assert_right(
        fa.batch_norm, {**named, kept: one} if kept else named, [dy], backend
    )
    assert {"dweight", "dbias"} & found.keys() == {f"d{kept}"} - {"d"}


def test_halves_over_two_machines(backend):
    """Moments merged, sums added: what one machine with all of the data has."""
    x, dy = draw((9, 3, 5), np.float64, 0), draw((9, 3, 5), np.float64, 1)
    weights = parameters(3, np.float64)
    weight, bias, *_ = map(backend.of, weights)
    named = {"activation": "mish"}
    result, saved = fa.batch_norm.forward(backend.of(x), None, None, weight, bias, True, **named)
    back = fa.batch_norm.backward(backend.of(dy), *saved, True, **named)
    y, dx, dweight, dbias = map(backend.numpy, (result, *back))
    parts = [slice(0, 4), slice(4, 9)]
    found = [fa.moments(backend.of(x[part]), (0, 2), keepdims=True) for part in parts]
    m = Moments.merge_many(
        Moments(f.count, backend.numpy(f.mean), backend.numpy(f.m2)) for f in found
    )
    mean, rstd = backend.of(m.mean), backend.of(1 / np.sqrt(m.var() + 1e-5))
    sums = []
    for part in parts:
        pair = fa.batch_norm.backward_reduce(
            backend.of(dy[part]), backend.of(x[part]), mean, rstd, weight, bias, **named
        )
        sums.append([backend.numpy(p) for p in pair])
    total = [a + b for a, b in zip(*sums, strict=True)]
    np.testing.assert_allclose(total[0].ravel(), dbias, rtol=1e-12)
    np.testing.assert_allclose(total[1].ravel(), dweight, rtol=1e-12)
    for part in parts:
        of_part = fa.norm_apply(backend.of(x[part]), mean, rstd, weight, bias, axis=1, **named)
        np.testing.assert_allclose(backend.numpy(of_part), y[part], rtol=1e-12, atol=1e-14)
        back = fa.batch_norm.backward_apply(
            backend.of(dy[part]), backend.of(x[part]), mean, rstd, weight,
            *map(backend.of, total), m.count, bias, **named,
        )  # fmt: skip
        np.testing.assert_allclose(backend.numpy(back), dx[part], rtol=1e-10, atol=1e-13)


# Faults of a call in training that would else update all its arrays.
SPOILED: dict[str, Any] = {
    "weight": np.ones(4, np.float32),
    "bias": np.ones((1, 3), np.float32),
    "running_var": np.ones(2),
    "channel_axis": 2,
    "eps": np.nan,
    "momentum": 2.0,
    "activation": "mishh",
    "out": np.zeros((3, 4), np.float32),
}


@pytest.mark.parametrize("name", SPOILED)
def test_a_call_that_fails_writes_nothing(name):
    x = draw((4, 3), np.float32, 0)
    for _ in range(4):  # also beside a plan of the call that does not fail
        fa.batch_norm(x, np.zeros(3), np.ones(3), training=True, out=np.zeros_like(x))
        given = {"running_mean": np.zeros(3), "running_var": np.ones(3), "out": np.zeros_like(x)}
        options = {**given, name: SPOILED[name]}
        with pytest.raises(ValueError, match=name):
            fa.batch_norm(x, training=True, **options)
        assert not given["running_mean"].any()
        assert (given["running_var"] == 1).all()
        assert not given["out"].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_that_is_infinite(dtype, backend):
    """It takes the place of all distances from it, as in the formula."""
    x, mean, rstd = (
        np.array([[1, 2], [3, 4]], dtype),
        np.array([np.inf, 0], dtype),
        np.ones(2, dtype),
    )
    y = backend.run(lambda *a: fa.norm_apply(*a, axis=1), x, mean, rstd)
    np.testing.assert_array_equal(y, (x - mean) * rstd)
