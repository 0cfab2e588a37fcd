"""What differences say of an op's derivatives: of its results, and of its gradients."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fastact.ops.engine.op import arrays_of
from fastact.ops.engine.spec import spec_of


class Call:
    """A call of an op, with directions for whatever has a derivative."""

    def __init__(self, op: Any, named: dict[str, Any], random: np.random.Generator) -> None:
        self.op, self.spec, self.named, point = op, spec_of(op), named, op.entry_points["call"]
        names = [n for n in (*point.arrays, *point.defaults) if n in self.spec.of]
        self.names = [n for n in names if isinstance(named.get(n), np.ndarray)]
        self.random: Callable[[Any], np.ndarray] = lambda a: np.asarray(
            random.normal(size=np.shape(a)), a.dtype
        )
        self.tangents = {n: self.random(named[n]) for n in self.names}
        result, self.saved = self.forward(0.0)
        data = named[self.names[0]].dtype
        self.dys = [self.random(y).astype(data) for y in arrays_of(result)]
        self.ddys = [self.random(dy) for dy in self.dys]
        told = self.spec.told
        self.options = {n: v for n, v in named.items() if n in told and n not in self.names}
        self.ddx = [None if g is None else self.random(g) for g in self.gradients(0.0)]
        self.ddx += [None] * (len(op.gradients) - len(self.ddx))

    def moved(self, by: float) -> dict[str, Any]:
        named = {n: np.copy(v) if isinstance(v, np.ndarray) else v for n, v in self.named.items()}
        if by:
            named |= {n: np.asarray(self.named[n] + by * t) for n, t in self.tangents.items()}
        return named

    def forward(self, by: float) -> Any:
        return self.op.bound("forward", self.moved(by))()

    def gradients(self, by: float) -> tuple[Any, ...]:
        incoming = [dy + by * ddy for dy, ddy in zip(self.dys, self.ddys, strict=True)]
        incoming = incoming if by else self.dys
        args, named = self.spec.arguments(incoming, self.forward(by)[1])
        found = self.op.backward(*args, **named, **self.options)
        return found if isinstance(found, tuple) else (found,)

    def arguments(self, of: Callable[[Any], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Those of `backward.backward`, in a framework's arrays."""

        def each(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(each, value))
            return of(np.array(value)) if isinstance(value, np.ndarray | np.generic) else value

        args, named = self.spec.arguments(self.dys, self.saved)
        return [*map(each, (*self.ddx, *args))], {n: each(v) for n, v in named.items()}

    def second(self, of: Callable[[Any], Any]) -> tuple[Any, ...]:
        args, named = self.arguments(of)
        found = self.op.backward.backward(*args, **named, **self.options)
        return found if isinstance(found, tuple) else (found,)

    def both_sides(self, found: Sequence[Any], step: float) -> tuple[float, float]:
        """How all gradients together change along the directions: by what
        `backward.backward` found, and by differences."""
        count = len(self.dys)
        along = dict(zip(self.op.saves, slopes(lambda by: self.forward(by)[1], step), strict=True))
        ways = [*self.ddys, *(along[name] for name in self.op.moving)]
        assert [d is None for d in found[count:]] == [w is None for w in ways[count:]]
        moved = slopes(self.gradients, step)
        return inner(found, ways), inner(self.ddx[: len(moved)], moved)


def inner(some: Sequence[Any], others: Sequence[Any]) -> float:
    """The inner product of arrays; None is 0."""
    pairs = zip(some, others, strict=True)
    return sum(np.vdot(a, b) for a, b in pairs if a is not None and b is not None)


def slopes(f: Callable[[float], Any], step: float) -> list[Any]:
    """Differences of what a function of a step gives; None where it gives no array of numbers."""
    return [
        (np.asarray(a) - b) / (2 * step)
        if isinstance(a, np.ndarray | np.generic) and a.dtype.kind == "f"
        else None
        for a, b in zip(f(step), f(-step), strict=True)
    ]
