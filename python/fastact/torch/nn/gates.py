"""Recurrent cells and layers.

A layer in one direction is one node of autograd for a whole sequence of any length. The projections
of all inputs are one product, and each step is one product and one pass of the gates. In backward
the gradients of the weights and of the biases are a product and a sum over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

import fastact as fa

from ...derivatives.gates import results
from ...interop import foreign
from ..autograd import Function
from ..decompositions import PLAIN
from .module import Module, shape_of
from .recomputed import differentiated_by

__all__ = ["GRU", "LSTM", "GRUCell", "LSTMCell"]


class LSTMCell(Module, torch.nn.LSTMCell):
    """`torch.nn.LSTMCell`, computed by `fastact.lstm_gates`."""

    def forward(
        self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        h, c = _states_of_cell(self, input, hx)
        h, c = fa.lstm_gates(
            functional.linear(input, self.weight_ih),
            c,
            recurrent=functional.linear(h, self.weight_hh),
            bias=self.bias_ih,
            recurrent_bias=self.bias_hh,
        )
        return h, c


class GRUCell(Module, torch.nn.GRUCell):
    """`torch.nn.GRUCell`, computed by `fastact.gru_gates`."""

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        (h,) = _states_of_cell(self, input, None if hx is None else (hx,), count=1)
        return fa.gru_gates(
            functional.linear(input, self.weight_ih),
            functional.linear(h, self.weight_hh),
            h,
            bias=self.bias_ih,
            recurrent_bias=self.bias_hh,
        )


def _states_of_cell(
    cell: Any, input: Tensor, states: tuple[Tensor, ...] | None, count: int = 2
) -> tuple[Tensor, ...]:
    """Return the given states before the step, or zeros, with all shapes checked."""
    if input.ndim not in (1, 2) or shape_of(input)[-1] != cell.input_size:
        raise ValueError(
            f"{cell.where()}: input must have shape ({cell.input_size},) or (batch, "
            f"{cell.input_size}), got {tuple(input.shape)}"
        )
    if states is None:
        return (input.new_zeros((*input.shape[:-1], cell.hidden_size)),) * count
    for state in states:
        allowed, found = (*shape_of(input)[:-1], cell.hidden_size), shape_of(state)
        if found != allowed:
            raise ValueError(f"{cell.where()}: hx must have shape {allowed}, got {found}")
    return states


class _Steps(NamedTuple):
    """The rows of each step, and the order in which a direction takes the steps.

    The rows of the steps follow each other, as in a packed sequence: each step has as many rows as
    the one before it, or only the first of them.
    """

    sizes: list[int]
    order: range

    def of(self, rows: Tensor) -> list[Tensor]:
        """Return the rows of each step, in the direction's order."""
        views = rows.split(self.sizes)  # type: ignore[no-untyped-call]
        return [views[i] for i in self.order]


def _before(after: list[Tensor], initial: Tensor) -> Iterator[Tensor]:
    """Yield the state before each step, from those after steps, which may be written meanwhile.

    Backwards in time, sequences join later and begin with their initial state.
    """
    state = initial[: len(after[0])]
    for following in after:
        known, count = len(state), len(following)
        if count > known:
            state = torch.cat((state, initial[known:count]))
        yield state if count == len(state) else state[:count]
        state = following


def _last(after: list[Tensor]) -> Tensor:
    """Return the state of each sequence after its last step."""
    following = [*map(len, after[1:]), 0]
    ending = [state[rows:] for state, rows in zip(after, following, strict=True)]
    return torch.cat(ending[::-1])


class _Arrays(NamedTuple):
    """The arrays of a layer in one direction; gradients come back in this order.

    data : the inputs, the rows of all steps. initial : the states before the first step.
    weight_hr : the projection of h after each step; None for none.
    """

    data: Tensor
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    weight_hr: Tensor | None
    initial: tuple[Tensor, ...]

    @classmethod
    def of(cls, *arrays: Any) -> _Arrays:
        """Group arrays in this order, with the states one by one."""
        return cls._make((*arrays[:6], arrays[6:]))

    @property
    def flat(self) -> tuple[Any, ...]:
        return *self[:6], *self.initial


def _run(
    op: Any, steps: _Steps, arrays: _Arrays, *, saves: bool
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """Return the states after all steps, h before its projection, and the gates to save."""
    gates = functional.linear(arrays.data, arrays.weight_ih)
    rows, columns = len(gates), arrays.initial[-1].shape[1]
    states = [gates.new_empty((rows, state.shape[1])) for state in arrays.initial]
    projection, hidden = arrays.weight_hr, states[0]
    if projection is not None:
        projection, hidden = projection.t(), gates.new_empty((rows, columns))
    kept = gates.new_empty((rows, len(op.kept) * columns)) if saves else None
    outs = [steps.of(array) for array in (hidden, *states[1:], kept) if array is not None]
    after = [steps.of(state) for state in states]
    before = [_before(*pair) for pair in zip(after, arrays.initial, strict=True)]
    # The weight is transposed once; with few rows, a product would spend much time on that.
    weight = arrays.weight_hh.t().contiguous()
    product = gates.new_empty((steps.sizes[0], weight.shape[1]))
    options = {"bias": arrays.bias_ih, "recurrent_bias": arrays.bias_hh}
    function = op.forward if saves else op
    for projected, h, out, *previous in zip(
        steps.of(gates), after[0], zip(*outs, strict=True), *before, strict=True
    ):
        recurrent = torch.mm(previous[0], weight, out=product[: len(projected)])
        written = out if len(out) > 1 else out[0]
        if op.takes_recurrent:
            function(projected, recurrent, previous[0], **options, out=written)
        else:
            function(projected, previous[1], recurrent=recurrent, **options, out=written)
        if projection is not None:
            torch.mm(out[0], projection, out=h)
    return states, hidden, kept


def _in_torch(op: Any, steps: _Steps, arrays: _Arrays) -> tuple[Tensor, ...]:
    """Compute `_Recurrence` by torch's own ops, which have derivatives of any order."""
    gates = functional.linear(arrays.data, arrays.weight_ih, arrays.bias_ih)
    rows = dict(zip(steps.order, steps.of(gates), strict=True))
    after: dict[int, tuple[Tensor, ...]] = {}
    states = tuple(state[:0] for state in arrays.initial)
    for i in steps.order:
        projected, known = rows[i], len(states[0])
        # Backwards in time, sequences join as it goes on; forwards, they end.
        states = tuple(
            torch.cat((state, first[known : len(projected)]))[: len(projected)]
            for state, first in zip(states, arrays.initial, strict=True)
        )
        recurrent = functional.linear(states[0], arrays.weight_hh, arrays.bias_hh)
        given = {"gates": projected, "recurrent": recurrent, op.state: states[-1]}
        h, *others = results(op, given, PLAIN)
        if arrays.weight_hr is not None:
            h = functional.linear(h, arrays.weight_hr)
        states = after[i] = (h, *others)
    each = [list(state) for state in zip(*(after[i] for i in steps.order), strict=True)]
    in_time = [after[i][0] for i in sorted(after)]
    return torch.cat(in_time), *map(_last, each)


class _Recurrence(Function):
    """A layer in one direction.

    Backward takes the steps in reverse order, from the saved activated gates, with dh and dc of all
    sequences. There a sequence starts with the gradient of its last state and ends with the
    gradient of its initial state.
    """

    @staticmethod
    def forward(ctx, call, *flat) -> tuple[Tensor, ...]:  # type: ignore[no-untyped-def]
        op, steps = ctx.call = call
        states, hidden, kept = _run(op, steps, _Arrays.of(*flat), saves=True)
        ctx.save_for_backward(*flat, kept, hidden, *states)
        return states[0], *(_last(steps.of(state)) for state in states)

    @staticmethod
    @differentiated_by(lambda call, *flat: _in_torch(call[0], call[1], _Arrays.of(*flat)))
    def backward(ctx, dh_all, *dlast):  # type: ignore[no-untyped-def]
        (op, steps), needed = ctx.call, ctx.needs_input_grad[1:]
        arrays = _Arrays.of(*ctx.saved_tensors[: len(needed)])
        kept, hidden, *states = ctx.saved_tensors[len(needed) :]
        projection = arrays.weight_hr
        after = [steps.of(state) for state in states]
        before = [list(_before(*pair)) for pair in zip(after, arrays.initial, strict=True)]
        dgates = kept.new_empty((len(kept), len(arrays.weight_hh)))
        drecurrent = torch.empty_like(dgates) if op.takes_recurrent else dgates
        dprojected = None if projection is None else torch.empty_like(dh_all)
        carried = [d.clone() for d in dlast]
        rows = (kept, dgates, drecurrent, dh_all if dprojected is None else dprojected, dh_all)
        each = zip(*map(steps.of, rows), *before, *after[1:], strict=True)
        for kept_here, dx, dproduct, dprojected_here, dh_here, *states in reversed(list(each)):
            dh = carried[0][: len(dx)].add_(dh_here)
            if op.takes_recurrent:
                # dh_prev: first the part past the product, then the part through it.
                out = (dx, dproduct, dh, None, None)
                op.backward(dh, kept_here, None, states[0], out=out)
                dh.addmm_(dproduct, arrays.weight_hh)
            else:
                dhidden = dh if projection is None else dprojected_here.copy_(dh) @ projection
                dc = carried[1][: len(dx)]
                op.backward(dhidden, dc, kept_here, *states[1:], out=(dx, dc, None))
                torch.mm(dx, arrays.weight_hh, out=dh)
        # recurrent = h_prev @ weight_hh.T + bias_hh, at all steps; the others likewise
        h_prev = torch.cat([before[0][i] for i in steps.order])
        products = (
            (needed[1], dgates, arrays.data),
            (needed[2], drecurrent, h_prev),
            (needed[5], dprojected, hidden),
        )
        dweight_ih, dweight_hh, dprojection = (
            d.t() @ x if needs and d is not None else None for needs, d, x in products
        )
        dbiases = [
            fa.bias_grad(d).to(b.dtype) if b is not None else None
            for b, d in ((arrays.bias_ih, dgates), (arrays.bias_hh, drecurrent))
        ]
        ddata = dgates @ arrays.weight_ih if needed[0] else None
        return None, ddata, dweight_ih, dweight_hh, *dbiases, dprojection, *carried


class _Recurrent(Module, torch.nn.RNNBase):
    """The base of LSTM and GRU.

    op : the gates of a step. single : whether there is one state, so that hx is not a tuple.
    """

    op: Any
    single: bool

    def forward(self, input: Any, hx: Any = None) -> Any:
        # A program would have as many operations as steps; an exported one has the whole layer.
        if foreign.is_traced() or torch.compiler.is_exporting():
            return super().forward(input, hx)
        data, sizes, order, back = _packed(self, input)
        states = self._initial(input, hx, data, sizes[0], order)
        out, last = self._layers(data, sizes, states)
        if back is not None:
            last = [state.index_select(1, back) for state in last]
        if isinstance(input, PackedSequence):
            packed = PackedSequence(out, input.batch_sizes, order, back)
            return packed, (last[0] if self.single else tuple(last))
        out = out.reshape(len(sizes), sizes[0], out.shape[1])
        if input.ndim == 2:
            out, last = out.squeeze(1), [state.squeeze(1) for state in last]
        elif self.batch_first:
            out = out.transpose(0, 1)
        return out, (last[0] if self.single else tuple(last))

    def _initial(
        self, input: Any, hx: Any, data: Tensor, batch: int, order: Tensor | None
    ) -> list[Tensor]:
        """Return the states before the first step, (layers * directions, batch, hidden)."""
        count = self.num_layers * (1 + self.bidirectional)
        sizes = [self.proj_size or self.hidden_size, self.hidden_size][: 1 if self.single else 2]
        if hx is None:
            return [data.new_zeros(count, batch, size) for size in sizes]
        states = [hx] if self.single else list(hx)
        unbatched = not isinstance(input, PackedSequence) and input.ndim == 2
        for state, size in zip(states, sizes, strict=True):
            expected = (count, size) if unbatched else (count, batch, size)
            if tuple(state.shape) != expected:
                raise ValueError(
                    f"{self.where()}: hx must have shape {expected}, got {tuple(state.shape)}"
                )
        if unbatched:
            return [state.unsqueeze(1) for state in states]
        return states if order is None else [state.index_select(1, order) for state in states]

    def _layers(
        self, data: Tensor, sizes: list[int], states: list[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the result of the last layer, and the last states of all layers."""
        cast = _autocast(data)
        order = range(len(sizes))
        directions = {"": _Steps(sizes, order)}
        if self.bidirectional:
            directions["_reverse"] = _Steps(sizes, order[::-1])
        data, states = cast(data), [cast(state) for state in states]
        lasts: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outs = []
            for suffix, steps in directions.items():
                bias = ["bias_ih", "bias_hh"] if self.bias else []
                projection = ["weight_hr"] if self.proj_size else []
                weights = {
                    name: cast(getattr(self, f"{name}_l{layer}{suffix}"))
                    for name in ("weight_ih", "weight_hh", *bias, *projection)
                }
                initial = tuple(state[len(lasts)] for state in states)
                named = [weights.get(name) for name in _Arrays._fields[1:6]]
                out, *last = self._direction(steps, _Arrays.of(data, *named, *initial))
                outs.append(out)
                lasts.append(tuple(last))
            data = outs[0] if len(outs) == 1 else torch.cat(outs, 1)
            if self.dropout and layer < self.num_layers - 1:
                data = functional.dropout(data, self.dropout, self.training)
        return data, [torch.stack(state) for state in zip(*lasts, strict=True)]

    def _direction(self, steps: _Steps, arrays: _Arrays) -> tuple[Tensor, ...]:
        # Transforms of torch.func and forward mode go through torch's own ops.
        if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
            return _in_torch(self.op, steps, arrays)
        requires = (a is not None and a.requires_grad for a in arrays.flat)
        if torch.is_grad_enabled() and any(requires):
            return _Recurrence.apply((self.op, steps), *arrays.flat)  # type: ignore[no-any-return, no-untyped-call]
        states, _, _ = _run(self.op, steps, arrays, saves=False)
        return states[0], *(_last(steps.of(state)) for state in states)


class LSTM(_Recurrent, torch.nn.LSTM):
    """`torch.nn.LSTM`, computed by `fastact.lstm_gates`."""

    op, single = fa.lstm_gates, False

    @classmethod
    def unasked_for(cls, module: Any) -> str:
        if module.proj_size:
            return ""
        return "oneDNN has it in one piece, and is faster in float32; only=torch.nn.LSTM takes it"


class GRU(_Recurrent, torch.nn.GRU):
    """`torch.nn.GRU`, computed by `fastact.gru_gates`."""

    op, single = fa.gru_gates, True


def _packed(module: Any, input: Any) -> tuple[Tensor, list[int], Tensor | None, Tensor | None]:
    """Return the rows of all steps in order, their number in each step, and sequences' order."""
    if isinstance(input, PackedSequence):
        data, order, back = input.data, input.sorted_indices, input.unsorted_indices
        sizes = input.batch_sizes.tolist()
    else:
        if input.ndim not in (2, 3):
            raise ValueError(
                f"{module.where()}: input must have two axes or three, got shape "
                f"{tuple(input.shape)}"
            )
        by_step = input.unsqueeze(1) if input.ndim == 2 else input
        if module.batch_first and input.ndim == 3:
            by_step = by_step.transpose(0, 1)
        data, order, back = by_step.flatten(0, 1), None, None
        sizes = [by_step.shape[1]] * by_step.shape[0]
    if data.shape[-1] != module.input_size:
        raise ValueError(
            f"{module.where()}: input must have {module.input_size} features, got shape "
            f"{tuple(data.shape if isinstance(input, PackedSequence) else input.shape)}"
        )
    if not sizes:
        raise ValueError(f"{module.where()}: input must have at least one step, got none")
    dtype = module.weight_ih_l0.dtype
    if data.dtype != dtype and not torch.is_autocast_enabled(data.device.type):
        raise TypeError(
            f"{module.where()}: input must have the parameters' dtype, {dtype}, got {data.dtype}"
        )
    return data, sizes, order, back


def _autocast(data: Tensor) -> Any:
    """Cast tensors that go into a matrix product as autocast does."""
    device = data.device.type
    if not torch.is_autocast_enabled(device):
        return lambda tensor: tensor
    dtype = torch.get_autocast_dtype(device)
    return lambda tensor: tensor.to(dtype)
