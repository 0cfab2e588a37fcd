"""The norms against the oracle, with every activation, dtype, layout and instruction set."""

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIVATIONS, DTYPES, assert_same_bits, bits
from normed import (
    BEHIND,
    FEW,
    SETTINGS,
    Arrays,
    assert_all_same_bits,
    assert_right,
    each_norm,
    each_setting,
    everything,
    exact_norm,
    few_settings,
    layouts,
    run,
    told,
)

import fastact as fa
from fastact.check import reference
from fastact.measure.norm_rows import traits


@each_setting
@pytest.mark.parametrize("name", ["identity", "mish"])
def test_values(setting, name, dtype, isa):
    arrays = Arrays(setting, dtype)
    assert_right(arrays, name, *run(arrays, activation=name))


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
@pytest.mark.parametrize("weights", ["", "w", "b"])
def test_parameters_are_optional(setting, weights, dtype):
    arrays = Arrays(setting, dtype, weights=weights)
    assert_right(arrays, "silu", *run(arrays, activation="silu"))


@few_settings
def test_wider_parameters(setting):
    for dtype, parameter in (("float16", "float32"), ("bfloat16", "float64"), ("float32",) * 2):
        arrays = Arrays(setting, DTYPES[dtype], parameter=DTYPES[parameter])
        if dtype == parameter:
            arrays.weight, arrays.bias = (
                None if a is None else a.astype(np.float64) for a in (arrays.weight, arrays.bias)
            )
        got, gradients = run(arrays, activation="mish")
        assert gradients[-len(arrays.weights)].dtype == arrays.weight.dtype
        assert_right(arrays, "mish", got, gradients)


@pytest.mark.parametrize("setting", BEHIND, ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda op: op.name)
def test_every_activation(setting, activation):
    """The bits of the activation itself; its derivative meets a gradient of no bits of ours."""
    arrays = Arrays(setting, np.dtype(np.float32))
    first = lambda y: y[0] if setting.adds else y  # noqa: E731
    z = first(arrays.call(arrays.op))
    assert_same_bits(first(arrays.call(arrays.op, activation=activation)), activation(z))
    (_, saved), gradients = run(arrays, activation=activation.name)
    p = activation.backward(arrays.dy, *activation.forward(z)[1])
    plain = arrays.op.backward(p, *saved, **setting.options)
    np.testing.assert_allclose(gradients[0], plain[0], 2e-5, 2e-5)
    np.testing.assert_allclose(gradients[1], plain[1], 2e-5, 2e-5)


def test_parameters_of_activations():
    arrays = Arrays(SETTINGS[1], np.dtype(np.float32))
    z = arrays.call(fa.layer_norm)
    y = arrays.call(fa.layer_norm, activation="elu", alpha=0.5)
    assert_same_bits(y, fa.elu(z, 0.5))


def test_group_norm_between_layer_and_instance_norm():
    """One group is layer_norm over all but the batch, a group a channel is instance_norm."""
    x = np.random.default_rng(0).normal(size=(3, 6, 5, 4))
    np.testing.assert_allclose(fa.group_norm(x, 1), fa.layer_norm(x, axis=(1, 2, 3)), 1e-13)
    np.testing.assert_allclose(fa.group_norm(x, 6), fa.instance_norm(x), 1e-13)


def test_running_statistics_of_instances():
    """As the documentation of instance_norm says, for users of torch's F.instance_norm."""
    rng = np.random.default_rng(0)
    x, weight, bias = rng.normal(size=(4, 3, 5)), rng.normal(size=3), rng.normal(size=3)
    mean, var = rng.normal(size=3), rng.uniform(1, 2, 3)
    t, *given = (torch.from_numpy(a.copy()) for a in (x, mean, var, weight, bias))
    found = torch.nn.functional.instance_norm(t, *given, use_input_stats=False)
    np.testing.assert_allclose(fa.batch_norm(x, mean, var, weight, bias), found, 1e-12, 1e-12)
    torch.nn.functional.instance_norm(t, *given, momentum=0.1)
    batch = fa.mean_var(x, 2, correction=1)
    for running, old, new in zip(given, (mean, var), batch, strict=False):
        np.testing.assert_allclose(0.9 * old + 0.1 * new.mean(0), running, 1e-12, 1e-12)


@each_norm
def test_empty(norm, dtype):
    kind = traits(norm)
    positional = (2,) if kind.groups else ()
    for shape in ((0, 4, 3), (3, 4, 0)):
        axis = told(norm) | ({} if kind.channels else {"axis": -1})
        length = 4 if kind.channels else shape[-1]
        x, w = np.empty(shape, dtype), np.ones(length, dtype)
        inputs = (x, x) if kind.second else (x,)
        y, saved = norm.forward(*inputs, *positional, w, **axis)
        assert (y[0] if kind.adds else y).shape == shape
        gradients = norm.backward(x, *saved, **axis)
        assert gradients[0].shape == shape
        of_weight = gradients[norm.gradients.index("dweight")]
        np.testing.assert_array_equal(of_weight.astype(float), np.zeros(length))


# --- hard cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [1e4, 1e6])
def test_far_from_zero(isa, offset):
    """100 values around 1e4: single-pass formulas give a mean of -87 here."""
    x = (np.random.default_rng(0).random((3, 100)) + offset).astype(np.float32)
    y = fa.layer_norm(x)
    exact = exact_norm(
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


# --- the op object --------------------------------------------------------------------------------


@each_norm
def test_op(norm):
    assert pickle.loads(pickle.dumps(norm)) is norm
    assert "Parameters\n" in norm.__doc__
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
