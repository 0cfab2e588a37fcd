"""Plans: what is another kind of call, what is refused, and what no plan may hold or forget."""

import doctest
import gc
import inspect
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from conftest import assert_same_bits
from devices import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st
from test_layouts import _views as views

import fastact as fa
from fastact import _cpu
from fastact._op import QuickOp


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
        for door, arguments, options in (
            (fa.mish, (view(x),), {}),
            (fa.mish.backward, (dy, view(x)), {}),
            (fa.bias_act, (view(x), bias, "mish"), {"axis": axis}),
        ):
            outs = [view_out(base), view_out(base)]
            if door is fa.mish:
                expected = type(fa.mish)._call(door, *arguments, out=outs[0])
            elif door is fa.bias_act:
                expected = door._call(*arguments, **options, out=outs[0])
            else:
                expected = type(fa.mish)._backward(fa.mish, *arguments, out=outs[0])
            assert door(*arguments, **options, out=outs[1]) is outs[1]
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
    with pytest.raises(ValueError, match=r"out\[0\] must not share memory with out\[1\]"):
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
    with pytest.raises(TypeError, match=r"use x\.detach\(\)"):
        fa.sum(t.requires_grad_())
    with pytest.raises(TypeError, match="keepdims must be True or False, got 1"):
        fa.sum(x, keepdims=1)
    with pytest.raises(TypeError, match="got a masked one"):
        fa.sum(np.ma.array(x))
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
    """A new output takes its input's layout: not in C order, the long way makes it."""
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


OPS = [op for op in fa.ops.values() if isinstance(op, QuickOp)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_door_is_documented(op):
    """Its docstring, its example, its signature; doctest finds none of an instance by itself."""
    doors = {name: door for name, door in vars(op).items() if isinstance(door, _cpu.Door)}
    assert {"forward", "backward"} <= set(doors)
    for name, door in doors.items():
        assert {"x", "dy", "gates"} & set(inspect.signature(door).parameters)
        assert door.__name__ == name
    for name, documented in {op.name: op, **doors}.items():
        assert documented.__doc__.startswith(f"{name}(")
        test = doctest.DocTestParser().get_doctest(documented.__doc__, {}, name, None, 0)
        assert test.examples
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        assert doctest.DocTestRunner(optionflags=flags).run(test).failed == 0
