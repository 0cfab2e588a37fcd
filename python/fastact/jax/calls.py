"""A call of an op's entry point as a text, which a program of XLA holds, and as a function, which
its handler runs.

The text says everything, so that a program may be kept on disk and run by another process. In it
`{"buffer": i}` stands for an array of XLA's: those that the program gives come first, then those
that are to be filled.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np

from ..ops.op import Op, ops


class Buffer(NamedTuple):
    """An array of XLA's, in the place of a value."""

    number: int


def map_buffers(value: Any, of: Callable[[int], Any]) -> Any:
    """A value, and those inside of tuples, with something else in the place of buffers."""
    if isinstance(value, Buffer):
        return of(value.number)
    return tuple(map_buffers(v, of) for v in value) if isinstance(value, tuple) else value


def text_of(
    op: Any,
    entry: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    copied: Sequence[tuple[Sequence[int], int]],
) -> str:
    """What `function_of` reads.

    copied : of what the call gives and `out` has no place for: the indexes that lead to it in the
    result, and the number of the buffer for it.
    """
    given = {name: _plain(value) for name, value in kwargs.items()}
    return json.dumps([op.name, entry, [_plain(value) for value in args], given, copied])


def _plain(value: Any) -> Any:
    if isinstance(value, Buffer):
        return {"buffer": value.number}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    return value.name if isinstance(value, Op) else value


def function_of(text: bytes) -> Callable[[Sequence[Any]], object]:
    """What makes the call, of the arrays in the place of the buffers.

    Its arguments are put together by an expression, which takes a tenth of the time that going
    through the text again would take at each call. Only places of values are written into it.
    """
    name, entry, args, kwargs, copied = json.loads(text)
    op = ops[name]
    constants: list[Any] = []

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return f"buffers[{int(value['buffer'])}]"
        if isinstance(value, list):
            return f"({''.join(f'{written(v)}, ' for v in value)})"
        constants.append(value)
        return f"constants[{len(constants) - 1}]"

    given = [written(v) for v in args]
    for key, value in kwargs.items():
        if not key.isidentifier():
            raise ValueError(f"fastact.jax: a call has no keyword {key!r}")
        given.append(f"{key}={written(value)}")
    function = op if entry == "call" else getattr(op, entry)
    source = f"lambda buffers: call({', '.join(given)})"
    call: Callable[[Sequence[Any]], Any] = eval(source, {"call": function, "constants": constants})
    if not copied:
        return call

    def call_and_copy(buffers: Sequence[Any]) -> None:
        result = call(buffers)
        for path, index in copied:
            buffers[index][...] = reduce(getitem, path, result)

    return call_and_copy
