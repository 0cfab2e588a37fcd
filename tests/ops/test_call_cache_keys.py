"""Call plans: which calls have another key, what is refused, what no plan may hold or forget."""

import doctest
import gc
import inspect
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from calls import OPS
from conftest import assert_same_bits
from devices import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import views
from processes import TIMEOUT

import fastact as fa
from fastact import _cpu
from fastact.interop import call as _call
from fastact.measure.cases import backward_example, example, sample
from fastact.ops.engine.entry import Entry
from fastact.ops.engine.execute import execute
from fastact.ops.engine.op import arrays_of
from fastact.ops.engine.served import CachedOp


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
    for _ in range(4):
        x, dy, base = (rng.normal(size=shape).astype(DTYPES[dtype_name]) for _ in range(3))
        bias = rng.normal(size=shape[axis]).astype(x.dtype)
        for entry, arguments, options in (
            (fa.mish, (view(x),), {}),
            (fa.mish.backward, (dy, view(x)), {}),
            (fa.bias_act, (view(x), bias, "mish"), {"axis": axis}),
        ):
            outs = [view_out(base), view_out(base)]
            if entry is fa.mish:
                expected = execute(fa.mish.entry_points["call"], *arguments, out=outs[0])
            elif entry is fa.bias_act:
                expected = entry._call(*arguments, **options, out=outs[0])
            else:
                expected = execute(fa.mish.entry_points["backward"], *arguments, out=outs[0])
            assert entry(*arguments, **options, out=outs[1]) is outs[1]
            assert_same_bits(outs[1], expected)


def test_in_place_and_apart_are_two_kinds():
    x, b = np.ones((4, 8), np.float32), np.ones(8, np.float32)
    for _ in range(4):
        y = np.zeros_like(x)
        assert fa.bias_act(x, b, out=y)[0, 0] == 2
        z = x.copy()
        assert fa.bias_act(z, b, out=z)[0, 0] == 2
        with pytest.raises(ValueError, match="not share memory with x"):
            fa.bias_act.forward(z, b, "mish", out=z)
        fa.bias_act.forward(x, b, "mish", out=y)


def test_memory_that_is_shared_is_still_refused():
    held, b = np.ones((9, 4), np.float32), np.ones(4, np.float32)
    sums, tensor = np.zeros(4, np.float32), torch.ones(9, 4)
    for _ in range(4):
        fa.bias_act(held[:8], b, out=np.zeros((8, 4), np.float32))
        fa.sum(held[:8], 0, out=sums)
        fa.bias_act(tensor[:8], torch.ones(4), out=torch.zeros(8, 4))
        fa.bias_act.backward(held[:8], None, b, out=(np.zeros((8, 4), np.float32), sums))
    with pytest.raises(ValueError, match="partial overlap"):
        fa.bias_act(held[:8], b, out=held[1:])
    with pytest.raises(ValueError, match="not share memory"):
        fa.sum(held[:8], 0, out=held[3])
    with pytest.raises(ValueError, match="partial overlap"):
        fa.bias_act(tensor[:8], torch.ones(4), out=tensor[1:])
    with pytest.raises(ValueError, match=r"out\[1\] must not share memory with out\[0\]"):
        fa.bias_act.backward(np.ones((8, 4), np.float32), None, b, out=(held[:8], held[2]))
    assert (held == 1).all()


def test_what_looks_alike_and_is_not_is_still_refused():
    x, y, b = (np.ones(shape, np.float32) for shape in ((4, 8), (4, 8), (8,)))
    t = torch.ones(4, 8)
    for _ in range(4):
        fa.bias_act(x, b, out=y)
        fa.sum(t)
        fa.sum(x, keepdims=True)
    y.flags.writeable = False
    with pytest.raises(ValueError, match="out must be writable"):
        fa.bias_act(x, b, out=y)
    assert fa.sum(t.requires_grad_()).requires_grad
    with pytest.raises(TypeError, match="keepdims must be True or False, got 1"):
        fa.sum(x, keepdims=1)
    with pytest.raises(TypeError, match="got a masked one"):
        fa.bias_act(np.ma.array(x), b)
    assert fa.sum(x.view(np.int32)).dtype == np.float64
    assert fa.sum(np.broadcast_to(np.float32(2), (4, 8))) == 64


def test_numbers_are_told_apart():
    """By type as well, and minus zero from zero."""
    x = np.array([-1.0, 1.0])
    for _ in range(4):
        assert fa.sum_squares.backward(1.0, x).tolist() == [-2, 2]
        assert fa.sum_squares.backward(2.0, x).tolist() == [-4, 4]
        assert not np.signbit(fa.sum.backward(0.0, (1,)))
        assert np.signbit(fa.sum.backward(-0.0, (1,)))
        assert (
            fa.bias_act(x, np.zeros(2), "elu", alpha=2.0)[0] < fa.bias_act(x, np.zeros(2), "elu")[0]
        )


def test_more_kinds_than_are_kept():
    for n in (*range(1, 200), *range(1, 200)):
        assert fa.sum(np.ones(n)) == n


def test_threads_share_plans():
    rng = np.random.default_rng(0)
    b = rng.normal(size=32)

    def work(seed: int) -> bool:
        x = np.random.default_rng(seed).normal(size=(300, 32))
        y = np.empty_like(x)
        expected = fa.bias_act._call(x, b, "mish")
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


def test_layouts_that_plans_do_not_make():
    """A new output takes its input's layout: not in C order, the slow path makes it."""
    x = np.asfortranarray(np.ones((4, 5)))
    for _ in range(4):
        assert fa.bias_act(x, np.ones(5)).flags.f_contiguous
        assert fa.mish(x).flags.f_contiguous


def test_words_that_are_no_text():
    for _ in range(3):
        with pytest.raises(ValueError, match="activation must be"):
            fa.bias_act(np.ones((2, 3)), np.ones(3), "\ud800")


def test_a_failure_leaves_no_plan():
    for _ in range(4):
        with pytest.raises(ValueError, match="axis must be"):
            fa.sum(np.ones(3), 5)
        assert fa.sum(np.ones(3), 0) == 3


def repeated(entry, *variants):
    """The results of calls with each set of arguments in turn, often enough to be recorded."""
    return [[entry(*args, **kwargs) for args, kwargs in variants] for _ in range(5)]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_in_the_place_of_numbers_are_read_at_every_call(kind):
    """A 0-d array is a number to the op, whose value no key holds."""
    of = np.array if kind == "numpy" else torch.tensor
    x = np.linspace(-2, 3, 48, dtype=np.float32).reshape(2, 3, 8)
    w, m = np.ones(3, np.float32), np.zeros(3, np.float32)
    if kind == "torch":
        x, w, m = map(torch.from_numpy, (x, w, m))
    saved = fa.layer_norm.forward(x)[1]
    calls = [
        (fa.layer_norm, lambda v: ((x,), {"eps": v}), 1e-5, 10.0),
        (fa.layer_norm.forward, lambda v: ((x,), {"eps": v}), 1e-5, 10.0),
        (fa.group_norm, lambda v: ((x, 1, w), {"eps": v}), 1e-5, 10.0),
        (fa.batch_norm, lambda v: ((x, m, w), {"eps": v}), 1e-5, 10.0),
        (fa.leaky_relu, lambda v: ((x, v), {}), 0.01, 0.5),
        (fa.leaky_relu, lambda v: ((x,), {"negative_slope": v}), 0.01, 0.5),
        (fa.elu.backward, lambda v: ((x, x, v), {}), 1.0, 0.5),
        (fa.bias_act, lambda v: ((x, w, "elu"), {"axis": 1, "alpha": v}), 1.0, 0.5),
        (fa.mean_var, lambda v: ((x, 0), {"correction": v}), 0.0, 1.0),
        (
            fa.layer_norm.backward,
            lambda v: ((x, *saved), {"activation": "elu", "alpha": v}), 1.0, 3.0,
        ),
    ]  # fmt: skip
    for entry, arguments, first, second in calls:
        expected = [entry(*args, **kwargs) for args, kwargs in map(arguments, (first, second))]
        for results in repeated(entry, arguments(of(first)), arguments(of(second))):
            assert_equal_bits(results, expected)
        # the same array with another value
        value = of(first)
        for number in (first, second, first, second, first, second):
            value[...] = number
            args, kwargs = arguments(value)
            assert_equal_bits([entry(*args, **kwargs)], [expected[number == second]])


def assert_equal_bits(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        if isinstance(a, tuple):
            assert_equal_bits(a, b)
        elif a is None:
            assert b is None
        else:
            assert_same_bits(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_momentum_as_an_array(kind):
    """Which shows in what the call writes."""
    x, running = np.arange(12.0).reshape(4, 3), np.zeros(3)
    of = np.array
    if kind == "torch":
        x, of = torch.from_numpy(x), torch.tensor
    expected = {m: m * np.asarray(x).mean(0) for m in (0.1, 0.5, 0.9)}
    for momentum in (0.1, 0.9, 0.1, 0.5, 0.9, 0.5, 0.1, 0.9):
        moved = torch.from_numpy(running.copy()) if kind == "torch" else running.copy()
        fa.batch_norm(x, moved, None, training=True, momentum=of(momentum))
        np.testing.assert_allclose(np.asarray(moved), expected[momentum], rtol=1e-6)  # float32


def test_one_array_as_operand_and_as_number():
    """An operand claims an array once; the second time it is given, its value is read."""
    for value in (0.5, 0.25, 2.0, 0.5, 1.5, 3.0):
        x = np.array(-value)
        assert fa.leaky_relu(x, x) == value * value
        t = torch.tensor(-value)
        assert fa.leaky_relu(t, t).item() == value * value


def test_keywords_are_not_positions():
    x = np.ones((3, 4), np.float32)
    for _ in range(5):
        fa.sum(x, axis=0)
    with pytest.raises(TypeError, match="takes at most 1 arguments after the arrays"):
        fa.sum(x, "axis", 0)


def test_another_thread_count_is_another_plan():
    """Sizes that depend on the number of threads are this call's, not an earlier one's."""
    rng = np.random.default_rng(0)
    dh, gates, c = (rng.normal(size=(64, n)).astype(np.float32) for n in (512, 2048, 512))
    bias = np.zeros(2048, np.float32)
    (_, _), saved = fa.lstm_gates.forward(gates, c, bias=bias)
    results = []
    for threads in (2, 2, 2, 2, 8, 8, 8, 1, 1, 1, 3, 2, 16, 64, 2):
        with fa.num_threads(threads):
            results.append(fa.lstm_gates.backward(dh, None, *saved))
    for result in results[1:]:
        assert_equal_bits(result, results[0])


def test_a_plan_has_the_workspace_of_its_threads(monkeypatch):
    """One thread needs none, and a plan of that would leave more threads nothing to divide."""
    x = np.ones(1 << 20, np.float32)
    views = map(_cpu.View.from_numpy, (x, x[:1].copy()))
    arguments = {
        **dict(zip(("x", "y"), views, strict=True)),
        **{"axes": (0,), "term": 0, "divisor": 1.0, "initial": -0.0, "accumulate": False},
    }
    native = _cpu.native_call("sum", arguments)
    sizes, slow = [], []
    made = _call.Call.__init__
    monkeypatch.setattr(_call.Call, "__init__", lambda *a, **k: slow.append(0) or made(*a, **k))
    for threads, slow_calls in ((1, 2), (2, 4), (1, 4), (2, 4)):
        with fa.num_threads(threads):
            for _ in range(3):
                assert fa.sum(x) == x.size
            sizes.append(native.workspace_size())
            assert len(slow) == slow_calls
    assert sizes[0] == sizes[2] == 0 < sizes[1] == sizes[3]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_threads_may_change_between_replays(op):
    """Of each op, which a plan of fewer threads or of more must not cut short."""
    x, dy = (np.random.default_rng(k).normal(size=(90, 500)).astype(np.float32) for k in range(2))
    for call in (example(op, x, dy), backward_example(op, x, dy)):
        results = []
        for threads in (1, 1, 1, 4, 1, 4, 4, 2, 16):
            with fa.num_threads(threads):
                results.append(arrays_of(call()))
        for result in results[1:]:
            for a, b in zip(result, results[0], strict=True):
                assert (a is None) == (b is None)
                if a is not None:
                    assert_same_bits(np.asarray(a), np.asarray(b))


def test_the_cache_is_bounded(monkeypatch):
    """The newest keys stay; one that is seen, written down and run is not lost in between."""
    x = np.ones(1000, np.float32)
    for n in range(1, 1000):
        fa.sum(x[:n])
        fa.sum(x[:n])
        if n > 64:
            assert fa.sum._cached_calls() == 64  # MAX_PLANS of call_cache.pyx
        with monkeypatch.context() as context:
            context.setattr(_call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
            assert fa.sum(x[:n]) == n


def test_an_op_inside_an_op_leaves_its_caller_unrecorded():
    """A plan of the outer call would not know of the inner one."""

    def outer(x, /, *, out=None, stream=None):
        """An op."""

    class Outer(CachedOp):
        family = "tests"

        def __init__(self, inner):
            self.inner = inner
            self._enter(call=Entry("outer", self._declare(outer)))

        def _call(self, x):
            with _call.Call("outer", x=x) as call:
                y, made = call.output("out", None, "x")
                relu = _cpu.ACTIVATIONS.index("relu")
                call.run("activation_forward", x=call.views["x"], y=y, which=relu, parameters=())
                result = call.result(None, made)
            return self.inner(result)

    for inner in (fa.mish, lambda a: fa.sum(a, 0, keepdims=True)):  # by the fast path, and cached
        op = Outer(inner)
        for value in range(6):
            x = np.full((3, 3), float(value))
            assert_same_bits(op(x), inner(x))


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
        run = subprocess.run(
            [sys.executable, "-c", code], env=environ | setting, capture_output=True, text=True,
            check=True, timeout=TIMEOUT,
        )  # fmt: skip
        found[len(setting)] = run.stdout.split()
    assert int(found[0][0]) == 6  # three ops twice, and mish by the fast path
    assert int(found[1][0]) == 20
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_moments_are_recorded_too(kind, monkeypatch):
    for n in range(4):
        x = np.arange(12.0).reshape(4, 3) + n
        if n == 3:
            monkeypatch.setattr(_call.Call, "__init__", lambda *_, **__: pytest.fail("slow path"))
        m = fa.moments(torch.from_numpy(x) if kind == "torch" else x, 0)
        assert m.count == 4
        assert_same_bits(np.asarray(m.mean), x.mean(0))


OPS = [op for op in fa.ops.values() if isinstance(op, CachedOp)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_entry_point_is_documented(op):
    """Its docstring, its example, its signature; doctest finds none of an instance by itself."""
    entries = {
        name: entry
        for name, entry in vars(op).items()
        if isinstance(entry, _cpu.CachedCall) and not name.startswith("_")  # which a call has made
    }
    assert {"forward", "backward"} <= set(entries)
    assert set(entries) | {"call"} == set(op.entry_points)
    for name, entry in entries.items():
        assert inspect.signature(entry) == op.entry_points[name].signature
        assert entry.__name__ == name
    for name, documented in {op.name: op, **entries}.items():
        test = doctest.DocTestParser().get_doctest(documented.__doc__, {}, name, None, 0)
        assert test.examples
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0


class Told:
    """What NumPy asks for its dtype, which may be another one in the next call."""

    dtype: Any = None


class Asked(type):
    @property
    def dtype(cls) -> Any:
        return Told.dtype


class ToldByItsClass(metaclass=Asked):
    pass


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("told", [Told, Told(), ToldByItsClass], ids=["class", "object", "meta"])
@pytest.mark.parametrize("op", [op for op in OPS if "dtype" in op.entry_points["call"].defaults],
                         ids=lambda op: op.name)  # fmt: skip
def test_a_dtype_that_changes_is_asked_for_at_each_call(op, told, kind):
    x = np.linspace(-2, 3, 24).astype(np.float32).reshape(4, 6)
    named = {**sample(op, x, x), "dtype": told}
    if kind == "torch":
        named = {
            n: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for n, v in named.items()
        }
    for name in ["float32"] * 4 + ["float64"] * 4 + ["float32"]:
        Told.dtype = np.dtype(name)
        for result in arrays_of(op.bound("call", named)()):
            assert str(result.dtype).endswith(name)


def test_dtypes_that_do_not_change_have_a_key(monkeypatch):
    x = np.linspace(-2, 3, 24).astype(np.float32).reshape(4, 6)
    for dtype in (np.float64, np.dtype("f8"), float, "float64", torch.float64):
        for time in range(4):
            with monkeypatch.context() as context:
                if time == 3:
                    context.setattr(
                        _call.Call, "__init__", lambda *_, **__: pytest.fail("slow path")
                    )
                assert fa.sum(x, dtype=dtype).dtype == np.float64
