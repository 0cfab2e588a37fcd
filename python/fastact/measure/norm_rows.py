"""The kinds of norms by their signatures: for whoever calls norms, or knows what they give."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ..ops.engine.entry import REQUIRED
from ..ops.norms import Rows as Rows
from ..ops.norms import rows_of as rows_of


class NormKind:
    """The kind of norm that an op is, by its signature.

    centred : it subtracts a mean, and has a bias.
    second : the array in front beside x: "residual", "gate" or "".
    adds : it normalises the sum of two arrays, and returns the sum.
    gated : it multiplies by the activation, of a second array.
    moves : it keeps running statistics, which training moves. given : it is given statistics.
    by_channel : statistics are over a channel of the whole batch.
    channels : the option that says where the channels are, which is "" where rows are over `axis`.
    groups : the channels are cut into groups. drops : dropout comes before the sum.
    rows : the facts that decide the normalization rows: norms that share them have alike rows.
    statistics, weights : the statistics that are saved, and the parameters.
    """

    def __init__(self, op: Any) -> None:
        takes = op.entry_points["call"].signature.parameters
        self.centred = "mean" in op.saves
        self.second = next((name for name in ("residual", "gate") if name in takes), "")
        self.adds, self.gated = self.second == "residual", self.second == "gate"
        self.moves, self.given = "running_mean" in takes, "mean" in takes
        self.by_channel = self.moves or self.given
        axis = "axis" if self.by_channel else ""
        self.channels = "channel_axis" if "channel_axis" in takes else axis
        self.groups, self.drops = "num_groups" in takes, "seed" in takes
        self.rows = self.channels, self.groups, self.by_channel
        self.statistics = ("mean", "rstd") if self.centred else ("rstd",)
        self.weights = ("weight", "bias") if self.centred else ("weight",)


@cache
def traits(op: Any) -> NormKind:
    return NormKind(op)


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
