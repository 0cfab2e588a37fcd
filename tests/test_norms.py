"""The norms against the oracle, with every activation, dtype and instruction set."""

import inspect
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import reference
import torch
from conftest import ACTIVATIONS, DTYPES, assert_same_bits, bits
from normed import NORMS, SETTINGS, Setting, rounding, unit_roundoff
from test_memory import OBJECTS, peak

import fastact as fa
from fastact import _cpu
from fastact._check_norms import bounded

each_norm = pytest.mark.parametrize("norm", NORMS, ids=lambda op: op.name)
each_setting = pytest.mark.parametrize("setting", SETTINGS, ids=str)
FEW = [next(s for s in SETTINGS if s.op == op.name) for op in NORMS]
few_settings = pytest.mark.parametrize("setting", FEW, ids=str)


class Arrays:
    """x, dy, residual and parameters of a setting, and its calls."""

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
        if not setting.centred:
            self.bias = None

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (self.x, self.residual) if self.setting.adds else (self.x,)

    @property
    def weights(self) -> dict[str, Any]:
        both = {"weight": self.weight, "bias": self.bias}
        return both if self.setting.centred else {"weight": self.weight}

    def call(self, door: Any, **named: Any) -> Any:
        options = {**self.setting.options, **self.weights, **named}
        return door(*self.inputs, *self.setting.positional, **options)

    @property
    def normalised(self) -> np.ndarray:
        """What is normalised: x, or the sum, rounded."""
        if not self.setting.adds:
            return self.x
        compute = np.promote_types(self.x.dtype, np.float32)
        return (self.x.astype(compute) + self.residual.astype(compute)).astype(self.x.dtype)

    def exact(self, name: str, mean: Any = None, rstd: Any = None) -> Any:
        """y, dx, dweight and dbias of the oracle, and how far off each may be.

        mean, rstd: those that backward is given; else the true ones.
        """
        s = self.setting
        x, dy = s.split(self.normalised), s.split(self.dy)
        true = reference.statistics(x, s.axes, s.eps, s.centred)
        if rstd is not None:
            true = (s.of_units(mean) if s.centred else 0.0, s.of_units(rstd))
        w = s.along(self.weight) if self.weight is not None else np.ones(())
        b = s.along(self.bias) if self.bias is not None else np.zeros(())
        of = (dy, x, w, b)
        found = bounded(name, self.x.dtype, of, true, s.axes, s.centred)
        of_terms = [
            tuple(s.summed(np.broadcast_to(t, x.shape)) for t in part) for part in found[2:]
        ]
        back = lambda a: np.broadcast_to(a, s.split_shape).reshape(s.shape)  # noqa: E731
        both = [tuple(map(back, part)) for part in found[:2]] + of_terms
        return [value for value, _ in both], [slack for _, slack in both]


def assert_close(actual: np.ndarray, exact: np.ndarray, slack: np.ndarray) -> None:
    error = np.abs(actual.astype(np.float64) - exact)
    allowed = slack + rounding(actual.dtype, exact)
    worst = float(np.max(error / allowed, initial=0))
    assert worst <= 1, f"{worst} times the bound"


def run(arrays: Arrays, **named: Any) -> tuple[Any, tuple[Any, ...]]:
    """y and what backward gives for what forward saved."""
    y, saved = arrays.call(arrays.op.forward, **named)
    told = {**arrays.setting.options, **named}
    return (y, saved), arrays.op.backward(arrays.dy, *saved, **told)


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
    exact = reference.statistics(s.split(arrays.normalised), s.axes, s.eps, s.centred)
    u = unit_roundoff(compute)
    np.testing.assert_allclose(s.of_units(rstd), exact[1], 4 * u)
    if s.centred:
        spread = np.abs(s.split(arrays.normalised)).mean(s.axes, keepdims=True)
        assert (abs(s.of_units(mean) - exact[0]) <= u * abs(exact[0]) + 4 * u * spread).all()
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


@each_setting
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_values(setting, name, dtype, isa):
    arrays = Arrays(setting, dtype)
    assert_right(arrays, name, *run(arrays, activation=name))


@few_settings
@pytest.mark.parametrize("weights", ["", "w", "b"])
def test_parameters_are_optional(setting, weights, dtype):
    arrays = Arrays(setting, dtype, weights=weights)
    assert_right(arrays, "silu", *run(arrays, activation="silu"))


@few_settings
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda op: op.name)
def test_every_activation(setting, activation):
    """The bits of the activation itself; its derivative meets a gradient of no bits of ours."""
    arrays = Arrays(setting, np.dtype(np.float32))
    first = lambda y: y[0] if setting.adds else y  # noqa: E731
    z = first(arrays.call(arrays.op))
    assert_same_bits(first(arrays.call(arrays.op, activation=activation)), activation(z))
    (_, saved), gradients = run(arrays, activation=activation.name)
    p = activation.backward(arrays.dy, z)
    plain = arrays.op.backward(p, *saved, **setting.options)
    np.testing.assert_allclose(gradients[0], plain[0], 2e-5, 2e-5)
    np.testing.assert_allclose(gradients[1], plain[1], 2e-5, 2e-5)


def test_parameters_of_activations():
    arrays = Arrays(SETTINGS[1], np.dtype(np.float32))
    z = arrays.call(fa.layer_norm)
    y = arrays.call(fa.layer_norm, activation="elu", alpha=0.5)
    assert_same_bits(y, fa.elu(z, 0.5))


@pytest.mark.parametrize("shape", [(40, 77), (5, 2500), (2, 300_001)], ids=str)
def test_statistics_have_the_bits_of_mean_var(shape, dtype, isa):
    """One formula for both: a row in a block, in a few, and in chunks of blocks."""
    x = (100 + np.random.default_rng(0).normal(size=shape)).astype(dtype)
    compute = np.promote_types(dtype, np.float32)
    mean, _ = fa.mean_var(x.astype(compute), -1, keepdims=True)
    strided = np.asfortranarray(x)
    for a in (x, strided):
        _, (_, saved_mean, rstd, *_) = fa.layer_norm.forward(a)
        assert_same_bits(saved_mean, mean)
        # Of a variance that is not rounded between, as it is by mean_var.
        m = fa.moments(a, -1, keepdims=True)
        assert_same_bits(rstd, (1 / np.sqrt(m.var() + 1e-5)).astype(compute))


# --- hard cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_far_from_zero(isa, offset):
    """100 values around 1e4: single-pass formulas give a mean of -87 here."""
    x = (np.random.default_rng(0).random((3, 100)) + offset).astype(np.float32)
    y = fa.layer_norm(x)
    exact = reference.norm(
        "identity", x.astype(float), *reference.statistics(x.astype(float), (1,), 1e-5, True), 1, 0
    )
    np.testing.assert_allclose(y, exact, 2e-6, 2e-6)
    assert (abs(y.mean(1, dtype=np.float64)) < 1e-6).all()


def test_near_the_largest(isa):
    x = (np.random.default_rng(0).normal(size=(4, 300)) * 1e30).astype(np.float32)
    y, saved = fa.layer_norm.forward(x)
    np.testing.assert_allclose(
        y,
        (x - x.mean(1, keepdims=True, dtype=float)) / x.std(1, keepdims=True, dtype=float),
        1e-6,
        1e-6,
    )
    assert np.isfinite(fa.layer_norm.backward(x, *saved)[0]).all()
    np.testing.assert_allclose(
        fa.rms_norm(x), x / np.sqrt(np.square(x, dtype=float).mean(1, keepdims=True)), 1e-6
    )


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4, 3e30])
@pytest.mark.parametrize("setting", [s for s in FEW if s.centred and not s.adds], ids=str)
def test_constant_rows_give_the_bias(setting, value, dtype):
    arrays = Arrays(setting, dtype)
    with np.errstate(over="ignore"):
        arrays.x[...] = value
    if not np.isfinite(arrays.x.astype(float)).all():
        pytest.skip("no number of this type")
    y = arrays.setting.split(arrays.call(arrays.op))
    expected = np.broadcast_to(arrays.setting.along(arrays.bias), y.shape)
    np.testing.assert_array_equal(y, expected)


def test_no_number_stays_in_its_row():
    x = np.random.default_rng(0).normal(size=(6, 50)).astype(np.float32)
    clean = fa.layer_norm(x)
    x[1, 3], x[4, 7] = np.nan, np.inf
    y = fa.layer_norm(x)
    assert np.isnan(y[[1, 4]]).all()
    assert_same_bits(y[[0, 2, 3, 5]], clean[[0, 2, 3, 5]])


# --- bits -----------------------------------------------------------------------------------------


def everything(arrays: Arrays, **named: Any) -> list[Any]:
    (y, saved), gradients = run(arrays, **named)
    return [*(y if arrays.setting.adds else (y,)), *saved, *gradients]


def assert_all_same_bits(actual: list[Any], expected: list[Any]) -> None:
    for a, b in zip(actual, expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert_same_bits(a, b)


BIG = [
    Setting("layer_norm", (300, 130)),
    Setting("layer_norm", (5, 40000)),
    Setting("rms_norm", (300, 130)),
    Setting("add_rms_norm", (300, 130)),
    Setting("group_norm", (20, 12, 20, 20), groups=3),
    Setting("group_norm", (9, 20, 20, 12), {"channel_axis": -1}, groups=3),
    Setting("instance_norm", (20, 12, 20, 20)),
    Setting("instance_norm", (9, 20, 20, 12), {"channel_axis": -1}),
]


@pytest.mark.parametrize("setting", BIG, ids=str)
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_threads_do_not_change_bits(setting, name, dtype):
    arrays = Arrays(setting, dtype)
    found = []
    for threads in (1, 2, 3):
        with fa.num_threads(threads):
            found.append(everything(arrays, activation=name))
    assert_all_same_bits(found[1], found[0])
    assert_all_same_bits(found[2], found[0])


@pytest.mark.parametrize("setting", BIG, ids=str)
def test_avx2_and_avx512_have_the_same_bits(setting, dtype):
    isas = [isa for isa in _cpu.supported_isas() if isa != "v2"]
    arrays, before, found = Arrays(setting, dtype), _cpu.isa(), []
    try:
        for isa in isas:
            _cpu.select_isa(isa)
            found.append(everything(arrays, activation="mish"))
    finally:
        _cpu.select_isa(before)
    for other in found[1:]:
        assert_all_same_bits(other, found[0])


@few_settings
def test_units_do_not_depend_on_each_other(setting, dtype):
    """A batch of its last example alone."""
    if len(setting.shape) < 2 or 0 in setting.axes or setting.options.get("channel_axis") == 0:
        pytest.skip("no batch")
    arrays = Arrays(setting, dtype)
    (y, _), gradients = run(arrays, activation="mish")
    arrays.x, arrays.dy, arrays.residual = (a[-1:] for a in (arrays.x, arrays.dy, arrays.residual))
    (one, _), one_gradients = run(arrays, activation="mish")
    pick = (lambda a: a[0]) if setting.adds else (lambda a: a)
    assert_same_bits(pick(one), pick(y)[-1:])
    assert_same_bits(one_gradients[0], gradients[0][-1:])


# --- layouts and outputs --------------------------------------------------------------------------


def layouts(a: np.ndarray) -> list[np.ndarray]:
    """The same values, laid out otherwise."""
    turned = np.ascontiguousarray(a[..., ::-1])[..., ::-1]
    order = np.asfortranarray(a)
    gaps = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2]
    gaps[...] = a
    raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
    raw[...] = a
    return [turned, order, gaps, raw]


@each_setting
def test_any_layout(setting, dtype):
    """x, dy and parameters may lie anyhow, each in its own way."""
    arrays = Arrays(setting, dtype)
    name = "mish"
    for k, x in enumerate(layouts(arrays.x)):
        arrays.x = x
        arrays.dy = layouts(arrays.dy)[k - 1]
        arrays.residual = layouts(arrays.residual)[k - 2]
        arrays.weight = layouts(arrays.weight)[k - 3]
        got, gradients = run(arrays, activation=name)
        assert_right(arrays, name, got, gradients)
        y = got[0][0] if setting.adds else got[0]
        assert y.strides == np.empty_like(x).strides  # as NumPy's order="K"


@few_settings
def test_expanded_gradient(setting, dtype):
    """What autograd hands over for a sum: one number with strides of 0."""
    arrays = Arrays(setting, dtype)
    arrays.dy = np.broadcast_to(np.ones((), dtype), setting.shape)
    expanded = run(arrays, activation="mish")[1]
    arrays.dy = np.ones(setting.shape, dtype)
    whole = run(arrays, activation="mish")[1]
    assert_all_same_bits(list(expanded), list(whole))
    saved = arrays.call(arrays.op.forward, activation="mish")[1]
    number = arrays.op.backward(1.0, *saved, activation="mish", **setting.options)
    assert_all_same_bits(list(number), list(whole))


@each_setting
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_in_place(setting, name):
    arrays = Arrays(setting, np.dtype(np.float32))
    (y, saved), gradients = run(arrays, activation=name)
    first = y[0] if setting.adds else y
    x = arrays.x.copy()
    arrays.x = x
    out = (x, np.empty_like(x)) if setting.adds else x
    arrays.call(arrays.op, activation=name, out=out)
    assert_same_bits(x, first)
    told = {**setting.options, "activation": name}
    outs = [np.empty_like(g) for g in gradients]
    for at in (0, 1):  # dx in dy, then in x
        operands = [arrays.dy.copy(), saved[0].copy()]
        outs[0] = operands[at]
        found = arrays.op.backward(*operands, *saved[1:], out=tuple(outs), **told)
        assert found[0] is operands[at]
        assert_all_same_bits(list(found), list(gradients))


def test_sum_in_place():
    arrays = Arrays(Setting("add_layer_norm", (19, 70)), np.dtype(np.float32))
    y, total = arrays.call(fa.add_layer_norm)
    out = (np.empty_like(y), arrays.residual.copy())
    arrays.residual = out[1]
    (again, same), saved = arrays.call(fa.add_layer_norm.forward, out=out)
    assert same is out[1] is saved[0]
    assert again is out[0]
    assert_same_bits(same, total)
    assert_same_bits(again, y)


@few_settings
def test_statistics_may_be_given_memory(setting):
    arrays = Arrays(setting, np.dtype(np.float32))
    y, saved = arrays.call(arrays.op.forward)
    statistics = saved[1 : -len(arrays.weights)]
    out = (*map(np.empty_like, (*(y if setting.adds else (y,)), *statistics)),)
    again, kept = arrays.call(arrays.op.forward, out=out)
    assert (again[0] if setting.adds else again) is out[0]
    for a, b in zip(statistics, kept[1:], strict=False):
        assert_same_bits(a, b)
        assert any(b is o for o in out)


@few_settings
def test_accumulate_and_skip(setting, dtype):
    arrays = Arrays(setting, dtype)
    (_, saved), gradients = run(arrays, activation="mish")
    told = {**setting.options, "activation": "mish"}
    held = [np.ones_like(g) for g in gradients]
    arrays.op.backward(arrays.dy, *saved, out=tuple(held), accumulate=True, **told)
    for h, g in zip(held, gradients, strict=True):
        wide = np.promote_types(g.dtype, np.float32)
        eps = float(ml_dtypes.finfo(g.dtype).eps)
        np.testing.assert_allclose(h.astype(wide), g.astype(wide) + 1, 2 * eps, 2 * eps)
    for at in range(len(gradients)):
        outs = [None] * len(gradients)
        outs[at] = np.empty_like(gradients[at])
        found = arrays.op.backward(arrays.dy, *saved, out=tuple(outs), **told)
        assert [f is None for f in found] == [o is None for o in outs]
        assert_same_bits(found[at], gradients[at])


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.adds], ids=str)
def test_gradient_of_the_sum(setting, dtype):
    arrays = Arrays(setting, dtype)
    (_, saved), (dx, *_) = run(arrays, activation="mish")
    dtotal = arrays.residual
    both = arrays.op.backward(
        arrays.dy, *saved, dtotal=dtotal, activation="mish", **setting.options
    )[0]
    wide = np.promote_types(dtype, np.float32)
    eps = float(ml_dtypes.finfo(dtype).eps)
    expected = dx.astype(wide) + dtotal.astype(wide)
    np.testing.assert_allclose(both.astype(wide), expected, 2 * eps, 4 * eps)
    held = dtotal.copy()  # and in place
    outs = (held, *(None for _ in arrays.weights))
    found = arrays.op.backward(
        arrays.dy, *saved, dtotal=held, activation="mish", out=outs, **setting.options
    )
    assert_same_bits(found[0], both)


@few_settings
def test_wider_parameters(setting):
    for dtype, parameter in (("float16", "float32"), ("bfloat16", "float64"), ("float32",) * 2):
        arrays = Arrays(setting, DTYPES[dtype], parameter=DTYPES[parameter])
        if dtype == parameter:
            arrays.weight, arrays.bias = (
                None if a is None else a.astype(np.float64) for a in (arrays.weight, arrays.bias)
            )
        got, gradients = run(arrays, activation="mish")
        assert gradients[1].dtype == arrays.weight.dtype
        assert_right(arrays, "mish", got, gradients)


@each_norm
def test_empty(norm, dtype):
    positional = (2,) if norm.name == "group_norm" else ()
    for shape in ((0, 4, 3), (3, 4, 0)):
        axis = {} if norm.name in ("group_norm", "instance_norm") else {"axis": -1}
        length = 4 if not axis else shape[-1]
        x, w = np.empty(shape, dtype), np.ones(length, dtype)
        inputs = (x, x) if norm.name.startswith("add") else (x,)
        y, saved = norm.forward(*inputs, *positional, w, **axis)
        assert (y[0] if len(inputs) == 2 else y).shape == shape
        gradients = norm.backward(x, *saved, **axis)
        assert gradients[0].shape == shape
        np.testing.assert_array_equal(gradients[1].astype(float), np.zeros(length))


@each_norm
def test_memory_does_not_grow(norm):
    """With `out=`, beside the rows of sums, of which there are as many from 1024 units on."""
    peaks = []
    for count in (2000, 8000):
        shape = (count, 8, 5) if norm.name in ("group_norm", "instance_norm") else (count, 40)
        arrays = Arrays(
            Setting(norm.name, shape, groups=2 if norm.name == "group_norm" else 0),
            np.dtype(np.float32),
        )
        y, saved = arrays.call(norm.forward)
        told = {"activation": "mish"}
        gradients = norm.backward(arrays.dy, *saved, **told)
        outs = (*(y if isinstance(y, tuple) else (y,)), *saved[1 : -len(arrays.weights)])
        arrays.call(norm.forward, out=outs, **told)
        peaks.append(
            peak(lambda: arrays.call(norm.forward, out=outs, **told))  # noqa: B023
            + peak(lambda: norm.backward(arrays.dy, *saved, out=gradients, **told))  # noqa: B023
        )
    assert abs(peaks[1] - peaks[0]) < OBJECTS


# --- against torch, and finite differences --------------------------------------------------------


class ByUs(torch.autograd.Function):
    """A norm in torch's graph."""

    @staticmethod
    def forward(ctx: Any, setting: Setting, name: str, x: Any, weight: Any, bias: Any) -> Any:
        op = fa.ops[setting.op]
        parameters = (weight, bias) if setting.centred else (weight,)
        told = {**setting.options, "activation": name}
        parts = (a.detach() for a in parameters)
        y, saved = op.forward(x.detach(), *setting.positional, *parts, **told)
        ctx.save_for_backward(*saved)
        ctx.how = op, told
        return y

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        op, told = ctx.how
        gradients = op.backward(dy.detach(), *(a.detach() for a in ctx.saved_tensors), **told)
        return None, None, *(*gradients, None)[:3]


SMALL = [
    Setting("layer_norm", (3, 7)),
    Setting("layer_norm", (2, 3, 4), {"axis": (0, 2)}),
    Setting("rms_norm", (3, 7)),
    Setting("group_norm", (2, 4, 3), groups=2),
    Setting("instance_norm", (2, 3, 5)),
    Setting("instance_norm", (2, 5, 3), {"channel_axis": -1}),
]


@pytest.mark.parametrize("setting", SMALL, ids=str)
@pytest.mark.parametrize("name", ["identity", "mish", "tanh"])
def test_gradcheck(setting, name):
    arrays = Arrays(setting, np.dtype(np.float64))
    bias = arrays.bias if setting.centred else np.zeros(())
    leaves = [torch.from_numpy(a).requires_grad_() for a in (arrays.x, arrays.weight, bias)]
    assert torch.autograd.gradcheck(lambda *a: ByUs.apply(setting, name, *a), leaves)


TORCH = {
    "layer_norm": lambda F, s, x, w, b: F.layer_norm(x, s.parameter, w, b),
    "rms_norm": lambda F, s, x, w, b: F.rms_norm(x, s.parameter, w, 1e-6),
    "group_norm": lambda F, s, x, w, b: F.group_norm(x, s.groups, w, b),
    "instance_norm": lambda F, s, x, w, b: F.instance_norm(x, None, None, w, b),
}


@pytest.mark.parametrize(
    "setting",
    [
        Setting("layer_norm", (40, 300)),
        Setting("rms_norm", (40, 300)),
        Setting("group_norm", (4, 12, 9, 9), groups=3),
        Setting("instance_norm", (4, 12, 9, 9)),
    ],
    ids=str,
)
def test_against_torch_autograd(setting):
    F = torch.nn.functional
    arrays = Arrays(setting, np.dtype(np.float64))
    parameters = [a for a in (arrays.weight, arrays.bias) if a is not None]
    leaves = [torch.from_numpy(a).requires_grad_() for a in (arrays.x, *parameters)]
    x, w, b = (*leaves, None)[:3]
    y = F.mish(TORCH[setting.op](F, setting, x, w, b))
    theirs = torch.autograd.grad(y, leaves, torch.from_numpy(arrays.dy))
    (ours, _), gradients = run(arrays, activation="mish")
    np.testing.assert_allclose(ours, y.detach().numpy(), 1e-12, 1e-12)
    for mine, other in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(mine, other.numpy(), 1e-10, 1e-10)


def test_group_norm_between_layer_and_instance_norm():
    """One group is layer_norm over all but the batch, a group a channel is instance_norm."""
    x = np.random.default_rng(0).normal(size=(3, 6, 5, 4))
    np.testing.assert_allclose(fa.group_norm(x, 1), fa.layer_norm(x, axis=(1, 2, 3)), 1e-13)
    np.testing.assert_allclose(fa.group_norm(x, 6), fa.instance_norm(x), 1e-13)


# --- the op object --------------------------------------------------------------------------------


@each_norm
def test_op(norm):
    assert pickle.loads(pickle.dumps(norm)) is norm
    assert norm.__doc__.startswith(f"{norm.name}(")
    names = list(inspect.signature(norm).parameters)
    assert names[0] == "x"
    assert {"eps", "activation", "out", "stream"} <= set(names)


@each_norm
def test_repeated_calls_agree(norm):
    """The first two calls of a kind pass the checks, those that follow run what they ran."""
    setting = next(s for s in SETTINGS if s.op == norm.name)
    arrays = Arrays(setting, np.dtype(np.float32))
    first = everything(arrays, activation="mish")
    for _ in range(4):
        assert_all_same_bits(everything(arrays, activation="mish"), first)


@few_settings
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_tensors(setting, kind):
    """Of torch, and what is saved is torch's too."""
    arrays = Arrays(setting, DTYPES[kind])
    expected = everything(arrays)

    def tensor(a: Any) -> Any:
        if a is None:
            return None
        of = torch.from_numpy(a.view(np.int16) if kind == "bfloat16" else a)
        return of.view(torch.bfloat16) if kind == "bfloat16" else of

    arrays.x, arrays.dy, arrays.residual, arrays.weight, arrays.bias = map(
        tensor, (arrays.x, arrays.dy, arrays.residual, arrays.weight, arrays.bias)
    )
    for a, b in zip(everything(arrays), expected, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert isinstance(a, torch.Tensor)
            raw = a.view(torch.int16) if a.dtype == torch.bfloat16 else a
            np.testing.assert_array_equal(bits(raw.numpy()), bits(b))
