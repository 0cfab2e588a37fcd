"""The norms on devices: against the oracle, in every layout, and the same bits on all of them."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import ACTIVATIONS, DTYPES, assert_same_bits
from devices import DEVICES, EMULATED, KERNELS, Framework, to_emulated
from normed import (
    FEW,
    SETTINGS,
    Arrays,
    Setting,
    assert_all_same_bits,
    assert_right,
    exact_norm,
    few_settings,
    for_every_norm,
    run,
    run_on,
)

import fastact as fa
from fastact.check import reference
from fastact.interop import devices

on_kernels = pytest.mark.parametrize("device", KERNELS, ids=lambda d: d.name)
names = pytest.mark.parametrize("name", ["identity", "mish"])

# What the kernels tell apart, counted in packs of 16 bytes (8, 4 or 2 elements): rows of one
# element; of 1 to 32 lanes; of more than a warp takes backward (64) and forward (256); of one, two
# and three packs a thread backward (from 257, 513 and 1025 on), and of several blocks (from 1025
# on, of float32 1537); and tails of each. Channels whose lines are shorter and longer than a pack,
# a warp and a block; groups without pixels; batches of more rows than a team adds up in float32
# (14).
KINDS = [
    Setting("layer_norm", (7, 1)),
    Setting("layer_norm", (67, 3)),
    Setting("rms_norm", (70, 8)),
    Setting("layer_norm", (1500, 5)),
    Setting("layer_norm", (37, 264)),
    Setting("add_layer_norm", (9, 1031)),
    Setting("rms_norm", (5, 4100)),
    Setting("layer_norm", (2, 9001)),
    Setting("layer_norm", (3, 5120)),
    Setting("layer_norm", (3700, 72)),
    Setting("rms_norm", (4100, 260)),
    Setting("group_norm", (300, 6, 3), groups=2),
    Setting("group_norm", (3, 4, 9), groups=2),
    Setting("group_norm", (2, 4, 700), groups=2),
    Setting("group_norm", (3, 6, 1), groups=3),
    Setting("group_norm", (2, 4, 5001), groups=2),
    Setting(
        "group_norm", (2, 64, 7, 7), groups=4
    ),  # whole packs, whose parameters change amid them
    Setting("group_norm", (2, 40, 14, 14), groups=2),
    Setting("instance_norm", (40, 600, 7, 7)),
    Setting("instance_norm", (3, 5, 14, 14)),
    Setting("group_norm", (5, 12, 3, 9), groups=6),
    Setting("instance_norm", (2, 3, 3000)),
    Setting("instance_norm", (700, 2, 3)),
]
each_setting = pytest.mark.parametrize("setting", [*SETTINGS, *KINDS], ids=str)


def everything(device: Framework, arrays: Arrays, **named: Any) -> list[Any]:
    (y, saved), gradients = run_on(device, arrays, **named)
    return [*(y if arrays.setting.adds else (y,)), *saved, *gradients]


@each_setting
@names
@on_kernels
def test_values(setting, name, dtype, device):
    arrays = Arrays(setting, dtype)
    assert_right(arrays, name, *run_on(device, arrays, activation=name))


# The chunks are of packs: float64 has them with the fewest elements, the others take 4 to 10 s.
@on_kernels
@names
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, marks=pytest.mark.thorough if d != np.float64 else ())
        for d in DTYPES.values()
    ],
    ids=str,
)
def test_rows_of_several_blocks(name, dtype, device):
    """From 16384 packs of 16 bytes on: the last chunk is one element, or nearly whole."""
    size = 16384 * 16 // dtype.itemsize
    # How rows are cut does not ask which op it is, so the short last chunks are of one op each.
    cases = [("layer_norm", 1), ("add_rms_norm", 5)]
    cases += [(op, 4096 * 16 // dtype.itemsize - 1) for op in ("layer_norm", "add_rms_norm")]
    for op, more in cases:
        arrays = Arrays(Setting(op, (2, size + more)), dtype)
        assert_right(arrays, name, *run_on(device, arrays, activation=name))


@pytest.mark.thorough  # more than a minute where the device is emulated
@on_kernels
@names
def test_many_long_rows(name, device):
    """1538 packs of 16 bytes backward, in 81 parts of 17 rows: 14 are added up, then 3."""
    arrays = Arrays(Setting("rms_norm", (1370, 6149)), np.dtype(np.float32))
    assert_right(arrays, name, *run_on(device, arrays, activation=name))


@few_settings
@pytest.mark.parametrize("weights", ["", "w", "b"])
@on_kernels
def test_parameters_are_optional(setting, weights, dtype, device):
    arrays = Arrays(setting, dtype, weights=weights)
    assert_right(arrays, "silu", *run_on(device, arrays, activation="silu"))


@pytest.mark.parametrize(
    "setting",
    [
        *FEW,
        Setting("layer_norm", (20, 64)),
        Setting("layer_norm", (3, 77)),
        Setting("group_norm", (2, 32, 7, 7), groups=2),
    ],
    ids=str,
)
@names
@on_kernels
def test_wider_parameters(setting, name, device):
    pairs = ("float16", "float32"), ("bfloat16", "float64"), ("float32", "float64")
    for dtype, parameter in pairs:
        arrays = Arrays(setting, DTYPES[dtype], parameter=DTYPES[parameter])
        got, gradients = run_on(device, arrays, activation=name)
        assert gradients[-len(arrays.weights)].dtype == arrays.weight.dtype
        assert_right(arrays, name, got, gradients)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda op: op.name)
@on_kernels
def test_every_activation(activation, device):
    arrays = Arrays(Setting("layer_norm", (9, 37)), np.dtype(np.float32))
    (y, _), gradients = run_on(device, arrays, activation=activation.name)
    (z, saved), _ = run_on(device, arrays)
    np.testing.assert_allclose(y, activation(z), 1e-6, 1e-6)
    p = activation.backward(arrays.dy, *activation.forward(z)[1])
    plain = fa.layer_norm.backward(p, *saved)
    for mine, other in zip(gradients, plain, strict=True):
        np.testing.assert_allclose(mine, other, 2e-5, 2e-5)


def test_parameters_of_activations(device):
    arrays = Arrays(SETTINGS[1], np.dtype(np.float32))
    (z, _), _ = run_on(device, arrays)
    (y, _), _ = run_on(device, arrays, activation="elu", alpha=0.5)
    np.testing.assert_allclose(y, fa.elu(z, 0.5), 1e-6, 1e-6)


# --- hard cases -----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [100, 3000])
@on_kernels
def test_far_from_zero(length, device):
    x = (np.random.default_rng(0).random((3, length)) + 1e4).astype(np.float32)
    y = device.run(fa.layer_norm, x)
    exact = exact_norm(
        "identity", x.astype(float), *reference.statistics(x.astype(float), (1,), 1e-5, True), 1, 0
    )
    np.testing.assert_allclose(y, exact, 2e-6, 2e-6)
    assert (abs(y.mean(1, dtype=np.float64)) < 1e-6).all()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@on_kernels
def test_near_the_largest(kind, device):
    for scale in (1e30, 5e37):
        x = np.random.default_rng(0).normal(size=(4, 300)).clip(-3, 3) * scale
        arrays = Arrays(Setting("layer_norm", (4, 300)), DTYPES[kind])
        arrays.x = x.astype(DTYPES[kind])
        assert_right(arrays, "identity", *run_on(device, arrays))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("scale", [1e-37, 1e-25, 1e30])
@on_kernels
def test_squares_that_float_does_not_hold(op, scale, device):
    """Of bfloat16: one row of those that share a warp, and of those with a block each."""
    for length in (50, 3000):
        arrays = Arrays(Setting(op, (6, length), {"eps": 0.0}), DTYPES["bfloat16"])
        found = []
        for factor in (1, scale):
            arrays.x[2] = (arrays.x[2].astype(np.float64) * factor).astype(arrays.x.dtype)
            (y, saved), (dx, *_) = run_on(device, arrays)
            statistics = saved[1 : -len(arrays.weights)]
            found.append([a[[0, 1, 3, 4, 5]] for a in (y, *statistics, dx)])
        assert_all_same_bits(*found)
        x = arrays.x.astype(np.float64)
        exact = reference.statistics(x, (1,), 0.0, arrays.setting.centred)
        np.testing.assert_allclose(statistics[-1].astype(np.float64), exact[1], 4 * 2.0**-24)


@on_kernels
def test_nearly_constant_rows(dtype, device):
    """The mean as a float misses the mean by a share of the deviation that shows."""
    arrays = Arrays(Setting("layer_norm", (2, 20000), {"eps": 1e-9}), dtype)
    arrays.x[...] = 128
    arrays.x[:, 3] = 129
    assert_right(arrays, "identity", *run_on(device, arrays))


@pytest.mark.parametrize("value", [0.0, 0.1, -1e4, 3e30])
@pytest.mark.parametrize("setting", [s for s in FEW if s.centred and not s.adds], ids=str)
@on_kernels
def test_constant_rows_give_the_bias(setting, value, dtype, device):
    arrays = Arrays(setting, dtype)
    with np.errstate(over="ignore"):
        arrays.x[...] = value
    if not np.isfinite(arrays.x.astype(float)).all():
        pytest.skip("no number of this type")
    (y, _), _ = run_on(device, arrays)
    expected = np.broadcast_to(setting.along(arrays.bias), setting.split_shape)
    np.testing.assert_array_equal(setting.split(y), expected)


# --- where results go -----------------------------------------------------------------------------


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.adds], ids=str)
@on_kernels
def test_gradient_of_the_sum(setting, dtype, device):
    arrays = Arrays(setting, dtype)
    at = int(setting.kind.drops)  # behind dx, which is dropped
    dx = run_on(device, arrays, activation="mish")[1][at]
    both = run_on(device, arrays, activation="mish", dtotal=arrays.residual)[1][at]
    wide = np.promote_types(dtype, np.float32)
    eps = float(ml_dtypes.finfo(dtype).eps)
    expected = dx.astype(wide) + arrays.residual.astype(wide)
    np.testing.assert_allclose(both.astype(wide), expected, 2 * eps, 4 * eps)


# --- bits -----------------------------------------------------------------------------------------

OF_BITS = for_every_norm(
    [
        Setting("layer_norm", (30, 37)),
        Setting("layer_norm", (3, 2500)),
        Setting("add_rms_norm", (19, 1100)),
        Setting("layer_norm", (5, 17001)),
        Setting("group_norm", (5, 6, 9, 7), groups=3),
        Setting("instance_norm", (3, 5, 9, 7)),
    ]
)
# How long rows are cut does not ask which op it is, and takes seconds: a plain run has the first.
LONG_ROWS = [setting for setting in OF_BITS if setting.shape == (5, 17001)]
each_of_bits = pytest.mark.parametrize(
    "setting",
    [
        pytest.param(setting, marks=pytest.mark.thorough if setting in LONG_ROWS[1:] else ())
        for setting in OF_BITS
    ],
    ids=str,
)


def held(x: np.ndarray, axis: int, step: int) -> np.ndarray:
    """The same values, with others between them, or the other way round in memory."""
    shape = list(x.shape)
    shape[axis] *= abs(step)
    view = np.full(shape, 77, x.dtype)[(*(slice(None),) * (axis % x.ndim), slice(None, None, step))]
    view[...] = x
    return view


# Rows of more vectors than one block takes backward (1024, of float32 1536) are long; so are the
# rows of these runs.
LONG = [
    ("layer_norm", (3, 2050), None),
    ("add_rms_norm", (2, 2049), None),
    ("group_norm", (2, 4, 2050), 2),
]


@each_of_bits
@names
@on_kernels
def test_strides_do_not_show(setting, name, device):
    """Element by element, in the order of dense arrays."""
    assert_strides_do_not_show(setting, np.dtype(np.float32), name, device)


@pytest.mark.parametrize(("op", "vectors", "groups"), LONG, ids=str)
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(d, marks=pytest.mark.thorough if d != np.float64 else ())
        for d in DTYPES.values()
    ],
    ids=str,
)
@on_kernels
def test_strides_of_long_rows_do_not_show(op, vectors, groups, dtype, device):
    shape = (*vectors[:-1], vectors[-1] * 16 // dtype.itemsize - 1)
    setting = Setting(op, shape, groups=groups) if groups else Setting(op, shape)
    assert_strides_do_not_show(setting, dtype, "identity", device)


def assert_strides_do_not_show(
    setting: Setting, dtype: np.dtype[Any], name: str, device: Framework
) -> None:
    arrays = Arrays(setting, dtype)
    expected = everything(device, arrays, activation=name)
    x, dy, residual = arrays.x, arrays.dy, arrays.residual
    for axis, step in ((-1, 2), (-1, -1), (0, -2)):
        arrays.x, arrays.dy = held(x, axis, step), held(dy, -1, 3)
        arrays.residual = held(residual, axis, -step)
        assert_all_same_bits(everything(device, arrays, activation=name), expected)


@each_of_bits
@on_kernels
def test_other_rows_do_not_show(setting, dtype, device):
    if setting.kind.drops:
        pytest.skip("which row it is shows")
    arrays = Arrays(setting, dtype)
    (y, _), gradients = run_on(device, arrays, activation="mish")
    arrays.x, arrays.dy, arrays.residual = (a[-1:] for a in (arrays.x, arrays.dy, arrays.residual))
    (one, _), one_gradients = run_on(device, arrays, activation="mish")
    pick = (lambda a: a[0]) if setting.adds else (lambda a: a)
    assert_same_bits(pick(one), pick(y)[-1:])
    assert_same_bits(one_gradients[0], gradients[0][-1:])


@pytest.mark.skipif(not EMULATED, reason="is of the emulated device")
@pytest.mark.parametrize(
    "setting",
    [
        Setting("rms_norm", (2, 81936)),
        Setting("layer_norm", (1, 262144)),
    ],
    ids=str,
)
@names
def test_devices_have_the_same_bits(setting, name, dtype):
    """Of more multiprocessors, more shared memory, and clusters of up to 8, 1 and 16 blocks."""
    arrays, found = Arrays(setting, dtype), []
    kind = devices.emulate().ExchangeArray
    for number in (0, 1, 2):
        device = Framework("emulated", to_emulated(kind, number), KERNELS[0].numpy, False)
        found.append(everything(device, arrays, activation=name))
    for other in found[1:]:
        assert_all_same_bits(other, found[0])


def test_devices_agree_with_the_cpu():
    """Closer than their bounds: the statistics are the same but for the last bit, and means but for
    one u, 6e-8, of the mean distance from them, which is 0.8 here."""
    arrays = Arrays(Setting("layer_norm", (30, 300)), np.dtype(np.float32))
    (_, expected), _ = run(arrays)
    for device in DEVICES:
        (_, saved), _ = run_on(device, arrays)
        for mine, other in zip(saved[1:3], expected[1:3], strict=True):
            np.testing.assert_allclose(mine, other, 2e-7, 5e-8)
