"""The ops as operators of torch: `torch.ops.fastact`.

Tensors without memory of their own come here: what torch.compile, torch.export and torch.func
trace, fake tensors and tensors on the meta device. Of each op there are three or four operators,
with schemas that follow from its signature:

    fastact::NAME(arguments) -> the results
    fastact::NAME_forward(arguments) -> the results, and what else is saved for backward
    fastact::NAME_backward(wanted, gradients, saved, options) -> the gradients that are wanted
    fastact::NAME_second(wanted, ddx, gradients, saved, options) -> the gradients of backward
    fastact::NAME_quantized(dtype, per, scale_dtype, codes_scale, number, arguments)
        -> codes, scale and the sum

The first is differentiable; its gradient is made of the next ones. Shapes are those that the op's
specification tells (`models`, `gradient_shape`), and memory is torch's, so that what was traced and
what is computed are laid out alike.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import Parameter, signature
from os import environ
from sys import modules
from typing import Any, SupportsIndex, get_type_hints

import numpy as np
import torch
from torch.autograd import forward_ad

from .. import _cpu
from ..derivatives import second as derivatives
from ..derivatives.operations import Operations
from ..interop import foreign, validate
from ..interop.shapes import Shape
from ..ops.activations import Activation, Parameters
from ..ops.engine.entry import ANY, COMPUTED, DATA, OF_X, TOLD, Arg, by_our_names
from ..ops.engine.op import Model, Op, ops
from ..ops.engine.quantized import E8M0, Quantizes, named_format
from ..ops.quantize import decoded
from ..ops.types import (
    A,
    ActivationLike,
    Array,
    ArrayOrNumber,
    Axes,
    Casting,
    DType,
)
from . import decompositions
from .autograd import (
    GRAPH,
    TORCH,
    Function,
    apply,
    by_formula,
    finds_all,
    in_graph,
    is_more,
    named_as,
    one_by_one,
)
from .spec import (
    Spec,
    check_numbers,
    check_recorded,
    check_switches,
    dtype_of_results,
    named_dtype,
    signed,
    spec_of,
)

# An annotation of an op's signature in words of a schema.
_TYPES: dict[Any, str] = {
    A: "Tensor",
    "Sliced[A]": "Tensor",  # as text: a value has no type variable
    Array: "Tensor",
    ArrayOrNumber: "Tensor",
    Array | None: "Tensor?",
    ArrayOrNumber | None: "Tensor?",
    bool: "bool",
    int: "int",
    int | None: "int?",
    float: "float",
    float | None: "float?",
    str: "str",
    ActivationLike: "str",
    Casting: "str",
    int | tuple[int, ...]: "int[]",
    Axes: "int[]?",
    DType: "str?",
    tuple[int, ...]: "SymInt[]",
    SupportsIndex: "SymInt",
}
_OWN = {name: f"{_TYPES[kind]}?" for name, kind in get_type_hints(Parameters).items()}
_SAVED = {"shape": "SymInt[]", OF_X: "str?"}  # all else that is saved may be an array
_EVERY = ("out", "stream")  # what operators do not take


class Schema:
    """The arguments of an op's call, and how its operators take them.

    All but the op is made of plain values. `torch.compile` takes those of `_facts` for constants,
    and so has no guard for each of them that it reads, which every call would pay for.

    written : the arguments that a call may write, by the operators' schemas.
    takes : the arguments of the call, and their types.
    makes : whether the op makes something else of the arrays in its results.
    """

    def __init__(self, op: Any, *facts: Any) -> None:
        self.op, self.where, self.facts = op, f"fastact.{op.name}", facts
        self.name, self.written, takes, defaults, *others = facts
        self.takes: dict[str, str] = dict(takes)
        self.defaults: dict[str, Any] = dict(defaults)
        self.first, self.leading, self.integers, self.unrecorded, self.makes = others

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; what is wrong with them, the op itself finds."""
        if "ddof" in kwargs:
            kwargs = by_our_names(self.where, kwargs, self.takes)
        return {**dict(zip(self.leading, args, strict=False)), **kwargs}

    def operator(self, entry: str = "") -> Any:
        """The operator of an entry point."""
        return getattr(torch.ops.fastact, self.name + entry).default

    def values(self, named: Mapping[str, Any], names: Iterable[str] | None = None) -> list[Any]:
        """The arguments of a call in the operators' order, each of the type of its schema.

        names : of the arguments; None: all of them.
        """
        if self.unrecorded:
            check_switches(self, named)
        found = []
        for name in self.takes if names is None else names:
            kind = self.takes[name]
            is_told = name in named
            if not (is_told or name in self.defaults):
                raise TypeError(f"{self.where}: {name} must be given")
            value = named[name] if is_told else self.defaults[name]
            if kind.startswith("int[]") and isinstance(value, int):
                value = [value]
            elif is_told and kind == "SymInt":
                value = signed(self, name, value)
            elif name == TOLD and value is not None:
                value = validate.dtype_named(self.where, name, value)
            elif kind == "str" and not isinstance(value, str):
                value = getattr(value, "name", value)  # of an activation
            if is_told and kind.startswith(("int", "SymInt", "float")):
                check_numbers(self.where, name, kind, value)
            found.append(value)
        return found

    def promoted(self, named: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with integers in the dtype in which they are computed, and with arrays in
        the place of numbers that stand for some."""
        first, named = self.first, {**named}
        for name, value in named.items():  # options that are tensors are numbers
            if isinstance(value, torch.Tensor) and not (name in _EVERY or self._is_array(name)):
                named[name] = value.item()
        if first in named:  # else the op says so
            x = named[first]
            if not (isinstance(x, torch.Tensor) and x.dtype.is_floating_point):
                named[first] = foreign.promoted(x, self.integers)
            pairs = [(n, v) for n, v in named.items() if isinstance(v, int | float)]
            numbers = {n: v for n, v in pairs if self._is_array(n)}
            like = {**named, **dict.fromkeys(numbers, named[first])}
            named.update({n: self._repeated(n, v, like) for n, v in numbers.items()})
        return named

    def refuse_unknown(self, named: Mapping[str, Any]) -> None:
        """Refuse a keyword that the call has not."""
        for name in named:
            if name not in self.takes and name not in _EVERY:
                allowed = ", ".join((*self.takes, *_EVERY))  # dynamo can't trace a guess
                raise TypeError(
                    f"{self.where}: unexpected keyword argument {name!r}; allowed are {allowed}"
                )

    def _is_array(self, name: str) -> bool:
        return self.takes.get(name, "").startswith("Tensor")

    def _repeated(self, name: str, number: float, named: Mapping[str, Any]) -> torch.Tensor:
        """A number in the place of an array: of the shape that this has, or without axes.

        named : the arguments with the first array in the place of each number.
        """
        first = named[self.first]
        arg = self.op.args.get(name, Arg(validate.DATA))
        role = arg.role
        if role.array or ((role.repeats or role.also) and not role.number):
            validate.no_number(self.where, name, number)
        is_flag = validate.is_flag(self.where, name, number, role, foreign.dtype_name(first))
        number = number if is_flag else float(number)  # torch takes no int of more than 64 bits
        if role.number:
            dtype = torch.bool if is_flag else first.dtype
            return torch.full((), number, dtype=dtype, device=first.device)
        of = arg.shape.partition(" or ")[0]
        if of in ("", ANY):
            return torch.full_like(first, number)  # in parts, too, where a DTensor is
        op = self.op
        call: Any = _Named({"where": self.where, "views": named})
        options: Any = _Named({**op.entry_points["call"].defaults, **named})
        shape = getattr(op._shapes(call, options), of)
        return torch.full(shape, number, dtype=first.dtype, device=first.device)


class Operators(Schema):
    """The operators of an op, and how its arguments are given to them."""

    def __init__(self, library: Any, spec: Spec, name: str, written: tuple[str, ...]) -> None:
        self.spec, op, integers = spec, spec.op, spec.op.traits.integers
        integers = None if integers is None else np.dtype(integers).name
        makes, leading = type(op).result_of is not Op.result_of, op.entry_points["call"].leading
        pairs = (tuple(each.items()) for each in _signature(op))
        others = spec.arrays[0], leading, integers, tuple(op.traits.unrecorded), makes
        super().__init__(op, name, written, *pairs, *others)
        # In a schema no argument without a default follows one that has it.
        required = [i for i, name in enumerate(self.takes) if name not in self.defaults]
        self.shown = {*list(self.takes)[required[-1] + 1 :]}
        self.incoming = tuple(f"d{name}" for name in op.results)
        self.told = [name for name in self.takes if name in spec.told]
        of_call = ", ".join(self._argument(name) for name in self.takes)
        results = ", ".join("Tensor" for _ in op.results)
        backward = [
            *(f"Tensor? {name}" for name in self.incoming),
            *(f"{_SAVED.get(name, 'Tensor?')} saved_{name}" for name in op.saves),
            *(self._argument(name) for name in self.told),
        ]
        library.define(f"{name}({of_call}) -> ({results})")
        # Other saved values may depend on options, but torch traces no list from what is written.
        kept = [n for n in op.saves if n not in self.takes and n not in op.results]
        every = f"({', '.join('Tensor' for _ in (*op.results, *kept))})"
        library.define(f"{name}_forward({of_call}) -> {every if written else 'Tensor[]'}")
        ddx = [f"Tensor? d{name}" for name in op.gradients]
        library.define(f"{name}_backward({', '.join(['bool[] wanted', *backward])}) -> Tensor[]")
        runs: dict[str, Callable[..., Any]] = {
            "": partial(self._run_call, "call"),
            "_forward": partial(self._run_call, "forward"),
            "_backward": self._run_backward,
        }
        if spec.differentiates:
            of_second = ", ".join(["bool[] wanted", *ddx, *backward])
            library.define(f"{name}_second({of_second}) -> Tensor[]")
            runs["_second"] = self._run_second
        if isinstance(op, Quantizes):
            given = "str dtype, str per, str? scale_dtype, Tensor? codes_scale, float? number"
            library.define(f"{name}_quantized({given}, {of_call}) -> (Tensor, {results})")
            runs["_quantized"] = self._run_quantized
        self.runs, self.kernel = runs, _computed(runs[""])
        self.entries = {e: getattr(torch.ops.fastact, name + e).default for e in runs}
        self.call, self.forward, self.backward = map(
            self.entries.__getitem__, ("", "_forward", "_backward")
        )
        self.second: Any = self.entries.get("_second")
        for entry, run in runs.items():
            library.impl(name + entry, _computed(run), "CompositeExplicitAutograd")
            full = f"fastact::{name}{entry}"
            torch.library.register_fake(full, partial(run, False), lib=library)
            torch.library.register_vmap(full, self._batched(name + entry), lib=library)
        library.impl(name, self._differentiable, "Autograd")
        if not op.traits.counts_elements:  # the numbers that it draws are nobody else's
            decompositions.register(self.call, partial(runs[""], False), self._composed)
        for device in op.traits.autocast:
            cast: Any = torch.library.register_autocast  # it has no types
            cast(f"fastact::{name}", device, torch.float32, lib=library)

    def _argument(self, name: str) -> str:
        kind = self.takes[name]
        if name in self.written:
            letter = "abc"[self.written.index(name)]
            kind = kind.replace("Tensor", f"Tensor({letter}!)")
        if name not in self.shown:
            return f"{kind} {name}"
        default = self.defaults[name]
        if isinstance(default, str):
            return f'{kind} {name}="{default}"'
        if kind.startswith("int[]") and default is not None:
            return f"{kind} {name}=[{default}]"
        return f"{kind} {name}={default}"

    # --- arguments --------------------------------------------------------------------------------

    def named(self, values: Sequence[Any]) -> dict[str, Any]:
        """An operator's arguments as the op takes them; the last ones may be left out."""
        return self._given(zip(self.takes, values, strict=False))

    def _given(self, pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        """Without parameters of an activation that are not given.

        A schema has a list where an op takes one integer or several: of one it is that integer.
        """
        found = {n: v for n, v in pairs if v is not None or self.takes[n] != _OWN.get(n)}
        for name, value in found.items():
            if isinstance(value, list):
                is_one = len(value) == 1 and self.takes[name].startswith("int[]")
                found[name] = value[0] if is_one else tuple(value)
        return found

    # --- kernels, with memory and without ---------------------------------------------------------

    def _run_call(self, name: str, computes: bool, *values: Any) -> Any:
        """Make the results of an entry point, and what `forward` makes besides; compute them."""
        named, op, is_forward = self.named(values), self.spec.op, name == "forward"
        first = named[self.spec.arrays[0]]
        if not computes:  # nothing else checks shapes of a call that is only traced
            _check_shapes(op, named)
        elif not (is_forward or self.makes) and _is_contiguous(first):
            return _entered(op, name, named)  # whose own memory is laid out as torch's would be
        results, kept = op.models(named)
        kept = kept if is_forward else {}
        made = [_made(first, model) for model in (*results, *kept.values())]
        if computes:
            entry = op.entry_points[name]
            given = made[: entry.outputs + entry.extra]
            out = tuple(given) if len(given) > 1 else given[0]
            found = _entered(op, name, named, out=out)
            of_saved = dict(zip(op.saves, found[1], strict=True)) if kept else {}
            made[len(results) :] = [of_saved[name] for name in kept]
        if is_forward:
            return tuple(made) if self.written else made
        return tuple(made) if len(made) > 1 else made[0]

    def refuse(self, named: Mapping[str, Any]) -> None:
        """Let the op say what is wrong with a call."""
        _entered(self.spec.op, "call", named)

    def _composed(self, *values: Any) -> Any:
        """The call in torch's own operations."""
        named, op = self.named(values), self.spec.op
        first = named[self.spec.arrays[0]]
        return decompositions.composed(
            op, named, [_dtype_of(first, model) for model in op.models(named)[0]]
        )

    def _taken_apart(self, values: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Give the incoming gradients, the saved values, and the options by name."""
        count = len(self.incoming), len(self.spec.saves)
        incoming, rest = values[: count[0]], values[count[0] :]
        saved, options = rest[: count[1]], zip(self.told, rest[count[1] :], strict=False)
        saved = tuple(tuple(v) if isinstance(v, list) else v for v in saved)
        return incoming, saved, options

    def _run_second(self, computes: bool, wanted: Sequence[bool], *values: Any) -> Any:
        count = len(self.spec.op.gradients)
        incoming, saved, options = self._taken_apart(values[count:])
        if not computes:
            wants = zip(wanted, (*incoming, *saved), strict=True)
            return [torch.empty_like(value) for wants, value in wants if wants]
        found = self.spec.second(
            wanted, values[:count], incoming, saved, self._given(options), torch.empty_like
        )
        return [gradient for gradient in found if gradient is not None]

    def _run_backward(self, computes: bool, wanted: Sequence[bool], *values: Any) -> Any:
        op = self.spec.op
        incoming, saved, options = self._taken_apart(values)
        of_saved = dict(zip(op.saves, saved, strict=True))
        first = next(g for g in incoming if g is not None)
        outs = [
            self._gradient(name, of_saved, first) if wants else None
            for name, wants in zip(op.differentiated, wanted, strict=True)
        ]
        made = [out for out in outs if out is not None]
        if computes:
            entry = op.entry_points["backward"]
            outs += [None] * (entry.outputs + entry.extra - len(outs))
            out = tuple(outs) if len(outs) > 1 else outs[0]
            args, kwargs = self.spec.arguments(incoming, saved)
            op.backward(*args, **kwargs, **self._given(options), out=out)
        return made

    def _run_quantized(
        self,
        computes: bool,
        dtype: str,
        per: str,
        scale_dtype: str | None,
        scale: torch.Tensor | None,
        number: float | None,
        *values: Any,
    ) -> tuple[torch.Tensor, ...]:
        """The scale is empty where an array was given."""
        named = self.named(values)
        op: Any = self.spec.op
        first = named[self.spec.arrays[0]]
        given: dict[str, Any] = {"dtype": dtype, "per": int(per) if per.isdecimal() else per}
        given["scale_dtype"], known = scale_dtype, number if scale is None else scale
        if computes:
            codes, used, *others = _entered(
                op, "_cached_quantized", named, **given, _scale=known, out=None
            )
        else:
            _check_shapes(op, {**named, **given, "_scale": known, "out": None}, "_cached_quantized")
            y, *others = (_made(first, model) for model in op.models(named)[0])
            codes = torch.empty_like(y, dtype=getattr(torch, dtype))
            *outer, last = y.shape
            shape = [*outer, last // int(per) if per.isdecimal() else 1]
            is_one = per == "tensor" or number is not None
            used = _made(first, Model(() if is_one else tuple(shape), COMPUTED))
            if scale_dtype is not None:
                used = torch.empty_like(used, dtype=named_dtype(scale_dtype))
        return codes, used if scale is None else first.new_empty(0), *others

    def _gradient(self, name: str, saved: Mapping[str, Any], incoming: Any) -> torch.Tensor:
        op = self.spec.op
        shape = op.gradient_shape(name, saved)
        if shape is not None:
            return _made(incoming, Model(shape, saved.get(OF_X) or DATA))
        shared = (name, *(other for other, its in op.shares.items() if its == name))
        like = next((saved[n] for n in shared if saved.get(n) is not None), incoming)
        return torch.empty_like(like)

    # --- transforms -------------------------------------------------------------------------------

    def _differentiable(self, *values: Any) -> Any:
        """Run the step where autograd has its turn."""
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        records = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
        if tensors and not (records or any(map(_needs_dispatcher, tensors))):
            return self.kernel(*values)
        _tell_others()
        if records or foreign.has_tangent(*tensors):
            return self.record(self.named(values))
        with torch._C._AutoDispatchBelowAutograd():
            return self.call(*values)

    def record(self, named: Mapping[str, Any]) -> Any:
        """The results, with a gradient."""
        check_recorded(self.spec, named)
        step = _Step(self, named)
        function = named_as(Traced, self.spec.op.name)
        flat = apply(function, step, *(named[name] for name in step.names))
        results = flat[: len(self.incoming)]
        return results[0] if len(results) == 1 else results

    def _batched(self, name: str) -> Callable[..., Any]:
        """An operator on a batch: one example after another, for each has bits of its own."""
        operator = getattr(torch.ops.fastact, name).default

        def batched(info: Any, in_dims: Sequence[Any], *values: Any) -> Any:
            if isinstance(self.spec.op, Activation) and name == self.name:
                return operator(*values), in_dims[0]
            if name in (self.name, f"{self.name}_forward"):
                self._check_written(in_dims, values)
            return one_by_one(operator, info.batch_size, in_dims, values)

        return batched

    def _check_written(self, in_dims: Sequence[Any], values: Sequence[Any]) -> None:
        """Each example of a batch writes an array of its own."""
        named = self.named(values)
        for name, dim in zip(self.takes, in_dims, strict=False):
            if dim is None and name in self.spec.op.writes(named) and named[name] is not None:
                raise ValueError(
                    f"{self.spec.where}: {name} is written, and must have an axis of the batch in "
                    f"torch.func.vmap, got one array for all examples"
                )


def _signature(op: Any) -> tuple[dict[str, str], dict[str, Any]]:
    """The types of an op's arguments, and their defaults."""
    takes: dict[str, str] = {}
    defaults: dict[str, Any] = {}
    for name, p in signature(op.__wrapped__).parameters.items():
        if p.kind is Parameter.VAR_KEYWORD:
            takes |= _OWN
            defaults |= dict.fromkeys(_OWN)
        elif name not in _EVERY:
            kind = p.annotation  # which may be text, to be read in its module
            if isinstance(kind, str) and kind not in _TYPES:
                kind = eval(kind, vars(modules[op.__wrapped__.__module__]))
            takes[name] = _TYPES[kind]
            if p.default is not Parameter.empty:
                defaults[name] = p.default
    return takes, defaults


class _Named:
    """Values by name, in a class that torch.compile can make."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)


class _Step:
    """A call in a graph: its tensors by name, and the rest."""

    def __init__(self, operators: Operators, named: Mapping[str, Any]) -> None:
        self.operators = operators
        self.names = [n for n, value in named.items() if isinstance(value, torch.Tensor)]
        self.rest = {n: v for n, v in named.items() if n not in self.names}
        data = named[operators.spec.arrays[0]].dtype
        self.dtype = dtype_of_results(operators.spec, named, data)
        self.has_tangents = _is_forward_mode(named)

    def named(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        return {**self.rest, **dict(zip(self.names, tensors, strict=True))}

    def tangents(
        self, given: Mapping[str, Any], tensors: Sequence[torch.Tensor], saved: Mapping[str, Any]
    ) -> list[Any]:
        """Find the tangents of what `forward` gives, None of what has none."""
        op, spec = self.operators.spec.op, self.operators.spec
        results, kept = op.models(self.named(tensors))
        first = tensors[self.names.index(spec.arrays[0])]
        dtypes = [_dtype_of(first, model) for model in results]
        given, saved, named = (
            {n: TORCH.wide(v, torch.float64 in dtypes) for n, v in values.items() if v is not None}
            for values in (given, saved, self.operators.defaults | self.named(tensors))
        )
        keeps = bool(spec.kept) and bool(kept)
        moved = derivatives.tangents(op, given, {**saved, **named}, _TRACED, keeps=keeps)
        found: list[Any] = [d.to(dtype) for d, dtype in zip(moved, dtypes, strict=False)]
        return [*found, *(moved[-1] if name in spec.kept else None for name in kept)]


class _Wanted:
    """The gradients of a call in a graph that are wanted, as `Recorded` has them."""

    def __init__(self, step: _Step, wanted: Sequence[bool]) -> None:
        operators = step.operators
        self.operators, self.rest, self.wanted = operators, step.rest, wanted
        self.spec, self.options = operators.spec, operators.values(step.rest, operators.told)
        of = self.spec.op.differentiated
        self.needed = [name for name, wants in zip(of, wanted, strict=True) if wants]

    def gradients(self, incoming: Sequence[Any], saved: Sequence[Any]) -> Any:
        count = len(self.spec.op.results)
        if any(gradient is not None for gradient in incoming[count:]):
            return by_formula(self.spec, self.needed, incoming, saved, self.rest)
        with torch._C._AutoDispatchBelowAutograd():
            return self.operators.backward(self.wanted, *incoming[:count], *saved, *self.options)

    def second(
        self, wanted: Sequence[bool], ddx: Sequence[Any], incoming: Any, saved: Any
    ) -> list[Any]:
        with torch._C._AutoDispatchBelowAutograd():
            found = self.operators.second(wanted, *ddx, *incoming, *saved, *self.options)
        each = iter(found)
        return [next(each) if wants else None for wants in wanted]


class Traced(Function):
    """An op's call in a graph that is traced, or that torch.func transforms."""

    generate_vmap_rule = True

    @staticmethod
    def forward(step: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        operators = step.operators
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(operators.forward(*operators.values(step.named(tensors))))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        step, *tensors = inputs
        op = step.operators.spec.op
        named = step.named(tensors)
        kept = op.models(named)[1]
        results, others = output[: len(op.results)], output[len(op.results) :]
        named.update(zip(op.results, results, strict=True))
        named.update(zip(kept, others, strict=True))
        saved = op.saved(named)
        ctx.step, ctx.where = step, step.operators.spec.where
        Function.keep(ctx, saved, tensors if step.has_tangents else ())
        needed = [
            t for n, t in zip(step.names, tensors, strict=True) if n in step.operators.spec.of
        ]
        if not step.operators.spec.kept and finds_all(needed, tensors, results, saved):
            ctx.mark_non_differentiable(*others)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        step, needed = ctx.step, ctx.needs_input_grad[1:]
        spec = step.operators.spec
        # An op that keeps anything makes nothing else besides.
        incoming = incoming[: len(spec.op.results) + len(spec.kept)]
        if all(gradient is None for gradient in incoming):
            return (None, *(None for _ in needed))
        saved = Function.kept(ctx)
        incoming = tuple(
            g if g is None or g.dtype == step.dtype else g.to(step.dtype) for g in incoming
        )
        places = [spec.of.get(name, -1) for name in step.names]
        wanted = [
            any(p == i and wants for p, wants in zip(places, needed, strict=True))
            for i in range(len(spec.op.gradients))
        ]
        call = _Wanted(step, wanted)
        pairs = zip(step.names, needed, strict=True)
        names = [n if n in spec.composed and wants else None for n, wants in pairs]
        others = by_formula(spec, names, incoming, saved, step.rest, GRAPH) if any(names) else names
        if not any(wanted):
            found = iter(())
        elif torch.is_grad_enabled() or is_more(*incoming, *saved):
            found = iter(in_graph(call, *incoming, *saved))
        else:
            found = iter(call.gradients(incoming, saved))
        gradients = [*(next(found) if wants else None for wants in wanted), *incoming]
        return None, *(
            gradients[p] if wants and p >= 0 else other
            for p, wants, other in zip(places, needed, others, strict=True)
        )

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        step = ctx.step
        spec = step.operators.spec
        for name, tangent in zip(step.names, tangents, strict=True):
            if tangent is not None and name not in spec.of and name not in spec.composed:
                raise foreign.gets_no_gradient(spec.where, name)
        saved, tensors = Function.kept(ctx), ctx.saved_tensors[-len(step.names) :]
        if spec.op.traits.is_diagonal:
            return tuple(in_graph(_Wanted(step, [True]), tangents[0], *saved))
        given = {n: t for n, t in zip(step.names, tangents, strict=True) if t is not None}
        # torch switches forward mode off here, and an outer transform needs the tangents of these.
        with forward_ad._set_fwd_grad_enabled(True):
            unpack: Any = forward_ad.unpack_dual  # it has no types
            tensors, saved = (
                [unpack(v).primal if isinstance(v, torch.Tensor) else v for v in values]
                for values in (tensors, saved)
            )
            return tuple(step.tangents(given, tensors, dict(zip(spec.saves, saved, strict=True))))


# --- helpers --------------------------------------------------------------------------------------


def _computed(run: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(*values: Any) -> Any:
        before = _cpu.enter_operator(True)  # who looks at operations has seen this one
        records = torch.is_grad_enabled()  # what requires grad is recorded above
        torch._C._set_grad_enabled(False)  # as `torch.no_grad` does, which takes 2 us
        try:
            return run(True, *values)
        finally:
            torch._C._set_grad_enabled(records)
            _cpu.enter_operator(before)

    return kernel


def _needs_dispatcher(tensor: torch.Tensor) -> bool:
    """Tell whether another key of the dispatcher has to do with a tensor."""
    return foreign.is_for_dispatcher(tensor) or tensor.is_neg() or tensor._is_zerotensor()


def _is_contiguous(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and x.is_contiguous()


def _entered(op: Any, entry: str, named: Mapping[str, Any], **more: Any) -> Any:
    """A call of an entry point with arguments by name, an activation's parameters among them."""
    point = op.entry_points.get(entry, op.entry_points["call"])
    args = [named[name] for name in point.arrays]
    rest = {name: value for name, value in named.items() if name not in point.arrays}
    return op.entry_point(entry)(*args, **rest, **more)


def _check_shapes(op: Any, named: Mapping[str, Any], entry: str = "call") -> None:
    """Refuse what the op would refuse, where all lengths are numbers, and NumPy has the dtypes."""
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
    told = (v if isinstance(v, tuple) else (v,) for v in named.values())
    numbers = itertools.chain(*(tensor.shape for tensor in tensors.values()), *told)
    if any(isinstance(number, torch.SymInt) for number in numbers):
        return
    try:
        arrays = {
            name: Shape(tuple(tensor.shape), foreign.dtype_name(tensor), writable=True)
            for name, tensor in tensors.items()
        }
        if entry == "call" and named.get(TOLD) is not None:
            Shape((), named[TOLD])
    except (MemoryError, TypeError):  # more than there is, or bfloat16 without ml_dtypes
        return
    _entered(op, entry, {**named, **arrays})


def _is_forward_mode(named: Mapping[str, Any]) -> bool:
    """Whether tensors have tangents, or torch.func.jvp is at work."""
    functorch: Any = torch._C._functorch
    levels = functorch.get_interpreter_stack() or ()
    is_at_work = any(level.key() == functorch.TransformType.Jvp for level in levels)
    return is_at_work or foreign.has_tangent(*foreign.tensors((), named))


def _dtype_of(like: torch.Tensor, model: Model) -> torch.dtype:
    """The dtype of an array that is made beside the data."""
    if model.dtype in _cpu.DTYPE_NAMES:
        return named_dtype(model.dtype)
    if model.dtype == DATA:
        return like.dtype
    is_wide = model.dtype != COMPUTED or like.dtype == torch.float64
    return torch.float64 if is_wide else torch.float32


def _made(like: torch.Tensor, model: Model) -> torch.Tensor:
    """An array that is to be filled."""
    dtype = _dtype_of(like, model)
    if model.shape is None:
        return torch.empty_like(like, dtype=dtype)
    return like.new_empty(model.shape, dtype=dtype)


class _Traced(Operations):
    """torch's arithmetic under its transforms, where an op that is called is recorded again."""

    def slope(self, op: Any, d: Any, saved: Any, parameters: Mapping[str, Any]) -> Any:
        operators = OPERATORS[op.name]
        step = _Step(operators, {operators.spec.arrays[0]: saved, **parameters})
        return in_graph(_Wanted(step, [True]), d, saved)[0]


_TRACED = _Traced(torch)

# --- calls ----------------------------------------------------------------------------------------

_Library: Any = torch.library.Library  # it has no types
_library = _Library("fastact", "DEF")
OPERATORS = {name: Operators(_library, spec_of(op), name, op.written) for name, op in ops.items()}

#: Operators that write nothing, of ops that may write: graphs hold these as they are.
FUNCTIONAL = {
    name: Operators(_library, spec_of(op), f"{name}_functional", ())
    for name, op in ops.items()
    if op.written
}

_ALL = (*OPERATORS.values(), *FUNCTIONAL.values())


def operators_of(op: Any, named: Mapping[str, Any]) -> Operators:
    """The operators for a call."""
    writes = any(named.get(name) is not None for name in op.writes(named))
    return OPERATORS[op.name] if writes else FUNCTIONAL.get(op.name, OPERATORS[op.name])


def _facts(op: Any) -> tuple[Any, ...]:
    return OPERATORS[op.name].facts


# `torch.compiler.assume_constant_result` does this, too, and imports Dynamo, which takes long.
vars(_facts)["_dynamo_marked_constant"] = True


def _tell_others() -> None:
    """Let DTensor know the operators, once it is imported, and so inductor in a CI."""
    if "torch._inductor.lowering" in modules and environ.get("CI"):
        decompositions.keep_calls()
    if "torch.distributed.tensor" in modules:
        from . import sharding

        sharding.register(_ALL)


def call(op: Any, named: Mapping[str, Any]) -> Any:
    """The op's value, of tensors that have no memory of their own."""
    _tell_others()
    operators = operators_of(op, named)
    where = operators.spec.where
    _check(where, operators, named)
    if torch._C._is_tracing() and torch.onnx.is_in_onnx_export():
        raise TypeError(
            f"{where}: torch.onnx.export(dynamo=False) has no operator of ONNX for it; use "
            f"dynamo=True"
        )
    named = operators.promoted(named)
    with _in_our_words(op, where):
        if torch._C._are_functorch_transforms_active() or foreign.has_tangent(
            *foreign.tensors((), named)
        ):
            return _finished(operators, named, operators.record(named))
        return _called(operators, named)


@contextmanager
def _in_our_words(op: Any, where: str) -> Iterator[None]:
    """Turn an operator's errors about its arguments into the op's."""
    try:
        yield
    except RuntimeError as error:
        wrong = str(error).partition("\n")[0]  # lines after the first show values
        if wrong.startswith(f"fastact::{op.name}"):
            raise TypeError(f"{where}: {wrong.partition('() ')[2] or wrong}") from None
        raise
    except (TypeError, ValueError) as error:  # nobody has called `forward`
        error.args = (str(error).replace(f"{where}.forward:", f"{where}:", 1),)
        raise


def _check(where: str, operators: Operators, named: Mapping[str, Any]) -> None:
    """Arrays are tensors of one device, and nothing else is; what they are like, torch checks."""
    first = operators.spec.arrays[0]
    operators.refuse_unknown(named)
    if first in named and not isinstance(named[first], torch.Tensor):
        raise TypeError(
            f"{where}: {first} must be a tensor, as other arguments are, got "
            f"{validate.describe(named[first])}"
        )
    device = next(foreign.tensors((), named)).device
    for name, value in named.items():
        is_array = name == "out" or operators.takes.get(name, "").startswith("Tensor")
        for one in value if name == "out" and isinstance(value, tuple) else (value,):
            if not isinstance(one, torch.Tensor):
                is_number = isinstance(one, int | float) and name != "out"
                if is_array and not (one is None or is_number):
                    raise TypeError(
                        f"{where}: all arrays must come from one framework, got {name}, of type "
                        f"{type(one).__name__}, beside tensors of torch"
                    )
            elif one.is_nested:  # it answers operators of torch alone
                foreign.plain_tensor(where, name, one)
            elif not is_array and (foreign.is_traced() or foreign.is_more_than_memory(one)):
                raise TypeError(
                    f"{where}: {name} must not be a tensor without memory of its own, or in a trace"
                )
            elif one.device != device:
                raise ValueError(
                    f"{where}: all arrays must be on one device, {device}, got {name} on "
                    f"{one.device}"
                )


def traced(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an op in the way that torch.compile can read."""
    schema = Schema(op, *_facts(op))
    named = schema.given(args, kwargs)
    if schema.written and not any(named.get(name) is not None for name in op.writes(named)):
        schema.name += "_functional"
    schema.refuse_unknown(named)
    return _called(schema, schema.promoted(named))


def _called(schema: Schema, named: Mapping[str, Any]) -> Any:
    """The result of a call by the operator, of arguments that it takes."""
    return _finished(schema, named, schema.operator()(*schema.values(named)))


def call_quantized(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *given: Any) -> Any:
    """`op.quantized`, of tensors that have no memory of their own."""
    operators = OPERATORS[op.name]
    where = operators.spec.where
    _check(where, operators, operators.spec.named(args, kwargs))
    with _in_our_words(op, where):
        return traced_quantized(op, args, kwargs, *given)


def traced_quantized(
    op: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    per: Any,
    scale: Any,
    dtype: Any,
    scale_dtype: Any,
) -> Any:
    """`op.quantized` as torch.compile reads it; kwargs: `out` among them."""
    schema = Schema(op, *_facts(op))
    where = f"{schema.where}.quantized"
    dtype = named_format(where, dtype)
    if scale_dtype is not None:
        scale_dtype = named_format(where, scale_dtype, "scale_dtype", {E8M0: 0})
    named = schema.given(args, kwargs)
    schema.refuse_unknown(named)
    named = schema.promoted(named)
    is_array = isinstance(scale, torch.Tensor)
    if not (is_array or scale is None):
        try:
            scale = float(scale)
        except (TypeError, ValueError, OverflowError):
            validate.number(where, op.known_scale, scale)  # tells what is wrong with it
            raise
    given = (scale, None) if is_array else (None, scale)
    values = (v.detach() if isinstance(v, torch.Tensor) else v for v in schema.values(named))
    operator = schema.operator("_quantized")
    codes, found, *others = operator(dtype, str(per), scale_dtype, *given, *values)
    return _in_out(schema.where, named, (codes, scale if is_array else found, *others))


def dequantized(codes: Any, scale: Any, dtype: Any, codes_dtype: Any, out: Any) -> Any:
    """`fastact.dequantize` in torch's own operations, for what has no memory of its own."""
    where = "fastact.dequantize"
    if not (isinstance(codes, torch.Tensor) and isinstance(scale, torch.Tensor)):
        raise TypeError(f"{where}: codes and scale must both be tensors")
    named, scale, told = decoded(where, codes, scale, dtype, codes_dtype)
    scale, kind = scale.detach(), named_dtype(told)
    if 0 in codes.shape:
        y = torch.empty_like(codes, dtype=kind)
    else:
        rows = codes.view(getattr(torch, named)).to(scale.dtype)
        *outer, last = codes.shape
        count = scale.shape[-1] if scale.ndim else 1
        rows = rows.reshape(*outer, count, last // count)
        y = (rows * scale.unsqueeze(-1)).flatten(-2).to(kind)
    return _in_out(where, {"out": out}, (y,))[0]


def _finished(schema: Schema, named: Mapping[str, Any], result: Any) -> Any:
    """The result as the op gives it, in `out` where that was given."""
    arrays = result if isinstance(result, tuple) else (result,)
    arrays = _in_out(schema.where, named, arrays)
    if schema.makes:
        return schema.op.result_of(arrays, named)
    return arrays if len(arrays) > 1 else arrays[0]


def _in_out(where: str, named: Mapping[str, Any], arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results, in `out` where that was given."""
    out = named.get("out")
    if out is None:
        return arrays
    outs = validate.outputs(where, out, len(arrays))
    for i, (given, array) in enumerate(zip(outs, arrays, strict=True)):
        if given is not None and given.shape != array.shape:
            raise ValueError(
                f"{where}: {validate.out_name(i, outs)} must have shape {tuple(array.shape)}, "
                f"got {tuple(given.shape)}"
            )
        if given is not None and given.dtype != array.dtype:
            raise TypeError(
                f"{where}: {validate.out_name(i, outs)} must have dtype "
                f"{foreign.dtype_name(array)}, got {foreign.dtype_name(given)}"
            )
    return tuple(
        array if out is None else out.copy_(array) for out, array in zip(outs, arrays, strict=True)
    )
