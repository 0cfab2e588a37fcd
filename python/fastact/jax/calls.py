"""A call of an op's entry point as a text, which a program of XLA holds, and as a function, which
its handler runs.

The text says everything, so that a program may be kept on disk and run by another process. In it
`{"buffer": i}` stands for an array of XLA's: the program's arguments come first, then the arrays to
fill. `{"doubles": i}` is an array of pairs of uint32 that are the bits of float64.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from ..ops.engine.entry import DRAWN
from ..ops.engine.op import Op, ops
from ..ops.moments import Moments


class Buffer(NamedTuple):
    """An array of XLA's, in the place of a value."""

    number: int


def map_buffers(value: Any, of: Callable[[int], Any]) -> Any:
    """Return a value, or a tuple of values, with something else in the place of buffers."""
    if isinstance(value, Buffer):
        return of(value.number)
    return tuple(map_buffers(v, of) for v in value) if isinstance(value, tuple) else value


def parts_of(value: Any) -> tuple[Any, ...]:
    """Return the parts of a tuple, or of moments: their arrays, and the count."""
    return (value.mean, value.squares, value.count) if isinstance(value, Moments) else value


def seed_of(pair: Any) -> int:
    """Return the number of a seed that a program has as an array: its upper and lower 32 bits."""
    if not isinstance(pair, np.ndarray):
        raise TypeError(f"fastact.jax: {DRAWN} must be a number in a program for a GPU, no array")
    high, low = pair.tolist()
    return int(high << 32 | low)


def text_of(
    op: Any,
    entry: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    copied: Sequence[tuple[Sequence[int], int]],
    doubles: Sequence[int] = (),
) -> str:
    """Return the text that `function_of` reads.

    copied : for each result that `out` has no place for, the indexes that lead to it in the call's
    result, and the number of its buffer.
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
    """A function that makes the call. It takes the arrays for the buffers, and then the stream.

    An expression puts the arguments together, in a tenth of the time that reading the text at each
    call would take. Only the places of values are written into it.
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
        is_drawn = key == DRAWN and isinstance(value, dict)
        given.append(f"{key}=seed_of({written(value)})" if is_drawn else f"{key}={written(value)}")
    parameters = "buffers"
    if with_stream:
        parameters += ", stream"
        given.append("stream=stream")
    function = op.entry_point(entry)
    names = {"call": function, "constants": constants, "seed_of": seed_of}
    source = f"lambda {parameters}: call({', '.join(given)})"
    call: Callable[..., Any] = eval(source, names)
    if not copied:
        return call

    targets = ", ".join(written(target) for _, target in copied)
    targets_of: Callable[..., Any] = eval(f"lambda buffers: ({targets},)")

    def call_and_copy(buffers: Sequence[Any], *stream: int) -> None:
        result = call(buffers, *stream)
        for (path, _), target in zip(copied, targets_of(buffers), strict=True):
            target[...] = reduce(lambda value, i: parts_of(value)[i], path, result)

    return call_and_copy
