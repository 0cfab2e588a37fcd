"""Activations with a parameter for each channel: as torch has prelu, and snake over all angles."""

import mpmath
import numpy as np
import pytest
import torch

import fastact as fa
from fastact.check.expected import Call

OPS = [op for op in fa.ops.values() if op.family == "parametric"]
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)

#: Of x, the parameter, and where the channels are: one axis, rows, pictures of few and of many
#: pixels, channels last and in front, longer than a chunk; one parameter for all.
SETTINGS = [
    ((7,), (7,), 0), ((7,), (1,), 1), ((), (), 1), ((3, 5), (), -1), ((33, 70), (70,), 1),
    ((5, 9000), (9000,), -1), ((70, 5), (70,), 0), ((2, 3, 4, 5), (3,), 1),
    ((3, 2, 60, 50), (2,), -3), ((2, 3, 4, 5), (5,), -1), ((400, 3), (3,), 1),
    ((2, 3, 400), (1,), 1), ((6, 0), (0,), 1), ((0, 3), (3,), 1),
]  # fmt: skip
each_setting = pytest.mark.parametrize(("shape", "of_parameter", "axis"), SETTINGS, ids=str)


def drawn(shape, dtype, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def of_call(op, x, parameter, axis):
    return {"x": x, op.parameter: parameter, "channel_axis": axis}


@each_op
@each_setting
@pytest.mark.parametrize("wide", [False, True], ids=["same", "wide"])
def test_within_the_bounds(op, isa, dtype, shape, of_parameter, axis, wide):
    x, dy = drawn(shape, dtype), drawn(shape, dtype, 1)
    parameter = drawn(of_parameter, np.float64 if wide else dtype, 2)
    found = Call(op, shape, of_call(op, x, parameter, axis), {"dy": dy}).errors()
    assert {"y", "dx", op.gradients[1]} <= found.keys()
    assert max(found.values()) <= 1, found


@pytest.mark.parametrize(
    ("shape", "slopes"), [((4, 3, 5), 3), ((4, 3, 5), 1), ((6,), 1), ((2, 6), 6)]
)
def test_prelu_as_torch_has_it(shape, slopes):
    x, dy = drawn(shape, np.float64), drawn(shape, np.float64, 1)
    x.flat[0], x.flat[1], x.flat[2] = 0.0, np.inf, -np.inf
    given, weight = (
        torch.from_numpy(a).requires_grad_() for a in (x, drawn(slopes, np.float64, 2))
    )
    expected = torch.nn.functional.prelu(given, weight)
    expected.backward(torch.from_numpy(dy))
    y, saved = fa.prelu.forward(x, weight.detach().numpy())
    dx, dweight = fa.prelu.backward(dy, *saved)
    np.testing.assert_array_equal(y, expected.detach().numpy())
    np.testing.assert_array_equal(dx, given.grad.numpy())
    np.testing.assert_allclose(dweight, weight.grad.numpy(), rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
def test_snake_of_all_angles(backend, dtype):
    """Of angles near multiples of pi / 2 as of any; from 2**44 on y alone is told."""
    rng = np.random.default_rng(0)
    angles = np.concatenate(
        [rng.uniform(-8, 8, 300), np.pi / 2 * np.arange(1, 120), 2.0 ** rng.uniform(-40, 43, 300)]
    )
    x = 2.0 ** rng.uniform(-12, 12, angles.size)
    alpha, x = (angles / x).astype(dtype), x.astype(dtype)
    data = [backend.of(a) for a in (x[None], alpha)]
    one = backend.of(np.ones_like(x)[None])
    y = backend.numpy(fa.snake(*data))[0]
    dx, dalpha = (backend.numpy(a).reshape(-1) for a in fa.snake.backward(one, *data))
    u, bounds = float(np.finfo(dtype).eps) / 2, fa.snake.bounds
    with mpmath.workdps(60):
        for of_x, of_alpha, *found in zip(x, alpha, y, dx, dalpha, strict=True):
            a, b = mpmath.mpf(float(of_x)), mpmath.mpf(float(of_alpha))
            angle, sine = a * b, mpmath.sin(a * b)
            exact = (
                a + sine**2 / b,
                1 + mpmath.sin(2 * angle),
                a * mpmath.sin(2 * angle) / b - (sine / b) ** 2,
            )
            sizes = (bounds.value * a, bounds.by_x, bounds.by_parameter * a * min(a, 1 / abs(b)))
            for one_found, right, size in zip(found, exact, sizes, strict=True):
                assert abs(one_found - right) <= u * (abs(size) + abs(right)), (of_x, of_alpha)


def test_snake_where_the_formula_has_no_number(backend):
    """alpha of 0 or next to it, infinities, angles beyond all, and NaN."""
    tiny = np.array([0.0, 1e-30, -1e-300, 1e-310, 1e300, np.inf, np.nan, 1.0, 1.0])
    x = np.array([[3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, np.inf, -np.inf]])
    y, saved = fa.snake.forward(*map(backend.of, (x, tiny)))
    expected = [[3, 3, 3, 3, 3, 3, np.nan, np.inf, -np.inf]]
    np.testing.assert_array_equal(backend.numpy(y), expected)
    dx, dalpha = map(backend.numpy, fa.snake.backward(backend.of(np.ones_like(x)), *saved))
    np.testing.assert_array_equal(dx, [[1, 1, 1, 1, 1, 1, np.nan, 1, 1]])
    np.testing.assert_array_equal(dalpha, [9, 9, 9, 9, 0, 0, np.nan, 0, 0])


def test_tangents_of_snake_by_an_alpha_of_0():
    """Where the formula divides by it."""
    x, alpha = np.array([[3.0, -0.5, 1e10]]), np.zeros(3)
    _, moved = fa.snake.jvp(x, alpha, tangents=(np.zeros_like(x), np.ones(3)))
    np.testing.assert_allclose(moved, x * x, 1e-12)
    _, moved = fa.snake.jvp(x, alpha, tangents=(np.ones_like(x), np.zeros(3)))
    np.testing.assert_allclose(moved, np.ones_like(x), 1e-12)
