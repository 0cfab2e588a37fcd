"""l2_normalize as torch has it, over the whole range, and beside eps."""

import numpy as np
import pytest
import torch

import fastact as fa


# Some 18 roundings of what a row has, relative to its largest gradient.
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 4e-6), (np.float64, 1e-14)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_as_torch_normalizes(backend, axis, dtype, rtol):
    """Values and gradients, of rows of zeros and of rows shorter than eps, too."""
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(2, 5, 7, 6)).astype(dtype)
    x[0], x[:, 0], x[..., 0] = 0.0, 1e-3, 0.0
    for eps in (1e-12, 0.02):
        given = torch.from_numpy(x.astype(np.float64)).requires_grad_()
        expected = torch.nn.functional.normalize(given, dim=axis, eps=eps)
        expected.backward(torch.from_numpy(dy))
        y, saved = fa.l2_normalize.forward(backend.of(x), axis=axis, eps=eps)
        dx, _ = fa.l2_normalize.backward(backend.of(dy), *saved, axis=axis, eps=eps)
        np.testing.assert_allclose(backend.numpy(y), expected.detach().numpy(), rtol=rtol)
        size = np.abs(given.grad.numpy()).max(axis, keepdims=True)
        assert (np.abs(backend.numpy(dx) - given.grad.numpy()) <= rtol * size).all()


@pytest.mark.parametrize("exponent", [-1000, -700, 0, 700, 1020])
@pytest.mark.parametrize("eps", [0.0, 1e-150])
def test_lengths_whose_squares_leave_the_range(backend, exponent, eps):
    x = np.ldexp(np.array([[0.75, 0.0, 1.0]]), exponent)
    y, (_, rstd, _) = fa.l2_normalize.forward(backend.of(x), eps=eps)
    divisor = max(np.ldexp(1.25, exponent), eps)
    np.testing.assert_allclose(backend.numpy(y), x / divisor, rtol=1e-15)
    np.testing.assert_allclose(backend.numpy(rstd), [[1 / divisor]], rtol=1e-15)
    dx, _ = fa.l2_normalize.backward(backend.of(np.ones((1, 3))), backend.of(x), rstd, eps=eps)
    xhat = x / divisor
    expected = (1 - (divisor > eps) * xhat * xhat.sum()) / divisor
    np.testing.assert_allclose(backend.numpy(dx), expected, rtol=1e-13)


def test_rows_that_are_not_finite(backend):
    """As the formula has them: by an infinite length a finite number is 0."""
    x = np.array([[np.inf, 1.0], [np.nan, 1.0], [0.0, 0.0]])
    found = backend.numpy(fa.l2_normalize(backend.of(x)))
    np.testing.assert_array_equal(found, [[np.nan, 0], [np.nan, np.nan], [0, 0]])
    none = backend.numpy(fa.l2_normalize(backend.of(x[2:]), eps=0.0))
    np.testing.assert_array_equal(none, [[np.nan, np.nan]])


@pytest.mark.parametrize("eps", [1e-151, 1e151, -1.0, np.inf])
def test_an_eps_whose_square_is_no_number(eps):
    with pytest.raises(ValueError, match=r"^fastact\.l2_normalize: eps must be"):
        fa.l2_normalize(np.ones(3), eps=eps)


@pytest.mark.parametrize("size", [1.0, 1e160, 1e-160])
def test_second_derivatives(size):
    """As torch has them of numbers near 1; y does not depend on the size of x, where eps is 0."""
    rng = np.random.default_rng(1)
    x, dy, ddx = rng.normal(size=(3, 4, 6))
    _, saved = fa.l2_normalize.forward(x * size, eps=0.0)
    ddy, found = fa.l2_normalize.backward.backward(ddx * size, None, dy, *saved, eps=0.0)[:2]
    near, at = (torch.from_numpy(a).requires_grad_() for a in (x, dy))
    (dx,) = torch.autograd.grad(
        torch.nn.functional.normalize(near, dim=-1, eps=0.0), near, at, create_graph=True
    )
    expected = torch.autograd.grad(dx, (at, near), torch.from_numpy(ddx))
    np.testing.assert_allclose(ddy, expected[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(found * size, expected[1], rtol=1e-12, atol=1e-13)


def test_second_derivative_by_eps():
    """Rows shorter than eps are linear in x."""
    x, dy = np.full((1, 4), 0.1), np.arange(4.0)[None]
    _, saved = fa.l2_normalize.forward(x, eps=2.0)
    ddy, of_x, *_ = fa.l2_normalize.backward.backward(x, None, dy, *saved, eps=2.0)
    np.testing.assert_array_equal(ddy, x / 2)
    np.testing.assert_array_equal(of_x, 0 * x)
    _, tangent = fa.l2_normalize.jvp(x, eps=2.0, tangents=dy)
    np.testing.assert_array_equal(tangent, dy / 2)
