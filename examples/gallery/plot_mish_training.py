"""
A network in NumPy, trained with Mish
=====================================

A scientific package that needs a small network does not have to ship a framework: NumPy computes
the matrix products, and what lies between them is one call forward and one backward.
"""

# %%
# The data are points of two spirals, and the class of each point.
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np

import fastact as fa

rng = np.random.default_rng(0)
angle = np.sqrt(rng.uniform(size=600)) * 3 * np.pi
side = rng.integers(0, 2, angle.size)
points = angle[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1) / 10
points = np.where(side[:, None] == 1, points, -points).astype(np.float32)
points += rng.normal(scale=0.02, size=points.shape).astype(np.float32)

# %%
# The network has two hidden layers. Everything between two matrix products is ``bias_act``, which
# adds the bias and applies the activation in one pass. ``backward`` takes what ``forward`` saves.
sizes = [2, 32, 32, 2]
weights = [
    rng.normal(scale=np.sqrt(2 / a), size=(a, b)).astype(np.float32) for a, b in pairwise(sizes)
]
biases = [np.zeros(b, np.float32) for b in sizes[1:]]


def forward(x):
    kept = []
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        y, saved = fa.bias_act.forward(x @ weight, bias, "mish")
        kept.append((x, saved))
        x = y
    return x @ weights[-1] + biases[-1], x, kept


def gradients(x, target):
    logits, last, kept = forward(x)
    loss, saved = fa.cross_entropy.forward(logits, target)
    d = fa.cross_entropy.backward(np.float32(1), *saved)
    found = [(last.T @ d, fa.bias_grad(d))]
    d = d @ weights[-1].T
    for i, (before, saved) in reversed(list(enumerate(kept))):
        d, dbias = fa.bias_act.backward(d, *saved, "mish")
        found.append((before.T @ d, dbias))
        d = d @ weights[i].T
    return float(loss), found[::-1]


# %%
# Train it by gradient descent with momentum.
momentum = [[np.zeros_like(w), np.zeros_like(b)] for w, b in zip(weights, biases, strict=True)]
losses = []
for _ in range(600):
    loss, found = gradients(points, side)
    losses.append(loss)
    for parameters, past, new in zip(
        zip(weights, biases, strict=True), momentum, found, strict=True
    ):
        for parameter, velocity, gradient in zip(parameters, past, new, strict=True):
            velocity *= 0.9
            velocity += gradient
            parameter -= 0.05 * velocity

# %%
# Plot the loss, and the probability that the network has learnt.
grid = np.stack(np.meshgrid(*[np.linspace(-1.1, 1.1, 200, dtype=np.float32)] * 2), -1)
probability = fa.softmax(forward(grid.reshape(-1, 2))[0])[:, 1].reshape(200, 200)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.semilogy(losses)
left.set(xlabel="step", ylabel="cross entropy", title="loss")
right.contourf(grid[..., 0], grid[..., 1], probability, 20, cmap="RdBu", alpha=0.7)
right.scatter(*points.T, c=side, cmap="RdBu", s=8, edgecolors="k", linewidths=0.2)
right.set(title="probability of a class", aspect="equal")
plt.show()
