"""Axes: of arrays that have none, out of range, by position, and 64 of them, the most."""

import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from arrangements import plain, reversed_, transposed
from conftest import assert_same_bits
from devices import Framework
from every import PLACES, Call, results
from judged import refused

import fastact as fa
from fastact import _cpu
from fastact._cpu import View
from fastact.measure.cases import sample
from fastact.ops.engine.op import arrays_of

NUMPY = Framework("numpy", lambda a: a, np.asarray)
X = np.array([[0.5, -1.0, 2.0, 3.0], [1.0, 0.0, -2.0, 0.25]])

# Those that reduce: they give of one element what they give of a row of one.
REDUCES = [
    op
    for op in fa.ops.values()
    if op.entry_points["call"].defaults.get("axis", 1) in (-1, None)
    and len(op.entry_points["call"].arrays) == 1
    and not isinstance(sample(op, X, X).get("bias"), np.ndarray)
    and op.family in ("softmax", "reductions", "statistics")
]
# Those whose elements lie along an axis that must be there.
NEEDS_ONE = [
    op
    for op in fa.ops.values()
    if {"axis", "channel_axis"} & {*op.entry_points["call"].defaults}
    and op not in REDUCES
    and len([a for a in sample(op, X, X).values() if isinstance(a, np.ndarray)]) > 0
    and (op.family not in ("gated", "divergences") or len(op.entry_points["call"].arrays) == 1)
]


def test_both_kinds_are_there() -> None:
    assert len(REDUCES) > 10
    assert {"glu", "cross_entropy", "layer_norm", "batch_norm", "bias_grad"} <= {
        op.name for op in NEEDS_ONE
    }


def gradients_for(op: Any, made: Any, framework: Framework) -> Any:
    several = tuple(framework.of(np.ones(part.shape)) for part in arrays_of(made))
    return several if len(several) > 1 else several[0]


def numbers_of(result: Any, framework: Framework) -> Iterator[np.ndarray]:
    for part in result if isinstance(result, tuple) else arrays_of(result):
        if part is not None and not isinstance(part, int):
            yield np.asarray(framework.numpy(part) if hasattr(part, "shape") else part)


@pytest.mark.parametrize("op", REDUCES, ids=lambda op: op.name)
@pytest.mark.parametrize("axis", [None, 0, -1, (0,), (-1,), ()], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
def test_an_array_without_axes(op: Any, axis: Any, keepdims: bool, framework: Framework) -> None:
    """Results, saved arrays and gradients are as for a row of one element."""
    options: dict[str, Any] = {} if axis is None else {"axis": axis}
    if "keepdims" in op.entry_points["call"].defaults:
        options["keepdims"] = keepdims
    of_row: dict[str, Any] = {**options, "axis": 0}
    x = np.array(3.0)
    y, saved = op.forward(framework.of(x), **options)
    row, saved_of_row = op.forward(x.reshape(1), **of_row)
    dx = op.backward(gradients_for(op, y, framework), *saved, **options)
    expected = op.backward(gradients_for(op, row, NUMPY), *saved_of_row, **of_row)
    for found, wanted in (
        (y, row),
        (op(framework.of(x), **options), op(x.reshape(1), **of_row)),
        (dx, expected),
    ):
        pairs = zip(numbers_of(found, framework), numbers_of(wanted, NUMPY), strict=True)
        for one, other in pairs:
            assert one.shape == ()
            np.testing.assert_allclose(one, np.squeeze(other), rtol=1e-15)
    if len(op.results) == 1 and not hasattr(y, "m2"):
        out = framework.of(np.zeros(()))
        assert op(framework.of(x), **options, out=out) is out
        np.testing.assert_array_equal(framework.numpy(out), np.squeeze(np.asarray(row)))


def test_values_without_axes() -> None:
    for given in (3.0, np.float32(3), np.array(3.0)):
        assert fa.softmax(given) == 1
        assert fa.log_softmax(given) == 0
        assert fa.logsumexp(given) == 3
    assert np.isnan(fa.softmax(np.nan))


@pytest.mark.parametrize("op", REDUCES, ids=lambda op: op.name)
def test_autograd_of_a_tensor_without_axes(op: Any) -> None:
    x = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    y = op(x, axis=-1)
    parts = [part for part in arrays_of(y) if isinstance(part, torch.Tensor)]
    sum(part.sum() for part in parts).backward()
    assert x.grad.shape == ()
    row, saved = op.forward(np.array([3.0]), axis=0)
    dx = op.backward(gradients_for(op, row, NUMPY), *saved, axis=0)
    assert float(x.grad) == pytest.approx(float(np.sum(next(numbers_of(dx, NUMPY)))), abs=1e-15)


@pytest.mark.parametrize("op", NEEDS_ONE, ids=lambda op: op.name)
def test_what_has_no_meaning_without_axes_names_what_was_given(op: Any) -> None:
    first, named = op.entry_points["call"].arrays[0], sample(op, X, X)
    for name, value in named.items():
        if isinstance(value, np.ndarray) and value.ndim > 1:
            named[name] = np.array(3.0)
    with pytest.raises(ValueError, match=rf"{first} must have an axis.*got shape \(\)") as raised:
        op.bound("call", named)()
    assert "axis must" not in str(raised.value)


def test_softmax_and_its_kin_take_the_axis_by_position() -> None:
    for op in (fa.softmax, fa.log_softmax, fa.logsumexp):
        for _ in range(3):  # the third call is replayed
            for axis in (0, 1, -2):
                np.testing.assert_array_equal(op(X, axis), op(X, axis=axis))
                y, saved = op.forward(X, axis)
                np.testing.assert_array_equal(y, op(X, axis=axis))
                dx = op.backward(np.ones_like(y), *saved, axis)
                np.testing.assert_array_equal(dx, op.backward(np.ones_like(y), *saved, axis=axis))
        t = torch.tensor(X, requires_grad=True)
        op(t, 0).sum().backward()
        by_name = torch.tensor(X, requires_grad=True)
        op(by_name, axis=0).sum().backward()
        assert torch.equal(t.grad, by_name.grad)


MOST = 64
ONES = (1,) * MOST


def test_a_shape_that_is_too_long():
    for op in (fa.sum, fa.bias_grad, fa.unbroadcast):
        words = f"fastact.{op.name}.backward: shape must have at most 64 axes, got "
        for count in (65, 100, 1000):
            refused(re.escape(words + str(count)), op.backward, 1.0, (1,) * count, error=ValueError)
            with pytest.raises(ValueError, match=re.escape(words + str(count))):
                op.backward(np.ones(1), (1,) * count)
    with pytest.raises(ValueError, match=r"fastact.unbroadcast: shape must have at most 64 axes"):
        fa.unbroadcast(np.ones((2, 3)), (1,) * 65)


def test_groups_are_an_axis_more():
    x = np.ones((1, 4) + (1,) * 62, np.float32)
    y = fa.group_norm(x[..., 0], 2)
    assert_same_bits(y.reshape(1, 4, 1), fa.group_norm(x.reshape(1, 4, 1), 2))


def wide(*lengths: tuple[int, int]) -> tuple[int, ...]:
    """64 axes, of length 1 but for some."""
    shape = list(ONES)
    for axis, length in lengths:
        shape[axis] = length
    return tuple(shape)


SHAPES = [ONES, wide((0, 2), (31, 3), (63, 5)), wide(*((axis, 2) for axis in range(0, 64, 6)))]
few = pytest.mark.parametrize("shape", SHAPES, ids=["ones", "three", "eleven"])


def squeezed(a: np.ndarray) -> np.ndarray:
    return a.reshape([n for n in a.shape if n != 1] or [1])


@few
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.name)
@pytest.mark.parametrize("lay", [plain, transposed, reversed_], ids=lambda lay: lay.__name__)
def test_every_op(place, shape, lay):
    """Results are those of the same arrays without their axes of length 1, as near as that is."""
    channel, compared = int(np.argmax(shape)), 0
    at = sum(n > 1 for n in shape[:channel])
    for op in fa.ops.values():
        defaults = op.entry_points["call"].defaults
        axis = next((name for name in ("axis", "channel_axis") if name in defaults), None)
        try:
            way = ({axis: channel} if axis else {}) | ({"sink": None} if "sink" in defaults else {})
            call = Call(op, way, shape, np.float32)
        except (TypeError, ValueError):
            continue  # groups are an axis more, and gates share the last one
        if {"shape", "cos", "target"} & {*defaults, *op.saves, *op.entry_points["call"].arrays}:
            continue  # it has as many axes, or lies along the last ones
        if op.family == "gates" and shape[-1] == 1:
            continue
        named = {n: squeezed(v) if isinstance(v, np.ndarray) else v for n, v in call.named.items()}
        small = copy.copy(call)
        small.named = named | ({axis: at} if axis else {})
        small.result, small.saved = op.bound("forward", small.named)()
        shapes = map(np.shape, arrays_of(small.result))
        small.dys = [np.reshape(dy, of) for dy, of in zip(call.dys, shapes, strict=True)]
        for run, other in zip(call.both, small.both, strict=True):
            pairs = zip(results(place, run, lay), results(PLACES[0], other), strict=True)
            for got, right in pairs:
                if right is not None:
                    np.testing.assert_allclose(got.reshape(right.shape), right, 1e-3, 1e-3)
        compared += 1
    assert compared > 40


def test_gradients_of_64_axes():
    for shape in SHAPES:
        assert fa.sum.backward(1.0, shape).shape == shape
        assert fa.unbroadcast.backward(np.ones(1), shape).shape == shape


def test_views_refuse_one_more():
    view = View.from_numpy(np.zeros(ONES, np.float32))
    small = View.from_numpy(np.zeros((2, 4), np.float32))
    words = "at most 64 axes, got"
    for call in (
        lambda: view.with_axes((0,)),
        lambda: small.with_axes(tuple(range(63))),
        lambda: view.split_axis(0, 1),
        lambda: view.shaped((1,) * 65),
    ):
        refused(words, call, error=ValueError)


@pytest.mark.parametrize(
    "call",
    [
        lambda v: v.with_axes((2, 1)),
        lambda v: v.with_axes((0, 0)),
        lambda v: v.with_axes((5,)),
        lambda v: v.with_axes((-1,)),
        lambda v: v.split_axis(2, 1),
        lambda v: v.split_axis(-1, 1),
        lambda v: v.split_axis(1, 3),
        lambda v: v.split_axis(1, -2),
        lambda v: v.split_axis(1, 0),
        lambda v: v.shaped((-1,)),
        lambda v: v.shaped((2**32, 2**32)),
        lambda v: v.broadcast_to((2,)),
        lambda v: v.broadcast_to((3, 4)),
        lambda v: v.of_dtype(7),
        lambda v: v.of_dtype(-1),
        lambda v: View.from_numpy(np.zeros(1, np.uint8)).repeats(v),
    ],
)
def test_views_refuse_what_they_do_not_have(call):
    refused(r"\w", call, View.from_numpy(np.zeros((2, 4), np.float32)), error=ValueError)


def test_memory_of_a_size_that_is_not():
    with pytest.raises((MemoryError, ValueError)):
        _cpu.Memory(View.from_numpy(np.zeros(1)).shaped((2**50,)))
