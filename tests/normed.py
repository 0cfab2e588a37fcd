"""What the tests of the norms share: the settings, and what the oracle makes of them."""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import fastact as fa

NORMS = [op for op in fa.ops.values() if op.family == "norms" and hasattr(op, "_units")]


@dataclass(frozen=True)
class Setting:
    """An op at a shape.

    groups : of group_norm, by position. centred : False for rms_norm.
    """

    op: str
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    groups: int = 0

    def __str__(self) -> str:
        told = "-".join(f"{value}" for value in self.options.values())
        return f"{self.op}-{'x'.join(map(str, self.shape))}-{told}-{self.groups or ''}"

    @property
    def centred(self) -> bool:
        return "rms" not in self.op

    @property
    def adds(self) -> bool:
        return self.op.startswith("add")

    @property
    def positional(self) -> tuple[int, ...]:
        return (self.groups,) if self.groups else ()

    @property
    def eps(self) -> float:
        return float(self.options.get("eps", 1e-5 if self.centred else 1e-6))

    @property
    def channel(self) -> int | None:
        """Of ops with channels: their axis."""
        if self.op not in ("group_norm", "instance_norm"):
            return None
        return int(self.options.get("channel_axis", 1)) % len(self.shape)

    @property
    def axes(self) -> tuple[int, ...]:
        """What is reduced, of `split` arrays."""
        if self.channel is None:
            axis = self.options.get("axis", -1)
            named = axis if isinstance(axis, tuple) else (axis,)
            return tuple(sorted(a % len(self.shape) for a in named))
        kept = {0, self.channel}
        return tuple(a for a in range(len(self.split_shape)) if a not in kept)

    @property
    def split_shape(self) -> tuple[int, ...]:
        if not self.groups:
            return self.shape
        at = self.channel
        assert at is not None
        inner = self.shape[at] // self.groups
        return (*self.shape[:at], self.groups, inner, *self.shape[at + 1 :])

    @property
    def parameter(self) -> tuple[int, ...]:
        if self.channel is not None:
            return (self.shape[self.channel],)
        return tuple(self.shape[a] for a in self.axes)

    def along(self, parameter: Any) -> np.ndarray:
        """A parameter as it broadcasts against `split` arrays."""
        at = self.channel
        lengths = [1] * len(self.split_shape)
        for axis in self.axes if at is None else (at, at + 1) if self.groups else (at,):
            lengths[axis] = self.split_shape[axis]
        return np.asarray(parameter, np.float64).reshape(lengths)

    def summed(self, terms: np.ndarray) -> np.ndarray:
        """Over all that a parameter meets."""
        like = self.along(np.empty(self.parameter)).shape
        over = tuple(a for a, n in enumerate(like) if n == 1)
        total: np.ndarray = terms.sum(over).reshape(self.parameter)
        return total

    def split(self, x: Any) -> np.ndarray:
        return np.asarray(x, np.float64).reshape(self.split_shape)

    def of_units(self, statistic: Any) -> np.ndarray:
        lengths = [1 if a in self.axes else n for a, n in enumerate(self.split_shape)]
        return np.asarray(statistic, np.float64).reshape(lengths)


# Rows of every length that matters: shorter and longer than a vector, a chunk of 1024, a block of
# 2048 and what is kept between the passes; tuples of axes, also such that rows are not contiguous;
# channels first with long, short and single lines, and last; one group, groups of one.
SETTINGS = [
    Setting("layer_norm", (5,)),
    Setting("layer_norm", (32, 10)),
    Setting("layer_norm", (1, 768)),
    Setting("layer_norm", (130, 37)),
    Setting("layer_norm", (3, 2500)),
    Setting("layer_norm", (3, 20000)),
    Setting("layer_norm", (6, 4, 50), {"axis": (-2, -1)}),
    Setting("layer_norm", (6, 30, 5), {"axis": 1}),
    Setting("layer_norm", (7, 3, 5, 6), {"axis": (0, 2)}),
    Setting("layer_norm", (9, 17), {"eps": 0.5}),
    Setting("rms_norm", (33, 100)),
    Setting("rms_norm", (2, 5000)),
    Setting("rms_norm", (6, 30, 5), {"axis": (0, 1)}),
    Setting("add_layer_norm", (19, 70)),
    Setting("add_layer_norm", (6, 30, 5), {"axis": 1}),
    Setting("add_rms_norm", (19, 1100)),
    Setting("group_norm", (9, 12, 9, 7), groups=4),
    Setting("group_norm", (2, 6, 40, 30), groups=3),
    Setting("group_norm", (3, 8, 2, 3), groups=2),
    Setting("group_norm", (20, 12), groups=3),
    Setting("group_norm", (2, 12, 50), groups=12),
    Setting("group_norm", (2, 9, 7, 12), {"channel_axis": -1}, groups=4),
    Setting("group_norm", (12, 50), {"channel_axis": 0}, groups=3),
    Setting("instance_norm", (9, 5, 9, 7)),
    Setting("instance_norm", (2, 3, 60, 50)),
    Setting("instance_norm", (3, 9, 7, 12), {"channel_axis": -1}),
    Setting("instance_norm", (3, 50), {"channel_axis": 0}),
    Setting("instance_norm", (3, 5)),
]


def unit_roundoff(dtype: Any) -> float:
    """Of the type in which a dtype is computed."""
    return 2.0**-53 if dtype == np.float64 else 2.0**-24


def rounding(dtype: Any, exact: np.ndarray) -> np.ndarray:
    """Half a ULP of a dtype, about: what its last rounding costs."""
    info = ml_dtypes.finfo(dtype)
    return float(info.eps) / 2 * np.abs(exact) + float(info.smallest_subnormal)
