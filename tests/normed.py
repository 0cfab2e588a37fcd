"""What the tests of the norms share: settings, arrays, calls, and what the oracle makes of them."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from conftest import assert_same_bits, on_fused_isas
from devices import Framework

import fastact as fa
from fastact.check import reference
from fastact.check.expected.norms import NormOracle
from fastact.measure.norm_rows import Rows, Traits, default, rows_of, traits

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
    def kind(self) -> Traits:
        return traits(fa.ops[self.op])

    @property
    def centred(self) -> bool:
        return self.kind.centred

    @property
    def adds(self) -> bool:
        return self.kind.adds

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

    def of_rows(self, statistic: Any) -> np.ndarray:
        return np.asarray(statistic, np.float64).reshape(self.rows.kept)


def for_every_norm(settings: list[Setting]) -> list[Setting]:
    """The settings; a norm without settings gets another norm's, whose rows are alike."""
    found = list(settings)
    for op in NORMS:
        if op.name in {s.op for s in settings}:
            continue
        alike = [s for s in settings if s.kind.rows == traits(op).rows]
        found += [replace(s, op=op.name) for s in alike if s.op == alike[0].op]
    return found


# Rows of every length that matters: shorter and longer than a vector, a chunk of 1024, a block of
# 2048 and what is kept between the passes; tuples of axes, also such that rows are not contiguous;
# channels first with long, short and single lines, and last; one group, groups of one.
SETTINGS = for_every_norm(
    [
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
)


FEW = [next(s for s in SETTINGS if s.op == op.name) for op in NORMS]
#: Those whose rows lie along an axis.
OF_ROWS = [op for op in NORMS if not traits(op).channels]
each_norm = pytest.mark.parametrize("norm", NORMS, ids=lambda op: op.name)
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)
few_settings = pytest.mark.parametrize("setting", FEW, ids=str)


class Arrays:
    """x, dy, residual and parameters of a setting, and its calls."""

    def __init__(
        self, setting: Setting, dtype: Any, *, weights: str = "wb", parameter: Any = None
    ) -> None:
        rng = np.random.default_rng(len(setting.shape))
        made = lambda shape: rng.normal(size=shape).astype(dtype)  # noqa: E731
        self.setting, self.op = setting, fa.ops[setting.op]
        self.on_gpu = False  # whose 16-bit activations have bounds of their own
        self.x, self.dy, self.residual = (made(setting.shape) for _ in range(3))
        of = lambda a: a.astype(parameter or dtype)  # noqa: E731
        self.weight = of(1 + made(setting.parameter)) if "w" in weights else None
        self.bias = of(made(setting.parameter)) if "b" in weights else None
        if "bias" not in setting.kind.weights:
            self.bias = None

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (self.x, self.residual) if self.setting.adds else (self.x,)

    @property
    def weights(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.setting.kind.weights}

    def call(self, entry: Any, **named: Any) -> Any:
        options = {**self.setting.options, **self.weights, **named}
        return entry(*self.inputs, *self.setting.positional, **options)

    @property
    def normalised(self) -> np.ndarray:
        """The array that is normalised: x, or the sum, rounded."""
        if not self.setting.adds:
            return self.x
        compute = np.promote_types(self.x.dtype, np.float32)
        return (self.x.astype(compute) + self.residual.astype(compute)).astype(self.x.dtype)

    def exact(self, name: str, mean: Any = None, rstd: Any = None) -> Any:
        """y, dx, dweight and dbias of the oracle, and how far off each may be, by the op's bounds.

        mean, rstd: those that backward is given; else the true ones.
        """
        s, dtype, rows = self.setting, self.x.dtype, self.setting.rows
        given = {k: a for k, a in self.weights.items() if a is not None}
        dtypes = {k: a.dtype for k, a in given.items()}
        oracle = NormOracle(self.op, rows, dtype, name, dtypes, self.on_gpu)
        arrays = {"x": self.normalised, "dy": self.dy, **given}
        statistics: Any = (0.0 if mean is None else mean, rstd)
        if rstd is None:
            wide = s.split(self.normalised).astype(reference.wide(dtype))
            statistics = reference.statistics(wide, s.axes, s.eps, s.centred)
        exact = oracle.of(arrays, statistics)
        found = {"y": oracle.y(exact), **oracle.gradients(exact)}
        for part in ("y", "dx"):
            found[part] = tuple(map(rows.back, found[part]))
        return [value for value, _ in found.values()], [allowed for _, allowed in found.values()]


def assert_close(actual: np.ndarray, exact: np.ndarray, allowed: np.ndarray) -> None:
    worst = reference.excess(actual, exact, allowed)
    assert worst <= 1, f"{worst} times the bound"


def run(arrays: Arrays, **named: Any) -> tuple[Any, tuple[Any, ...]]:
    """y and what backward gives for what forward saved."""
    y, saved = arrays.call(arrays.op.forward, **named)
    options = {**arrays.setting.options, **named}
    return (y, saved), arrays.op.backward(arrays.dy, *saved, **options)


def assert_right(arrays: Arrays, name: str, got: Any, gradients: Any) -> None:
    y, saved = got
    s = arrays.setting
    if s.adds:
        y, total = y
        assert_same_bits(total, arrays.normalised)
        assert saved[0] is total
    values, slack = arrays.exact(name)
    assert y.dtype == arrays.x.dtype
    assert_close(y, values[0], slack[0])
    statistics = saved[1 : -len(arrays.weights)]
    mean, rstd = (None, *statistics)[-2:]
    compute = np.promote_types(arrays.x.dtype, np.float32)
    assert all(a.dtype == compute for a in statistics)
    wide = s.split(arrays.normalised).astype(reference.wide(arrays.x.dtype))
    exact = reference.statistics(wide, s.axes, s.eps, s.centred)
    allowed = arrays.op.bounds.allowed_rstd(exact[1], exact[0], arrays.x.dtype, arrays.on_gpu)
    assert_close(s.of_rows(rstd), exact[1], (1 + reference.BUDGET) * allowed)
    if s.centred:
        size, apart = (np.abs(wide - m).mean(s.axes, keepdims=True) for m in (0, exact[0]))
        on_gpu = {"apart": apart} if arrays.on_gpu else {}
        allowed = arrays.op.bounds.allowed_mean(exact[0], size, arrays.x.dtype, **on_gpu)
        assert_close(s.of_rows(mean), exact[0], (1 + reference.BUDGET) * allowed)
    values, slack = arrays.exact(name, mean, rstd)
    assert_close(gradients[0], values[1], slack[1])
    parameters = (arrays.weight, arrays.bias)
    for parameter, gradient, exact, allowed in zip(
        parameters, gradients[1:], values[2:], slack[2:], strict=False
    ):
        assert (parameter is None) == (gradient is None)
        if gradient is not None:
            assert gradient.dtype == parameter.dtype
            assert gradient.shape == parameter.shape
            assert_close(gradient, exact, allowed)


def everything(arrays: Arrays, **named: Any) -> list[Any]:
    (y, saved), gradients = run(arrays, **named)
    return [*(y if arrays.setting.adds else (y,)), *saved, *gradients]


def assert_all_same_bits(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_same_bits(a, b)


def assert_same_on_fused_isas(arrays: Arrays) -> None:
    """The same bits on every instruction set that has a fused multiply-add."""
    first, *others = on_fused_isas(lambda: everything(arrays, activation="mish"))
    for other in others:
        assert_all_same_bits(other, first)


def assert_in_place(arrays: Arrays, name: str) -> None:
    """y in x, and dx in dy, then in x: the bits of those in memory of their own."""
    setting = arrays.setting
    (y, saved), gradients = run(arrays, activation=name)
    x = arrays.x.copy()
    arrays.x = x
    out = (x, np.empty_like(x)) if setting.adds else x
    arrays.call(arrays.op, activation=name, out=out)
    assert_same_bits(x, y[0] if setting.adds else y)
    options = {**setting.options, "activation": name}
    outs = [np.empty_like(g) for g in gradients]
    for at in (0, 1):
        operands = [arrays.dy.copy(), saved[0].copy()]
        outs[0] = operands[at]
        found = arrays.op.backward(*operands, *saved[1:], out=tuple(outs), **options)
        assert found[0] is operands[at]
        assert_all_same_bits(list(found), list(gradients))


def layouts(a: np.ndarray) -> list[np.ndarray]:
    """The same values, laid out otherwise."""
    turned = np.ascontiguousarray(a[..., ::-1])[..., ::-1]
    order = np.asfortranarray(a)
    gaps = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2]
    gaps[...] = a
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    raw[...] = a
    return [turned, order, gaps, raw]


def run_on(device: Framework, arrays: Arrays, **named: Any) -> tuple[Any, tuple[Any, ...]]:
    """What `run` gives, computed by a device, as NumPy's arrays."""

    def there(value: Any) -> Any:
        return device.of(value) if isinstance(value, np.ndarray) else value

    def back(values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if v is None else device.numpy(v) for v in values)

    setting, op = arrays.setting, arrays.op
    arrays.on_gpu = True
    inputs, weights = map(there, arrays.inputs), {k: there(v) for k, v in arrays.weights.items()}
    dtotal = {"dtotal": there(named.pop("dtotal"))} if "dtotal" in named else {}
    options = {**setting.options, **named}
    y, saved = op.forward(*inputs, *setting.positional, **weights, **options)
    gradients = back(op.backward(there(arrays.dy), *saved, **dtotal, **options))
    kept = back(saved)
    if not setting.adds:
        return (device.numpy(y), kept), gradients
    return ((device.numpy(y[0]), kept[0]), kept), gradients
