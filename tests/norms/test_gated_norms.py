"""gated_rms_norm by rms_norm and the activation, its options, and where its results may lie."""

import numpy as np
import pytest
from arrangements import shifted
from conftest import assert_all_same_bits, assert_same_bits
from devices import DTYPES

import fastact as fa
from fastact.check import reference

ACTIVATIONS = [op for op in fa.ops.values() if op.family == "activations"]
# No whole vectors; rows of several chunks; rows that are not kept between the passes, and that a
# GPU takes by several blocks each.
SHAPES = [(19, 77), (3, 2500), (2, 20001)]


def arrays(shape, dtype=np.float32):
    rng = np.random.default_rng(shape[-1])
    x, gate, dy = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    return x, gate, dy, (1 + rng.normal(size=shape[-1])).astype(dtype)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda op: op.name)
def test_every_activation(activation):
    """float32 has the bits of the two ops; backward meets the activation's own derivative."""
    x, gate, dy, weight = arrays((19, 77))
    value = activation(gate)
    op, name = fa.gated_rms_norm, activation.name
    y, saved = op.forward(x, gate, weight, activation=name)
    plain = fa.rms_norm(x, weight)
    assert_same_bits(y, value * plain)
    dx, dgate, dweight = op.backward(dy, *saved, activation=name)
    expected = fa.rms_norm.backward(value * dy, x, saved[2], weight)
    np.testing.assert_allclose(dx, expected[0], 1e-6, 1e-6)
    np.testing.assert_allclose(dweight, expected[1], 1e-6, 1e-5)
    slope = reference.derivative(name, gate.astype(np.float64))
    np.testing.assert_allclose(dgate, dy * plain * slope, 2e-5, 2e-6)
    first, saved = op.forward(x, gate, weight, activation=name, gate_first=True)
    assert_same_bits(first, fa.rms_norm(value * x, weight))
    du, _ = fa.rms_norm.backward(dy, value * x, saved[2], weight)
    dx, dgate, _ = op.backward(dy, *saved, activation=name, gate_first=True)
    np.testing.assert_allclose(dx, value * du, 2e-5, 2e-6)
    np.testing.assert_allclose(dgate, x * du * slope, 2e-5, 2e-6)


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_groups_are_rows(dtype, gate_first, axis, backend):
    """Those of a view that has an axis more; the weight of a row's neighbours is another one."""
    x, gate, dy, _ = arrays((6, 12, 24), dtype)
    how = {"gate_first": gate_first, "activation": "sigmoid"}
    y, saved = fa.gated_rms_norm.forward(
        backend.of(x), backend.of(gate), axis=axis, group_size=3, **how
    )
    at, shape = axis % 3, list(x.shape)
    shape[at : at + 1] = shape[at] // 3, 3
    views = [a.reshape(shape) for a in (x, gate, dy)]
    ours = fa.gated_rms_norm.backward(backend.of(dy), *saved, axis=axis, group_size=3, **how)
    expected, kept = fa.gated_rms_norm.forward(*map(backend.of, views[:2]), axis=at + 1, **how)
    theirs = fa.gated_rms_norm.backward(backend.of(views[2]), *kept, axis=at + 1, **how)
    for a, b in zip((y, *ours[:2]), (expected, *theirs[:2]), strict=True):
        assert_same_bits(backend.numpy(a), backend.numpy(b).reshape(x.shape))


#: Of whole vectors: rows of a warp, of a block by one vector a thread, two and three, and of many
#: blocks. The third on a GPU has blocks that take more than one row.
WHOLE = [(9, 64), (3, 2048), (150, 4352), (2, 5120), (2, 16384), (12, 8192)]


@pytest.mark.parametrize("gate_first", [False, True])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape", WHOLE, ids=str)
def test_whole_aligned_vectors_give_the_bits_of_any_others(
    dtype, shape, gate_first, accumulate, backend
):
    """A GPU has kernels of their own for their gradients."""
    x, gate, dy, weight = arrays(shape, dtype)
    gate[0, :8] = 0, -0.0, 30, -30, 100, -100, 1e4, -1e4
    found = []
    for lay in (np.copy, shifted):
        _, saved = fa.gated_rms_norm.forward(
            *(backend.of(lay(a)) for a in (x, gate)), backend.of(weight), gate_first=gate_first
        )
        out = (*(backend.of(lay(a)) for a in (dy, x)), backend.of(weight.copy()))
        fa.gated_rms_norm.backward(
            backend.of(lay(dy)), *saved, gate_first=gate_first, out=out, accumulate=accumulate
        )
        found.append([backend.numpy(a) for a in out])
    assert_all_same_bits(*found)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_gated_x_is_not_rounded(name):
    """Of 16 bits x f(gate) is of float32: 1 + 2^-12 would be 1."""
    dtype = DTYPES[name]
    x, gate = np.array([1.0, 1.0], dtype), np.array([1.0, 1.0], dtype)
    gate[1] = dtype.type(0.99609375)
    x[1] = dtype.type(1.0078125)
    y = fa.gated_rms_norm(x, gate, activation="identity", gate_first=True, eps=0)
    u = x.astype(float) * gate.astype(float)
    assert_same_bits(y, (u / np.sqrt(np.mean(u * u))).astype(np.float32).astype(dtype))
