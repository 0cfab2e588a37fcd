"""Axes along which a call does the same to each part: for `jax.vmap`, and for several devices.

Types of JAX name axes of devices, too: those over which a value varies inside `jax.shard_map`, and
those over which an array is parted. The results of a call have the types that `jnp` gives them.

No list has them. An op that names axes treats all others alike, and shapes tell the rest: where
arrays are longer along such an axis, every result is longer along one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from math import prod
from typing import Any

import jax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from ..ops.engine.weighting import places_of
from .calls import Buffer, map_buffers

Places = Sequence[int | None]  # of an axis in each array, None: it has none


def _outputs_along(call: Any, arrays: Places, *, doubled: bool = False) -> list[int | None] | None:
    """Find where an axis of the arrays lies in the outputs; None: the op takes no longer one.

    doubled : the axis is tried twice as long, else longer by one.
    """

    def longer(length: int) -> int:
        return 2 * length if doubled else length + 1

    shapes = [
        [longer(n) if i == axis else n for i, n in enumerate(array.shape)]
        for array, axis in zip(call.given, arrays, strict=True)
    ]
    try:
        others = call.of_shapes(shapes).outputs
    except (TypeError, ValueError):
        return None
    found: list[int | None] = []
    for output, other in zip(call.outputs, others, strict=True):
        pairs = list(zip(output.shape, other.shape, strict=True))
        changed = [i for i, (n, m) in enumerate(pairs) if n != m]
        if len(changed) > 1 or any(m != longer(n) for n, m in (pairs[i] for i in changed)):
            return None
        found.append(changed[0] if changed else None)
    return found


# --- types ----------------------------------------------------------------------------------------

typeof: Any = getattr(jax, "typeof", None) or jax.core.get_aval  # in JAX 0.5
# JAX 0.6 has the first of these, by JAX 0.7 axes may be explicit.
_get_mesh: Any = getattr(jax.sharding, "get_abstract_mesh", None)
_auto_axes: Any = getattr(jax.sharding, "auto_axes", None)


def _cast(array: Any, names: tuple[str, ...]) -> Any:
    """Let an array vary over these axes as well, which JAX transposes to a sum over them."""
    if not names:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, names, to="varying")
    return jax.lax.pvary(array, names)  # in JAX 0.6


def _varying(array: Any) -> frozenset[str]:
    """Return the axes over which a value varies inside `shard_map`; JAX 0.5 knows none."""
    of = typeof(array)
    manual = getattr(of, "manual_axis_type", None)  # before JAX 0.10 it is told by `vma`
    found: frozenset[str] = manual.varying if manual else getattr(of, "vma", frozenset())
    return found


def alike(arrays: Sequence[Any]) -> list[Any]:
    """Let each array vary over all axes over which one of them does, as `jnp` lets them."""
    each = [_varying(array) for array in arrays]
    every = frozenset[str]().union(*each)
    return [_cast(a, tuple(sorted(every - own))) for a, own in zip(arrays, each, strict=True)]


def typed(models: Iterable[Any], given: Sequence[Any]) -> list[Any]:
    """Describe results of these shapes and dtypes that are made of values of alike types."""
    mesh = _mesh_of(given)
    sharding = None if mesh is None else NamedSharding(mesh, PartitionSpec())
    return [
        given[0].update(shape=one.shape, dtype=one.dtype, weak_type=False, sharding=sharding)
        for one in models
    ]


def _mesh_of(types: Sequence[Any]) -> Any:
    """Return the devices of a program, or else of its values; None where types name none."""
    if _get_mesh is None:
        return None
    meshes = (_get_mesh(), *(one.sharding.mesh for one in types))
    return next((mesh for mesh in meshes if not mesh.empty), None)


def _axes_by_kind(mesh: Any) -> dict[str, list[str]]:
    """Sort the axes of devices by the names of their kinds, which they have since JAX 0.7."""
    found: dict[str, list[str]] = {}
    if mesh is not None and _auto_axes is not None:
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
            found.setdefault(kind.name, []).append(name)
    return found


def bound(bind: Callable[..., Any], arrays: Sequence[Any], *, call: Any) -> Any:
    """Make a call whose results are parted over explicit axes as results of `jnp` are.

    Inside of it the partitioner parts, and where it gathers an array the result is parted again.
    """
    types = [typeof(array) for array in arrays]
    mesh = _mesh_of(types)
    if mesh is not None:
        _check_whole(call, types)
    if not (explicit := _axes_by_kind(mesh).get("Explicit")):
        return bind(*arrays, call=call)
    specs = _specs(call, [one.sharding.spec for one in types])
    shardings = [NamedSharding(mesh, spec) for spec in specs]
    inside = _auto_axes(partial(bind, call=call), axes=(*explicit,), out_sharding=shardings)
    return inside(*arrays)


def _check_whole(call: Any, types: Sequence[Any]) -> None:
    """Refuse what JAX has yet to add up over devices, but for gradients, which are linear in it."""
    is_linear = call.entry not in ("call", "forward", "quantized")
    for one in types:
        inside, spec = getattr(one, "manual_axis_type", None), one.sharding.spec
        kinds = [getattr(spec, "unreduced", None), getattr(spec, "reduced", None)]
        if any(kinds) or (inside and inside.unreduced and not is_linear):
            raise TypeError(
                f"fastact.jax.{call.op.name}: arrays must be neither unreduced nor, over explicit "
                f"axes, reduced, got {one}; use jax.lax.psum or jax.sharding.reshard"
            )


def _specs(call: Any, given: Sequence[PartitionSpec]) -> list[PartitionSpec]:
    """Tell how the results are parted over explicit axes, where the arrays are parted so."""
    shapes = [array.shape for array in call.given]
    found: list[list[Any]] = [[None for _ in output.shape] for output in call.outputs]
    left = {(k, i) for k, spec in enumerate(given) for i, name in enumerate(spec) if name}
    for axis in range(max(map(len, shapes))):
        for arrays in _alignments(call, axis, of_any_length=True):
            parted = left.intersection(enumerate(arrays))
            outputs = _outputs_along(call, arrays, doubled=True) if parted else None
            if outputs is None:
                continue
            if len(names := {given[k][i] for k, i in parted}) > 1:
                raise _refused(call, given, parted, "which is not the same")
            for spec, i in zip(found, outputs, strict=True):
                if i is not None:
                    (spec[i],) = names
            left -= parted
            break
    if left:
        raise _refused(call, given, left, "which says nothing of the results")
    for spec in found:
        if len(used := [n for n in spec if n]) > len({*used}):
            every = {(k, i) for k, one in enumerate(given) for i, name in enumerate(one) if name}
            raise _refused(call, given, every, f"which would part a result by {(*spec,)}")
    return [PartitionSpec(*spec) for spec in found]


def _refused(call: Any, given: Sequence[PartitionSpec], parted: Any, why: str) -> TypeError:
    names = _arguments(call)
    said = ", ".join(f"{names[k]} along axis {i} over {given[k][i]!r}" for k, i in sorted(parted))
    return TypeError(
        f"fastact.jax.{call.op.name}: explicit axes part {said}, {why}; use jax.sharding.reshard"
    )


def _alignments(call: Any, axis: int, *, of_any_length: bool = False) -> Iterator[list[int | None]]:
    """Yield where an axis of the longest shape may lie in each, by broadcasting or as channels."""
    shapes, along = [array.shape for array in call.given], _places(call)
    whole = max(shapes, key=len)

    def there(array: int, i: int) -> int | None:
        return i if 0 <= i < len(shapes[array]) and shapes[array][i] == whole[axis] else None

    from_the_end = [axis - len(whole) + len(shape) for shape in shapes]
    from_the_start = [axis for _ in shapes]
    of_channels = [0 if len(shape) == 1 else axis for shape in shapes]
    for places in (from_the_end, from_the_start, of_channels):
        yield [there(k, along[k][axis] if k in along else i) for k, i in enumerate(places)]
    if of_any_length:
        pairs = zip(from_the_end, shapes, strict=True)
        yield [i if i >= 0 and shape[i] > 1 else None for i, shape in pairs]


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
            i is not None and (*made.shape[:i], *made.shape[i + 1 :]) == one.shape
            for made, i, one in zip(stacked.outputs, outputs, call.outputs, strict=True)
        ):
            return bind(*tried, call=stacked), outputs
    return None


def _place(call: Any, places: Places) -> int:
    """Find the batch's axis in the largest array that has one."""
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
    named = dict(call.named)
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
    """Return a call in a program, whose arrays may lie in parts on several devices.

    XLA parts arrays along free axes alone, and gathers them along all others; inside `shard_map` it
    gathers them along all axes that are left to it.
    """
    is_inside = "Manual" in _axes_by_kind(_mesh_of([typeof(array) for array in arrays]))
    if _told_devices is None or call.op.traits.counts_elements or is_inside:
        return call.ffi(*arrays)
    axes = list(_free(call))
    if not axes:
        return call.ffi(*arrays)
    each = list(zip(*axes, strict=True))
    of_arrays, of_outputs = each[: len(arrays)], each[len(arrays) :]

    def partition(mesh: Any, given: Any, made: Any) -> Any:
        names = _names(mesh, axes, [*given, *made])

        def shardings(shapes: Any, places: Any) -> tuple[NamedSharding, ...]:
            return tuple(
                NamedSharding(mesh, PartitionSpec(*_along(names, each, len(shape.shape))))
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
            factors = _along(free, each, len(shape.shape))
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


def _along(names: Sequence[Any], places: Places, rank: int) -> list[Any]:
    """For each axis of an array the name of the free axis that it is, or None."""
    return [names[places.index(i)] if i in places else None for i in range(rank)]


def _names(mesh: Any, axes: Sequence[Places], arrays: Sequence[Any]) -> list[Any]:
    """For each free axis the axes of the mesh over which some array has it, if all parts fit."""
    found: list[Any] = []
    for axis in axes:
        chosen = None
        for array, i in zip(arrays, axis, strict=True):
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


def _free(call: Any) -> Iterator[Places]:
    """The axes along which a call's arrays may be parted: their places there and in the outputs."""
    if call.entry == "quantized" and not call.op.stacks:
        return  # no statistics tell which ones are reduced
    shapes, made = [array.shape for array in call.given], _made(call)
    # If each axis has a meaning of its own, statistics tell which ones are reduced.
    tells = call.op.stacks or call.entry != "call"
    forward = call if tells else call.like(call.given, entry="forward")
    whole = max(shapes, key=len)
    for axis, length in enumerate(whole):
        if length < 2 or ("axis" in call.defaults and axis in call.axes):
            continue
        for arrays in _alignments(call, axis):
            outputs = _outputs_along(forward, arrays)
            if outputs and None not in outputs and all(arrays[i] is not None for i in made):
                yield (*arrays, *outputs[: len(call.outputs)])
                break


def _arguments(call: Any) -> dict[int, str]:
    """Name the argument in which each array of a call is given."""
    found = dict[int, str]()
    for name, value in call.named:
        numbers: list[int] = []
        map_buffers(value, numbers.append)
        found |= dict.fromkeys(numbers, name)
    return found


def _made(call: Any) -> set[int]:
    """Tell which arrays are gradients or made by `forward`: these have all of a free axis."""
    of_call = call.op.entry_points["call"]
    known = (*of_call.arrays, *of_call.defaults)
    return {number for number, name in _arguments(call).items() if name not in known}
