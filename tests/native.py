"""Calls of native functions as the Python layer makes them, on memory with guards around it.

Each call names what it needs, so that tests can take away a byte, or change the threads meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock, get_ident
from typing import Any

import numpy as np
import pytest

import fastact as fa
from fastact import _cpu
from fastact.interop.call import Call
from fastact.ops.engine.op import arrays_of

GUARD = 64  # bytes before and after; of a value that no kernel writes
PATTERN = 0xA5

#: Recordings note whatever the process calls, so one thread makes them at a time.
ALONE = Lock()


class Guarded:
    """Memory between two runs of known bytes."""

    def __init__(self, nbytes: int) -> None:
        self.whole = np.full(nbytes + 2 * GUARD, PATTERN, np.uint8)
        self.nbytes = nbytes

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        inside = self.whole[GUARD : GUARD + self.nbytes]
        return inside.view(dtype).reshape(shape)

    def is_whole(self) -> bool:
        """No byte outside has been written."""
        outside = np.concatenate([self.whole[:GUARD], self.whole[GUARD + self.nbytes :]])
        return bool((outside == PATTERN).all())


@dataclass
class Native:
    """One call: `run` writes `outputs`, with a workspace of `size()` bytes."""

    name: str
    size: Callable[[], int]
    run: Callable[[Any], None]
    outputs: list[np.ndarray]
    guards: list[Guarded] = field(default_factory=list)
    needs_it: bool = False  # refuses less; else it does with less

    def bits(self, nbytes: int | None = None) -> list[bytes]:
        """What the outputs hold after a run with so many bytes of workspace; None: without one."""
        for output in self.outputs:
            output.fill(3)
        memory = None if nbytes is None else Guarded(nbytes)
        self.run(memory and _cpu.View.from_numpy(memory.array((nbytes,), np.uint8)))
        assert memory is None or memory.is_whole()
        assert all(guard.is_whole() for guard in self.guards)
        return [output.tobytes() for output in self.outputs]


def by_position(name: str) -> Callable[..., None]:
    """A native function that takes its arguments in the order of its table, then workspace and
    stream.
    """
    fields = tuple(_cpu.native_calls()[name])

    def function(*values: Any) -> None:
        *given, workspace, stream = values
        named = dict(zip(fields, given, strict=True))
        _cpu.native_call(name, named).run(workspace, stream)

    function.__name__ = name
    function.fields = (*fields, "workspace", "stream")  # type: ignore[attr-defined]
    return function


#: Numbers that may be any.
ANY = {"seed", "offset", "ignore_index"}

Calls = list[tuple[Any, tuple[Any, ...]]]


@contextmanager
def recording() -> Iterator[tuple[Calls, list[Call]]]:
    """The native functions that ops call meanwhile, with their arguments, and whose they are."""
    calls: Calls = []
    kept: list[Call] = []  # which hold the memory
    run = Call.run

    def note(self: Call, name: str, /, **arguments: Any) -> None:
        scratch = len(self.scratch)
        run(self, name, **arguments)
        workspace = next((view for view, _ in self.scratch[scratch:]), None)
        given = (arguments.get(field) for field in _cpu.native_calls()[name])
        calls.append((by_position(name), (*given, workspace, self.stream)))
        kept.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Call, "run", note)
        yield calls, kept


def told_to_norms(op: Any, **others: Any) -> dict[str, Any]:
    """What native calls of a norm over rows of two axes take besides arrays."""
    return {
        **{"reduced": (1,), "of_parameter": (1,), "norm": op.kernels.numbers["norm"]},
        **{"which": 0, "parameters": ()},
        **{"eps": 1e-5, "weight_offset": 0.0, "casts": False, "gate_first": False},
        **{"p": 0.0, "seed": 0, "offset": 0, **others},
    }


def native_of(name: str, entry: Any, *args: Any, needs_it: bool = False, **named: Any) -> Native:
    """The call that an entry point makes, with outputs between guards."""
    made = [a if a is None else np.asarray(a) for a in arrays_of(entry(*args, **named))]
    pairs = [a if a is None else (Guarded(a.nbytes), a) for a in made]
    out = tuple(p if p is None else p[0].array(p[1].shape, p[1].dtype) for p in pairs)
    outputs, guards = [o for o in out if o is not None], [p[0] for p in pairs if p is not None]
    before = _cpu.is_call_cache_enabled()
    _cpu.enable_call_cache(False)
    try:
        with recording() as (calls, kept):
            entry(*args, **named, out=out if len(out) > 1 else out[0])
    finally:
        _cpu.enable_call_cache(before)
    ((function, (*given, _, _)),) = calls
    call = _cpu.native_call(function.__name__, dict(zip(function.fields, given, strict=False)))

    def run(workspace: Any, kept: Any = kept) -> None:
        call.run(workspace, 0)

    return Native(
        f"{function.__name__} {name}", call.workspace_size, run, outputs, guards, needs_it
    )


def calls() -> list[Native]:
    """Calls of every family, each thread's its own."""
    with ALONE:
        return _calls(get_ident())


@lru_cache(maxsize=4)
def _calls(thread: int) -> list[Native]:
    """Sizes for which several threads are worth it, and the terms are cut."""
    rng, found = np.random.default_rng(0), []

    def normal(*shape: int) -> Any:
        return rng.normal(size=shape).astype(np.float32)

    # One block of rows, which threads share; chunks of rows.
    for n, k in ((64, 512), (37, 1000), (5000, 16)):
        state, bias = normal(n, k), normal(4 * k)
        _, saved = fa.lstm_gates.forward(normal(n, 4 * k), state, bias=bias)
        found.append(native_of(f"lstm {n} {k}", fa.lstm_gates.backward, state, None, *saved))
        packed, bias = normal(n, 3 * k), normal(3 * k)
        _, saved = fa.gru_gates.forward(packed, packed, state, bias=bias, recurrent_bias=bias)
        found.append(native_of(f"gru {n} {k}", fa.gru_gates.backward, state, *saved))
    for shape in ((70_000, 3), (100_001,)):
        x, weights = normal(*shape), rng.uniform(size=shape)
        found.append(native_of(str(shape), fa.sum, x, 0))
        found.append(native_of(str(shape), fa.mean_var, x, 0))
        found.append(native_of(f"weighted {shape}", fa.var, x, 0, weights=weights))
    found.append(native_of("squares", fa.sum_squares.value_and_grad, normal(100_001)))
    for shape in ((30_000, 3), (2, 3, 20_001)):
        dy, x, y = (normal(*shape) for _ in range(3))
        told = {"axis": 1, "activation": "mish"}
        found.append(native_of(str(shape), fa.bias_act.backward, dy, x, normal(3), **told))
        found.append(
            native_of(str(shape), fa.gated.backward, dy, x, y, normal(6), **told, limit=2.0)
        )
    for shape in ((1000, 100), (70, 3001)):
        x, weight = normal(*shape), normal(shape[1])
        _, saved = fa.layer_norm.forward(x, weight, weight, activation="mish")
        back = fa.layer_norm.backward
        found.append(native_of(str(shape), back, x, *saved, activation="mish", needs_it=True))
    for shape in ((32, 8, 400), (7000, 17)):
        x, weight = normal(*shape), normal(shape[1])
        batch = (None, None, weight, weight, True)
        _, saved = fa.batch_norm.forward(x, *batch, activation="mish")
        back = fa.batch_norm.backward
        found.append(native_of(str(shape), back, x, *saved, True, activation="mish", needs_it=True))
        found.append(
            native_of(str(shape), fa.batch_norm, x, *batch, activation="mish", needs_it=True)
        )
    return found
