"""Kernels on threads with small stacks, as musl gives them, or OMP_STACKSIZE does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fastact import _cpu

# The least that libgomp's threads are known to live with here: their stack holds the threads' own
# storage, of Python and of whatever is loaded, as well.
SMALL = "128K"

CODE = """
import numpy as np
import fastact as fa
from fastact import _cpu
import native

rng = np.random.default_rng(0)

def f32(*shape, dtype=np.float32):
    return rng.normal(size=shape).astype(dtype)

def run(dtype):
    n = 40_000
    for x in (f32(2 * n, dtype=dtype)[::2], f32(400, 200, dtype=dtype).T, f32(n, dtype=dtype)):
        for op in fa.ops.values():
            if op.family == "activations":
                op.backward(x, x[..., ::-1])
    rows, images = f32(400, 300, dtype=dtype), f32(8, 16, 30, 30, dtype=dtype)
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    for x in (rows, rows[:, ::2], np.asfortranarray(rows), f32(60_000, 3, dtype=dtype)):
        one = f32(x.shape[-1], dtype=dtype)
        for axis in (0, 1, None):
            fa.sum(x, axis), fa.sum_squares(x, axis), fa.moments(x, axis), fa.mean_var(x, axis)
        fa.sum_squares.value_and_grad(x)
        fa.bias_act.backward(x, x, one, x, "gelu")
        for op in (fa.layer_norm, fa.rms_norm):
            y, saved = op.forward(x, one, activation="mish")
            op.backward(y, *saved, activation="mish")
    for x in (images, last, images[..., ::-1], images[..., ::2]):
        one = f32(16, dtype=dtype)
        for axis in ((0, 2, 3), 1, (2, 3)):
            fa.sum(x, axis), fa.moments(x, axis)
        fa.bias_act.backward(x, x, one, x, "gelu", axis=1)
        for op, more in ((fa.group_norm, (4,)), (fa.instance_norm, ())):
            y, saved = op.forward(x, *more, one, one, activation="mish")
            op.backward(y, *saved, activation="mish")
        for training in (True, False):
            y, saved = fa.batch_norm.forward(x, one.copy(), one**2, one, one, training)
            fa.batch_norm.backward(y, *saved, training)
    for shape in ((64, 128), (3000, 16), (300, 20)):
        state, packed = f32(*shape, dtype=dtype), f32(shape[0], 4 * shape[1], dtype=dtype)
        bias = f32(4 * shape[1], dtype=dtype)
        (h, c), saved = fa.lstm_gates.forward(packed, state, bias=bias)
        fa.lstm_gates.backward(h, c, *saved)
        gates, bias = packed[:, : 3 * shape[1]], bias[: 3 * shape[1]]
        h, saved = fa.gru_gates.forward(gates, gates, state, bias=bias, recurrent_bias=bias)
        fa.gru_gates.backward(h, *saved)

fa.set_num_threads(4)
for isa in _cpu.supported_isas():
    _cpu.select_isa(isa)
    for dtype in (np.float32, np.float64, np.float16):
        run(dtype)
    for call in native.calls():
        call.bits(call.size())
print("done")
"""


def test_every_family_on_a_small_stack():
    if _cpu.build_info()["openmp"] == 0:
        pytest.skip("built without OpenMP: there are no threads whose stacks are small")
    here = str(Path(__file__).parents[1])
    path = os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "OMP_STACKSIZE": SMALL, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == "done"
