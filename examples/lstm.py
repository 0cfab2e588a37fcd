"""Two layers of LSTM and their whole gradient, without an array for each gate.

    pip install '.[test]'      # scikit-learn, which ships the data, and torch to compare with
    python examples/lstm.py    # --plot loss.png draws the loss as well (needs matplotlib)

The rows of an image are the steps of a sequence. 64 steps of 64 pixels, in a batch of 256, go
through two layers of 64 units, and the last state through Dense 64 -> 10. The loss is the sum of
squares of what comes out less the target. The gradients are compared with torch's, time and
peak memory with torch's autograd and JAX's jit, where they are installed. Then the
network learns to read handwritten digits, row by row.

All that grows with the sequence in a layer, for T steps of B sequences, I inputs and H units:

    gates (T, B, 4 H)   x W for all steps by one product. Step t turns gates[t] into the activated
                        gates, and on backward into their gradients, in place.
    h, c  (T, B, H)     the states, and before them the zeros that they begin with
    dx    (T, B, I)     what goes back to the layer below; the first layer has none

fastact adds the recurrent product and the bias, and keeps no array for any gate:

    forward    h[t], c[t] = lstm_gates(gates[t], c[t-1], recurrent = h[t-1] U, bias = b)
    backward   dgates[t], dc = lstm_gates.backward(dh, dc, gates[t], c[t-1], c[t])
               dh = dy[t-1] + dgates[t] U'
    and then   dW = x' dgates    dU = h' dgates    db = sum of dgates    dx = dgates W'
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from _peers import (
    Makers,
    Peer,
    against_frameworks,
    fastact_peer,
    jax_peer,
    torch_peer,
    torch_tensors,
)
from _shared import (
    DIGITS,
    Array,
    Labels,
    Network,
    Steps,
    Trainer,
    arguments,
    buffer,
    load_digits,
    train,
    verdict,
)

import fastact as fa

LAYERS, UNITS = 2, 64
SIDE, BATCH = 64, 256  # what is timed: 64 steps of 64 pixels
TRAIN_SIDE, TRAIN_BATCH = 8, 64  # what learns: the images as they are
EPOCHS = 30
RATE = 0.05 / TRAIN_BATCH  # the loss is a sum, not a mean
REQUIRED_ACCURACY = 0.96
# Errors of float32 travel through 64 steps, and products sum over 64 * 256 terms.
TOLERANCE = 1e-5


def initial(inputs: int, seed: int = 0) -> dict[str, Array]:
    """Weights to begin with, as torch draws them: w1, u1, b1, w2, u2, b2, w, b."""
    rng = np.random.default_rng(seed)

    def uniform(*shape: int) -> Array:
        return (rng.random(shape, np.float32) * 2 - 1) / np.float32(np.sqrt(UNITS))

    weights = {}
    for layer in range(1, LAYERS + 1):
        weights[f"w{layer}"] = uniform(inputs if layer == 1 else UNITS, 4 * UNITS)
        weights[f"u{layer}"] = uniform(UNITS, 4 * UNITS)
        weights[f"b{layer}"] = uniform(4 * UNITS)
    return {**weights, "w": uniform(UNITS, DIGITS), "b": uniform(DIGITS)}


class Layer:
    """One layer. x (T, B, I), dx of its shape or None; y and dy (T, B, H) belong to its states.

    every : whether dy holds a gradient of each step; else of the last step alone.
    """

    def __init__(self, x: Array, dx: Array | None, every: bool, *arrays: Array) -> None:
        w, u, b, dw, du, db = arrays
        steps, batch, _ = x.shape
        units = len(u)
        gates = buffer(steps, batch, 4 * units)
        # One row more: the zeros before the first step.
        h, c = (np.zeros((steps + 1, batch, units), np.float32) for _ in range(2))
        recurrent, dc = buffer(batch, 4 * units), buffer(batch, units)
        self.y, self.dy = h[1:], buffer(steps if every else 1, batch, units)
        dh = buffer(batch, units)

        flat, rows = gates.reshape(-1, 4 * units), x.reshape(-1, x.shape[2])
        self.up, self.down = Steps(), Steps()
        self.up.add("products", np.matmul, rows, w, out=flat)
        for t in range(steps):
            self.up.add("products", np.matmul, h[t], u, out=recurrent)
            self.up.add(
                "gates",
                fa.lstm_gates.forward,
                *(gates[t], c[t]),
                recurrent=recurrent,
                bias=b,
                out=(h[t + 1], c[t + 1], gates[t]),
            )
        for t in reversed(range(steps)):
            last = t == steps - 1
            coming = self.dy[-1] if last else dh
            saved = (gates[t], c[t], c[t + 1], None, None, None)
            self.down.add(
                "gates",
                fa.lstm_gates.backward,
                *(coming, None if last else dc, *saved),
                out=(gates[t], dc, None),
            )
            if t:
                self.down.add("products", np.matmul, gates[t], u.T, out=dh)
                if every:
                    self.down.add("sums", np.add, dh, self.dy[t - 1], out=dh)
        self.down.add("products", np.matmul, rows.T, flat, out=dw)
        self.down.add("products", np.matmul, h[:-1].reshape(-1, units).T, flat, out=du)
        self.down.add("sums", fa.bias_grad, flat, out=db)
        if dx is not None:
            self.down.add("products", np.matmul, flat, w.T, out=dx.reshape(rows.shape))


class Lstm(Network):
    """The network, its gradients, and all that a batch leaves on its way."""

    def __init__(self, weights: dict[str, Array], side: int, batch: int) -> None:
        sequence, minus = buffer(side, batch, side), buffer(batch, DIGITS)
        super().__init__(weights, sequence.transpose(1, 0, 2), minus)
        dr = np.empty_like(self.r)

        layers: list[Layer] = []
        for n in range(1, LAYERS + 1):
            x, dx = (layers[-1].y, layers[-1].dy) if layers else (sequence, None)
            names = [f"{letter}{n}" for letter in "wub"]
            arrays = [kept[name] for kept in (self.weights, self.gradients) for name in names]
            layers.append(Layer(x, dx, n < LAYERS, *arrays))
        state, dstate = layers[-1].y[-1], layers[-1].dy[-1]

        up, down = Steps(), Steps()
        for layer in layers:
            up += layer.up
        up.add("products", np.matmul, state, self.weights["w"], out=self.r)
        bias = self.weights["b"]
        up.add("sums", fa.bias_act, self.r, bias, residual=minus, out=self.r)
        down.add("sums", fa.sum_squares.value_and_grad, self.r, out=(self.loss, dr))
        down.add("sums", fa.bias_grad, dr, out=self.gradients["b"])
        down.add("products", np.matmul, state.T, dr, out=self.gradients["w"])
        down.add("products", np.matmul, dr, self.weights["w"].T, out=dstate)
        for layer in reversed(layers):
            down += layer.down
        self.up, self.all = up, up + down


def with_fastact(weights: dict[str, Array], images: Array, labels: Labels) -> Peer:
    """The network above."""
    return fastact_peer(Lstm(weights, images.shape[1], len(images)), images, labels)


def with_torch(
    weights: dict[str, Array], images: Array, labels: Labels, dtype: str = "float32"
) -> Peer:
    """The same in torch: torch.nn.LSTM, whose weights are the transposed ones."""
    import torch

    sequence = images.transpose(1, 0, 2).copy()
    parameters, x, target = torch_tensors(weights.values(), sequence, labels, dtype)
    zeros = x.new_zeros(4 * UNITS)  # torch has a second bias
    start = x.new_zeros(LAYERS, len(images), UNITS)

    def residual() -> Any:
        *recurrent, w, b = parameters
        flat = []
        for n in range(0, len(recurrent), 3):
            flat += [recurrent[n].T, recurrent[n + 1].T, recurrent[n + 2], zeros]
        y = torch.lstm(x, (start, start), flat, True, LAYERS, 0.0, True, False, False)[0]
        return torch.addmm(b, y[-1], w) - target

    kinds = {"lstm": "LSTM (its own)", "rnn": "LSTM (oneDNN)", "mm": "products (MKL)"}
    kinds |= {"sigmoid": "gates", "tanh": "gates", "mul": "gates", "add": "gates"}
    return torch_peer(residual, parameters, kinds)


def with_jax(weights: dict[str, Array], images: Array, labels: Labels) -> Peer:
    """The same in JAX, with a scan over the steps."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def layer(x: Any, w: Any, u: Any, b: Any) -> Any:
        def step(state: Any, gates: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(gates + h @ u + b, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], len(u)), x.dtype)
        return lax.scan(step, (zeros, zeros), x @ w)[1]

    def residual(parameters: Any, x: Any, target: Any) -> Any:
        w1, u1, b1, w2, u2, b2, w, b = parameters
        return layer(layer(x, w1, u1, b1), w2, u2, b2)[-1] @ w + b - target

    x = images.transpose(1, 0, 2).copy()
    return jax_peer(residual, list(weights.values()), x, jax.nn.one_hot(labels, DIGITS))


def main() -> int:
    """Compare, time, train; the exit status says whether all is as it must be."""
    told = arguments("An LSTM on handwritten digits with NumPy's matrix products and fastact.")
    digits = load_digits(SIDE)
    batch = (digits.train[:BATCH], digits.train_labels[:BATCH])
    makers = Makers(with_fastact, with_torch, with_jax)
    agrees = against_frameworks(makers, told.quick, TOLERANCE, initial(SIDE), *batch)

    model = Lstm(initial(TRAIN_SIDE), TRAIN_SIDE, TRAIN_BATCH)
    trainer = Trainer(model, load_digits(TRAIN_SIDE), RATE)
    train(trainer, EPOCHS, told.plot, "load_digits row by row, LSTM with fastact")
    return verdict(trainer, REQUIRED_ACCURACY, agrees)


if __name__ == "__main__":
    sys.exit(main())
