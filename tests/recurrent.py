"""The recurrent gates on any backend: ops that take and give NumPy arrays wherever they run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from devices import FRAMEWORKS, KERNELS, Framework

import fastact as fa

GATES = [op for op in fa.ops.values() if op.family == "gates"]
each_op = pytest.mark.parametrize("op", GATES, ids=lambda op: op.name)

# NumPy's arrays and each device's, for tests that do not depend on the instruction set.
everywhere = pytest.mark.parametrize(
    "where", [FRAMEWORKS[0], *KERNELS], ids=lambda framework: framework.name
)


class On:
    """A gates op on a framework's arrays; every array that goes in or comes out is NumPy's.

    An array that is given twice, or that comes back, is the same one: what is done in place shows.
    """

    def __init__(self, op: Any, framework: Framework) -> None:
        self.op, self.framework = op, framework

    def __getattr__(self, name: str) -> Any:
        return getattr(self.op, name)

    def _run(self, entry: Callable[..., Any], args: Any, named: Any) -> Any:
        theirs: dict[int, Any] = {}
        ours: dict[int, np.ndarray] = {}

        def of(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(of, value))
            if not isinstance(value, np.ndarray):
                return value
            if id(value) not in theirs:
                theirs[id(value)] = self.framework.of(value)
                ours[id(theirs[id(value)])] = value
            return theirs[id(value)]

        def back(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(back, value))
            if value is None or isinstance(value, bool | int | float):
                return value
            return ours[id(value)] if id(value) in ours else self.framework.numpy(value)

        results = entry(*map(of, args), **{name: of(value) for name, value in named.items()})
        for array in ours.values():
            if array.flags.writeable:
                array[...] = self.framework.numpy(theirs[id(array)])
        return back(results)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._run(self.op, args, named)

    def forward(self, *args: Any, **named: Any) -> Any:
        return self._run(self.op.forward, args, named)

    def backward(self, *args: Any, **named: Any) -> Any:
        return self._run(self.op.backward, args, named)


def on(op: Any, framework: Framework) -> Any:
    """The op, for NumPy arrays, on a framework's device."""
    return op if framework.exact else On(op, framework)


@dataclass
class Step:
    """The arrays of a call in one dtype, packed in `order`, which is run by them."""

    op: Any
    gates: np.ndarray
    state: np.ndarray
    dh: np.ndarray
    recurrent: np.ndarray | None = None
    bias: np.ndarray | None = None
    recurrent_bias: np.ndarray | None = None
    dc: np.ndarray | None = None
    order: str = ""
    recompute: bool = False

    @property
    def letters(self) -> str:
        """The gates in the order in which they are packed."""
        letters: str = self.op.letters
        return self.order.replace("c", "g") or letters

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """What the call takes by position."""
        found = self._by_name
        return tuple(found[name] for name in self.op.entry_points["call"].arrays)

    @property
    def options(self) -> dict[str, Any]:
        """What forward takes by keyword, and the call where nothing is recomputed."""
        by_position, found = self.op.entry_points["call"].arrays, self._by_name
        return {n: a for n, a in found.items() if n not in by_position} | self.again

    @property
    def again(self) -> dict[str, Any]:
        """What backward takes by keyword."""
        order = {"order": self.order} if self.order else {}
        return order | ({"recompute": True} if self.recompute else {})

    @property
    def _by_name(self) -> dict[str, np.ndarray]:
        """The arrays that the op is given."""
        named = {"gates": self.gates, "recurrent": self.recurrent, self.op.state: self.state}
        named |= {"bias": self.bias, "recurrent_bias": self.recurrent_bias}
        return {name: array for name, array in named.items() if array is not None}

    @property
    def named(self) -> dict[str, Any]:
        """All that forward takes, the data first."""
        return self._by_name | self.again

    @property
    def gradients(self) -> tuple[np.ndarray | None, ...]:
        """What backward takes first."""
        return (self.dh, self.dc)[: len(self.op.results)]


def random_step(
    op: Any,
    shape: tuple[int, ...],
    dtype: Any,
    scale: float = 1.0,
    seed: int = 0,
    *,
    recompute: bool = False,
) -> Step:
    """Normal numbers, with a recurrent projection and both biases."""
    rng = np.random.default_rng(seed)
    packed = (*shape[:-1], op.count * shape[-1])

    def normal(*of: int, times: float = 1.0) -> np.ndarray:
        return (rng.normal(size=of) * times).astype(dtype)

    return Step(
        op,
        normal(*packed, times=scale),
        normal(*shape),
        normal(*shape),
        normal(*packed, times=scale),
        normal(packed[-1]),
        normal(packed[-1]),
        normal(*shape) if "c" in op.results else None,
        recompute=recompute,
    )


def forward(step: Step, **options: Any) -> tuple[Any, ...]:
    """All results, and what is saved."""
    results, saved = step.op.forward(*step.arrays, **step.options, **options)
    return (*(results if isinstance(results, tuple) else (results,)), saved)


def backward(step: Step, saved: Any, **options: Any) -> tuple[Any, ...]:
    made: tuple[Any, ...] = step.op.backward(*step.gradients, *saved, **step.again, **options)
    return made
