"""The op object: its entry points, what it takes, how it is found, saved and documented."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from conftest import assert_agrees, assert_same_bits, by_representatives, sample
from devices import DTYPES

import fastact as fa


def test_ops_are_the_public_names():
    assert all(getattr(fa, name) is op and op.name == name for name, op in fa.ops.items())
    assert set(fa.ops) <= set(fa.__all__)
    with pytest.raises(TypeError):
        fa.ops["mine"] = fa.mish  # type: ignore[index]


def test_pickle_and_copy_by_name(op):
    assert pickle.loads(pickle.dumps(op)) is op
    assert copy.deepcopy(op) is copy.copy(op) is op


def test_introspection(op):
    assert repr(op) == f"<fastact op '{op.name}'>"
    assert op.__name__ == op.name
    assert op.__module__ == "fastact"
    names = list(inspect.signature(op).parameters)
    assert names == ["x", *op.parameters, "out", "stream"]


@pytest.mark.parametrize("op", fa.ops.values(), ids=lambda op: op.name)
def test_completion_shows_what_people_use(op):
    shown = dir(op)
    assert {"bounds", "jvp", *(n.partition(".")[0] for n in op.entry_points)} - {*shown} == {"call"}
    assert not [name for name in shown if name.startswith("_") or not hasattr(op, name)]
    assert ("quantized" in shown) == hasattr(op, "quantized")


def test_swish_is_silu():
    assert fa.swish is fa.silu
    assert "swish" in fa.__all__
    x = sample(np.float32)
    assert_same_bits(fa.layer_norm(x, activation="swish"), fa.layer_norm(x, activation=fa.silu))
    with pytest.raises(ValueError, match="got 'swihs'; did you mean 'swish'"):
        fa.layer_norm(x, activation="swihs")


def test_parameters_by_position_and_keyword():
    """Told for the first time, by the slow path; then by the short cut."""
    x, dy = sample(np.float32), sample(np.float32, seed=1)
    for _ in range(2):
        y, dx = fa.elu(x, alpha=0.5), fa.elu.backward(dy, x, alpha=0.5)
        assert_same_bits(fa.elu(x, 0.5), y)
        assert_same_bits(fa.elu(x, 0.5, np.empty_like(x)), y)
        assert_same_bits(fa.elu.forward(x, alpha=0.5)[0], y)
        assert_same_bits(fa.elu.backward(dy, x, 0.5), dx)
        assert_same_bits(fa.elu(x[::2], 0.5), y[::2])
        tanh = fa.gelu(x, approximate="tanh")
        assert_same_bits(fa.gelu(x, "tanh"), tanh)
        assert not np.array_equal(fa.gelu(x), tanh)
        assert not np.array_equal(fa.elu(x), y)


def test_three_entry_points(op, dtype, framework):
    x, dy = sample(dtype), sample(dtype, seed=1)
    y = framework.numpy(op(framework.of(x)))
    value, saved = op.forward(framework.of(x))
    assert_same_bits(framework.numpy(value), y)
    assert len(saved) == 1
    kept = y if op.saves == ("y",) else x
    assert_same_bits(framework.numpy(saved[0]), kept)
    dx = framework.numpy(op.backward(framework.of(dy), *saved))
    assert_agrees(framework, dx, op.backward(dy, kept))


def test_saved_is_not_copied(op):
    x = sample(np.float32)
    for given in (x, x[::2]):
        y, saved = op.forward(given)
        kept = y if op.saves == ("y",) else given
        assert saved[0] is kept or saved[0].base is x


def test_forward_in_place(op):
    """Where y is saved x may be overwritten."""
    x = sample(np.float32)
    expected = op(x)
    if "x" in op.saves:
        with pytest.raises(ValueError, match="out"):
            op.forward(x, out=x)
    else:
        for part, right in ((x[:500], expected[:500]), (x[500::2], expected[500::2])):
            y, saved = op.forward(part, out=part)
            assert y is saved[0] is part
            assert_same_bits(part, right)


@by_representatives
def test_out_by_position_and_by_keyword(op, dtype, framework):
    x = framework.of(sample(dtype))
    y = framework.numpy(op(x))
    a, b, c = (framework.of(np.zeros(1000, dtype)) for _ in range(3))
    parameters = list(op.parameters.values())
    assert op(x, *parameters, a) is a
    assert op(x, out=b) is b
    assert op.forward(x, out=c)[0] is c
    for out in (a, b, c):
        assert_same_bits(framework.numpy(out), y)
    assert op.backward(x, x, *parameters, a) is a
    assert op.backward(x, x, out=b) is b
    assert_same_bits(framework.numpy(a), framework.numpy(b))


def test_accumulate(op, dtype, framework):
    x, dy, base = sample(dtype), sample(dtype, seed=1), np.ones(1000, dtype)
    total = framework.of(base.copy())
    result = op.backward(framework.of(dy), framework.of(x), out=total, accumulate=True)
    assert result is total
    wide = np.float64 if dtype == np.float64 else np.float32
    with np.errstate(all="ignore"):
        expected = (base.astype(wide) + op.backward(dy.astype(wide), x.astype(wide))).astype(dtype)
        nan = np.isnan(expected.astype(wide))
    assert_agrees(framework, framework.numpy(total)[~nan], expected[~nan])


@by_representatives
def test_out_as_a_tuple(op, framework):
    """As NumPy takes it: an array or None for each output."""
    x = framework.of(sample(np.float32))
    out = framework.of(np.zeros(1000, np.float32))
    assert op(x, out=(out,)) is out
    assert op.forward(x, out=(out,))[0] is out
    assert op.backward(x, x, out=(out,)) is out
    assert_same_bits(framework.numpy(op(x, out=(None,))), framework.numpy(op(x)))
    with pytest.raises(ValueError, match=r"out must be an array or a tuple of 1, got a tuple of 2"):
        op(x, out=(out, out))


@pytest.mark.parametrize(
    "value",
    [
        1.5, 2, True, -0.0, [1.0, 2.0], [[1, 2], [3, 4]], (), range(3), np.float16(1.5),
        np.float32(1.5), np.float64(1.5), np.int8(3), np.array(2.0, np.float32), np.array(7),
        np.arange(5, dtype=np.int8), np.arange(5, dtype=np.uint16), np.arange(5),
        np.array([True, False]),
    ],
    ids=repr,
)  # fmt: skip
def test_values_promote_as_numpy_does(op, value):
    y, like = op(value), np.tanh(value)
    assert type(y) is type(like)
    assert y.dtype == like.dtype
    assert y.shape == like.shape
    assert_same_bits(y, op(np.asarray(value, like.dtype)))
    saved = op.forward(value)[1]
    assert saved[0].dtype == like.dtype


def test_python_numbers_as_gradients(op, dtype, framework):
    x = sample(dtype)
    expected = op.backward(np.full(1000, 0.3, dtype), x)
    assert_agrees(framework, framework.numpy(op.backward(0.3, framework.of(x))), expected)


def test_lists_take_the_other_arrays_dtype(op):
    x = np.arange(3, dtype=np.float32)
    assert op.backward([1, 2, 3], x).dtype == np.float32


def test_subclasses_give_plain_arrays(op, tmp_path):
    mapped = np.memmap(tmp_path / "x", np.float32, "w+", shape=8)
    mapped[:] = 1
    assert type(op(mapped)) is np.ndarray


def test_bfloat16_alone(op):
    """A first bfloat16 array teaches the native module NumPy's number for the dtype."""
    x = np.ones(3, DTYPES["bfloat16"])
    assert op(x).dtype == x.dtype


def test_gradcheck(op):
    """Central differences in float64, h = eps^(1/3): error some 1e-10."""
    x = np.random.default_rng(0).normal(size=500) * 3
    h = 6e-6
    numeric = (op(x + h) - op(x - h)) / (2 * h)
    np.testing.assert_allclose(op.backward(1.0, *op.forward(x)[1]), numeric, atol=1e-8)
