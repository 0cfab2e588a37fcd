"""Gradients of gradients, tangents of results, and tangents of gradients: by an op's formula.

`named` has the arguments of a call, or what `forward` saved, and options. A gradient of gradients
is the gradient of what forward mode makes of `ddx`: one pass in each direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..ops.engine.spec import spec_of
from . import formulas, gates, rows
from .graph import Graph, Value, raw
from .operations import Operations as Operations

Named = Mapping[str, Any]
Found = tuple[list[Any], dict[str, Any]]


def second(
    op: Any, ddx: Named, incoming: Sequence[Any], named: Named, m: Any, *, wants_dy: bool = True
) -> Found:
    """Return the gradients of `backward`: for each of `incoming`, and by the names of saved arrays.

    ddx : what comes back to gradients, by the names of their arguments. incoming : what came back
    to the results, None for 0. wants_dy : False: the gradient of the first of them may be anything.
    """
    closed = rows.second(op, ddx, incoming, named, m, wants_dy)
    if closed is not None:
        return closed
    g = Graph(m)
    dys, saved = _values(g, incoming), _saved(op, named, g)
    if formulas.by_value(op, named):
        found = formulas.gradients(op, dys, {**named, **saved}, g)
        by = [d for d in dys if d is not None]
        pulled = g.pull([found[n] for n in ddx], [*ddx.values()], [*by, *saved.values()])
        of_dy = iter(pulled)
        return (
            [None if d is None else raw(next(of_dy)) for d in dys],
            {n: raw(d) for n, d in zip(saved, of_dy, strict=True)},
        )
    arguments = formulas.arguments(op, incoming, {**named, **saved}, g)
    stands = [formulas.standing(op, n, arguments) or n for n in ddx]
    by = [g.value(arguments[name]) for name in stands]
    made = formulas.results(op, {**arguments, **dict(zip(stands, by, strict=True))}, g)
    moved = g.push(made, by, [*ddx.values()])
    pulled = g.pull(moved, incoming, [*saved.values()])
    return [*map(raw, moved)], {n: raw(d) for n, d in zip(saved, pulled, strict=True)}


def tangents(op: Any, given: Named, named: Named, m: Any, *, keeps: bool = False) -> list[Any]:
    """The tangents of the results, by the arguments' tangents; named: also what `forward` saved.

    keeps : behind them those of the gates as they are saved.
    """
    g = Graph(m)
    values = {n: g.value(named[n]) for n in given}
    made = formulas.results(op, {**named, **values}, g)
    if keeps:
        made = (*made, gates.kept(op, {**named, **values}, g))
    return [*map(raw, g.push(made, [*values.values()], [*given.values()]))]


def changes(
    op: Any, names: Sequence[str], incoming: Sequence[Any], named: Named, moved: Found, m: Any
) -> list[Any]:
    """Return the tangents of gradients, as `incoming` and saved arrays change, None for 0."""
    g = Graph(m)
    dys, saved = _values(g, incoming), _saved(op, named, g)
    found = formulas.gradients(op, dys, {**named, **saved}, g)
    pairs = [*zip(dys, moved[0], strict=True), *((v, moved[1].get(n)) for n, v in saved.items())]
    by, given = zip(*((v, t) for v, t in pairs if t is not None), strict=True)
    return [*map(raw, g.push([found[n] for n in names], by, given))]


def _values(g: Graph, arrays: Sequence[Any]) -> list[Value | None]:
    return [None if array is None else g.value(array) for array in arrays]


def _saved(op: Any, named: Named, g: Graph) -> dict[str, Value]:
    """Return the saved arrays that have a gradient."""
    composed = (n for n in spec_of(op).composed if "float" in str(getattr(named[n], "dtype", "")))
    names = (*(n for n in op.moving if hasattr(named.get(n), "shape")), *composed)
    return {n: g.value(named[n]) for n in names}
