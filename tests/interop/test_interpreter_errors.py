"""Errors of the interpreter that an argument's own methods raise: they come out as they are."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import OPS, arguments_of, parts

import fastact as fa

ERRORS = [MemoryError, RecursionError, KeyboardInterrupt, SystemExit]
CPU = (1, 0)

each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
each_error = pytest.mark.parametrize("error", ERRORS)


class Asked:
    """An array of one that is there, which does something when it is asked for its memory."""

    def __init__(self, array: Any, does: Callable[[Any], Any] | None = None) -> None:
        self.array, self.does = array, does
        self.times = 0

    def asked(self, tells: Callable[[], Any]) -> Any:
        if self.does is None:
            return tells()
        self.times += 1
        return self.does(self)

    def capsule(self) -> Any:
        return self.array.__dlpack__()


class ByCapsule(Asked):
    def __dlpack__(self, **_: Any) -> Any:
        return self.asked(self.capsule)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU


class ByDevice(Asked):
    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule()

    def __dlpack_device__(self) -> Any:
        return self.asked(lambda: CPU)


class ByArray(Asked):
    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.asked(lambda: self.array)


class ByInterface(Asked):
    """One of a GPU, which is not there."""

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.asked(dict)


class ByShape(ByCapsule):
    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> Any:
        return self.asked(lambda: self.array.shape)


WAYS = [ByCapsule, ByDevice, ByArray, ByInterface]
each_way = pytest.mark.parametrize("way", WAYS)


def fails(error: type[BaseException]) -> Callable[[Any], Any]:
    def does(asked: Any) -> Any:
        raise error("its own")

    return does


def arrays_of(op: Any) -> int:
    args, named = arguments_of(op, "call", np.float32)
    return sum(isinstance(v, np.ndarray) for v in (*args, *named.values()))


@pytest.mark.parametrize(
    ("op", "way"),
    [(op, way) for op in OPS for way in WAYS if way is not ByInterface or arrays_of(op) == 1],
    ids=lambda v: getattr(v, "name", None) or v.__name__,
)
@each_error
def test_they_pass(op: Any, error: Any, way: Any) -> None:
    """Each array in turn, among others of its kind; of GPUs' the first one, if it is the only."""
    args, named = arguments_of(op, "call", np.float32)
    arrays = {k: v for k, v in enumerate(args) if isinstance(v, np.ndarray)}
    arrays |= {name: v for name, v in named.items() if isinstance(v, np.ndarray)}
    outs = [np.array(part) for part in parts(op(*args, **named))]
    places = [*arrays, *(["out"] if way in (ByCapsule, ByDevice) else [])]
    for place in places:
        failing = way(arrays.get(place, outs[0]), fails(error))

        def held(key: Any, value: Any, place: Any = place, failing: Any = failing) -> Any:
            return failing if key == place else way(value) if key in arrays else value

        given = [held(k, v) for k, v in enumerate(args)]
        more = {n: held(n, v) for n, v in named.items()}
        if "out" in places:
            out = tuple(failing if place == "out" else way(out) for out in outs)
            more["out"] = out if len(out) > 1 else out[0]
        with pytest.raises(error) as caught:
            op(*given, **more)
        assert caught.value.args == ("its own",)
        assert failing.times == 1


@each_error
def test_they_pass_from_what_stands_for_a_number(error: Any) -> None:
    x = np.ones(3, np.float32)
    with pytest.raises(error, match="its own"):
        fa.leaky_relu(x, ByShape(x, fails(error)))


@each_way
@each_op
def test_one_that_calls_the_op_on_itself_ends(op: Any, way: Any) -> None:
    """At the depth where the interpreter ends it, and once at each depth."""
    args, named = arguments_of(op, "call", np.float32)

    def held(value: Any, does: Any = None) -> Any:
        return way(value, does) if isinstance(value, np.ndarray) else value

    others = [*map(held, args[1:])]
    named = {name: held(value) for name, value in named.items()}

    def again(asked: Any) -> Any:
        if asked.times > sys.getrecursionlimit():
            pytest.fail("asked more than once at a depth")
        return op(asked, *others, **named)

    with pytest.raises(RecursionError):
        op(held(args[0], again), *others, **named)
