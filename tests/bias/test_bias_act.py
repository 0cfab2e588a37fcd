"""bias_act: what the sums and the activation are, in one pass, bit for bit."""

import inspect
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from arrays import finite, ulp
from biased import (
    assert_sums,
    bias_act,
    bias_act_gradients,
    call,
    case,
    expected_dx,
    expected_forward,
    fused,
    name_of_all,
    name_of_some,
    parts,
    wide,
)
from conftest import ACTIVATIONS, assert_agrees, assert_same_bits, sample

import fastact as fa


@case
@fused
def test_forward(dtype, backend, shape, axis, name, residual):
    _, x, bias, r = parts(dtype, shape, axis, residual)
    y = call(backend, fa.bias_act, x, bias, name, axis=axis, residual=r)
    assert_agrees(backend, y, expected_forward(name, x, bias, axis, r))


@case
@fused
def test_backward(dtype, backend, shape, axis, name, residual):
    dy, x, bias, r = parts(dtype, shape, axis, residual)
    dx, dbias = call(backend, fa.bias_act.backward, dy, x, bias, r, name, axis=axis)
    terms = expected_dx(name, dy, x, bias, axis, r)  # what is summed, before it is rounded
    largest = float(np.abs(wide(dy)).max(initial=1))
    assert_agrees(backend, dx, terms.astype(dtype), scale=largest)
    assert_sums(dbias, dx, axis, dtype)
    if backend.exact and dtype.itemsize == 2:
        _, unrounded = fa.bias_act.backward(dy, x, wide(bias), r, name, axis=axis)
        assert_same_bits(unrounded, fa.bias_grad(terms, axis=axis))
    elif backend.exact:
        assert_same_bits(dbias, fa.bias_grad(dx, axis=axis))


@name_of_all
def test_every_activation(name, dtype, framework):
    dy, x, bias, _ = parts(dtype, (12, 37), 1)
    y = call(framework, fa.bias_act, x, bias, name)
    assert_agrees(framework, y, expected_forward(name, x, bias, 1, None))
    dx, _ = call(framework, fa.bias_act.backward, dy, x, bias, None, name)
    largest = float(np.abs(wide(dy)).max(initial=1))
    exact = expected_dx(name, dy, x, bias, 1, None).astype(dtype)
    assert_agrees(framework, dx, exact, scale=largest)
    if name != "identity":
        assert_same_bits(y, call(framework, fa.bias_act, x, bias, fa.ops[name]))


@name_of_some
def test_against_the_oracle(name):
    dy, x, bias, r = (a.astype(np.float32) for a in parts(np.float64, (64, 33), 1))
    exact = [a.astype(np.float64) for a in (dy, x, bias, r)]
    y = fa.bias_act(x, bias, name, residual=r)
    expected = bias_act(name, *exact[1:3], 1, exact[3])
    np.testing.assert_allclose(y, expected, 1e-5, 2e-6)
    dx, dbias = fa.bias_act.backward(dy, x, bias, r, name)
    gradients = bias_act_gradients(name, *exact[:3], 1, exact[3])
    np.testing.assert_allclose(dx, gradients[0], 1e-4, 1e-4)
    np.testing.assert_allclose(dbias, gradients[1], 1e-4, 1e-4)


@name_of_some
def test_specials(name, dtype):
    x = sample(dtype, 2100).reshape(300, 7)
    bias = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-40]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = expected_forward(name, x, bias, 1, None)
        y = fa.bias_act(x, bias, name)
    nan = np.isnan(expected.astype(float))
    assert (np.isnan(y.astype(float)) == nan).all()
    assert_same_bits(y[~nan], expected[~nan])


def test_gradcheck():
    """Central differences in float64 of both gradients."""
    rng = np.random.default_rng(0)
    x, r, bias = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)), rng.normal(size=5)
    h = 6e-6
    for op in ACTIVATIONS:
        dx, dbias = fa.bias_act.backward(1.0, x, bias, r, op)

        def value(moved: np.ndarray, op: Any = op) -> np.ndarray:
            return fa.bias_act(moved, bias, op, residual=r)

        numeric = (value(x + h) - value(x - h)) / (2 * h)
        np.testing.assert_allclose(dx, numeric, atol=1e-8)
        np.testing.assert_allclose(dbias, numeric.sum(0), atol=1e-7)


@pytest.mark.parametrize("axis", [1, -1])
def test_torch_gradients(axis):
    x, r = (torch.randn(4, 5, 6, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    bias = torch.randn(5, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(4, 5, 6, 5, dtype=torch.float64)
    z = x + (bias if axis == -1 else bias[:, None, None]) + r
    y = torch.nn.functional.mish(z)
    y.backward(dy)
    ours, saved = fa.bias_act.forward(x.detach(), bias.detach(), "mish", axis=axis, residual=r.data)
    torch.testing.assert_close(ours, y.detach(), rtol=1e-14, atol=1e-14)
    dx, dbias = fa.bias_act.backward(dy, *saved, "mish", axis=axis)
    torch.testing.assert_close(dx, x.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dx, r.grad, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dbias, bias.grad, rtol=1e-12, atol=1e-12)


# --- bias_act: the op -----------------------------------------------------------------------------


def test_entry_points_and_what_is_saved(framework):
    _, x, bias, r = parts(np.float32, (8, 5), 1)
    a, b, c = framework.of(x), framework.of(bias), framework.of(r)
    y, saved = fa.bias_act.forward(a, b, "mish", residual=c)
    assert_same_bits(framework.numpy(y), framework.numpy(fa.bias_act(a, b, "mish", residual=c)))
    assert all(kept is given for kept, given in zip(saved, (a, b, c), strict=True))
    assert fa.bias_act.forward(a, b, fa.mish)[1] == (a, b, None)
    assert fa.bias_act.forward(a, b, residual=c)[1] == (None, b, None)
    dx, dbias = fa.bias_act.backward(a, None, b)
    assert_same_bits(framework.numpy(dx), x)
    assert_sums(framework.numpy(dbias), x, 1, x.dtype)


def test_out_and_accumulate(dtype, framework):
    dy, x, bias, r = parts(dtype, (30, 7), 1)
    args = [framework.of(a) for a in (dy, x, bias, r)]
    expected = [framework.numpy(g) for g in fa.bias_act.backward(*args, "mish")]
    out = framework.of(np.zeros(x.shape, dtype))
    assert fa.bias_act(*args[1:3], "mish", residual=args[3], out=(out,)) is out
    for _ in range(3):  # the slow path, then a plan
        for outs in ((out, None), (None, framework.of(np.zeros(7, dtype)))):
            results = fa.bias_act.backward(*args, "mish", out=outs)
            for result, held_by, same in zip(results, outs, expected, strict=True):
                assert result is held_by  # None: skipped
                if held_by is not None:
                    assert_same_bits(framework.numpy(result), same)
    base = [finite(dtype, (30, 7), 5), finite(dtype, (7,), 6)]
    outs = tuple(framework.of(a.copy()) for a in base)
    assert fa.bias_act.backward(*args, "mish", out=outs, accumulate=True)[0] is outs[0]
    terms = expected_dx("mish", dy, x, bias, 1, r)
    total = framework.numpy(outs[0])
    assert_agrees(framework, total, (wide(base[0]) + terms).astype(dtype))
    sums = terms.astype(np.float64).sum(0) + base[1].astype(np.float64)
    error = np.abs(framework.numpy(outs[1]).astype(np.float64) - sums)
    rough = 1e-12 if framework.exact else 1e-4
    assert (error <= 0.51 * ulp(framework.numpy(outs[1])) + rough).all()


def test_numbers_and_lists():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y = fa.bias_act(x, [1, 2, 3], residual=0.5)
    assert y.dtype == np.float32
    assert_same_bits(y, x + np.float32([1.5, 2.5, 3.5]))
    assert fa.bias_act([[1, 2]], [0.5, 1.5]).tolist() == [[1.5, 3.5]]
    dx, dbias = fa.bias_act.backward(2.0, x, np.zeros(3), None, "mish")
    assert dx.dtype == np.float32
    assert dbias.dtype == np.float64
    assert_same_bits(dx, fa.mish.backward(2.0, x))


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3, 0)], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
def test_empty(dtype, framework, shape, axis):
    x, bias = np.ones(shape, dtype), np.ones(shape[axis], dtype)
    assert call(framework, fa.bias_act, x, bias, axis=axis).shape == shape
    dx, dbias = call(framework, fa.bias_act.backward, x, x, bias, None, "mish", axis=axis)
    assert dx.shape == shape
    assert_same_bits(dbias, np.zeros(shape[axis], dtype))
    out = framework.of(x.copy()), framework.of(bias.copy())
    fa.bias_act.backward(
        *map(framework.of, (x, x, bias)), None, "mish", axis=axis, out=out, accumulate=True
    )
    assert_same_bits(framework.numpy(out[1]), bias)


def test_introspection():
    for op in (fa.bias_act, fa.bias_grad, fa.unbroadcast):
        assert pickle.loads(pickle.dumps(op)) is op
        assert repr(op) == f"<fastact op '{op.name}'>"
        assert fa.ops[op.name] is op
        assert op.family == "bias"
        for section in ("Parameters", "Returns", "Raises", "Notes", "References", "Examples"):
            assert f"{section}\n" in op.__doc__
    names = list(inspect.signature(fa.bias_act).parameters)
    own = ["x", "bias", "activation", "axis", "residual", "out", "stream"]
    assert names == [*own, "parameters"]
    assert list(inspect.signature(fa.bias_grad).parameters) == [
        "dy", "axis", "out", "accumulate", "stream",
    ]  # fmt: skip
