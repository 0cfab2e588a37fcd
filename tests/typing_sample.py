"""What a user writes, for mypy --strict alone: the types of the calls fit the annotations.

Not a test of pytest; `.ci/run` checks it with the sources and against the installed package.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import fastact as fa

x: NDArray[np.float32] = np.linspace(-3, 3, 7, dtype=np.float32)
out: NDArray[np.float32] = np.empty_like(x)

y: NDArray[np.float32] = fa.mish(x)
y = fa.mish(x, out=out)
y = fa.relu6(x)  # by the star of __init__.py
y, saved = fa.mish.forward(x)
y, saved = fa.mish.forward(x, out=out)
dx: NDArray[np.float32] = fa.mish.backward(y, *saved)
dx = fa.mish.backward(y, x, out=dx, accumulate=True)

y, saved = fa.layer_norm.forward(x, activation="celu", alpha=2.0)
y, saved = fa.layer_norm.forward(x, out=(y, None, None))
gradients: tuple[NDArray[np.float32] | None, ...] = fa.layer_norm.backward(y, *saved)
y, total = fa.add_rms_norm(x, x, out=(None, out), eps=1e-5)
y = fa.batch_norm(x, None, None, training=True, activation=fa.mish)
sums = fa.batch_norm.backward_reduce(y, x, x, x)
dx = fa.batch_norm.backward_apply(y, x, x, x, None, *sums, 7)
mean, var = fa.mean_var(x)
merged: fa.Moments = fa.Moments.merge_many([fa.moments(x), fa.moments(x)])
count: int = merged.merge(merged).count
value, gradient = fa.sum_squares.value_and_grad(x)

from_a_list: NDArray[np.float64] = fa.mish([-1.0, 0.0, 1.0])

t: torch.Tensor = fa.mish(torch.zeros(3))
t = fa.mish(t, out=t)
dt: torch.Tensor = fa.mish.backward(t, t, out=t)

threads: int = fa.get_num_threads()
fa.set_num_threads(threads)
with fa.num_threads(1):
    fa.mish(x, out=x)

ops: Mapping[str, Any] = fa.ops
version: str = fa.__version__
fa.show_config()

try:
    fa.mish(x)
except fa.CudaUnavailableError as error:
    reason: RuntimeError = error
