"""The op object of recurrent gates: packed arrays, their checks, and the three entry points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter
from types import SimpleNamespace
from typing import Any, NamedTuple, TypedDict, Unpack, overload

import numpy as np

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from .bounds import GateBounds
from .op import CachedOp, EntryPoint, Model, P, R, register, signature_of
from .reduction import IDENTITY, SUM_BOUNDS, add_up
from .types import Array, ArrayOrNumber, Outs, Stream

#: Their derivation is in src/common/gates/gates.h.
GATE_BOUNDS = GateBounds(*_cpu.GATE_ULPS, SUM_BOUNDS)

_BIASES = ("bias", "recurrent_bias")
_PACKED = ("gates", "recurrent", *_BIASES)

Shape = tuple[int, ...]

#: The view of an output, None where there is none, and what `Call.result` makes an array of.
Made = tuple[View | None, Any]


class StepOptions(TypedDict, total=False):
    """What `forward` takes by keyword."""

    recurrent: Array | None
    bias: Array | None
    recurrent_bias: Array | None
    order: str
    recompute: bool
    out: Outs[Array]
    stream: Stream


class BackwardOptions(StepOptions, total=False):
    """What `backward` takes by keyword."""

    gates: Array
    c_prev: ArrayOrNumber
    h_prev: ArrayOrNumber
    c: Array | None
    accumulate: bool


class Shapes(NamedTuple):
    """The shapes of a step: the batch's axes, a state's length, the gates of a packed array."""

    batch: Shape
    columns: int
    gates: int

    @property
    def state(self) -> Shape:
        return (*self.batch, self.columns)

    @property
    def packed(self) -> Shape:
        return (*self.batch, self.gates * self.columns)


class Gates(CachedOp[P, R]):
    """A step of a recurrent layer behind its matrix products, and its gradients.

    letters : the gates of a packed array, in the order in which they lie there by default.
    kept : what `forward` saves in place of the gates, packed too; q is what a reset gate scales.
    state : the name of the state before the step.
    takes_recurrent : the recurrent projection is an array by position, with a gradient of its own,
        for a gate works on it; else it is an option, which is added to the gates.
    """

    bounds = GATE_BOUNDS

    def __init__(
        self,
        function: Callable[P, R],
        kind: str,
        letters: str,
        kept: str,
        results: tuple[str, ...],
    ) -> None:
        call = self._declare(function, "gates")
        self._which = _cpu.GATE_KINDS.index(kind)
        self._has_order = "order" in call.parameters
        self.letters = letters or str(call.parameters["order"].default)
        self.kept, self.results = kept or self.letters, results
        arrays = tuple(n for n, p in call.parameters.items() if p.kind is Parameter.POSITIONAL_ONLY)
        options = tuple(name for name in _PACKED if name not in arrays)
        self.state, self.takes_recurrent = arrays[-1], "recurrent" in arrays
        self.saves = (*arrays, *results[1:], *options)
        of_biases = _BIASES if self.takes_recurrent else _BIASES[:1]
        self.gradients = tuple(f"d{name}" for name in (*arrays, *of_biases))
        if not self.takes_recurrent:
            self.shares = {"recurrent": "gates", "recurrent_bias": "bias"}
        forward = signature_of(call, arrays, recompute=False, accumulates=False)
        incoming = tuple(f"d{name}" for name in results)
        backward = signature_of(call, incoming, self.saves, recompute=False)
        self._enter(
            call=EntryPoint(self._where(), call, outputs=len(results)),
            forward=EntryPoint(self._where("forward"), forward, outputs=len(results), extra=1),
            backward=EntryPoint(
                self._where("backward"), backward, outputs=len(self.gradients), skips=True
            ),
        )

    @property
    def count(self) -> int:
        """How many gates a packed array has."""
        return len(self.letters)

    def sample(self, x: Any, dy: Any) -> dict[str, Any]:
        row = np.linspace(0.5, 1.5, x.shape[1]).astype(x.dtype)
        bias = np.tile(row, self.count)
        named = {"gates": np.tile(x, self.count), self.state: dy, "bias": bias}
        if self.takes_recurrent:
            named |= {"recurrent": np.tile(dy, self.count), "recurrent_bias": bias}
        return named

    def models(self, named: Mapping[str, Any]) -> tuple[list[Model], dict[str, Model]]:
        *batch, packed = named["gates"].shape
        length = packed // self.count
        state, kept = (*batch, length), (*batch, len(self.kept) * length)
        return [Model(state) for _ in self.results], {"gates": Model(kept)}

    def saved(self, named: Mapping[str, Any]) -> tuple[Any, ...]:
        return super().saved({**named, "recurrent": None})

    def gradient_shape(self, name: str, named: Mapping[str, Any]) -> tuple[int, ...] | None:
        if name not in ("gates", "recurrent"):
            return None
        *batch, kept = named["gates"].shape
        return (*batch, kept // len(self.kept) * self.count)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._step("call", args, kwargs)[0]

    @overload
    def forward(self, *args: P.args, **kwargs: P.kwargs) -> tuple[R, tuple[Any, ...]]: ...

    @overload
    def forward(
        self, gates: Array, /, *arrays: ArrayOrNumber, **options: Unpack[StepOptions]
    ) -> tuple[Any, tuple[Any, ...]]: ...

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        """What calling the op gives, and the tuple that `backward` needs.

        ``y, saved = op(...), (activated gates, state before, ...)``.

        Parameters
        ----------
        *args
            The arrays of the call.
        **kwargs
            The options of the call, and `recompute`, a bool, by default False: save the inputs
            alone, from which `backward` makes the gates again: as exact, less memory, more time.
            `out` may be a tuple that goes on with an array for the activated gates, which may be
            gates itself. Saved arrays may not be written.

        Returns
        -------
        y : array or tuple of arrays
            What calling the op returns.
        saved : tuple
            The inputs of the step, in the order that `saves` of the op lists. In the place of gates
            are the activated gates, packed in one array, and no recurrent; with recompute=True, the
            inputs. Arrays are not copied: do not change them before `backward`.

        Notes
        -----
        The results have the bits of the call; their accuracy, and which letters the saved gates are
        of, stand in the docstring of the op.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> gates, c_prev = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]])
        >>> (h, c), saved = fa.lstm_gates.forward(gates, c_prev)
        >>> saved[0]
        array([[0.5       , 0.7310..., 0.9640..., 0.9525...]])
        """
        return self._step("forward", args, kwargs)

    def backward(
        self, *arrays: ArrayOrNumber | None, **options: Unpack[BackwardOptions]
    ) -> tuple[Any, ...]:
        """The gradients with respect to the arrays of a step and to its biases, in one pass.

        In the columns of a gate k that is a sigmoid ``dgates = dk * k * (1 - k)``, of a tanh
        ``dgates = dk * (1 - k**2)``, with dk the gradient with respect to that gate, for which the
        docstring of the op has the formula. ``dbias = dgates.sum(axes)`` over all but the last.

        Parameters
        ----------
        *arrays
            First the gradient of the loss with respect to each result, of its shape, or a Python
            scalar; the gradient of an LSTM's c, from the step that follows, may be None. Then what
            `forward` saved.
        **options
            `order`, where the op has this option, and `recompute`: as given to `forward`.
            `out`, a tuple of arrays or None: where to write each gradient; one that is None is not
            computed. Which of them may be arrays that are read, the docstring of the op states.
            `accumulate`, a bool, by default False: add the gradients to `out` instead of
            overwriting it. `stream`, for arrays on a GPU: the stream to work on.

        Returns
        -------
        tuple
            The gradients that `gradients` of the op lists: dgates, packed as gates are, which is
            recurrent's too, unless drecurrent follows; the gradient of the state before; dbias, the
            sum of dgates over all rows, of either bias: in the dtype of bias, or of recurrent_bias
            where that is the only one. With drecurrent there is drecurrent_bias, the sum of that,
            and each is in the dtype of its bias. None where there is no bias.

        Notes
        -----
        The gradients are computed from the activated gates as they were kept. With S, H and u as
        for the call and G the magnitude of the gradients that came back, an error is at most 40 u
        (1 + 0.15 S) (1 + H)^2 G, times (1 + Q)^2 with Q as for the call where a reset gate works
        behind the matrix product, and the rounding to the dtype. dbias and drecurrent_bias are each
        a sum in double, within the bounds of `fastact.sum` and of what its terms err by before they
        are rounded, always in one order; on the CPU, for float32 and float64, with the bits of
        ``bias_grad`` of the gradients that belong to it, and where those are large, in a second
        pass.

        Examples
        --------
        >>> import numpy as np, fastact as fa
        >>> gates, c_prev = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[1.0]])
        >>> (h, c), saved = fa.lstm_gates.forward(gates, c_prev, bias=np.zeros(4))
        >>> dgates, dc_prev, dbias = fa.lstm_gates.backward(np.ones((1, 1)), None, *saved)
        >>> dgates
        array([[0.0685..., 0.0558..., 0.0100..., 0.0378...]])
        """
        entry = self.entry_points["backward"]
        values, where = entry.bind(arrays, options), entry.where
        positions = self._positions(where, values)
        given = self._given_back(where, values)
        with Call(where, values.stream, **given) as call:
            shapes = self._shapes(call, self.count if values.recompute else len(self.kept))
            made = self._make_gradients(call, shapes, values)
            views = [view for view, _ in made]
            _keep_apart(call, views)
            gradients = dict(zip(self.differentiated, views, strict=True))
            sums = self._bias_sums(gradients)
            apart = not values.accumulate and self._sums_apart(call, sums)
            self._run_backward(call, gradients, positions, values, bool(sums) and not apart)
            if apart:
                rows = tuple(range(len(shapes.batch)))
                for bias, packed in sums:
                    assert packed is not None
                    add_up(call, IDENTITY, packed, bias.with_axes(rows), rows)
            return tuple(
                None if view is None else call.result(out, new)
                for out, (view, new) in zip(values.out, made, strict=True)
            )

    # --- the call and forward ---------------------------------------------------------------------

    def _step(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The results, and what `forward` saves."""
        entry, saves = self.entry_points[name], name == "forward"
        options, where = entry.bind(args, kwargs), entry.where
        positions = self._positions(where, options)
        given = self._given(where, options)
        keeps = saves and not options.recompute
        arrays = {name: value for name, value in given.items() if value is not None}
        with Call(where, options.stream, **arrays) as call:
            shapes, count = self._shapes(call, self.count), len(self.results)
            made = self._make_results(call, shapes, options.out, saves, keeps)
            views = [view for view, _ in made]
            _keep_apart(call, views)
            if saves:
                self._spare_saved(call, views, options.out, keeps)
            self._run_forward(call, views[:count], views[count] if keeps else None, positions)
            results = [
                call.result(out, new) for out, (_, new) in zip(options.out, made, strict=False)
            ]
            y = results[0] if count == 1 else tuple(results[:count])
            return y, self._saved(call, given, results, keeps) if saves else ()

    def _given(self, where: str, options: SimpleNamespace) -> dict[str, Any]:
        """The inputs of a step by name; an option that is not given is None."""
        arrays = self.entry_points["call"].arrays
        for name in arrays:
            if getattr(options, name) is None:
                raise TypeError(f"{where}: {name} must be an array, got None")
        names = (*arrays, *(name for name in _PACKED if name not in arrays))
        given = {name: getattr(options, name) for name in names}
        _no_numbers(where, given)
        return given

    def _make_results(
        self, call: Call, shapes: Shapes, outs: tuple[Any, ...], saves: bool, keeps: bool
    ) -> list[tuple[View, Any]]:
        """The results, and the activated gates where they are kept."""
        count = len(self.results)
        made = [
            call.output(validate.out_name(i, outs), out, "gates", shape=shapes.state)
            for i, out in enumerate(outs[:count])
        ]
        if keeps:
            shape = (*shapes.batch, len(self.kept) * shapes.columns)
            made.append(
                call.output(validate.out_name(count, outs), outs[count], "gates", shape=shape)
            )
        elif saves and outs[count] is not None:
            raise ValueError(
                f"{call.where}: out[{count}] must be None with recompute=True, which keeps no "
                f"activated gates"
            )
        return made

    def _spare_saved(
        self, call: Call, views: list[View], outs: tuple[Any, ...], keeps: bool
    ) -> None:
        """Saved arrays are not written."""
        names = (self.state,) if keeps else ("gates", "recurrent", self.state)
        saved = {name: call.views[name] for name in names if name in call.arrays}
        for i, view in enumerate(views):
            validate.may_write(call.where, validate.out_name(i, outs), view, saved, in_place=False)

    def _run_forward(
        self, call: Call, results: list[View], kept: View | None, positions: tuple[int, ...]
    ) -> None:
        views = call.views
        call.run(
            "gates_forward",
            state=views[self.state],
            kind=self._which,
            gates=views["gates"],
            recurrent=views.get("recurrent"),
            bias=views.get("bias"),
            recurrent_bias=views.get("recurrent_bias"),
            hidden=results[0],
            cell=results[1] if len(results) > 1 else None,
            kept=kept,
            places=positions,
        )

    def _saved(
        self, call: Call, given: Mapping[str, Any], results: list[Any], keeps: bool
    ) -> tuple[Any, ...]:
        """`backward` needs the activated gates, or the inputs, from which it makes them."""
        values = {name: call.arrays.get(name, value) for name, value in given.items()}
        if keeps:
            values |= {"gates": results[-1], "recurrent": None, "c": results[-2]}
        else:
            values["c"] = None
        return tuple(values[name] for name in self.saves)

    # --- backward ---------------------------------------------------------------------------------

    def _given_back(self, where: str, options: SimpleNamespace) -> dict[str, Any]:
        """What was saved and the gradients that came back, by name: what backward reads of them."""
        incoming = self.entry_points["backward"].arrays
        given = {name: getattr(options, name) for name in (*self.saves, *incoming)}
        needed = ["gates", self.state]
        if options.recompute and self.takes_recurrent:
            needed.append("recurrent")
        if not options.recompute and "c" in given:
            needed.append("c")
        for name in needed:
            if given[name] is None:
                raise TypeError(
                    f"{where}: {name} must be an array, as forward saved it with "
                    f"recompute={options.recompute}, got None"
                )
        if given[incoming[0]] is None:
            raise TypeError(f"{where}: {incoming[0]} must be an array or a number, got None")
        _no_numbers(where, given)
        unread = "c" if options.recompute else "recurrent"
        return {n: value for n, value in given.items() if value is not None and n != unread}

    def _make_gradients(self, call: Call, shapes: Shapes, options: SimpleNamespace) -> list[Made]:
        """Make the gradients that are wanted."""
        made: list[Made] = []
        for i, name in enumerate(self.differentiated):
            label, out, wanted = f"out[{i}]", options.out[i], options.wanted[i]
            if name in _BIASES:
                made.append(self._make_bias_gradient(call, name, label, out, wanted))
            elif wanted:
                shape = shapes.state if name == self.state else shapes.packed
                made.append(call.output(label, out, "gates", shape=shape))
            else:
                made.append((None, None))
        return made

    def _make_bias_gradient(
        self, call: Call, name: str, label: str, out: Any, wanted: bool
    ) -> Made:
        like = name
        if not self.takes_recurrent and "bias" not in call.arrays:
            like = "recurrent_bias"  # whose gradient is the same
        if like not in call.arrays:
            if out is not None:
                raise ValueError(f"{call.where}: {label} must be None, for there is no {name}")
            return None, None
        return call.output(label, out, like, in_place=False) if wanted else (None, None)

    def _bias_sums(self, gradients: Mapping[str, View | None]) -> list[tuple[View, View | None]]:
        """The gradient of each bias that is made, and the packed one whose sum it is, or None."""
        sums = [(gradients["bias"], gradients["gates"])]
        if self.takes_recurrent:
            sums.append((gradients["recurrent_bias"], gradients["recurrent"]))
        return [(bias, packed) for bias, packed in sums if bias is not None]

    def _sums_apart(self, call: Call, sums: list[tuple[View, View | None]]) -> bool:
        """Whether the biases' gradients are summed in a second pass, not by the kernel of gates."""
        return (
            bool(sums)
            and all(packed is not None and _rows_in_order(packed) for _, packed in sums)
            and _cpu.gates_sums_apart(self._which, call.views[self.state])
        )

    def _run_backward(
        self,
        call: Call,
        gradients: Mapping[str, View | None],
        positions: tuple[int, ...],
        options: SimpleNamespace,
        with_sums: bool,
    ) -> None:
        """One native call; with_sums: which sums up the biases' gradients too."""
        views = call.views
        incoming = self.entry_points["backward"].arrays
        added = views if options.recompute else {}  # what the pre-activations are made of
        call.run(
            "gates_backward",
            state=views[self.state],
            kind=self._which,
            gates=added.get("gates"),
            kept=None if options.recompute else views["gates"],
            recurrent=added.get("recurrent"),
            bias=added.get("bias"),
            recurrent_bias=added.get("recurrent_bias"),
            cell=views.get("c"),
            hidden_gradient=views[incoming[0]],
            cell_gradient=views.get("dc"),
            gates_gradient=gradients["gates"],
            recurrent_gradient=gradients.get("recurrent"),
            state_gradient=gradients[self.state],
            bias_gradient=gradients["bias"] if with_sums else None,
            recurrent_bias_gradient=gradients.get("recurrent_bias") if with_sums else None,
            places=positions,
            accumulate=options.accumulate,
        )

    # --- both -------------------------------------------------------------------------------------

    def _positions(self, where: str, options: SimpleNamespace) -> tuple[int, ...]:
        """The position of each gate of the kernels in packed arrays."""
        if not self._has_order:
            return tuple(range(self.count))
        order = options.order
        if isinstance(order, str):
            found = order.replace("c", "g") if "g" not in order else order
            if sorted(found) == sorted(self.letters):
                return tuple(found.index(letter) for letter in self.letters)
        raise ValueError(
            f"{where}: order must be a permutation of {self.letters!r} (c may stand for g), got "
            f"{validate.describe(order)}"
        )

    def _shapes(self, call: Call, count: int) -> Shapes:
        """The shapes of a call, which every array is known to fit; count: gates in `gates`."""
        where, views = call.where, call.views
        shape = views["gates"].shape
        if not shape or shape[-1] % count:
            raise ValueError(
                f"{where}: gates must have a last axis of {count} gates of one length, got shape "
                f"{shape}"
            )
        shapes = Shapes(shape[:-1], shape[-1] // count, self.count)
        for name, view in views.items():
            if name in _BIASES:
                validate.parameter_dtype(where, name, view, "gates", views["gates"])
                expected = shapes.packed[-1:]
            else:
                validate.same_dtype(where, name, view, "gates", views["gates"])
                if name not in call.arrays:  # a number
                    views[name] = view.repeats(views["gates"].shaped(shapes.state))
                    continue
                expected = {"gates": shape, "recurrent": shapes.packed}.get(name, shapes.state)
            if view.shape != expected:
                raise ValueError(f"{where}: {name} must have shape {expected}, got {view.shape}")
        return shapes


def gates(
    *, kind: str, results: tuple[str, ...], letters: str = "", kept: str = ""
) -> Callable[[Callable[P, R]], Gates[P, R]]:
    """Make the op of gates that a function declares; their formulas are in src/common/gates.

    Its arrays by position alone are gates, recurrent if a gate works on that, and the state before.

    kind : of the native gates.
    letters, kept : as `Gates` has them; by default the letters are the option `order`'s, and the
    gates are kept.
    results : the names of what the op gives.
    """
    return lambda function: register(Gates(function, kind, letters, kept, results))


def _rows_in_order(packed: View) -> bool:
    """Whether a sum of its own takes the rows as the kernels do; else it goes by memory's order."""
    steps = [abs(s) for s, n in zip(packed.strides[:-1], packed.shape, strict=False) if n > 1]
    return steps == sorted(steps, reverse=True)


def _no_numbers(where: str, given: Mapping[str, Any]) -> None:
    """Refuse numbers for what is packed; they may stand for states and their gradients."""
    for name in _PACKED:
        if isinstance(given.get(name), bool | int | float):
            raise TypeError(
                f"{where}: {name} must be an array, got {validate.describe(given[name])}"
            )


def _keep_apart(call: Call, outs: list[Any]) -> None:
    """No output shares memory with another one, or with a bias."""
    others = {name: call.views[name] for name in _BIASES if name in call.arrays}
    for i, view in enumerate(outs):
        if view is not None:
            name = validate.out_name(i, outs)
            validate.apart(call.where, name, view, others)
            others[name] = view
