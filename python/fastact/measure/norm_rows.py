"""What a norm normalises, by its signature: for whoever calls norms, or knows what they give.

The ops find their normalization rows by code of their own (`ops/engine/norm_rows.py`). Here they
are found again, as the docstrings have them: `axis` names axes, `channel_axis` the channels of an
example, `num_groups` groups of them; where statistics are kept or given, a row is a channel of the
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..ops.engine.entry import REQUIRED

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Traits:
    """The kind of norm that an op is.

    centred : it subtracts a mean, and has a bias.
    second : the array in front beside x: "residual", "gate" or "".
    moves : it keeps running statistics, which training moves. given : it is given statistics.
    channels : the option that says where the channels are, which is "" where rows are over `axis`.
    groups : the channels are cut into groups. drops : dropout comes before the sum.
    """

    centred: bool
    second: str
    moves: bool
    given: bool
    channels: str
    groups: bool
    drops: bool

    @property
    def adds(self) -> bool:
        """Whether it normalises the sum of two arrays, and returns the sum."""
        return self.second == "residual"

    @property
    def gated(self) -> bool:
        """Whether it multiplies by the activation, of a second array."""
        return self.second == "gate"

    @property
    def by_channel(self) -> bool:
        """Whether statistics are over a channel of the whole batch."""
        return self.moves or self.given

    @property
    def rows(self) -> tuple[str, bool, bool]:
        """What the normalization rows follow from: alike in norms whose rows are."""
        return self.channels, self.groups, self.by_channel

    @property
    def statistics(self) -> tuple[str, ...]:
        """Those that are saved."""
        return ("mean", "rstd") if self.centred else ("rstd",)

    @property
    def weights(self) -> tuple[str, ...]:
        return ("weight", "bias") if self.centred else ("weight",)


def traits(op: Any) -> Traits:
    """By the signature of the op."""
    takes = op.entry_points["call"].signature.parameters
    second = next((name for name in ("residual", "gate") if name in takes), "")
    moves, given = "running_mean" in takes, "mean" in takes
    channels = "channel_axis" if "channel_axis" in takes else "axis" if moves or given else ""
    groups, drops = "num_groups" in takes, "seed" in takes
    return Traits("mean" in op.saves, second, moves, given, channels, groups, drops)


def default(op: Any, option: str) -> Any:
    """The default of an option; None where it must be given, or where there is no such option."""
    value = op.entry_points["call"].defaults.get(option, REQUIRED)
    return None if value is REQUIRED else value


@dataclass(frozen=True)
class Rows:
    """The normalization rows of an array.

    shape : of the array. split : the same with the channels cut into groups.
    axes : the axes of `split` along which a row runs. along : the shape in which a parameter
    broadcasts against `split`; parameter : its own. statistics : the shape of mean and rstd as they
    are saved.
    """

    shape: Shape
    split: Shape
    axes: Shape
    along: Shape
    parameter: Shape
    statistics: Shape
    centred: bool

    @cached_property
    def kept(self) -> Shape:
        """The shape in which statistics broadcast against `split`."""
        return tuple(1 if a in self.axes else n for a, n in enumerate(self.split))

    @cached_property
    def count(self) -> int:
        """How many elements a row has."""
        return prod(self.split[a] for a in self.axes)

    def summed(self, terms: Any) -> Any:
        """Over all that a parameter meets."""
        over = tuple(a for a, n in enumerate(self.along) if n == 1)
        return np.broadcast_to(terms, self.split).sum(over).reshape(self.parameter)

    def back(self, values: Any) -> Any:
        """Of the array's own shape."""
        return np.broadcast_to(values, self.split).reshape(self.shape)


def rows_of(op: Any, shape: Shape, options: Mapping[str, Any]) -> Rows:
    """Those of an array of a shape; options: as the call has them, by name."""
    kind, ndim = traits(op), len(shape)
    if options.get("group_size"):
        axis = options.get("axis", default(op, "axis"))
        (named,) = axis if isinstance(axis, tuple | list) else (axis,)
        at = named % ndim
        groups = shape[at] // options["group_size"]
        split = (*shape[:at], groups, options["group_size"], *shape[at + 1 :])
        statistics: Shape = (*shape[:at], groups, *shape[at + 1 :])
        along = _ones_but(split, (at, at + 1))
        return Rows(shape, split, (at + 1,), along, (shape[at],), statistics, kind.centred)
    if not kind.channels:
        axis = options.get("axis", default(op, "axis"))
        named = axis if isinstance(axis, tuple | list) else (axis,)
        axes = tuple(sorted(a % ndim for a in named))
        parameter = tuple(shape[a] for a in axes)
        return Rows(shape, shape, axes, _ones_but(shape, axes), parameter,
                    _ones_at(shape, axes), kind.centred)  # fmt: skip
    at = options.get(kind.channels, default(op, kind.channels)) % ndim
    parameter = (shape[at],)
    if kind.groups:
        groups = options["num_groups"]
        split = (*shape[:at], groups, shape[at] // groups, *shape[at + 1 :])
        axes = tuple(a for a in range(ndim + 1) if a not in (0, at))
        statistics = (groups,) if at == 0 else (shape[0], groups)
        along = _ones_but(split, (at, at + 1))
        return Rows(shape, split, axes, along, parameter, statistics, kind.centred)
    own = (at,) if kind.by_channel else (0, at)
    axes = tuple(a for a in range(ndim) if a not in own)
    along, statistics = _ones_but(shape, (at,)), _ones_at(shape, axes)
    return Rows(shape, shape, axes, along, parameter, statistics, kind.centred)


def _ones_at(shape: Shape, axes: Shape) -> Shape:
    return tuple(1 if a in axes else n for a, n in enumerate(shape))


def _ones_but(shape: Shape, axes: Shape) -> Shape:
    return tuple(n if a in axes else 1 for a, n in enumerate(shape))
