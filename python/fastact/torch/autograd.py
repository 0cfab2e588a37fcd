"""Gradients of tensors: an op's `forward` and `backward` as one step of autograd's graph.

The steps call the op with the tensors themselves, through no dispatcher: inside them nothing is
recorded, so that `forward` and `backward` are served by the ops' fast paths.

Why it is built so: docs/design/torch.md.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from ..derivatives import formulas
from ..derivatives import second as derivatives
from ..derivatives.graph import Graph, raw
from ..derivatives.operations import Operations
from ..interop import foreign
from ..ops.engine.entry import OF_X
from ..ops.engine.op import Op, arrays_of, result_of
from .spec import Spec, check_recorded, dtype_of_results, named_dtype, spec_of

_MOST_LEVELS = 64  # of batches in batches, in torch

#: torch's own arithmetic, for the formulas of ops.
TORCH = Operations(torch)

#: The graph by which formulas give gradients in it, which autograd may record.
GRAPH = Graph(TORCH)


class Recorded:
    """How a call is recorded, and every other one with its key (src/cpu/binding/call_key.pyx).

    Such calls are alike but for the values in their arrays: shapes, options, and what requires grad
    are the same. So all that follows from these is found once.

    names : of the arguments that are tensors, as autograd is given them.
    composed : for each of these its name, where its gradient is needed and has no kernel, or None.
    places : for each of these, which of the op's gradients is its own, or, after those, of the
        results'; -1 where none is needed.
    outputs : for each of the op's gradients, shape, dtype and device where it is needed and None
        where not; empty where all of the tensors' are.
    options : what backward is told again.
    others : what is saved and is no tensor, with None in the places of tensors; empty where all
        are tensors; None before the first call.
    shown : the places in what is saved of what `forward` makes besides, where that has gradients,
        or is all that a derivative of the gradients could find the arguments by: results of the
        step, too.
    count : of the op's results.
    is_plain : whether the gradients are what `backward` gives for dy and what is saved, as it is.
    rest : the arguments that are no tensors, and what is saved and is none.
    needed : for each tensor its name, None where it needs no gradient.
    simple : whether the tensors are all that is given by position, and the results are arrays.
    kwargs : what is given by name then, which has no tensors.
    """

    def __init__(
        self, spec: Spec, named: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self.spec, op = spec, spec.op
        self.forward, self.backward = op.forward, op.backward
        self.step = _entry(named_as(Step, op.name))
        tensors = {n: value for n, value in named.items() if isinstance(value, torch.Tensor)}
        self.names = [*tensors]
        data = foreign.promoted(tensors[self.names[0]], op.traits.integers).dtype
        self.dtype = dtype_of_results(spec, named, data)
        self.simple = self.names == [*named][: len(args)] and type(op).result_of is Op.result_of
        self.kwargs = kwargs if self.simple else {}  # else it may have tensors
        self.places = [
            spec.of.get(name, -1) if value.requires_grad else -1 for name, value in tensors.items()
        ]
        asked = {n for n in spec.composed if foreign.requires_grad(tensors.get(n))}
        self.composed = [n if n in asked else None for n in self.names]
        self.in_order = self.places == [*range(len(self.places))]
        self.outputs = self._outputs(tensors)
        self.options = {n: v for n, v in named.items() if n in spec.told and n not in tensors}
        self.needed = [n if at >= 0 else None for n, at in zip(tensors, self.places, strict=True)]
        self.rest = {n: v for n, v in named.items() if n not in tensors}
        self.others: tuple[Any, ...] | None = None
        self.shown: list[int] = []
        self.count, self.is_plain = len(op.results), False

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the op's value, recorded."""
        try:
            if self.simple:
                found = self.step(self, None, *args)
                return found if not self.shown else self._results(found)
            given: list[Any] = [args, kwargs]
            tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            arrays = self.step(self, given, *tensors)
        except (TypeError, ValueError) as error:  # nobody has called `forward`
            where = self.spec.where
            error.args = (str(error).replace(f"{where}.forward:", f"{where}:", 1),)
            raise
        if self.shown:
            arrays = self._results(arrays)
        return arrays if len(given) == 2 else result_of(arrays, given[2])

    def learn(self, tensors: Sequence[Any], result: Any, saved: Sequence[Any]) -> None:
        """Find what follows from a call's result, and from what it saves."""
        results = result if isinstance(result, tuple) else (result,)
        needed = [t for t, place in zip(tensors, self.places, strict=True) if place >= 0]
        if not finds_all(needed, tensors, results, saved):
            known = {*map(id, tensors)}
            self.shown = [i for i, v in enumerate(saved) if _is_tensor(v) and id(v) not in known]
        elif self.spec.kept:
            self.shown = [self.spec.saves.index(name) for name in self.spec.kept]
        others = tuple(None if _is_tensor(v) else v for v in saved)
        if any(v is not None for v in others):
            self.others = others
            pairs = zip(self.spec.saves, others, strict=True)
            self.rest.update((n, v) for n, v in pairs if v is not None)
        else:
            self.others = ()
        is_same = self.in_order and len(self.places) <= len(self.spec.op.gradients)
        is_alone = self.count == 1 and self.spec.saves_in_order and not self.outputs
        self.is_plain = is_same and is_alone and not (self.shown or self.others)

    def _results(self, arrays: tuple[Any, ...]) -> Any:
        """Return the op's arrays, without what is shown besides."""
        count = self.count
        return arrays[:count] if count > 1 else arrays[0]

    def _outputs(self, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
        of, count = self.spec.of, len(self.spec.op.gradients)
        if count == 1 or {of[name] for name in tensors if name in of} <= {*self.places}:
            return []
        found: list[Any] = [None] * count
        for place, value in zip(self.places, tensors.values(), strict=True):
            if place >= 0 and found[place] is None:
                found[place] = value.shape, value.dtype, value.device
        return found

    def second(
        self, wanted: Sequence[bool], ddx: Sequence[Any], incoming: Any, saved: Any
    ) -> Sequence[Any]:
        """The gradients of the gradients, by kernels alone: those that are wanted, else None."""
        return self.spec.second(wanted, ddx, incoming, saved, self.options, torch.empty_like)

    def incoming(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """Return the results' gradients, and then the kept arrays'."""
        shown = dict(zip(self.shown, gradients[self.count :], strict=True))
        kept = map(self.spec.saves.index, self.spec.kept)
        return *gradients[: self.count], *map(shown.get, kept)

    def gradients(self, incoming: Sequence[Any], saved: Sequence[Any]) -> Sequence[Any]:
        """Return the gradients of the tensors, None of those that are not needed."""
        options = self.options
        if self.others:
            saved = [b if a is None else a for a, b in zip(saved, self.others, strict=True)]
        if self.shown:
            if any(gradient is not None for gradient in incoming[self.count :]):
                return by_formula(self.spec, self.needed, incoming, saved, self.rest)
            incoming = incoming[: self.count]
        if len(incoming) > 1 or incoming[0].dtype is not self.dtype or not self.spec.saves_in_order:
            incoming = [
                g if g is None or g.dtype is self.dtype else g.to(self.dtype) for g in incoming
            ]
            incoming, by_name = self.spec.arguments(incoming, saved)
            saved, options = (), {**options, **by_name}
        if self.outputs:
            outs = [
                None if like is None else torch.empty(like[0], dtype=like[1], device=like[2])
                for like in self.outputs
            ]
            options = {**options, "out": tuple(outs)}
        found = self.backward(*incoming, *saved, **options)
        found = (*found, *incoming) if type(found) is tuple else (found, *incoming)
        if self.in_order:
            return found[: len(self.places)]
        return [found[place] if place >= 0 else None for place in self.places]


class Function(torch.autograd.Function):
    """The base of our functions of autograd: they have no forward mode unless they say so.

    ctx.where : how errors name the function.
    """

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise NotImplementedError(
            f"{ctx.where}: has no derivative in forward mode, as of torch.func.jvp, jacfwd and "
            f"hessian; use one in reverse mode, as of torch.func.vjp and jacrev"
        )

    @staticmethod
    def keep(ctx: Any, values: Sequence[Any], more: Sequence[torch.Tensor] = ()) -> None:
        """Save values for both modes, tensors or not; more : tensors that are no values."""
        ctx.others = [None if _is_tensor(value) else value for value in values]
        tensors = [value if _is_tensor(value) else None for value in values]
        ctx.save_for_backward(*tensors, *more)
        ctx.save_for_forward(*tensors, *more)
        ctx.set_materialize_grads(False)  # nothing comes back to most: no zeros are computed

    @staticmethod
    def kept(ctx: Any) -> list[Any]:
        pairs = zip(ctx.saved_tensors, ctx.others, strict=False)
        return [other if tensor is None else tensor for tensor, other in pairs]


class Step(Function):
    """An op's call in autograd's graph."""

    @staticmethod
    def forward(ctx: Any, call: Recorded, given: Any, *tensors: torch.Tensor) -> Any:
        if given is None:
            result, saved = call.forward(*tensors, **call.kwargs)
        else:
            args, kwargs = given
            result, saved = call.forward(*args, **kwargs)
            if not isinstance(result, (torch.Tensor, tuple)):
                given.append(result)
                result = arrays_of(result)
        if call.others is None:
            call.learn(tensors, result, saved)
        if call.others:
            saved = tuple(v if _is_tensor(v) else None for v in saved)
        if call.shown:
            results = result if type(result) is tuple else (result,)
            result = (*results, *[saved[i] for i in call.shown])
        ctx.call = call
        # These do what `save_for_backward` and `set_materialize_grads` do, without a call of each.
        ctx.to_save, ctx.materialize_grads = saved, False
        return result

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        call, dy = ctx.call, incoming[0]
        if dy is None and all(gradient is None for gradient in incoming):
            return (None,) * (2 + len(call.places))
        if call.shown:
            incoming = call.incoming(incoming)
        saved = ctx.saved_tensors
        if any(call.composed):
            return None, None, *_with_composed(call, incoming, saved)
        by_kernels = not (call.shown and any(map(is_batch, incoming)))  # they refuse a batch
        if by_kernels and not _is_grad_enabled() and not _are_transforms_active():
            try:
                if call.is_plain and dy.dtype is call.dtype:  # another frame would take longer
                    found = call.backward(dy, *saved, **call.options)
                    return None, None, *(found if type(found) is tuple else (found,))
                return None, None, *call.gradients(incoming, saved)
            except TypeError:
                if not is_more(*incoming, *saved):
                    raise
        return None, None, *in_graph(call, *incoming, *saved)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        ctx.where = ctx.call.spec.where
        Function.jvp(ctx)


# --- gradients in a graph -------------------------------------------------------------------------
# create_graph=True, as torch.func always has it; and gradients of a batch (is_grads_batched=True).


def finds_all(
    needed: Iterable[Any], given: Sequence[Any], results: Sequence[Any], saved: Sequence[Any]
) -> bool:
    """Tell whether autograd finds the needed arguments of a call by what the call saves.

    It finds what is saved itself, and by a result everything. By what a call makes besides it finds
    nothing, and takes for a constant what depends on that alone. Where one tensor is given twice,
    this can't tell which of the two is saved, and another call like it may have two.
    """
    kept, known = {*map(id, saved)}, {*map(id, given)}
    if any(id(result) in kept for result in results):
        return True
    makes = any(_is_tensor(value) and id(value) not in known for value in saved)
    is_clear = len(known) == len(given)
    return not makes or (is_clear and all(id(tensor) in kept for tensor in needed))


def in_graph(call: Any, *tensors: Any) -> Sequence[Any]:
    """The gradients of an op, which are computed of tensors that may have gradients themselves.

    call : `Recorded`, or what is like it: it has `spec`, `rest`, `needed`, `gradients`, `second`.
    """
    function = named_as(Twice, f"{call.spec.op.name}_backward")
    return of_batch(lambda *each: apply(function, call, *each), *tensors)


def _with_composed(call: Recorded, incoming: Any, saved: Any) -> list[Any]:
    """Return the gradients of an op's call, some of which its formula gives alone."""
    spec = call.spec

    def found(*tensors: Any) -> Any:
        return by_formula(spec, call.composed, *_parted(spec, tensors), call.rest, GRAPH)

    made = of_batch(found, *incoming, *saved)
    by_kernels = in_graph(call, *incoming, *saved) if max(call.places) >= 0 else made
    return [b if a is None else a for a, b in zip(made, by_kernels, strict=True)]


def _parted(spec: Spec, tensors: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the incoming gradients and the saved values of a call."""
    count = len(tensors) - len(spec.saves)
    return tensors[:count], tensors[count:]


def once(where: str, found: Callable[..., Any], *tensors: Any) -> Sequence[Any]:
    """Second derivatives, whose own are an error that names whose they are."""
    return of_batch(lambda *each: apply(Once, where, found, *each), *tensors)


class Twice(Function):
    """Gradients that have gradients of their own, whose derivative is an error.

    dx = dy y'(x) of a y that is linear in pieces is linear in dy, and constant in x between
    corners. So its gradient by dy is itself, of another dy, and any further derivative follows.
    """

    @staticmethod
    def forward(call: Any, *tensors: Any) -> tuple[Any, ...]:
        known = {*map(id, tensors)}  # given back as it is, one could not be saved, too
        found = call.gradients(*_parted(call.spec, tensors))
        return tuple(g.view_as(g) if id(g) in known and g is not None else g for g in found)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        ctx.where = ctx.call.spec.where
        Function.keep(ctx, tensors)

    @staticmethod
    def backward(ctx: Any, *ddx: Any) -> Any:
        if all(d is None for d in ddx):
            return (None,) * len(ctx.needs_input_grad)
        call, wanted = ctx.call, ctx.needs_input_grad[1:]
        tensors, count = Function.kept(ctx), len(ddx)
        if call.spec.op.piecewise_linear:
            _, *saved = tensors
            return None, *in_graph(call, *ddx, *saved), *map(torch.zeros_like, saved)

        def second(*each: Any) -> Any:
            if call.spec.differentiates:
                return call.second(wanted, each[:count], *_parted(call.spec, each[count:]))
            return _composed(call, wanted, each[:count], each[count:])

        every = (*ddx, *tensors)
        if _is_grad_enabled() or _are_transforms_active() or is_more(*every):
            return None, *once(ctx.where, second, *every)
        return None, *second(*every)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        find = _by_slope if ctx.call.spec.op.traits.is_diagonal else _by_change
        return find(ctx.call, Function.kept(ctx), tangents[1:])

    @staticmethod
    def vmap(info: Any, in_dims: Any, *values: Any) -> Any:
        return one_by_one(Twice.apply, info.batch_size, in_dims, values)


def by_formula(
    spec: Spec,
    names: Sequence[str | None],
    incoming: Sequence[Any],
    saved: Sequence[Any],
    options: Mapping[str, Any],
    m: Any = TORCH,
) -> tuple[Any, ...]:
    """The gradients of these arguments, where some came back to what is kept: kernels take none."""
    back, named = _taken_apart(spec, options, (*incoming, *saved))
    found = formulas.gradients(spec.op, back, named, m, [n for n in names if n is not None])
    return tuple(
        None if n is None else raw(found[n]).to(_dtype_of(n, spec, incoming, saved)) for n in names
    )


def _dtype_of(name: str, spec: Spec, incoming: Sequence[Any], saved: Sequence[Any]) -> torch.dtype:
    """Return an argument's dtype, by what is saved under its name, or else the data's."""
    kept = dict(zip(spec.saves, saved, strict=True))
    if kept.get(OF_X) is not None:
        return named_dtype(kept[OF_X])
    like = kept[name] if _is_tensor(kept.get(name)) else next(d for d in incoming if _is_tensor(d))
    dtype: torch.dtype = like.dtype
    return dtype


def _taken_apart(
    spec: Spec, options: Mapping[str, Any], tensors: Sequence[Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Give formulas the incoming gradients, and by name the saved values beside options."""
    incoming, kept = _parted(spec, [*map(TORCH.wide, tensors)])
    saved = zip(spec.saves, kept, strict=True)
    return [*incoming], {**options, **{n: v for n, v in saved if v is not None}}


def _composed(
    call: Any, wanted: Sequence[bool], ddx: Sequence[Any], given: Sequence[Any]
) -> Sequence[Any]:
    """Gradients of gradients by one kernel, or else by the op's formula in torch's arithmetic."""
    spec = call.spec
    named_ddx = zip(call.needed, ddx, strict=False)
    back = {n: d for n, d in named_ddx if n is not None and d is not None}
    by_operations = foreign.is_traced() or is_more(*back.values())
    if spec.by_kernel is not None and not (
        by_operations or any(map(foreign.lacks_memory, back.values()))
    ):
        made = spec.second_by_kernel(wanted, back, given, call.rest, torch.empty_like)
        if made is not None:
            return made  # type: ignore[no-any-return]
    back = {n: TORCH.wide(d) for n, d in back.items()}
    incoming, named = _taken_apart(spec, call.rest, given)
    found = derivatives.second(spec.op, back, incoming, named, TORCH, wants_dy=wanted[0])
    pairs = zip((*found[0], *map(found[1].get, spec.saves)), given, strict=True)
    return [None if d is None or t is None else d.to(t.dtype) for d, t in pairs]


# --- forward mode ---------------------------------------------------------------------------------
# The tangents of gradients, by the tangents of all that they were computed of.


def _by_slope(call: Any, tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Find them where results follow element by element: a derivative is its own transpose."""
    (_, saved), (of_dy, of_saved) = tensors, tangents
    parts = [] if of_dy is None else [*in_graph(call, of_dy, saved)]
    if call.spec.op.piecewise_linear:
        parts = parts or [torch.zeros_like(saved)]
    elif of_saved is not None:

        def second(ddx: Any, *each: Any) -> Any:
            return call.second((False, True), (ddx,), each[:1], each[1:])[1:]

        parts += once(call.spec.where, second, of_saved, *tensors)
    return (sum(parts[1:], parts[0]),)


def _by_change(call: Any, tensors: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Find them by the op's formula, in torch's arithmetic."""
    spec = call.spec
    names, count = [n for n in call.needed if n is not None], len(tensors)

    def found(*each: Any) -> Any:
        incoming, named = _taken_apart(spec, call.rest, each[:count])
        moved = _taken_apart(spec, {}, each[count:])
        made = derivatives.changes(spec.op, names, incoming, named, moved, TORCH)
        given, saved = each[: len(incoming)], each[len(incoming) : count]
        return [d.to(_dtype_of(n, spec, given, saved)) for n, d in zip(names, made, strict=True)]

    made = iter(once(spec.where, found, *tensors, *tangents))
    return tuple(None if name is None else next(made) for name in call.needed)


class Once(Function):
    """Second derivatives, which have none of their own: their derivative is an error."""

    @staticmethod
    def forward(where: str, found: Any, *tensors: Any) -> tuple[Any, ...]:
        return tuple(found(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.where, *_ = inputs

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(
            f"{ctx.where}: has no third derivative: its second derivative can't be differentiated"
        )

    jvp = backward

    @staticmethod
    def vmap(info: Any, in_dims: Any, *values: Any) -> Any:
        return one_by_one(Once.apply, info.batch_size, in_dims, values)


def one_by_one(
    function: Callable[..., Any], size: int, in_dims: Sequence[Any], values: Sequence[Any]
) -> tuple[Any, Any]:
    """Call a function for one example of a batch after another; give the results and their axis.

    Of an empty batch the results have the shape of what one example of zeros gives.
    """

    def example(i: int, value: Any, dim: Any) -> Any:
        if not isinstance(dim, int):
            return value
        return value.select(dim, i) if size else value.sum(dim, dtype=value.dtype)

    parts = [
        function(*(example(i, value, dim) for value, dim in zip(values, in_dims, strict=True)))
        for i in range(max(size, 1))
    ]
    if _is_tensor(parts[0]):
        return torch.stack(parts)[:size], 0
    kind = type(parts[0])  # a tuple or a list
    found = [
        None if each[0] is None else torch.stack(each)[:size] for each in zip(*parts, strict=True)
    ]
    return kind(found), kind(None if each is None else 0 for each in found)


def is_batch(tensor: Any) -> bool:
    """Tell whether a tensor stands for several, as gradients do with ``is_grads_batched=True``.

    In torch.func.vmap that is a tensor of another kind, for which functions have a rule.
    """
    return isinstance(tensor, torch.Tensor) and _is_legacy_batch(tensor)


def is_more(*tensors: Any) -> bool:
    """Tell whether one of the tensors stands for several, or has a tangent: kernels take none."""
    return any(map(is_batch, tensors)) or foreign.has_tangent(*tensors)


def of_batch(gradients: Callable[..., Any], *tensors: Any) -> Sequence[Any]:
    """Gradients of tensors, where a tensor may stand for several.

    Autograd records what is done to each, not to the tensor that stands for them.
    """
    first = next(filter(is_batch, tensors), None)
    if first is None:
        return gradients(*tensors)  # type: ignore[no-any-return]
    # A tensor of another level than the one that is asked for is still a batch.
    level, stacked = next(
        (level, stacked)
        for level in range(1, _MOST_LEVELS)
        if not is_batch(stacked := torch._remove_batch_dim(first, level, 1, 0))
    )
    dims = [0 if is_batch(tensor) else None for tensor in tensors]
    values = [
        tensor if dim is None else torch._remove_batch_dim(tensor, level, len(stacked), 0)
        for tensor, dim in zip(tensors, dims, strict=True)
    ]
    found, _ = one_by_one(gradients, len(stacked), dims, values)
    return tuple(None if each is None else torch._add_batch_dim(each, 0, level) for each in found)


def apply(function: Any, *args: Any) -> Any:
    """Call a function of autograd, also inside transforms of torch.func."""
    if _are_transforms_active() or _is_compiling():
        return function.apply(*args)
    # Without the signature that `Function.apply` reads at each call, as of `Step`.
    return _apply(function)(*_unwrapped(args))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


_is_grad_enabled = torch.is_grad_enabled
_are_transforms_active = torch._C._are_functorch_transforms_active

_is_legacy_batch: Any = torch._C._functorch.is_legacy_batchedtensor
_is_compiling = torch.compiler.is_compiling
_unwrapped: Any = torch._functorch.utils.unwrap_dead_wrappers


@cache
def _apply(function: Any) -> Any:
    """How a function is entered where no transform is at work: what it saves, its forward does.

    A `setup_context` of its own would be another call.
    """
    base, compute, save = torch.autograd.Function, function.forward, function.setup_context

    def forward(ctx: Any, *args: Any) -> Any:
        output = compute(*args)
        save(ctx, args, output)
        return output

    if save is not base.setup_context:
        own = {"forward": staticmethod(forward), "setup_context": staticmethod(base.setup_context)}
        function = type(function)(function.__name__, (function,), {**own, "__module__": ""})
    return _entry(function)


def _entry(function: Any) -> Any:
    """Enter a function without Function.apply, which reads a signature at each call for defaults
    that are not there, and its node without `apply`, which looks for another name of `backward`."""
    function._backward_cls.apply = function.backward
    return getattr(super(torch.autograd.Function, function), "apply")  # noqa: B009 - no types


@cache
def named_as(function: Any, name: str) -> Any:
    """A function of autograd under an op's name, which its nodes and torch's profiler show."""
    own = "".join(map(str.capitalize, name.split("_")))
    return type(function)(own, (function,), {"__module__": ""})


def recorder(op: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """How a call is recorded that is found to be one that can be, and every other one like it."""
    spec = spec_of(op)
    named = spec.named(args, kwargs)
    check_recorded(spec, named)
    if any(_is_tensor(named.get(name)) for name in spec.told):
        return partial(_with_numbers, spec)
    return Recorded(spec, named, args, kwargs)


def _with_numbers(spec: Spec, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A recorded call with options that are tensors of one element, whose numbers no key has."""
    named = spec.named(args, kwargs)
    for name in spec.told & named.keys():
        if _is_tensor(named[name]) and named[name].numel() == 1:
            named[name] = named[name].item()
    arrays = [named[name] for name in spec.arrays if name in named]
    rest = {name: value for name, value in named.items() if name not in spec.arrays}
    return Recorded(spec, named, arrays, rest)((*arrays,), rest)
