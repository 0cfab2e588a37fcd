"""What None in a tuple of outputs means, held over the registry: of results, one to allocate, as in
NumPy; of gradients, one to skip."""

from itertools import product
from typing import Any

import calls
import numpy as np
import pytest
from calls import OPS, parts
from conftest import assert_same_bits, stores_past_the_caches

import fastact as fa

X, DY = (np.random.default_rng(seed).normal(size=(6, 4)) for seed in (0, 1))
each_op = pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)


def halves(**options: Any) -> Any:
    return fa.batch_norm.backward_reduce(DY, X, X[0], X[1], **options)


BACKWARD = {op.name: calls.backward(op, X, DY) for op in OPS}
BACKWARD["batch_norm.backward_reduce"] = halves
#: Those of several gradients, of which one may choose.
SEVERAL = [name for name, call in BACKWARD.items() if isinstance(call(), tuple)]


@each_op
def test_results_that_are_none_are_allocated(op):
    call = calls.forward(op, X, DY)
    expected = parts(call())
    for given in product((False, True), repeat=len(expected)):
        pairs = list(zip(given, expected, strict=True))
        for _ in range(3):  # the slow path, then a plan
            out = tuple(np.empty_like(e) if g else None for g, e in pairs)
            found = parts(call(out=out))
            for result, held, same in zip(found, out, expected, strict=True):
                assert held is None or result is held
                assert_same_bits(result, same)


@each_op
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_that_go_past_the_caches(op, dtype):
    """As some ops' outputs do where they are large, on some processors: the same bits, no more."""
    x, dy = (np.resize(a.astype(dtype), (37, 132)) for a in (X, DY))
    call = calls.forward(op, x, dy)
    expected = parts(call())
    for threads in (1, 2):
        wide = [np.zeros(e.size + 7, e.dtype) for e in expected]
        out = tuple(w[3 : 3 + e.size].reshape(e.shape) for w, e in zip(wide, expected, strict=True))
        with stores_past_the_caches(), fa.num_threads(threads):
            call(out=out)
        for result, same, around in zip(out, expected, wide, strict=True):
            assert_same_bits(result, same)
            assert not around[:3].any()
            assert not around[-4:].any()


@pytest.mark.parametrize("name", [name for name in BACKWARD if name not in SEVERAL])
def test_one_gradient_that_is_none_is_allocated(name):
    assert_same_bits(BACKWARD[name](out=(None,)), BACKWARD[name]())


@pytest.mark.parametrize("name", SEVERAL)
def test_gradients_that_are_none_are_skipped(name):
    call = BACKWARD[name]
    expected = call()
    for given in product((False, True), repeat=len(expected)):
        for _ in range(3):
            pairs = zip(given, expected, strict=True)
            out = tuple(np.empty_like(e) if g else None for g, e in pairs)
            if not any(given):
                with pytest.raises(ValueError, match="out must have an array for one gradient at"):
                    call(out=out)
                continue
            found = call(out=out)
            for result, held, same in zip(found, out, expected, strict=True):
                assert result is held
                if held is not None:
                    assert_same_bits(result, same)


@pytest.mark.parametrize("name", [n for n in SEVERAL if n != "batch_norm.backward_reduce"])
def test_accumulating_into_some(name):
    call = BACKWARD[name]
    expected = call()
    for k, gradient in enumerate(expected):
        out = tuple(np.ones_like(g) if i == k else None for i, g in enumerate(expected))
        call(out=out, accumulate=True)
        np.testing.assert_allclose(out[k], gradient + 1, 1e-12, 1e-12)


# What None means in a tuple of outputs: of results as in NumPy, of gradients as autograd needs it.
ALLOCATED, SKIPPED = "one that is None is allocated", "one that is None is not computed"


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("name", [op.name for op in OPS if len(op.results) > 1])
def test_that_it_is_allocated_is_documented(name):
    assert ALLOCATED in words(fa.ops[name].__doc__)


@pytest.mark.parametrize("name", [n for n in SEVERAL if n in fa.ops])
def test_that_it_is_skipped_is_documented(name):
    assert SKIPPED in words(fa.ops[name].backward.__doc__)


def test_entry_points_that_one_op_alone_has():
    assert SKIPPED in words(fa.batch_norm.backward_reduce.__doc__)
    assert ALLOCATED in words(fa.sum_squares.value_and_grad.__doc__)
    grad = np.empty_like(X)
    value, found = fa.sum_squares.value_and_grad(X, out=(None, grad))
    assert found is grad
    assert_same_bits(value, fa.sum_squares(X))
