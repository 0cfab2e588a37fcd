"""What the recurrent gates share: packed arrays, their checks, and the three entry points."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from .. import _cpu
from .._cpu import View
from ..interop import validate
from ..interop.call import Call
from .bounds import GateBounds as GateBounds
from .gates_docs import GATE_BOUNDS
from .op_before import REQUIRED, QuickOp, Takes
from .reduction import IDENTITY, add_up

Shape = tuple[int, ...]


class Kind(NamedTuple):
    """What tells one op from another.

    name : of the native kind.
    gates : how many lie in a packed array, and `kept` in that of the activated ones.
    state : the name of the state before; `results` of what the op gives.
    order : the letters of the gates, if the caller may choose their order.
    takes_recurrent : by position, for the reset gate works on it; else it is an option.
    """

    name: str
    gates: int
    kept: int
    state: str
    results: tuple[str, ...]
    order: str = ""
    takes_recurrent: bool = False


class GatesOp(QuickOp):
    """A step of a recurrent layer behind its matrix products, and backward."""

    def __init__(self, op: str, kind: Kind, docs: Mapping[str, str]) -> None:
        self._kind = kind
        self._which = _cpu.GATE_KINDS.index(kind.name)
        self.bounds = GATE_BOUNDS
        arrays = ("gates", *(("recurrent",) if kind.takes_recurrent else ()), kind.state)
        options = () if kind.takes_recurrent else ("recurrent",)
        self._inputs = arrays
        self._options = (*options, "bias", "recurrent_bias")
        told = {"order": kind.order} if kind.order else {}
        either = dict.fromkeys(self._options)
        self._takes = Takes({}, {**either, **told}, outputs=len(kind.results))
        self._forward = Takes(
            {}, {**either, **told, "recompute": False}, outputs=len(kind.results), extra=1
        )
        self._saved = (*arrays, *kind.results[1:], *self._options)
        self._gradients = ("gates", *(("recurrent",) if kind.takes_recurrent else ()), kind.state)
        biases = ("bias", "recurrent_bias") if kind.takes_recurrent else ("bias",)
        self._gradients += biases
        self._backward = Takes(
            {**dict.fromkeys(self._saved[: -len(self._options)], REQUIRED), **either},
            {**told, "recompute": False},
            accumulates=True,
            outputs=len(self._gradients),
            skips=True,
        )
        super().__init__(op, "gates", arrays, self._takes, docs)
        gradients = tuple(f"d{name}" for name in kind.results)
        vars(self)["forward"].__signature__ = self._forward.signature(arrays)
        vars(self)["backward"].__signature__ = self._backward.signature(gradients)

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        return self._map(self._where(), self._takes, args, kwargs, saves=False)[0]

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
        return self._map(self._where("forward"), self._forward, args, kwargs, saves=True)

    def backward(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        where, kind = self._where("backward"), self._kind
        names = tuple(f"d{name}" for name in kind.results)
        if len(args) < len(names):
            raise TypeError(f"{where}: {names[len(args)]} must be given, by position")
        options = self._backward.bind(where, args[len(names) :], kwargs)
        places = self._places(where, options)
        given = {name: getattr(options, name) for name in self._saved}
        given |= dict(zip(names, args, strict=False))
        self._check_saved(where, given, options.recompute)
        arrays = {name: value for name, value in given.items() if value is not None}
        with Call(where, options.stream, **arrays) as call:
            units = self._units(where, call, kind.gates if options.recompute else kind.kept)
            whole = (*units.batch, kind.gates * units.columns)
            made: list[tuple[View | None, Any]] = []
            for i, name in enumerate(self._gradients):
                out, like = options.out[i], name
                if name == "bias" and kind.takes_recurrent is False and "bias" not in arrays:
                    like = "recurrent_bias"  # whose gradient is the same
                is_bias = name in ("bias", "recurrent_bias")
                if is_bias and like not in arrays:
                    if out is not None:
                        raise ValueError(f"{where}: out[{i}] must be None, for there is no {name}")
                    made.append((None, None))
                elif not options.wanted[i]:
                    made.append((None, None))
                elif is_bias:
                    made.append(call.output(f"out[{i}]", out, like, in_place=False))
                else:
                    shape = units.state if name == kind.state else whole
                    made.append(call.output(f"out[{i}]", out, "gates", shape=shape))
            views = [view for view, _ in made]
            _keep_apart(where, call, views, ("bias", "recurrent_bias"))
            gradients = dict(zip(self._gradients, views, strict=True))
            given_views = [call.views.get(name) for name in ("recurrent", "bias", "recurrent_bias")]
            if not options.recompute:
                given_views = [None, None, None]
            sums = [(gradients["bias"], gradients["gates"])]
            if kind.takes_recurrent:
                sums.append((gradients["recurrent_bias"], gradients["recurrent"]))
            sums = [(bias, packed) for bias, packed in sums if bias is not None]
            apart = (
                bool(sums)
                and not options.accumulate
                and all(packed is not None and _rows_in_order(packed) for _, packed in sums)
                and call.native.gates_sums_apart(self._which, call.views[kind.state])
            )
            fused = bool(sums) and not apart
            call.run(
                "gates_backward",
                self._which,
                call.views["gates"],
                *given_views,
                call.views[kind.state],
                *(call.views.get(name) for name in ("c", names[0], "dc")),
                gradients["gates"],
                gradients.get("recurrent"),
                gradients[kind.state],
                gradients["bias"] if fused else None,
                gradients.get("recurrent_bias") if fused else None,
                places,
                options.recompute,
                options.accumulate,
                call.workspace(
                    call.native.gates_workspace(self._which, call.views[kind.state]) if fused else 0
                ),
            )
            if apart:
                rows = tuple(range(len(units.batch)))
                for bias, packed in sums:
                    add_up(call, IDENTITY, packed, bias.with_axes(rows), rows)
            return tuple(
                None if view is None else call.result(out, new)
                for out, (view, new) in zip(options.out, made, strict=True)
            )

    def _map(
        self,
        where: str,
        takes: Takes,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        saves: bool,
    ) -> tuple[Any, tuple[Any, ...]]:
        kind, count = self._kind, len(self._inputs)
        if len(args) < count:
            raise TypeError(f"{where}: {self._inputs[len(args)]} must be given, by position")
        options = takes.bind(where, args[count:], kwargs)
        places = self._places(where, options)
        recompute = saves and options.recompute
        given = dict(zip(self._inputs, args, strict=False))
        for name in self._inputs:
            if given[name] is None:
                raise TypeError(f"{where}: {name} must be an array, got None")
        given |= {name: getattr(options, name) for name in self._options}
        _no_numbers(where, given)
        arrays = {name: value for name, value in given.items() if value is not None}
        with Call(where, options.stream, **arrays) as call:
            units = self._units(where, call, kind.gates)
            outs = options.out
            made = [
                call.output(_out_name(i, outs), out, "gates", shape=units.state)
                for i, out in enumerate(outs[: len(kind.results)])
            ]
            if saves and not recompute:
                shape = (*units.batch, kind.kept * units.columns)
                made.append(call.output(_out_name(len(made), outs), outs[-1], "gates", shape=shape))
            elif saves and outs[-1] is not None:
                raise ValueError(
                    f"{where}: out[{len(outs) - 1}] must be None with recompute=True, which keeps "
                    f"no activated gates"
                )
            views = [view for view, _ in made]
            _keep_apart(where, call, views, ("bias", "recurrent_bias"))
            if saves:  # what is saved may not be written
                kept = ("gates", "recurrent", kind.state) if recompute else (kind.state,)
                still = {name: call.views[name] for name in kept if name in call.arrays}
                for i, view in enumerate(views):
                    validate.may_write(where, _out_name(i, outs), view, still, in_place=False)
            cell = views[1] if len(kind.results) > 1 else None
            call.run(
                "gates_forward",
                self._which,
                *(call.views.get(n) for n in ("gates", "recurrent", "bias", "recurrent_bias")),
                call.views[kind.state],
                views[0],
                cell,
                views[-1] if saves and not recompute else None,
                places,
            )
            results = [call.result(out, new) for out, (_, new) in zip(outs, made, strict=False)]
            y = results[0] if len(kind.results) == 1 else tuple(results[: len(kind.results)])
            if not saves:
                return y, ()
            values = {name: call.arrays.get(name, value) for name, value in given.items()}
            if recompute:
                values["c"] = None
            else:
                values |= {"gates": results[-1], "recurrent": None, "c": results[-2]}
            return y, tuple(values[name] for name in self._saved)

    def _check_saved(self, where: str, given: dict[str, Any], recompute: bool) -> None:
        """What backward cannot do without is there."""
        kind = self._kind
        needed = ["gates", kind.state]
        if recompute and kind.takes_recurrent:
            needed.append("recurrent")
        if not recompute and "c" in given:
            needed.append("c")
        for name in needed:
            if given[name] is None:
                told = f"recompute={recompute}"
                raise TypeError(
                    f"{where}: {name} must be an array, as forward saved it with {told}, got None"
                )
        first = f"d{kind.results[0]}"
        if given[first] is None:
            raise TypeError(f"{where}: {first} must be an array or a number, got None")
        _no_numbers(where, given)
        if not recompute:
            given["recurrent"] = None
        else:
            given.pop("c", None)

    def _places(self, where: str, options: SimpleNamespace) -> tuple[int, ...]:
        """Where each gate of the kernels lies in packed arrays."""
        letters = self._kind.order
        if not letters:
            return tuple(range(self._kind.gates))
        order = options.order
        if isinstance(order, str):
            told = order.replace("c", "g") if "g" not in order else order
            if sorted(told) == sorted(letters):
                return tuple(told.index(letter) for letter in letters)
        raise ValueError(
            f"{where}: order must be a permutation of {letters!r} (c may stand for g), got "
            f"{validate.describe(order)}"
        )

    def _units(self, where: str, call: Call, count: int) -> "Units":
        """The shapes of a call; every array is known to fit. count: gates in `gates`."""
        kind, views = self._kind, call.views
        shape = views["gates"].shape
        if not shape or shape[-1] % count:
            raise ValueError(
                f"{where}: gates must have a last axis of {count} gates of one length, got shape "
                f"{shape}"
            )
        units = Units(shape[:-1], shape[-1] // count)
        packed = kind.gates * units.columns
        for name, view in views.items():
            if name in ("bias", "recurrent_bias"):
                validate.parameter_dtype(where, name, view, "gates", views["gates"])
                expected: Shape = (packed,)
            elif name in ("gates", "recurrent"):
                validate.same_dtype(where, name, view, "gates", views["gates"])
                expected = (*units.batch, packed) if name == "recurrent" else shape
            else:
                validate.same_dtype(where, name, view, "gates", views["gates"])
                if name not in call.arrays:  # a number
                    views[name] = view.repeats(views["gates"].shaped(units.state))
                    continue
                expected = units.state
            if view.shape != expected:
                raise ValueError(f"{where}: {name} must have shape {expected}, got {view.shape}")
        return units


class Units(NamedTuple):
    """The axes of the batch, and the length of a state."""

    batch: Shape
    columns: int

    @property
    def state(self) -> Shape:
        return (*self.batch, self.columns)


def _rows_in_order(packed: View) -> bool:
    """Whether a sum of its own takes the rows as the kernels do; else it goes by memory's order."""
    steps = [abs(s) for s, n in zip(packed.strides[:-1], packed.shape, strict=False) if n > 1]
    return steps == sorted(steps, reverse=True)


def _out_name(i: int, outs: tuple[Any, ...]) -> str:
    return "out" if len(outs) == 1 else f"out[{i}]"


def _no_numbers(where: str, given: Mapping[str, Any]) -> None:
    """Numbers may stand for states and their gradients, but for nothing that is packed."""
    for name in ("gates", "recurrent", "bias", "recurrent_bias"):
        if isinstance(given.get(name), bool | int | float):
            raise TypeError(
                f"{where}: {name} must be an array, got {validate.describe(given[name])}"
            )


def _keep_apart(where: str, call: Call, outs: list[Any], names: tuple[str, ...]) -> None:
    """No output shares memory with another one, or with these inputs."""
    others = {name: call.views[name] for name in names if name in call.arrays}
    for i, view in enumerate(outs):
        if view is not None:
            validate.apart(where, f"out[{i}]", view, others)
            others[f"out[{i}]"] = view
