"""Draws a call of any op, by its signature and roles, values for its arrays, and what is right.

What the ops of a family do not say themselves stands in tables: the values of options and of
arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np

import fastact as fa
from fastact.check.expected import Expected, expected
from fastact.interop.validate import DATA, PARAMETER
from fastact.measure.cases import (
    RESULTS,
    Case,
    arrays_of_entry,
    dtype_of,
    is_loss,
    results_of,
    shapes_of,
)
from fastact.measure.formulas import FORWARD
from fastact.measure.norm_rows import rows_of, traits
from fastact.measure.sum_axes import axes_of, is_sum, is_to_shape, reduces
from fastact.ops.bounds import computed_in
from fastact.ops.engine.entry import OF_X, REQUIRED, TOLD

from .cases import DTYPES, FLOAT64, Array, Draw, Number, Request, Shape, draw, number

_BOOL, _INT16, _INT32, _INT64 = map(np.dtype, ("bool", "int16", "int32", "int64"))

_ACTIVATIONS = list(FORWARD)
FAMILIES = sorted({op.family for op in fa.ops.values()})


def ops(family: str = "all", name: str = "all") -> list[Any]:
    """The ops of a family, or the one of a name, in the registry's order."""
    return [
        op for op in fa.ops.values() if family in ("all", op.family) and name in ("all", op.name)
    ]


# --- tables ---------------------------------------------------------------------------------------

#: Kinds of values of the array that decides the dtype, forward; and backward where they differ.
_ANY_LEADER = ("wide", "wide", "plain", "specials")
_LEADERS = {
    "activations": ("wide", "wide", "wide", "specials", "exponents", "huge", "plain"),
    "bias": ("wide", "wide", "plain", "specials", "huge"),
    "gates": ("plain", "plain", "wide", "specials"),
    "norms": ("plain", "plain", "wide", "far", "constant", "huge", "not finite"),
    **dict.fromkeys(
        ("reductions", "sums"),
        ("wide", "wide", "plain", "far", "constant", "huge", "specials", "exponents"),
    ),
    "softmax": ("plain", "wide", "wide", "far", "constant", "huge", "not finite", "specials"),
    "statistics": ("wide", "wide", "plain", "far", "constant", "specials"),
}
_LEADERS_BACK = {
    "gates": ("plain", "plain", "wide"), "reductions": ("wide", "far"),
    "softmax": ("plain", "wide"), "statistics": ("wide", "far"), "sums": ("wide", "plain"),
}  # fmt: skip

#: Kinds of values of other arrays; those that are not here are "plain".
_VALUES = {
    "b": _ANY_LEADER, "bias": ("wide", "plain"), "dloss": ("plain", "wide"),
    "dy": ("plain", "wide"), "gate": ("plain", "wide"), "residual": ("wide", "plain"),
    "rstd": ("positive",),
    "running_var": ("positive",), "weights": ("positive", "small integers"), "where": ("bits",),
    "by": ("labels",), "sink": ("plain", "wide"), "log_p": _ANY_LEADER,
}  # fmt: skip

#: How often an array that may be left out is given, where that is not half of the time.
_GIVEN = {"weight": 0.7, "bias": 0.6, "residual": 0.3, "where": 0.3, "dc": 0.6}

#: An activation's own parameters have these values beside its own, where its rules hold.
_ANY = (0, 0.5, 1, 2)

#: Values of options: the defaults, zero where that is allowed, far ones, both signs.
_NUMBERS = {
    "eps": (1e-5, 1e-6, 1e-12, 0, 0.5, 1),
    "momentum": (0.1, 0, 1, 0.5), "correction": (0, 1, 1.5), "ddof": (0, 1, 1.5),
    "weight_offset": (1, 0, -0.75), "scale": (1, 0.125, 0.37, -2, 3, 0), "limit": (7, 0.5),
    "label_smoothing": (0, 1, 0.1, 0.75), "z_loss": (0, 1e-4, 0.5), "offset": (1, -0.25),
    "initial": (0, 1, -2.5), "softcap": (50, 0.5, 2),
}  # fmt: skip
_CHOICES: dict[str, tuple[Any, ...]] = {
    "gate": ("first", "second"), "reduction": ("mean", "sum", "none"),
    "ignore_index": (-1, 0, 2, 255, 2**40),
    "casting": ("exact", "exact", "llama", "gemma"),
    "dtype": ("float16", "float32", "float64"),
}  # fmt: skip

#: Rules that the values of numbers keep.
_HOLDS: dict[str, Callable[[float], bool]] = {
    "momentum": lambda v: 0 <= v <= 1, "label_smoothing": lambda v: 0 <= v <= 1,
    "z_loss": lambda v: v >= 0, "eps": lambda v: v >= 0, "limit": lambda v: v > 0,
    "softcap": lambda v: v > 0,
}  # fmt: skip

#: The values of options that an op checks itself; those without a default are always given.
_CHECKED: dict[str, tuple[Any, ...]] = {
    "eps": (1e-12, 1e-6, 0, 0.5, 1), "p": (0.5, 0.1, 0.9, 0, 1, 2.0**-33),
    "seed": (0, 3, 2**32, 2**64 - 1, -7),
    "offset": (0, 1, 2, 3, 5, 2**34 - 3, 2**63 - 1),
}  # fmt: skip

_NOT_DRAWN = ("out", "accumulate", "stream", "num_batches", "shape", "count", "axis")


def _places(op: Any, entry: str, results: Sequence[str], named: dict[str, Any]) -> list[set[str]]:
    """Tell the names of the operands that each output may be, as the op's records have them."""
    point, call = op.entry_points[entry], op.entry_points["call"]
    given = {name: _value(value) for name, value in named.items()}
    options = SimpleNamespace(**call.defaults | point.defaults | given)
    saved = op.saves_inputs(options) if point.is_forward else ()
    free = (point.data & point.free).difference(saved)
    if point.parts and named["apart"]:  # x is read for each
        free.discard("x")
    gives = point.gives if entry in RESULTS else results
    return [free if point.output(name).in_place else set() for name in gives]


# --- options --------------------------------------------------------------------------------------


def any_axes(draw: Draw, ndim: int) -> Any:
    """An axis argument: None, an integer, or a tuple."""
    r, kind = draw.r, draw.r.random()
    if kind < 0.25 or ndim == 0:
        return r.choice((None, ())) if kind < 0.05 else None
    return some_axes(r, ndim) if kind > 0.7 else r.randrange(-ndim, ndim)


def some_axes(r: Random, ndim: int, low: int = 0) -> Shape:
    """Some axes, in any order, counted from either end."""
    chosen = r.sample(range(ndim), r.randrange(low, ndim + 1))
    return tuple(axis - ndim * r.randrange(2) for axis in chosen)


def _axis(op: Any, draw: Draw, ndim: int) -> Any:
    """The value of `axis`, or of another option that names the channels."""
    r = draw.r
    if op.family in ("reductions", "statistics"):
        return any_axes(draw, ndim)
    if op.family in ("softmax", "divergences") and not is_loss(op):
        return r.randrange(-ndim, ndim) if ndim and draw.chance(0.7) else some_axes(r, ndim)
    if op.family == "softmax" and draw.chance(0.5):
        return None
    if op.family == "norms" and not traits(op).channels and draw.chance(0.3):
        return some_axes(r, ndim, 1)
    if op.family == "norms" and traits(op).channels and draw.chance(0.6):
        return 1
    return r.randrange(-ndim, ndim)


def own_parameters(op: Any, draw: Draw, share: float = 0.4) -> dict[str, Any]:
    """Some of an activation's parameters, mostly none."""
    named: dict[str, Any] = {}
    for name, default in op.parameters.items():
        if draw.chance(share):
            if name in op.choices:
                named[name] = draw.r.choice(sorted(op.choices[name]))
            else:
                named[name] = number(draw.r, default, *op.values[name], *_ANY)
    return named if _rules_hold(op, named) else {}


def _of_the_chosen(op: Any, draw: Draw) -> dict[str, Any]:
    """Parameters of the activation that an op chooses by them, mostly none."""
    if not op.trials or draw.chance(0.6):
        return {}
    tried = draw.r.choice(op.trials)
    named = {n: v if isinstance(v, str) else number(draw.r, v, *_ANY) for n, v in tried.items()}
    return named if _rules_hold(_chosen(op, named), named) else {}


def _chosen(op: Any, named: dict[str, Any]) -> Any:
    """The activation that an op chooses by its options."""
    return op.activation_of({name: _value(value) for name, value in named.items()})[0]


def _rules_hold(op: Any, named: dict[str, Any]) -> bool:
    values = {n: _value(named.get(n, v)) for n, v in op.parameters.items() if n not in op.choices}
    return all(holds(**values) for _, holds in op.rules)


def _value(value: Any) -> Any:
    return value.value if isinstance(value, Number) else value


def _activation(op: Any, draw: Draw) -> dict[str, Any]:
    """An activation by its name or itself, perhaps with parameters."""
    usual = ("identity", "identity", "mish", "relu", "silu")
    name = draw.r.choice((*usual, draw.r.choice(_ACTIVATIONS), draw.r.choice(_ACTIVATIONS)))
    if name == "identity":
        return {"activation": name} if draw.chance(0.5) or op.family != "norms" else {}
    own = own_parameters(fa.ops[name], draw) if op.family in ("bias", "gated") else {}
    return {"activation": draw.r.choice((name, fa.ops[name])), **own}


def _options(op: Any, entry: str, draw: Draw, shape: Shape) -> dict[str, Any]:
    """The options that a call of an entry point is given; all of them by forward's rules."""
    r, ndim, named = draw.r, len(shape), {}
    defaults = op.entry_points["call"].defaults
    arrays = arrays_of_entry(op, "call")
    if entry == "value_and_grad":  # of all
        return {}
    for name in ("axis", "channel_axis"):
        if name in defaults:
            axis = 0 if entry == "merge" else _axis(op, draw, ndim)
            if axis != defaults[name] or draw.chance(0.3):
                named[name] = axis
    if op.family == "activations":
        return own_parameters(op, draw)
    for name, default in defaults.items():
        if name in named or name in arrays or name in (*_NOT_DRAWN, "channel_axis", "num_groups"):
            continue
        if name in op.checks:
            named |= (
                {name: r.choice(_CHECKED[name])} if default is REQUIRED or draw.chance(0.5) else {}
            )
        elif name == "activation":
            named |= _activation(op, draw)
        elif name == "order" and draw.chance(0.4):
            named[name] = "".join(r.sample(op.letters, op.count))
        elif isinstance(default, bool):
            named |= {name: draw.chance(0.5)} if draw.chance(0.5) else {}
        elif name in _CHOICES and draw.chance(0.4):
            named[name] = r.choice(_CHOICES[name])
        elif name in _NUMBERS and draw.chance(0.4):
            named[name] = number(r, *_NUMBERS[name])
    if op.family == "gated" and "activation" not in defaults:
        named |= _of_the_chosen(op, draw)
    if named.get("ddof") and named.get("correction"):
        del named[r.choice(("ddof", "correction"))]
    if "num_groups" in defaults:
        count = shape[named.get("channel_axis", defaults["channel_axis"])]
        named["num_groups"] = r.choice([g for g in range(1, count + 1) if count % g == 0] or [1])
    if "group_size" in defaults and draw.chance(0.4):
        axis = named.get("axis", defaults["axis"])
        if isinstance(axis, int) and shape[axis]:
            sizes = range(1, shape[axis] + 1)
            named["group_size"] = r.choice([size for size in sizes if shape[axis] % size == 0])
    if is_to_shape(op):
        dropped = r.randrange(ndim + 1)
        named["shape"] = tuple(n if r.random() < 0.5 else 1 for n in shape[dropped:])
    if op.family == "gates" and entry != "call" and draw.chance(0.3):
        named["recompute"] = True
    if "training" in defaults:
        named["training"] = entry not in ("call", "forward", "backward") or draw.chance(0.6)
    if entry == "backward":
        named.pop("returned", None)
        if OF_X in op.saves and TOLD in named:  # dy leads
            named[OF_X] = named.pop(TOLD)
    has_groups = "groups" in defaults and draw.device == "cpu" and entry != "merge"
    if has_groups and axes_of(op, shape, named)[0] and draw.chance(0.2):
        named["groups"] = r.choice((3, 5, 40))  # labels are below 3
        named.pop("keepdims", None)
    return named


# --- arrays ---------------------------------------------------------------------------------------


def _unless_scalar(made: Array) -> Array:
    """An operand that may be a list, but no float64 of NumPy's, which is Python's float."""
    return replace(made, form="array") if made.form == "scalar" else made


def _mask(draw: Draw, shape: Shape) -> Array:
    """Draw a mask of bool or of numbers, over a shape that broadcasts."""
    r = draw.r
    of = draw.some(shape, drops=draw.chance(0.3))
    if draw.chance(0.5):
        return draw.array("mask", of, "bits", _BOOL)
    wider = draw.chance(0.3) and draw.framework != "plain"
    dtype = r.choice((computed_in(draw.dtype), FLOAT64)) if wider else draw.dtype
    made = draw.array("mask", of, r.choice(("plain", "wide")), dtype)
    return _unless_scalar(made)


def _weights(draw: Draw, name: str, shape: Shape) -> Array:
    """Weights or a mask of a statistic, or its labels."""
    r = draw.r
    of = draw.some(shape, drops=name == "where")
    if name == "where":
        dtype = _BOOL
    elif name == "by":
        dtype = r.choice((_INT32, _INT64))
    else:
        of = of if draw.chance(0.5) else shape
        free = draw.framework != "plain" and draw.chance(0.4)
        dtype = r.choice(list(DTYPES.values())) if free else draw.dtype
    return draw.held(name, of, r.choice(_VALUES[name]), dtype)


def _target(draw: Draw, shape: Shape, kept: Shape, ignored: int) -> Array:
    """Classes, or probabilities."""
    r = draw.r
    if draw.chance(0.35):
        return draw.array("target", shape, r.choice(("positive", "positive", "bits")))
    dtype = r.choice((_INT32, _INT64))
    made = draw.array("target", kept, "small integers", dtype)
    fits = max(*shape, abs(ignored)) < np.iinfo(_INT16).max
    if draw.framework == "numpy" and fits and draw.chance(0.1):
        listed = math.prod(kept) > 0 and kept and draw.chance(0.5)
        return replace(
            made, dtype=_INT64, stored=_INT16, form="list" if listed else "array",
            layout=draw.layout(len(kept), _INT16), repeats=() if listed else made.repeats,
        )  # fmt: skip
    return made


class _Arrays:
    """The arrays of one call, drawn by their names."""

    def __init__(
        self, op: Any, entry: str, draw: Draw, shape: Shape, named: dict[str, Any]
    ) -> None:
        self.op, self.entry, self.draw, self.shape, self.named = op, entry, draw, shape, named
        self.back = entry.startswith("backward")
        self.shapes = shapes_of(op, entry, shape, named)
        self.call = arrays_of_entry(op, "call")
        self.takes = arrays_of_entry(op, "call" if entry == "merge" else entry)
        self.made: dict[str, Any] = {}
        self.hidden: dict[str, Array] = {}  # what forward was given, and backward is not
        self.parameter = FLOAT64
        self.bare = self.back and op.family == "bias" and named.get("activation") == "identity"

    def all(self) -> None:
        """In the order in which later ones depend on earlier ones."""
        self._lead()
        draw = self.draw
        beside = (np.float32, np.float16) if draw.dtype == FLOAT64 else (FLOAT64,)
        is_other = draw.framework != "plain" and draw.chance(0.18)
        self.parameter = np.dtype(draw.r.choice(beside)) if is_other else draw.dtype
        for name in self.takes:
            if name not in self.made:
                self.made[name] = self._one(name)
        if self.back and self.op.family == "gates":
            self._before()

    def _lead(self) -> None:
        """The one that decides the dtype."""
        op, draw = self.op, self.draw
        saved = op.saves[0] if self.back and op.saves else ""
        leads = saved in self.takes and op.roles.get(saved, DATA).dtype == DATA.dtype
        name = saved if leads else self.takes[0]
        name = "dy" if self.bare else name
        family = "sums" if is_sum(op) else "norms" if "rstd" in op.saves else op.family
        kinds = _LEADERS.get(family, _ANY_LEADER)
        if self.back or (family == "gates" and self.entry == "forward"):
            kinds = _LEADERS_BACK.get(family, kinds)
        values = draw.r.choice(kinds)
        shape = self.shapes.get(name, self.shape)
        if op.family == "gates":
            values = "saved" if self._is_saved(name) else values
            self.made[name] = draw.array(name, shape, values, leads=True)
            return
        # Integers are computed in float64, or as np.tanh has it.
        whole = is_sum(op) or op.traits.integers is not None
        made = draw.leader(name, shape, values, FLOAT64 if whole else None)
        if self._is_saved(name) and made.stored is None:
            made = replace(made, values="saved")
        # Squares overflow, which nobody promised.
        if op.family == "norms" and made.values == "huge" and draw.dtype == FLOAT64:
            made = replace(made, values="wide")
        self.made[name] = made

    def _is_saved(self, name: str) -> bool:
        """Whether forward makes it: what it saves and is not given, or packs anew."""
        kept = self.op.family == "gates" and name == "gates" and not self.named.get("recompute")
        free = self.op.family == "activations"  # whose y may be anything
        return self.back and name in self.op.saves and not free and (name not in self.call or kept)

    def _one(self, name: str) -> Any:
        """An array that is not the leader; None: it is not given."""
        op, draw = self.op, self.draw
        shape = self.shapes.get(name, self.shape)
        values = draw.r.choice(_VALUES.get(name, ("plain",)))
        dtype = dtype_of(op, name, draw.dtype)
        if op.family == "rotary" and name in ("cos", "sin", "positions"):
            return self._angle(name)
        if self._is_saved(name):
            nothing = name == "divisor" and self.named.get("reduction") == "none"
            nothing |= name == "share" and self.made.get("sink") is None
            if nothing or (name == "c" and self.named.get("recompute")):
                return None
            one = name in ("lse", "rest", "divisor", "share")
            made = Array(name, shape, dtype, "saved", draw.layout(len(shape), dtype))
            return made if one else draw.held(name, shape, "saved", dtype)
        if name.startswith("running"):
            return self._running(name, shape, values)
        if not self._is_given(name):
            return None
        if name in ("dy", "dh", "dloss", "dtotal", "b", "residual", "gate", "dc", *op.saves[:1]):
            return self._like_data(name, shape, values)
        if name == "target":
            return _target(draw, self.shape, shape, self.named.get("ignore_index", -100))
        if name == "mask":
            return _mask(draw, self.shape)
        if name == "x" and self.back:
            return draw.held(name, shape, values, dtype)
        if name == "sink":
            return draw.held(name, draw.some(shape), values, self.parameter)
        if name in ("weights", "where", "by"):
            return _weights(draw, name, self.shape)
        if name == "weight" and is_loss(op):
            return _unless_scalar(draw.array(name, shape, "positive", dtype))
        if op.family == "parametric" and draw.chance(0.3):  # one for all channels
            return draw.held(name, draw.r.choice(((), (1,))), values, self.parameter)
        if name in ("mean", "rstd"):  # of a channel, which may be 1-D too
            shape = self.shapes["weight"] if draw.chance(0.5) else shape
            return draw.array(name, shape, values, dtype)
        if op.roles.get(name) == PARAMETER:
            return draw.array(name, shape, "plain" if op.family == "norms" else values,
                              self.parameter)  # fmt: skip
        is_state = op.family == "gates" and name == op.state
        return draw.array(name, shape, values, dtype, number=is_state and not self.back)

    def _angle(self, name: str) -> Any:
        """Cosines or sines of some pairs, or tables of them, and positions in these."""
        draw, r = self.draw, self.draw.r
        axis = self.named.get("axis", -1) % len(self.shape)
        if name == "cos":
            self.has_table = draw.chance(0.3)
            most = self.shape[axis] // 2
            count = most if draw.chance(0.5) else r.randrange(most + 1)
            of = (*draw.some(self.shape[:axis], 0.5), count)
            of += draw.some(self.shape[axis + 1 :], 0.5, drops=False)
            shape = (r.randrange(1, 6), count) if self.has_table else of
            wide = draw.framework != "plain" and draw.chance(0.4)
            dtype = computed_in(draw.dtype) if wide else self.parameter
            return draw.held(name, shape, "plain", dtype)
        cos = self.made["cos"]
        if name == "sin":
            return draw.held(name, cos.shape, "plain", cos.dtype)
        if not self.has_table:
            return None
        others = self.shape[:axis] + self.shape[axis + 1 :]
        dtype = r.choice((_INT32, _INT64))
        return draw.held(name, draw.some(others, 0.4), "small integers", dtype)

    def _is_given(self, name: str) -> bool:
        """Whether an argument that may be left out is there."""
        op, first = self.op, self.made[next(iter(self.made))]
        if op.family == "gates" and name == "recurrent" and self.back:
            return bool(self.named.get("recompute"))
        if self.bare and name in ("x", "residual"):
            return False
        if name == "by":
            return "groups" in self.named
        if name == "x" and self.back and op.saves[0] == "y":
            return "softcap" in self.named
        if name in ("weights", "where") and first.form != "array":
            return False
        call = op.entry_points["call"]
        point = call if self.entry == "merge" else op.entry_points[self.entry]
        if name in (*point.arrays, *call.arrays) or point.defaults[name] is REQUIRED:
            return True
        return self.draw.chance(_GIVEN.get(name, 0.5))

    def _like_data(self, name: str, shape: Shape, values: str) -> Any:
        """A gradient, or another array of the data's shape; a number may stand for it."""
        op, draw = self.op, self.draw
        told = np.dtype(self.named[TOLD]) if name == "dy" and TOLD in self.named else None
        if self.op.family == "reductions" and not is_sum(op) and name == "dy":
            return tuple(
                draw.array(f"d{k}", shape, "wide", told, number=True) if draw.chance(0.8) else None
                for k in op.results
            )
        if name == "dy" and op.family == "activations" and draw.chance(0.3):
            values = "specials"
        if name == "dy" and op.family in ("reductions", "statistics"):
            values = "wide"
        return draw.array(name, shape, values, told, number=name != "x")

    def _running(self, name: str, shape: Shape, values: str) -> Any:
        """Running statistics, which training writes; both of them, or neither."""
        draw, trains = self.draw, self.named["training"]
        if "running_mean" in self.made:
            other = self.made["running_mean"]
            if other is None:
                return None
            dtype = other.dtype
        elif trains and draw.chance(0.4):
            return None
        else:
            dtype = computed_in(draw.dtype) if draw.chance(0.7) else draw.dtype
        made = draw.array(name, shape, values, dtype)
        return replace(made, repeats=(), form="array") if trains else made

    def _before(self) -> None:
        """Draw what forward of a step was given."""
        draw, shapes = self.draw, shapes_of(self.op, "forward", self.shape, self.named)
        for name in self.call:
            made = self.made.get(name)
            lost = name in ("gates", "recurrent") and not self.named.get("recompute")
            if made is not None and not self._is_saved(name):
                self.hidden[name] = made
            elif lost and (name == "gates" or self.op.takes_recurrent or draw.chance(0.5)):
                drawn = draw.array(name, shapes[name], "plain")
                self.hidden[name] = replace(drawn, name=f"before:{name}")


# --- a request ------------------------------------------------------------------------------------

_LEAST_AXES = {"gates": 1, "softmax": 0}  # others: 1 where an axis is the default


def _shape(op: Any, entry: str, draw: Draw) -> Shape:
    axis = op.entry_points["call"].defaults.get("axis")
    low = _LEAST_AXES.get(op.family, int(isinstance(axis, int)))
    if is_sum(op):
        low = 0 if is_to_shape(op) or reduces(op) else 1
    elif op.family == "norms":
        low = 2 if traits(op).channels else 1
    elif op.family == "parametric":
        low = 2
    elif entry == "merge" or is_loss(op):
        low = 1
    full = op.family in ("norms", "gates") and draw.chance(0.9)
    return draw.shape(low, 4 if op.family == "gates" else 6, nonzero=full)


def sample(op: Any, draw: Draw) -> Request:
    """A call of an op."""
    usual = ["call", "call", "forward", "backward", "backward"]
    entries = [*usual, *(name for name in op.entry_points if name not in usual)]
    if "m2" in op.results and draw.framework in ("numpy", "torch"):
        entries.append("merge")
    entry = draw.r.choice(entries)
    shape = _shape(op, entry, draw)
    named = _options(op, entry, draw, shape)
    arrays = _Arrays(op, entry, draw, shape, named)
    arrays.all()
    made, point = arrays.made, op.entry_points["call" if entry == "merge" else entry]
    # An activation that a call names may have parameters of its own.
    own = "parameters" in point.signature.parameters
    others = {*op.entry_points["call"].defaults, "recompute"} if own else {*named}
    given = {n: v for n, v in named.items() if n in point.defaults or n not in others}
    if entry.startswith("backward") and "eps" not in op.checks:
        given.pop("eps", None)  # its gradient does not ask for it
    for name, array in made.items():
        if array is not None or name in point.arrays or point.defaults[name] is REQUIRED:
            given[name] = array
    if entry == "backward" and "shape" in point.arrays:
        given["shape"] = shape
    notes: dict[str, Any] = {
        "shape": shape, "options": named, "hidden": arrays.hidden, "leader": next(iter(made)),
    }  # fmt: skip
    if "count" in point.defaults:
        given["count"] = named["count"] = max(rows_of(op, shape, named).length, 1)
    if named.get("training") and not entry.startswith("backward"):
        notes["writes"] = tuple(k for k in op.written if made[k] is not None)
        notes["may be refused"] = rows_of(op, shape, named).length < 2
    if entry == "merge":
        notes["parts"] = draw.r.choice((1, 2, 3, 7))
    outs = _outs(op, entry, arrays)
    _note_indices(draw, arrays, notes, outs)
    return Request(
        op.name, entry, draw.framework, draw.dtype, given, draw.chance(0.5), notes=notes, **outs
    )


def _outs(op: Any, entry: str, arrays: _Arrays) -> dict[str, Any]:
    if entry == "merge" or arrays.named.get("returned"):
        return {}
    draw, made, named = arrays.draw, arrays.made, dict(arrays.named)
    point, shapes = op.entry_points[entry], arrays.shapes
    results = results_of(op, entry)[: point.outputs]
    if entry == "forward":
        kept = (n for n in op.saves if n not in (*arrays.call, *results) or n == "gates")
        results += tuple(kept)[: point.extra]
    elif entry == "backward":
        results = op.gradients
    outputs: list[Any] = []
    for name in results:
        of = [name[1:], *(n for n, as_ in op.shares.items() if as_ == name[1:])]
        parameter = next((made[n] for n in of if made.get(n) is not None), None)
        if name == "share" and made.get("sink") is None:
            outputs.append(None)
        elif entry == "backward" and op.roles.get(name[1:], DATA).dtype != DATA.dtype:
            outputs.append(parameter and (name, parameter.shape, parameter.dtype))
        elif name == "gates" and named.get("recompute"):
            outputs.append(None)
        else:
            is_kept = name == "gates"
            shape = shapes_of(op, "backward", arrays.shape, named)[name] if is_kept else (
                shapes.get(name, arrays.shape))  # fmt: skip
            told = named.get(OF_X if entry == "backward" else TOLD)
            dtype = dtype_of(op, name, draw.dtype) if told is None else np.dtype(told)
            outputs.append((name, shape, dtype))
    while len(outputs) > point.outputs and outputs[-1] is None and entry == "backward":
        outputs.pop()
    counts = (made.get(name) for name in ("weights", "where", "by"))
    is_other = named.get(TOLD) not in (None, draw.dtype.name)
    named["apart"] = is_other or named.get("skipna") or any(a is not None for a in counts)
    every = (v if isinstance(v, tuple) else (v,) for v in made.values())
    return draw.outs(
        outputs,
        {array.name: array for several in every for array in several if array is not None},
        _places(op, entry, results, named),
        skips=point.skips,
        accumulates="accumulate" in point.defaults,
    )


def _note_indices(draw: Draw, arrays: _Arrays, notes: dict[str, Any], outs: dict[str, Any]) -> None:
    """Let a class, or a row of a table, be one that is not there.

    It is refused on the CPU, by a kernel that knows the op, and NaN where nobody waits for the
    answer.
    """
    made, loss = arrays.made, is_loss(arrays.op)
    name = "target" if loss else "positions"
    index = made.get(name)
    if index is None:
        return
    count = arrays.shapes["weight"][0] if loss else made["cos"].shape[0]
    is_read = math.prod(index.shape if loss else (*arrays.shape, *made["cos"].shape)) > 0
    wrong = index.dtype.kind == "i" and is_read and draw.chance(0.12)
    notes |= {"indices": (name, count), "wrong": wrong}
    if count == 0:
        outs["refused"] = "no index fits"
    elif wrong and draw.device == "cpu":
        outs["refused"] = outs.get("refused") or "an index that is not there"
    if wrong:
        notes["says"] = f"fastact.{arrays.op.name}"


# --- values ---------------------------------------------------------------------------------------


def fill(request: Request, rng: np.random.Generator) -> dict[str, Any]:
    """Values by name: of operands, and of what `accumulate` adds to.

    The saved arrays that backward gets are forward's, of the other arrays, rounded.
    """
    op, notes = fa.ops[request.op], request.notes
    every = {a.name: a for a in (*request.arrays, *notes["hidden"].values())}
    values = {
        name: draw(rng, a.drawn, a.dtype, a.values)
        for name, a in every.items()
        if a.values != "saved"
    }
    if request.accumulate:
        for out in request.outs:
            if out.array is not None:
                values[out.array.name] = draw(rng, out.array.shape, out.array.dtype, "plain")
    name, count = notes.get("indices", ("", 0))
    if count and every[name].dtype.kind == "i":
        values[name] = _indices(notes, every[name], rng)
    if "mask" in every:
        values["mask"] = _hiding(case_of(request, values), values["mask"], rng)
    saved = [a for a in every.values() if a.values == "saved"]
    if name and count == 0:
        values |= {array.name: np.zeros(array.drawn, array.dtype) for array in saved}
    elif saved:
        _save(op, case_of(request, values), saved, values, rng)
    return values


def _indices(notes: dict[str, Any], array: Array, rng: np.random.Generator) -> Any:
    """Classes, of which some are ignored, or rows of a table; perhaps one is not there."""
    (name, count), of = notes["indices"], np.iinfo(array.stored or array.dtype)
    ignored = notes["options"].get("ignore_index", -100)
    drawn = rng.integers(0, count, array.drawn)
    if name == "target" and of.min <= ignored <= of.max:
        share = rng.choice((0.0, 0.2, 0.2, 1.0))
        drawn = np.where(rng.random(array.drawn) < share, ignored, drawn)
    if notes["wrong"]:
        outside = [count, count + 5, -1, -7, of.min, of.max]
        outside = [n for n in outside if not 0 <= n < count and n != ignored]
        drawn.reshape(-1)[rng.integers(drawn.size)] = rng.choice(outside)
    return drawn.astype(array.dtype)


def _hiding(case: Case, mask: Any, rng: np.random.Generator) -> Any:
    """A mask under which nothing of some rows takes part."""
    axis, ndim = case.option("axis"), len(case.shape)
    over = {a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))}
    first = ndim - mask.ndim
    rows = tuple(1 if a + first in over else n for a, n in enumerate(mask.shape))
    hidden = rng.random(rows) < 0.2
    if mask.dtype == _BOOL:
        return mask & ~hidden
    hidden = hidden | (rng.random(mask.shape) < 0.2 * rng.integers(2))
    return np.where(hidden, -np.inf, mask.astype(np.float64)).astype(mask.dtype)


def _save(
    op: Any, case: Case, saved: list[Array], values: dict[str, Any], rng: np.random.Generator
) -> None:
    """Values of what forward saves."""
    forward = case.at("forward", training=True, casting="exact", **case.given.get("before", {}))
    if op.family == "softmax" and "y" in op.saves:
        forward = forward.at("forward", x=draw(rng, case.shape, case.dtype, "wide"))
    found = expected(forward)
    found |= {"c": found[op.results[-1]]} if op.family == "gates" else {}
    for array in saved:
        of = np.asarray(found[array.name].exact).reshape(array.shape).astype(array.dtype)
        # Along an axis of stride 0 there is one value for all.
        first = tuple(slice(0, 1) if i in array.repeats else slice(None) for i in range(of.ndim))
        values[array.name] = of[first]


# --- what is right --------------------------------------------------------------------------------


def case_of(request: Request, values: dict[str, Any]) -> Case:
    """The call of a request, of these values."""
    notes = request.notes

    def of(value: Any) -> Any:
        if isinstance(value, tuple) and any(isinstance(part, Array | None) for part in value):
            return tuple(map(of, value))
        if isinstance(value, Array):
            of_array = values.get(value.name)
            return None if of_array is None else np.broadcast_to(of_array, value.shape)
        return _value(value)

    given = {name: of(value) for name, value in {**request.given, **notes["options"]}.items()}
    if notes["hidden"]:
        given["before"] = {name: of(array) for name, array in notes["hidden"].items()}
    on_gpu = request.framework == "emulated"
    op, shape = fa.ops[request.op], notes["shape"]
    return Case(op, request.entry, shape, request.dtype, given, on_gpu)


def names_of(request: Request) -> list[str]:
    """The names of all that a call gives, in the order of `judge.run`."""
    op, entry = fa.ops[request.op], request.entry
    names = list(results_of(op, entry))
    if entry == "forward":  # what is a result and saved is judged once
        names[len(op.results) :] = [n if n not in op.results else f"saved {n}" for n in op.saves]
    if entry == "backward" and op.entry_points[entry].extra:  # a gradient that nobody asked for
        names = [n for n in names if n != names[-1] or request.given.get(n[1:]) is not None]
    if "m2" in op.results and entry != "backward":  # Moments
        names.insert(0, "count")
    if request.notes["options"].get("returned"):
        names.insert(len(op.results), "count")
    return names + [f"after:{name}" for name in request.notes.get("writes", ())]


def exact(request: Request, values: dict[str, Any]) -> list[Expected | None]:
    """Return what a request should give, for each result; None for what is not judged."""
    found = expected(case_of(request, values))
    found |= {f"after:{name}": found[name] for name in request.notes.get("writes", ())
              if name in found}  # fmt: skip
    judged: list[Expected | None] = []
    for i, name in enumerate(names_of(request)):
        one, out = found.get(name), request.outs[i] if i < len(request.outs) else None
        if out is not None and out.kind == "skip" and request.entry.startswith("backward"):
            one = None  # a gradient that nobody asked for
        if one is not None and out is not None and request.accumulate:
            one = one.added_to(values[out.array.name], out.array.dtype)
        judged.append(one)
    return judged


# --- what depends on what -------------------------------------------------------------------------


def function(request: Request) -> Callable[..., Any]:
    """The function that is called."""
    op = fa.ops[request.op]
    if request.entry != "merge":
        return op.entry_point(request.entry)
    parts = request.notes["parts"]

    def merge(x: Any, *args: Any, **named: Any) -> Any:
        if not hasattr(x, "__getitem__") or isinstance(x, list):
            x = np.asarray(x)
        size = -(-len(x) // parts) or 1
        starts = range(0, len(x), size) or (0,)
        pieces = [_piece(x, named, i, size) for i in starts]
        return fa.Moments.merge_many([op(piece, *args, **more) for piece, more in pieces])

    return merge


def _piece(x: Any, named: dict[str, Any], start: int, size: int) -> tuple[Any, dict[str, Any]]:
    """So many rows of x, and of what lies beside them."""
    more = dict(named)
    for name in ("weights", "where"):
        array = more.get(name)
        if array is not None and array.ndim == x.ndim and array.shape[0] != 1:
            more[name] = array[start : start + size]
    return x[start : start + size], more


def layout_free(request: Request, results: list[Any]) -> bool:
    """Whether the bits are promised to be the same for operands that lie in another way."""
    op, notes, named = fa.ops[request.op], request.notes, request.notes["options"]
    shape = notes["shape"]
    if is_sum(op) or op.family in ("reductions", "statistics", "divergences"):
        axes, _ = axes_of(op, shape, named)
        if "groups" in named:
            return False
        return sum(shape[a] > 1 for a in axes) <= 1 and _repeats_once(request)
    if "rstd" in op.saves:
        rows = rows_of(op, shape, named)
        if sum(rows.split[a] > 1 for a in rows.axes) > 1:
            return False
    # A parameter's gradient is a sum over the axes that the parameter does not have: one of them.
    sums = [r for r in results if isinstance(r, np.ndarray) and r.size < math.prod(shape)]
    if not request.entry.startswith("backward") or not sums:
        return True
    return len(shape) <= 2 - any(r.size == 1 for r in sums)


def _repeats_once(request: Request) -> bool:
    """Whether the gradient of weights, where they repeat, is a sum over one axis alone."""
    weights = request.given.get("weights")
    if request.entry != "backward" or weights is None:
        return True
    pairs = zip(weights.shape, request.notes["shape"], strict=True)
    return sum(n != m for n, m in pairs) <= 1


def order_free(request: Request) -> bool:
    """Whether that holds for another order of the axes in memory: kernels of norms choose by it."""
    return "rstd" not in fa.ops[request.op].saves


def other_parameter(request: Request, r: Random) -> Request | None:
    """Return a call of the same kind with another value of one parameter."""
    named = {k: v for k, v in request.given.items() if isinstance(v, Number)}
    if not named or any(a.values == "saved" and a.name == "lse" for a in request.arrays):
        return None  # an lse is of one scale
    name = r.choice(sorted(named))
    old = named[name]
    other = {"bool": 1 - old.value}.get(old.kind, old.value + r.choice((1, 2)))
    if old.kind in ("float32", "tensor"):
        other = float(np.float32(other))
    changed = Number(other, old.kind)
    given = {**request.given, name: changed}
    op = fa.ops[request.op]
    activation = _chosen(op, given) if op.family == "gated" else given.get("activation", op)
    activation = fa.ops.get(activation) if isinstance(activation, str) else activation
    known = getattr(activation, "rules", None) is not None and name in activation.parameters
    if known and not _rules_hold(activation, given):
        return None
    if not _HOLDS.get(name, lambda v: True)(other):
        return None
    options = {**request.notes["options"], name: changed}
    return replace(request, given=given, notes={**request.notes, "options": options})


def refused(request: Request, r: Random) -> tuple[Request, dict[str, Any]]:
    """The call with an array, or the value of an option, that no such call can have.

    And the values of that array. The same request where it has neither. The array that leads is
    left alone: another shape of it is right where all others fit any, as a gradient without axes.
    """
    arrays = [
        name for name, v in request.given.items()
        if isinstance(v, Array) and v.form == "array" and v.stored is None
        and name != request.notes["leader"]
    ]  # fmt: skip
    named = refusable(request)
    if named and (not arrays or r.random() < 0.4):
        name = r.choice(named)
        return replace(request, given={**request.given, name: IMPOSSIBLE[name]}), {}
    if not arrays:
        return request, {}
    name = r.choice(arrays)
    bad = replace(request.given[name], layout=None, repeats=())
    if r.random() < 0.3 and request.framework == "numpy":
        bad = replace(bad, stored=np.dtype(np.complex128))
    else:
        # More axes than it and the data have: with as many or fewer, a mask may broadcast to it.
        more = 1 + max(0, len(request.notes["shape"]) - len(bad.shape))
        bad = replace(bad, shape=(*bad.shape, *(2,) * more))
    made = replace(request, given={**request.given, name: bad})
    return made, {name: np.zeros(bad.shape, bad.dtype)}


def refusable(request: Request) -> list[str]:
    """The options of a call that have an impossible value; one op's option is another's array."""
    return [n for n, v in request.given.items() if n in IMPOSSIBLE and not isinstance(v, Array)]


#: Values of options that no call takes: of those that are drawn above a text, where that is wrong.
IMPOSSIBLE: dict[str, Any] = {
    **dict.fromkeys((*_NUMBERS, *_CHOICES, *_CHECKED), "1"),
    "axis": 64, "channel_axis": -65, "keepdims": 2, "interleaved": 2, "training": 2, "eps": -1.0,
    "momentum": 1.5, "label_smoothing": -0.5, "z_loss": -0.5, "limit": 0.0, "activation": "nothing",
    "order": "ii", "approximate": "exactly", "num_groups": 0, "group_size": 0, "gate_first": 2,
    "p": 1.5, "seed": 2**64, OF_X: "int32",
}  # fmt: skip
