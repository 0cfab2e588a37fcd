"""Second derivatives of every op that has them in JAX, and forward mode of activations."""

from typing import Any

import numpy as np
import pytest
from conftest import ACTIVATIONS

import fastact as fa
from fastact.measure import cases, composed
from fastact.ops.engine.op import arrays_of

jax = pytest.importorskip("jax")
pytest.importorskip("fastact.jax", exc_type=ImportError)  # of a JAX that is too old
import jax.numpy as jnp  # noqa: E402

import fastact.jax as fj  # noqa: E402

check_grads = pytest.importorskip("jax.test_util").check_grads

COMPOSED = [op for op in fa.ops.values() if composed.has_formula(op)]
#: Away from corners.
POINTS = np.linspace(-3, 3, 7) + 0.05


@pytest.fixture(autouse=True)
def doubles() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("op", ACTIVATIONS, ids=lambda op: op.name)
def test_activations_in_both_modes(op):
    f, x = getattr(fj, op.name), jnp.asarray(POINTS)
    check_grads(f, (x,), order=2, modes=("fwd", "rev"), atol=1e-5, rtol=1e-5)
    slopes = jax.vmap(jax.grad(f))(x)
    assert np.allclose(jnp.diag(jax.jacfwd(f)(x)), slopes)
    assert np.allclose(jax.jit(jax.jvp, static_argnums=0)(f, (x,), (x,))[1], slopes * x)


@pytest.mark.parametrize("op", COMPOSED, ids=lambda op: op.name)
def test_hessians(op):
    """Forward over reverse and reverse over reverse, as differences of gradients have them."""
    x, dy = np.random.default_rng(0).normal(size=(2, 2, 4))
    named = cases.sample(op, x, dy)
    if op.writes(named):
        named |= dict.fromkeys(op.written)  # arrays of JAX are not written
    named = {n: jnp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in named.items()}
    first = op.entry_points["call"].arrays[0]

    @jax.jit
    def g(x: Any) -> Any:
        given = {**named, first: x}
        arrays = [given.pop(name) for name in op.entry_points["call"].arrays]
        return sum((y**2).sum() for y in arrays_of(getattr(fj, op.name)(*arrays, **given)))

    x = named[first]
    found = jax.jit(jax.hessian(g))(x)
    assert np.allclose(found, jax.jit(jax.jacrev(jax.jacrev(g)))(x))
    grad, step = jax.jit(jax.grad(g)), np.linspace(-1, 1, x.size).reshape(x.shape) * 1e-5
    slope = (grad(x + step) - grad(x - step)) / 2
    assert np.allclose(np.tensordot(found, step, x.ndim), slope, atol=1e-10, rtol=1e-4)


def test_a_third_derivative_is_an_error():
    with pytest.raises(TypeError, match=r"fastact\.jax\.mish: has no third derivative"):
        jax.grad(jax.grad(jax.grad(fj.mish)))(1.0)
    assert jax.grad(jax.grad(jax.grad(fj.relu)))(1.0) == 0
