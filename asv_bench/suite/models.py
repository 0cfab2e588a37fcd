"""Whole models: the gradient step of each network of `examples/`, time and peak of memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

# The networks of today, on the package of any commit.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

MODELS = ("mlp", "lenet", "lstm")


def loaded(name: str) -> Any:
    """A network with a batch in it; asv leaves out what an older commit has no ops for."""
    rng = np.random.default_rng(0)
    try:
        if name == "mlp":
            from mlp import BATCH, SIDE, Mlp
            from mlp import initial as weights

            model: Any = Mlp(weights())
        elif name == "lenet":
            from lenet import BATCH, SIDE, LeNet
            from lenet import initial as weights

            model = LeNet(weights())
        else:
            from lstm import BATCH, SIDE, Lstm
            from lstm import initial as of_inputs

            model = Lstm(of_inputs(SIDE), SIDE, BATCH)
    except AttributeError as error:
        raise NotImplementedError(f"this version lacks an op: {error}") from None
    images = rng.standard_normal((BATCH, SIDE, SIDE), dtype=np.float32)
    model.load(images, rng.integers(0, 10, BATCH))
    model.gradient()
    return model


class Speed:
    """Seconds of a forward pass and of a whole gradient, with fastact on one thread.

    Matrix products are NumPy's, on its threads: compare commits with the same NumPy.
    """

    params = (MODELS,)
    param_names = ("model",)

    def setup(self, name: str) -> None:
        self.model = loaded(name)

    def time_forward(self, _: str) -> None:
        self.model.forward()

    def time_gradient(self, _: str) -> None:
        self.model.gradient()


class Memory:
    """Peak of memory of a process that computes gradients, its libraries and data included."""

    params = (MODELS,)
    param_names = ("model",)

    def setup(self, name: str) -> None:
        self.model = loaded(name)

    def peakmem_gradient(self, _: str) -> None:
        self.model.gradient()
