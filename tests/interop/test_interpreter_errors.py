"""Errors of the interpreter that an argument's own methods raise: they come out as they are."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import OPS, arguments_of, parts

ERRORS = [MemoryError, RecursionError, KeyboardInterrupt, SystemExit]
X = np.ones((2, 3), np.float32)


class Asked:
    """An array that does something when it is asked for its memory."""

    def __init__(self, does: Callable[[Any], Any]) -> None:
        self.does = does
        self.times = 0

    def asked(self, *_: Any, **__: Any) -> Any:
        self.times += 1
        return self.does(self)


class ByCapsule(Asked):
    __dlpack__ = Asked.asked

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class ByDevice(Asked):
    __dlpack_device__ = Asked.asked

    def __dlpack__(self, **named: Any) -> Any:
        return X.__dlpack__(**named)


class ByArray(Asked):
    __array__ = Asked.asked


class ByInterface(Asked):
    __cuda_array_interface__ = property(Asked.asked)


class ByShape(ByCapsule):
    dtype, shape = np.dtype("f4"), property(Asked.asked)


WAYS = [ByCapsule, ByDevice, ByArray, ByInterface, ByShape]


def fails(error: type[BaseException]) -> Callable[[Any], Any]:
    def does(asked: Any) -> Any:
        raise error("its own")

    return does


@pytest.mark.parametrize("entry", ["call", "forward", "backward"])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_they_pass(op: Any, way: Any, error: Any, entry: str) -> None:
    (first, *others), named = arguments_of(op, entry, np.float32)
    held = way(fails(error))
    first = (held, *first[1:]) if isinstance(first, tuple) else held
    with pytest.raises(error) as caught:
        op.entry_point(entry)(first, *others, **named)
    assert caught.value.args == ("its own",)
    assert held.times == 1


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_they_pass_wherever_an_array_stands(op: Any, error: Any) -> None:
    """Each array in turn, among others that share their memory."""
    args, named = arguments_of(op, "call", np.float32)
    arrays = [k for k, value in enumerate(args) if isinstance(value, np.ndarray)]
    arrays += [name for name, value in named.items() if isinstance(value, np.ndarray)]
    result = op(*args, **named)
    outs = [np.array(part) for part in parts(result)]
    for place in [*arrays, "out"]:

        def held(key: Any, array: Any, place: Any = place) -> Any:
            asked = ByCapsule(lambda _: array.__dlpack__(max_version=(1, 1)))
            return ByCapsule(fails(error)) if key == place else asked

        given = [held(k, v) if k in arrays else v for k, v in enumerate(args)]
        more = {n: held(n, v) if n in arrays else v for n, v in named.items()}
        out = tuple(held("out", out) for out in outs)
        with pytest.raises(error, match="its own"):
            op(*given, **more, out=out if len(out) > 1 else out[0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_one_that_calls_the_op_on_itself_ends(op: Any, way: Any) -> None:
    """At the depth where the interpreter ends it, and once at each depth."""
    (first, *others), named = arguments_of(op, "call", np.float32)
    held = way(lambda asked: op(asked, *others, **named))
    with pytest.raises(RecursionError):
        op(held, *others, **named)
    assert held.times < sys.getrecursionlimit()
