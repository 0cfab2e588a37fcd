"""The kinds of norms by their signatures: for whoever calls norms, or knows what they give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..ops.engine.entry import REQUIRED
from ..ops.norms import Rows as Rows
from ..ops.norms import rows_of as rows_of


@dataclass(frozen=True)
class NormKind:
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
        """The facts that decide the normalization rows: norms that share them have alike rows."""
        return self.channels, self.groups, self.by_channel

    @property
    def statistics(self) -> tuple[str, ...]:
        """The statistics that are saved."""
        return ("mean", "rstd") if self.centred else ("rstd",)

    @property
    def weights(self) -> tuple[str, ...]:
        return ("weight", "bias") if self.centred else ("weight",)


def traits(op: Any) -> NormKind:
    """By the signature of the op."""
    takes = op.entry_points["call"].signature.parameters
    second = next((name for name in ("residual", "gate") if name in takes), "")
    moves, given = "running_mean" in takes, "mean" in takes
    channels = "channel_axis" if "channel_axis" in takes else "axis" if moves or given else ""
    groups, drops = "num_groups" in takes, "seed" in takes
    return NormKind("mean" in op.saves, second, moves, given, channels, groups, drops)


def default(op: Any, option: str) -> Any:
    """The default of an option; None where it must be given, or where there is no such option."""
    value = op.entry_points["call"].defaults.get(option, REQUIRED)
    return None if value is REQUIRED else value


def summed(rows: Rows, terms: Any) -> Any:
    """Sum over all that a parameter meets."""
    over = tuple(a for a, n in enumerate(rows.along) if n == 1)
    return np.broadcast_to(terms, rows.split).sum(over).reshape(rows.parameter)


def back(rows: Rows, values: Any) -> Any:
    """Give values the shape of the array."""
    return np.broadcast_to(values, rows.split).reshape(rows.shape)
