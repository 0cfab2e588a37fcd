"""What the tests of the norms share: settings, arrays, calls, and what the oracle makes of them."""

from dataclasses import dataclass, field, replace
from typing import Any

import judged
import numpy as np
import pytest
from conftest import assert_same_bits
from devices import FRAMEWORKS, Framework

import fastact as fa
from fastact.measure.cases import needed
from fastact.measure.norm_rows import NormKind, Rows, default, rows_of, traits

#: The norms whose statistics are of rows of x, and not of channels of the batch.
NORMS = [op for op in fa.ops.values() if op.family == "norms" and not traits(op).by_channel]


@dataclass(frozen=True)
class Setting:
    """An op at a shape.

    groups : of channels, by position, where the op has them.
    """

    op: str
    shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)
    groups: int = 0

    def __str__(self) -> str:
        options = "-".join(f"{value}" for value in self.options.values())
        return f"{self.op}-{'x'.join(map(str, self.shape))}-{options}-{self.groups or ''}"

    @property
    def kind(self) -> NormKind:
        return traits(fa.ops[self.op])

    @property
    def centred(self) -> bool:
        return self.kind.centred

    @property
    def adds(self) -> bool:
        return self.kind.adds

    @property
    def second(self) -> str:
        return self.kind.second

    @property
    def positional(self) -> tuple[int, ...]:
        return (self.groups,) if self.groups else ()

    @property
    def eps(self) -> float:
        return float(self.options.get("eps", default(fa.ops[self.op], "eps")))

    @property
    def rows(self) -> Rows:
        return rows_of(fa.ops[self.op], self.shape, {**self.options, "num_groups": self.groups})

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes that are reduced, of `split` arrays."""
        return self.rows.axes

    @property
    def split_shape(self) -> tuple[int, ...]:
        return self.rows.split

    @property
    def parameter(self) -> tuple[int, ...]:
        return self.rows.parameter

    def along(self, parameter: Any) -> np.ndarray:
        """A parameter as it broadcasts against `split` arrays."""
        return np.asarray(parameter, np.float64).reshape(self.rows.along)

    def split(self, x: Any) -> np.ndarray:
        x = np.asarray(x)
        made_in = np.longdouble if x.dtype == np.longdouble else np.float64
        return x.astype(made_in).reshape(self.split_shape)


def several(op: str, *shapes: tuple[int, ...], groups: int = 0, **options: Any) -> list[Setting]:
    """An op at each of these shapes, with the same options."""
    return [Setting(op, shape, options, groups) for shape in shapes]


def told(op: Any, **more: Any) -> dict[str, Any]:
    """What of a norm's dropout must be told, where it has some; more : other values."""
    return {n: v for n, v in {**needed(op), **more}.items() if n in op.checks}


def for_every_norm(settings: list[Setting]) -> list[Setting]:
    """The settings; a norm without settings gets another norm's, whose rows are alike.

    It has what it needs besides.
    """
    found = list(settings)
    for op in NORMS:
        if op.name in {s.op for s in settings}:
            continue
        alike = [s for s in settings if s.kind.rows == traits(op).rows]
        found += [
            replace(s, op=op.name, options={**s.options, **told(op)})
            for s in alike
            if s.op == alike[0].op
        ]
    return found


# Rows of every length that matters: shorter and longer than a vector, a chunk of 1024, a block of
# 2048 and what is kept between the passes; tuples of axes, also such that rows are not contiguous;
# channels first with long, short and single lines, and last; one group, groups of one.
SETTINGS = for_every_norm(
    [
        *several("layer_norm", (5,), (32, 10), (1, 768), (130, 37), (3, 2500), (3, 20000)),
        Setting("layer_norm", (6, 4, 50), {"axis": (-2, -1)}),
        Setting("layer_norm", (6, 30, 5), {"axis": 1}),
        Setting("layer_norm", (7, 3, 5, 6), {"axis": (0, 2)}),
        Setting("layer_norm", (9, 17), {"eps": 0.5}),
        *several("rms_norm", (33, 100), (2, 5000)),
        Setting("rms_norm", (6, 30, 5), {"axis": (0, 1)}),
        Setting("add_layer_norm", (19, 70)),
        Setting("add_layer_norm", (6, 30, 5), {"axis": 1}),
        Setting("add_rms_norm", (19, 1100)),
        Setting("gated_rms_norm", (32, 10)),
        Setting("gated_rms_norm", (130, 37), {"gate_first": True}),
        Setting("gated_rms_norm", (3, 2500)),
        Setting("gated_rms_norm", (3, 20000), {"gate_first": True}),
        Setting("gated_rms_norm", (2, 20000)),
        Setting("gated_rms_norm", (6, 30, 5), {"axis": (0, 1)}),
        Setting("gated_rms_norm", (6, 30, 5), {"axis": 1, "gate_first": True, "group_size": 6}),
        Setting("gated_rms_norm", (9, 3072), {"group_size": 1024}),
        Setting("group_norm", (9, 12, 9, 7), groups=4),
        Setting("group_norm", (2, 6, 40, 30), groups=3),
        Setting("group_norm", (3, 8, 2, 3), groups=2),
        Setting("group_norm", (20, 12), groups=3),
        Setting("group_norm", (2, 12, 50), groups=12),
        Setting("group_norm", (2, 9, 7, 12), {"channel_axis": -1}, groups=4),
        Setting("group_norm", (12, 50), {"channel_axis": 0}, groups=3),
        *several("instance_norm", (9, 5, 9, 7), (2, 3, 60, 50)),
        Setting("instance_norm", (3, 9, 7, 12), {"channel_axis": -1}),
        Setting("instance_norm", (3, 50), {"channel_axis": 0}),
        Setting("instance_norm", (3, 5)),
    ]
)


LAST = {"channel_axis": -1}

# Channels that come last: groups of one, three, eight and all; channels by which pixels are joined
# (fewer than 64) and are not, of no vector's multiple, of more than a piece (128) and of more than
# one tile (512); one example and more than there are rows of sums (64); fewer pixels than a call
# takes (8), more than moments are taken of at once (256 rows, of 16 pixels each where there are 6
# channels), and along any number of axes.
CHANNELS = [
    Setting("group_norm", (3, 5, 7, 12), LAST, groups=12),
    Setting("group_norm", (3, 5, 7, 12), LAST, groups=4),
    Setting("group_norm", (2, 9, 7, 24), LAST, groups=3),
    Setting("group_norm", (2, 11, 13, 21), LAST, groups=7),
    Setting("group_norm", (2, 11, 13, 21), LAST, groups=1),
    Setting("group_norm", (2, 70, 70, 6), LAST, groups=2),
    Setting("group_norm", (1, 21, 17, 130), LAST, groups=13),
    Setting("group_norm", (3, 4, 5, 200), LAST, groups=25),
    Setting("group_norm", (2, 3, 3, 1100), LAST, groups=1),
    Setting("group_norm", (2, 3, 3, 1100), LAST, groups=2),
    Setting("group_norm", (2, 3, 3, 1100), LAST, groups=1100),
    Setting("group_norm", (130, 2, 3, 6), LAST, groups=2),
    *several(
        "instance_norm",
        (3, 9, 7, 12),
        (2, 50, 3),
        (3, 2, 5, 4, 70),
        (1, 1, 9, 65),
        (2, 5, 7, 513),
        (70, 4, 9),
        channel_axis=-1,
    ),
]


FEW = [next(s for s in SETTINGS if s.op == op.name) for op in NORMS]
#: Those whose rows lie along an axis.
OF_ROWS = [op for op in NORMS if not traits(op).channels]
#: Those whose activation is behind the norm.
BEHIND = [s for s in FEW if not s.kind.gated]
few_settings = pytest.mark.parametrize("setting", FEW, ids=str)


class Arrays:
    """x, dy, what else has their shape, and parameters of a setting, and its calls."""

    def __init__(
        self, setting: Setting, dtype: Any, *, weights: str = "wb", parameter: Any = None
    ) -> None:
        rng = np.random.default_rng(len(setting.shape))
        made = lambda shape: rng.normal(size=shape).astype(dtype)  # noqa: E731
        self.setting, self.op = setting, fa.ops[setting.op]
        self.x, self.dy, self.residual = (made(setting.shape) for _ in range(3))
        of = lambda a: a.astype(parameter or dtype)  # noqa: E731
        self.weight = of(1 + made(setting.parameter)) if "w" in weights else None
        self.bias = of(made(setting.parameter)) if "b" in weights else None
        if "bias" not in setting.kind.weights:
            self.bias = None

    @property
    def gate(self) -> Any:
        """The same numbers: no norm has both."""
        return self.residual

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (self.x, getattr(self, self.setting.second)) if self.setting.second else (self.x,)

    @property
    def weights(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.setting.kind.weights}

    def case(self, activation: str) -> dict[str, Any]:
        """All that a call takes, by name."""
        of = {"x": self.x, "activation": activation, **self.setting.options, **self.weights}
        of |= {self.setting.second: self.inputs[1]} if self.setting.second else {}
        return of | ({"num_groups": self.setting.groups} if self.setting.groups else {})

    def call(self, entry: Any, **named: Any) -> Any:
        options = {**self.setting.options, **self.weights, **named}
        return entry(*self.inputs, *self.setting.positional, **options)

    @property
    def normalised(self) -> np.ndarray:
        """The array that is normalised: x, or the sum, rounded."""
        if not self.setting.adds:
            return self.x
        if self.setting.kind.drops:
            how = {n: v for n, v in self.setting.options.items() if n in fa.dropout.checks}
            return fa.dropout(self.x, residual=self.residual, **how)
        compute = np.promote_types(self.x.dtype, np.float32)
        return (self.x.astype(compute) + self.residual.astype(compute)).astype(self.x.dtype)


def run(
    arrays: Arrays, place: Framework = FRAMEWORKS[0], **named: Any
) -> tuple[Any, tuple[Any, ...]]:
    """y and what backward gives for what forward saved, wherever kernels run, as NumPy's arrays."""

    def there(value: Any) -> Any:
        return place.of(value) if isinstance(value, np.ndarray) else value

    def back(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if v is None else place.numpy(v) for v in values)

    setting, op = arrays.setting, arrays.op
    inputs, weights = map(there, arrays.inputs), {k: there(v) for k, v in arrays.weights.items()}
    options = {**setting.options, **named}
    y, saved = op.forward(*inputs, *setting.positional, **weights, **options)
    gradients = back(op.backward(there(arrays.dy), *saved, **options))
    kept = back(saved)
    if not setting.adds:
        return (place.numpy(y), kept), gradients
    return ((place.numpy(y[0]), kept[0]), kept), gradients


def assert_right(arrays: Arrays, name: str, place: Framework = FRAMEWORKS[0]) -> None:
    """Results, statistics and gradients are within the bounds that the op states."""
    op, compute = arrays.op, np.promote_types(arrays.x.dtype, np.float32)
    dys = [arrays.dy, *[None] * (len(op.results) - 1)]
    found = judged.assert_right(op, arrays.case(name), dys, place)
    given = [f"d{n}" for n, a in arrays.weights.items() if a is not None]
    assert {"y", "rstd", "dx", *given} <= found.keys()
    assert all(found[n].dtype == compute for n in {"mean", "rstd"} & found.keys())
    if arrays.setting.adds:
        assert_same_bits(found[op.results[1]], arrays.normalised)


def everything(arrays: Arrays, place: Framework = FRAMEWORKS[0], **named: Any) -> list[Any]:
    (y, saved), gradients = run(arrays, place, **named)
    return [*(y if arrays.setting.adds else (y,)), *saved, *gradients]
