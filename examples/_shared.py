"""What the examples share: the digits, networks as lists of calls, training, timing, the picture.

A network here is a `Model`: its arrays are allocated once, and a forward pass or a gradient is a
fixed list of calls (`Steps`) that write into them.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

import fastact as fa

Array = NDArray[np.float32]
Labels = NDArray[np.intp]
Call = Callable[[], Any]

# Matrix products and frameworks have as many threads as fastact would have, fastact itself has one.
# NumPy's OpenBLAS and fastact's OpenMP each keep a pool of threads, and after its work each keeps a
# core busy for a while in case there is more: with a thread a core in both, which take turns every
# few microseconds, each is in the other's way (the LSTM's gradient took 80 ms instead of 55).
THREADS = fa.get_num_threads()
fa.set_num_threads(1)

PAUSE_SECONDS = 0.05  # between two turns: twice as long as OpenBLAS's threads wait for more work
ROUNDS, QUICK_ROUNDS = 25, 2
DIGITS = 10


class Digits(NamedTuple):
    """Images, with values from -2 to 2, and what they show."""

    train: Array
    test: Array
    train_labels: Labels
    test_labels: Labels


def load_digits(side: int = 8) -> Digits:
    """scikit-learn's 1797 handwritten digits, of 8 x 8 pixels or enlarged: (images, side, side)."""
    # Here, not above: the benchmarks of asv use the models without scikit-learn.
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    pixels, digits = datasets.load_digits(return_X_y=True)
    images = (pixels / 4 - 2).reshape(-1, 8, 8)  # from 0 ... 16 to -2 ... 2
    if side != 8:
        # Linear interpolation along both axes, as a matrix: its columns are images of unit pulses.
        places = np.linspace(0, 7, side)
        matrix = np.stack([np.interp(places, np.arange(8), pulse) for pulse in np.eye(8)], axis=1)
        images = matrix @ images @ matrix.T
    return Digits(
        *train_test_split(
            images.astype(np.float32), digits, test_size=0.25, stratify=digits, random_state=0
        )
    )


def minus_one_hot(labels: Labels | None, out: Array) -> None:
    """Minus the target, for a residual: 1 where the label is, 0 elsewhere; all 0 for no labels."""
    out[...] = 0
    if labels is not None:
        out[np.arange(len(labels)), labels] = -1


def buffer(*shape: int) -> Array:
    """Memory to write into."""
    return np.empty(shape, np.float32)


class Steps:
    """A fixed list of calls with all their arrays, each of a kind ("product", "bias" ...)."""

    def __init__(self) -> None:
        self._steps: list[tuple[str, Call]] = []

    def add(self, kind: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Append ``function(*args, **kwargs)``."""
        self._steps.append((kind, lambda: function(*args, **kwargs)))

    def __add__(self, other: Steps) -> Steps:
        both = Steps()
        both._steps = self._steps + other._steps
        return both

    def __call__(self) -> None:
        for _, step in self._steps:
            step()

    def profile(self, rounds: int) -> dict[str, float]:
        """Median seconds that each kind of step takes in one run, the largest first."""
        runs: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            run: dict[str, float] = defaultdict(float)
            for kind, step in self._steps:
                begin = time.perf_counter()
                step()
                run[kind] += time.perf_counter() - begin
            for kind, seconds in run.items():
                runs[kind].append(seconds)
        medians = {kind: median(seconds) for kind, seconds in runs.items()}
        return dict(sorted(medians.items(), key=lambda item: -item[1]))


class Model(Protocol):
    """A network with the memory for one batch.

    batch : how many images that is.
    """

    batch: int

    def load(self, images: Array, labels: Labels | None, /) -> None:
        """Take over a batch of images (batch, side, side); without labels the targets are 0."""

    def forward(self) -> Array:
        """The answers less the targets, (batch, 10)."""

    def gradient(self) -> float:
        """The loss of the batch; leaves the gradients of all parameters in `parameters`."""

    def parameters(self) -> Iterable[tuple[Array, Array]]:
        """Pairs of a parameter and its gradient."""


class Network:
    """A `Model` of `Steps` with the sum of squares as its loss; who derives from it adds the steps.

    weights, gradients : arrays by name.
    r, minus : the answers less the targets, and minus the targets: (batch, 10).
    up, all : the steps of a forward pass, and the steps of a gradient.
    """

    def __init__(self, weights: Mapping[str, Array], images: Array, minus: Array) -> None:
        """images : where a batch is kept, (batch, side, side), with any strides."""
        self.batch = len(images)
        self.weights = {name: array.copy() for name, array in weights.items()}
        self.gradients = {name: np.empty_like(array) for name, array in weights.items()}
        self.images, self.minus = images, minus
        self.r, self.loss = np.empty_like(minus), buffer()
        self.up, self.all = Steps(), Steps()

    def load(self, images: Array, labels: Labels | None, /) -> None:
        """Take over a batch."""
        self.images[...] = images
        minus_one_hot(labels, out=self.minus)

    def forward(self) -> Array:
        """The answers less the targets."""
        self.up()
        return self.r

    def gradient(self) -> float:
        """The loss of the batch, and all gradients."""
        self.all()
        return float(self.loss)

    def parameters(self) -> Iterable[tuple[Array, Array]]:
        """Pairs of a parameter and its gradient."""
        return zip(self.weights.values(), self.gradients.values(), strict=True)


class Momentum:
    """Gradient descent with momentum, its state and its scratch allocated once."""

    def __init__(self, model: Model, rate: float, momentum: float = 0.9) -> None:
        self.rate, self.momentum = np.float32(rate), np.float32(momentum)
        self.state = [
            (parameter, gradient, np.zeros_like(parameter), np.empty_like(parameter))
            for parameter, gradient in model.parameters()
        ]

    def step(self) -> None:
        """Update every parameter from its gradient."""
        for parameter, gradient, velocity, scratch in self.state:
            np.multiply(velocity, self.momentum, out=velocity)
            np.add(velocity, gradient, out=velocity)
            np.multiply(velocity, self.rate, out=scratch)
            np.subtract(parameter, scratch, out=parameter)


class Trainer:
    """A model, its data in random order, and the two buffers that a batch is gathered into."""

    def __init__(self, model: Model, digits: Digits, rate: float) -> None:
        self.model, self.digits = model, digits
        self.optimizer = Momentum(model, rate)
        self.rng = np.random.default_rng(1)
        self.images = np.empty((model.batch, *digits.train.shape[1:]), np.float32)
        self.labels = np.empty(model.batch, digits.train_labels.dtype)

    def epoch(self) -> float:
        """One pass over the data, but for the last incomplete batch; returns the mean loss."""
        batch, order = self.model.batch, self.rng.permutation(len(self.digits.train))
        losses = []
        for begin in range(0, len(order) - batch + 1, batch):
            chosen = order[begin : begin + batch]
            # mode="clip" because the default mode gathers into a temporary first.
            np.take(self.digits.train, chosen, axis=0, out=self.images, mode="clip")
            np.take(self.digits.train_labels, chosen, out=self.labels, mode="clip")
            self.model.load(self.images, self.labels)
            losses.append(self.model.gradient())
            self.optimizer.step()
        return float(np.mean(losses))

    def accuracy(self) -> float:
        """Share of the test images that are read correctly."""
        images, labels = self.digits.test, self.digits.test_labels
        right = 0
        for begin in range(0, len(images), self.model.batch):
            # The last batch is filled up from the front; those images are not counted again.
            chosen = np.arange(begin, begin + self.model.batch) % len(images)
            self.model.load(images[chosen], None)
            answers = self.model.forward().argmax(axis=1)
            fresh = min(self.model.batch, len(images) - begin)
            right += int((answers == labels[chosen])[:fresh].sum())
        return right / len(images)


def train(trainer: Trainer, epochs: int, plot_to: str | None, title: str) -> None:
    """Train, print the loss now and then, draw it where a file is given."""
    losses = []
    for epoch in range(1, epochs + 1):
        losses.append(trainer.epoch())
        if epoch in (1, epochs) or epoch % 5 == 0:
            print(f"epoch {epoch:3d}   loss {losses[-1]:.5f}")
    if plot_to:
        plot(losses, plot_to, title)


def plot(losses: list[float], path: str, title: str) -> None:
    """Draw the training loss."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.semilogy(range(1, len(losses) + 1), losses, color="#2a78d6", linewidth=2)
    axes.set(xlabel="epoch", ylabel="training loss", title=title)
    axes.grid(color="#e5e4e0", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def verdict(trainer: Trainer, required: float, agrees: bool = True) -> int:
    """Print the closing line; the exit status."""
    accuracy = trainer.accuracy()
    passed = accuracy >= required and agrees
    print(
        f"test accuracy {accuracy:.2%} of {len(trainer.digits.test)} images,"
        f" at least {required:.0%} required: {'passed' if passed else 'FAILED'}"
    )
    return 0 if passed else 1


def arguments(description: str, **more: str) -> argparse.Namespace:
    """The command line that all examples have, and further options with their help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--plot", metavar="FILE", help="draw the training loss")
    parser.add_argument("--quick", action="store_true", help="few rounds of timing, no JAX")
    for name, text in more.items():
        parser.add_argument(f"--{name}", help=text)
    return parser.parse_args()


def turns(calls: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of the seconds that each call measures, in turns so that noise hits all alike."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            time.sleep(PAUSE_SECONDS)
            taken[name].append(call())
    return {name: median(samples) for name, samples in taken.items()}


def print_shares(whose: str, profile: Mapping[str, float]) -> None:
    """The share of each part in the time."""
    whole = sum(profile.values())
    parts = (f"{kind} {1e6 * s:.0f} us ({s / whole:.1%})" for kind, s in profile.items())
    print(f"{whose}: {', '.join(parts)}")
