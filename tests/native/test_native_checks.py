"""Native functions called with what the Python layer would never give them: refused, not obeyed.

The calls are those that the ops make; one argument at a time is replaced. Whatever is written to
lies between guard bytes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from differences import Call
from native import ANY, Calls, Guarded, recording, told_to_norms

import fastact as fa
from fastact import _cpu
from fastact._cpu import View
from fastact.check import ulp
from fastact.measure import cases

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def f64(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def call_all(data: Callable[..., np.ndarray]) -> None:
    x, one, gates, before = data(6, 4), data(4), data(6, 16), data(6, 4)
    fa.mish.backward(x, x[:, ::-1])
    fa.softplus(x[:, ::-1], 2.0)
    fa.sum(x, 0)
    fa.sum_squares(x, 1)
    fa.sum_squares.value_and_grad(x)
    fa.sum.backward(one, (6, 4), axis=0)
    fa.sum_squares.backward(one, x, axis=0)
    fa.moments(x, 0)
    fa.mean_var.backward((one, one), x, axis=0)
    fa.nanmean(x, 0)
    fa.nanvar(x, 0)
    fa.nanvar.backward(one, x, axis=0)
    fa.nanvar(x, 0, weights=x**2, where=x > 0)
    _, saved = fa.average.forward(x, 0, weights=data(6) ** 2)
    fa.average.backward(one, *saved, axis=0)
    fa.bias_act(x, one, "mish", residual=x)
    fa.bias_act.backward(x, x, one, x, "mish")
    both = np.concatenate((one, one))
    fa.swiglu(x, x, bias=both)
    fa.swiglu.backward(x, x, x, both)
    _, saved = fa.add_layer_norm.forward(x, x, one, one)
    fa.add_layer_norm.backward(x, *saved, dtotal=x)
    _, saved = fa.group_norm.forward(x, 2, one, one)
    fa.group_norm.backward(x, *saved)
    _, saved = fa.rms_norm.forward(x, one)
    fa.rms_norm.backward(x, *saved)
    _, saved = fa.batch_norm.forward(x, one.copy(), one**2, one, one, training=True)
    fa.batch_norm.backward(x, *saved, training=True)
    sums = fa.batch_norm.backward_reduce(x, x, *saved[1:3])
    fa.batch_norm.backward_apply(x, x, *saved[1:3], None, *sums, 6)
    fa.norm_apply(x, one, one**2, axis=1)
    (h, c), saved = fa.lstm_gates.forward(gates, before, bias=data(16))
    fa.lstm_gates.backward(h, c, *saved)
    _, saved = fa.lstm_gates.forward(gates, before, recurrent=gates, bias=data(16), recompute=True)
    fa.lstm_gates.backward(h, c, *saved, recompute=True)
    _, saved = fa.gru_gates.forward(data(6, 12), data(6, 12), before, bias=data(12))
    fa.gru_gates.backward(x, *saved)
    fa.gru_reset(data(6, 4), before)
    fa.gru_blend(data(6, 8), before)
    fa.sum_squares.backward(data(4, 2), x, None, np.arange(6) % 2, axis=0, groups=2)
    fa.moments(x, 0, by=np.arange(6) % 2, groups=2)
    for op in fa.ops.values():
        if op.family == "activations":
            continue
        cases.example(op, x, x)()
        cases.backward_example(op, x, x)()
        if op.traits.second is not None:
            call = Call(op, cases.sample(op, x, x), RNG)
            call.ddx[1:] = [None] * (len(call.ddx) - 1)
            call.second(np.asarray)
    fa.mish.backward.backward(x, x, x)
    fa.silu.quantized(x, per="tensor")
    half = x.astype(np.float16)
    fa.add_rms_norm.quantized(half, half)


@pytest.fixture(scope="module")
def recorded() -> Calls:
    """Each native function with arguments that are right; its arrays are kept."""
    return record(f32)


def record(data: Callable[..., np.ndarray]) -> Calls:
    with recording() as (calls, _):
        call_all(data)
    return calls


def shorter(view: View) -> list[tuple[View, Guarded]]:
    """Arrays of their own memory, each short of something along an axis, or in its rank."""
    made = []
    shapes = [tuple(n - (i == axis) for i, n in enumerate(view.shape)) for axis in range(view.ndim)]
    shapes += [view.shape[1:], (*view.shape, 2), ()]
    for shape in shapes:
        if shape == view.shape or 0 in shape:
            continue
        guard = Guarded(int(np.prod(shape)) * view.itemsize)
        dtype = view.dtype_name if view.dtype >= 0 else "uint8"
        made.append((View.from_numpy(guard.array(shape, dtype)), guard))
    return made


REFUSED = (ValueError, TypeError, OverflowError)


def dtype_rule(function: Any, at: int) -> str | None:
    """What a table says of the dtype of an argument."""
    fields = list(_cpu.native_calls()[function.__name__].values())
    return fields[at]["dtype"] if at < len(fields) else None


pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of weights that are all 0, say


def is_refused(function: Any, arguments: tuple[Any, ...]) -> bool:
    try:
        function(*arguments)
    except REFUSED:
        return True
    return False


def test_every_function_is_there(recorded):
    of_devices = {"fill", "spread_backward"}
    assert {function.__name__ for function, _ in recorded} == {*_cpu.native_calls()} - of_devices


def replaced(arguments: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*arguments[:at], value, *arguments[at + 1 :])


def test_arrays_that_are_short(recorded):
    refused = passed = 0
    for function, arguments in recorded:
        for at, value in enumerate(arguments):
            if type(value) is not View:
                continue
            for view, guard in shorter(value):
                if view.ndim == 1 and value.ndim == 1 and value.dtype == -1:
                    continue  # a workspace: it may be longer
                if is_refused(function, replaced(arguments, at, view)):
                    refused += 1
                else:
                    passed += 1
                assert guard.is_whole(), (function, at, view.shape)
    # A parameter may repeat along an axis of length 1, and a sum over fewer rows is right as well.
    assert refused > 9 * passed


def test_arrays_of_other_kinds(recorded):
    """Another dtype, no memory, no array at all."""
    for function, arguments in recorded:
        for at, value in enumerate(arguments):
            if type(value) is not View or value.dtype < 0:
                continue
            nothing = value.shaped(value.shape)
            integers = View.from_numpy(np.zeros(value.shape, np.int32))
            wrongs = [nothing, View()]
            if dtype_rule(function, at) not in ("any", "index"):
                wrongs.append(integers)
            for wrong in wrongs:
                with pytest.raises(REFUSED, match=r"fastact\._cpu: \w"):
                    function(*replaced(arguments, at, wrong))
            for dtype in ("float16", "float64"):  # a parameter may be wider
                guard = Guarded(value.size * np.dtype(dtype).itemsize)
                other = View.from_numpy(guard.array(value.shape, dtype))
                is_refused(function, replaced(arguments, at, other))
                assert guard.is_whole(), (function, at, dtype)
            is_refused(function, replaced(arguments, at, None))


def test_arrays_beside_wider_ones():
    """A narrower parameter beside float64 would be read past its end."""
    converted = ("any", "computed", "wide_enough")  # to or from double
    for function, arguments in record(f64):
        for at, value in enumerate(arguments):
            if type(value) is not View or value.dtype_name != "float64":
                continue
            for dtype in ("float16", "float32"):
                guard = Guarded(value.size * np.dtype(dtype).itemsize)
                other = View.from_numpy(guard.array(value.shape, dtype))
                passes = not is_refused(function, replaced(arguments, at, other))
                assert guard.is_whole(), (function, at, dtype)
                assert not passes or dtype_rule(function, at) in converted, (function, at)


def test_a_weight_of_one_of_a_rows_axes():
    """It repeats along another axis of the row, whose spans have it one after the other."""
    x = f32(2, 3, 4, 64)
    weight = f32(1, 3, 1, 1)
    found, expected = np.zeros_like(x), np.zeros_like(x)
    for given, y in ((weight, found), (np.repeat(weight, 4, 2), expected)):
        views = [View.from_numpy(a) for a in (x, y, given)]
        arguments = {
            **dict(zip(("x", "y", "weight"), views, strict=True)),
            **told_to_norms(fa.layer_norm, reduced=(1, 2, 3), of_parameter=(1, 2)),
        }
        _cpu.native_call("norm_forward", arguments).run(None, 0)
    np.testing.assert_array_equal(found, expected)
    assert (found.std((2, 3)) > 0).all()


def test_classes_of_the_binding():
    """Made by hand, or used twice: an error."""
    view = View.from_numpy(np.ones(3))
    with pytest.raises(TypeError, match="incorrect type"):
        _cpu.Memory(None)
    memory = _cpu.Memory(view)
    memory.__dlpack__()
    with pytest.raises(BufferError, match="handed over already"):
        memory.view()
    draft = _cpu.PlanDraft()
    draft.operand(view, 1)
    for op in (_cpu.CachedOp(), _cpu.FastActivation("relu", 0, ())):
        op._watch_autocast()
        with pytest.raises(TypeError, match="an op that was not declared can't be called"):
            op(np.ones(3))
    undeclared = _cpu.FastActivation("relu", 0, ())
    for entry in (undeclared.forward, lambda x: _cpu.backward_of(undeclared)(x, x)):
        with pytest.raises(TypeError, match="an op that was not declared can't be called"):
            entry(np.ones(3))


def test_outputs_that_are_read_only(recorded):
    """An output that may not be written is refused, and is not written."""
    refused = 0
    for function, arguments in recorded:
        for at, value in enumerate(arguments):
            if type(value) is not View or value.dtype < 0 or 0 in value.strides:
                continue
            array = np.zeros(value.shape, value.dtype_name)
            array.flags.writeable = False
            try:
                function(*replaced(arguments, at, View.from_numpy(array)))
            except ValueError as error:
                refused += "must be writable" in str(error)
            assert not array.any()
    assert refused > 20  # of which each call has one at least


def test_numbers_out_of_range(recorded):
    for function, arguments in recorded:
        for at, (name, value) in enumerate(zip(function.fields, arguments, strict=True)):
            if type(value) is int and name not in {*ANY, "stream"}:
                for wrong in (-1, 1000, 2**31 - 1, -(2**31), 2**40):
                    with pytest.raises(REFUSED):
                        function(*replaced(arguments, at, wrong))


def test_tuples_out_of_range(recorded):
    for function, arguments in recorded:
        for at, value in enumerate(arguments):
            if type(value) is not tuple:
                continue
            for wrong in ((1000,), (-1,), (64,), (2**40,), tuple(range(100)), ("a",), (None,)):
                try:
                    function(*replaced(arguments, at, wrong))
                except REFUSED:
                    continue
                # parameters of an activation are numbers of any size
                assert wrong in ((1000,), (-1,), (64,), (2**40,)), (function, at, wrong)
            with pytest.raises(REFUSED):
                function(*replaced(arguments, at, tuple(range(5, 100))))


def test_thread_counts_that_are_none():
    for wrong in (0, -1, -(2**31)):
        with pytest.raises(ValueError, match="positive"):
            _cpu.set_process_threads(wrong)
    with pytest.raises(ValueError, match="negative"):
        _cpu.set_local_threads(-1)


def test_probes():
    x, y = np.zeros(1 << 20), np.zeros(1 << 19)
    with pytest.raises(ValueError, match="of one size"):
        _cpu.copy(x, y)
    with pytest.raises(ValueError, match="contiguous"):
        _cpu.copy(x, x[::-1])
    with pytest.raises(ValueError, match="float64"):
        _cpu.compare(x, x, 1.0, ulp.EDGES)
    half = View.from_numpy(np.zeros(4, np.float16))
    with pytest.raises(ValueError, match="float32 or float64"):
        _cpu.elementary("exp", half, half)


@pytest.mark.parametrize("count", [1, 3, 64, 300])
def test_copies_of_many_shares(count):
    """More shares than the array has cache lines to give."""
    before = fa.get_num_threads()
    x = RNG.integers(0, 255, 300 * 8192 + 5, np.uint8)
    y = np.zeros_like(x)
    fa.set_num_threads(count)
    try:
        _cpu.copy(y, x)
    finally:
        fa.set_num_threads(before)
    assert (x == y).all()
