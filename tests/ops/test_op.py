"""The op object: its entry points, what it takes, how it is found, saved and documented."""

import copy
import inspect
import pickle

import numpy as np
import pytest
from conftest import assert_agrees, assert_same_bits, by_representatives, sample

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


def test_saved_is_not_copied(op):
    x = sample(np.float32)
    for given in (x, x[::2]):
        y, saved = op.forward(given)
        assert len(saved) == 1
        kept = y if op.saves == ("y",) else given
        assert saved[0] is kept or saved[0].base is x


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
