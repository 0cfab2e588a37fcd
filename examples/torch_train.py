"""A convolutional network in torch on handwritten digits, as it is and converted to fastact.

    pip install '.[test]'             # torch, and scikit-learn, which ships the data
    python examples/torch_train.py    # --plot loss.png draws the loss as well (needs matplotlib)

The network is written in torch alone. `fastact.torch.nn.convert` makes a copy of it compute batch
norm and Mish in one pass, and the loss in one read of the logits. Both learn the same images in the
same order by AdamW, from the same parameters; in turns, so that noise hits both alike.
"""

from __future__ import annotations

import copy
import sys
import time
from statistics import median
from typing import Any

import numpy as np
import torch
from _shared import DIGITS, THREADS, arguments, load_digits, plot
from torch import nn

from fastact.torch.nn import convert

BATCH = 64
EPOCHS = 12
RATE = 2e-3
REQUIRED_ACCURACY = 0.97
# The same network rounded otherwise: of 450 images some may be read differently.
ALLOWED_DIFFERENCE = 0.012


def network() -> nn.Sequential:
    """Three convolutions, each with batch norm and Mish, and two linear layers."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((1, 16, 1), (16, 32, 2), (32, 64, 2)):
        layers.append(nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False))
        layers += [nn.BatchNorm2d(outputs), nn.Mish(inplace=True)]
    layers += [nn.Flatten(), nn.Linear(256, 64), nn.GELU(), nn.Linear(64, DIGITS)]
    return nn.Sequential(*layers)


class Training:
    """A network, its loss and its optimiser."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.loss = model, nn.CrossEntropyLoss(label_smoothing=0.05)
        self.parts = nn.ModuleDict({"network": model, "loss": self.loss})
        self.optimizer = torch.optim.AdamW(model.parameters(), RATE)
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def epoch(self, images: Any, labels: Any, order: Any) -> None:
        """One pass over the images in this order, but for the last incomplete batch."""
        self.model.train()
        begin, losses = time.perf_counter(), []
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            self.optimizer.zero_grad()
            loss = self.loss(self.model(images[chosen]), labels[chosen])
            loss.backward()
            self.optimizer.step()
            losses.append(float(loss.detach()))
        self.seconds.append(time.perf_counter() - begin)
        self.losses.append(float(np.mean(losses)))

    def accuracy(self, images: Any, labels: Any) -> float:
        """Share of the images that are read correctly."""
        self.model.eval()
        with torch.inference_mode():
            return float((self.model(images).argmax(1) == labels).double().mean())


def main() -> int:
    """Train both, compare; the exit status says whether both are good enough, and alike."""
    told = arguments("A network of torch on handwritten digits, as it is and converted.")
    torch.set_num_threads(THREADS)
    digits = load_digits()
    train, test = (torch.from_numpy(a).unsqueeze(1) for a in (digits.train, digits.test))
    labels, test_labels = map(torch.from_numpy, (digits.train_labels, digits.test_labels))

    model = network()
    trainings = {"torch": Training(model), "fastact": Training(copy.deepcopy(model))}
    print(convert(trainings["fastact"].parts))
    generator = torch.Generator().manual_seed(1)
    for epoch in range(1, EPOCHS + 1):
        order = torch.randperm(len(train), generator=generator)
        for training in trainings.values():
            training.epoch(train, labels, order)
        if epoch in (1, EPOCHS) or epoch % 4 == 0:
            told_losses = (f"{name} {t.losses[-1]:.5f}" for name, t in trainings.items())
            print(f"epoch {epoch:3d}   loss {'   '.join(told_losses)}")
    if told.plot:
        plot(trainings["fastact"].losses, told.plot, "load_digits, converted network")

    times = {name: median(t.seconds) for name, t in trainings.items()}
    reached = {name: t.accuracy(test, test_labels) for name, t in trainings.items()}
    print(
        f"an epoch as it is {1e3 * times['torch']:.0f} ms, converted"
        f" {1e3 * times['fastact']:.0f} ms: {times['torch'] / times['fastact']:.2f} times as fast,"
        f" {THREADS} threads for torch, 1 for fastact"
    )
    state = trainings["fastact"].model.state_dict()
    trainings["torch"].model.load_state_dict(state)  # what was learnt converted, in torch alone
    exchanged = trainings["torch"].accuracy(test, test_labels)
    apart = max(abs(a - reached["fastact"]) for a in (reached["torch"], exchanged))
    passed = min(reached.values()) >= REQUIRED_ACCURACY and apart <= ALLOWED_DIFFERENCE
    print(
        f"test accuracy {reached['fastact']:.2%} converted, {reached['torch']:.2%} as it is, at"
        f" least {REQUIRED_ACCURACY:.0%} required: {'passed' if passed else 'FAILED'}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
