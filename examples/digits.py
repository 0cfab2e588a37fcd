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

import argparse
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from statistics import median
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fastact as fa

Array = NDArray[np.float32]

LAYERS = (64, 256, 128, 10)  # pixels, two hidden layers, digits
BATCH = 64
EPOCHS = 30
TIMED_EPOCHS = 15
REQUIRED_ACCURACY = 0.97


class Activation(Protocol):
    """What the network asks of an activation: two of the doors that every fastact op has."""

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

    def forward(self, x: Array) -> Array:
        """The logits of one batch. z is kept in every layer: backward needs nothing else."""
        *hidden, last = self.layers
        for layer in hidden:
            np.matmul(x, layer.weight, out=layer.z)
            np.add(layer.z, layer.bias, out=layer.z)
            x = self.activation(layer.z, out=layer.y)
        np.matmul(x, last.weight, out=last.y)
        return np.add(last.y, last.bias, out=last.y)

    def loss(self, labels: NDArray[np.intp]) -> float:
        """Cross-entropy of the last forward pass; leaves its gradient in the last layer."""
        logits, dz = self.layers[-1].y, self.layers[-1].dz
        rows = np.arange(BATCH)
        np.subtract(logits, logits.max(axis=1, keepdims=True), out=dz)
        np.exp(dz, out=dz)
        np.divide(dz, dz.sum(axis=1, keepdims=True), out=dz)  # the probabilities
        loss = -float(np.log(dz[rows, labels]).mean())
        dz[rows, labels] -= 1
        np.divide(dz, BATCH, out=dz)
        return loss

    def backward(self, x: Array) -> None:
        """Gradients of all weights for the batch `x` that went through forward and loss."""
        for layer, below in zip(self.layers[:0:-1], self.layers[-2::-1], strict=True):
            np.matmul(below.y.T, layer.dz, out=layer.dweight)
            np.sum(layer.dz, axis=0, out=layer.dbias)
            # The gradient of the activation's output, turned in place into that of its input.
            np.matmul(layer.dz, layer.weight.T, out=below.dz)
            self.activation.backward(below.dz, below.z, out=below.dz)
        first = self.layers[0]
        np.matmul(x.T, first.dz, out=first.dweight)
        np.sum(first.dz, axis=0, out=first.dbias)

    def parameters(self) -> Iterable[tuple[Array, Array]]:
        """Pairs of a parameter and its gradient."""
        for layer in self.layers:
            yield layer.weight, layer.dweight
            yield layer.bias, layer.dbias

    def accuracy(self, x: Array, labels: NDArray[np.intp]) -> float:
        """Share of the images that are read correctly."""
        for layer in self.layers[:-1]:
            z = x @ layer.weight + layer.bias
            x = self.activation(z, out=z)  # in place: nothing needs z any more
        logits = x @ self.layers[-1].weight + self.layers[-1].bias
        return float((logits.argmax(axis=1) == labels).mean())


class Momentum:
    """Gradient descent with momentum, its state and its scratch allocated once."""

    def __init__(self, network: Network, rate: float = 0.02, momentum: float = 0.9) -> None:
        self.rate, self.momentum = np.float32(rate), np.float32(momentum)
        self.state = [
            (parameter, gradient, np.zeros_like(parameter), np.empty_like(parameter))
            for parameter, gradient in network.parameters()
        ]

    def step(self) -> None:
        """Update every parameter from its gradient."""
        for parameter, gradient, velocity, scratch in self.state:
            np.multiply(velocity, self.momentum, out=velocity)
            np.add(velocity, gradient, out=velocity)
            np.multiply(velocity, self.rate, out=scratch)
            np.subtract(parameter, scratch, out=parameter)


class Trainer:
    """A network, its data in random order, and the two buffers that a batch is gathered into."""

    def __init__(self, activation: Activation, x: Array, labels: NDArray[np.intp]) -> None:
        self.network = Network(activation, seed=0)
        self.optimizer = Momentum(self.network)
        self.rng = np.random.default_rng(1)
        self.x, self.labels = x, labels
        self.batch_x = np.empty((BATCH, x.shape[1]), dtype=np.float32)
        self.batch_labels = np.empty(BATCH, dtype=labels.dtype)

    def epoch(self) -> float:
        """One pass over the data, but for the last incomplete batch; returns the mean loss."""
        order = self.rng.permutation(len(self.x))
        losses = []
        for begin in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[begin : begin + BATCH]
            # mode="clip" because the default mode gathers into a temporary first.
            np.take(self.x, chosen, axis=0, out=self.batch_x, mode="clip")
            np.take(self.labels, chosen, out=self.batch_labels, mode="clip")
            self.network.forward(self.batch_x)
            losses.append(self.network.loss(self.batch_labels))
            self.network.backward(self.batch_x)
            self.optimizer.step()
        return float(np.mean(losses))


def time_epochs(trainers: list[Trainer]) -> list[float]:
    """Median milliseconds of an epoch of each, taken in turns so that noise hits all alike."""
    times: list[list[float]] = [[] for _ in trainers]
    for _ in range(TIMED_EPOCHS):
        for trainer, measured in zip(trainers, times, strict=True):
            begin = time.perf_counter()
            trainer.epoch()
            measured.append(1e3 * (time.perf_counter() - begin))
    return [median(measured) for measured in times]


def plot(losses: list[float], path: str) -> None:
    """Draw the training loss."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.semilogy(range(1, len(losses) + 1), losses, color="#2a78d6", linewidth=2)
    axes.set(xlabel="epoch", ylabel="training loss", title="load_digits, MLP with fastact.mish")
    axes.grid(color="#e5e4e0", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main() -> int:
    """Train, test, time; the exit status says whether the accuracy is good enough."""
    parser = argparse.ArgumentParser(description="An MLP on handwritten digits with fastact.mish.")
    parser.add_argument("--plot", metavar="FILE", help="draw the training loss")
    arguments = parser.parse_args()

    images, digits = load_digits(return_X_y=True)
    pixels = (images / 4 - 2).astype(np.float32)  # from 0 ... 16 to -2 ... 2
    x_train, x_test, labels_train, labels_test = train_test_split(
        pixels, digits, test_size=0.25, stratify=digits, random_state=0
    )

    trainer = Trainer(fa.mish, x_train, labels_train)
    losses = []
    for epoch in range(1, EPOCHS + 1):
        losses.append(trainer.epoch())
        if epoch == 1 or epoch % 5 == 0:
            print(f"epoch {epoch:3d}   loss {losses[-1]:.5f}")
    if arguments.plot:
        plot(losses, arguments.plot)

    activations: list[Activation] = [fa.mish, PlainMish()]
    ours, plain = time_epochs([Trainer(a, x_train, labels_train) for a in activations])
    print(
        f"an epoch with fastact.mish {ours:.1f} ms, with plain NumPy mish {plain:.1f} ms:"
        f" {plain / ours:.1f} times faster"
    )

    accuracy = trainer.network.accuracy(x_test, labels_test)
    passed = accuracy >= REQUIRED_ACCURACY
    print(
        f"test accuracy {accuracy:.2%} of {len(x_test)} images,"
        f" at least {REQUIRED_ACCURACY:.0%} required: {'passed' if passed else 'FAILED'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
