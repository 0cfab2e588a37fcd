"""Recorded calls never answer for another one: what looks alike is told apart, or not recorded."""

import gc
import os
import sys
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from arrays import f32 as ones
from calls import OPS, uncached
from conftest import assert_same_bits
from devices import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views
from processes import output_of, run_program
from test_parameters import NUMBERS as OPTIONS

import fastact as fa
from fastact import _cpu
from fastact.measure.cases import sample

TIMES = 4  # until a call that could be recorded is


def f32(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


X, W, T = 1 + f32(2, 3), f32(3), torch.ones(2, 3)
KEPT = np.array(0.0)
READ_ONLY = ones(4, 8)
READ_ONLY.flags.writeable = False


def changed(array: Any, value: float) -> Any:
    """The one array again, with another value."""
    array[...] = value
    return array


def added(out_of: Callable[[Any], Any], *, like: Any = np) -> Any:
    """A bias added to a part of an array, into what `out_of` makes of the whole."""
    held = like.ones((9, 4), dtype=like.float32)
    return fa.bias_act(held[:8], like.ones(4, dtype=like.float32), out=out_of(held)), held


class Told:
    """What NumPy asks for its dtype, which may be another one in the next call."""

    dtype: Any = None

    def __init__(self, name: str) -> None:
        type(self).dtype = np.dtype(name)


class Asked(type):
    @property
    def dtype(cls) -> Any:
        return Told.dtype


class ToldByItsClass(metaclass=Asked):
    pass


def told(name: str, how: int) -> Any:
    return (Told(name), Told, ToldByItsClass)[how]


def beside(op: Any, told: Any, like: Any) -> Any:
    named = sample(op, X, X)
    named = {n: like(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    return op.bound("call", {**named, "dtype": told})()


def averaged(momentum: Any) -> Any:
    running = np.zeros(3)
    fa.batch_norm(f32(4, 3), running, None, training=True, momentum=momentum)
    return running


def moved_by_itself(momentum: float) -> Any:
    running = np.array([momentum])
    fa.batch_norm(f32(4, 1), running, np.ones(1), training=True, momentum=running)
    return running


def each(of: Callable[..., Any], *values: Any) -> list[Callable[[], Any]]:
    return [partial(of, value) for value in values]


_, SAVED = fa.layer_norm.forward(X)
#: Calls that are alike, in turn. Each gives what it gives, or refuses what it refuses, uncached.
ALIKE: dict[str, list[Callable[[], Any]]] = {
    "keywords and text": [
        lambda: fa.sum(X, axis=0), lambda: fa.sum(X, "axis", 0),
        lambda: fa.sum(X, 0, keepdims=True), lambda: fa.sum(X, 0, "keepdims", True),
        lambda: fa.bias_act(X, W, activation="relu"),
        lambda: fa.bias_act(X, W, "activation", "relu"),
        lambda: fa.bias_act(X, W, activation="identity", axis=-1),
        lambda: fa.bias_act(X, W, identity="activation", axis=-1),
        lambda: fa.bias_act(X, W, "\ud800"),
    ],
    "axes": each(lambda v: fa.sum(X, axis=v), 0, False, 1, True, 1.0, (1,), (True,), np.int8(1), 5),
    "switches": each(lambda v: fa.sum(X, keepdims=v), False, 0, True, 1),
    "zeros": [
        *each(lambda v: fa.bias_act(-X, W, "leaky_relu", negative_slope=v), 0.0, -0.0, 0, False),
        *each(lambda v: fa.sum.backward(v, (1,)), 0.0, -0.0),
        *each(lambda v: fa.leaky_relu(-X, v), 0.0, -0.0, 0, False),
        *each(lambda v: fa.leaky_relu.forward(-X, negative_slope=v), 0.0, -0.0),
        *each(lambda v: fa.leaky_relu.backward(X, -X, v), 0.0, -0.0),
        *each(lambda v: fa.elu(-X, v), 1, 1.0, 1 + 0j, np.complex128(1), "1", np.nan),
    ],
    "None": [
        lambda: fa.layer_norm(X, W, W), lambda: fa.layer_norm(X, W, None),
        lambda: fa.layer_norm(X, W), lambda: fa.layer_norm(X, None, W),
        lambda: fa.layer_norm(X, bias=W),
    ],
    "an array that changes": each(lambda v: fa.layer_norm(X, eps=changed(KEPT, v)), 1e-5, 10, 0.5),
    "what is told to be a dtype": [
        partial(lambda op, how, name, like: beside(op, told(name, how), like), *each_told)
        for like in (np.asarray, torch.from_numpy) for how in range(3)
        for op in OPS if "dtype" in op.entry_points["call"].defaults
        for each_told in ((op, how, "float32", like), (op, how, "float64", like))
    ],
    "in place and apart": [
        lambda: fa.bias_act(x := ones(4, 8), x[0], out=x * 0),
        lambda: fa.bias_act(x := ones(4, 8), x[0] * 1, out=x),
        lambda: fa.bias_act.forward(x := ones(4, 8), x[0] * 1, "mish", out=x * 0),
        lambda: fa.bias_act.forward(x := ones(4, 8), x[0] * 1, "mish", out=x),
        lambda: fa.bias_act(ones(4, 8), ones(8), out=ones(4, 8)),
        lambda: fa.bias_act(ones(4, 8), ones(8), out=READ_ONLY),
    ],
    "memory that is shared": [
        lambda: added(lambda held: 0 * held[:8]), lambda: added(lambda held: held[1:]),
        lambda: added(lambda held: 0 * held[:8], like=torch),
        lambda: added(lambda held: held[1:], like=torch),
        lambda: fa.sum(x := ones(9, 4), 0, out=x[0] * 0),
        lambda: fa.sum(x := ones(9, 4), 0, out=x[3]),
        lambda: fa.bias_act.backward(ones(8, 4), None, ones(4), out=(ones(8, 4), ones(4))),
        lambda: fa.bias_act.backward(ones(8, 4), None, ones(4), out=((x := ones(9, 4))[:8], x[2])),
    ],
    "kinds of arrays": [
        lambda: fa.sum(T), lambda: fa.sum(T.clone().requires_grad_()),
        lambda: fa.sum(ones(4, 8)), lambda: fa.sum(ones(4, 8).view(np.int32)),
        lambda: fa.sum(np.broadcast_to(np.float32(2), (4, 8))),
        lambda: fa.sum(np.ma.array(ones(4, 8))), lambda: fa.bias_act(X, W),
        lambda: fa.bias_act(np.ma.array(X), W),
    ],
    "orders of axes": [
        lambda: fa.bias_act(ones(4, 5), ones(5)),
        lambda: fa.bias_act(np.asfortranarray(ones(4, 5)), ones(5)),
        lambda: fa.mish(ones(4, 5)), lambda: fa.mish(np.asfortranarray(ones(4, 5))),
        lambda: fa.mean(ones(6, 4), 0, by=np.arange(6) % 3, groups=3),
        lambda: fa.softmax(torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)),
        lambda: fa.softmax(torch.ones(2, 3, 4, 5)),
    ],
    "one array in two places": [
        *each(lambda v: fa.leaky_relu(x := np.float64(-v), x), 0.5, 0.25, 0.5),
        *each(lambda v: fa.leaky_relu(x := np.array(-v), x), 0.5, 0.25, 2.0),
        *each(lambda v: fa.leaky_relu(x := torch.tensor(-v), x), 0.5, 0.25),
        *each(moved_by_itself, 0.5, 0.25, 0.125),
    ],
    "integers": [
        *(partial(op, (f32(3, 4) % 5).astype(kind)) for kind in (bool, np.int8, np.int64, "f4")
          for op in (fa.mish, fa.softmax, fa.logsumexp, fa.layer_norm, fa.sum)),
    ],
    "axes that are not there": [lambda: fa.sum(ones(3), 5), lambda: fa.sum(ones(3), 0)],
}  # fmt: skip
#: Numbers that an op takes, and numbers in the place of arrays.
NUMBERS: dict[str, Callable[[Any], Any]] = OPTIONS | {
    "layer_norm of torch": lambda v: fa.layer_norm(T, eps=v),
    "layer_norm.backward": lambda v: fa.layer_norm.backward(X, *SAVED, activation="elu", alpha=v),
    "batch_norm, momentum": averaged,
    "bias_act": lambda v: fa.bias_act(-X, W, "elu", alpha=v),
    "bias_act of torch": lambda v: fa.bias_act(-T, T[0], "elu", alpha=v),
    "sum.backward": lambda v: fa.sum.backward(v, (3,), out=ones(3)),
    "sum_squares.backward": lambda v: fa.sum_squares.backward(v, X),
    "mean_var.backward": lambda v: fa.mean_var.backward((None, v), X, axis=0),
    "lstm_gates.backward": lambda v: fa.lstm_gates.backward(
        ones(2, 3), v, ones(2, 12), X, None, ones(2, 12), ones(12), recompute=True
    ),
    "gru_blend": lambda v: fa.gru_blend(ones(2, 6), v, recurrent=ones(2, 6)),
}  # fmt: skip
KINDS = {"float": float, "float32": np.float32, "float64": np.float64, "0-d": np.array,
         "tensor": torch.tensor}  # fmt: skip


def seen(call: Callable[[], Any]) -> Any:
    """All that there is to see of what a call gives, or refuses."""

    def of(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return [of(part) for part in value]
        if isinstance(value, fa.Moments):
            return of((value.count, value.mean, value.m2))
        if isinstance(value, torch.Tensor):
            return value.requires_grad, value.stride(), of(value.detach().numpy())
        if isinstance(value, np.ndarray | np.generic):
            return type(value), value.dtype, value.shape, value.strides, value.tobytes()
        return type(value), value

    try:
        return of(call())
    except (TypeError, ValueError) as error:
        return type(error), str(error)


def assert_told_apart(calls: list[Callable[[], Any]]) -> None:
    for _ in range(TIMES):
        for k, call in enumerate(calls):
            assert seen(call) == uncached(partial(seen, call)), k
    for k, call in enumerate(calls):  # recorded one after the other, too
        for _ in range(TIMES):
            found = seen(call)
        assert found == uncached(partial(seen, call)), k


@pytest.mark.parametrize("calls", ALIKE.values(), ids=ALIKE)
def test_what_is_alike_is_told_apart(calls):
    assert_told_apart(calls)


@pytest.mark.parametrize("call", ALIKE["orders of axes"])
def test_results_are_recorded_whatever_the_order_of_their_axes(call, slow):
    for _ in range(TIMES):
        slow.clear()
        call()
    assert not slow


@pytest.mark.parametrize("call", NUMBERS.values(), ids=NUMBERS)
def test_numbers_are_told_apart(call, slow):
    """They are recorded by type and value; what is an array is read at each call."""
    assert_told_apart([
        partial(call, kind(value)) for kind in KINDS.values() for value in (0.5, 0.25, 3.0, 0.5)
    ])  # fmt: skip
    for _ in range(TIMES):
        slow.clear()
        call(0.5)
    assert not slow


def test_a_number_that_is_rounded_to_nothing_says_nothing():
    """In no call, whether it is replayed or not."""
    for _ in range(TIMES):
        with np.errstate(all="raise"):
            dx = fa.sum.backward(np.float64(1e-60), (3,), out=ones(3))
        assert not dx.any()


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_a_number_that_is_returned_twice_is_one_object(dtype):
    x = np.array(1.0, dtype)
    for _ in range(TIMES):
        y, saved = fa.softmax.forward(x, axis=())
        assert type(y) is x.dtype.type
        assert y == 1
        assert y is saved[0]


@st.composite
def kinds(draw):
    """A way in which two arrays of one shape lie, and what they become."""
    shape = tuple(draw(st.lists(st.integers(0, 5), min_size=1, max_size=3)))
    return shape, draw(views(shape)), draw(views(shape, writable=True))


@settings(max_examples=100, deadline=None)
@given(kinds(), st.sampled_from(sorted(DTYPES)), st.integers(-1, 0))
def test_plans_of_any_layout(kind, dtype_name, axis):
    shape, view, view_out = kind
    rng = np.random.default_rng(0)
    for _ in range(TIMES):
        x, dy, base = (rng.normal(size=shape).astype(DTYPES[dtype_name]) for _ in range(3))
        bias = rng.normal(size=shape[axis]).astype(x.dtype)
        for entry, arguments, options in (
            (fa.mish, (view(x),), {}),
            (fa.mish.backward, (dy, view(x)), {}),
            (fa.bias_act, (view(x), bias, "mish"), {"axis": axis}),
        ):
            outs = [view_out(base), view_out(base)]
            expected = uncached(partial(entry, *arguments, **options, out=outs[0]))
            assert entry(*arguments, **options, out=outs[1]) is outs[1]
            assert_same_bits(outs[1], expected)


def test_dtypes_that_do_not_change_have_a_key(slow):
    names = (np.float64, np.dtype("f8"), float, "float64", torch.float64)
    for dtype in names:
        for _ in range(TIMES):
            slow.clear()
            fa.sum(X, dtype=dtype)
        assert not slow


# --- plans as such --------------------------------------------------------------------------------


def test_threads_share_plans():
    b = np.random.default_rng(0).normal(size=32)

    def work(seed: int) -> bool:
        x = np.random.default_rng(seed).normal(size=(300, 32))
        y = np.empty_like(x)
        expected = fa.bias_act._serve("call", x, b, "mish")
        return all((fa.bias_act(x, b, "mish", out=y) == expected).all() for _ in range(200))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(16)))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_plans_hold_no_arrays(kind):
    held = []
    for _ in range(5):
        x, y = np.ones((5, 7)), np.zeros(7)
        if kind == "torch":
            x, y = torch.from_numpy(x), torch.from_numpy(y)
        before = sys.getrefcount(x), sys.getrefcount(y)
        fa.sum(x, 0, out=y)
        result = fa.bias_act(x, y)
        fa.sum_squares.value_and_grad(x)
        gc.collect()
        assert (sys.getrefcount(x), sys.getrefcount(y)) == before
        held.append(weakref.ref(result))
        del result
    gc.collect()
    assert all(ref() is None for ref in held)


def test_another_thread_count_is_another_plan():
    """Sizes that depend on the number of threads are this call's, not an earlier one's."""
    rng = np.random.default_rng(0)
    dh, gates, c = (rng.normal(size=(64, n)).astype(np.float32) for n in (512, 2048, 512))
    _, saved = fa.lstm_gates.forward(gates, c, bias=np.zeros(2048, np.float32))
    back = partial(fa.lstm_gates.backward, dh, None, *saved)
    expected = seen(back)
    for threads in (2, 2, 2, 2, 8, 8, 8, 1, 1, 1, 3, 2, 16, 64, 2):
        with fa.num_threads(threads):
            assert seen(back) == expected


def test_a_plan_has_the_workspace_of_its_threads(slow):
    """One thread needs none, and a plan of that would leave more threads nothing to divide."""
    x = np.ones(1 << 20, np.float32)
    views = map(_cpu.View.from_numpy, (x, x[:1].copy()))
    arguments = {
        **dict(zip(("x", "y"), views, strict=True)),
        **{"axes": (0,), "term": 0, "divisor": 1.0, "initial": -0.0, "accumulate": False},
    }
    native = _cpu.native_call("sum", arguments)
    sizes = []
    for threads, slow_calls in ((1, 2), (2, 4), (1, 4), (2, 4)):
        with fa.num_threads(threads):
            for _ in range(3):
                assert fa.sum(x) == x.size
            sizes.append(native.workspace_size())
            assert len(slow) == slow_calls
    assert sizes[0] == sizes[2] == 0 < sizes[1] == sizes[3]


def test_the_cache_is_bounded(slow):
    """The newest keys stay; one that is seen, written down and run is not lost in between."""
    x = np.ones(1000, np.float32)
    for n in (*range(1, 300), *range(1, 100)):
        fa.sum(x[:n])
        fa.sum(x[:n])
        if n > 64:
            assert fa.sum._cached_calls()[0] == 64  # MAX_PLANS of call_cache.pyx
        slow.clear()
        assert fa.sum(x[:n]) == n
        assert not slow


def test_off_by_the_environment():
    """Every call takes the slow path; what it gives has the same bits."""
    code = """
import hashlib, numpy as np, fastact as fa
from fastact import _cpu
from fastact.interop import call as _call
calls, begin = 0, _call.Call.__init__
def counted(self, *args, **kwargs):
    global calls
    calls += 1
    begin(self, *args, **kwargs)
_call.Call.__init__ = counted
x = np.linspace(-4, 4, 600, dtype=np.float32).reshape(20, 30)
digest = hashlib.sha256()
for _ in range(5):
    gradients = fa.bias_act.backward(x, x, x[0], None, "tanh")
    for part in (fa.mish(x), fa.sum(x, 0), fa.layer_norm(x), *gradients):
        digest.update(part.tobytes())
print(calls, digest.hexdigest())
"""
    environ = {k: v for k, v in os.environ.items() if k != "FASTACT_CALL_CACHE"}
    found = {}
    for setting in ({}, {"FASTACT_CALL_CACHE": "0"}):
        run = run_program(sys.executable, "-c", code, env=environ | setting)
        found[len(setting)] = output_of(run).split()
    assert int(found[0][0]) == 6  # three ops twice, and mish by the fast path
    assert int(found[1][0]) == 20
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_numbers_of_two_dtypes_with_the_same_bits(of):
    """A float32 and a float64, which is next to nothing."""
    x, one = of(f32(2, 3)), np.float32(1)
    least = np.array(one.view(np.uint32), np.uint64).view(np.float64)[()]
    for scale in (one, least, one):
        expected = fa.softmax(x, scale=float(scale))
        for _ in range(TIMES):
            assert (fa.softmax(x, scale=scale) == expected).all()


@pytest.mark.parametrize("of", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_outputs_that_come_to_overlap(of):
    """A call was recorded with an output of that kind apart: reversed ones begin at their end."""
    held, bias = f32(10, 4), of(f32(4))
    x, free = of(held[1:9]), np.zeros((8, 4), np.float32)
    for turn in (slice(None), slice(None, None, -1)):
        if of is not np.asarray and turn.step:
            continue  # torch has no negative strides
        for _ in range(TIMES):
            fa.bias_act(x, bias, out=of(free[turn]))
        for over in (held[2:], held[:8]):  # which begins behind x, and before it
            before = held.copy()
            with pytest.raises(ValueError, match="partial overlap"):
                fa.bias_act(x, bias, out=of(over[turn]))
            np.testing.assert_array_equal(held, before)
