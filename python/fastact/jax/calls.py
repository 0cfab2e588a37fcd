"""A call of an op's entry point as a text, which a program of XLA holds, and as a function, which
its handler runs.

The text says everything, so that a program may be kept on disk and run by another process. In it
`{"buffer": i}` stands for an array of XLA's: those that the program gives come first, then those
that are to be filled. `{"doubles": i}` is one of pairs of uint32 that are the bits of float64.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ..ops.engine.op import Op, ops
from ..ops.moments import Moments


class Buffer(NamedTuple):
    """An array of XLA's, in the place of a value."""

    number: int


def map_buffers(value: Any, of: Callable[[int], Any]) -> Any:
    """A value, and those inside of tuples, with something else in the place of buffers."""
    if isinstance(value, Buffer):
        return of(value.number)
    return tuple(map_buffers(v, of) for v in value) if isinstance(value, tuple) else value


def parts_of(value: Any) -> tuple[Any, ...]:
    """What a tuple has in it, or moments have: their arrays, and the count."""
    return (value.mean, value.squares, value.count) if isinstance(value, Moments) else value


def text_of(
    op: Any,
    entry: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    copied: Sequence[tuple[Sequence[int], int]],
    doubles: Sequence[int] = (),
) -> str:
    """What `function_of` reads.

    copied : of what the call gives and `out` has no place for: the indexes that lead to it in the
    result, and the number of the buffer for it.
    doubles : the numbers of buffers that are the bits of float64.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, Buffer):
            return {"doubles" if value.number in doubles else "buffer": value.number}
        if isinstance(value, tuple | list):
            return [plain(v) for v in value]
        if isinstance(value, np.generic):
            return value.item()
        return value.name if isinstance(value, Op) else value

    given = {name: plain(value) for name, value in kwargs.items()}
    places = [(path, plain(Buffer(number))) for path, number in copied]
    return json.dumps([op.name, entry, plain(tuple(args)), given, places])


def function_of(text: bytes, *, with_stream: bool = False) -> Callable[..., object]:
    """What makes the call, of the arrays in the place of the buffers, and then of the stream.

    Its arguments are put together by an expression, which takes a tenth of the time that going
    through the text again would take at each call. Only places of values are written into it.
    """
    name, entry, args, kwargs, copied = json.loads(text)
    op = ops[name]
    constants: list[Any] = []

    def written(value: Any) -> str:
        if isinstance(value, dict):
            (kind, number), *_ = value.items()
            bits = ".view('float64')[..., 0]" if kind == "doubles" else ""
            return f"buffers[{int(number)}]{bits}"
        if isinstance(value, list):
            return f"({''.join(f'{written(v)}, ' for v in value)})"
        constants.append(value)
        return f"constants[{len(constants) - 1}]"

    given = [written(v) for v in args]
    for key, value in kwargs.items():
        if not key.isidentifier():
            raise ValueError(f"fastact.jax: a call has no keyword {key!r}")
        given.append(f"{key}={written(value)}")
    parameters = "buffers"
    if with_stream:
        parameters += ", stream"
        given.append("stream=stream")
    function = op if entry == "call" else getattr(op, entry)
    source = f"lambda {parameters}: call({', '.join(given)})"
    call: Callable[..., Any] = eval(source, {"call": function, "constants": constants})
    if not copied:
        return call

    targets = ", ".join(written(target) for _, target in copied)
    targets_of: Callable[..., Any] = eval(f"lambda buffers: ({targets},)")

    def call_and_copy(buffers: Sequence[Any], *stream: int) -> None:
        result = call(buffers, *stream)
        for (path, _), target in zip(copied, targets_of(buffers), strict=True):
            target[...] = reduce(lambda value, i: parts_of(value)[i], path, result)

    return call_and_copy
