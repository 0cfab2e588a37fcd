"""Whole models: the gradient step of each network of `examples/`, time and peak of memory."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

# The networks of today, on the package of any commit.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


def loaded(name: str) -> Any:
    """Return a network with a batch in it; asv leaves out what an older commit has no ops for."""
    module, rng = import_module(name), np.random.default_rng(0)
    batch, side = module.BATCH, module.SIDE
    try:
        if name == "lstm":
            model: Any = module.Lstm(module.initial(side), side, batch)
        else:
            model = (module.Mlp if name == "mlp" else module.LeNet)(module.initial())
    except AttributeError as error:
        raise NotImplementedError(f"this version lacks an op: {error}") from None
    images = rng.standard_normal((batch, side, side), dtype=np.float32)
    model.load(images, rng.integers(0, 10, batch))
    model.gradient()
    return model


class Gradient:
    """Seconds and peak of memory, with fastact on its threads and matrix products on NumPy's.

    Compare commits with the same NumPy. The peak is the process's, libraries and data included.
    """

    params = (("mlp", "lenet", "lstm"),)
    param_names = ("model",)

    def setup(self, name: str) -> None:
        self.model = loaded(name)

    def time_forward(self, _: str) -> None:
        self.model.forward()

    def time_gradient(self, _: str) -> None:
        self.model.gradient()

    def peakmem_gradient(self, _: str) -> None:
        self.model.gradient()
