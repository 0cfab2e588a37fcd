"""What only a device could get wrong of the recurrent gates: packs, tiles, chunks, its writes."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from benchmarks.workloads.gates import GATES
from benchmarks.workloads.work import Work, by_torch
from conftest import assert_same_bits
from devices import DTYPES, EMULATED, FRAMEWORKS, KERNELS, to_torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import is_aligned
from layouts import views as any_view
from recurrent import Step, assert_all_same, backward, each_op, forward, on, random_step
from sums import assert_sums

import fastact as fa
from fastact import _cpu
from fastact.interop import devices

on_devices = pytest.mark.parametrize("device", KERNELS, ids=lambda device: device.name)

# Rows of one thread and of a wide tile; several tiles, the last one narrower; rows that are no
# whole number of packs; one chunk of rows, as many as fill a device, and several rows a thread.
SHAPES = [(1, 4), (3, 64), (40, 300), (5, 1100), (70, 33), (1500, 8), (600, 5), (300, 136)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def everything(step: Step) -> tuple[Any, ...]:
    *results, saved = forward(step)
    return (*results, saved[0], *backward(step, saved))


def moved(step: Step, places: tuple[int, ...]) -> Step:
    """The same values, each array so many elements past a multiple of 16 bytes; those given."""
    named = ("gates", "state", "dh", "recurrent", "bias", "recurrent_bias", "dc")
    arrays = {}
    for i, name in enumerate(named):
        array = getattr(step, name)
        if array is not None and i in places:
            memory = np.zeros(array.size + 1 + i % 3, array.dtype)
            view = memory[1 + i % 3 :].reshape(array.shape)
            view[...] = array
            array = view
        arrays[name] = array
    return Step(step.op, **arrays, order=step.order, recompute=step.recompute)


def fused_isa() -> str | None:
    """An instruction set with the fused multiply-add that every device has."""
    return next((isa for isa in _cpu.supported_isas() if isa not in ("v2", "baseline")), None)


@each_op
@on_devices
@each_shape
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bits_of_the_cpu(op, device, shape, dtype):
    """float32 and float64: the same formulas, the same bits. Sums differ by their order."""
    isa, before = fused_isa(), _cpu.isa()
    if isa is None:
        pytest.skip("this CPU has no fused multiply-add")
    _cpu.select_isa(isa)
    try:
        expected = everything(random_step(op, shape, dtype, 3.0))
    finally:
        _cpu.select_isa(before)
    actual = everything(random_step(on(op, device), shape, dtype, 3.0))
    for a, b in zip(actual, expected, strict=True):
        if a.ndim > 1:
            assert_same_bits(a, b)
        else:
            np.testing.assert_allclose(a, b, 4 * np.finfo(dtype).eps, 1e-12)


@each_op
@on_devices
@each_shape
def test_sums_of_rows(op, device, dtype, shape):
    """dbias is the sum of what was stored; of 16-bit gradients before they were rounded."""
    step = random_step(on(op, device), shape, dtype)
    made = backward(step, forward(step)[-1])
    named = dict(zip(op.gradients, made, strict=True))
    pairs = [(named["dbias"], named["dgates"])]
    if op.takes_recurrent:
        pairs.append((named["drecurrent_bias"], named["drecurrent"]))
    for dbias, dgates in pairs:
        rounding: Any = 0.0
        if dtype.itemsize == 2:
            info = ml_dtypes.finfo(dtype)
            least = float(info.smallest_subnormal) / 2
            rounding = float(info.eps) * np.abs(dgates.astype(float)).sum(0) + least * shape[0]
        assert_sums(fa.bias_grad.bounds, dbias, dgates.astype(float).T, rounding)


@each_op
@on_devices
@each_shape
@pytest.mark.parametrize("name", ["bfloat16", "float32", "float64"])
@pytest.mark.parametrize("recompute", [False, True])
def test_bits_are_those_of_any_alignment(op, device, name, shape, recompute):
    """By packs or by single columns, and whichever array it is that does not fit: dbias as well.

    There is a type for packs of 8, of 4 and of 2. Where rows are cut into chunks, too, all or none
    fits.
    """
    step = random_step(on(op, device), shape, DTYPES[name], recompute=recompute)
    expected = everything(step)
    each = ((0,), (1,), (2, 6), (3,), (4, 5)) if math.prod(shape) < 20_000 else ()
    for places in (*each, tuple(range(7))):
        assert_all_same(everything(moved(step, places)), expected)


@each_op
@on_devices
def test_bits_do_not_depend_on_the_other_rows(op, device, dtype):
    whole = random_step(on(op, device), (600, 24), dtype)
    part = Step(
        whole.op, whole.gates[37:90], whole.state[37:90], whole.dh[37:90], whole.recurrent[37:90],
        whole.bias, whole.recurrent_bias, None if whole.dc is None else whole.dc[37:90],
    )  # fmt: skip
    for a, b in zip(everything(part), everything(whole), strict=True):
        if a.ndim > 1:
            assert_same_bits(a, b[37:90])


@each_op
@pytest.mark.skipif(not EMULATED, reason="built without FASTACT_CUDA_EMULATION=ON")
@pytest.mark.parametrize("order", ["forward", "backward", "shuffle"])
@pytest.mark.parametrize("shape", [(300, 40), (90, 7)], ids=str)
def test_the_order_of_threads_does_not_show(op, order, shape):
    emulated: Any = devices.emulate()
    step = random_step(on(op, KERNELS[0]), shape, np.float32)
    expected = everything(step)
    emulated.set_thread_order(order, 7)
    try:
        assert_all_same(everything(step), expected)
    finally:
        emulated.set_thread_order("alternate", 0)


@each_op
@on_devices
def test_accumulating_keeps_the_bits(op, device, dtype):
    """Into -0: what is added to it stays as it is, whichever way the columns are taken."""
    for shape in ((70, 40), (33, 9)):
        step = random_step(on(op, device), shape, dtype)
        saved = forward(step)[-1]
        made = backward(step, saved)
        out = tuple(np.full_like(d, -0.0) for d in made)
        for a, b in zip(backward(step, saved, out=out, accumulate=True), made, strict=True):
            if a.ndim > 1:
                assert_same_bits(a, b)
            else:
                np.testing.assert_array_equal(a, b)
        twice = backward(step, saved, out=tuple(d.copy() for d in made), accumulate=True)
        for a, b in zip(twice, made, strict=True):
            np.testing.assert_array_equal(a.astype(float), 2 * b.astype(float))


@each_op
@on_devices
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
            assert_all_same(everything(step), made)


# 3 s an op where the device is emulated; a plain run has the layouts of test_devices_compare.py.
@pytest.mark.thorough
@each_op
@on_devices
@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(DTYPES)), st.booleans())
def test_any_layout(op, device, data, name, recompute):
    """Every array in a layout of its own, its axes in any order, repeated, and run backwards."""
    batch = tuple(data.draw(st.lists(st.integers(1, 5), max_size=4)))
    shape = (*batch, data.draw(st.integers(1, 17)))

    def laid_out(array: np.ndarray, writable: bool = False) -> np.ndarray:
        view = data.draw(any_view(array.shape, writable=writable))(array)
        return view if is_aligned(view) else array  # a device refuses the others

    plain = random_step(on(op, device), shape, DTYPES[name], recompute=recompute)
    step = random_step(on(op, device), shape, DTYPES[name], recompute=recompute)
    for one in ("gates", "recurrent", "state", "dh", "dc"):
        array = getattr(step, one)
        if array is not None:
            setattr(step, one, laid_out(array))
            setattr(plain, one, getattr(step, one).copy())  # with what a broadcast view repeats
    expected = everything(plain)
    assert_all_same(everything(step), expected)
    *results, saved = forward(step)
    made = backward(step, saved)
    outs = [laid_out(np.zeros_like(d), writable=True) for d in (*results, *made)]
    count = len(results)
    kept = None if recompute else np.zeros_like(saved[0])
    forward(step, out=(*outs[:count], kept))
    assert_all_same(outs[:count], results)
    backward(step, saved, out=tuple(outs[count:]))
    assert_all_same(outs[count:], made)


def inside(array: Any, rows: int, width: int, front: int, item: int) -> Any:
    """Columns from `front` on of a device's array of `rows` rows."""
    if hasattr(array, "__getitem__"):
        return array[:, front : front + width]
    step = (array.shape[1] if hasattr(array, "shape") else width) * item
    return array.view((rows, width), (step, item), front * item)


@each_op
@on_devices
@pytest.mark.parametrize("columns", [16, 9])
def test_nothing_else_is_written(op, device, dtype, columns):
    """Outputs that are columns of wider arrays, whose other columns stay."""
    rows, front = 37, 16
    step = random_step(on(op, device), (rows, columns), dtype)
    *results, saved = forward(step)
    made = backward(step, saved)
    wanted = [d for d in (*results, saved[0], *made) if d.ndim > 1]
    held = [device.of(np.full((rows, 2 * d.shape[1] + 2 * front), 7, dtype)) for d in wanted]
    outs = [
        inside(h, rows, d.shape[1], front, dtype.itemsize)
        for h, d in zip(held, wanted, strict=True)
    ]
    of = lambda a: device.of(a) if isinstance(a, np.ndarray) else a  # noqa: E731
    options = {name: of(array) for name, array in step.options.items()}
    count = len(results) + 1
    op.forward(*map(of, step.arrays), **options, out=tuple(outs[:count]))
    gradients = iter(outs[count:])
    into = tuple(next(gradients) if d.ndim > 1 else of(d.copy()) for d in made)
    op.backward(*map(of, step.gradients), *map(of, saved), out=into)
    for h, d in zip(held, wanted, strict=True):
        whole = device.numpy(h)
        columns_of = np.s_[front : front + d.shape[1]]
        assert_same_bits(whole[:, columns_of].copy(), d)
        assert (np.delete(whole.astype(float), columns_of, 1) == 7).all()


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
    chain = by_torch(torch, case, GATES, compiles=False)
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
