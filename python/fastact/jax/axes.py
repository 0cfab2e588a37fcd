"""Axes along which a call does the same to each part: for `jax.vmap`, and for several devices.

No list has them. An op that names axes treats all others alike, and shapes tell the rest: where
arrays are longer along such an axis, every result is longer along one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

import jax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..ops.engine.weighting import places_of
from .calls import Buffer, map_buffers

Places = Sequence[int | None]  # of an axis in each array, None: it has none


class Axis(NamedTuple):
    """Where an axis lies in each array of a call, and in each of its outputs."""

    arrays: Places
    outputs: Places


def _outputs_along(call: Any, arrays: Places) -> list[int] | None:
    """Where an axis of the arrays lies in the outputs; None where one of these lacks it."""
    longer = [
        [n + (i == axis) for i, n in enumerate(array.shape)]
        for array, axis in zip(call.given, arrays, strict=True)
    ]
    try:
        others = call.of_shapes(longer).outputs
    except (TypeError, ValueError):
        return None
    found = []
    for output, other in zip(call.outputs, others, strict=True):
        more = [m - n for n, m in zip(output.shape, other.shape, strict=True)]
        if [n for n in more if n] != [1]:
            return None
        found.append(more.index(1))
    return found


# --- batches --------------------------------------------------------------------------------------


def batched(
    bind: Callable[..., Any], arrays: Sequence[Any], axes: Places, *, call: Any
) -> tuple[Any, Places]:
    """A batch of a call: in one where that gives each example its bits, else one after another."""
    batches = [i for i in axes if i is not None]
    size = next(a.shape[i] for a, i in zip(arrays, axes, strict=True) if i is not None)
    if (made := _in_one_call(bind, call, arrays, axes, size)) is not None:
        return made
    for place in dict.fromkeys((max(batches, key=batches.count), 0)):
        moved = [
            a if i is None else jax.numpy.moveaxis(a, i, min(place, a.ndim - 1))
            for a, i in zip(arrays, axes, strict=True)
        ]
        places = [
            None if i is None else min(place, a.ndim - 1) for a, i in zip(moved, axes, strict=True)
        ]
        if (made := _in_one_call(bind, call, moved, places, size)) is not None:
            return made

    def one(batch: Sequence[Any]) -> Any:
        each = iter(batch)
        pairs = zip(moved, axes, strict=True)
        return bind(*(a if i is None else next(each) for a, i in pairs), call=call)

    # One after another: now the axis is in front.
    made = jax.lax.map(one, [a for a, i in zip(moved, axes, strict=True) if i is not None])
    return made, [0] * len(made)


def _in_one_call(
    bind: Callable[..., Any], call: Any, arrays: Sequence[Any], axes: Places, size: int
) -> tuple[Any, Places] | None:
    """The batch by one call, with the axes where they are; None where there is no such call."""
    for tried, places in _stacks(call, arrays, axes, size):
        stacked = _stacked(call, tried, places)
        if stacked is None or not _keeps_places(call, stacked, places):
            continue
        outputs = _outputs_along(stacked, places)
        if outputs is not None and all(
            (*made.shape[:i], *made.shape[i + 1 :]) == one.shape
            for made, i, one in zip(stacked.outputs, outputs, call.outputs, strict=True)
        ):
            return bind(*tried, call=stacked), outputs
    return None


def _place(call: Any, places: Places) -> int:
    """Where the axis of the batch lies in the largest array that has one."""
    pairs = zip(call.given, places, strict=True)
    return -max((len(a.shape), -i) for a, i in pairs if i is not None)[1]


def _stacks(
    call: Any, arrays: Sequence[Any], places: Places, size: int
) -> Iterator[tuple[Sequence[Any], Places]]:
    """The arrays of one call for a batch: as they are, or others brought to the stack's axes.

    The op itself tells whether arrays that are not batched broadcast or have to be repeated.
    """
    at, rank = _place(call, places), max(len(a.shape) for a in call.given)
    pairs = zip(call.given, places, strict=True)
    alone = [i is None and len(a.shape) == rank for a, i in pairs]
    yield arrays, places
    if not any(alone):
        return
    for length in (1, size):
        yield (
            [
                jax.numpy.broadcast_to(
                    jax.numpy.expand_dims(a, at), (*a.shape[:at], length, *a.shape[at:])
                )
                if is_alone
                else a
                for a, is_alone in zip(arrays, alone, strict=True)
            ],
            [at if one and length == size else i for one, i in zip(alone, places, strict=True)],
        )


def _stacked(call: Any, arrays: Sequence[Any], places: Places) -> Any:
    """The call of a stack, whose own axes have other numbers; None where the op refuses it."""
    if not call.op.stacks:
        return None
    at, options = _place(call, places), dict(call.template.kwargs)
    if "axis" in call.defaults:
        options["axis"] = tuple(i + (i >= at) for i in call.axes)
        if isinstance(call.axis, int) and len(options["axis"]) == 1:
            (options["axis"],) = options["axis"]
    try:
        return call.of_plain(arrays, options=options)
    except (TypeError, ValueError):
        return None


def _places(call: Any) -> dict[int, tuple[int, ...]]:
    """For each axis of x the one of an array along the axes that a call names, or -1, by numbers
    of such arrays: their shapes alone do not tell."""
    named = dict(_named(call))
    numbers = [named[n].number for n in ("weights", "by") if isinstance(named.get(n), Buffer)]
    if not numbers or not isinstance(named.get("x"), Buffer):
        return {}
    shapes = [tuple(array.shape) for array in call.given]
    x = shapes[named["x"].number]
    return {i: places_of(call.op.name, call.axis, shapes[i], x) for i in numbers}


def _keeps_places(call: Any, stacked: Any, places: Places) -> bool:
    """Whether such arrays lie in a stack as they do in a call, but for the axis of the batch."""
    at, before, now = _place(call, places), _places(call), _places(stacked)
    for i, of_stack in now.items():
        own, rest = of_stack[at], (*of_stack[:at], *of_stack[at + 1 :])
        is_longer = max(of_stack) > max(before[i])
        shift = [axis + (is_longer and axis >= own >= 0) for axis in before[i]]
        if rest != tuple(shift) or is_longer != (own >= 0) or places[i] not in (None, own):
            return False
    return True


# --- devices --------------------------------------------------------------------------------------


# For this JAX has no public name.
_told_devices: Any = getattr(
    import_module("jax._src.dispatch"), "prim_requires_devices_during_lowering", None
)


def tell_devices(primitive: Any) -> None:
    """Let JAX say which devices a program is for where it lowers calls of the primitive."""
    if _told_devices is not None:
        _told_devices.add(primitive)


def spread(*arrays: Any, call: Any) -> Any:
    """A call in a program, whose arrays may lie in parts on several devices.

    XLA parts arrays along free axes alone, and gathers them along all others.
    """
    axes = [] if _told_devices is None or call.op.counts_elements else list(_free(call))
    if not axes:
        return call.ffi(*arrays)
    of_arrays = list(zip(*(axis.arrays for axis in axes), strict=True))
    of_outputs = list(zip(*(axis.outputs for axis in axes), strict=True))

    def partition(mesh: Any, given: Any, made: Any) -> Any:
        names = _names(mesh, axes, [*given, *made])

        def shardings(shapes: Any, places: Any) -> tuple[NamedSharding, ...]:
            return tuple(
                NamedSharding(mesh, PartitionSpec(*_along(names, each, len(shape.shape), None)))
                for shape, each in zip(shapes, places, strict=True)
            )

        def part(*parts: Any) -> Any:
            return call.of_plain(parts).ffi(*parts)

        return mesh, part, shardings(made, of_outputs), shardings(given, of_arrays)

    free = [f"free{i}" for i in range(len(axes))]
    whole: list[str] = []

    def mappings(shapes: Any, places: Any) -> tuple[ArrayMapping, ...]:
        found = []
        for shape, each in zip(shapes, places, strict=True):
            factors = _along(free, each, len(shape.shape), None)
            for i, factor in enumerate(factors):
                if factor is None:
                    factors[i] = f"whole{len(whole)}"
                    whole.append(factors[i])
            found.append(ArrayMapping(*factors))
        return tuple(found)

    def rule(*_: Any) -> SdyShardingRule:
        operands, results = mappings(arrays, of_arrays), mappings(call.outputs, of_outputs)
        return SdyShardingRule(operands, results, need_replication_factors=tuple(whole))

    parted = custom_partitioning(lambda *arrays: call.ffi(*arrays))
    parted.def_partition(
        partition,
        infer_sharding_from_operands=lambda *described: partition(*described)[2],
        sharding_rule=rule,  # which JAX 0.5 does not ask for
    )
    return parted(*arrays)


def _along(names: Sequence[Any], places: Places, rank: int, other: Any) -> list[Any]:
    """For each axis of an array the name of the free axis that it is."""
    return [names[places.index(i)] if i in places else other for i in range(rank)]


def _names(mesh: Any, axes: Sequence[Axis], arrays: Sequence[Any]) -> list[Any]:
    """For each free axis the axes of the mesh over which some array has it, if all parts fit."""
    found: list[Any] = []
    for axis in axes:
        chosen = None
        for array, i in zip(arrays, (*axis.arrays, *axis.outputs), strict=True):
            sharding = getattr(array, "sharding", None)  # an output has none in JAX 0.5
            spec = getattr(sharding, "spec", ())
            if chosen or i is None or i >= len(spec) or spec[i] is None:
                continue
            names = spec[i] if isinstance(spec[i], tuple) else (spec[i],)
            is_used = any(name in (other or ()) for other in found for name in names)
            if not is_used and array.shape[i] % prod(mesh.shape[name] for name in names) == 0:
                chosen = names
        found.append(chosen)
    return found


def _free(call: Any) -> Iterator[Axis]:
    """The axes along which a call's arrays may be parted."""
    shapes, made = [array.shape for array in call.given], _made(call)
    whole, along = max(shapes, key=len), _places(call)
    # Where axes have a meaning each, statistics tell which ones are reduced.
    tells = call.op.stacks or call.entry != "call"
    forward = call if tells else call.like(call.given, entry="forward")
    for axis, length in enumerate(whole):
        if length < 2 or ("axis" in call.defaults and axis in call.axes):
            continue
        for aligned_at_the_end in (True, False):
            first = [(len(whole) - len(shape)) * aligned_at_the_end for shape in shapes]
            arrays = [
                i if 0 <= i < len(shape) and shape[i] == length else None
                for i, shape in zip((axis - n for n in first), shapes, strict=True)
            ]
            for i, its in along.items():
                is_there = its[axis] >= 0 and shapes[i][its[axis]] == length
                arrays[i] = its[axis] if is_there else None
            outputs = _outputs_along(forward, arrays)
            if outputs is not None and all(arrays[i] is not None for i in made):
                yield Axis(arrays, outputs[: len(call.outputs)])
                break


def _named(call: Any) -> Iterator[tuple[str, Any]]:
    """The arguments of a call by their names."""
    arrays = call.op.entry_points[call.entry].arrays
    yield from zip(arrays, call.template.args, strict=False)
    yield from call.template.kwargs.items()


def _made(call: Any) -> set[int]:
    """Which arrays are gradients or made by `forward`: of a free axis they have all."""
    of_call = call.op.entry_points["call"]
    found: set[int] = set()
    for name, value in _named(call):
        if name not in (*of_call.arrays, *of_call.defaults):
            map_buffers(value, found.add)
    return found
