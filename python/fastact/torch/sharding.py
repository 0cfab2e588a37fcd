"""How the operators compute tensors that lie in parts on several devices, as torch's DTensor.

No list has the strategies. An op is asked by shapes alone: where its arrays are one longer along an
axis, a result that is longer along one of its own is computed part by part, and a gradient that is
not is the sum over all parts. Where what `forward` saves of a row is not longer, or no array tells
and the op's `axis` names it, elements along the axis are computed together: arrays are gathered.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from math import prod
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from ..interop import foreign
from ..interop.shapes import Shape
from ..ops.engine import axes

Lengths = tuple[int, ...]
Shapes = Mapping[str, Lengths]


@cache
def register(every: tuple[Any, ...]) -> None:
    """Tell DTensor the strategies of all these operators.

    `torch.distributed.tensor.experimental.register_sharding` takes no operator that gives a list.
    """
    propagator = DTensor._op_dispatcher.sharding_propagator
    info = RuntimeSchemaInfo(0, needs_pytree=True)
    for operators in every:
        for entry, operator in operators.entries.items():
            propagator.register_op_strategy(operator, partial(_strategy, operators, entry), info)


def _strategy(operators: Any, entry: str, schema: Any) -> OpStrategy:
    """List the placements that an operator can compute, along each dimension of the mesh."""
    given = schema.args_schema
    arrays = {i: value for i, value in enumerate(given) if isinstance(value, OpStrategy)}
    specs: dict[int, Any] = {i: v.strategies[0].output_spec for i, v in arrays.items()}
    values = [
        torch.empty(specs[i].shape, dtype=specs[i].tensor_meta.dtype, device="meta")
        if i in specs
        else value
        for i, value in enumerate(given)
    ]
    found = operators.runs[entry](False, *values)
    count = 1 if isinstance(found, torch.Tensor) else len(found)
    rules: list[Any] = [[Replicate()] * (count + len(specs))]
    parts = entry in _ENTRIES and not operators.spec.op.traits.counts_elements
    if parts and all(type(n) is int for spec in specs.values() for n in spec.shape):
        rules += _ENTRIES[entry](operators, values).rules(count)
    mesh = schema.get_mesh_from_args()
    made: Any = expand_to_full_mesh_op_strategy(mesh, schema, rules, input_index=count)
    if not isinstance(found, torch.Tensor) and count == 1:
        for each in made.strategies:
            each.output_specs = (each.output_specs,)
    if operators.written and entry in ("", "_forward"):
        _keep_written(operators, made, specs)
    return made  # type: ignore[no-any-return]


def _keep_written(operators: Any, made: Any, specs: Mapping[int, Any]) -> None:
    """Leave placements by which an array that is written is the caller's own, and no other one."""
    takes = [*operators.takes]
    written = [(n, at) for n, at in enumerate(specs) if takes[at] in operators.written]
    made.strategies = [
        each
        for each in made.strategies
        if all(each.input_specs[n].placements == specs[at].placements for n, at in written)
    ]
    if not made.strategies:
        names = " and ".join(operators.written)
        placed = " and ".join(str(specs[at].placements) for _, at in written)
        raise ValueError(
            f"{operators.spec.where}: {names} are written, and must be replicated, or lie in parts "
            f"along one axis, got {placed}"
        )


class _Call:
    """A call of an operator by its arrays' shapes.

    arrays : the shapes by name, in the operator's order.
    made : those of them that `forward` makes, or that come back: of part of a row there is none.
    sums : results are sums of terms, of which each is of one element.
    adds_up : outputs that lack an axis of the arrays are the sums of what the parts give.
    tells : whether arrays tell which elements are computed together; else `axis` says so.
    """

    gives_gradients = False

    def __init__(self, operators: Any, values: Sequence[Any]) -> None:
        self.operators, self.op = operators, operators.spec.op
        names = self.names()  # torch leaves out the last ones that have their defaults
        self.values = {n: operators.defaults.get(n) for n in names}
        self.values.update(zip(names, values, strict=False))
        tensors = {n: v for n, v in self.values.items() if isinstance(v, torch.Tensor)}
        self.arrays: dict[str, Lengths] = {n: tuple(v.shape) for n, v in tensors.items()}
        self.dtypes = {n: foreign.dtype_name(v) for n, v in tensors.items()}
        kind = self.op.term if hasattr(self.op, "term") else getattr(self.op, "pair", None)
        self.sums = kind is not None and self.values.get("initial") is None
        self.adds_up = self.sums or self.gives_gradients
        self.is_given = bool(self.op.written) and not self.values.get("training")
        takes = {*operators.takes, *self.op.results}
        self.outputs = self.outputs_of(self.arrays)
        kept = [n for n in (*self.arrays, *self.outputs) if n in self.op.saves and n not in takes]
        self.tells = self.sums or self.op.traits.axis_of_bias or bool(kept)
        self.made = set() if self.sums else {*self.made_before(), *([] if self.is_given else kept)}

    def names(self) -> list[str]:
        return [*self.operators.takes]

    def made_before(self) -> Sequence[str]:
        return ()

    def outputs_of(self, arrays: Shapes) -> dict[str, Lengths]:
        """Return the outputs' shapes, by name; an error where the op refuses the arrays."""
        named = self.operators.named([*self._with(arrays).values()])
        self.operators.refuse(named)
        results, kept = self.op.models(named)
        first = arrays[self.operators.spec.arrays[0]]
        models = {**dict(zip(self.op.results, results, strict=True)), **kept}
        return {n: first if model.shape is None else model.shape for n, model in models.items()}

    def _with(self, arrays: Shapes) -> dict[str, Any]:
        """Return the arguments with arrays without values, of these shapes."""
        short = {"bfloat16": "float16"}  # for which NumPy has no name
        return {
            **self.values,
            **{
                n: Shape(shape, short.get(self.dtypes[n], self.dtypes[n]), writable=True)
                for n, shape in arrays.items()
            },
        }

    def rules(self, count: int) -> Iterator[list[Any]]:
        """Placements of the first outputs and of all arrays, by which parts are computed alike."""
        whole = max(self.arrays.values(), key=lambda shape: (len(shape), prod(shape)))
        if any(self._is_named_by_lengths(n, len(whole)) for n in self.arrays):
            return
        together: Lengths = ()
        if not self.tells and "axis" in self.values:
            together = axes.axes(self.operators.spec.where, self.values["axis"], len(whole))
        for axis, length in enumerate(whole):
            if length < 2 or axis in together:
                continue
            for places in self._places(len(whole), axis, length):
                outputs = self._placed_outputs(places)
                if outputs is not None:
                    yield [*outputs[:count], *map(_placed, places)]
                    break

    def _is_named_by_lengths(self, name: str, ndim: int) -> bool:
        """Tell whether an array's axes are told by their lengths, which are others in a part."""
        role = self.op.args[name].role if name in self.op.args else None
        is_any = role is not None and role.repeats and not role.number
        return is_any and len(self.arrays[name]) < ndim

    def _places(self, ndim: int, axis: int, length: int) -> Iterator[tuple[int | None, ...]]:
        """Give the places that the axis may have in the arrays; None: an array lacks it."""
        choices: list[list[int | None]] = []
        for name, shape in self.arrays.items():
            alike: list[int | None] = [i for i, n in enumerate(shape) if n == length]
            if len(shape) == ndim:  # such axes mean the same
                alike = [axis] if axis in alike else [None]
            elif name not in self.made:
                alike.append(None)
            choices.append([i for i in alike if i is not None or name not in self.made])
        return product(*choices)

    def _placed_outputs(self, places: Sequence[int | None]) -> list[Any] | None:
        """Find where the axis lies in the outputs; None: they are not computed part by part."""
        pairs = zip(self.arrays.items(), places, strict=True)
        longer = {n: tuple(m + (i == at) for i, m in enumerate(s)) for (n, s), at in pairs}
        try:
            others = self.outputs_of(longer)
        except (TypeError, ValueError):
            return None
        found = []
        for name, shape in self.outputs.items():
            more = [m - n for n, m in zip(shape, others[name], strict=True)]
            axis = more.index(1) if sum(map(abs, more)) == 1 and 1 in more else None
            is_known = self.adds_up or (self.is_given and name not in self.op.results)
            if axis is None and (any(more) or not is_known):
                return None
            found.append(Partial() if axis is None and self.adds_up else _placed(axis))
        return found


class _Backward(_Call):
    """A call of an operator for gradients: those of the parts add up where an array meets all."""

    gives_gradients = True

    def names(self) -> list[str]:
        of = self.operators
        return ["wanted", *of.incoming, *self.op.saves, *of.told]

    def made_before(self) -> Sequence[str]:
        return [n for n in (*self.operators.incoming, *self.op.results) if n in self.arrays]

    def outputs_of(self, arrays: Shapes) -> dict[str, Lengths]:
        wanted, *others = self._with(arrays).values()
        incoming, saved, options = self.operators._taken_apart(others)
        args, kwargs = self.operators.spec.arguments(incoming, saved)
        found = self.op.backward(*args, **kwargs, **self.operators._given(options))
        every = found if isinstance(found, tuple) else (found,)
        named = zip(self.op.gradients, every, wanted, strict=False)
        return {n: tuple(d.shape) for n, d, wants in named if wants and d is not None}


def _placed(axis: int | None) -> Any:
    return Replicate() if axis is None else Shard(axis)


#: Classes that describe the calls of operators; other operators compute whole arrays.
_ENTRIES = {"": _Call, "_forward": _Call, "_backward": _Backward}
