"""LeNet and its whole gradient: convolutions as NumPy's matrix products, fastact for the rest.

    pip install '.[test]'      # scikit-learn, which ships the data, and torch to compare with
    python examples/lenet.py   # --plot loss.png draws the loss as well (needs matplotlib)

Conv 5 x 5, 1 -> 6, relu, pool; Conv 5 x 5, 6 -> 16, relu, pool; Dense 256 -> 120 -> 84 -> 10 with
relu, on images of 28 x 28. The loss is the sum of squares of what comes out less the target.

The gradients are compared with torch's, the time with torch's autograd and JAX's jit, where they
are installed; what the biases cost is told, at batches of 128 and of 1000. Then the
network learns to read handwritten digits, enlarged.

Layout. Images lie with the batch last: (rows, channels, columns, batch). Shifting a window along
the columns then copies long runs, and shifting it along the rows copies nothing: the windows of
output row r are rows r ... r + 4 of the unfolded input, which lie one behind another. So im2col
multiplies the image by 5 where it usually multiplies it by 25, and a convolution is one batched
matrix product over overlapping views:

    u[r, c, j, q, b] = x[r, c, q + j, b]                      unfolded along the columns only
    z[r] = W u[r : r + 5]       W: (out, 5 c 5), the views: (5 c 5, columns * batch)

Its gradients, with dz padded by four rows of zeros on both sides, are of the same form:

    dW = sum over r of dz[r] u[r : r + 5]'
    du[r] = V dz[r : r + 5]     V: (c 5, 5 out), W with its rows in reverse
    dx[r, c, q, b] = sum over j of du[r, c, j, q - j, b]      folded back

Rounding, bias and relu keep the order of numbers, so the largest of relu(z + bias) is relu(the
largest z + bias), bit by bit: the pool comes first here, and three in four values are never seen by
bias and relu.
"""

from __future__ import annotations

import sys
from itertools import pairwise
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
    QUICK_ROUNDS,
    ROUNDS,
    Array,
    Labels,
    Network,
    Steps,
    Trainer,
    arguments,
    buffer,
    load_digits,
    print_shares,
    train,
    verdict,
)
from numpy.lib.stride_tricks import as_strided

import fastact as fa

SIDE = 28
KERNEL = 5
CHANNELS = (1, 6, 16)
WIDTHS = (256, 120, 84, DIGITS)  # 256: 16 channels of 4 x 4 are left
BATCH, LARGE_BATCH = 128, 1000
TRAIN_BATCH, EPOCHS = 32, 20
RATE = 0.004 / TRAIN_BATCH  # the loss is a sum, not a mean
REQUIRED_ACCURACY = 0.97
# float32 sums of up to 128 * 24 * 24 products: thousands of roundings of 6e-8 that mostly cancel.
TOLERANCE = 1e-5
ALLOWED_BIAS_SHARE = 0.05


def initial(seed: int = 0) -> dict[str, Array]:
    """Weights to begin with, by He's rule: w1, b1 ... w5, b5, shaped as the products take them."""
    rng = np.random.default_rng(seed)
    shapes = [(o, KERNEL * c * KERNEL) for c, o in pairwise(CHANNELS)]
    shapes += [(o, i) for i, o in pairwise(WIDTHS)]
    weights: dict[str, Array] = {}
    for number, (outputs, inputs) in enumerate(shapes, 1):
        scale = np.float32(np.sqrt(2 / inputs))
        weights[f"w{number}"] = rng.standard_normal((outputs, inputs), dtype=np.float32) * scale
        weights[f"b{number}"] = np.zeros(outputs, np.float32)
    weights["w5"] *= np.float32(0.1)  # the first answers are near 0, as the targets are
    return weights


def windows(rows: Array) -> Array:
    """Views of KERNEL consecutive rows, each as one matrix: (rows - 4, 5 k, n) of (rows, k, n)."""
    count, k, n = rows.shape
    return as_strided(rows, (count - KERNEL + 1, KERNEL * k, n), rows.strides)


class Layer:
    """A layer reads x and writes y; on its way back it reads dy and writes dx, of the layer below.

    up, down : the calls of both ways.
    """

    def __init__(self, y: Array, dy: Array | None = None) -> None:
        self.y, self.dy = y, np.empty_like(y) if dy is None else dy
        self.up, self.down = Steps(), Steps()


class Conv(Layer):
    """A convolution of (rows, channels, columns, batch), without its bias.

    dy is padded with rows of zeros, for `windows`.
    """

    def __init__(self, x: Array, dx: Array | None, weight: Array, dweight: Array) -> None:
        height, channels, width, batch = x.shape
        outputs, reach = len(weight), KERNEL - 1
        height, width = height - reach, width - reach
        padded = np.zeros((height + 2 * reach, outputs, width, batch), np.float32)
        super().__init__(buffer(height, outputs, width, batch), padded[reach:-reach])

        unfolded = buffer(height + reach, channels, KERNEL, width, batch)
        columns = windows(unfolded.reshape(height + reach, channels * KERNEL, -1))
        self.up.add("copies", unfold, x, unfolded)
        self.up.add("products", np.matmul, weight, columns, out=self.y.reshape(height, outputs, -1))

        dy, parts = self.dy.reshape(height, outputs, -1), buffer(height, *weight.shape)
        self.down.add("products", np.matmul, dy, columns.transpose(0, 2, 1), out=parts)
        self.down.add("copies", fa.sum, parts, axis=0, out=dweight)
        if dx is not None:
            taps = weight.reshape(outputs, KERNEL, channels * KERNEL)[:, ::-1].transpose(2, 1, 0)
            reverse = buffer(*taps.shape)
            matrix = reverse.reshape(channels * KERNEL, KERNEL * outputs)
            rows = windows(padded.reshape(height + 2 * reach, outputs, -1))
            # The unfolded input has served: its memory takes its gradient.
            du = unfolded.reshape(height + reach, channels * KERNEL, -1)
            self.down.add("copies", np.copyto, reverse, taps)
            self.down.add("products", np.matmul, matrix, rows, out=du)
            self.down.add("copies", fold, unfolded, dx)


def unfold(x: Array, out: Array) -> None:
    """The windows along the columns, one behind another."""
    width = out.shape[3]
    for j in range(KERNEL):
        np.copyto(out[:, :, j], x[:, :, j : j + width])


def fold(du: Array, out: Array) -> None:
    """The gradient of `unfold`: each column's sum over the windows that it was in."""
    width = du.shape[3]
    np.copyto(out[:, :, :width], du[:, :, 0])
    out[:, :, width:] = 0
    for j in range(1, KERNEL):
        part = out[:, :, j : j + width]
        np.add(part, du[:, :, j], out=part)


class Pool(Layer):
    """The largest of each 2 x 2 pixels: of two columns, then of two rows."""

    def __init__(self, x: Array, dx: Array) -> None:
        height, channels, width, batch = x.shape
        half = buffer(height, channels, width // 2, batch)
        super().__init__(buffer(height // 2, channels, width // 2, batch))
        dhalf = np.empty_like(half)

        left, right = x[:, :, ::2], x[:, :, 1::2]
        upper, lower = half[::2], half[1::2]
        self.up.add("pooling", np.maximum, left, right, out=half)
        self.up.add("pooling", np.maximum, upper, lower, out=self.y)
        dleft, dright, dupper, dlower = dx[:, :, ::2], dx[:, :, 1::2], dhalf[::2], dhalf[1::2]
        self.down.add("pooling", choose, self.dy, upper, lower, dupper, dlower)
        self.down.add("pooling", choose, dhalf, left, right, dleft, dright)


def choose(dy: Array, first: Array, second: Array, dfirst: Array, dsecond: Array) -> None:
    """The gradient of max(first, second) goes to the larger one; to the first where they tie."""
    np.subtract(second, first, out=dsecond)
    fa.relu.backward(dy, dsecond, out=dsecond)  # dy where second - first > 0, else 0
    np.subtract(dy, dsecond, out=dfirst)


class Bias(Layer):
    """act(x + bias + residual), with the bias along `axis`; dx may be dy's own memory."""

    def __init__(
        self,
        x: Array,
        dx: Array,
        activation: str,
        axis: int,
        bias: Array,
        dbias: Array,
        residual: Array | None = None,
    ) -> None:
        super().__init__(np.empty_like(x), dx)
        saved = (x, bias, residual, activation)
        forward = {"axis": axis, "residual": residual, "out": self.y}
        self.up.add("bias", fa.bias_act, x, bias, activation, **forward)
        backward = {"axis": axis, "out": (dx, dbias)}
        self.down.add("bias", fa.bias_act.backward, self.dy, *saved, **backward)


class Product(Layer):
    """W x of (features, batch)."""

    def __init__(self, x: Array, dx: Array, weight: Array, dweight: Array) -> None:
        super().__init__(buffer(len(weight), x.shape[1]))
        self.up.add("products", np.matmul, weight, x, out=self.y)
        self.down.add("products", np.matmul, self.dy, x.T, out=dweight)
        self.down.add("products", np.matmul, weight.T, self.dy, out=dx)


class LeNet(Network):
    """The network, its gradients, and all that a batch leaves on its way."""

    def __init__(self, weights: dict[str, Array], batch: int = BATCH) -> None:
        x, minus = buffer(SIDE, 1, SIDE, batch), buffer(DIGITS, batch)
        super().__init__(weights, x[:, 0].transpose(2, 0, 1), minus.T)

        y: Array = x  # the last layer's, and its gradient
        dy: Any = None  # the images need none
        layers: list[Layer] = []
        for n, activation in enumerate(("relu", "relu", "relu", "relu", "identity"), 1):
            w, dw = self.weights[f"w{n}"], self.gradients[f"w{n}"]
            b, db = self.weights[f"b{n}"], self.gradients[f"b{n}"]
            if n < len(CHANNELS):
                layers.append(Conv(y, dy, w, dw))
                layers.append(Pool(layers[-1].y, layers[-1].dy))
            else:
                layers.append(Product(y.reshape(-1, batch), dy.reshape(-1, batch), w, dw))
            residual = minus if n == 5 else None
            below, axis = layers[-1], 1 if n < len(CHANNELS) else 0
            layers.append(Bias(below.y, below.dy, activation, axis, b, db, residual))
            y, dy = layers[-1].y, layers[-1].dy
        self.r, down = y.T, Steps()
        for layer in layers:
            self.up += layer.up
        down.add("loss", fa.sum_squares.value_and_grad, y, out=(self.loss, dy))
        for layer in reversed(layers):
            down += layer.down
        self.all = self.up + down


def for_frameworks(weights: dict[str, Array]) -> list[Array]:
    """The same weights with the axes that frameworks know: (out, in, rows, columns)."""
    shaped = list(weights.values())
    for place, channels in ((0, CHANNELS[0]), (2, CHANNELS[1])):
        taps = shaped[place].reshape(-1, KERNEL, channels, KERNEL)
        shaped[place] = np.ascontiguousarray(taps.transpose(0, 2, 1, 3))
    return shaped


def with_fastact(weights: dict[str, Array], images: Array, labels: Labels) -> Peer:
    """The network above."""
    return fastact_peer(LeNet(weights, len(images)), images, labels, for_frameworks)


def with_torch(
    weights: dict[str, Array], images: Array, labels: Labels, dtype: str = "float32"
) -> Peer:
    """The same in torch; its images lie as it likes them, with the batch first."""
    from torch.nn.functional import conv2d, linear, max_pool2d, relu

    arrays = for_frameworks(weights)
    parameters, x, target = torch_tensors(arrays, images[:, None], labels, dtype)

    def residual() -> Any:
        w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = parameters
        y = max_pool2d(relu(conv2d(x, w1, b1)), 2)
        y = max_pool2d(relu(conv2d(y, w2, b2)), 2)
        # Rows before channels, as here: which weight meets which pixel.
        y = y.permute(0, 2, 1, 3).flatten(1)
        return linear(relu(linear(relu(linear(y, w3, b3)), w4, b4)), w5, b5) - target

    kinds = {"conv": "convolutions (oneDNN)", "mm": "products (MKL)", "pool": "pooling"}
    return torch_peer(residual, parameters, kinds)


def with_jax(weights: dict[str, Array], images: Array, labels: Labels) -> Peer:
    """The same in JAX."""
    import jax
    from jax import lax
    from jax.nn import relu

    def layer(x: Any, weight: Any, bias: Any) -> Any:
        y = relu(lax.conv(x, weight, (1, 1), "VALID") + bias[:, None, None])
        n, c, rows, columns = y.shape
        # Not reduce_window, whose gradient is slower on the CPU.
        return y.reshape(n, c, rows // 2, 2, columns // 2, 2).max(axis=(3, 5))

    def residual(parameters: Any, x: Any, target: Any) -> Any:
        w1, b1, w2, b2, w3, b3, w4, b4, w5, b5 = parameters
        y = layer(layer(x, w1, b1), w2, b2)
        y = y.transpose(0, 2, 1, 3).reshape(len(x), -1)
        return relu(relu(y @ w3.T + b3) @ w4.T + b4) @ w5.T + b5 - target

    target = jax.nn.one_hot(labels, DIGITS)
    return jax_peer(residual, for_frameworks(weights), images[:, None], target)


def bias_share(model: LeNet, rounds: int) -> bool:
    """Print what part of a gradient is whose; whether the biases take as little as they may."""
    model.gradient()
    profile = model.all.profile(rounds)
    print_shares(f"fastact's gradient of {model.batch} images", profile)
    share = profile["bias"] / sum(profile.values())
    passed = share < ALLOWED_BIAS_SHARE
    print(
        f"bias, relu and their gradients: {share:.1%} of it, less than {ALLOWED_BIAS_SHARE:.0%}"
        f" allowed: {'passed' if passed else 'FAILED'}"
    )
    return passed


def main() -> int:
    """Compare, time, train; the exit status says whether all is as it must be."""
    told = arguments("LeNet on handwritten digits with NumPy's matrix products and fastact.")
    digits, weights = load_digits(SIDE), initial()
    batch = (digits.train[:BATCH], digits.train_labels[:BATCH])
    makers = Makers(with_fastact, with_torch, with_jax)
    agrees = against_frameworks(makers, told.quick, TOLERANCE, weights, *batch)

    lean = True
    for size in (BATCH, LARGE_BATCH):
        model = LeNet(weights, size)
        model.load(digits.train[:size], digits.train_labels[:size])
        # What a quick run measures, perhaps beside other work, decides nothing.
        lean &= bias_share(model, QUICK_ROUNDS if told.quick else ROUNDS) or told.quick

    trainer = Trainer(LeNet(weights, TRAIN_BATCH), digits, RATE)
    train(trainer, EPOCHS, told.plot, "load_digits at 28 x 28, LeNet with fastact")
    return verdict(trainer, REQUIRED_ACCURACY, agrees and lean)


if __name__ == "__main__":
    sys.exit(main())
