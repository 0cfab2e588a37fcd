"""Whole recurrent layers over a sequence, matrix products by NumPy, against torch's.

Several layers, both directions, the output and every gradient.
"""

from typing import Any

import numpy as np
import pytest
import torch

import fastact as fa

STEPS, BATCH, INPUT, HIDDEN, LAYERS = 7, 5, 6, 8, 2


class Direction:
    """One direction of one layer: forward over a sequence, and back."""

    def __init__(self, kind: str, w: Any, u: Any, b: Any, d: Any) -> None:
        self.kind, self.w, self.u, self.b, self.d = kind, w, u, b, d

    def forward(self, x: np.ndarray) -> np.ndarray:
        self.x, self.saved, self.states = x, [], [np.zeros((BATCH, HIDDEN), x.dtype)]
        projected, cell, h = x @ self.w.T, self.states[0], self.states[0]
        for gates in projected:
            u = h @ self.u.T
            if self.kind == "LSTM":
                (h, cell), saved = fa.lstm_gates.forward(
                    gates, cell, recurrent=u, bias=self.b, recurrent_bias=self.d
                )
            else:
                h, saved = fa.gru_gates.forward(gates, u, h, bias=self.b, recurrent_bias=self.d)
            self.saved.append(saved)
            self.states.append(h)
        return np.stack(self.states[1:])

    def backward(self, dy: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        count = len(self.w)
        dgates = np.empty((len(dy), BATCH, count), dy.dtype)
        drecurrent = np.empty_like(dgates) if self.kind == "GRU" else dgates
        db, dd = np.zeros(count, dy.dtype), np.zeros(count, dy.dtype)
        dh, dc = np.zeros_like(dy[0]), None
        for t in reversed(range(len(dy))):
            dh += dy[t]
            if self.kind == "LSTM":
                _, dc, part = fa.lstm_gates.backward(
                    dh, dc, *self.saved[t], out=(dgates[t], np.empty_like(dh), np.empty_like(db))
                )
                db += part
                dh = dgates[t] @ self.u
            else:
                _, _, dh, part, other = fa.gru_gates.backward(
                    dh, *self.saved[t],
                    out=(dgates[t], drecurrent[t], np.empty_like(dh), db.copy(), dd.copy()),
                )  # fmt: skip
                db, dd = db + part, dd + other
                dh = dh + drecurrent[t] @ self.u
        before = np.stack(self.states[:-1])
        flat = lambda a: a.reshape(-1, a.shape[-1])  # noqa: E731
        return dgates @ self.w, {
            "weight_ih": flat(dgates).T @ flat(self.x),
            "weight_hh": flat(drecurrent).T @ flat(before),
            "bias_ih": db,
            "bias_hh": db if self.kind == "LSTM" else dd,
        }


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-12), (np.float32, 1e-6)])
def test_layers_are_those_of_torch(kind, dtype, tolerance, isa):
    theirs = getattr(torch.nn, kind)(
        INPUT, HIDDEN, LAYERS, bidirectional=True, dtype=getattr(torch, np.dtype(dtype).name)
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(STEPS, BATCH, INPUT)).astype(dtype)
    leaf = torch.from_numpy(x).requires_grad_()
    expected = theirs(leaf)[0]
    dy = (rng.normal(size=tuple(expected.shape)) / expected.numel() ** 0.5).astype(dtype)
    expected.backward(torch.from_numpy(dy))
    close = lambda a, b: np.testing.assert_allclose(  # noqa: E731
        a, b.detach().numpy(), tolerance, tolerance
    )

    layers, ours = [], x
    for layer in range(LAYERS):
        pair = []
        for suffix in ("", "_reverse"):
            names = (
                f"{n}_l{layer}{suffix}" for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            pair.append(Direction(kind, *(getattr(theirs, n).detach().numpy() for n in names)))
        ours = np.concatenate([pair[0].forward(ours), pair[1].forward(ours[::-1])[::-1]], -1)
        layers.append(pair)
    close(ours, expected)

    gradient = dy
    for layer in reversed(range(LAYERS)):
        halves = np.split(gradient, 2, axis=-1)
        gradient = 0
        for suffix, part, direction in zip(("", "_reverse"), (0, 1), layers[layer], strict=True):
            dx, parameters = direction.backward(halves[part][:: -1 if part else 1])
            gradient = gradient + dx[:: -1 if part else 1]
            for name, value in parameters.items():
                close(value, getattr(theirs, f"{name}_l{layer}{suffix}").grad)
    close(gradient, leaf.grad)


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
