"""Calls that others carry out: handlers are asked in one order, and no op names them."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest
from calls import forward

import fastact as fa
from fastact.interop import handlers
from fastact.interop.handlers import Handler


class Mine:
    """An object of a library that nobody has heard of."""


@pytest.fixture(autouse=True)
def _no_handler_stays() -> Iterator[None]:
    before = [*handlers._handlers]
    yield
    handlers._handlers[:] = before


def _answering(answer: str) -> Handler:
    return Handler(
        lambda op, args, kwargs: type(args[0]) is Mine,
        lambda op, args, kwargs: (answer, op, args, kwargs),
    )


@pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
def test_what_is_registered_is_asked_by_every_op(op):
    x, rest = Mine(), (1,) * (len(op.entry_points["call"].arrays) - 1)
    with pytest.raises((TypeError, ValueError)):
        op(x, *rest)
    handlers.register(_answering("last"))
    assert op(x, *rest, out=3) == ("last", op, (x, *rest), {"out": 3})
    handlers.register(_answering("later"))
    assert op(x, *rest)[0] == "last"
    handlers.register(_answering("first"), first=True)
    assert op(x, *rest)[0] == "first"


def test_an_ordinary_call_has_no_handler():
    x = np.ones((2, 4))
    for op in fa.ops.values():
        call = forward(op, x, x)
        args, kwargs = call.args, call.keywords
        assert handlers.handler_of(op, args, kwargs) is None


def test_who_is_asked_first():
    """An element-wise op is NumPy's to hand on, before torch, dask and masked arrays are asked."""
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    served = handlers.handler_of(fa.mish, (masked,), {})
    assert served is handlers._handlers[0]
    assert handlers.handler_of(fa.sum, (masked,), {}) is handlers._handlers[-1]
    assert handlers.handler_of(fa.softmax, (masked,), {}) is None
    assert "numpy.ma" in sys.modules
