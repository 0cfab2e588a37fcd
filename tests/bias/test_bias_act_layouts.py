"""bias_act: the same bits whatever the layout and the threads, in place, and without memory."""

from typing import Any

import numpy as np
import pytest
from arrays import finite
from biased import assert_sums, call, expected_dx, expected_forward, parts
from conftest import DTYPES, assert_agrees, assert_all_same_bits, assert_same_bits, on_kernels

import fastact as fa


# Kernels take the bias of a chunk (1024 elements) as a period of values: of 32 where there is one
# channel, else of the least common multiple of 32 and the channels, if that is less than a chunk,
# which 992 is.
@pytest.mark.parametrize("channels", [1, 3, 31, 33, 48, 64, 330, 960, 992, 993, 1023, 1024, 1100])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_any_number_of_channels(channels, last, dtype, threads):
    rows = 4000 // channels + 3
    shape = (rows, channels) if last else (2, channels, rows)
    x, dy = finite(dtype, shape, 1), finite(dtype, shape, 2)
    bias = finite(dtype, (channels,), 3)
    spread = bias if last else bias[:, None]
    axis = -1 if last else 1
    with fa.num_threads(threads):
        assert_same_bits(fa.bias_act(x, bias, "identity", axis=axis), x + spread)
        y = fa.bias_act(x, bias, "relu", axis=axis)
        dx, dbias = fa.bias_act.backward(dy, x, bias, activation="relu", axis=axis)
    assert_same_bits(y, np.maximum(x + spread, 0))
    assert_same_bits(dx, dy * (x + spread > 0))
    assert_same_bits(dbias, fa.bias_grad(dx, axis=axis))
    # Of 16 bits dy is copied, and added up as it is.
    for narrow in (dtype, DTYPES["float16"], DTYPES["bfloat16"]):
        dy, bias = dy.astype(narrow), bias.astype(narrow)
        with fa.num_threads(threads):
            dx, dbias = fa.bias_act.backward(dy, dy, bias, activation="identity", axis=axis)
        assert_same_bits(dx, dy)
        assert_same_bits(dbias, fa.bias_grad(dy, axis=axis))


@pytest.mark.parametrize("shape", [(1024, 64), (64, 1024), (2, 64, 512), (1, 16, 4096)])
@pytest.mark.parametrize("dtype_name", ["float16", "bfloat16"])
def test_the_identity_hands_back_every_bit_of_dy(isa, shape, dtype_name):
    """Of NaNs that signal, too: it converts what it adds up, and copies dx."""
    dtype = DTYPES[dtype_name]
    dy = np.arange(2**16, dtype=np.uint16).reshape(shape)
    axis = -1 if len(shape) == 2 else 1
    bias = np.zeros(shape[axis], dtype)
    dx, _ = fa.bias_act.backward(dy.view(dtype), dy.view(dtype), bias, axis=axis)
    np.testing.assert_array_equal(dx.view(np.uint16), dy)


# Rows on both sides of a lane's (32), of those that are added at once (256) and of a block (2048);
# channels in tiles that begin within and at the end of a group of 32, and more than one tile.
@pytest.mark.parametrize("rows", [1, 31, 33, 300, 2049])
@pytest.mark.parametrize("channels", [65, 96, 1000, 1100])
@pytest.mark.parametrize("name", ["relu", "mish"])
@pytest.mark.parametrize("dtype_name", ["float16", "bfloat16"])
@pytest.mark.parametrize("last", [True, False])
def test_16_bits_in_registers_or_buffers(rows, channels, name, dtype_name, last):
    """In one piece they are converted in registers, strided in buffers: to the same bits."""
    shape = (rows, channels) if last else (1, channels, rows)
    dy, x, bias, _ = parts(DTYPES[dtype_name], shape, axis := -1 if last else 1)

    def results(*arrays):
        y = fa.bias_act(*arrays[1:], bias, name, axis=axis)
        return y, *fa.bias_act.backward(*arrays, bias, activation=name, axis=axis)[:2]

    strided = [np.repeat(a, 2, -1)[..., ::2] for a in (dy, x)]
    with fa.num_threads(1):
        expected = results(*strided)
    for threads in (1, 2, 5):
        with fa.num_threads(threads):
            for arrays in ((dy, x), strided):
                assert_all_same_bits(results(*arrays), expected)
    for k in (0, 1):  # in place
        arrays = [dy.copy(), x.copy()]
        out = arrays[k], np.empty_like(bias)
        fa.bias_act.backward(*arrays, bias, activation=name, axis=axis, out=out)
        assert_all_same_bits(out, expected[1:])
    y = x.copy()
    fa.bias_act(y, bias, name, axis=axis, out=y)
    assert_same_bits(y, expected[0])


# Rows that end amid a group of 32: the next image's begin at another lane of the sum.
@pytest.mark.parametrize("columns", [65, 70, 1100])
@pytest.mark.parametrize("dtype_name", ["float16", "bfloat16"])
def test_16_bits_of_several_images(columns, dtype_name):
    dy, x, bias, _ = parts(DTYPES[dtype_name], (5, 6, columns), 1)
    strided = [np.repeat(a, 2, -1)[..., ::2] for a in (dy, x)]
    expected = fa.bias_act.backward(*strided, bias, activation="mish", axis=1)
    for threads in (1, 3):
        with fa.num_threads(threads):
            made = fa.bias_act.backward(dy, x, bias, activation="mish", axis=1)
        assert_all_same_bits(made, expected)


# Rows of whole vectors, and as many rows as make whole ones, the last time fewer; more than one
# tile of columns (256 vectors, 32 with sums) and chunk of rows. Elements behind the channels: added
# up with them, in one tile and in two, of one chunk of rows and of several; and few rows. Channels
# that share vectors and tiles, and that several tiles share.
ROWS = [(70, 40), (28, 5), (9, 1032), (2500, 8), (1, 4200), (4, 3, 2, 5)]
ROWS += [(9, 3, 4, 8), (20, 2, 2080), (300, 3, 8), (5, 7, 24)]
ROWS += [(8, 48, 7, 7), (40, 11, 7, 7), (3000, 5, 3), (12, 3, 405), (10, 2, 1300)]
# Compiled into their kernels, and called.
NAMES = ["identity", "relu", "gelu", "mish", "silu", "sigmoid", "tanh", "softsign"]
TANH = {"activation": "gelu", "approximate": "tanh"}


def everything(device: Any, dy: Any, x: Any, bias: Any, residual: Any, **options: Any) -> Any:
    """y, dx and dbias."""
    y = call(device, fa.bias_act, x, bias, axis=1, residual=residual, **options)
    return y, *call(device, fa.bias_act.backward, dy, x, bias, residual, axis=1, **options)


@on_kernels
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("dtype_name", DTYPES)
def test_rows_of_vectors_on_devices(device, shape, dtype_name):
    """They have kernels of their own, with the bits of those for any strides; sums by order."""
    arrays = parts(DTYPES[dtype_name], shape, 1)
    gaps = [a if a.ndim == 1 else np.repeat(a, 2, -1)[..., ::2] for a in arrays]
    names = NAMES if shape == ROWS[0] else ["mish", "softsign"]
    for options in [*({"activation": name} for name in names), TANH]:
        for residuals in (arrays[3], gaps[3]), (None, None):
            *made, dbias = everything(device, *arrays[:3], residuals[0], **options)
            *expected, _ = everything(device, *gaps[:3], residuals[1], **options)
            assert_all_same_bits(made, expected)
            assert_sums(dbias, made[1], 1, DTYPES[dtype_name])


@on_kernels
def test_workspace_of_any_layout_on_devices(device):
    """The identity reads no x, and sums dy in dy's order: in more chunks than x has."""
    shape = (4, 9000)
    dy, x, bias, _ = parts(np.dtype(np.float32), shape, 0)
    turned = np.asfortranarray(dy)
    dx, dbias = call(device, fa.bias_act.backward, turned, x, bias, activation="identity", axis=0)
    assert_same_bits(dx, dy)
    assert_sums(dbias, dy, 0, dy.dtype)


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 70), (3000, 5), (40, 1100)], ids=str)
def test_wider_bias(dtype, framework, shape):
    """It is rounded to the compute type; its gradient comes back in its own dtype."""
    dy, x, bias, _ = parts(dtype, shape, 1)
    for bias_dtype in (np.float32, np.float64):
        if np.dtype(bias_dtype).itemsize < dtype.itemsize:
            continue
        b = bias.astype(bias_dtype) * bias_dtype(1.00001)
        y = call(framework, fa.bias_act, x, b, "mish", axis=1)
        assert_agrees(framework, y, expected_forward("mish", x, b, 1, None))
        dx, dbias = call(framework, fa.bias_act.backward, dy, x, b, None, "mish", axis=1)
        assert dx.dtype == dtype
        assert dbias.dtype == bias_dtype
        others = tuple(i for i in range(x.ndim) if i != 1)
        terms = expected_dx("mish", dy, x, b, 1, None).astype(np.float64)
        scale = np.abs(terms).sum(others)
        rough = 1e-12 if framework.exact else 1e-5
        error = np.abs(dbias - terms.sum(others))
        assert (error <= rough * scale + float(np.finfo(bias_dtype).eps) * scale).all()


# --- memory ---------------------------------------------------------------------------------------
