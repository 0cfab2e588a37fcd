"""Native functions called with short arrays and narrow ones: refused, or not written past.

The calls are those that the ops make; one argument at a time is replaced. Whatever is written to
lies between guard bytes. Other wrong arguments: test_native_tables.py.
"""

from typing import Any

import numpy as np
import pytest
from calls import uncached
from differences import Call as Derivatives
from every import PAIRS, SHAPES, Call, fits
from judged import refused
from native import Calls, Guarded, recording, told_to_norms

import fastact as fa
from fastact import _cpu
from fastact._cpu import View
from fastact.measure import cases

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def call_all(dtype: Any) -> None:
    """Every op in every way to call it, and what no op but one has."""
    for op, way in PAIRS:
        if op.family != "activations":
            call = Call(op, way, next(s for s in SHAPES if fits(op, repr(way), s)), dtype)
            for run in call.both:
                run()
        if op.traits.second is not None and not way:
            x = RNG.normal(size=(6, 4)).astype(dtype)
            second = Derivatives(op, cases.sample(op, x, x), RNG)
            second.ddx[1:] = [None] * (len(second.ddx) - 1)
            second.second(np.asarray)
    x, one = (RNG.normal(size=shape).astype(dtype) for shape in ((6, 4), 4))
    fa.softplus(x[:, ::-1], 2.0)
    fa.mish.backward(x, x[:, ::-1])
    fa.mish.backward.backward(x, x, x)
    fa.sum_squares.value_and_grad(x)
    fa.batch_norm(x, one, one**2, one, one)
    sums = fa.batch_norm.backward_reduce(x, x, one, one)
    fa.batch_norm.backward_apply(x, x, one, one, None, *sums, 6)
    fa.dequantize(*fa.silu.quantized(x, per="tensor"))
    half = x.astype(np.float16)
    fa.add_rms_norm.quantized(half, half)


@pytest.fixture(scope="module")
def recorded() -> Calls:
    """Each native function with arguments that are right; its arrays are kept."""
    return record(np.float32)


def record(dtype: Any) -> Calls:
    with recording() as (calls, _):
        uncached(lambda: call_all(dtype))
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


def test_arrays_beside_wider_ones():
    """A narrower parameter beside float64 would be read past its end."""
    converted = ("any", "computed", "wide_enough")  # to or from double
    for function, arguments in record(np.float64):
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
    refused("incorrect type", _cpu.Memory, None)
    memory = _cpu.Memory(view)
    memory.__dlpack__()
    refused("handed over already", memory.view, error=BufferError)
    draft = _cpu.PlanDraft()
    draft.operand(view, 1)
    undeclared = _cpu.CachedCall.__new__(_cpu.CachedCall)
    undeclared._watch_autocast()
    refused("an op that was not declared can't be called", undeclared, np.ones(3))
    with pytest.raises(AttributeError):
        undeclared._take_fast_path(0, 0, ())
    with pytest.raises(OverflowError):
        fa.relu._take_fast_path(0, 5, (1.0,) * 5)
    which = len(_cpu.ACTIVATIONS)
    refused("from 0 to", fa.relu._take_fast_path, which, 0, (), error=ValueError)


def test_thread_counts_that_are_none():
    for wrong in (0, -1, -(2**31)):
        refused("positive", _cpu.set_process_threads, wrong, error=ValueError)
    refused("negative", _cpu.set_local_threads, -1, error=ValueError)


def test_copies():
    x, y = RNG.normal(size=1 << 20), np.zeros(1 << 19)
    refused("of one size", _cpu.copy, x, y, error=ValueError)
    refused("contiguous", _cpu.copy, x, x[::-1], error=ValueError)
    with fa.num_threads(3):
        _cpu.copy(y, x[: y.size])
    np.testing.assert_array_equal(y, x[: y.size])
