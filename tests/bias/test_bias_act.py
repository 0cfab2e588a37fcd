"""bias_act: what the sums and the activation are, in one pass, bit for bit."""

import numpy as np
from biased import (
    assert_sums,
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
from conftest import assert_agrees, assert_same_bits, sample

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
def test_specials(name, dtype):
    x = sample(dtype, 2100).reshape(300, 7)
    bias = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-40]).astype(dtype)
    with np.errstate(all="ignore"):
        expected = expected_forward(name, x, bias, 1, None)
        y = fa.bias_act(x, bias, name)
    nan = np.isnan(expected.astype(float))
    assert (np.isnan(y.astype(float)) == nan).all()
    assert_same_bits(y[~nan], expected[~nan])


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
