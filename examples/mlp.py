"""A multilayer perceptron and its whole gradient without allocating anything.

    pip install '.[test]'      # scikit-learn, which ships the data, and torch to compare with
    python examples/mlp.py     # --plot loss.png draws the loss as well (needs matplotlib)

128 images of 28 x 28 pixels go through Dense 784 -> 32 tanh and Dense 32 -> 10. The loss is the sum
of squares of what comes out less the target. NumPy multiplies matrices, fastact does all the rest,
and every call writes into memory that is allocated once.

The gradients are compared with torch's, the time with torch's autograd and JAX's jit, where they
are installed, and then the network learns to read handwritten digits.

Shapes, and the gradient by hand, with B images and minus = -target:

    z = x W1                (B, 32)     dy  = 2 r
    h = tanh(z + b1)        (B, 32)     dW2 = h' dy      db2 = sum of dy over the images
    r = h W2 + b2 + minus   (B, 10)     dz  = (dy W2') tanh'(z + b1)
    loss = sum of r**2                  dW1 = x' dz      db1 = sum of dz over the images
"""

from __future__ import annotations

import sys
import tracemalloc
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

SIDE, HIDDEN = 28, 32
BATCH = 128
EPOCHS = 60
RATE = 0.001 / BATCH  # the loss is a sum, not a mean
REQUIRED_ACCURACY = 0.95
# float32 sums of 128 to 784 products: a few hundred roundings of 6e-8 that mostly cancel.
TOLERANCE = 2e-6
# A call makes some small Python objects, a tuple say; the smallest array of a batch has 5120 bytes.
ALLOWED_BYTES = 1024


def initial(seed: int = 0) -> dict[str, Array]:
    """Weights to begin with; each product of a layer keeps the size of its input."""
    rng = np.random.default_rng(seed)
    w1 = rng.standard_normal((SIDE * SIDE, HIDDEN), dtype=np.float32) / np.float32(SIDE * 2)
    w2 = rng.standard_normal((HIDDEN, DIGITS), dtype=np.float32) / np.float32(np.sqrt(HIDDEN))
    return {
        "w1": w1,
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": w2,
        "b2": np.zeros(DIGITS, np.float32),
    }


class Mlp(Network):
    """The network, its gradients, and all that a batch leaves on its way."""

    def __init__(self, weights: dict[str, Array], batch: int = BATCH) -> None:
        x, minus = buffer(batch, SIDE * SIDE), buffer(batch, DIGITS)
        super().__init__(weights, x.reshape(batch, SIDE, SIDE), minus)
        w1, b1, w2, b2 = self.weights.values()
        dw1, db1, dw2, db2 = self.gradients.values()

        z, h, dh = buffer(batch, HIDDEN), buffer(batch, HIDDEN), buffer(batch, HIDDEN)
        dy = np.empty_like(self.r)

        up = self.up
        up.add("products", np.matmul, x, w1, out=z)
        up.add("bias", fa.bias_act, z, b1, "tanh", out=h)  # z is kept for backward
        up.add("products", np.matmul, h, w2, out=self.r)
        up.add("bias", fa.bias_act, self.r, b2, residual=minus, out=self.r)

        down = Steps()
        down.add("loss", fa.sum_squares.value_and_grad, self.r, out=(self.loss, dy))
        down.add("bias", fa.bias_grad, dy, out=db2)
        down.add("products", np.matmul, h.T, dy, out=dw2)
        down.add("products", np.matmul, dy, w2.T, out=dh)
        down.add("bias", fa.bias_act.backward, dh, z, b1, None, "tanh", out=(dh, db1))
        down.add("products", np.matmul, x.T, dh, out=dw1)
        self.all = up + down


def with_fastact(weights: dict[str, Array], images: Array, labels: Labels) -> Peer:
    """The network above."""
    return fastact_peer(Mlp(weights, len(images)), images, labels)


def with_torch(
    weights: dict[str, Array], images: Array, labels: Labels, dtype: str = "float32"
) -> Peer:
    """The same in torch."""
    import torch

    rows = images.reshape(len(images), -1)
    parameters, x, target = torch_tensors(weights.values(), rows, labels, dtype)

    def residual() -> Any:
        w1, b1, w2, b2 = parameters
        return torch.addmm(b2, torch.tanh(torch.addmm(b1, x, w1)), w2) - target

    return torch_peer(residual, parameters, {"mm": "products (MKL)"})


def with_jax(weights: dict[str, Array], images: Array, labels: Labels) -> Peer:
    """The same in JAX."""
    import jax
    import jax.numpy as jnp

    def residual(parameters: Any, x: Any, target: Any) -> Any:
        w1, b1, w2, b2 = parameters
        return jnp.tanh(x @ w1 + b1) @ w2 + b2 - target

    x = images.reshape(len(images), -1)
    return jax_peer(residual, list(weights.values()), x, jax.nn.one_hot(labels, DIGITS))


def allocated(model: Mlp, times: int = 100) -> int:
    """The most bytes that Python and NumPy held in a loop of gradients beyond those before it."""
    tracemalloc.start()
    for _ in range(3):
        model.gradient()  # the ops learn calls of a new kind, and remember them
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(times):
        model.gradient()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak - before


def main() -> int:
    """Compare, time, train; the exit status says whether all is as it must be."""
    told = arguments("An MLP on handwritten digits with fastact, without allocation.")
    digits, weights = load_digits(SIDE), initial()
    batch = (digits.train[:BATCH], digits.train_labels[:BATCH])
    makers = Makers(with_fastact, with_torch, with_jax)
    agrees = against_frameworks(makers, told.quick, TOLERANCE, weights, *batch)

    model = Mlp(weights)
    model.load(*batch)
    peak = allocated(model)
    lean = peak <= ALLOWED_BYTES
    print(
        f"100 gradients in a loop: {peak} bytes of Python objects at most, no array"
        f" ({ALLOWED_BYTES} bytes allowed): {'passed' if lean else 'FAILED'}"
    )

    trainer = Trainer(Mlp(weights), digits, RATE)
    train(trainer, EPOCHS, told.plot, "load_digits at 28 x 28, MLP with fastact")
    return verdict(trainer, REQUIRED_ACCURACY, agrees and lean)


if __name__ == "__main__":
    sys.exit(main())
