"""Calls of native functions as the Python layer makes them, on memory with guards around it.

Each call names what it needs, so that tests can take away a byte, or change the threads meanwhile.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import fastact as fa
from fastact import _cpu
from fastact.interop.call import Call

GUARD = 64  # bytes before and after; of a value that no kernel writes
PATTERN = 0xA5

WHICH = _cpu.ACTIVATIONS.index("mish")
LSTM, GRU = 0, 1


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


class Maker:
    """Arrays of one call."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.outputs: list[np.ndarray] = []
        self.guards: list[Guarded] = []

    def given(self, *shape: int, dtype: Any = np.float32) -> _cpu.View:
        return _cpu.View.from_numpy(self.rng.normal(size=shape).astype(dtype))

    def made(self, *shape: int, dtype: Any = np.float32) -> _cpu.View:
        guard = Guarded(int(np.prod(shape)) * np.dtype(dtype).itemsize)
        array = guard.array(shape, dtype)
        self.guards.append(guard)
        self.outputs.append(array)
        return _cpu.View.from_numpy(array)

    def call(self, name: str, size: Any, run: Any, needs_it: bool = False) -> Native:
        return Native(name, size, run, self.outputs, self.guards, needs_it)

    def by_name(
        self, name: str, function: str, needs_it: bool = False, /, **arguments: Any
    ) -> Native:
        call = _cpu.native_call(function, arguments)
        return self.call(
            name, call.workspace_size, lambda workspace: call.run(workspace, 0), needs_it
        )


def gates(rows: int, columns: int, kind: int = LSTM) -> Native:
    """lstm_gates.backward or gru_gates.backward with gradients of the biases."""
    m = Maker()
    count, kept = (4, 4) if kind == LSTM else (3, 4)
    packed, state = m.given(rows, kept * columns), m.given(rows, columns)
    cell = m.given(rows, columns) if kind == LSTM else None
    dh = m.given(rows, columns)
    dgates, dstate = m.made(rows, count * columns), m.made(rows, columns)
    drecurrent = None if kind == LSTM else m.made(rows, count * columns)
    dbias = m.made(count * columns)
    drecurrent_bias = None if kind == LSTM else m.made(count * columns)

    name = f"{'lstm' if kind == LSTM else 'gru'}_gates {rows} {columns}"
    return m.by_name(
        *(name, "gates_backward"),
        **{"state": state, "kind": kind, "kept": packed, "cell": cell, "hidden_gradient": dh},
        **{"gates_gradient": dgates, "recurrent_gradient": drecurrent, "state_gradient": dstate},
        **{"bias_gradient": dbias, "recurrent_bias_gradient": drecurrent_bias},
        **{"places": tuple(range(count)), "accumulate": False},
    )


def summed(*shape: int, axes: tuple[int, ...]) -> Native:
    m = Maker()
    x = m.given(*shape)
    y = m.made(*(1 if i in axes else n for i, n in enumerate(shape)))
    options = {"term": 0, "divisor": 1.0, "initial": -0.0, "accumulate": False}
    return m.by_name(f"sum {shape} {axes}", "sum", x=x, axes=axes, y=y, **options)


def moments(*shape: int, axes: tuple[int, ...], skips: bool = False) -> Native:
    m = Maker()
    x = m.given(*shape)
    kept = [1 if i in axes else n for i, n in enumerate(shape)]
    mean, second = m.made(*kept), m.made(*kept)
    name = f"moments {shape} {axes}{', skipping' if skips else ''}"
    options = {"of_m2": 1, "correction": 0.0, "initial": -0.0, "skips": skips, "pair": 0}
    return m.by_name(name, "moments", x=x, axes=axes, mean=mean, second=second, **options)


def weighted_moments(*shape: int, axes: tuple[int, ...]) -> Native:
    m = Maker()
    x, weights = m.given(*shape), _cpu.View.from_numpy(m.rng.uniform(size=shape))
    kept = [1 if i in axes else n for i, n in enumerate(shape)]
    mean, second = m.made(*kept), m.made(*kept)
    given = {"x": x, "weights": weights, "axes": axes, "mean": mean, "second": second}
    options = {"of_m2": 1, "correction": 0.0, "initial": -0.0, "skips": False, "pair": 0}
    return m.by_name(f"weighted moments {shape} {axes}", "moments", **given, **options)


def squares(size: int) -> Native:
    m = Maker()
    x, y, grad = m.given(size), m.made(1), m.made(size)
    return m.by_name("square_value_and_grad", "square_value_and_grad", x=x, y=y, grad=grad)


def bias_act(*shape: int, axis: int) -> Native:
    m = Maker()
    dy, x, bias = m.given(*shape), m.given(*shape), m.given(shape[axis])
    dx, dbias = m.made(*shape), m.made(shape[axis])
    return m.by_name(
        *(f"bias_act {shape} {axis}", "bias_act_backward"),
        **{"x": x, "dy": dy, "bias": bias, "dx": dx, "dbias": dbias, "axis": axis},
        **{"which": WHICH, "parameters": (), "accumulate_dx": False, "accumulate_dbias": False},
    )


def gated(*shape: int, axis: int) -> Native:
    m = Maker()
    dy, a, b = (m.given(*shape) for _ in range(3))
    bias_a, bias_b = (m.given(shape[axis]) for _ in range(2))
    da, db, dbias_a, dbias_b = (
        m.made(*of) for of in (shape, shape, shape[axis:][:1], shape[axis:][:1])
    )
    return m.by_name(
        *(f"gated {shape} {axis}", "gated_backward"),
        **{"dy": dy, "a": a, "b": b, "bias_a": bias_a, "bias_b": bias_b, "da": da, "db": db},
        **{"dbias_a": dbias_a, "dbias_b": dbias_b, "axis": axis, "which": WHICH},
        **{"parameters": (), "limit": 2.0, "offset": 0.0, "accumulate": False},
    )


def told_to_norms(op: Any, **others: Any) -> dict[str, Any]:
    """What native calls of a norm over rows of two axes take besides arrays."""
    return {
        **{"reduced": (1,), "of_parameter": (1,), "norm": op.kernels.numbers["norm"]},
        **{"which": 0, "parameters": ()},
        **{"eps": 1e-5, "weight_offset": 0.0, "casts": False, "gate_first": False},
        **{"p": 0.0, "seed": 0, "offset": 0, **others},
    }


def layer_norm(rows: int, columns: int) -> Native:
    m = Maker()
    dy, x, weight = m.given(rows, columns), m.given(rows, columns), m.given(1, columns)
    mean, rstd = m.given(rows, 1), m.given(rows, 1)
    dx, dweight, dbias = m.made(rows, columns), m.made(1, columns), m.made(1, columns)
    return m.by_name(
        *(f"norm_backward {rows} {columns}", "norm_backward", True),
        **{"dy": dy, "x": x, "dx": dx, "mean": mean, "rstd": rstd},
        **{"weight": weight, "bias": weight, "dweight": dweight, "dbias": dbias},
        **told_to_norms(fa.layer_norm, which=WHICH),
        accumulate=False,
    )


def batch_backward(*shape: int, axis: int) -> Native:
    m = Maker()
    dy, x = m.given(*shape), m.given(*shape)
    mean, rstd, weight = (m.given(shape[axis]) for _ in range(3))
    dx, dweight, dbias = m.made(*shape), m.made(shape[axis]), m.made(shape[axis])

    arguments = {
        **{"x": x, "dy": dy, "dx": dx, "axis": axis, "mean": mean, "rstd": rstd},
        **{"weight": weight, "dweight": dweight, "dbias": dbias, "which": WHICH, "parameters": ()},
        **{"count": 1.0, "training": True, "accumulate": False},
    }
    name = f"batch_norm_backward {shape} {axis}"
    return m.by_name(name, "batch_norm_backward", True, **arguments)


def batch_forward(*shape: int, axis: int) -> Native:
    m = Maker()
    x, weight = m.given(*shape), m.given(shape[axis])
    y, mean, rstd = m.made(*shape), m.made(shape[axis]), m.made(shape[axis])

    arguments = {
        **{"x": x, "y": y, "axis": axis, "weight": weight, "mean": mean, "rstd": rstd},
        **{"which": WHICH, "parameters": (), "momentum": 0.1, "eps": 1e-5, "training": True},
    }
    return m.by_name(f"batch_norm_forward {shape} {axis}", "batch_norm_forward", True, **arguments)


def calls() -> list[Native]:
    """Of every family; sizes for which several threads are worth it, and the terms are cut."""
    return [
        gates(64, 512),  # one block of rows, which threads share
        gates(64, 512, GRU),
        gates(37, 1000),
        gates(5000, 16),  # chunks of rows
        gates(5000, 16, GRU),
        summed(70_000, 3, axes=(0,)),
        summed(100_001, axes=(0,)),
        moments(70_000, 3, axes=(0,)),
        moments(100_001, axes=(0,)),
        weighted_moments(70_000, 3, axes=(0,)),
        weighted_moments(100_001, axes=(0,)),
        squares(100_001),
        bias_act(30_000, 3, axis=1),
        bias_act(2, 3, 20_001, axis=1),
        gated(30_000, 3, axis=1),
        gated(2, 3, 20_001, axis=1),
        layer_norm(1000, 100),
        layer_norm(70, 3001),
        batch_backward(32, 8, 400, axis=1),
        batch_backward(7000, 17, axis=1),
        batch_forward(32, 8, 400, axis=1),
    ]
