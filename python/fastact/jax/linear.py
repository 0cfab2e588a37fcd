"""Maps that are linear in some of their arrays, each with its transpose: tangents and gradients.

Forward mode is the one map of a pair, reverse mode the other: where JAX transposes a call of the
first, which only stands in a program of tangents, it computes the second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from . import axes

Mask = Sequence[bool]


class Map(NamedTuple):
    """How a map is computed, and how it changes with the arrays that it is not linear in.

    run : takes the arrays that it is linear in, None where one is 0; the others; and for each
        result whether it is wanted. It gives a result for each, None where that is not wanted.
    moved : takes the same and, behind the others, how each of them changes, or None.
    """

    run: Callable[..., Any]
    moved: Callable[..., Any]


@dataclass(frozen=True)
class Pair:
    """A map and its transpose, and descriptions of what goes in and what comes out."""

    forth: Map
    back: Map
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    def __call__(self, given: Sequence[Any], others: Sequence[Any], wanted: Mask) -> list[Any]:
        """Return the results of the map, at least one of whose arrays is not None."""
        arrays = [value for value in given if value is not None]
        is_given = tuple(value is not None for value in given)
        found = _bind(*arrays, *others, pair=self, given=is_given, wanted=tuple(wanted))
        return _spread(found, wanted)

    @property
    def transposed(self) -> Pair:
        return Pair(self.back, self.forth, self.outputs, self.inputs)

    def batched(self, size: int, place: int, places: Sequence[int | None]) -> Pair:
        """Map the pair over a batch: its axis is at `place`, and at `places` in other arrays."""

        def each(function: Callable[..., Any]) -> Callable[..., Any]:
            def batch(given: Any, *others: Any) -> Any:
                *rest, wanted = others  # behind the others may be how they change
                along: Any = (place, *[[*places] for _ in rest])
                call: Any = jax.vmap(lambda *arrays: list(function(*arrays, wanted)), along, place)
                return call([*given], *map(list, rest))

            return batch

        def longer(shapes: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                jax.ShapeDtypeStruct((*s.shape[:place], size, *s.shape[place:]), s.dtype)
                for s in shapes
            )

        forth, back = (Map(*map(each, one)) for one in (self.forth, self.back))
        return Pair(forth, back, longer(self.inputs), longer(self.outputs))


def by_formula(formula: Callable[..., Any]) -> Callable[..., Any]:
    """How a map changes that JAX itself differentiates."""

    def moved(given: Any, others: Any, changes: Any, wanted: Mask) -> Any:
        places = [i for i, change in enumerate(changes) if change is not None]

        def of_moving(*values: Any) -> Any:
            every = dict(enumerate(others)) | dict(zip(places, values, strict=True))
            return formula(given, [*every.values()], wanted)

        primals, tangents = (tuple(a[i] for i in places) for a in (others, changes))
        return jax.jvp(of_moving, primals, tangents)[1]

    return moved


def _spread(values: Iterable[Any], mask: Mask) -> list[Any]:
    """Return the values at the places that the mask has, None at all others."""
    each = iter(values)
    return [next(each) if is_there else None for is_there in mask]


def _there(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def is_zero(tangent: Any) -> bool:
    """Tell whether JAX knows that a tangent is 0, or that there is none."""
    return isinstance(tangent, ad.Zero)


def zero(value: Any) -> Any:
    """Return the tangent of a value that does not change, or has none."""
    return ad.Zero(axes.typeof(value).to_tangent_aval())


def _unless_zero(tangents: Iterable[Any]) -> list[Any]:
    return [None if is_zero(one) else one for one in tangents]


def _parted(arrays: Sequence[Any], given: Mask) -> tuple[list[Any], Sequence[Any]]:
    count = sum(given)
    return _spread(arrays[:count], given), arrays[count:]


def _run(*arrays: Any, pair: Pair, given: Mask, wanted: Mask) -> list[Any]:
    return _there(pair.forth.run(*_parted(arrays, given), wanted))


def _outputs(*arrays: Any, pair: Pair, given: Mask, wanted: Mask) -> list[Any]:
    each = zip(pair.outputs, wanted, strict=True)
    return axes.typed([one for one, wants in each if wants], arrays)


def _tangents(primals: Any, tangents: Any, *, pair: Pair, given: Mask, wanted: Mask) -> Any:
    results = _bind(*primals, pair=pair, given=given, wanted=wanted)
    directions, changes = _parted(_unless_zero(tangents), given)
    arrays, others = _parted(primals, given)
    parts = []
    if _there(directions):
        parts.append(_there(pair(directions, others, wanted)))
    if _there(changes):
        parts.append(_there(pair.forth.moved(arrays, others, changes, wanted)))
    pairs = zip(*parts, strict=True)
    return results, parts[0] if len(parts) < 2 else [one + other for one, other in pairs]


def _transposed(gradients: Any, *arrays: Any, pair: Pair, given: Mask, wanted: Mask) -> Any:
    of_arrays, others = _parted(arrays, given)
    asked = [ad.is_undefined_primal(one) for one in of_arrays]
    incoming = _spread(_unless_zero(gradients), wanted)
    found = [None for _ in asked]
    if _there(incoming):
        found = pair.transposed(incoming, others, asked)
    of_given = [d for d, is_given in zip(found, given, strict=True) if is_given]
    return [*of_given, *[None] * len(others)]


def _batched(
    arrays: Any, places: Any, *, pair: Pair, given: Mask, wanted: Mask
) -> tuple[Any, list[int]]:
    """The batch, with the axis where the first array has it, if every one has an axis there."""
    count = sum(given)
    size = next(a.shape[i] for a, i in zip(arrays, places, strict=True) if i is not None)
    rank = min(len(a.shape) for a in (*pair.inputs, *pair.outputs))
    place = min(rank, next((i for i in places[:count] if i is not None), 0))
    moved = list(_moved(arrays[:count], places, place, size))
    batch = pair.batched(size, place, places[count:])
    made = _bind(*moved, *arrays[count:], pair=batch, given=given, wanted=wanted)
    return made, [place] * len(made)


def _moved(arrays: Any, places: Any, place: int, size: int) -> Iterator[Any]:
    """Each array with the axis of the batch at that place; one without it is repeated."""
    for array, i in zip(arrays, places, strict=False):
        if i is None:
            shape = (*array.shape[:place], size, *array.shape[place:])
            yield jax.numpy.broadcast_to(jax.numpy.expand_dims(array, place), shape)
        else:
            yield jax.numpy.moveaxis(array, i, place)


def _bind(*arrays: Any, **parameters: Any) -> list[Any]:
    found: list[Any] = _linear.bind(*axes.alike(arrays), **parameters)
    return found


_linear: Any = Primitive("fastact_linear")
_linear.multiple_results = True
_linear.def_impl(_run)
_linear.def_abstract_eval(_outputs)
ad.primitive_jvps[_linear] = _tangents
ad.primitive_transposes[_linear] = _transposed
batching.primitive_batchers[_linear] = _batched
mlir.register_lowering(_linear, mlir.lower_fun(_run, multiple_results=True))
axes.tell_devices(_linear)
