"""Recurrent cells and layers.

A layer in one direction is one node of autograd over a whole sequence, whatever its length: the
projections of all inputs are one product ahead of it, each step is one product and one pass of the
gates, and in backward the gradients of the recurrent weight and of the biases are one product and
one sum over all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence

import fastact as fa

from ..autograd import Function, once_differentiable
from .module import Module


class LSTMCell(Module, torch.nn.LSTMCell):
    """`torch.nn.LSTMCell` by `fa.lstm_gates`."""

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
    """`torch.nn.GRUCell` by `fa.gru_gates`."""

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
    """The states before the step: as given, or zeros; all shapes are checked."""
    if input.ndim not in (1, 2) or input.shape[-1] != cell.input_size:
        raise ValueError(
            f"{cell.where()}: input must have shape ({cell.input_size},) or (batch, "
            f"{cell.input_size}), got {tuple(input.shape)}"
        )
    shape = (*input.shape[:-1], cell.hidden_size)
    if states is None:
        return (input.new_zeros(shape),) * count
    for state in states:
        if tuple(state.shape) != shape:
            raise ValueError(
                f"{cell.where()}: hx must have shape {shape}, got {tuple(state.shape)}"
            )
    return states


class _Steps(NamedTuple):
    """The rows of each step, and the order in which a direction takes the steps.

    The rows of all steps lie one behind the other, as in a packed sequence: each step has as many
    as the one before it, or the first of them.
    """

    sizes: list[int]
    order: range

    def of(self, rows: Tensor) -> list[Tensor]:
        """The rows of each step, in the direction's order."""
        views = rows.split(self.sizes)  # type: ignore[no-untyped-call]
        return [views[i] for i in self.order]


def _before(after: list[Tensor], initial: Tensor) -> Iterator[Tensor]:
    """The state before each step, of those after all steps, which may be written as this goes on.

    Backwards in time sequences come in as it goes on: they begin with their initial state.
    """
    state = initial[: len(after[0])]
    for following in after:
        known, count = len(state), len(following)
        if count > known:
            state = torch.cat((state, initial[known:count]))
        yield state if count == len(state) else state[:count]
        state = following


def _last(after: list[Tensor]) -> Tensor:
    """The state of each sequence after its last step."""
    following = [*map(len, after[1:]), 0]
    ending = [state[rows:] for state, rows in zip(after, following, strict=True)]
    return torch.cat(ending[::-1])


def _run(
    op: Any,
    steps: _Steps,
    weight: Tensor,
    biases: tuple[Tensor | None, Tensor | None],
    gates: Tensor,
    initial: tuple[Tensor, ...],
    *,
    saves: bool,
) -> tuple[list[Tensor], Tensor | None]:
    """The states after all steps, and the activated gates where they are to be saved.

    gates : the projections of the inputs.
    """
    rows, columns = len(gates), weight.shape[1]
    states = [gates.new_empty((rows, columns)) for _ in initial]
    kept = gates.new_empty((rows, len(op.kept) * columns)) if saves else None
    outs = [steps.of(array) for array in (*states, kept) if array is not None]
    before = [_before(after, first) for after, first in zip(outs, initial, strict=False)]
    # A copy the other way round: of so few rows a product takes much of its time to do that.
    weight, product = weight.t().contiguous(), gates.new_empty((steps.sizes[0], len(weight)))
    options = dict(zip(("bias", "recurrent_bias"), biases, strict=True))
    function = op.forward if saves else op
    for projected, out, *previous in zip(
        steps.of(gates), zip(*outs, strict=True), *before, strict=True
    ):
        recurrent = torch.mm(previous[0], weight, out=product[: len(projected)])
        out = out if len(out) > 1 else out[0]
        if op.takes_recurrent:
            function(projected, recurrent, previous[0], **options, out=out)
        else:
            function(projected, previous[1], recurrent=recurrent, **options, out=out)
    return states, kept


def _step_by_step(
    op: Any,
    steps: _Steps,
    weight: Tensor,
    biases: tuple[Tensor | None, Tensor | None],
    gates: Tensor,
    initial: tuple[Tensor, ...],
) -> tuple[Tensor, ...]:
    """The results of `_Recurrence` by a call of the op for each step: for torch.func."""
    options = dict(zip(("bias", "recurrent_bias"), biases, strict=True))
    rows = dict(zip(steps.order, steps.of(gates), strict=True))
    after: dict[int, tuple[Tensor, ...]] = {}
    states = tuple(state[:0] for state in initial)
    for i in steps.order:
        projected, known = rows[i], len(states[0])
        # Backwards in time sequences come in as it goes on, forwards they end.
        states = tuple(
            torch.cat((state, first[known : len(projected)]))[: len(projected)]
            for state, first in zip(states, initial, strict=True)
        )
        recurrent = torch.mm(states[0], weight.t())
        if op.takes_recurrent:
            states = (op(projected, recurrent, states[0], **options),)
        else:
            states = op(projected, states[1], recurrent=recurrent, **options)
        after[i] = states
    each = [list(state) for state in zip(*(after[i] for i in steps.order), strict=True)]
    in_time = [after[i][0] for i in sorted(after)]
    return torch.cat(in_time), *map(_last, each)


class _Recurrence(Function):
    """A layer in one direction.

    Backward goes through the steps in the other order, from the activated gates that were saved,
    with dh and dc of all sequences. Before its last step a sequence has there the gradient of its
    last state, and after its first one the gradient of its initial state.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, where, op, steps, weight, bias, recurrent_bias, gates, *initial
    ) -> tuple[Tensor, ...]:
        arrays = (weight, (bias, recurrent_bias), gates, initial)
        states, kept = _run(op, steps, *arrays, saves=True)
        ctx.where, ctx.op, ctx.steps = where, op, steps
        ctx.save_for_backward(weight, bias, recurrent_bias, kept, *states, *initial)
        return states[0], *(_last(steps.of(state)) for state in states)

    @staticmethod
    @once_differentiable
    def backward(ctx, dh_all, *dlast):  # type: ignore[no-untyped-def]
        weight, bias, recurrent_bias, kept, *states_and_initial = ctx.saved_tensors
        op, steps, half = ctx.op, ctx.steps, len(states_and_initial) // 2
        after = [steps.of(state) for state in states_and_initial[:half]]
        before = [
            list(_before(*pair)) for pair in zip(after, states_and_initial[half:], strict=True)
        ]
        dgates = kept.new_empty((len(kept), len(weight)))
        drecurrent = torch.empty_like(dgates) if op.takes_recurrent else dgates
        carried = [d.clone() for d in dlast]
        arrays = (kept, dgates, drecurrent, dh_all)
        each = zip(*map(steps.of, arrays), *before, *after[1:], strict=True)
        for kept_here, dx, dproduct, dh_here, *states in reversed(list(each)):
            dh = carried[0][: len(dx)].add_(dh_here)
            if op.takes_recurrent:
                # dh_prev: first the part past the product, then the part through it.
                out = (dx, dproduct, dh, None, None)
                op.backward(dh, kept_here, None, states[0], out=out)
                dh.addmm_(dproduct, weight)
            else:
                dc = carried[1][: len(dx)]
                op.backward(dh, dc, kept_here, *states[1:], out=(dx, dc, None))
                torch.mm(dx, weight, out=dh)
        # recurrent = h_prev @ weight.T + recurrent_bias, at all steps
        h_prev = torch.cat([before[0][i] for i in steps.order])
        dweight = drecurrent.t() @ h_prev if ctx.needs_input_grad[3] else None
        dbiases = [
            fa.bias_grad(d).to(b.dtype) if b is not None else None
            for b, d in ((bias, dgates), (recurrent_bias, drecurrent))
        ]
        return None, None, None, dweight, *dbiases, dgates, *carried


class _Recurrent(Module, torch.nn.RNNBase):
    """The part that LSTM and GRU share.

    op : the gates of a step. single : there is one state, and hx is no tuple.
    """

    op: Any
    single: bool

    @classmethod
    def refuses(cls, module: torch.nn.Module) -> str:
        size = getattr(module, "proj_size", 0)
        return f"proj_size must be 0, got {size}" if size else ""

    def forward(self, input: Any, hx: Any = None) -> Any:
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
        """The states before the first step, of shape (layers * directions, batch, hidden)."""
        shape = (self.num_layers * (1 + self.bidirectional), batch, self.hidden_size)
        if hx is None:
            return [data.new_zeros(shape) for _ in range(1 if self.single else 2)]
        states = [hx] if self.single else list(hx)
        unbatched = not isinstance(input, PackedSequence) and input.ndim == 2
        expected = (shape[0], shape[2]) if unbatched else shape
        for state in states:
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
        """The result of the last layer, and the last states of all."""
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
                names = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * self.bias
                weights = [cast(getattr(self, f"{name}_l{layer}{suffix}")) for name in names]
                initial = tuple(state[len(lasts)] for state in states)
                out, *last = self._direction(data, steps, initial, *weights)
                outs.append(out)
                lasts.append(tuple(last))
            data = outs[0] if len(outs) == 1 else torch.cat(outs, 1)
            if self.dropout and layer < self.num_layers - 1:
                data = functional.dropout(data, self.dropout, self.training)
        return data, [torch.stack(state) for state in zip(*lasts, strict=True)]

    def _direction(
        self,
        data: Tensor,
        steps: _Steps,
        initial: tuple[Tensor, ...],
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias: Tensor | None = None,
        recurrent_bias: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        gates = functional.linear(data, weight_ih)
        biases = (bias, recurrent_bias)
        if torch._C._are_functorch_transforms_active():
            return _step_by_step(self.op, steps, weight_hh, biases, gates, initial)
        arrays = (weight_hh, *biases, gates, *initial)
        if torch.is_grad_enabled() and any(a is not None and a.requires_grad for a in arrays):
            return _Recurrence.apply(self.where(), self.op, steps, *arrays)  # type: ignore[no-any-return, no-untyped-call]
        states, _ = _run(self.op, steps, weight_hh, biases, gates, initial, saves=False)
        return states[0], *(_last(steps.of(state)) for state in states)


class LSTM(_Recurrent, torch.nn.LSTM):
    """`torch.nn.LSTM` by `fa.lstm_gates`; without `proj_size`."""

    op, single = fa.lstm_gates, False
    unasked_for = (
        "oneDNN has it in one piece, and is faster in float32; only=torch.nn.LSTM takes it"
    )


class GRU(_Recurrent, torch.nn.GRU):
    """`torch.nn.GRU` by `fa.gru_gates`."""

    op, single = fa.gru_gates, True


def _packed(module: Any, input: Any) -> tuple[Tensor, list[int], Tensor | None, Tensor | None]:
    """Rows of all steps one behind the other, how many each step has, and the sequences' order."""
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
    """A tensor that goes into a matrix product, as autocast casts it."""
    device = data.device.type
    if not torch.is_autocast_enabled(device):
        return lambda tensor: tensor
    dtype = torch.get_autocast_dtype(device)
    return lambda tensor: tensor.to(dtype)
