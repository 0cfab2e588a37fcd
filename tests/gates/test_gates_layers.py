"""Halves of a recurrent layer against torch's operations; test_nn.py has whole layers."""

import numpy as np
import torch

import fastact as fa


def test_halves_are_a_gru_with_its_reset_before_the_product():
    """gru_reset and gru_blend on slices of packed arrays, against torch's operations."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    h, gates, u, bias, dy = normal(4, 8), normal(4, 24), normal(24, 8), normal(24), normal(4, 8)
    projected, dgates = np.empty((4, 24)), np.empty((4, 24))
    projected[:, :16] = h @ u[:16].T
    r = slice(None, 8)
    reset, saved = fa.gru_reset.forward(gates[:, r], h, recurrent=projected[:, r], bias=bias[r])
    projected[:, 16:] = reset @ u[16:].T
    y, blended = fa.gru_blend.forward(gates[:, 8:], h, recurrent=projected[:, 8:], bias=bias[8:])
    _, dh, dbias = fa.gru_blend.backward(
        dy, *blended, out=(dgates[:, 8:], np.empty_like(h), np.empty(16))
    )
    fa.gru_reset.backward(
        dgates[:, 16:] @ u[16:], *saved, out=(dgates[:, r], dh, None), accumulate=False
    )
    leaves = [torch.from_numpy(a).requires_grad_() for a in (gates, h)]
    x, before = leaves
    matrix, b = torch.from_numpy(u), torch.from_numpy(bias)
    rt = torch.sigmoid(x[:, :8] + before @ matrix[:8].T + b[:8])
    zt = torch.sigmoid(x[:, 8:16] + before @ matrix[8:16].T + b[8:16])
    nt = torch.tanh(x[:, 16:] + (rt * before) @ matrix[16:].T + b[16:])
    expected = (1 - zt) * nt + zt * before
    expected.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(y, expected.detach().numpy(), 1e-13, 1e-13)
    np.testing.assert_allclose(dgates, x.grad.numpy(), 1e-12, 1e-13)
    np.testing.assert_allclose(dbias, x.grad.numpy()[:, 8:].sum(0), 1e-12, 1e-13)
