"""What a user writes, for mypy --strict and pyright: the types of the calls fit the annotations.

Not a test of pytest; `.ci/run` checks it with the sources and against the installed package. Lines
that end in `ignore` must be errors: an ignore that nothing needs is one, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray

import fastact as fa

x: NDArray[np.float32] = np.linspace(-3, 3, 7, dtype=np.float32)
weight: NDArray[np.float64] = np.ones(7)
out: NDArray[np.float32] = np.empty_like(x)
t: torch.Tensor = torch.zeros(3)
rows: np.ndarray[tuple[int, int], np.dtype[np.float32]] = np.ones((2, 3), np.float32)

# A result is of the type of what came in, whatever dtype parameters have.
assert_type(fa.mish(x), NDArray[np.float32])
assert_type(fa.mish(x, out=out), NDArray[np.float32])
assert_type(fa.celu(x, 0.5), NDArray[np.float32])
assert_type(fa.gelu(x, approximate="tanh"), NDArray[np.float32])
assert_type(fa.layer_norm(x, weight, eps=1e-6), NDArray[np.float32])
assert_type(fa.layer_norm(t, activation=fa.celu, alpha=0.5), torch.Tensor)
assert_type(fa.mish(t, out=t), torch.Tensor)
assert_type(fa.mean_var(t), tuple[torch.Tensor, torch.Tensor])
assert_type(fa.lstm_gates(t, t, bias=t), tuple[torch.Tensor, torch.Tensor])
assert_type(fa.moments(x), fa.Moments)
# A shape that a type tells is that of element-wise results alone.
assert_type(fa.mish(rows), np.ndarray[tuple[int, int], np.dtype[np.float32]])
assert_type(fa.mean(rows, axis=0), NDArray[np.float32])
assert_type(fa.logsumexp(rows), NDArray[np.float32])

y, saved = fa.mish.forward(x)
assert_type(y, NDArray[np.float32])
assert_type(fa.mish.backward(y, *saved), Any)
assert_type(fa.mish.backward(1.0, x, out=out, accumulate=True), NDArray[np.float32])

y, saved = fa.layer_norm.forward(x, activation="mish")
assert_type(y, NDArray[np.float32])
dx, dweight, dbias = fa.layer_norm.backward(y, x, *saved[1:], activation="mish")
assert_type(dx, NDArray[np.float32] | None)
y, saved = fa.layer_norm.forward(x, out=(y, None, None))
y, total = fa.add_rms_norm(x, x, out=(None, out), eps=1e-5)
sums = fa.batch_norm.backward_reduce(y, x, x, x)
assert_type(fa.batch_norm.backward_apply(y, x, x, x, None, *sums, 7), NDArray[np.float32])
assert_type(fa.sum_squares.value_and_grad(x)[1], NDArray[np.float32])

# Calls that do not fit are errors before they run.
fa.layer_norm(x, epsilon=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.mish(x, alpha=1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.celu(x, alpha="none")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
fa.norm_apply(x, x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.kl_div.backward(1.0, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.logsumexp.backward(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.cross_entropy.backward(1.0, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.bias_act.backward(x, x)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.softmax.backward(x, x, eps=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
fa.mish("x")  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]

merged: fa.Moments = fa.Moments.merge_many([fa.moments(x), fa.moments(x)])
count: int = merged.merge(merged).count

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
