"""Handwritten digits with NumPy and fastact, and no framework.

    pip install '.[test]'        # for scikit-learn, which ships the data
    python examples/digits.py    # --plot loss.png draws the loss as well (needs matplotlib)

A network with two hidden layers learns the 8 x 8 images of scikit-learn's `load_digits`. Every
array that training touches is allocated before the first step: matrix products, activations and
gradients are written with `out=` into buffers that stay, so that an epoch allocates nothing that
grows with the network or the batch.

The same code then runs with Mish written in plain NumPy, to see what the activation costs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from typing import Protocol

import numpy as np
from _shared import Array, Labels, Trainer, arguments, load_digits, train, turns, verdict

import fastact as fa

LAYERS = (64, 256, 128, 10)  # pixels, two hidden layers, digits
BATCH = 64
EPOCHS = 30
RATE = 0.02
TIMED_EPOCHS, QUICK_EPOCHS = 15, 1
REQUIRED_ACCURACY = 0.97


class Activation(Protocol):
    """What the network asks of an activation: two of the entry points that every fastact op has."""

    def __call__(self, x: Array, /, *, out: Array) -> Array: ...

    def backward(self, dy: Array, x: Array, /, *, out: Array) -> Array: ...


class PlainMish:
    """Mish as one writes it in NumPy: one pass over memory, and one temporary, per operation."""

    def __call__(self, x: Array, /, *, out: Array) -> Array:
        np.multiply(x, np.tanh(np.logaddexp(x, np.float32(0))), out=out)
        return out

    def backward(self, dy: Array, x: Array, /, *, out: Array) -> Array:
        t = np.tanh(np.logaddexp(x, np.float32(0)))
        # The sigmoid by tanh: exp(-x) would overflow for large negative x.
        sigmoid = np.float32(0.5) * (np.float32(1) + np.tanh(np.float32(0.5) * x))
        np.multiply(dy, t + x * sigmoid * (np.float32(1) - t * t), out=out)
        return out


class Layer:
    """Weights of one layer, their gradients, and all that a batch leaves here on its way."""

    def __init__(self, inputs: int, outputs: int, rng: np.random.Generator) -> None:
        scale = np.float32(np.sqrt(2 / inputs))
        self.weight = rng.standard_normal((inputs, outputs), dtype=np.float32) * scale
        self.bias = np.zeros(outputs, dtype=np.float32)
        self.dweight = np.empty_like(self.weight)
        self.dbias = np.empty_like(self.bias)
        self.z = np.empty((BATCH, outputs), dtype=np.float32)  # before the activation
        self.y = np.empty((BATCH, outputs), dtype=np.float32)  # after it; the logits at the end
        self.dz = np.empty((BATCH, outputs), dtype=np.float32)  # gradients of both, one by one


class Network:
    """A multilayer perceptron that computes where it was told to, and allocates nowhere else."""

    def __init__(self, activation: Activation, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.activation = activation
        self.layers = [Layer(*shape, rng) for shape in pairwise(LAYERS)]
        self.batch = BATCH
        self.x = np.empty((BATCH, LAYERS[0]), dtype=np.float32)
        self.labels = np.zeros(BATCH, dtype=np.intp)

    def load(self, images: Array, labels: Labels | None) -> None:
        """Take over a batch of images; without labels for a forward pass alone."""
        self.x[...] = images.reshape(self.x.shape)
        if labels is not None:
            self.labels[...] = labels

    def forward(self) -> Array:
        """The logits of the batch. z is kept in every layer: backward needs nothing else."""
        x = self.x
        *hidden, last = self.layers
        for layer in hidden:
            np.matmul(x, layer.weight, out=layer.z)
            np.add(layer.z, layer.bias, out=layer.z)
            x = self.activation(layer.z, out=layer.y)
        np.matmul(x, last.weight, out=last.y)
        return np.add(last.y, last.bias, out=last.y)

    def gradient(self) -> float:
        """The loss of the batch, and the gradients of all weights."""
        self.forward()
        loss = self.loss()
        self.backward()
        return loss

    def loss(self) -> float:
        """Cross-entropy of the last forward pass; leaves its gradient in the last layer."""
        logits, dz = self.layers[-1].y, self.layers[-1].dz
        rows = np.arange(BATCH)
        np.subtract(logits, logits.max(axis=1, keepdims=True), out=dz)
        np.exp(dz, out=dz)
        np.divide(dz, dz.sum(axis=1, keepdims=True), out=dz)  # the probabilities
        loss = -float(np.log(dz[rows, self.labels]).mean())
        dz[rows, self.labels] -= 1
        np.divide(dz, BATCH, out=dz)
        return loss

    def backward(self) -> None:
        """Gradients of all weights, after forward and loss."""
        for layer, below in zip(self.layers[:0:-1], self.layers[-2::-1], strict=True):
            np.matmul(below.y.T, layer.dz, out=layer.dweight)
            np.sum(layer.dz, axis=0, out=layer.dbias)
            # The gradient for the activation's output becomes the gradient for its input, in place.
            np.matmul(layer.dz, layer.weight.T, out=below.dz)
            self.activation.backward(below.dz, below.z, out=below.dz)
        first = self.layers[0]
        np.matmul(self.x.T, first.dz, out=first.dweight)
        np.sum(first.dz, axis=0, out=first.dbias)

    def parameters(self) -> Iterable[tuple[Array, Array]]:
        """Pairs of a parameter and its gradient."""
        for layer in self.layers:
            yield layer.weight, layer.dweight
            yield layer.bias, layer.dbias


def seconds(trainer: Trainer) -> float:
    """The time of an epoch."""
    begin = time.perf_counter()
    trainer.epoch()
    return time.perf_counter() - begin


def main() -> int:
    """Train, test, time; the exit status says whether the accuracy is good enough."""
    told = arguments("An MLP on handwritten digits with fastact.mish.")
    digits = load_digits()
    trainer = Trainer(Network(fa.mish, seed=0), digits, RATE)
    train(trainer, EPOCHS, told.plot, "load_digits, MLP with fastact.mish")

    activations: dict[str, Activation] = {"fastact": fa.mish, "plain": PlainMish()}
    trainers = {n: Trainer(Network(a, seed=0), digits, RATE) for n, a in activations.items()}
    epochs = QUICK_EPOCHS if told.quick else TIMED_EPOCHS
    times = turns({n: partial(seconds, t) for n, t in trainers.items()}, epochs)
    print(
        f"an epoch with fastact.mish {1e3 * times['fastact']:.1f} ms, with plain NumPy mish"
        f" {1e3 * times['plain']:.1f} ms: {times['plain'] / times['fastact']:.1f} times faster"
    )
    return verdict(trainer, REQUIRED_ACCURACY)


if __name__ == "__main__":
    sys.exit(main())
