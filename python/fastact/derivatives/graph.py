"""A formula's values as a graph: its tangents and gradients are made of the same operations.

So a gradient has a gradient, and a tangent has one. An edge is a linear map, by which a value
changes with one that it is made of: `push` takes a tangent along it, `pull` a gradient back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

Shape = Sequence[int]

_order = count()


class Edge(NamedTuple):
    """How a value depends on another one."""

    of: Any
    pull: Callable[[Any], Any]
    push: Callable[[Any], Any]


class Value:
    """An array in a graph.

    order : values are made of those before them.
    """

    __slots__ = ("array", "edges", "graph", "order")

    __array_ufunc__ = None  # arrays of NumPy leave operators to this class
    __hash__ = object.__hash__

    def __init__(self, graph: Graph, array: Any, *edges: Edge) -> None:
        self.graph, self.array, self.order = graph, array, next(_order)
        self.edges = [edge for edge in edges if isinstance(edge.of, Value)]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        return len(self.array.shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __add__(self, other: Any) -> Value:
        return self._made(self.array + raw(other), (self, _same), (other, _same))

    def __sub__(self, other: Any) -> Value:
        return self._made(self.array - raw(other), (self, _same), (other, _minus))

    def __rsub__(self, other: Any) -> Value:
        return self._made(other - self.array, (self, _minus))

    def __mul__(self, other: Any) -> Value:
        by_self, by_other = (lambda d: d * other), (lambda d: d * self)
        return self._made(self.array * raw(other), (self, by_self), (other, by_other))

    def __truediv__(self, other: Any) -> Value:
        def of_other(d: Any) -> Any:
            return -(d * (made / other))

        made = self._made(self.array / raw(other), (self, lambda d: d / other), (other, of_other))
        return made

    def __rtruediv__(self, other: Any) -> Value:
        made = self._made(other / self.array, (self, lambda d: -(d * (made / self))))
        return made

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Value:
        return self._made(-self.array, (self, _minus))

    def __getitem__(self, index: Any) -> Value:
        put = self.graph.put
        back = Edge(self, lambda d: put(d, index, self.shape), lambda t: t[index])
        return Value(self.graph, self.array[index], back)

    def reshape(self, shape: Any) -> Value:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        back = Edge(self, lambda d: d.reshape(self.shape), lambda t: t.reshape(shape))
        return Value(self.graph, self.array.reshape(shape), back)

    # Comparisons have no derivative.

    def __eq__(self, other: object) -> Any:
        return self.array == raw(other)

    def __lt__(self, other: Any) -> Any:
        return self.array < raw(other)

    def __gt__(self, other: Any) -> Any:
        return self.array > raw(other)

    def _made(self, array: Any, *parts: tuple[Any, Callable[[Any], Any]]) -> Value:
        return self.graph.elementwise(array, *parts)


def _same(d: Any) -> Any:
    return d


def _minus(d: Any) -> Any:
    return -d


def raw(value: Any) -> Any:
    """Return the array of a value, or what has none itself."""
    return value.array if isinstance(value, Value) else value


#: How functions of an array x change with it: what a tangent or a gradient d becomes, by x and by
#: the function's value y.
_CHANGES: Mapping[str, Callable[[Any, Any, Any, Graph], Any]] = {
    "exp": lambda d, x, y, g: d * y,
    "expm1": lambda d, x, y, g: d * g.exp(x),
    "log1p": lambda d, x, y, g: d / (x + 1.0),
    "tanh": lambda d, x, y, g: d * (1 - y * y),
    "sin": lambda d, x, y, g: d * g.cos(x),
    "cos": lambda d, x, y, g: -(d * g.sin(x)),
    "log": lambda d, x, y, g: d / x,
    "sqrt": lambda d, x, y, g: d / (y + y),
}


class Graph:
    """`formulas.Operations` over values, made of the same over their arrays."""

    def __init__(self, m: Any) -> None:
        self.m = m

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A function of an array that has a derivative, or one that gives a constant."""
        function = getattr(self.m, name)
        if name not in _CHANGES:
            return lambda *args: function(*map(raw, args))
        change = _CHANGES[name]

        def value(x: Any) -> Value:
            made = self.elementwise(function(raw(x)), (x, lambda d: change(d, x, made, self)))
            return made

        return value

    def elementwise(self, array: Any, *parts: tuple[Any, Callable[[Any], Any]]) -> Value:
        """A value made element by element, of others that may repeat; it changes by such maps."""

        def edge(of: Any, by: Callable[[Any], Any]) -> Edge:
            return Edge(of, lambda d: self.fitted(by(d), of.shape), by)

        return Value(self, array, *(edge(*part) for part in parts))

    def fitted(self, d: Any, shape: Shape) -> Any:
        """Return the sum over the axes along which an array of this shape was repeated."""
        if tuple(d.shape) == tuple(shape):
            return d
        more = len(d.shape) - len(shape)
        over = [i for i, n in enumerate(shape, more) if n == 1 and d.shape[i] != 1]
        return self.sum(d, (*range(more), *over)).reshape(shape)

    def expanded(self, x: Any, shape: Shape) -> Any:
        """Return an array, repeated to a shape."""
        if tuple(x.shape) == tuple(shape):
            return x
        array = self.m.expanded(raw(x), tuple(shape))
        return self.elementwise(array, (x, lambda t: self.expanded(t, shape)))

    def put(self, d: Any, index: Any, shape: Shape) -> Any:
        """Zeros of a shape, with an array at an index, or sums of its elements by numbers."""
        back = Edge(d, lambda e: e[index], lambda t: self.put(t, index, shape))
        return Value(self, self.m.put(raw(d), index, tuple(shape)), back)

    def concat(self, parts: Sequence[Any]) -> Any:
        """Arrays side by side, along the last axis."""
        array = self.m.concat([raw(part) for part in parts])

        def edge(part: Any, start: int) -> Edge:
            index = (..., slice(start, start + part.shape[-1]))
            return Edge(part, lambda d: d[index], lambda t: self.put(t, index, array.shape))

        starts = [sum(p.shape[-1] for p in parts[:i]) for i in range(len(parts))]
        return Value(self, array, *map(edge, parts, starts))

    def sum(self, x: Any, axes: tuple[int, ...]) -> Any:
        if not axes:
            return x
        if not isinstance(x, Value):
            return self.m.sum(x, axes)
        back = Edge(x, lambda d: self.expanded(d, x.shape), lambda t: self.sum(t, axes))
        return Value(self, self.m.sum(x.array, axes), back)

    def transpose(self, x: Any, order: tuple[int, ...]) -> Any:
        back = tuple(order.index(i) for i in range(len(order)))
        edge = Edge(x, lambda d: self.transpose(d, back), lambda t: self.transpose(t, order))
        return Value(self, self.m.transpose(raw(x), order), edge)

    def where(self, where: Any, a: Any, b: Any) -> Value:
        of_a, of_b = (lambda d: self.where(where, d, 0.0)), (lambda d: self.where(where, 0.0, d))
        return self.elementwise(self.m.where(where, raw(a), raw(b)), (a, of_a), (b, of_b))

    def sloped(self, slopes: Callable[..., Sequence[Any]], *arrays: Any) -> Value:
        found = slopes(*arrays)
        parts = ((x, lambda d, by=by: d * by) for x, by in zip(arrays, found, strict=True))
        return self.elementwise(sum(map(raw, found)), *parts)

    def call(self, op: Any, x: Any, parameters: Mapping[str, Any]) -> Value:
        made = Value(self, self.m.call(op, raw(x), parameters))
        saved = made if op.saves == op.results else x
        slope = _Slope(self, op, parameters)
        made.edges = self.elementwise(made.array, (x, lambda d: slope(d, saved))).edges
        return made

    def vjp(self, f: Callable[..., Any], arrays: Sequence[Any], incoming: Sequence[Any]) -> Any:
        values = [self.value(array) for array in arrays]
        return self.pull(f(*values), incoming, values)

    def value(self, array: Any) -> Value:
        return array if isinstance(array, Value) else Value(self, array)

    # --- derivatives ------------------------------------------------------------------------------

    def pull(self, made: Sequence[Any], incoming: Sequence[Any], by: Sequence[Value]) -> list[Any]:
        """The gradients by these values, where others are made of them; None that comes in is 0."""
        found: dict[int, Any] = {}

        def add(value: Value, d: Any) -> None:
            found[value.order] = found[value.order] + d if value.order in found else d

        for value, d in zip(made, incoming, strict=True):
            if isinstance(value, Value) and d is not None:
                add(value, d)
        for value, edges in reversed(_moving(made, by)):
            if value.order in found:
                d = found[value.order]
                for edge in edges:
                    add(edge.of, edge.pull(d))
        return [found[v.order] if v.order in found else self.zeros(v.shape, v) for v in by]

    def push(self, made: Sequence[Any], by: Sequence[Value], tangents: Sequence[Any]) -> list[Any]:
        """Return the tangents of others that are made of these values, by their tangents."""
        found: dict[int, Any] = {}
        for value, t in zip(by, tangents, strict=True):
            found[value.order] = found[value.order] + t if value.order in found else t
        for value, edges in _moving(made, by):
            if value.order not in found:
                first, *rest = (edge.push(found[edge.of.order]) for edge in edges)
                found[value.order] = self.expanded(sum(rest, first), value.shape)
        return [
            found[v.order] if isinstance(v, Value) and v.order in found else self.zeros(v.shape, v)
            for v in made
        ]


class _Slope:
    """dy y'(x) of an activation, by what it saves: linear in dy, and its own transpose."""

    def __init__(self, graph: Graph, op: Any, parameters: Mapping[str, Any]) -> None:
        self.graph, self.op, self.parameters = graph, op, parameters

    def __call__(self, d: Any, saved: Any) -> Value:
        at = raw(saved)

        def narrow(d: Any) -> Any:  # a parameter may be wider than the data
            return self.graph.m.cast(raw(d), at)

        def curve(e: Any) -> Any:
            return self.graph.m.curve(self.op, narrow(e), narrow(d), at, self.parameters)

        found = self.graph.m.slope(self.op, narrow(d), at, self.parameters)
        moves = None if self.op.piecewise_linear else saved
        return self.graph.elementwise(found, (d, lambda e: self(e, saved)), (moves, curve))


def _moving(made: Iterable[Any], by: Iterable[Value]) -> list[tuple[Value, list[Edge]]]:
    """List the values in between, in the order in which they are made, with their edges."""
    reached: dict[int, Value] = {}
    left = [value for value in made if isinstance(value, Value)]
    while left:
        value = left.pop()
        if value.order not in reached:
            reached[value.order] = value
            left += [edge.of for edge in value.edges]
    moving, found = {value.order for value in by}, []
    for order in sorted(reached):
        edges = [edge for edge in reached[order].edges if edge.of.order in moving]
        if edges and order not in moving:
            moving.add(order)
            found.append((reached[order], edges))
    return found
