"""What only a device could get wrong of the recurrent gates: biases, and sums of many rows."""

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
