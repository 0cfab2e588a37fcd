"""Tensors of integers in the place of the first array: as torch.tanh takes them, by every op."""

from typing import Any

import numpy as np
import pytest
import torch
from tensors import differentiated, each_op, leaves, sample

import fastact as fa
from fastact.ops.engine.op import arrays_of

INTEGERS = [torch.int64, torch.uint8, torch.bool]


def of_integers(op: Any, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Any]]:
    """A call whose first array is of integers, and the same as it is computed."""
    wide = torch.float32 if op.traits.integers is None else torch.float64
    named = sample(op, np.float32)
    first = op.entry_points["call"].arrays[0]
    for name, value in named.items():  # what is no mask nor target is of the dtype that is computed
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            named[name] = value.to(wide)
    whole = named[first].abs().mul(3).to(dtype)  # 0 to 9: what an integer of 8 bits holds
    return {**named, first: whole}, {**named, first: whole.to(wide)}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@each_op
def test_integers_are_computed_in_a_wider_dtype(op, dtype):
    """Each call has values of its own, though nothing else tells it from the one before."""
    for _ in range(3):
        whole, wide = of_integers(op, dtype)
        for entry in ("call", "forward"):
            got, expected = (op.bound(entry, named)() for named in (whole, wide))
            if entry == "forward":
                got, expected = got[0], expected[0]
            for y, right in zip(arrays_of(got), arrays_of(expected), strict=True):
                torch.testing.assert_close(y, right, rtol=0, atol=0, equal_nan=True)


@each_op
def test_what_stands_beside_integers_gets_its_gradient(op):
    whole, wide = of_integers(op, torch.int64)
    first = op.entry_points["call"].arrays[0]
    names = [name for name in differentiated(op, whole) if name != first]
    if not names:
        assert not any(y.requires_grad for y in arrays_of(op.bound("call", whole)()))
        return
    found = []
    for named in (whole, wide):
        tensors = leaves(named, names)
        y = op.bound("call", {**named, **dict(zip(names, tensors, strict=True))})()
        found.append(torch.autograd.grad(sum(part.sum() for part in arrays_of(y)), tensors))
    for got, right in zip(*found, strict=True):
        assert torch.equal(got, right)


@each_op
def test_shapes_of_integers_are_told_without_memory(op):
    whole, wide = of_integers(op, torch.int64)
    expected = arrays_of(op.bound("call", wide)())
    meta = {n: v.to("meta") if isinstance(v, torch.Tensor) else v for n, v in whole.items()}
    for y, right in zip(arrays_of(op.bound("call", meta)()), expected, strict=True):
        assert (y.dtype, y.shape) == (right.dtype, right.shape)


def test_the_default_dtype_is_looked_up_by_each_call():
    x = torch.arange(6)
    try:
        for dtype in (torch.float64, torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            assert fa.mish(x).dtype == dtype
            assert fa.sum(x).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=str)
@each_op
def test_complex_tensors_are_an_error(op, dtype):
    named = sample(op)
    first = op.entry_points["call"].arrays[0]
    with pytest.raises(TypeError, match=rf"fastact\.{op.name}: {first} must have dtype float16"):
        op.bound("call", {**named, first: named[first].to(dtype)})()
