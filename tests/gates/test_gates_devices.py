"""Recurrent gates on a device, with biases and many rows, and halves of a layer beside torch's."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.workloads.gates import GATES
from benchmarks.workloads.work import Work, torch_binder
from conftest import assert_all_same_bits, assert_same_bits, on_kernels
from devices import DTYPES, FRAMEWORKS, KERNELS, to_torch
from recurrent import Step, backward, each_op, forward, on, random_step

import fastact as fa


def everything(step: Step) -> tuple[Any, ...]:
    *results, saved = forward(step)
    return (*results, saved[0], *backward(step, saved))


@each_op
@on_kernels
def test_biases_of_a_wider_dtype_and_any_stride(op, device, dtype):
    wider = [d for d in DTYPES.values() if d.itemsize > dtype.itemsize] or [dtype]
    for shape in ((40, 16), (40, 9)):
        step = random_step(on(op, device), shape, dtype)
        expected = everything(step)
        for other in wider:
            step.bias = step.bias.astype(other)
            step.recurrent_bias = step.recurrent_bias.astype(other)
            made = everything(step)
            for a, b in zip(made, expected, strict=True):
                if a.ndim > 1:
                    assert_same_bits(a, b)
                else:
                    assert a.dtype == other
            if "torch" not in device.name:
                step.bias = np.ascontiguousarray(step.bias[::-1])[::-1]
            step.recurrent_bias = np.repeat(step.recurrent_bias, 3)[::3]
            assert_all_same_bits(everything(step), made)


@pytest.mark.parametrize("device", [FRAMEWORKS[0], *KERNELS], ids=lambda device: device.name)
def test_gradients_of_many_rows_are_nearer_than_those_of_a_chain(device):
    """In bfloat16, of float64's, dbias over 4096 rows too: torch's chain is what one compares with.

    A large step has 4096 rows; the columns are independent, and four are enough.
    """
    rng = np.random.default_rng(0)

    def random(shape: Any, dtype: str) -> Any:
        return device.of(rng.normal(size=shape).astype(DTYPES[dtype]))

    (case,) = GATES.on_gpu(fa.lstm_gates, "backward", "bfloat16", (8 * 64,))
    case = replace(case, shape=(4096, 4))
    step = Work(case, GATES, SimpleNamespace(random=random))
    chain = torch_binder(torch, case, GATES, compiles=False)
    given = [
        {n: to_torch(device.numpy(a).copy()) for n, a in arrays.items()} for arrays in step.given
    ]
    in_float64 = chain(*({n: a.double() for n, a in arrays.items()} for arrays in given))()
    of_shape = {tuple(a.shape): a.double().numpy() for a in chain(*given)()}
    exact = {tuple(a.shape): a.numpy() for a in in_float64}
    ours = [device.numpy(one) for one in step.fresh() if one is not None]
    assert {one.shape for one in ours} == {(4096, 16), (4096, 4), (16,)}
    for one in ours:
        off = np.abs(one.astype(float) - exact[one.shape]).mean()
        assert off <= np.abs(of_shape[one.shape] - exact[one.shape]).mean()


def test_halves_are_a_gru_with_its_reset_before_the_product():
    """gru_reset and gru_blend on slices of packed arrays, against torch's operations."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape)  # noqa: E731
    h, gates, u, bias, dy = normal(4, 8), normal(4, 24), normal(24, 8), normal(24), normal(4, 8)
    projected, dgates = np.empty((4, 24)), np.empty((4, 24))
    projected[:, :16] = h @ u[:16].T
    r = slice(None, 8)
    reset, saved = fa.gru_reset.forward(gates[:, r], h, recurrent=projected[:, r], bias=bias[r])
    projected[:, 16:] = reset @ u[16:].T
    y, blended = fa.gru_blend.forward(gates[:, 8:], h, recurrent=projected[:, 8:], bias=bias[8:])
    _, dh, dbias = fa.gru_blend.backward(
        dy, *blended, out=(dgates[:, 8:], np.empty_like(h), np.empty(16))
    )
    fa.gru_reset.backward(
        dgates[:, 16:] @ u[16:], *saved, out=(dgates[:, r], dh, None), accumulate=False
    )
    leaves = [torch.from_numpy(a).requires_grad_() for a in (gates, h)]
    x, before = leaves
    matrix, b = torch.from_numpy(u), torch.from_numpy(bias)
    rt = torch.sigmoid(x[:, :8] + before @ matrix[:8].T + b[:8])
    zt = torch.sigmoid(x[:, 8:16] + before @ matrix[8:16].T + b[8:16])
    nt = torch.tanh(x[:, 16:] + (rt * before) @ matrix[16:].T + b[16:])
    expected = (1 - zt) * nt + zt * before
    expected.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(y, expected.detach().numpy(), 1e-13, 1e-13)
    np.testing.assert_allclose(dgates, x.grad.numpy(), 1e-12, 1e-13)
    np.testing.assert_allclose(dbias, x.grad.numpy()[:, 8:].sum(0), 1e-12, 1e-13)
